"""A profile as pictures: its skip sets and what they cost, the domains of `knn`, the search of `swift`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np

from ..bench.charts import Drawing, Panels, Stack, plane, render
from ..bench.charts.lines import Band, Lines, Mark, Series
from ..bench.charts.scatter import Group, Scatter
from ..bench.charts.skip_chart import SkipStrips, Strip
from ..economics import MAX_DRAFTED, Array, LatencyFit, PassCosts, expected_tokens
from ..profiles.contents import KnownSet, KnownSets
from ..profiles.searches import KnownDomain, KnownDomains
from ..strategies.timeline import KnownSearch
from ..types import SkipSet

MAX_SETS, MAX_STEPS, VERIFIED = 6, 8, 8
SHORTEST, LONGEST = 64, 16384
"""Tokens before a pass, in the panel of seconds."""
_PHASES = {"optimise": ("optimising", 4), "accelerate": ("accelerating", 2)}


def _picture(strips: SkipStrips, below: Drawing, inches: float, title: str) -> bytes:
    above = 1.05 + 0.46 * max(2, len(strips.rows))
    return render(Stack([strips, below], [above, inches]), (12.5, above + inches), title=title)


def _counts(skip: SkipSet) -> str:
    return f"{len(skip.attention)} attention, {len(skip.mlp)} MLP skipped"


# ------------------------------------------------------------------------------------------------ sets


def sets_picture(learned: KnownSets, title: str, asked: Sequence[SkipSet] = ()) -> bytes:
    """A PNG. Shown are the `asked` sets; none: some of the frontier, the chosen one among them."""
    shown = [learned.find(skip) for skip in asked] or some_sets(learned)
    rows = [_set_strip(learned, one, place) for place, one in enumerate(shown, start=1)]
    nothing = Strip(None, right="no skip sets in this profile yet: selfdraft calibrate --strategy prune")
    strips = SkipStrips(rows or [nothing], learned.costs.fit.num_layers, title="Which sub-layers draft")
    below = Stack([frontier(learned, shown), seconds(learned)], [1, 1], is_row=True)
    return _picture(strips, below, 5.0, title)


def some_sets(learned: KnownSets) -> list[KnownSet]:
    """Of the frontier, in its order, evenly spread; the one nearest to the chosen set makes room for it."""
    count = len(learned.frontier)
    places = sorted({round(place) for place in np.linspace(0, count - 1, min(count, MAX_SETS)).tolist()})
    skips = [one.skip for one in learned.frontier]
    if learned.chosen in skips and skips.index(learned.chosen) not in places:
        chosen = skips.index(learned.chosen)
        places[min(range(len(places)), key=lambda index: abs(places[index] - chosen))] = chosen
    return [learned.frontier[place] for place in places]


def _set_strip(learned: KnownSets, one: KnownSet, number: int) -> Strip:
    is_chosen = bool(one.skip) and one.skip == learned.chosen
    facts = [f"cost {one.cost:.2f}"]
    if one.match is not None:
        facts = [f"match {one.match:.1%}", *facts, f"predicted {one.predicted:.2f}x"]
    choice = f"\nchosen after {learned.costs.num_context} tokens" if is_chosen else ""
    return Strip(one.skip, f"{_counts(one.skip)}   {number}", "   ".join(facts) + choice, is_chosen)


def _measured(one: KnownSet) -> str:
    """A strategy that is free to change its set is named."""
    return f"{'' if one.tried_as == 'fixed' else f'{one.tried_as}: '}measured {one.measured:.2f}x"


def frontier(learned: KnownSets, shown: Sequence[KnownSet]) -> Scatter:
    """Match against cost; numbers as beside the strips."""
    tried = [one for one in learned.tried if one.match is not None and one.measured is not None]
    known = [*learned.frontier, *tried, *(one for one in shown if one.match is not None)]
    costs, matches = [one.cost for one in known], [one.match for one in known if one.match is not None]
    left, right, low = min([0.7, *costs]), max([1.0, *costs]), min([0.9, *matches])  # one set is not the whole scale
    edge = 0.08 * (right - left)
    plainly = " (plain decoding is chosen)" if learned.frontier and not learned.chosen else ""
    return Scatter(
        [
            _group("shown above", shown, list(map(str, range(1, len(shown) + 1))), look="outline"),
            _group("", tried, list(map(_measured, tried)), color=1),
        ],
        f"cost of a drafted token (plain pass = 1), after {learned.costs.num_context} tokens",
        "match: share of the target's choices",
        unit="%",
        line=sorted((one.cost, one.match or 0.0) for one in learned.frontier),
        line_name="frontier",
        field=lambda xs, ys: speed_ups(learned.costs, ys, xs),
        x_limits=(max(0.0, left - edge), right + edge),
        y_limits=(max(0.0, low - 0.1 * (1 - low) - 0.01), 1.0),
        title=f"What they keep and cost, and the speed-up predicted{plainly}",
    )


def speed_ups(costs: PassCosts, matches: Array, drafting: Array) -> Array:
    """[matches, drafting]: of drafting at the best length; `drafting`: the cost of a token, plain pass = 1."""
    lengths = range(1, MAX_DRAFTED + 1)
    verifying = [costs.verify(length + 1) / costs.plain for length in lengths]
    seconds = drafting[:, None] * np.array(lengths) + np.array(verifying)
    return np.asarray((expected_tokens(matches, MAX_DRAFTED)[:, None, 1:] / seconds).max(-1))


def _group(name: str, sets: Sequence[KnownSet], labels: Sequence[str], **look: Any) -> Group:
    known = [(one.cost, one.match, label) for one, label in zip(sets, labels, strict=True) if one.match is not None]
    return Group(name, [(x, y) for x, y, _ in known], [label for *_, label in known], **look)


def seconds(learned: KnownSets) -> Lines:
    """Solid where it was measured; bands: weights as KnapSpec counts."""
    fit = learned.costs.fit
    passes: dict[str, Callable[[float], float]] = {
        f"verification of {VERIFIED}": lambda length: fit.at(length).verify(VERIFIED),
        "plain pass": fit.plain.at,
        "one attention": fit.attention.at,
        "one MLP": lambda length: fit.mlp_seconds,
    }
    return Lines(
        [one for color, (name, of) in enumerate(passes.items()) for one in _curves(name, of, fit, color)],
        "tokens before the pass (above: weights, attention : MLP)",
        "milliseconds",
        x_limits=(SHORTEST * 0.9, LONGEST * 1.1),
        log="xy",
        ticks={SHORTEST * 4**power: str(SHORTEST * 4**power) for power in range(5)},
        bands=list(_weight_bands(fit)),
        marks=[Mark(learned.costs.num_context, f"{learned.costs.num_context} tokens")],
        title="What passes cost",
    )


def _curves(name: str, of: Callable[[float], float], fit: LatencyFit, color: int) -> Iterator[Series]:
    lengths, low, high = np.geomspace(SHORTEST, LONGEST, 100).tolist(), min(fit.lengths), max(fit.lengths)
    inside = [low, *(length for length in lengths if low < length < high), high]
    yield Series("", [(length, 1000 * of(length)) for length in lengths], "dotted", color, is_marked=False)
    yield Series(name, [(length, 1000 * of(length)) for length in inside], "line", color, is_marked=False)
    yield Series("", [(length, 1000 * of(length)) for length in fit.lengths], "dots", color)


def _weight_bands(fit: LatencyFit) -> Iterator[Band]:
    lengths = np.geomspace(SHORTEST, LONGEST, 400).tolist()
    for (attention, mlp), group in groupby(lengths, key=lambda length: fit.at(length).weights):
        found = list(group)
        yield Band(f"{attention} : {mlp}", found[0], found[-1], 0, 0.05 + 0.05 * (attention - 1))


# ------------------------------------------------------------------------------------------------ knn


class Cloud(NamedTuple):
    """Vectors [vectors, hidden] and the domain of each [vectors]."""

    vectors: Array
    domains: Array


def read_clouds(content: Mapping[str, Any]) -> tuple[Cloud, Cloud]:
    """Anchors, and samples of the prompts they were chosen from; what is damaged raises one of `contents.DAMAGE`."""
    num_domains = len(content["domains"])
    found = []
    for name, names in (("anchors", "anchor_domains"), ("samples", "sample_domains")):
        vectors, labels = (content[array].double().numpy() for array in (name, names))
        if vectors.ndim != 2 or labels.shape != vectors.shape[:1]:
            raise ValueError(f"{name} {vectors.shape} with {labels.shape} domains")
        if not np.isin(labels, np.arange(num_domains)).all() or not np.isfinite(vectors).all():
            raise ValueError(f"{name} belong to no domain or are not numbers")
        found.append(Cloud(vectors, labels))
    return found[0], found[1]


def knn_picture(found: KnownDomains, clouds: tuple[Cloud, Cloud], num_layers: int, title: str) -> bytes:
    """A PNG. `clouds`: anchors and samples."""
    by_length = any(one.found and one.found.match is not None for one in found.rows)
    where = f", chosen for {found.num_context} tokens of text" if by_length else ""
    label, head = f"layer (sets by {found.search}{where})", "Which sub-layers draft, by domain"
    strips = SkipStrips(domain_strips(found), num_layers, label, title=head)
    draw = Stack([anchors_chart([one.name for one in found.domains], *clouds), strips], [5.6, 8.9], is_row=True)
    return render(draw, (14.5, 1.6 + 0.58 * max(6, len(found.rows))), title=title)


def anchors_chart(names: Sequence[str], anchors: Cloud, samples: Cloud) -> Scatter:
    """In the plane in which their directions differ most."""
    vectors = np.concatenate([anchors.vectors, samples.vectors])
    flat, shares = plane(vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12))
    parts = ((anchors.domains, flat[: len(anchors.domains)]), (samples.domains, flat[len(anchors.domains) :]))
    groups = []
    for domain, name in enumerate(names):
        of_anchors, of_samples = ([(float(x), float(y)) for x, y in flat[owner == domain]] for owner, flat in parts)
        groups.append(Group("", of_samples, color=domain, look="pale"))
        groups.append(Group(name, of_anchors, color=domain))
    labels = f"first principal component ({shares[0]:.0%} of the variance)", f"second ({shares[1]:.0%})"
    return Scatter(groups, *labels, title="Which prompts are alike (pale: prompts; full: anchors)")


def domain_strips(found: KnownDomains) -> list[Strip]:
    return [_domain_strip(one, is_general=one is found.general) for one in found.rows]


def _domain_strip(one: KnownDomain, is_general: bool) -> Strip:
    left = f"{one.name}\n{'for strangers' if is_general else f'{one.num_vectors} vectors'}"
    if one.found is None or not one.found.skip:
        return Strip(None, left, "plain decoding was fastest" if one.is_searched else "not searched yet")
    found = one.found
    told = {"predicted": found.predicted, "measured": found.measured}
    facts = [f"match {found.match:.1%}"] if found.match is not None else []
    facts += [f"{name} {value:.2f}x" for name, value in told.items() if value is not None]
    instead = "decodes plainly" if one.is_outdone else "" if one.has_own else "drafts as strangers do"
    plainly = f"{instead}; best set:\n" if instead else ""
    return Strip(found.skip, left, f"{plainly}{_counts(found.skip)}\n{'   '.join(facts)}")


# ------------------------------------------------------------------------------------------------ swift


def swift_picture(found: KnownSearch, num_layers: int, title: str) -> bytes:
    """A PNG: its sets, how well they matched, and what that was good for."""
    rows = [_step_strip(found, step, skip) for step, skip in steps_shown(found)]
    strips = SkipStrips(rows, num_layers, title="Which sub-layers draft, as the search goes on")
    below = Panels([matchness(found), speed(found)], columns=1, heights=[1.25, 1], share_x=True)
    return _picture(strips, below, 6.4, title)


def steps_shown(found: KnownSearch) -> list[tuple[int, SkipSet]]:
    """(step, set in use there): those kept, and the set of now."""
    kept = {step: skip for step, skip in found.snapshots.items() if step < found.step}
    return [*list(kept.items())[: MAX_STEPS - 1], (found.step, found.skip)]


def _step_strip(found: KnownSearch, step: int, skip: SkipSet) -> Strip:
    is_last = step == found.step
    matched = found.matchness if is_last else found.matchness_at(step)
    known = "" if matched is None else f"   matchness {matched:.0%}"
    return Strip(skip, f"step {step}{' (now)' if is_last else ''}", f"{_counts(skip)}{known}", is_last)


def matchness(found: KnownSearch) -> Lines:
    """Of candidates, and of the set in use; marks: where the share of skipped sub-layers changed."""
    in_use = [*found.in_use, *((found.num_tokens, value) for _, value in found.in_use[-1:])]
    values = [*(one.matchness for one in found.steps), *(value for _, value in in_use)] if in_use else [0.0, 1.0]
    edge = 0.2 * max(0.05, max(values) - min(values))
    return Lines(
        [
            Series("set in use", in_use, "steps", is_marked=False),
            Series("candidate of a step", [(one.num_tokens, one.matchness) for one in found.steps], "dots", 0),
        ],
        "",
        "matchness: share of the\ntarget's choices in the window",
        unit="%",
        y_limits=(max(-0.03, min(values) - edge), min(1.0, max(values) + edge)),
        marks=[Mark(at, f"ratio {old:g} to {new:g}") for (_, old), (at, new) in pairwise(found.ratios)],
        title="How well drafts match" if in_use else "How well drafts match: no step yet",
        **_timeline(found, is_named=True),
    )


def speed(found: KnownSearch) -> Lines:
    share, texts = found.optimise_share, found.texts
    overall = f": {found.overall[-1]:.2f}x" if texts else ": no finished text yet"
    spent = "" if share is None else f" ({share:.1%} of the time spent on optimising)"
    course = Series("all texts so far", [(one.end, value) for one, value in zip(texts, found.overall, strict=True)])
    return Lines(
        [course, Series("a text", [(one.end, one.speed_up) for one in texts], "dots", 0)],
        "tokens generated, texts one after the other",
        "speed-up over\nplain decoding",
        unit="x",
        baseline=1.0,
        title=f"How fast that is{overall}{spent}",
        **_timeline(found, is_named=False),
    )


def _timeline(found: KnownSearch, is_named: bool) -> dict[str, Any]:
    """It begins at the first token, unless all there is are some steps of a first text."""
    begin = 0.0
    if found.steps and not found.texts:
        first = found.steps[0].num_tokens
        begin = max(0.0, first - max(1.0, 0.05 * (found.num_tokens - first)))
    named = [(first, end, *_PHASES.get(phase, (phase, None))) for first, end, phase in found.phases]
    bands = [Band(name if is_named else "", max(first, begin), end, color) for first, end, name, color in named]
    return {"bands": bands, "x_limits": (begin, max(1, found.num_tokens))}
