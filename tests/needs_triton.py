"""Imported by test files that are nothing without Triton: they are skipped then."""

from __future__ import annotations

import pytest

from on_device import DEVICE, HAS_GPU

pytest.importorskip("triton")

__all__ = ["DEVICE", "HAS_GPU"]
