"""The figures of an arm: sums over its records and what follows from them.

Speeds are total tokens over total seconds, against plain decoding (`off`) of the same prompts in the same run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..prompts.arrange import is_context
from .estimate import Estimate, as_json, call_speed, ratio, speed
from .records import OFF, VERDICTS, Machine, Record

PARTS = ("optimise", "draft", "verify", "other")
MOST_SKIPS = 5


class Figures:
    """Of one arm on some prompts; `plain`: `off` on the same ones. A figure that has no meaning is None.

    `speedup`: of decoding; `call_speedup`: of whole calls, all that is known of a peer. `cost`: seconds of a draft step
    over those of a plain token. `bound`: the speed-up that the costs of its passes allow, where they were timed;
    `ideal_speedup`: if a round took as long as a token, and a draft the share of the sub-layers that it runs.
    """

    def __init__(self, records: Sequence[Record], plain: Sequence[Record], machine: Machine, seed: int = 0) -> None:
        num_steps, sublayers = _sum(records, "num_draft_steps"), _sum(records, "num_draft_passes") * machine.num_layers
        plain_pass = share(_sum(plain, "decode_seconds"), _sum(plain, "num_tokens"))
        peaks = [record.peak_bytes for record in records if record.peak_bytes is not None]
        waits = [record.first_token_seconds for record in records if record.first_token_seconds is not None]
        verdicts = Counter(record.verdict for record in records)
        self.num_prompts = len({record.number for record in records})  # each once, however many runs
        self.num_tokens: int = _sum(records, "num_tokens")
        self.call_seconds: float = _sum(records, "call_seconds")
        self.decode_seconds: float | None = _sum(records, "decode_seconds")
        self.tokens_per_second = share(self.num_tokens, self.decode_seconds or self.call_seconds)
        self.speedup = ratio(records, plain, speed, seed)
        self.call_speedup = ratio(records, plain, call_speed, seed)
        self.acceptance_rate = share(_sum(records, "num_accepted"), num_steps)
        self.mean_generated_length = share(self.num_tokens, _sum(records, "num_rounds"))
        self.skipped_attention = share(_sum(records, "skipped_attention"), sublayers)
        self.skipped_mlp = share(_sum(records, "skipped_mlp"), sublayers)
        self.cost = share(share(_sum(records, "draft_seconds"), num_steps), plain_pass)
        self.expected = self._expected_speedups(machine.beta)
        drafts = (_sum(records, "num_draft_passes") or 0) * (1 - (self.skip_ratio or 0.0))
        self.ideal_speedup = share(self.num_tokens, (_sum(records, "num_rounds") or 0) + drafts)
        self.split = time_split(records)
        self.record_seconds: float = _sum(records, "record_seconds")
        self.peak_bytes = max(peaks, default=None)
        self.first_token_seconds = share(sum(waits), len(waits))
        self.bound = _bound(records, machine)
        self.equal, self.tie, self.different = (verdicts[verdict] for verdict in VERDICTS)

    def _expected_speedups(self, beta: float) -> dict[str, float | None]:
        """By M a / ((M - 1) c + a) (SWIFT's equation 6, KNN-SSD's 10); the cost c of a drafted token in three forms.

        `measured`: c by the clock; `by_ratio`: c = 1 - r; `by_parts`: KNN-SSD's equation 11, attention and MLP apart.
        """
        costs: dict[str, float | None] = {"measured": self.cost, "by_ratio": None, "by_parts": None}
        length, alpha = self.mean_generated_length, self.acceptance_rate
        attention, mlp = self.skipped_attention, self.skipped_mlp
        if length is None or not alpha:
            return dict.fromkeys(costs)
        if attention is not None and mlp is not None:
            costs["by_ratio"] = 1 - (attention + mlp) / 2
            costs["by_parts"] = ((1 - mlp) + (1 - attention) * beta) / (1 + beta)
        return {
            name: None if cost is None else share(length * alpha, (length - 1) * cost + alpha)
            for name, cost in costs.items()
        }

    @property
    def is_of_calls(self) -> bool:
        """Whether only whole calls can be compared."""
        return self.speedup is None

    @property
    def shown_speedup(self) -> Estimate | None:
        """Of decoding; where that is not known, of whole calls."""
        return self.call_speedup if self.is_of_calls else self.speedup

    @property
    def skip_ratio(self) -> float | None:
        """Share of all sub-layers that draft passes left out."""
        if self.skipped_attention is None or self.skipped_mlp is None:
            return None
        return (self.skipped_attention + self.skipped_mlp) / 2

    @property
    def milliseconds(self) -> float | None:
        """Of a token."""
        return 1000 / self.tokens_per_second if self.tokens_per_second else None

    def __repr__(self) -> str:
        speed = "-" if self.tokens_per_second is None else f"{self.tokens_per_second:.1f}"
        shown, texts = self.shown_speedup or "-", f"{self.equal} equal, {self.tie} ties, {self.different} different"
        return f"Figures({self.num_prompts} prompts, {speed} tokens/s, speed-up {shown}, texts: {texts})"

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "speedup": as_json(self.speedup), "call_speedup": as_json(self.call_speedup)}


def share(part: float | None, whole: float | None) -> float | None:
    """None where it has no meaning."""
    return None if part is None or not whole else part / whole


def _sum(records: Sequence[Record], name: str) -> Any:
    """None where some of them, a peer's, are not known."""
    values = [getattr(record, name) for record in records]
    return None if None in values else sum(values)


