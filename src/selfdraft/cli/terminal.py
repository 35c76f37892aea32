"""What the commands show on a terminal: colours, progress bars, sizes. Plain text where nothing better is there."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import IO, Any

DRAFT = "32"
TARGET = "36"


def wants_color(choice: str, stream: IO[str]) -> bool:
    """`auto`: a terminal, unless NO_COLOR is set."""
    if choice == "auto":
        return stream.isatty() and not os.environ.get("NO_COLOR")
    return choice == "always"


def paint(text: str, code: str, is_on: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if is_on and text else text


def size(num_bytes: float) -> str:
    for unit in ("B", "kB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.2f} GB"


class Progress:
    """A byte progress bar on standard error: tqdm where importable, else a line every few seconds."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._label = ""
        self._last_line = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def __call__(self, done_bytes: int, total_bytes: int | None, label: str) -> None:
        if label != self._label:
            self._close()
            self._label, self._bar, self._last_line = label, _new_bar(label, total_bytes), 0.0
        if self._bar is not None:
            self._bar.n = done_bytes
            self._bar.refresh()
        elif time.monotonic() - self._last_line > 5:
            self._last_line = time.monotonic()
            amount = f": {size(done_bytes)} of {size(total_bytes)}" if total_bytes else ""
            print(f"{label}{amount}", file=sys.stderr)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar = None


def _new_bar(label: str, total_bytes: int | None) -> Any:
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    if not sys.stderr.isatty():
        return None
    return tqdm(total=total_bytes, desc=label, unit="B", unit_scale=True, file=sys.stderr, leave=True)
