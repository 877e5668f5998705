"""What workers receive of a version when all weights of a bfloat16 model are trained."""

from pathlib import Path

import pytest

from digen_core.config.run import RunConfig
from support.runs import merged, tree_of

pytestmark = pytest.mark.slow


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
