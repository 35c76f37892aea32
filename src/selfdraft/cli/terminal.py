"""What the commands show on a terminal: colours, progress bars, sizes. Plain text where nothing better is there."""

from __future__ import annotations

import os
import sys
import time
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


def write_pieces(stream: Any, color: str) -> None:
    """As they come; drafted ones and the model's own have colours. Ctrl-C ends the text."""
    is_on = wants_color(color, sys.stdout)
    try:
        for chunk in stream:
            for piece in chunk.pieces:
                sys.stdout.write(paint(piece.text, DRAFT if piece.source == "draft" else TARGET, is_on))
            sys.stdout.flush()
    except KeyboardInterrupt:
        stream.close()
    print(flush=True)


def size(num_bytes: float) -> str:
    for unit in ("B", "kB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.2f} GB"


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


def say(text: str) -> None:
    """Beside the output."""
    print(text, file=sys.stderr, flush=True)


def say_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """One of Python's: its first line, without places in the code (torch may add a page of them)."""
    say(f"warning: {str(message).partition(chr(10))[0]}")


def number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


class Progress:
    """A progress bar on standard error, in bytes unless told: tqdm where importable, else a line every few seconds.

    Both tell how much time is left, by what was done since the first call.
    """

    def __init__(self, unit: str = "B") -> None:
        self._unit = unit
        self._bar: Any = None
        self._label = ""
        self._last_line = 0.0
        self._first, self._began = 0, 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def __call__(self, done: int, total: int | None, label: str) -> None:
        if label != self._label:
            self._close()
            self._label, self._bar, self._last_line = label, _new_bar(label, done, total, self._unit), 0.0
            self._first, self._began = done, time.monotonic()
        if self._bar is not None:
            self._bar.n = done
            self._bar.refresh()
        elif time.monotonic() - self._last_line > 5:
            self._last_line = time.monotonic()
            print(f"{label}{self._amount(done, total)}{self._left(done, total)}", file=sys.stderr)

    def _amount(self, done: int, total: int | None) -> str:
        if not total:
            return ""
        amount = f"{size(done)} of {size(total)}" if self._unit == "B" else f"{done} of {total} {self._unit}"
        return f": {amount.rstrip()}"

    def _left(self, done: int, total: int | None) -> str:
        if not total or done <= self._first:
            return ""
        seconds = (time.monotonic() - self._began) / (done - self._first) * (total - done)
        return f", about {duration(seconds)} left"

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar = None


def _new_bar(label: str, done: int, total: int | None, unit: str) -> Any:
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    if not sys.stderr.isatty():
        return None
    unit = unit if unit == "B" else f" {unit}"
    return tqdm(total=total, initial=done, desc=label, unit=unit, unit_scale=unit == "B", file=sys.stderr, leave=True)
