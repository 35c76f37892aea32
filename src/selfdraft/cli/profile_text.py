"""A profile as people read it: the seconds of a pass, what each strategy learned, how fast it was when tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..calibrate.trials import thinned
from ..economics import MAX_DRAFTED, LatencyFit
from ..lookahead.disco import artefact_name
from ..profiles.contents import DAMAGE, KnownSet
from ..profiles.profile import Profile
from ..profiles.searches import Where
from ..types import FrontierPoint, SkipSet
from .profile_search_text import PARAGRAPHS
from .profile_words import counts, table, times
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
    return ", ".join(facts) or "learned"


def _frontier_text(points: Sequence[FrontierPoint], latency: LatencyFit | None) -> str:
    header = ("  skipped sub-layers", "match", "predicted")
    rows = [
        (f"  {counts(point.skip)}", f"{point.match:.1%}", times(_predicted(point, latency)))
        for point in thinned(points, MAX_ROWS)
    ]
    note = (
        f"  ({number(len(points), 'skip set')}; predicted speed-up after {SHORT} tokens, up to {MAX_DRAFTED} drafted)"
    )
    return "\n".join([table(header, rows), note])


def _predicted(point: FrontierPoint, latency: LatencyFit | None) -> float | None:
    return None if latency is None else KnownSet.at(latency.at(SHORT), point.skip, point.match).predicted


def _trials_text(trials: Sequence[Mapping[str, Any]]) -> str:
    header = ("  tried", "skipped sub-layers", "match", "predicted", "measured", "acceptance", "mean length")
    rows = [
        (
            f"  {trial['strategy']}",
            counts(SkipSet.parse(trial["skip"])),
            f"{trial['match']:.1%}",
            times(trial["predicted"]),
            times(trial["measured"]),
            f"{trial['acceptance_rate']:.0%}",
            f"{trial['mean_generated_length']:.2f}",
        )
        for trial in trials
    ]
    note = f"  (speed-up over plain decoding, {number(trials[0]['num_prompts'], 'prompt')} held out from calibration)"
    return "\n".join([table(header, rows), note])
