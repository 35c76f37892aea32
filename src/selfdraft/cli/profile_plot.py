"""A profile as one picture: what is skipped, what that costs and keeps, what passes cost. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..bench.strips import beside_strip, draw_strips
from ..calibrate.trials import thinned
from ..economics import MAX_DRAFTED, Array, PassCosts, expected_tokens
from ..profiles.contents import KnownSet, KnownSets
from ..types import SkipSet
from .profile_draw import (
    BLUE,
    GREEN,
    GREY,
    LIGHT,
    ORANGE,
    PINK,
    RED,
    SKIPPED,
    page,
    say,
    title_strips,
)

MAX_SETS = 6
VERIFIED = 8
SHORTEST, LONGEST = 64, 16384
"""Tokens in front of a pass, in the panel of seconds."""
SPEED_UPS = (1.0, 1.05, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0)


def picture(learned: KnownSets, title: str, asked: Sequence[SkipSet] = ()) -> bytes:
    """A PNG. Shown are the `asked` sets; none: some of the frontier, what is chosen among them."""
    shown = [learned.find(skip) for skip in asked] or _some(learned)
    strip_inches = 0.95 + 0.46 * max(2, len(shown))

    def draw(figure: Any) -> None:
        strip, below = figure.subfigures(2, 1, height_ratios=[strip_inches, 4.8])
        left, right = below.subfigures(1, 2, width_ratios=[1, 1])
        _draw_strip(strip.subplots(), learned, shown)
        _draw_frontier(left.subplots(), learned, shown)
        seconds, weights = right.subplots(2, 1, sharex=True, height_ratios=[1, 0.075])
        _draw_seconds(seconds, learned)
        _draw_weights(weights, learned)

    return page(12.5, strip_inches + 5.2, title, draw)


def _some(learned: KnownSets) -> list[KnownSet]:
    """Of the frontier, in its order; the one that is nearest to the chosen set makes room for it."""
    places = [place for place, _ in thinned(list(enumerate(learned.frontier)), MAX_SETS)]
    skips = [one.skip for one in learned.frontier]
    if learned.chosen in skips and skips.index(learned.chosen) not in places:
        chosen = skips.index(learned.chosen)
        places[min(range(len(places)), key=lambda index: abs(places[index] - chosen))] = chosen
    return [learned.frontier[place] for place in places]


def _is_chosen(learned: KnownSets, one: KnownSet) -> bool:
    return bool(one.skip) and one.skip == learned.chosen


def _measured_text(one: KnownSet) -> str:
    """A strategy that is free to change its set is named."""
    return f"{'' if one.tried_as == 'fixed' else f'{one.tried_as}: '}measured {one.measured:.2f}x"


def _choice_text(learned: KnownSets) -> str:
    return f"chosen after {learned.costs.num_context} tokens"


# ------------------------------------------------------------------------------------------------ which sub-layers


def _draw_strip(axes: Any, learned: KnownSets, shown: Sequence[KnownSet]) -> None:
    title_strips(axes, "Which sub-layers draft")
    if not shown:
        axes.spines[["left", "bottom"]].set_visible(False)
        say(axes, "no skip sets in this profile yet\nselfdraft calibrate --strategy prune")
        return
    draw_strips(axes, [one.skip for one in shown], learned.costs.fit.num_layers)
    for place, one in enumerate(shown):
        _label_strip(axes, learned, one, place)


def _label_strip(axes: Any, learned: KnownSets, one: KnownSet, place: int) -> None:
    is_chosen = _is_chosen(learned, one)
    counts = f"{len(one.skip.attention)} attention, {len(one.skip.mlp)} MLP skipped"
    beside_strip(axes, place, f"{counts}   ", -0.035, is_chosen)
    _badge(axes, place + 1, -0.022, place, is_chosen, transform=axes.get_yaxis_transform())
    facts = [f"cost {one.cost:.2f}"]
    if one.match is not None:
        facts = [f"match {one.match:.1%}", *facts, f"predicted {one.predicted:.2f}x"]
    if one.measured is not None:
        facts.append(_measured_text(one))
    beside_strip(axes, place, "   ".join(facts) + (f"\n{_choice_text(learned)}" if is_chosen else ""), 1.01, is_chosen)


def _badge(axes: Any, number: int, x: float, y: float, is_chosen: bool, **place: Any) -> None:
    """A number in a circle: the same set in both panels."""
    face = GREEN if is_chosen else "white"
    circle = {"boxstyle": "circle,pad=0.22", "facecolor": face, "edgecolor": GREEN if is_chosen else GREY}
    color = "white" if is_chosen else "black"
    axes.text(x, y, str(number), color=color, fontsize=8, ha="center", va="center", bbox=circle, zorder=6, **place)


# ------------------------------------------------------------------------------------------------ match against cost


def _draw_frontier(axes: Any, learned: KnownSets, shown: Sequence[KnownSet]) -> None:
    axes.set_title("What they keep, and what they cost", loc="left", pad=34)
    axes.set_xlabel("cost of a drafted token (plain pass = 1)")
    axes.set_ylabel("match: share of the target's choices")
    judged = [one for one in (*learned.frontier, *learned.tried, *shown) if one.match is not None]
    _set_limits(axes, judged, [one.cost for one in (*judged, *shown)])
    _draw_speed_ups(axes, learned)
    frontier = learned.frontier
    axes.plot([one.cost for one in frontier], [one.match for one in frontier], ".-", color=BLUE, markersize=4, lw=1.2)
    for number, one in enumerate(shown, start=1):
        height = axes.get_ylim()[0] if one.match is None else one.match
        _badge(axes, number, one.cost, height, _is_chosen(learned, one))
        if one.match is None:
            axes.axvline(one.cost, color=LIGHT, linestyle=":", zorder=1)
    _draw_trials(axes, [one for one in learned.tried if one.match is not None and one.measured is not None])
    if judged and not learned.chosen and learned.frontier:
        text = f"after {learned.costs.num_context} tokens plain decoding is chosen"
        axes.annotate(text, (0.98, 0.07), xycoords="axes fraction", ha="right", color=GREY)


def _set_limits(axes: Any, judged: Sequence[KnownSet], costs: Sequence[float]) -> None:
    lowest, highest = min(costs, default=0.4), max(costs, default=1.0)
    lowest, highest = min(lowest, 0.7), max(highest, 1.0)  # a single set must not be the whole scale
    size = highest - lowest
    labels = [one.cost + 0.33 * size for one in judged if one.measured is not None]  # so far to the right they reach
    axes.set_xlim(max(0.0, lowest - 0.06 * size), max(highest + 0.06 * size, *labels, 0.0))
    low = min((one.match for one in judged if one.match is not None), default=0.5)
    low = min(low, 0.9)
    axes.set_ylim(max(0.0, low - 0.1 * (1 - low) - 0.01), 1.0)
    axes.yaxis.set_major_formatter(lambda value, place: f"{value:.0%}")


def _draw_speed_ups(axes: Any, learned: KnownSets) -> None:
    """Lines of equal predicted speed-up. All that pass through the panel reach its upper edge: named there."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    costs, matches = np.linspace(left, right, 250), np.linspace(low, high, 250)
    speeds = speed_ups(learned.costs, matches, costs)
    edge = speeds[-1][::-1]  # ascending: what costs less is faster
    levels = [level for level in SPEED_UPS if edge[0] < level < edge[-1]]
    axes.contourf(costs, matches, speeds, levels=[-1.0, 1.0], colors=["#F4F4F4"], zorder=0)
    if levels:
        shades = [GREY if level == 1 else LIGHT for level in levels]
        axes.contour(costs, matches, speeds, levels=levels, colors=shades, linewidths=0.9, zorder=1)
    above = axes.secondary_xaxis("top")
    places = {level: float(np.interp(level, edge, costs[::-1])) for level in levels}
    named = _apart(places, 0.05 * float(costs[-1] - costs[0]))
    above.set_xticks([places[level] for level in named], [f"{level:g}x" for level in named], fontsize=8, color=GREY)
    above.tick_params(length=3, color=LIGHT)
    above.spines["top"].set_color(LIGHT)
    text = "lines: predicted speed-up at the best draft length; shaded: slower than plain decoding"
    axes.annotate(text, (0, 1), (0, 20), xycoords="axes fraction", textcoords="offset points", fontsize=8, color=GREY)


