"""What to do with a result, in a few sentences; an output that is not that of plain decoding is said first."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from ..measure.estimate import Estimate
from ..measure.figures import Figures
from ..measure.records import VERDICTS
from ..measure.result import Arm, Result
from ..prompts.arrange import is_context
from ..registry import AXES

FEW_PROMPTS = 4  # an interval of fewer decides nothing
WORTH = 1.02  # a speed-up that is surely below this is not worth another run


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


def best_of_ours(result: Result) -> Arm | None:
    """The fastest that anybody can use, surely faster than plain decoding, and that said the same."""
    noise = control(result)[1]
    ours = [(arm, arm.total) for arm in result.measured if arm.kind == "ours" and arm.total]
    return next((arm for arm, total in ours if sure_side(total, noise) == "faster" and not total.different), None)


def sure_side(total: Figures, noise: float = 0.0) -> str:
    """Whether it is "faster" or "slower" than plain decoding by more than the noise of the run, or "unsure"."""
    found = total.shown_speedup
    if found is None or found.count < FEW_PROMPTS:
        return "unsure"
    if found.low > 1.0 + noise:
        return "faster"
    return "slower" if found.high < 1.0 - noise else "unsure"


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
    sure = best_of_ours(result)
    best = sure or next((arm for arm in result.measured if arm.kind == "ours"), None)
    found = best.total.shown_speedup if best and best.total else None
    if best is None:
        return "Nothing but plain decoding was measured: there is nothing to choose from yet."
    if sure and found:
        options = method_options(best.asked or best.method)
        how = f"use it with {options}" if options else "it is the default, no option is needed"
        return (
            f"The fastest here is {best.name}: {found.value:.2f}x as fast as plain decoding (95 %: "
            f"{found.low:.2f} to {found.high:.2f}){_spread(best)}; {how}."
        )
    if best.total and found and found.high >= WORTH and sure_side(best.total, control(result)[1]) == "unsure":
        return _inconclusive(result, best, found)
    speed = f"{found.value:.2f}x [{found.low:.2f}, {found.high:.2f}]" if found else "-"
    hint = "; to search for what may be skipped on this device, try selfdraft calibrate"
    return (
        f"Plain decoding is the fastest here: nothing is surely above 1.00x (the best, {best.name}: {speed}). "
        f"Nothing is lost with --strategy off{hint if result.all_of.machine.frontier is None else ''}."
    )


def _inconclusive(result: Result, best: Arm, found: Estimate) -> str:
    """Why, with the numbers, and what to do. Where plain decoding is steady, it is the prompts that differ."""
    (again, noise), prompts = control(result), f"{found.count} prompt{'s' * (found.count > 1)}"
    cause = "the machine is noisy, rerun or use more prompts"
    if found.count < FEW_PROMPTS:
        cause = f"too few prompts to tell, use at least {FEW_PROMPTS}"
    elif again and not noise and again.high - again.low < (found.high - found.low) / 2:
        cause = "it depends on the prompt, use more of them, or your own"
    against = f" Plain decoding against itself gives {again}." if again else ""
    return (
        f"Inconclusive: {cause}. The best, {best.name}, is {found.value:.2f}x as fast as plain decoding, with "
        f"{prompts} (95 %: {found.low:.2f} to {found.high:.2f}){_spread(best)}.{against} Nothing is lost with "
        "--strategy off."
    )


def _spread(arm: Arm) -> str:
    """On which domain it is worth least and most."""
    known = {domain: found.shown_speedup for domain, found in arm.domains.items() if not is_context(domain)}
    ranked = sorted((found.value, domain) for domain, found in known.items() if found is not None)
    if len(ranked) < 2:
        return ""
    (low, worst), (high, best) = ranked[0], ranked[-1]
    return f", from {low:.2f}x on {worst} to {high:.2f}x on {best}"
