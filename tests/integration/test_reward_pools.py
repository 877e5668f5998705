"""Rewards that pools of workers score: the numbers are those of a single device that does."""

import os

import numpy as np
import psutil
import pyarrow.dataset as ds
import pytest

from digen_core.checkpoints.tensors import last_state
from digen_core.config.run import RunConfig
from digen_core.errors import UserError
from digen_core.models.loading import load_trainable
from digen_core.models.policy import ALL_PARTS
from digen_core.planning.profile import PROFILE_OF_RUN, load_profile
from digen_core.preflight.rewards import check_rewards
from digen_core.transport.samples import read_samples
from support.architecture import resources_of_workers
from support.runs import TOLERANCE, Watch, distance, merged, only_run, reference

pytestmark = pytest.mark.ci

CHANGES = {
    "rewards": {
        "smooth_rewards:contrast": {"weight": 0.3, "pool": "judges"},
        "smooth_rewards:brightness": 1.0,
        "second": {"type": "function", "function": "smooth_rewards:contrast", "pool": "elders"},
    },
    "cluster.reward_workers": {"judges": 1, "elders": 1},
    "rollout.fragment_size": 2,
    "schedule.layout": "tsp",
    "num_iterations": 2,
}


class Processes(Watch):
    """Notes which processes a run has started when its first iteration is over."""

    def __init__(self):
        super().__init__()
        self.before = {child.pid for child in psutil.Process().children()}
        self.run_id, self.resources, self.workers, self.children = "", set(), set(), {}

    def on_open(self, run_dir):
        self.run_id = run_dir.name

    def on_iteration(self, record):
        from flows.runtime.context import context_of

        client = context_of(self.run_id).client
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        self.resources |= {name for worker in workers for name in worker["resources"]}
        self.workers |= set(client.run(os.getpid).values())
        for child in psutil.Process().children():
            if child.pid not in self.before:
                self.children[child.pid] = " ".join(child.cmdline())


def assert_as_documented(seen: Processes, pools: set[str]) -> None:
    """Check that a run started the workers of docs/architecture.md and no other process."""
    assert seen.resources == {*resources_of_workers(), *pools}
    assert len(seen.workers) == len(seen.resources)  # one of each here
    others = [seen.children[pid] for pid in seen.children.keys() - seen.workers]
    own = (
        "multiprocessing.forkserver",
        "multiprocessing.resource_tracker",
        "digen_core.trace.drawing",
    )
    assert not [line for line in others if not any(name in line for name in own)]


def test_pools_score_the_same_numbers(tree, prefect_backend):
    from deployments.bench.runs import evaluate_serially
    from flows.post_train import post_train
    from flows.runtime.observers import watching

    config, processes = RunConfig.model_validate(merged(tree, CHANGES)), Processes()
    with watching(processes):
        report = post_train(config)
    assert_as_documented(processes, pools={"judges", "elders"})
    run_dir, serial = only_run(tree), reference(config)
    assert distance(last_state(run_dir).weights, serial.weights) < TOLERANCE["float64"]

    expected = evaluate_serially(config, load_trainable(config, ALL_PARTS), serial.ema)
    assert report.after.rewards["reward"] == pytest.approx(expected, rel=1e-9)

    rows = read_samples(run_dir / "samples").to_pandas()
    scores = [rows[f"{name}/score"] for name in config.rewards]
    assert np.allclose(rows.reward, np.dot([0.3, 1.0, 1.0], scores), rtol=1e-12)

    spans = ds.dataset(run_dir / "spans").to_table().to_pandas()
    scored = spans[spans.kind == "score"]
    by_pool = scored.device.str.split("-").str[0].value_counts()
    fragments = 2 * 4  # of two iterations
    assert by_pool.to_dict() == {"rollout": fragments, "judges": fragments, "elders": fragments}
    costs = load_profile(run_dir / PROFILE_OF_RUN)
    assert costs.reward > 0
    assert costs.reward_servers == 1


@pytest.mark.operation
@pytest.mark.parametrize(
    ("sees", "when", "told"),
    [
        ("samples", "loaded", "load rewards on judges-0; the run goes on"),
        ("samples", "tried", "probe rewards on judges-0; the run goes on"),
        ("samples", "scored", None),
        ("groups", "scored", None),
    ],
)
def test_a_lost_worker_of_a_pool_comes_back(tree, prefect_backend, tmp_path, sees, when, told):
    from flows.post_train import post_train
    from flows.runtime.observers import watching

    reward = {"type": "function", "function": "smooth_rewards:EndsItsWorkerOnce", "pool": "judges"}
    reward["sees"] = sees
    marker = tmp_path / "ended"
    changes = {
        "rewards": {"deadly": reward | {"options": {"marker": str(marker), "when": when}}},
        "cluster.reward_workers": {"judges": 1},
        "num_iterations": 1,
    }
    config, watch = RunConfig.model_validate(merged(tree, changes)), Watch()
    with watching(watch):
        post_train(config)
    assert marker.read_text().isdigit()
    lost = [text for text in watch.warnings if "; the run goes on" in text]
    assert [told in text for text in lost] == [True] * (told is not None)
    assert (
        distance(last_state(only_run(tree)).weights, reference(config).weights)
        < TOLERANCE["float64"]
    )


@pytest.mark.operation
def test_a_reward_whose_loading_ends_every_worker_ends_the_run(tree, prefect_backend):
    from flows.post_train import post_train

    reward = {"type": "function", "function": "smooth_rewards:NeverLoads", "pool": "judges"}
    changes = {"rewards": {"deadly": reward}, "cluster.reward_workers": {"judges": 1}}
    said = (
        r"score .* on judges failed: KilledWorker: 4 workers died, one after the other, while they "
        r"ran it, the last at \S+; see their logs, and the memory of their machines"
    )
    with pytest.raises(RuntimeError, match=said):
        post_train(RunConfig.model_validate(merged(tree, changes)))


def test_a_pool_without_workers_is_refused(tree):
    changes = CHANGES | {"cluster.reward_workers": {"judges": 1}}
    config = RunConfig.model_validate(merged(tree, changes))
    with pytest.raises(UserError) as error:
        check_rewards(config, [], [])
    assert str(error.value) == (
        "rewards.second.pool is 'elders', but the run starts no such workers; set "
        "cluster.reward_workers.elders to their number"
    )


def test_a_pool_that_no_reward_names_is_refused(tree):
    changes = CHANGES | {"cluster.reward_workers": {"judges": 1, "elders": 1, "idlers": 2}}
    with pytest.raises(ValueError, match="the pool 'idlers', but no reward is theirs"):
        RunConfig.model_validate(merged(tree, changes))


def test_a_running_cluster_without_the_pool_is_refused(tree, cluster_address, prefect_backend):
    from flows.post_train import post_train

    changes = CHANGES | {"cluster.scheduler_address": cluster_address(1, 1)}
    with pytest.raises(UserError, match="no worker of the cluster is in the pool 'elders'"):
        post_train(RunConfig.model_validate(merged(tree, changes)))
