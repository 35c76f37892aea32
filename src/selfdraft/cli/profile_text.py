"""A profile as people read it: the seconds of a pass, what each strategy learned or searched, how fast it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..bench.tables import Table, text_table, times
from ..bench.tables import number as cell
from ..calibrate.calibrate import thinned
from ..economics import MAX_DRAFTED, LatencyFit
from ..lookahead.disco import artefact_name
from ..profiles.contents import DAMAGE, KnownSet
from ..profiles.profile import Profile
from ..profiles.searches import KnownDomain, Where, read_domains, timed_sets
from ..strategies.kept_sets import KeptSet
from ..strategies.timeline import read_search
from ..types import FrontierPoint, SkipSet
from .terminal import number

SHORT, LONG = 512, 4096
"""Lengths of text for which seconds and speed-ups are told."""
MAX_ROWS = 8
CLASSIFIER = artefact_name("")
"""How the names of classifiers begin."""


def as_text(profile: Profile, num_layers: int) -> str:
    """All of it, a part that cannot be read replaced by the reason."""
    key = profile.key
    parts = [f"{key.name} on {key.device}, {key.dtype}\n{profile.summary}"]
    latency = None
    if profile.latency is not None:
        try:
            latency = LatencyFit.from_json(profile.latency, num_layers)
            parts.append(_latency_text(latency))
        except DAMAGE as error:
            parts.append(f"latency: cannot be read ({type(error).__name__}: {error})")
    for name, artefact in sorted(profile.artefacts.items()):
        try:
            parts.append(_artefact_text(name, artefact.values, latency, num_layers))
        except DAMAGE as error:
            parts.append(f"{name}: cannot be read ({type(error).__name__}: {error})")
    return "\n\n".join(parts)


# ------------------------------------------------------------------------------------------------ seconds of a pass


def _latency_text(latency: LatencyFit) -> str:
    short, long = latency.at(SHORT), latency.at(LONG)
    rows = {
        f"attention after {SHORT} tokens": short.attention,
        f"attention after {LONG} tokens": long.attention,
        "MLP": latency.mlp_seconds,
        "embedding, head and the rest": latency.rest_seconds,
        f"plain pass after {SHORT} tokens": short.plain,
        f"verification of 8 after {SHORT} tokens": short.verify(8),
    }
    width = max(map(len, rows))
    lines = [f"  {label:{width}}  {1000 * seconds:9.3f}" for label, seconds in rows.items()]
    lengths = ", ".join(map(str, latency.lengths))
    error = f"error of the fit {latency.rms_error:.1%}, at most {latency.max_error:.1%}"
    return "\n".join([f"milliseconds (measured after {lengths} tokens; {error})", *lines])


# ------------------------------------------------------------------------------------------------ a strategy's part


def _artefact_text(name: str, values: Mapping[str, Any], latency: LatencyFit | None, num_layers: int) -> str:
    if name.startswith(CLASSIFIER):
        return _classifier_text(name, values)
    lines = [f"{name}: {_made_from(values)}"]
    if name in PARAGRAPHS:
        lines.append(PARAGRAPHS[name](values, Where(latency, num_layers, SHORT)))
    if "frontier" in values:
        points = [point for point in map(FrontierPoint.from_json, values["frontier"]) if point.skip]
        lines.append(_frontier_text(points, latency))
    if values.get("trials"):
        lines.append(_trials_text(values["trials"]))
    return "\n".join(lines)


def _classifier_text(name: str, values: Mapping[str, Any]) -> str:
    """How far `disco` drafts: what it was trained with, and what that was good for."""
    trained = f"{values['num_tokens']} tokens ({', '.join(values['domains'])}), label {values['label']}"
    lines = [f"{name}: {trained}, strategy {values['strategy']}, trained {values['trained']}"]
    figures = f"F1 {values['f1']:.3f} (best fixed length {values['f1_static']:.3f})"
    figures += f", threshold {values['threshold']:g}, at most {number(values['max_tokens'], 'token')}"
    if seconds := values.get("seconds_per_token"):
        plain, static, own = (1000 * seconds[way] for way in ("plain", "static", "disco"))
        figures += f"; {own:.2f} ms a token, best fixed length {static:.2f}, plain {plain:.2f}"
    return "\n".join([*lines, f"  {figures}"])


def _made_from(values: Mapping[str, Any]) -> str:
    facts = []
    if "num_texts" in values:
        domains = ", ".join(one if isinstance(one, str) else one["name"] for one in values["domains"])
        facts.append(f"{values['num_tokens']} tokens in {values['num_texts']} texts ({domains})")
    if "seconds" in values:
        facts.append(f"{values['seconds']:.0f} s")
    if not values.get("is_complete", True):
        facts.append("incomplete: the budget ended it")
    if "busy" in values:
        facts.append(f"the machine was busy for {values['busy']}")
    return ", ".join(facts) or "learned"


def _frontier_text(points: Sequence[FrontierPoint], latency: LatencyFit | None) -> str:
    if not points:
        return "  no skip set yet"
    rows = []
    for point in thinned(points, MAX_ROWS):
        known = None if latency is None else KnownSet.at(latency.at(SHORT), point.skip, point.match).predicted
        rows.append((f"  {_counts(point.skip)}", f"{point.match:.1%}", times(known)))
    note = f"predicted over plain decoding after {SHORT} tokens, up to {MAX_DRAFTED} drafted"
    found = _table(("  skipped sub-layers", "match", "predicted"), rows)
    return f"{found}\n  ({number(len(points), 'skip set')}; {note})"


def _trials_text(trials: Sequence[Mapping[str, Any]]) -> str:
    header = ("  tried", "skipped sub-layers", "match", "predicted", "measured", "acceptance", "mean length")
    rows = [
        (
            f"  {trial['strategy']}",
            _counts(SkipSet.parse(trial["skip"])),
            f"{trial['match']:.1%}",
            times(trial["predicted"]),
            times(trial["measured"]),
            f"{trial['acceptance_rate']:.0%}",
            f"{trial['mean_generated_length']:.2f}",
        )
        for trial in trials
    ]
    first, about = trials[0], ""
    if "num_context" in first:
        about = f", after about {number(first['num_context'], 'token')}"
    prompts = number(first["num_prompts"], "prompt")
    notes = (
        f"  (both over plain decoding of the same texts, {prompts} held out from calibration{about}.",
        "  measured: by the clock. predicted: the same rounds, by the milliseconds of their passes alone)",
    )
    return "\n".join([_table(header, rows), *notes])


# ------------------------------------------------------------------------------------------ searches in a few words


def _swift_words(values: Mapping[str, Any]) -> str:
    matchness = values["matchness"]
    told = "" if matchness is None else f", matchness {float(matchness):.0%}"
    return f"{number(int(values['step']), 'step')}{told}"


WORDS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "knn": lambda values: number(len([one["name"] for one in values["domains"]]), "domain"),
    "swift": _swift_words,
    "draft-verify": lambda values: ", ".join(sorted(timed_sets(values), key="mixed".__ne__)) or "no skip set",
}

# ------------------------------------------------------------------------------------------ searches in a paragraph


def _knn_text(values: Mapping[str, Any], where: Where) -> str:
    found = read_domains(values, where)
    header = ("  domain", "vectors", "threshold", "skipped sub-layers", "match", "predicted", "measured")
    note = (
        f"  (nearest anchor by {found.feature} vectors; skip sets by {found.search}, after {where.num_context} tokens)"
    )
    lines = [_table(header, [_domain_row(one) for one in found.rows]), note]
    if not all(one.has_own for one in found.rows):
        lines.append("  (+ drafts with the general sets: its own, shown here, do not surely serve it better)")
    if any(one.is_outdone for one in found.rows):
        lines.append("  (* decodes plainly, which promises more than the best set that was found, shown here)")
    return "\n".join(lines)


def _domain_row(one: KnownDomain) -> tuple[str, ...]:
    found = one.found
    if found is None or not found.skip:
        figures = (_instead_of_a_set(one), "-", "-", "-")
    else:
        figures = (_counts(found.skip), cell(found.match, ".1%"), times(found.predicted), times(found.measured))
    name = f"  {one.name}{'' if one.has_own else ' +'}{' *' if one.is_outdone else ''}"
    return (name, cell(one.num_vectors, "d"), cell(one.threshold, ".3f"), *figures)


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
    lines = [f"  {told}", f"  skipped sub-layers: {_counts(found.skip)}{f' ({found.skip})' if found.skip else ''}"]
    if found.texts:
        amount = f"{number(len(found.texts), 'text')}, {found.texts[-1].end} tokens"
        spent = f"{cell(found.optimise_share, '.1%')} of the time on optimising"
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
            _counts(one.skip),
            f"{one.tokens_per_second:.1f}",
            f"{one.plain:.1f}",
            times(one.speed_up),
            str(one.num_tried),
        )
        for name, one in found.items()
    ]
    return _table(header, rows) if rows else "  no skip set yet"


def _knapspec_text(values: Mapping[str, Any], where: Where) -> str:
    """At each length that passes were measured at, the set that promises most."""
    known = [KeptSet.from_json(one) for one in values.get("known", ())]
    for one in known:
        one.skip.check(where.num_layers)
    if not known or where.fit is None:
        return "  no sets: the knapsack runs in every plan"
    rows = []
    for length in where.fit.lengths:
        found = [KnownSet.at(where.fit.at(length), one.skip, one.match) for one in known]
        best = max(found, key=lambda one: one.predicted or 0.0)
        figures = (cell(best.match, ".1%"), times(best.predicted), cell(best.num_drafted, "d"), str(best.skip))
        rows.append((f"  {length}", _counts(best.skip), *figures))
    header = ("  after tokens", "skipped sub-layers", "match", "predicted", "drafted", "skip set")
    return f"{_table(header, rows)}\n  ({number(len(known), 'set')} to choose among)"


def _asd_text(values: Mapping[str, Any], where: Where) -> str:
    """The rules that were found, and C_l: how little each attention turns the prompts' states."""
    if "similarity" not in values:
        return "  the paper's rules: nothing else was tried"
    rules = f"similarity {values['similarity']:g}, every {values['every']}, last {values['last']}"
    promised = f"match {values['match']:.1%}, predicted {times(values['predicted'])}"
    lines = [f"  {rules}: {promised} (the best of {values['num_tried']})", "  C_l, mean cosine around each attention:"]
    by_layer = [f"{layer:4} {cosine:.4f}" for layer, cosine in enumerate(values["cosines"])]
    parts = (by_layer[first : first + MAX_ROWS] for first in range(0, len(by_layer), MAX_ROWS))
    return "\n".join([*lines, *(f"  {''.join(part)}" for part in parts)])


PARAGRAPHS: Mapping[str, Callable[[Mapping[str, Any], Where], str]] = {
    "knn": _knn_text,
    "swift": _swift_text,
    "draft-verify": _draft_verify_text,
    "knapspec": _knapspec_text,
    "asd": _asd_text,
}

# ------------------------------------------------------------------------------------------------ figures


def _counts(skip: SkipSet) -> str:
    return f"{len(skip.attention)} attention, {len(skip.mlp)} MLP" if skip else "none: decodes plainly"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return text_table(Table("", header, rows))
