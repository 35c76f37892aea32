"""What something takes on a CPU, where others may run beside it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def least_seconds(run: Callable[[], Any], repeats: int = 5) -> float:
    """Of a few runs after the first."""
    run()
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        taken.append(time.perf_counter() - began)
    return min(taken)
