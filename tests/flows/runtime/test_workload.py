"""What a config means to the controller, which workers it starts, and where evaluations come."""

import pytest

from digen_core.config.run import RunConfig
from digen_core.config.schedule import ClusterConfig
from digen_core.control.protocol import Device
from digen_core.control.schedule import Schedule, Workload
from digen_core.planning.job import workload_of
from flows.runtime.workload import next_workload, schedule_of
from support.contexts import run_context
from tasks.cluster.cluster import local_devices


def config(**tree) -> RunConfig:
    return RunConfig.model_validate(tree)


def test_the_workload_by_hand():
    rollout = {"prompts_per_iteration": 3, "group_size": 8, "fragment_size": 4, "num_steps": 6}
    made = workload_of(config(rollout=rollout, train={"pack_size": 5}))
    assert made == Workload(3, 8, 4, 6, 5, 8, samples_per_pack=5)
    assert workload_of(config(algorithm={"advantage_scale": "batch"})).advantages_need_all_groups


def test_the_next_iteration_has_its_own_sizes(tmp_path):
    """64 x 64 pixels are 16 tokens, 32 x 64 are 8: in their mean 4/3 and 2/3."""
    sizes = [[64, 64, 1], [32, 64, 1], [32, 64, 1], [64, 64, 1]]
    model = {"path": "nobody/has-this", "sizes": sizes}
    run = run_context(tmp_path, config(model=model, rollout={"prompts_per_iteration": 3}))
    large, small = 4 / 3, 2 / 3
    assert next_workload(run).group_costs == pytest.approx((large, small, small))
    run.progress.num_iterations = 1
    assert next_workload(run).group_costs == pytest.approx((large, large, small))


def test_auto_leaves_the_choice_to_the_controller():
    it = schedule_of(config(schedule={"layout": "+tcss", "helpers": 0, "max_staleness": 3}))
    assert (it.layout.name, it.layout.stale) == ("tcss", True)
    assert it == Schedule(
        it.layout,
        max_stale_share=0.5,
        max_staleness=3,
        helpers=0,
        assistants=None,
        queue_depth=2,
        copies_state=True,
    )


def test_colocated_workers_have_both_roles():
    cluster = ClusterConfig(rollout_workers=2, trainer_workers=1)
    both = frozenset({"rollout", "trainer"})
    assert local_devices(cluster, colocated=True) == [Device(f"worker-{i}", both) for i in range(3)]
    assert [device.name for device in local_devices(cluster)] == [
        "rollout-0", "rollout-1", "trainer-0",
    ]  # fmt: skip


def test_where_none_only_trains_workers_have_both_roles():
    cluster = ClusterConfig(trainer_workers=0, rollout_gang=2)
    both = frozenset({"rollout", "trainer"})
    assert local_devices(cluster) == [Device("worker-0", both, size=2)]


@pytest.mark.parametrize(
    ("every", "last"),
    [(0, [4, 4, 4, 4, 4]), (1, [0, 1, 2, 3, 4]), (2, [1, 1, 3, 3, 4]), (9, [4, 4, 4, 4, 4])],
)
def test_iterations_that_no_evaluation_comes_before(tmp_path, every, last):
    settings = config(num_iterations=5, evaluation={"every": every})
    run = run_context(tmp_path, settings)
    assert [run.last_before_evaluation(index) for index in range(5)] == last
    due = [index for index in range(1, 5) if run.evaluation_before(index)]
    assert due == sorted({index + 1 for index in last} - {5})
    assert run.evaluation_before(0) == "before"
