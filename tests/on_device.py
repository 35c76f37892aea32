"""Where kernels are tested: on a GPU, else in Triton's interpreter, chosen before any kernel is imported."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import pytest
import torch

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")
DEVICE = torch.device("cuda" if HAS_GPU else "cpu")
VOCAB = 2100  # a block of the kernels, and a little more
PATHS = ["torch", pytest.param("triton", marks=pytest.mark.skipif(find_spec("triton") is None, reason="no Triton"))]
by_path = pytest.mark.parametrize("path", PATHS)


def even_columns(*parts: torch.Tensor, **more: Any) -> Any:
    """Columns that all have a line of scores; `parts` are those up to `rows`."""
    from selfdraft.passes import Columns

    num_rows, width = parts[2].shape
    first = torch.arange(num_rows + 1, device=DEVICE) * width
    return Columns(*parts, first, torch.arange(num_rows * width, device=DEVICE), **more)
