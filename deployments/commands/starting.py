"""Commands to begin with: a config of one's own, and the configs that digen ships."""

import sys
from pathlib import Path
from shlex import quote

from digen_core.errors import UserError


def init(
    file: Path = Path("mine.toml"),
    /,
    *,
    model: str | None = None,
    family: str | None = None,
    prompts: str | None = None,
    evaluation: str | None = None,
    reward: list[str] | None = None,
    gpus: int | None = None,
    size: str | None = None,
) -> int:
    """Write a config of your own from a few answers, checked as one is before a run.

    Example: digen init mine.toml
    Example: digen init shapes-again.toml --model digen:models/shapes
        --prompts digen:prompts/shapes_train.txt --reward shapes --gpus 0

    What no option says is asked in a terminal; elsewhere the defaults are taken.

    Args:
        file: To write; one that is there is not replaced.
        model: Folder in diffusers' format, id of one on the hub, or a shipped one; default:
            digen:models/shapes, the embedded model.
        family: Of the model: flux, sd3, qwen_image, qwen_image21, z_image, sana, wan,
            hunyuan_video, hunyuan_video15, ltx2 or flux2; default: flux.
        prompts: File or folder of prompts to train on (docs/prompts.md).
        evaluation: Of others, to evaluate with; default: a tenth of those is kept for it.
        reward: Name of a reward, or module:function of your own; may be given several times.
        gpus: Of this machine; with several, a cluster file is written, too, for 'digen up'.
        size: Of samples: HEIGHTxWIDTH, of videos HEIGHTxWIDTHxFRAMES; default: the model's own.
    """
    from deployments.initial import Answers, ask, name_of, size_of, write_config
    from digen_core.config.families import FAMILIES
    from digen_core.config.model import EMBEDDED
    from digen_core.planning.clusters.groups import MOST_DEVICES

    samples = size_of(size)
    model = model or ask("Model (a folder or an id on the hub)", EMBEDDED, "--model")
    embedded = model == EMBEDDED
    asked = f"Family ({', '.join(FAMILIES)})"
    family = family or ("flux" if embedded else ask(asked, "flux", "--family"))
    if family not in FAMILIES:
        raise UserError(f"--family is {family}; use one of {', '.join(FAMILIES)}")
    shipped = "digen:prompts/shapes_{}.txt"
    default = shipped.format("train") if embedded else ""
    prompts = prompts or ask("File of prompts to train on", default, "--prompts")
    if evaluation is None and prompts == shipped.format("train"):
        evaluation = shipped.format("evaluation")
    rewards = reward or ask("Reward", "shapes" if embedded else "", "--reward").split(",")
    count = gpus if gpus is not None else _number(ask("GPUs of this machine", "0", "--gpus"))
    if not 0 <= count <= MOST_DEVICES:
        raise UserError(f"--gpus is {count}; use 0 to {MOST_DEVICES}")
    names = tuple(name.strip() for name in rewards)
    answers = Answers(name_of(file), family, model, prompts, evaluation, names, count, samples)
    written = write_config(file, answers)
    for path in written:
        sys.stdout.write(f"{path}\n")
    start = f"digen train {quote(str(file))}"
    sys.stdout.write(f"all its keys       digen config show {quote(str(file))}\n")
    if len(written) > 1:
        sys.stdout.write(f"start the workers  digen up {quote(str(written[1]))}\n")
        start = f"set -a; . runs/up/env; set +a; {start}"
    sys.stdout.write(f"train              {start}\n")
    return 0


def recipes() -> int:
    """List the configs that digen ships, each with its level and a line on what it is.

    Example: digen recipes

    All are taken by name. The level of a recipe says how far it is verified.
    """
    from deployments.levels import LEGEND
    from deployments.shipped import shipped_configs
    from deployments.views.run_list import print_configs

    print_configs(shipped_configs())
    sys.stdout.write(f"{LEGEND}\n")
    sys.stdout.write("train one: digen train NAME; look at it: digen config show NAME\n")
    return 0


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UserError(f"--gpus is {text}; use a whole number") from None
