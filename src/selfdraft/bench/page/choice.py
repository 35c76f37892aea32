"""What of a result is drawn: arms, domains, texts; and speed-ups of a few texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...measure.estimate import Estimate, call_speed, ratio, speed
from ...measure.figures import Figures
from ...measure.records import OFF, Record
from ...measure.result import Arm, Result
from ...prompts.arrange import is_context
from ...registry import DEFAULTS
from ..advice import best_of_ours

MAX_LINES = 6
"""More methods cannot be told apart as lines of one chart."""


def rows(result: Result) -> list[tuple[Arm, Figures]]:
    """Arms with their total, the fastest first, plain decoding left out."""
    return [(arm, arm.total) for arm in result.measured if arm.total is not None]


def usual_domains(result: Result) -> list[str]:
    """Without prompts that were made long, where there are others."""
    found = list(result.prompts_of)
    return [domain for domain in found if not is_context(domain)] or found


def texts(result: Result, name: str, domains: Sequence[str] | None = None) -> list[Record]:
    """Of an arm, in the order of the run."""
    return [one for one in result.all_of.records if one.arm == name and (domains is None or one.domain in domains)]


def plain_texts(result: Result, domains: Sequence[str] | None = None) -> list[Record]:
    return texts(result, OFF, domains)


def few_arms(result: Result) -> tuple[list[Arm], list[str]]:
    """For lines: the best, the default, those that learn most while they decode, then the fastest; (others)."""
    best, all_of = best_of_ours(result), result.measured
    learning = sorted(filter(_learning, all_of), key=lambda arm: -_learning(arm))
    wanted = [*([best] if best else []), *filter(is_default, all_of), *learning[:3], *all_of]
    names = list(dict.fromkeys(arm.name for arm in wanted if arm.kind != "control"))[:MAX_LINES]
    return [arm for arm in all_of if arm.name in names], [arm.name for arm in all_of if arm.name not in names]


def is_default(arm: Arm) -> bool:
    return arm.kind == "ours" and all(arm.method.get(axis, name) == name for axis, name in DEFAULTS.items())


def _learning(arm: Arm) -> float:
    """The share of its time, where it is one."""
    share = (arm.total.split["optimise"] if arm.total else None) or 0.0
    return share if share > 0.005 else 0.0


def speedup_of(arm: Arm, own: Iterable[Record], plain: Iterable[Record], seed: int = 0) -> Estimate | None:
    """On some texts: of decoding; where that is not known, of whole calls."""
    is_call = arm.total is not None and arm.total.is_of_calls
    return ratio(own, plain, call_speed if is_call else speed, seed)


def running_speedups(arm: Arm, pairs: Sequence[tuple[Record, Record]]) -> list[float | None]:
    """Of all texts so far, after each."""
    is_call = arm.total is not None and arm.total.is_of_calls
    quantity, sums, found = call_speed if is_call else speed, [0.0] * 4, []
    for one, other in pairs:
        parts = [*(quantity(one) or (0, 0)), *(quantity(other) or (0, 0))]
        sums = [total + part for total, part in zip(sums, parts, strict=True)]
        found.append((sums[0] / sums[1]) / (sums[2] / sums[3]) if all(sums) else None)
    return found


def left_out(names: Sequence[str]) -> str:
    return f"Left out, so that lines can be told apart: {'; '.join(names)}." if names else ""
