"""Whole runs of compiled blocks: fresh samples have ratio 1, in half precision too."""

import pytest

from support.layout_runs import Case

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("lora", [{"rank": 4}, None], ids=["adapters", "all weights"])
def test_fresh_samples_are_not_clipped(lora, run_layout):
    """Each worker compiles by itself, one for other batches than the other, and with gradients."""
    case = Case("disaggregated", (1, 1), fragment=4, pack=8, dtype="bfloat16")
    changes = {"model.compile": True, "algorithm.clip_range": 1e-7, "train.lora": lora}
    found = run_layout(case, **changes, **{"train.gradient_checkpointing": True})
    assert len(found.records) == 3
    for record in found.records:
        assert record.metrics["train/replay_error"] < 1e-7
        assert record.metrics["train/clip_fraction"] == 0
        assert record.metrics["train/grad_norm"] > 0
