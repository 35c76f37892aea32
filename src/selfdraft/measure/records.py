"""What became of each text under each arm: lines of JSON, from which all figures and pictures are made.

A run that asks the same goes on after the last prompt that all arms have finished.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from .jsonl import JsonLines

OFF = "off"  # the arm that all others are compared with: plain decoding
VERDICTS = ("equal", "tie", "different")


@dataclass(frozen=True)
class Record:
    """One text under one arm. Of a peer only the whole call is known: what ours says of itself is None or 0 there."""

    arm: str
    prompt: str  # its id
    domain: str
    number: int  # of the text in the run, from 0
    num_prompt_tokens: int
    num_tokens: int
    call_seconds: float
    decode_seconds: float | None = None
    prefill_seconds: float = 0.0
    optimise_seconds: float = 0.0
    record_seconds: float = 0.0  # of these: recording graphs
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    predicted_seconds: float | None = None  # the passes of its rounds, as they take when measured alone
    first_token_seconds: float | None = None
    num_rounds: int = 0
    num_draft_steps: int = 0
    num_accepted: int = 0
    num_draft_passes: int = 0  # by the model itself
    skipped_attention: float = 0.0  # sub-layers, summed over draft passes
    skipped_mlp: float = 0.0
    skips: Mapping[str, int] | None = None  # skip set -> draft passes with it, the most frequent ones
    peak_bytes: int | None = None
    turn: int = 0  # of its conversation
    run: int = 0  # of several over the same prompts
    turn_seconds: float | None = None  # of the plain text alone: all arms on this prompt, and what is between them
    judge_seconds: float = 0.0  # of these: comparing the outputs
    verdict: str | None = None  # None: it is the plain text itself
    first_difference: int | None = None
    gap: float | None = None
    reason: str | None = None  # of a tie that is wider than rounding

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Record:
        """TypeError, KeyError: it is not one. Older files say `way` and `capture_seconds`."""
        line = {"arm": line["way"], **line} if "way" in line else line
        line = {"record_seconds": line["capture_seconds"], **line} if "capture_seconds" in line else line
        return cls(**{item.name: line[item.name] for item in fields(cls) if item.name in line})

    def to_json(self) -> dict[str, Any]:
        """Without what says nothing."""
        return {name: value for name, value in vars(self).items() if value != _DEFAULTS.get(name, MISSING)}

    @property
    def text(self) -> tuple[int, int]:
        """What pairs it with the records of other arms: run and number."""
        return self.run, self.number


_DEFAULTS = {item.name: item.default for item in fields(Record)}


@dataclass(frozen=True)
class Machine:
    """What the papers' formulas need to know of the model. `beta`: seconds of attention over seconds of an MLP.

    `frontier`: the skip sets that `prune` found, if any, with match and cost; `costs`: of single passes, if timed.
    """

    num_layers: int
    beta: float
    frontier: Sequence[Mapping[str, Any]] | None = None
    num_turns_left_out: int = 0
    costs: Mapping[str, Any] | None = None
    soak: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Head:
    """`question`: all that shapes the figures; `circumstances`: device, versions, commit, date.

    `arms`: name, kind ("ours", "control", "peer", "bound"), method and, of one that cannot run, the `error`;
    `resumed_at`: after how many texts.
    """

    question: Mapping[str, Any]
    circumstances: Mapping[str, Any]
    machine: Mapping[str, Any]
    arms: Sequence[Mapping[str, Any]]
    resumed_at: Sequence[int] = field(default_factory=list)

    @classmethod
    def from_json(cls, head: Mapping[str, Any]) -> Head:
        return cls(**{("arms" if name == "ways" else name): value for name, value in head.items()})


class RecordFile(JsonLines[Head, Record]):
    """Keeps records as they come; each prompt's lines are written at once."""

    mark, version, command = "selfdraft_bench", 1, "selfdraft bench"
    head_of, line_of = Head.from_json, Record.from_json


def is_record_file(file: str | Path) -> bool:
    """By its first line."""
    with suppress(OSError, UnicodeDecodeError), Path(file).open(encoding="utf-8") as stream:
        return stream.read(32).startswith(f'{{"{RecordFile.mark}"')
    return False


def complete_texts(records: Sequence[Record], arms: Sequence[Mapping[str, Any]]) -> list[Record]:
    """Those of texts that all arms have finished; peers may be asked on some prompts only, and may fail on the way."""
    needed = {arm["name"] for arm in arms if arm["kind"] != "peer" and not arm.get("error")}
    done: dict[tuple[int, int], set[str]] = {}
    for record in records:
        done.setdefault(record.text, set()).add(record.arm)
    return [record for record in records if done[record.text] >= needed]
