"""What a reproduction has measured so far: JSON lines, a head and one per unit. A run that asks the same goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...measure.figures import Measured
from ...measure.jsonl import READING_FAILS, JsonLines

SCHEMA = 2
NO_TIME = "no time was left for it"
"""Of units that were never begun. The same command measures them."""


@dataclass(frozen=True)
class Line:
    """One unit. `missing`: why it cannot be had, or why measuring it failed."""

    paper: str
    experiment: str
    unit: str
    values: Mapping[str, Any] = field(default_factory=dict)
    missing: str | None = None
    seconds: float = 0.0
    date: str = ""

    def to_json(self) -> dict[str, Any]:
        values = {name: one.to_json() if isinstance(one, Measured) else one for name, one in self.values.items()}
        return {**vars(self), "values": values}

    @property
    def key(self) -> tuple[str, str, str]:
        return self.paper, self.experiment, self.unit


@dataclass(frozen=True)
class ReproduceHead:
    """`question`: all that shapes the figures; `circumstances`: device, versions, commit, date."""

    question: Mapping[str, Any]
    circumstances: Mapping[str, Any]


class UnitFile:
    """Keeps units as they come, in a file if there is one; what an earlier run that asked the same has is there."""

    def __init__(self, file: str | Path | None, head: ReproduceHead, is_new: bool = False) -> None:
        self._file = _lines_of(file) if file else None
        self.head = head
        self.lines: dict[tuple[str, str, str], Line] = {}
        if self._file is None:
            return
        if self._file.is_begun and not is_new:
            self.head, lines = read_units(self._file.path)
            self._file.check(self.head.question, head.question)
            self.lines = {line.key: line for line in lines if line.missing != NO_TIME}
        self._file.write(asdict(self.head), (line.to_json() for line in self.lines.values()))

    def add(self, line: Line) -> None:
        self.lines[line.key] = line
        if self._file is not None:
            self._file.add([line.to_json()])


def _lines_of(file: str | Path) -> JsonLines:
    return JsonLines(file, "selfdraft_reproduce", SCHEMA, "selfdraft reproduce")


def read_units(file: str | Path) -> tuple[ReproduceHead, Sequence[Line]]:
    """A last line that was cut off is left out; whatever else is wrong raises."""
    found = _lines_of(file)
    try:
        head, lines = found.read()
        return ReproduceHead(**head), [Line(**line) for line in lines]
    except READING_FAILS as error:
        raise found.unreadable(error) from None


def num_outputs(values: Mapping[str, Any], *verdicts: str) -> int:
    """Outputs of a unit that were compared with plain decoding, those with one of these verdicts."""
    found = [one if isinstance(one, Mapping) else one.to_json() for one in values.values() if _has_records(one)]
    return sum(record.get("verdict") in verdicts for one in found for record in one["records"])


def _has_records(value: Any) -> bool:
    return isinstance(value, Measured) or (isinstance(value, Mapping) and "records" in value)