def speed_ups(costs: PassCosts, matches: Array, drafting: Array) -> Array:
    """[matches, drafting]: of drafting at the best length; `drafting`: the cost of a token, plain pass = 1."""
    lengths = range(1, MAX_DRAFTED + 1)
    verifying = [costs.verify(length + 1) / costs.plain for length in lengths]
    seconds = drafting[:, None] * np.array(lengths) + np.array(verifying)
    return np.asarray((expected_tokens(matches, MAX_DRAFTED)[:, None, 1:] / seconds).max(-1))


def _apart(places: Mapping[float, float], least: float) -> list[float]:
    """Those that stand at least `least` from the one named before."""
    named: list[float] = []
    for level, place in places.items():
        if not named or abs(places[named[-1]] - place) >= least:
            named.append(level)
    return named


def _draw_trials(axes: Any, trials: Sequence[KnownSet]) -> None:
    """Diamonds, and what was measured to the right of them, one below the other."""
    if not trials:
        return
    axes.plot(
        [one.cost for one in trials], [one.match for one in trials], "D", color=RED, markersize=11, fillstyle="none",
        zorder=5, linestyle="none",
    )  # fmt: skip
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    place = high
    for one in sorted(trials, key=lambda one: -(one.match or 0.0)):
        assert one.match is not None
        place = min(place, one.match) - 0.06 * (high - low)
        axes.annotate(
            _measured_text(one), (one.cost, one.match), (one.cost + 0.07 * (right - left), place),
            fontsize=8.5, color=RED, va="center", zorder=5, arrowprops={"arrowstyle": "-", "color": RED, "lw": 0.7},
        )  # fmt: skip


