"""What `selfdraft bench passes` and benchmarks/vllm_shapes.py keep: JSON lines, one for each shape. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...measure.jsonl import JsonLines

NUM_PROMPT, NUM_NEW = 256, 128
"""Tokens of the texts that peers are timed with: half of the new ones stand after as many as passes are timed after."""


@dataclass(frozen=True)
class ShapeLine:
    """One shape. `missing`: why nothing was measured. `peers`: their seconds a token, or why there are none."""

    name: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    peers: Mapping[str, float | str] = field(default_factory=dict)
    missing: str | None = None

    def to_json(self) -> dict[str, Any]:
        return vars(self)


@dataclass(frozen=True)
class ShapesHead:
    """`question`: all that shapes the figures; `circumstances`: device, versions, commit, date."""

    question: Mapping[str, Any]
    circumstances: Mapping[str, Any]


class _Lines(JsonLines[ShapesHead, ShapeLine]):
    mark, version, command = "selfdraft_passes", 1, "selfdraft bench passes"
    head_of = staticmethod(lambda head: ShapesHead(**head))
    line_of = staticmethod(lambda line: ShapeLine(**line))


class ShapesFile:
    """Keeps shapes as they are measured, in a file if there is one, where a run that asked the same may have begun."""

    def __init__(self, file: str | Path | None, head: ShapesHead, is_new: bool = False) -> None:
        self._file, self.head = _Lines(file) if file else None, head
        self.lines: dict[str, ShapeLine] = {}
        if self._file is None:
            return
        if not is_new and (known := self._file.known(head.question)):
            self.head, lines = known
            self.lines = {line.name: line for line in lines if line.missing is None}
        self._file.write(self.head, self.lines.values())

    def add(self, line: ShapeLine) -> None:
        self.lines[line.name] = line
        if self._file is not None:
            self._file.add([line])


def read_shapes(file: str | Path) -> tuple[ShapesHead, list[ShapeLine]]:
    return _Lines(file).read()


def is_shapes_file(file: str | Path) -> bool:
    """By its first line."""
    try:
        with Path(file).open(encoding="utf-8") as stream:
            return stream.read(32).startswith(f'{{"{_Lines.mark}"')
    except (OSError, UnicodeDecodeError):
        return False
