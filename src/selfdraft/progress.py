"""Progress: how long work tells whoever waits for it how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, "int | None", str], None]
"""`progress(done, total, label)`: bytes, seconds or texts; the total is None while there is nothing to count."""


def no_progress(done: int, total: int | None, label: str) -> None:
    """For whoever does not wait."""
