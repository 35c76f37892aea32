"""What strategies that search left in a profile, as people read it: `knn`, `swift`, `draft-verify`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..profiles.searches import KnownDomain, Where, read_domains, timed_sets
from ..strategies.timeline import read_search
from .profile_words import counts, percent, table, times
from .terminal import number

# ------------------------------------------------------------------------------------------------ in a few words


def _knn_words(values: Mapping[str, Any]) -> str:
    return number(len([one["name"] for one in values["domains"]]), "domain")


def _swift_words(values: Mapping[str, Any]) -> str:
    matchness = values["matchness"]
    told = "" if matchness is None else f", matchness {float(matchness):.0%}"
    return f"{number(int(values['step']), 'step')}{told}"


def _draft_verify_words(values: Mapping[str, Any]) -> str:
    found = timed_sets(values)
    return ", ".join(sorted(found, key=lambda name: name != "mixed")) or "no skip set"


WORDS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "knn": _knn_words,
    "swift": _swift_words,
    "draft-verify": _draft_verify_words,
}

# ------------------------------------------------------------------------------------------------ in a paragraph


def _knn_text(values: Mapping[str, Any], where: Where) -> str:
    found = read_domains(values, where)
    header = ("  domain", "vectors", "threshold", "skipped sub-layers", "match", "predicted", "measured")
    note = (
        f"  (nearest anchor by {found.feature} vectors; skip sets by {found.search}, after {where.num_context} tokens)"
    )
    lines = [table(header, [_domain_row(one) for one in found.rows]), note]
    if any(one.is_outdone for one in found.rows):
        lines.append("  (* decodes plainly, which promises more than the best set that was found, shown here)")
    return "\n".join(lines)


def _domain_row(one: KnownDomain) -> tuple[str, ...]:
    found = one.found
    if found is None or not found.skip:
        figures = (_instead_of_a_set(one), "-", "-", "-")
    else:
        figures = (counts(found.skip), percent(found.match), times(found.predicted), times(found.measured))
    vectors = "-" if one.num_vectors is None else str(one.num_vectors)
    threshold = "-" if one.threshold is None else f"{one.threshold:.3f}"
    return (f"  {one.name}{' *' if one.is_outdone else ''}", vectors, threshold, *figures)


def _instead_of_a_set(one: KnownDomain) -> str:
    if not one.is_searched:
        return "not searched yet"
    return "by measured seconds" if one.found is None else "plain decoding was fastest"


def _swift_text(values: Mapping[str, Any], where: Where) -> str:
    found = read_search(values)
    found.skip.check(where.num_layers)
    doing = {"optimise": "optimising", "accelerate": "accelerating"}.get(found.phase, found.phase)
    matchness = "not known yet" if found.matchness is None else f"{found.matchness:.1%}"
    told = f"{doing}, {number(found.step, 'step')}, ratio {found.ratio:g}, matchness {matchness}"
    lines = [f"  {told}", f"  skipped sub-layers: {counts(found.skip)}{f' ({found.skip})' if found.skip else ''}"]
    if found.texts:
        amount = f"{number(len(found.texts), 'text')}, {found.texts[-1].end} tokens"
        spent = f"{percent(found.optimise_share)} of the time on optimising"
        lines.append(f"  {amount}: {spent}, overall speed-up {times(found.overall[-1])}")
    return "\n".join(lines)


def _draft_verify_text(values: Mapping[str, Any], where: Where) -> str:
    found = timed_sets(values)
    for one in found.values():
        one.skip.check(where.num_layers)
    header = ("  calibrated on", "skipped sub-layers", "tokens/s", "plain", "speed-up", "tried")
    rows = [
        (
            f"  {name}{'' if one.is_complete else ' (incomplete)'}",
            counts(one.skip),
            f"{one.tokens_per_second:.1f}",
            f"{one.plain:.1f}",
            times(one.speed_up),
            str(one.num_tried),
        )
        for name, one in found.items()
    ]
    return table(header, rows)


PARAGRAPHS: Mapping[str, Callable[[Mapping[str, Any], Where], str]] = {
    "knn": _knn_text,
    "swift": _swift_text,
    "draft-verify": _draft_verify_text,
}
