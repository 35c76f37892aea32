"""Files of JSON lines that grow while something is measured: a head that says what was asked, then results.

What is added is on disk at once. A last line that was cut off is left out when the file is read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, TypeVar

from ..errors import OptionError
from ..files import replace_file

Values = Mapping[str, Any]
Head = TypeVar("Head", bound=Any)
Line = TypeVar("Line", bound=Any)
_READING_FAILS = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)


class JsonLines(Generic[Head, Line]):
    """A head is a dataclass that has the `question`, a line has `to_json`; `head_of`, `line_of`: read them."""

    mark: str  # the head's first name, its value the version of the format
    version: int
    command: str  # what writes such files
    head_of: Callable[[dict[str, Any]], Head]
    line_of: Callable[[dict[str, Any]], Line]

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def read(self) -> tuple[Head, list[Line]]:
        """What is not such a file raises."""
        try:
            first, *others = self.path.read_text(encoding="utf-8").split("\n")
            if not first.startswith(f'{{"{self.mark}"'):
                raise KeyError(self.mark)
            head = json.loads(first)
            if head.pop(self.mark) != self.version:
                raise ValueError("it is of another version")
            lines = [self.line_of(json.loads(line)) for line in others[:-1] if line.strip()]
            return self.head_of(head), lines
        except _READING_FAILS as error:
            hint = f"it must be what `{self.command} --output {self.path}` wrote"
            raise OptionError(f"cannot read {self.path} ({self._reason(error)}); {hint}") from None

    def _reason(self, error: Exception) -> str:
        if isinstance(error, OSError):
            return (error.strerror or str(error)).lower()
        is_missing_mark = isinstance(error, KeyError) and error.args == (self.mark,)
        return "it is a file of something else" if is_missing_mark else f"{type(error).__name__}: {error}"

    def known(self, question: Values) -> tuple[Head, list[Line]] | None:
        """What an earlier run has kept; None: nothing. Raise where it was asked something else."""
        if not self.path.exists() or not self.path.stat().st_size:
            return None
        head, lines = self.read()
        if change := first_change(head.question, json.loads(json.dumps(question))):
            raise OptionError(
                f"{self.path} holds the result of another run ({change}); name another file, or replace it with --again"
            )
        return head, lines

    def write(self, head: Head, lines: Iterable[Line]) -> None:
        first = {self.mark: self.version, **asdict(head)}
        replace_file(self.path, "".join(map(_written, (first, *(line.to_json() for line in lines)))).encode())

    def add(self, lines: Iterable[Line]) -> None:
        """All of them at once."""
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write("".join(_written(line.to_json()) for line in lines))
            stream.flush()
            os.fsync(stream.fileno())


def first_change(old: Values, new: Values) -> str | None:
    """Where two questions part, with both values."""
    name = next((name for name in (*old, *new) if old.get(name) != new.get(name)), None)
    if name is None:
        return None
    before, after = old.get(name), new.get(name)
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return f"{name}: {first_change(before, after)}"
    return f"{name}: {_short(before)}, now {_short(after)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _written(value: Values) -> str:
    return json.dumps({key: item for key, item in value.items() if item is not None}, allow_nan=False) + "\n"
