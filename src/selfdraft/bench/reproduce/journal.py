"""What a reproduction has measured so far: lines of JSON, a head and one line per unit. The same question goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...errors import OptionError
from ..harness.question import first_change

SCHEMA = 1


@dataclass(frozen=True)
class Line:
    """One unit. `missing`: why it cannot be had; `error`: why measuring it failed."""

    paper: str
    experiment: str
    unit: str
    values: Mapping[str, Any] = field(default_factory=dict)
    missing: str | None = None
    seconds: float = 0.0
    date: str = ""

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
        self._path = Path(file) if file else None
        self.head = head
        self.lines: dict[tuple[str, str, str], Line] = {}
        if self._path is None:
            return
        if self._path.exists() and self._path.stat().st_size and not is_new:
            self.head, lines = read_units(self._path)
            now = json.loads(json.dumps(head.question))
            if self.head.question != now:
                raise OptionError(
                    f"{self._path} holds the result of another run ({first_change(self.head.question, now)}); "
                    "name another file, or replace it with --again"
                )
            self.lines = {line.key: line for line in lines}
        self._write_all()

    def add(self, line: Line) -> None:
        self.lines[line.key] = line
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as stream:
                stream.write(_dump(asdict(line)))
                stream.flush()
                os.fsync(stream.fileno())

    def _write_all(self) -> None:
        assert self._path is not None
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
        head = {"selfdraft_reproduce": SCHEMA, **asdict(self.head)}
        try:
            beside.write_text("".join(map(_dump, [head, *map(asdict, self.lines.values())])), encoding="utf-8")
            beside.replace(self._path)
        finally:
            beside.unlink(missing_ok=True)


def read_units(file: str | Path) -> tuple[ReproduceHead, Sequence[Line]]:
    """A last line that was cut off is left out; whatever else is wrong raises."""
    try:
        lines = Path(file).read_text(encoding="utf-8").split("\n")
        head = json.loads(lines[0])
        if head.pop("selfdraft_reproduce") != SCHEMA:
            raise ValueError("it is of another version")
        return ReproduceHead(**head), [Line(**json.loads(line)) for line in lines[1:-1] if line.strip()]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        hint = f"it must be what `selfdraft reproduce ... --output {file}` wrote"
        raise OptionError(f"cannot read {file} ({type(error).__name__}: {error}); {hint}") from None


def _dump(value: Mapping[str, Any]) -> str:
    return json.dumps(value, allow_nan=False) + "\n"
