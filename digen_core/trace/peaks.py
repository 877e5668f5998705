"""Peaks of devices: what their data sheets promise, by the name that the driver gives them."""

import re
from typing import Final

PEAK_TFLOPS: Final = {
    "NVIDIA H100 80GB HBM3": 989.0,
    "NVIDIA H100 NVL": 835.0,
    "NVIDIA H100 PCIe": 756.0,
    "NVIDIA H200": 989.0,
    "NVIDIA A100-SXM4-40GB": 312.0,
    "NVIDIA A100-SXM4-80GB": 312.0,
    "NVIDIA A100-PCIE-40GB": 312.0,
    "NVIDIA A100 80GB PCIe": 312.0,
    "NVIDIA L40S": 362.0,
    "NVIDIA GeForce RTX 4090": 165.0,
}
"""A device's whole name -> its dense peak in bfloat16, 10^12 FLOP a second, by data sheets.

A share of a card (MIG) has a longer name, and another peak.
"""


def peak_of(name: str) -> float:
    """Return the peak of a device in bfloat16, 10^12 FLOP a second; 0: not known."""
    return PEAK_TFLOPS.get(name, 0.0)


def processor_in(kind: str) -> str:
    """Return what each member of a device computes on: of gangs the kind names how many there are.

    Args:
        kind: of a device, such as ``NVIDIA L40S x2``.
    """
    return re.sub(r" x\d+$", "", kind)
