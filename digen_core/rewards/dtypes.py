"""The precisions that models of rewards compute in, by their names in a config."""

from typing import Final

import torch

DTYPES: Final = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
