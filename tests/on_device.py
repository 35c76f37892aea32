"""Where kernels are tested: on a GPU, else in Triton's interpreter, chosen before any kernel is imported."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest
import torch

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")
DEVICE = torch.device("cuda" if HAS_GPU else "cpu")
VOCAB = 2100  # a block of the kernels, and a little more
PATHS = ["torch", pytest.param("triton", marks=pytest.mark.skipif(find_spec("triton") is None, reason="no Triton"))]
by_path = pytest.mark.parametrize("path", PATHS)
