"""Whole runs whose workers share a GPU: the weights of the serial loop on it."""

import pytest

from support.families import HEIGHT, TOKENS, WIDTH
from support.layout_runs import Case, check_weights

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

CASES = [
    Case("colocated", (2,), 4, 3, pauses=True),
    Case("disaggregated", (1, 2), 2, 3, dtype="float32"),
    Case("tsp", (2, 1), 1, 3, pauses=True),
    Case("elastic", (2, 2), 2, 3, helping=True, pauses=True),
    Case("tcss", (2, 2), 2, 3, helping=True, pauses=True, share=1.0),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_weights_equal_the_serial_reference(case, run_layout):
    check_weights(run_layout(case, **{"model.device": "cuda"}))


@pytest.mark.parametrize("batch_size", [None, 6])
def test_weights_of_a_run_with_cuda_graphs_equal_the_serial_reference(batch_size, run_layout):
    """Versions of stale groups are side by side, each with graphs of its own, and of each batch."""
    case = Case("tcss", (2, 2), 2, 3, helping=True, pauses=True, share=1.0)
    changes = {"rollout.cuda_graphs": True, "rollout.batch_size": batch_size}
    check_weights(run_layout(case, **{"model.device": "cuda", **changes}))


@pytest.mark.parametrize("family", ["sd3", "wan"])
def test_weights_of_a_family_equal_the_serial_reference(family, tiny_families, run_layout):
    model = {"family": family, "path": tiny_families[family], "height": HEIGHT, "width": WIDTH}
    model |= {"max_sequence_length": TOKENS, "guidance_scale": 3.0, "device": "cuda"}
    changes = {f"model.{name}": value for name, value in model.items()}
    check_weights(run_layout(Case("tsp", (2, 1), 4, 4), **changes))
