"""What workers receive of a version when all weights of a bfloat16 model are trained."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from digen_core.config.run import RunConfig
from digen_core.control import protocol as p
from support.runs import merged, tree_of

pytestmark = pytest.mark.slow


@pytest.mark.nightly
def test_all_weights_of_a_bfloat16_model_come_in_two_bytes_each(
    cluster_address, prefect_backend, tmp_path
):
    from digen_core.checkpoints.tensors import last_state
    from digen_core.models.tiny.flux import build_tiny_flux
    from digen_core.trace.spans import read_spans
    from flows.post_train import post_train

    model = tmp_path / "model"  # of a size beside which names and shapes are little
    build_tiny_flux(width=256, num_layers=1, num_single_layers=1).save_pretrained(model)
    changes = {
        "num_iterations": 2,
        "model.dtype": "bfloat16",
        "train.lora": None,
        "train.ema_decay": 0.5,
        "cluster.scheduler_address": cluster_address(1, 1),
        "schedule.layout": "disaggregated",
    }
    report = post_train(RunConfig.model_validate(merged(tree_of(str(model), tmp_path), changes)))
    run_dir = Path(report.run_dir)
    state = last_state(run_dir)
    assert state.version == 2
    num_bytes = 2 * sum(value.size for value in state.weights.values())
    received = [span.num_bytes for span in read_spans(run_dir / "spans") if span.kind == "push"]
    assert len(received) == 4  # versions 1 and 2, on both devices
    for sent in filter(None, received):
        assert num_bytes < sent <= 1.05 * num_bytes
    assert sum(map(bool, received)) == 2  # the trainer has what it published


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("push", "lora", "most"),
    [("dense", None, 1.05), ("auto", None, 0.35), ("dense", {"rank": 64, "alpha": 64}, 1.05)],
    ids=["all weights", "all weights as deltas", "adapters"],
)
def test_a_version_crosses_to_a_site_once(prefect_backend, tmp_path, push, lora, most):
    """Three devices there generate; the first pulls it from afar, the others from that.

    As a delta, too, of the version before; the others there pull all of it from that device.
    """
    from digen_core.checkpoints.tensors import last_state
    from digen_core.config.schedule import ClusterConfig
    from digen_core.models.tiny.flux import build_tiny_flux
    from digen_core.trace.spans import read_spans
    from flows.post_train import post_train
    from flows.runtime.observers import listening
    from tasks.cluster.cluster import local_devices, run_cluster

    model, heard = tmp_path / "model", []
    build_tiny_flux(width=128, num_layers=1, num_single_layers=1).save_pretrained(model)
    config = ClusterConfig(rollout_workers=4, trainer_workers=1)
    far = {"rollout-1", "rollout-2", "rollout-3"}
    devices = [
        replace(device, site="b" if device.name in far else "a") for device in local_devices(config)
    ]
    with run_cluster(config, devices) as address, listening(heard.append):
        changes = {
            "num_iterations": 2,
            "model.dtype": "bfloat16",
            "train.lora": lora,
            "cluster.scheduler_address": address,
            "schedule.layout": "disaggregated",
            "schedule.push": push,
            "train.learning_rate": 1e-5,
        }
        tree = tree_of(str(model), tmp_path)
        report = post_train(RunConfig.model_validate(merged(tree, changes)))
    pushes = (what for what in heard if isinstance(what, p.Push))
    crossing = {
        (do.version, do.device) for do in pushes if (do.source in far) != (do.device in far)
    }
    heard_of = Counter(version for version, _ in crossing)
    # Adapters are all pushed when the run begins, which is not told: nobody waits for a source.
    assert heard_of == {**({} if lora else {0: 1}), 1: 1, 2: 1}
    run_dir = Path(report.run_dir)
    num_weights = sum(value.size for value in last_state(run_dir).weights.values())
    version = 2 * num_weights  # adapters are bfloat16 as the model's layers are
    spans = [span for span in read_spans(run_dir / "spans") if span.kind == "push"]
    crossed = [span.num_bytes for span in spans if (span.version, span.device) in crossing]
    shares = [sent / version for sent in crossed]
    assert [most - 0.35 < share <= most for share in shares] == [True] * 2, shares  # not of 0
    inside = (span for span in spans if span.device in far)
    near = [own.num_bytes for own in inside if (own.version, own.device) not in crossing]
    assert all(version < sent <= 1.05 * version for sent in near)
    assert {span.device for span in spans} >= far
    check_sent(run_dir, version, crossed)
    if lora is None:  # adapters are too few bytes to tell what one takes
        check_link(run_dir)


def check_link(run_dir: Path) -> None:
    """What a run has learnt of its link."""
    from digen_core.planning.profile import PROFILE_OF_RUN, load_profile

    (link,) = load_profile(run_dir / PROFILE_OF_RUN).links
    assert link.sites == {"a", "b"}
    assert link.bytes_per_second > 0


def check_sent(run_dir: Path, version: float, crossed: list[int]) -> None:
    """What a run has learnt of the bytes of versions, and counts in its metrics."""
    from digen_core.planning.profile import PROFILE_OF_RUN, load_profile
    from digen_core.transport.metrics import read_metrics

    sent = load_profile(run_dir / PROFILE_OF_RUN).sent
    assert sent.version == version
    # With what the messages themselves take, which is more on a busy machine.
    assert -1 < sent.delta - sum(crossed) / 2 < 0.01 * version
    gigabytes = [record.metrics["links/a-b/gb"] for record in read_metrics(run_dir / "metrics")]
    assert all(gb >= own / 1e9 for gb, own in zip(gigabytes, crossed, strict=True))
