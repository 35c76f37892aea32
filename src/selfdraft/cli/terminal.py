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
    """A progress bar on standard error, in bytes unless told: tqdm where importable, else a line every few seconds."""

    def __init__(self, unit: str = "B") -> None:
        self._unit = unit
        self._bar: Any = None
        self._label = ""
        self._last_line = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def __call__(self, done: int, total: int | None, label: str) -> None:
        if label != self._label:
            self._close()
            self._label, self._bar, self._last_line = label, _new_bar(label, total, self._unit), 0.0
        if self._bar is not None:
            self._bar.n = done
            self._bar.refresh()
        elif time.monotonic() - self._last_line > 5:
            self._last_line = time.monotonic()
            print(f"{label}{self._amount(done, total)}", file=sys.stderr)

    def _amount(self, done: int, total: int | None) -> str:
        if not total:
            return ""
        return f": {size(done)} of {size(total)}" if self._unit == "B" else f": {done} of {total} {self._unit}"

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar = None


def _new_bar(label: str, total: int | None, unit: str) -> Any:
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    if not sys.stderr.isatty():
        return None
    unit = unit if unit == "B" else f" {unit}"
    return tqdm(total=total, desc=label, unit=unit, unit_scale=unit == "B", file=sys.stderr, leave=True)
