"""`swift` as one picture: its sets, how well they matched, and what that was good for. Needs matplotlib."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from ..bench.strips import beside_strip, draw_strips
from ..strategies.timeline import KnownSearch
from ..types import SkipSet
from .profile_draw import (
    BLUE,
    GREEN,
    GREY,
    LIGHT,
    ORANGE,
    RED,
    SKIPPED,
    page,
    say,
    title_strips,
)

MAX_STRIPS = 8
_SHADES = {"optimise": (ORANGE, 0.13), "accelerate": (GREEN, 0.12)}
_DOING = {"optimise": "optimising", "accelerate": "accelerating"}
_OTHER = (LIGHT, 0.2)


def picture(found: KnownSearch, num_layers: int, title: str) -> bytes:
    """A PNG."""
    rows = strips(found)
    strip_inches = 0.95 + 0.46 * max(2, len(rows))

    def draw(figure: Any) -> None:
        strip, below = figure.subfigures(2, 1, height_ratios=[strip_inches, 6.2])
        _draw_strips(strip.subplots(), found, rows, num_layers)
        matchness, speed = below.subplots(2, 1, sharex=True, height_ratios=[1.25, 1])
        _draw_matchness(matchness, found)
        _draw_speed(speed, found)
        speed.set_xlabel("tokens generated, texts one after the other")
        speed.xaxis.get_major_locator().set_params(integer=True)
        speed.set_xlim(_first_token(found), max(1, found.num_tokens))

    return page(12.5, strip_inches + 6.6, title, draw)


def strips(found: KnownSearch) -> list[tuple[int, SkipSet]]:
    """(step, set in use there): those kept, and the set of now."""
    kept = {step: skip for step, skip in found.snapshots.items() if step < found.step}
    return [*list(kept.items())[: MAX_STRIPS - 1], (found.step, found.skip)]


def _draw_strips(axes: Any, found: KnownSearch, rows: list[tuple[int, SkipSet]], num_layers: int) -> None:
    title_strips(axes, "Which sub-layers draft, as the search goes on")
    draw_strips(axes, [skip for _, skip in rows], num_layers)
    for place, (step, skip) in enumerate(rows):
        is_last = step == found.step
        beside_strip(axes, place, f"step {step}{' (now)' if is_last else ''}", -0.02, is_last)
        facts = [f"{len(skip.attention)} attention, {len(skip.mlp)} MLP skipped"]
        matchness = found.matchness if is_last else matchness_at(found, step)
        if matchness is not None:
            facts.append(f"matchness {matchness:.0%}")
        beside_strip(axes, place, "   ".join(facts), 1.01, is_last)


# ------------------------------------------------------------------------------------------------ matchness


def _draw_matchness(axes: Any, found: KnownSearch) -> None:
    axes.set_title("How well drafts match", loc="left", pad=26)
    axes.set_ylabel("matchness: share of the\ntarget's choices in the window")
    axes.yaxis.set_major_formatter(lambda value, place: f"{value:.0%}")
    axes.tick_params(axis="x", length=0)
    points = in_use(found)
    if not points:
        say(axes, "no step yet")
        return
    size = min(28.0, max(7.0, 4000 / max(1, len(found.steps))))
    tokens, scores = [one.num_tokens for one in found.steps], [one.matchness for one in found.steps]
    dots = {"s": size, "color": BLUE, "alpha": 0.35, "linewidths": 0, "clip_on": False}
    axes.scatter(tokens, scores, label="candidate of a step", zorder=2, **dots)
    points = [*points, (found.num_tokens, points[-1][1])]
    line = {"color": BLUE, "lw": 2, "drawstyle": "steps-post"}
    axes.plot([at for at, _ in points], [value for _, value in points], label="set in use", zorder=3, **line)
    values = [*scores, *(value for _, value in points)]
    edge = 0.2 * max(0.05, max(values) - min(values))
    axes.set_ylim(max(-0.03, min(values) - edge), min(1.0, max(values) + edge))
    unnamed = _shade(axes, found, is_named=True)
    _draw_ratios(axes, found)
    _add_legend(axes, unnamed, height=1.08)  # the names of phases stand below it


def _first_token(found: KnownSearch) -> float:
    """Where the timeline begins: at the first token, unless all there is are some steps of a first text."""
    if found.texts or not found.steps:
        return 0.0
    first = found.steps[0].num_tokens
    return max(0.0, first - max(1.0, 0.05 * (found.num_tokens - first)))


def _shade(axes: Any, found: KnownSearch, is_named: bool) -> list[str]:
    """What is wide enough is named above the panel. Phases that are nowhere named."""
    width = found.num_tokens - _first_token(found)
    named = set()
    for first, end, phase in phases(found):
        begin = max(first, _first_token(found))
        color, alpha = _SHADES.get(phase, _OTHER)
        axes.axvspan(begin, end, color=color, alpha=alpha, lw=0, zorder=0)
        if is_named and end - begin > 0.1 * width:
            near = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
            axes.annotate(_DOING.get(phase, phase), (begin, 1), (2, 5), color=GREY, fontsize=8.5, **near)
            named.add(phase)
    return sorted({phase for *_, phase in phases(found)} - named)


def _add_legend(axes: Any, phases: Sequence[str] = (), height: float = 1.0) -> None:
    from matplotlib.patches import Patch

    handles, _ = axes.get_legend_handles_labels()
    for phase in phases:
        color, alpha = _SHADES.get(phase, _OTHER)
        handles.append(Patch(facecolor=color, alpha=2 * alpha, label=_DOING.get(phase, phase)))
    place = {"loc": "lower right", "bbox_to_anchor": (1, height), "ncols": len(handles), "borderaxespad": 0.2}
    axes.legend(handles=handles, frameon=False, **place)


def _draw_ratios(axes: Any, found: KnownSearch) -> None:
    """Where the share of skipped sub-layers changed; names one above the other where they would touch."""
    width = found.num_tokens - _first_token(found)
    before, height = -width, 0
    for (_, old), (tokens, new) in itertools.pairwise(ratios(found)):
        axes.axvline(tokens, color=RED, lw=1, linestyle=":", zorder=1)
        height = (height + 1) % 5 if tokens - before < 0.16 * width else 0
        is_late = tokens > found.num_tokens - 0.16 * width
        near = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "fontsize": 8.5, "color": RED}
        near |= {"ha": "right" if is_late else "left", "zorder": 5}
        axes.annotate(f"ratio {old:g} to {new:g}", (tokens, 0), (-4 if is_late else 4, 5 + 13 * height), **near)
        before = tokens


# ------------------------------------------------------------------------------------------------ along the tokens


def in_use(found: KnownSearch) -> list[tuple[int, float]]:
    """Tokens generated, and how well the set in use matches from there on: after steps and after texts."""
    changed = [(step.num_tokens, step.best) for step in found.steps if step.best is not None]
    told = [(text.end, text.matchness) for text in found.texts if text.matchness is not None]
    return sorted([*changed, *told], key=lambda point: point[0])


def matchness_at(found: KnownSearch, step: int) -> float | None:
    """Of the set in use after `step` steps."""
    known = [one.best for one in found.steps if one.step <= step]
    return known[-1] if known else None


def ratios(found: KnownSearch) -> list[tuple[int, float]]:
    """Tokens generated, and the ratio from there on: at the beginning and where it changed."""
    told = [(one.num_tokens, one.ratio) for one in found.steps] + [(text.end, text.ratio) for text in found.texts]
    told = sorted([*told, (found.num_tokens, found.ratio)], key=lambda point: point[0])
    return [point for place, point in enumerate(told) if not place or told[place - 1][1] != point[1]]


def phases(found: KnownSearch) -> list[tuple[int, int, str]]:
    """(first token, last token, phase), neighbours of one phase as one."""
    merged: list[tuple[int, int, str]] = []
    for begin, end, phase in _phases(found):
        if merged and merged[-1][2] == phase:
            begin = merged.pop()[0]
        if end > begin:
            merged.append((begin, end, phase))
    return merged


def _phases(found: KnownSearch) -> Iterator[tuple[int, int, str]]:
    """A text is told to be in the phase it ended in; its steps tell where the phase began or ended."""
    before = "optimise"
    for text in found.texts:
        steps = [one.num_tokens for one in found.steps if text.begin <= one.num_tokens <= text.end]
        if text.phase == "optimise":
            change = min(steps, default=text.begin) if before != "optimise" else text.begin
            yield text.begin, change, before
        else:
            change = max(steps, default=text.begin) if before == "optimise" else text.begin
            yield text.begin, change, "optimise"
        yield change, text.end, text.phase
        before = text.phase
    last = found.texts[-1].end if found.texts else 0
    yield last, found.num_tokens, found.phase


# ------------------------------------------------------------------------------------------------ speed-ups


def _draw_speed(axes: Any, found: KnownSearch) -> None:
    share = found.optimise_share
    spent = "" if share is None else f" ({share:.1%} of the time spent on optimising)"
    axes.set_title(f"How fast that is{spent}", loc="left", pad=24)
    axes.set_ylabel("speed-up over\nplain decoding")
    axes.yaxis.set_major_formatter(lambda value, place: f"{value:g}x")
    _shade(axes, found, is_named=False)
    axes.axhline(1, color=GREY, lw=1, linestyle="--", zorder=1, label="plain decoding")
    if not found.texts:
        axes.set_ylim(0.5, 1.5)
        axes.annotate("no finished text yet", (0.5, 0.62), xycoords="axes fraction", ha="center", color=GREY)
        return
    ends, speeds, overall = [text.end for text in found.texts], [text.speed_up for text in found.texts], found.overall
    dots = {"s": 18, "color": BLUE, "alpha": 0.45, "linewidths": 0, "clip_on": False}
    axes.scatter(ends, speeds, label="a text", zorder=2, **dots)
    axes.plot(ends, overall, color=BLUE, lw=2, label="all texts so far", zorder=3)
    axes.annotate(
        f"{overall[-1]:.2f}x", (1, overall[-1]), (7, 0), xycoords=("axes fraction", "data"), va="center", color=BLUE,
        textcoords="offset points", fontweight="bold", annotation_clip=False,
    )  # fmt: skip
    values = [1.0, *speeds]
    edge = 0.12 * max(0.2, max(values) - min(values))
    axes.set_ylim(max(0.0, min(values) - edge), max(values) + edge)
    axes.grid(axis="y", color=SKIPPED, lw=0.6)
    axes.set_axisbelow(True)
    _add_legend(axes)
