"""What to do with a result, in a few sentences; an output that is not that of plain decoding is said first."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..measure.estimate import FEW_PROMPTS, Estimate, call_speed, ratio, speed
from ..measure.records import OFF, VERDICTS
from ..measure.result import Arm, Result
from ..prompts.arrange import is_context
from ..registry import AXES

WORTH = 1.02  # a speed-up that is surely below this is not worth another run
MOST_NAMED = 3  # of those that are about as fast
INCONCLUSIVE = "inconclusive"


def advice(result: Result) -> str:
    return " ".join([*warnings(result), _choice(result)])


def warnings(result: Result) -> Iterator[str]:
    """Ours must say what plain decoding says; a peer promises nothing."""
    for arm in result.measured:
        if arm.total and arm.total.different and arm.kind != "peer":
            first = next(record for record in arm.differences if record.verdict == "different")
            texts = sum(getattr(arm.total, verdict) for verdict in VERDICTS)
            yield (
                f"WARNING: {arm.name} DIFFERS from plain decoding in {arm.total.different} of {texts} texts (the "
                f"first: {first.prompt}, {first.domain}); do not use it, and report this."
            )


def peer_remarks(result: Result) -> Iterator[str]:
    """What to know of peers."""
    peers = [arm.total for arm in result.measured if arm.kind == "peer" and arm.total]
    if any(total.different for total in peers):
        yield "different outputs of peers: they do not promise to say what plain decoding says"
    fewest = min((total.num_prompts for total in peers), default=None)
    if fewest is not None and fewest < len(result.plain):
        yield f"peers were measured on {fewest} of the texts, and compared with plain decoding of the same ones"


def verdict(found: Estimate | None, noise: float = 0.0) -> str:
    """Whether a speed-up is "faster" or "slower" than plain decoding by more than the noise of the run, or neither."""
    if found and found.is_above(1.0 + noise):
        return "faster"
    return "slower" if found and found.is_above(1.0 - noise) is False else INCONCLUSIVE


def verdict_of(result: Result, arm: Arm) -> str | None:
    """Of a row; None: it is plain decoding, once more or not, or was not measured."""
    is_plain = arm.kind == "control" or arm.name == OFF
    return None if is_plain or arm.total is None else verdict(arm.total.shown_speedup, control(result)[1])


def document(result: Result) -> dict[str, Any]:
    """What `selfdraft bench --json` prints: the figures, the verdict on each method, the advice."""
    found = result.document()
    rows = [{**row, "verdict": verdict_of(result, arm)} for row, arm in zip(found["arms"], result.arms, strict=True)]
    return {**found, "arms": rows, "advice": advice(result)}


def _same(result: Result, kind: str = "ours") -> list[Arm]:
    """What said the same as plain decoding, the fastest first; `ours`: what anybody can use."""
    return [arm for arm in result.measured if arm.kind == kind and arm.total and not arm.total.different]


def best_of_ours(result: Result) -> Arm | None:
    """The fastest of those that are surely faster than plain decoding."""
    return next((arm for arm in _same(result) if verdict_of(result, arm) == "faster"), None)


def rivals(result: Result, best: Arm) -> tuple[list[str], list[str]]:
    """Names of others that are not surely slower than the best, and of those surely faster, prompt by prompt.

    A peer is compared by whole calls, where it said the same.
    """
    noise, all_of, others = control(result)[1], result.all_of, [*_same(result), *_same(result, "peer")]
    found = {
        arm.name: ratio(all_of.of(best.name), all_of.of(arm.name), speed if arm.kind == "ours" else call_speed, 0)
        for arm in others
        if arm is not best
    }
    faster = [name for name, one in found.items() if one and one.is_above(1.0 - noise) is False]
    return [name for name, one in found.items() if one and not one.is_above(1.0 + noise) and name not in faster], faster


def control(result: Result) -> tuple[Estimate | None, float]:
    """Plain decoding against itself, if it was measured twice; how far it surely is from itself, by noise alone."""
    found = next((arm.total.speedup for arm in result.measured if arm.kind == "control" and arm.total), None)
    return found, abs(found.value - 1.0) if found and not found.low <= 1.0 <= found.high else 0.0


def method_options(method: Mapping[str, Any]) -> str:
    """As the commands take it: `--strategy prune --set confidence.threshold=0.8`."""
    words = [word for axis in AXES if method.get(axis) is not None for word in (f"--{axis}", str(method[axis]))]
    for name, values in (method.get("settings") or {}).items():
        for option, value in values.items():
            shown = str(value).lower() if isinstance(value, bool) else value
            words += ["--set", f"{name}.{option}={shown}"]
    return shlex.join(words)


def _choice(result: Result) -> str:
    if not any(arm.kind == "ours" for arm in result.measured):
        return "Nothing but plain decoding was measured: there is nothing to choose from yet."
    if best := best_of_ours(result):
        return _recommended(result, best)
    known = [(arm, arm.total.shown_speedup) for arm in _same(result) if arm.total]
    for arm, found in known:
        if verdict_of(result, arm) == INCONCLUSIVE and found and (found.is_of_few or found.high >= WORTH):
            return _inconclusive(result, arm, found)
    best_of_all = f" (the best, {known[0][0].name}: {known[0][1]})" if known else ""
    hint = "; to search for what may be skipped on this device, try selfdraft calibrate"
    return (
        f"Plain decoding is the fastest here: nothing is surely above 1.00x{best_of_all}. "
        f"Nothing is lost with --strategy off{hint if result.all_of.machine.frontier is None else ''}."
    )


def _recommended(result: Result, best: Arm) -> str:
    """The fastest is surely faster than each of the others; where some may be as fast, it says so."""
    found, (others, faster) = best.total.shown_speedup if best.total else None, rivals(result, best)
    assert found is not None
    options = method_options(best.asked or best.method)
    how = f"use it with {options}" if options else "it is the default, no option is needed"
    begin = f"{best.name} is" if others or faster else f"The fastest here is {best.name}:"
    said = [f"{begin} {found.value:.2f}x as fast as plain decoding ({_range(found)}){_spread(best)}; {how}."]
    if others:
        said += [f"{_listed([best.name, *others])} are about as fast: which is faster is inconclusive."]
    if faster:
        said += [f"Faster still, by whole calls: {_listed(faster)}."]
    return " ".join(said)


def _range(found: Estimate) -> str:
    return f"95 %: {found.low:.2f} to {found.high:.2f}"


def _listed(names: Sequence[str]) -> str:
    """The first three."""
    rest = [f"{len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
    *first, last = [*names[:MOST_NAMED], *rest]
    return f"{', '.join(first)} and {last}" if first else last


def _inconclusive(result: Result, arm: Arm, found: Estimate) -> str:
    """Why, with the numbers, and what to do. Where plain decoding is steady, it is the prompts that differ."""
    (again, noise), prompts = control(result), f"{found.count} prompt{'s' * (found.count > 1)}"
    cause = "the machine is noisy, rerun or use more prompts"
    if found.is_of_few:
        cause = f"too few prompts to tell, use at least {FEW_PROMPTS}"
    elif again and not noise and again.high - again.low < (found.high - found.low) / 2:
        cause = "it depends on the prompt, use more of them, or your own"
    against = f" Plain decoding against itself gives {again}." if again else ""
    return (
        f"Inconclusive: {cause}. {arm.name} is {found.value:.2f}x as fast as plain decoding, with {prompts} "
        f"({_range(found)}){_spread(arm)}.{against} Nothing is lost with --strategy off."
    )


def _spread(arm: Arm) -> str:
    """On which domain it is worth least and most."""
    known = {domain: found.shown_speedup for domain, found in arm.domains.items() if not is_context(domain)}
    ranked = sorted((found.value, domain) for domain, found in known.items() if found is not None)
    if len(ranked) < 2:
        return ""
    (low, worst), (high, best) = ranked[0], ranked[-1]
    return f", from {low:.2f}x on {worst} to {high:.2f}x on {best}"
