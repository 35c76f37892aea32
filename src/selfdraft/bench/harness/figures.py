"""The figures of a row: sums over texts, what they say, and intervals by bootstrap over prompts.

Speeds are total tokens over total seconds, against plain decoding (`off`) of the same prompts in the same run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..bootstrap import Pair, SpeedUp, speed_up
from ..long_prompts import is_context
from ..totals import VERDICTS, ratio
from ..ways import OFF
from .records import Head, TextRecord

MOST_SKIPS = 5


@dataclass(frozen=True)
class Machine:
    """What the papers' formulas need to know of the model. `beta`: seconds of attention over seconds of an MLP."""

    num_layers: int
    beta: float


def row_figures(
    records: Sequence[TextRecord], plain: Sequence[TextRecord], machine: Machine, seed: int
) -> dict[str, Any]:
    """Of one way; `plain`: the same prompts in the same order. Prompts that were made long have a domain of their own.

    The total is without these, where there are others.
    """
    domains = list(dict.fromkeys(record.domain for record in records))
    by_domain = {domain: _of_domain(records, plain, [domain]) for domain in domains}
    usual = [domain for domain in domains if not is_context(domain)]
    return {
        "total": figures(*_of_domain(records, plain, usual or domains), machine, seed),
        "domains": {domain: figures(*both, machine, seed) for domain, both in by_domain.items()},
        "skips": most_used(records),
        "differences": [difference(record) for record in records if record.verdict in ("tie", "different")],
    }


def _of_domain(
    records: Sequence[TextRecord], plain: Sequence[TextRecord], domains: Sequence[str]
) -> tuple[list[TextRecord], list[TextRecord]]:
    pairs = [(one, two) for one, two in zip(records, plain, strict=True) if one.domain in domains]
    return [one for one, _ in pairs], [two for _, two in pairs]


def figures(records: Sequence[TextRecord], plain: Sequence[TextRecord], machine: Machine, seed: int) -> dict[str, Any]:
    """A figure that has no meaning is None."""
    tokens, steps = _sum(records, "num_tokens"), _sum(records, "num_draft_steps")
    passes, decode = _sum(records, "num_draft_passes"), _decode_seconds(records)
    plain_pass = ratio(_decode_seconds(plain), _sum(plain, "num_tokens"))
    skipped = [ratio(_sum(records, f"skipped_{kind}"), passes * machine.num_layers) for kind in ("attention", "mlp")]
    alpha = ratio(_sum(records, "num_accepted"), steps)
    length = ratio(tokens, _sum(records, "num_rounds"))
    cost = ratio(ratio(_sum(records, "draft_seconds"), steps), plain_pass)
    verdicts = Counter(record.verdict for record in records)
    peaks = [record.peak_bytes for record in records if record.peak_bytes is not None]
    return {
        "num_prompts": len(records),
        "num_tokens": tokens,
        "call_seconds": _sum(records, "call_seconds"),
        "decode_seconds": decode,
        "tokens_per_second": ratio(tokens, decode or _sum(records, "call_seconds")),
        "speedup": interval(records, plain, lambda record: record.decode_seconds, seed),
        "call_speedup": interval(records, plain, lambda record: record.call_seconds, seed),
        "acceptance_rate": alpha,
        "mean_generated_length": length,
        "skipped_attention": skipped[0],
        "skipped_mlp": skipped[1],
        "cost_measured": cost,
        "expected": expected_speedups(length, alpha, cost, skipped, machine.beta),
        "split": time_split(records),
        "capture_seconds": _sum(records, "capture_seconds"),
        "peak_bytes": max(peaks, default=None),
        **{verdict: verdicts[verdict] for verdict in VERDICTS},
    }


def _sum(records: Sequence[TextRecord], name: str) -> Any:
    return sum(getattr(record, name) for record in records)


def _decode_seconds(records: Sequence[TextRecord]) -> float | None:
    """None where some of them, a peer's, are not known."""
    seconds = [record.decode_seconds for record in records]
    return None if None in seconds else sum(second for second in seconds if second is not None)