def _bound(records: Sequence[Record], machine: Machine) -> float | None:
    """By the costs of single passes: as many plain ones as there are tokens, over those that its rounds needed."""
    if machine.costs is None:
        return None
    return share(machine.costs["width_seconds"]["1"] * _sum(records, "num_tokens"), _sum(records, "predicted_seconds"))


def time_split(records: Sequence[Record]) -> dict[str, float | None]:
    """Where decoding spends its time, in shares of it. `other`: what is between the passes."""
    whole = _sum(records, "decode_seconds")
    if not whole:
        return dict.fromkeys(PARTS)
    parts = {name: _sum(records, f"{name}_seconds") for name in PARTS[:-1]}
    return {name: share(part, whole) for name, part in {**parts, "other": whole - sum(parts.values())}.items()}


def most_used(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Skip sets by the share of draft passes made with them."""
    passes: Counter[str] = Counter()
    for record in records:
        passes.update(record.skips or {})
    whole = _sum(records, "num_draft_passes")
    return [{"skip": skip, "share": share(count, whole)} for skip, count in passes.most_common(MOST_SKIPS)]


# ------------------------------------------------------------------------------------------------------- all of them


class Measured:
    """The records of arms that took turns: figures of each, in total and by domain.

    The total leaves out prompts that were made long (they have domains of their own), where there are others.
    """

    def __init__(self, records: Iterable[Record], machine: Machine, seed: int = 0) -> None:
        self.records = sorted(records, key=lambda record: record.text)
        self.machine, self.seed = machine, seed
        self._known: dict[tuple[str, str | None], Figures | None] = {}
        self.arms: dict[str, list[Record]] = {}
        for record in self.records:
            self.arms.setdefault(record.arm, []).append(record)

    def of(self, arm: str, domain: str | None = None) -> list[Record]:
        """Its records; None: of all usual domains."""
        own = self.arms.get(arm, [])
        if domain is not None:
            return [record for record in own if record.domain == domain]
        return [record for record in own if not is_context(record.domain)] or own

    def domains(self, arm: str = OFF) -> list[str]:
        return list(dict.fromkeys(record.domain for record in self.arms.get(arm, [])))

    def figures(self, arm: str, domain: str | None = None) -> Figures | None:
        """None: it was not measured."""
        if (arm, domain) not in self._known:
            own = self.of(arm, domain)
            texts = {record.text for record in own}
            plain = [record for record in self.of(OFF, domain) if record.text in texts]
            self._known[arm, domain] = Figures(own, plain, self.machine, self.seed) if own else None
        return self._known[arm, domain]

    def to_json(self) -> dict[str, Any]:
        machine = {name: value for name, value in vars(self.machine).items() if value is not None}
        return {"machine": machine, "seed": self.seed, "records": [record.to_json() for record in self.records]}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Measured:
        records = [Record.from_json(record) for record in found["records"]]
        return cls(records, Machine(**found["machine"]), found["seed"])
