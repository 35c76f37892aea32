"""What became of each text in each way: lines of JSON, from which all figures and pictures are made.

The first line of a file is its head: what was asked (`question`) and where it was measured. A run that asks the same
goes on behind the last prompt that all ways have finished.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ..lines import READING_FAILS, LinesFile

SCHEMA = 1
_MARK = "selfdraft_bench"


@dataclass(frozen=True)
class TextRecord:
    """One text in one way. Of a peer only the whole call is known: what else ours says of itself is None or 0."""

    way: str
    prompt: str  # its id
    domain: str
    number: int  # of the text in the run, from 0
    num_prompt_tokens: int
    num_tokens: int
    call_seconds: float
    decode_seconds: float | None = None
    prefill_seconds: float = 0.0
    optimise_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    capture_seconds: float = 0.0  # of decoding: recording graphs
    num_rounds: int = 0
    num_draft_steps: int = 0
    num_accepted: int = 0
    num_draft_passes: int = 0  # by the model itself
    skipped_attention: float = 0.0  # sub-layers, summed over draft passes
    skipped_mlp: float = 0.0
    skips: Mapping[str, int] | None = None  # skip set -> draft passes with it, the most frequent ones
    peak_bytes: int | None = None
    turn: int = 0  # of its conversation
    turn_seconds: float | None = None  # of the plain text alone: all ways on this prompt, and what stands between them
    judge_seconds: float = 0.0  # of these: comparing the outputs
    verdict: str | None = None  # None: it is the plain text itself
    first_difference: int | None = None
    gap: float | None = None

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> TextRecord:
        """TypeError, KeyError: it is none."""
        return cls(**{item.name: line[item.name] for item in fields(cls) if item.name in line})


@dataclass(frozen=True)
class Head:
    """`question`: all that shapes the figures; `circumstances`: device, versions, commit, date.

    `machine`: what `figures.Machine` holds, and the `frontier` that `prune` found, if any; `ways`: name, kind ("ours",
    "control", "peer", "bound"), method and, of one that cannot run, the `error`; `resumed_at`: behind how many texts.
    """

    question: Mapping[str, Any]
    circumstances: Mapping[str, Any]
    machine: Mapping[str, Any]
    ways: Sequence[Mapping[str, Any]]
    resumed_at: Sequence[int] = field(default_factory=list)


class RecordFile:
    """Keeps records as they come; each prompt's lines are written at once."""

    def __init__(self, file: str | Path) -> None:
        self._lines = _lines_of(file)
        self.path = self._lines.path

    def check(self, question: Mapping[str, Any]) -> None:
        """Raise where it holds the answers to another question."""
        if self._lines.is_begun:
            self._lines.check(read_records(self.path)[0].question, question)

    def begin(self, head: Head, is_new: bool = False) -> tuple[Head, list[TextRecord]]:
        """What an earlier run that asked the same has measured; the file holds that and nothing else afterwards."""
        kept: list[TextRecord] = []
        if self._lines.is_begun and not is_new:
            self.check(head.question)
            old, records = read_records(self.path)
            kept = complete_prompts(records, always_run(head.ways))
            count = len({record.number for record in kept})
            head = replace(old, ways=head.ways, resumed_at=[*old.resumed_at, *([count] if count else [])])
        self._lines.write(asdict(head), map(asdict, kept))
        return head, kept

    def add(self, records: Iterable[TextRecord]) -> None:
        self._lines.add(map(asdict, records))


def _lines_of(file: str | Path) -> LinesFile:
    return LinesFile(file, _MARK, SCHEMA, "selfdraft bench")


def is_record_file(file: str | Path) -> bool:
    """By its first line."""
    try:
        with Path(file).open(encoding="utf-8") as stream:
            return stream.read(32).startswith(f'{{"{_MARK}"')
    except (OSError, UnicodeDecodeError):
        return False


def read_records(file: str | Path) -> tuple[Head, list[TextRecord]]:
    """A last line that was cut off is left out; whatever else is wrong raises."""
    lines = _lines_of(file)
    try:
        head, records = lines.read()
        return Head(**head), [TextRecord.from_json(record) for record in records]
    except READING_FAILS as error:
        raise lines.unreadable(error) from None


def complete_prompts(records: Sequence[TextRecord], ways: Sequence[str]) -> list[TextRecord]:
    """Those of prompts that all ways have finished."""
    done: dict[int, set[str]] = {}
    for record in records:
        done.setdefault(record.number, set()).add(record.way)
    return [record for record in records if done[record.number] >= set(ways)]


def always_run(ways: Sequence[Mapping[str, Any]]) -> list[str]:
    """Peers may be asked on some prompts only, and may fail on the way."""
    return [way["name"] for way in ways if way["kind"] != "peer" and not way.get("error")]
