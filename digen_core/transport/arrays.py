"""Values between processes: plain dicts of NumPy arrays, which Dask moves without a copy.

NumPy knows no bfloat16. Half-precision tensors travel as float32, which holds them exactly; weights
and stored latents, of which there are many, as they are, and bfloat16 as uint16.
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

Precision = Literal["float32", "float16", "bfloat16"]
Arrays = dict[str, np.ndarray]
Weights = dict[str, np.ndarray]  # by parameter name: masters of float32 or float64, or `rounded`


def to_array(tensor: Tensor) -> np.ndarray:
    """Return a tensor as a CPU array, in float32 if it is half precision."""
    tensor = tensor.detach().cpu()
    if tensor.dtype in (torch.bfloat16, torch.float16):
        tensor = tensor.float()
    array: np.ndarray = tensor.numpy()
    return array


def to_stored(tensor: Tensor, precision: Precision) -> np.ndarray:
    """Return a tensor as a CPU array of a storage precision; bfloat16, unknown to NumPy, as uint16.

    Args:
        tensor: already rounded to the precision: nothing is lost here.
        precision: "float32" keeps the tensor's own float32 or float64.
    """
    if precision == "float32":
        return to_array(tensor)
    return _lent(tensor.detach().to("cpu", getattr(torch, precision)))


def from_stored(array: np.ndarray) -> np.ndarray:
    """Return a stored array in float32, or float64 if it was stored so."""
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32) if array.dtype == np.float16 else array


def to_arrays(tensors: Mapping[str, Tensor]) -> Arrays:
    """Return each tensor as an array."""
    return {name: to_array(tensor) for name, tensor in tensors.items()}


def to_tensor(array: np.ndarray, device: torch.device) -> Tensor:
    """Return an array as a tensor on ``device``.

    Received arrays are read-only; torch warns about those, so a CPU tensor is a copy.
    """
    return torch.tensor(array, device=device)


def to_tensors(arrays: Mapping[str, np.ndarray], device: torch.device) -> dict[str, Tensor]:
    """Return each array as a tensor on ``device``."""
    return {name: to_tensor(array, device) for name, array in arrays.items()}


def viewed(array: np.ndarray) -> Tensor:
    """Return the tensor in an array's memory, to read if the array is; uint16 is bfloat16."""
    tensor: Tensor = from_dlpack(array)  # takes read-only arrays without a warning
    return tensor.view(torch.bfloat16) if tensor.dtype == torch.uint16 else tensor


def rounded(weights: Mapping[str, np.ndarray], dtypes: Mapping[str, torch.dtype]) -> Weights:
    """Return weights in the dtypes of those who receive them, rounded as torch does.

    Args:
        weights: by name; those that have their dtype are not copied.
        dtypes: by the same names.

    Raises:
        FloatingPointError: a number is NaN, or infinite in its dtype.
    """
    found = {}
    for name, array in weights.items():
        dtype = dtypes[name]
        found[name] = array if viewed(array).dtype == dtype else _rounded(array, dtype)
        own = viewed(found[name])
        if own.numel() and not all(end.isfinite() for end in own.aminmax()):
            most = f"{torch.finfo(dtype).max:g} of {dtype}"
            raise FloatingPointError(f"{name} cannot be pushed: it has NaN or more than {most}.")
    return found


def _rounded(array: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    found = room_of(array.shape, dtype)
    viewed(found).copy_(viewed(array))
    return found


def distance(left: Mapping[str, np.ndarray], right: Mapping[str, np.ndarray]) -> float:
    """Return the largest difference of weights, relative to the largest of ``right``.

    It is infinite if they have other names, or if one is NaN.
    """
    if left.keys() != right.keys():
        return np.inf
    scale = np.max([np.abs(value).max() for value in right.values()])
    apart = np.array([np.abs(left[name] - right[name]).max() for name in right]) / scale
    return float(apart.max()) if np.isfinite(apart).all() else np.inf


def room_of(shape: tuple[int, ...], dtype: torch.dtype) -> np.ndarray:
    """Return an array for numbers of a dtype, which are not set; bfloat16 as uint16.

    NumPy asks the system for huge pages: to touch new memory, 200 MB of it, takes a fifth of the
    time that torch's takes.
    """
    name = str(dtype).removeprefix("torch.")
    return np.empty(shape, "uint16" if name == "bfloat16" else name)


def _lent(tensor: Tensor) -> np.ndarray:
    """Return the array in a CPU tensor's memory; the reverse of `viewed`."""
    array: np.ndarray = tensor.view(
        torch.uint16 if tensor.dtype == torch.bfloat16 else tensor.dtype
    ).numpy()
    return array
