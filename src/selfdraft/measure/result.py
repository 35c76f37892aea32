"""What `selfdraft bench` measured, arm by arm: what tables, advice and pages are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from .figures import Measured, most_used, share
from .records import OFF, VERDICTS, Head, Machine, Record, RecordFile, complete_texts


class Arm:
    """A row of a result, as its head describes it.

    `kind` is "ours", "control" (plain decoding once more), "peer" or "bound"; `asked`: as much of the method as one has
    to ask for.
    """

    def __init__(self, described: Mapping[str, Any], all_of: Measured) -> None:
        self.name: str = described["name"]
        self.kind: str = described.get("kind") or "ours"
        self.method: Mapping[str, Any] = described.get("method") or {}
        self.asked: Mapping[str, Any] | None = described.get("asked")
        self.error: str | None = described.get("error")
        own = all_of.arms.get(self.name, [])
        self.total = all_of.figures(self.name)
        known = {domain: all_of.figures(self.name, domain) for domain in all_of.domains(self.name)}
        self.domains = {domain: found for domain, found in known.items() if found}
        self.skips = most_used(own)
        self.differences = [record for record in own if record.verdict in VERDICTS[1:]]

    def to_json(self) -> dict[str, Any]:
        if self.total is None:
            return {name: getattr(self, name) for name in ("name", "kind", "method", "asked", "error")}
        return {
            **vars(self),
            "total": self.total.to_dict(),
            "domains": {domain: found.to_dict() for domain, found in self.domains.items()},
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
        begun = [arm for arm in self.head.arms if arm["name"] in self.all_of.arms]
        return Result(self.head, complete_texts(self.all_of.records, begun))

    @cached_property
    def arms(self) -> list[Arm]:
        return [Arm(described, self.all_of) for described in self.head.arms]

    @property
    def measured(self) -> list[Arm]:
        """Those with figures, the fastest first, without plain decoding."""
        found = [arm for arm in self.arms if arm.total is not None and arm.name != OFF]
        speeds = {arm.name: arm.total.shown_speedup for arm in found if arm.total}
        return sorted(found, key=lambda arm: -(one.value if (one := speeds[arm.name]) else 0.0))

    @property
    def is_different(self) -> bool:
        """Whether some arm of ours said something else than plain decoding, by more than rounding."""
        return any(arm.total.different > 0 for arm in self.arms if arm.kind != "peer" and arm.total)

    @property
    def plain(self) -> list[Record]:
        return self.all_of.arms.get(OFF, [])

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
        """Of the time that texts take: going from arm to arm, counting, writing it down; and comparing outputs."""
        whole = sum(record.turn_seconds or 0.0 for record in self.plain)
        judging = sum(record.judge_seconds for record in self.plain)
        inside = sum(record.call_seconds for record in self.all_of.records)
        return {
            "measuring_share": share(whole - inside - judging if whole else None, whole),
            "judge_share": share(judging, whole),
        }
