"""Numbers that an earlier process kept: a file may hold anything."""

from __future__ import annotations

import math
from collections.abc import Container
from typing import Any

MOST = 1e9


def bounded(value: Any, least: float = 0.0, most: float = MOST) -> float:
    """ValueError, TypeError, OverflowError: it is not a number between these."""
    number = float(value)
    if not (math.isfinite(number) and least <= number <= most):
        raise ValueError(f"{number} is not between {least:g} and {most:g}")
    return number


def one_of(text: Any, known: Container[int]) -> int:
    number = int(text)
    if number not in known:
        raise ValueError(f"{number} is none of its sizes")
    return number