# ------------------------------------------------------------------------------------------------ seconds by length


def _draw_seconds(axes: Any, learned: KnownSets) -> None:
    fit = learned.costs.fit
    axes.set_title("What passes cost", loc="left", pad=34)
    axes.set_ylabel("milliseconds")
    rows = (
        (f"verification of {VERIFIED}", lambda length: fit.at(length).verify(VERIFIED), PINK),
        ("plain pass", fit.plain.at, "black"),
        ("one attention", fit.attention.at, BLUE),
        ("one MLP", lambda length: fit.mlp_seconds, ORANGE),
    )
    lengths = np.geomspace(SHORTEST, LONGEST, 200)
    measured = np.array(fit.lengths, dtype=np.float64)
    is_measured = (lengths >= measured.min()) & (lengths <= measured.max())
    for name, seconds, color in rows:
        values = np.array([1000 * seconds(length) for length in lengths])
        axes.plot(lengths, values, ":", color=color, lw=1.4)
        axes.plot(lengths[is_measured], values[is_measured], color=color, lw=2, label=name)
        axes.plot(measured, [1000 * seconds(length) for length in measured], "o", color=color, markersize=5)
    axes.axvline(learned.costs.num_context, color=GREEN, lw=1, alpha=0.7, zorder=0)
    near = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "fontsize": 8.5, "va": "top"}
    axes.annotate(f"{learned.costs.num_context} tokens", (learned.costs.num_context, 1), (4, -2), color=GREEN, **near)
    axes.set(xscale="log", yscale="log", xlim=(SHORTEST * 0.9, LONGEST * 1.1))
    axes.grid(axis="y", color=SKIPPED, which="both", lw=0.6)
    axes.set_axisbelow(True)
    axes.margins(y=0.12)
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=4, frameon=False, columnspacing=1.2)
    axes.tick_params(axis="x", which="both", length=0)
    _plain_ticks(axes.yaxis)


def _plain_ticks(axis: Any) -> None:
    """0.2, 3, 40 instead of powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(lambda value, place: f"{value:g}")
    axis.set_minor_formatter(NullFormatter())


def _draw_weights(axes: Any, learned: KnownSets) -> None:
    """Bands of equal weights, attention : MLP."""
    lengths = np.geomspace(SHORTEST, LONGEST, 400)
    weights = [learned.costs.fit.at(length).weights for length in lengths]
    begin = 0
    for place in range(1, len(lengths) + 1):
        if place < len(lengths) and weights[place] == weights[begin]:
            continue
        low, high = lengths[begin], lengths[min(place, len(lengths) - 1)]
        axes.axvspan(low, high, color=BLUE, alpha=0.1 + 0.09 * (weights[begin][0] - 1), lw=0)
        axes.axvline(high, color="white", lw=1.5)
        if place - begin > 22:
            text = "{} : {}".format(*weights[begin])
            axes.text(np.sqrt(low * high), 0.5, text, ha="center", va="center", fontsize=8.5)
        begin = place
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_ylabel("weights\nattn : MLP", rotation=0, ha="right", va="center", fontsize=8)
    ticks = [64 * 4**power for power in range(5)]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("tokens in front of the pass (dots: measured there; weights: as KnapSpec counts)")
