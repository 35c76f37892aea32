"""Files of JSON lines that grow while something is measured: a head that says what was asked, then results.

A new file is written beside its place and renamed. What is added is on disk at once. A last line that was cut off is
left out when the file is read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import OptionError

Values = Mapping[str, Any]


class JsonLines:
    """`mark`: the head's first name, its value the version of the format; `command`: what writes such files."""

    def __init__(self, path: str | Path, mark: str, version: int, command: str) -> None:
        self.path = Path(path)
        self._mark, self._version, self._command = mark, version, command

    @property
    def is_begun(self) -> bool:
        return self.path.exists() and bool(self.path.stat().st_size)

    def read(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The head without its mark, and the lines after it. A ValueError or the like: it is not such a file."""
        lines = self.path.read_text(encoding="utf-8").split("\n")
        head = json.loads(lines[0])
        if head.pop(self._mark) != self._version:
            raise ValueError("it is of another version")
        return head, [json.loads(line) for line in lines[1:-1] if line.strip()]

    def unreadable(self, error: Exception) -> OptionError:
        hint = f"it must be what `{self._command} --output {self.path}` wrote"
        is_missing_mark = isinstance(error, KeyError) and error.args == (self._mark,)
        reason = "it is a file of something else" if is_missing_mark else f"{type(error).__name__}: {error}"
        if isinstance(error, OSError):
            reason = (error.strerror or str(error)).lower()
        return OptionError(f"cannot read {self.path} ({reason}); {hint}")

    def write(self, head: Values, lines: Iterable[Values]) -> None:
        beside = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
        content = [{self._mark: self._version, **head}, *lines]
        try:
            beside.write_text("".join(map(_line, content)), encoding="utf-8")
            beside.replace(self.path)
        finally:
            beside.unlink(missing_ok=True)

    def add(self, lines: Iterable[Values]) -> None:
        """All of them at once."""
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write("".join(map(_line, lines)))
            stream.flush()
            os.fsync(stream.fileno())

    def check(self, asked: Values, question: Values) -> None:
        """Raise where what it was `asked` is not the `question` now."""
        now = json.loads(json.dumps(question))
        if asked != now:
            raise OptionError(
                f"{self.path} holds the result of another run ({first_change(asked, now)}); "
                "name another file, or replace it with --again"
            )


READING_FAILS = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""What reading raises where a file is something else."""


def first_change(old: Values, new: Values) -> str:
    """Where two questions part, with both values."""
    name = next(name for name in (*old, *new) if old.get(name) != new.get(name))
    before, after = old.get(name), new.get(name)
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return f"{name}: {first_change(before, after)}"
    return f"{name}: {_short(before)}, now {_short(after)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _line(value: Values) -> str:
    return json.dumps({key: item for key, item in value.items() if item is not None}, allow_nan=False) + "\n"