def expected_speedups(
    length: float | None, alpha: float | None, cost: float | None, skipped: Sequence[float | None], beta: float
) -> dict[str, float | None]:
    """By M a / ((M - 1) c + a) (SWIFT's equation 6, KNN-SSD's 10); three ways to say what a drafted token costs.

    `measured`: c by the clock; `by_ratio`: c = 1 - r; `by_parts`: KNN-SSD's equation 11, attention and MLP apart.
    """
    costs: dict[str, float | None] = {"measured": cost, "by_ratio": None, "by_parts": None}
    attention, mlp = skipped
    if attention is not None and mlp is not None:
        costs["by_ratio"] = 1 - (attention + mlp) / 2
        costs["by_parts"] = ((1 - mlp) + (1 - attention) * beta) / (1 + beta)
    return {name: expected_speedup(length, alpha, one) for name, one in costs.items()}


def expected_speedup(length: float | None, alpha: float | None, cost: float | None) -> float | None:
    if length is None or not alpha or cost is None:
        return None
    return ratio(length * alpha, (length - 1) * cost + alpha)


def time_split(records: Sequence[TextRecord]) -> dict[str, float | None]:
    """Where decoding spends its time, in shares of it. `other`: what stands between the passes."""
    whole = _decode_seconds(records)
    if not whole:
        return dict.fromkeys(("optimise", "draft", "verify", "other"))
    parts = {name: _sum(records, f"{name}_seconds") for name in ("optimise", "draft", "verify")}
    return {name: ratio(part, whole) for name, part in {**parts, "other": whole - sum(parts.values())}.items()}


def interval(
    records: Sequence[TextRecord],
    plain: Sequence[TextRecord],
    seconds: Callable[[TextRecord], float | None],
    seed: int,
) -> dict[str, float | None]:
    """Of the prompts on which both took some time; `low` to `high`: 95 %. The turns of a conversation are one."""
    pairs: dict[int, Pair] = {}
    for one, two in zip(records, plain, strict=True):
        if (own := seconds(one)) and (plainly := seconds(two)):
            text = Pair(one.num_tokens, own, two.num_tokens, plainly)
            first = one.number - one.turn
            pairs[first] = pairs[first].joined(text) if first in pairs else text
    found = speed_up(list(pairs.values()), seed)
    return dict.fromkeys(SpeedUp._fields) if found is None else found._asdict()


def most_used(records: Sequence[TextRecord]) -> list[dict[str, Any]]:
    """Skip sets by the share of draft passes made with them."""
    passes: Counter[str] = Counter()
    for record in records:
        passes.update(record.skips or {})
    whole = _sum(records, "num_draft_passes")
    return [{"skip": skip, "share": ratio(count, whole)} for skip, count in passes.most_common(MOST_SKIPS)]


def difference(record: TextRecord) -> dict[str, Any]:
    names = ("prompt", "domain", "verdict", "first_difference", "gap")
    return {name: getattr(record, name) for name in names}


def document(head: Head, records: Sequence[TextRecord]) -> dict[str, Any]:
    """What `selfdraft bench` prints last; of a way that could not run the `error` alone."""
    by_way: dict[str, list[TextRecord]] = {}
    for record in sorted(records, key=lambda record: record.number):
        by_way.setdefault(record.way, []).append(record)
    plain = by_way.get(OFF, [])
    known = {record.number: record for record in plain}
    machine = Machine(int(head.machine["num_layers"]), float(head.machine["beta"]))
    seed = int(head.question["seed"])
    rows = [
        {**way, **(row_figures(found, [known[one.number] for one in found], machine, seed) if found else {})}
        for way in head.ways
        for found in [by_way.get(way["name"], [])]
    ]
    domains = Counter(record.domain for record in plain)
    return {
        "benchmark": "methods",
        **head.circumstances,
        **head.question,
        "machine": head.machine,
        "num_texts": len(plain),
        "is_complete": len(plain) == head.question["num_texts"],
        "prompts_of": dict(domains),
        "seconds": sum(record.turn_seconds or 0.0 for record in plain),
        "resumed_at": list(head.resumed_at),
        **harness_shares(records, plain),
        "ways": rows,
    }


def harness_shares(records: Sequence[TextRecord], plain: Sequence[TextRecord]) -> dict[str, float | None]:
    """Of the time that texts take what is not spent inside calls.

    `harness_share`: going from way to way, reading clocks, counting, writing it down; `judge_share`: comparing outputs.
    """
    whole = sum(record.turn_seconds or 0.0 for record in plain)
    if not whole:
        return {"harness_share": None, "judge_share": None}
    judging = _sum(plain, "judge_seconds")
    return {
        "harness_share": ratio(whole - _sum(records, "call_seconds") - judging, whole),
        "judge_share": ratio(judging, whole),
    }
