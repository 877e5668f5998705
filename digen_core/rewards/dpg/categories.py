"""What share of DPG-Bench's questions of each category is answered yes: what its tables show.

As in the published program this is a mean over questions, not over prompts, and what a question
depends on does not count. That program looks at the last of a prompt's images only; here all count,
which has the same expectation and less noise.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from digen_core.config.rewards import RewardConfig
from digen_core.config.rewards.judges import DpgConfig
from digen_core.config.rewards.verifiers import DpgBlipConfig
from digen_core.data.prompts import Prompt
from digen_core.data.published import DPG_CATEGORIES
from digen_core.rewards.dpg.questions import questions_of


def category_shares(
    rewards: Mapping[str, RewardConfig],
    prompts: Sequence[Prompt],
    by_prompt: Mapping[str, Sequence[float | None]],
) -> dict[str, float]:
    """Return the share of questions that are answered yes, by category.

    Args:
        rewards: of the config, by name; those of other types have no questions.
        prompts: that were sampled, all as often.
        by_prompt: of each component the means of prompts, in order.

    Returns:
        ``NAME/CATEGORY`` for each category that there is; nothing of a reward whose failure does
        not end the run, as it has a score only.
    """
    names = [name for name, own in rewards.items() if isinstance(own, DpgConfig | DpgBlipConfig)]
    names = [name for name in names if f"{name}/{next(iter(DPG_CATEGORIES))}_yes" in by_prompt]
    if not names:
        return {}
    asked = Counter(own.category for each in prompts for own in questions_of(each.metadata))
    return {
        f"{name}/{category}": math.fsum(n or 0 for n in by_prompt[f"{name}/{category}_yes"])
        / asked[category]
        for name in names
        for category in DPG_CATEGORIES
        if asked[category]
    }
