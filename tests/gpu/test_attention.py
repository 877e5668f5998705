"""Attention over as many tokens as long videos have: right, and without a matrix of all pairs."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from support.gpu import DEVICES, peak_bytes, relative_error

TOKENS = {"cpu": [2048], "cuda": [33_000, 75_600]}
HEADS, WIDTH = {"cpu": 2, "cuda": 24}, 128
BOUNDS = {"cpu": 1e-5, "cuda": 1e-2}  # float32; bfloat16
CASES = [
    pytest.param(*where.values, tokens, marks=where.marks)
    for where in DEVICES
    for tokens in TOKENS[where.values[0]]
]


@pytest.mark.parametrize(("device", "tokens"), CASES)
@pytest.mark.parametrize("num_padded", [0, 200])
def test_some_rows_are_those_of_the_formula(device, tokens, num_padded):
    """softmax(q k' / sqrt(width)) v over the keys that are no padding, for some queries."""
    shape = (1, HEADS[device], tokens, WIDTH)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(0)
    q, k, v = (torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    kept = tokens - num_padded
    mask = (torch.arange(tokens, device=device) < kept)[None, None, None] if num_padded else None
    found = []

    def attend() -> None:
        found.append(scaled_dot_product_attention(q, k, v, attn_mask=mask))
        found[0].sum().backward()

    num_bytes = q.nbytes
    assert peak_bytes(device, attend) < 12 * num_bytes < HEADS[device] * tokens**2 * q.itemsize
    rows = torch.arange(0, tokens, tokens // 16, device=device)
    with torch.no_grad():
        scores = q[:, :, rows].float() @ k[:, :, :kept].float().transpose(-1, -2) / WIDTH**0.5
        expected = scores.softmax(-1) @ v[:, :, :kept].float()
    assert relative_error(found[0][:, :, rows].detach().float(), expected) <= BOUNDS[device]
    assert all(one.grad is not None and one.grad.isfinite().all() for one in (q, k, v))
