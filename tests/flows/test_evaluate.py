"""How the prompts of an evaluation are dealt to tasks, and how long these should take."""

from types import SimpleNamespace

import pytest

from digen_core.config.run import RunConfig
from digen_core.control.costs import Costs, DeviceCosts, Linear
from digen_core.control.protocol import Device
from flows.evaluate import _Evaluation, prompts_of_tasks


@pytest.mark.parametrize(
    ("frames", "samples", "size"), [(1, 8, 8), (1, 1, 64), (1, 100, 1), (5, 2, 16), (81, 8, 1)]
)
def test_who_judges_a_task_holds_no_more_than_some_images_or_a_prompt(frames, samples, size):
    """Of videos all frames are held to be scored."""
    model = {"family": "wan", "path": "x", "num_frames": frames, "height": 480, "width": 832}
    settings = {"model": model, "evaluation": {"samples_per_prompt": samples}}
    tasks = prompts_of_tasks(RunConfig.model_validate(settings), 130)
    assert [place for own in tasks for place in own] == list(range(130))
    assert {len(own) for own in tasks[:-1]} == {size}


@pytest.mark.parametrize(("members", "batches"), [(1, 1), (2, 16)])
def test_a_gang_is_given_the_time_of_its_batches(members, batches):
    """It cannot try how many samples fit, so it takes those of a batch at a time."""
    settings = {"rollout": {"fragment_size": 4}, "evaluation": {"num_steps": 10}}
    costs = DeviceCosts(step=Linear(fixed=2.0, per_item=0.5), pack=Linear(fixed=1.0))
    run = SimpleNamespace(
        config=RunConfig.model_validate(settings),
        progress=SimpleNamespace(known_costs=Costs(kinds={"default": costs})),
        fleet=SimpleNamespace(known={"a": Device("a", frozenset({"rollout"}), size=members)}),
    )
    part = SimpleNamespace(device="a", prompts=range(8))
    found = _Evaluation._expected(SimpleNamespace(_run=run), part)
    assert found == 10 * (2.0 * batches + 0.5 * 64)
