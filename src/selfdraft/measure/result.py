"""What `selfdraft bench` measured, arm by arm: what tables, advice and pages are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from .figures import Figures, Measured, most_used, share
from .records import OFF, VERDICTS, Head, Machine, Record, RecordFile, always_run, complete_texts


@dataclass(frozen=True)
class Arm:
    """A row of a result: `kind` is "ours", "control" (plain decoding once more), "peer" or "bound"."""

    name: str
    kind: str
    method: Mapping[str, Any]
    asked: Mapping[str, Any] | None
    error: str | None
    total: Figures | None
    domains: Mapping[str, Figures]
    skips: Sequence[Mapping[str, Any]]
    differences: Sequence[Record]

    def to_json(self) -> dict[str, Any]:
        named = {"name": self.name, "kind": self.kind, "method": self.method, "asked": self.asked, "error": self.error}
        if self.total is None:
            return named
        return {
            **named,
            "total": self.total.to_json(),
            "domains": {domain: found.to_json() for domain, found in self.domains.items()},
            "skips": self.skips,
            "differences": [record.to_json() for record in self.differences],
        }


class Result:
    """What `selfdraft bench` measured: the head of its file and all records."""

    def __init__(self, head: Head, records: Iterable[Record]) -> None:
        self.head = head
        self.all_of = Measured(records, Machine(**head.machine), int(head.question["seed"]))

    @classmethod
    def read(cls, file: str | Path) -> Result:
        return cls(*RecordFile(file).read())

    def complete(self) -> Result:
        """Of texts that all arms have finished: the file may be of a run that goes on."""
        begun = set(self.all_of.arms)
        arms = [name for name in always_run(self.head.arms) if name in begun]
        return Result(self.head, complete_texts(self.all_of.records, arms))

    @cached_property
    def arms(self) -> list[Arm]:
        return [self._arm(described) for described in self.head.arms]

    def _arm(self, described: Mapping[str, Any]) -> Arm:
        name, all_of = described["name"], self.all_of
        own = [record for record in all_of.records if record.arm == name]
        domains = {domain: found for domain in all_of.domains(name) if (found := all_of.figures(name, domain))}
        differences = [record for record in own if record.verdict in VERDICTS[1:]]
        names = ("kind", "method", "asked", "error")
        kind, method, asked, error = (described.get(key) for key in names)
        total = all_of.figures(name)
        return Arm(name, kind or "ours", method or {}, asked, error, total, domains, most_used(own), differences)

    @property
    def measured(self) -> list[Arm]:
        """Those with figures, the fastest first, without plain decoding."""
        found = [arm for arm in self.arms if arm.total is not None and arm.name != OFF]
        return sorted(found, key=lambda arm: -_speed_of(arm))

    @property
    def is_different(self) -> bool:
        """Whether some arm of ours said something else than plain decoding, by more than rounding."""
        ours = (arm.total for arm in self.arms if arm.kind != "peer" and arm.total)
        return any(total.different > 0 for total in ours)

    @property
    def plain(self) -> list[Record]:
        return [record for record in self.all_of.records if record.arm == OFF]

    @property
    def prompts_of(self) -> dict[str, int]:
        return dict(Counter(record.domain for record in self.plain))

    @property
    def is_complete(self) -> bool:
        return bool(len(self.plain) == self.head.question["num_texts"])

    def document(self) -> dict[str, Any]:
        """What `selfdraft bench --json` prints."""
        return {
            "benchmark": "methods",
            **self.head.circumstances,
            **self.head.question,
            "machine": self.head.machine,
            "num_texts": len(self.plain),
            "is_complete": self.is_complete,
            "prompts_of": self.prompts_of,
            "seconds": sum(record.turn_seconds or 0.0 for record in self.plain),
            "resumed_at": list(self.head.resumed_at),
            **self.overhead(),
            "arms": [arm.to_json() for arm in self.arms],
        }

    def overhead(self) -> dict[str, float | None]:
        """Of the time that texts take, what is not spent inside calls.

        `measuring_share`: going from arm to arm, reading clocks, counting, writing it down; `judge_share`: comparing
        outputs.
        """
        whole = sum(record.turn_seconds or 0.0 for record in self.plain)
        judging = sum(record.judge_seconds for record in self.plain)
        inside = sum(record.call_seconds for record in self.all_of.records)
        return {
            "measuring_share": share(whole - inside - judging if whole else None, whole),
            "judge_share": share(judging, whole),
        }


def _speed_of(arm: Arm) -> float:
    found = arm.total.shown_speedup if arm.total else None
    return found.value if found else 0.0
