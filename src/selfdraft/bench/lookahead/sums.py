"""What one rule did, summed over prompts, and the figures of a table's row that follow from it."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from ...types import Generation
from ..totals import VERDICTS, ratio


@dataclass
class Sums:
    """Of one rule over the prompts of one domain, or over all of them. Seconds are those of decoding, without prefill.

    `capture_seconds`: of these, what recording took; `ms_per_token`: of each text.
    """

    num_prompts: int = 0
    num_tokens: int = 0
    decode_seconds: float = 0.0
    capture_seconds: float = 0.0
    num_accepted: int = 0
    num_draft_steps: int = 0
    num_rounds: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    ms_per_token: list[float] = field(default_factory=list)

    def __add__(self, other: Sums) -> Sums:
        return Sums(*(getattr(self, item.name) + getattr(other, item.name) for item in fields(Sums)))


def add_up(parts: Iterable[Sums]) -> Sums:
    return sum(parts, Sums())


def sums_of(generation: Generation, verdict: str | None, capture_seconds: float = 0.0) -> Sums:
    """One text; `verdict`: how it compares with the plain one, if it is another."""
    stats = generation.stats
    return Sums(
        num_prompts=1,
        num_tokens=stats.num_tokens,
        decode_seconds=stats.decode_seconds,
        capture_seconds=capture_seconds,
        num_accepted=stats.num_accepted,
        num_draft_steps=stats.num_draft_steps,
        num_rounds=stats.num_rounds,
        verdicts=Counter([verdict] if verdict else []),
        ms_per_token=[1000 * stats.decode_seconds / max(1, stats.num_tokens)],
    )


def figures(sums: Sums, plain: Sums) -> dict[str, Any]:
    """`plain`: of plain decoding on the same prompts. A figure that has no meaning is None."""
    per_token, plain_per_token = (ratio(one.decode_seconds, one.num_tokens) for one in (sums, plain))
    return {
        "num_prompts": sums.num_prompts,
        "num_tokens": sums.num_tokens,
        "decode_seconds": sums.decode_seconds,
        "capture_seconds": sums.capture_seconds,
        "ms_per_token": None if per_token is None else 1000 * per_token,
        "speedup": ratio(plain_per_token, per_token),
        "acceptance_rate": ratio(sums.num_accepted, sums.num_draft_steps),
        "mean_generated_length": ratio(sums.num_tokens, sums.num_rounds),
        "drafted_per_round": ratio(sums.num_draft_steps, sums.num_rounds),
        "num_rounds": sums.num_rounds,
        **{verdict: sums.verdicts[verdict] for verdict in VERDICTS},
    }


@dataclass(frozen=True)
class Gain:
    """By how much one rule's latency is below another's, in percent; `error`: of it, by how texts differ."""

    percent: float
    error: float | None

    @classmethod
    def of(cls, sums: Sums, base: Sums) -> Gain | None:
        """All tokens over all seconds, as everywhere; the standard error is that of the mean over texts."""
        mine, other = (ratio(one.decode_seconds, one.num_tokens) for one in (sums, base))
        share = ratio(mine, other)
        if share is None:
            return None
        pairs = zip(sums.ms_per_token, base.ms_per_token, strict=True)
        by_text = [100 * (1 - one / two) for one, two in pairs if two]
        error = statistics.stdev(by_text) / math.sqrt(len(by_text)) if len(by_text) > 1 else None
        return cls(100 * (1 - share), error)

    @classmethod
    def mean(cls, gains: Sequence[Gain]) -> Gain:
        """Of several domains, each counting alike."""
        errors = [gain.error for gain in gains if gain.error is not None]
        error = math.hypot(*errors) / len(gains) if len(errors) == len(gains) else None
        return cls(statistics.fmean(gain.percent for gain in gains), error)


def gains(rules: Mapping[str, Mapping[str, Sums]], names: Sequence[str], bases: Sequence[str]) -> list[dict[str, Any]]:
    """Of each rule named over each base, by domain and on their average (the paper's table 6)."""
    found = []
    for name in names:
        for base in bases:
            if name in rules and base in rules:
                pairs = {domain: Gain.of(sums, rules[base][domain]) for domain, sums in rules[name].items()}
                known = {domain: gain for domain, gain in pairs.items() if gain is not None}
                if known:
                    shown = {domain: vars(gain) for domain, gain in known.items()}
                    average = vars(Gain.mean(list(known.values())))
                    found.append({"rule": name, "over": base, "domains": shown, "average": average})
    return found
