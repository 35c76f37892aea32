"""`knn` as one picture: where its anchors lie, and what is skipped in which domain. Needs matplotlib."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..bench.plot import COLORS
from ..bench.strips import beside_strip, draw_strips
from ..economics import Array
from ..profiles.searches import KnownDomain, KnownDomains
from .profile_draw import GREY, page, title_strips

MARKERS = "osD^vPX*"
_MIN_ROWS = 6
"""For so many domains there is room in any case: the panel of anchors must not be flat."""
_AWAY = (0.0, 14.0, 28.0, 44.0, 64.0, 90.0, 120.0)
"""Points of distance between a cloud and its name, the nearest that is free first."""
_WORTH_A_POINT = 40.0
"""A name goes so many pixels further away to cover one point less."""
_DIRECTIONS = ((0, 1), (0, -1), (1, 0), (-1, 0), (0.7, 0.7), (-0.7, 0.7), (0.7, -0.7), (-0.7, -0.7))


class Cloud(NamedTuple):
    """Vectors [vectors, hidden] and the domain of each [vectors]."""

    vectors: Array
    domains: Array

    def of(self, domain: int) -> Array:
        found: Array = self.vectors[self.domains == domain]
        return found


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


def picture(found: KnownDomains, clouds: tuple[Cloud, Cloud], num_layers: int, title: str) -> bytes:
    """A PNG. `clouds`: anchors and samples."""
    height = 1.5 + 0.58 * max(_MIN_ROWS, len(found.rows))

    def draw(figure: Any) -> None:
        left, right = figure.subfigures(1, 2, width_ratios=[5.6, 8.9])
        num_rows = len(found.rows)
        strip, rest = right.subplots(2, 1, height_ratios=[num_rows, max(0.01, _MIN_ROWS - num_rows)])
        rest.set_axis_off()
        _draw_strips(strip, found, num_layers)
        axes = left.subplots()
        anchors, samples, shares = projected(*clouds)
        _draw_clouds(axes, anchors, samples, len(found.domains), shares)
        figure.draw_without_rendering()  # names are placed where the panel will be
        figure.set_layout_engine("none")
        _name_clouds(axes, [one.name for one in found.domains], anchors, samples)

    return page(14.5, height, title, draw)


def style_of(domain: int) -> tuple[str, str]:
    """Colour and marker; beyond eight domains the same colours come with other markers."""
    return COLORS[domain % len(COLORS)], MARKERS[(domain + domain // len(COLORS)) % len(MARKERS)]


# ------------------------------------------------------------------------------------------------ the anchors


def projected(anchors: Cloud, samples: Cloud) -> tuple[Cloud, Cloud, tuple[float, float]]:
    """Both in the plane in which their directions differ most, and the share of their variance along its two axes."""
    directions = _normalised(np.concatenate([anchors.vectors, samples.vectors]))
    centred = directions - directions.mean(0)
    _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    plane = np.zeros((len(centred), 2))
    plane[:, : min(2, len(axes))] = centred @ axes[:2].T
    shares = np.append(sizes**2, [0.0, 0.0])[:2] / max(float((sizes**2).sum()), 1e-12)
    num_anchors = len(anchors.vectors)
    parts = Cloud(plane[:num_anchors], anchors.domains), Cloud(plane[num_anchors:], samples.domains)
    return *parts, (float(shares[0]), float(shares[1]))


def _normalised(vectors: Array) -> Array:
    scaled: Array = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    return scaled


def _draw_clouds(axes: Any, anchors: Cloud, samples: Cloud, num_domains: int, shares: Sequence[float]) -> None:
    axes.set_title("Which prompts are alike", loc="left", pad=20)
    text = "pale: prompts; outlined: anchors, which new prompts are compared with"
    axes.annotate(text, (0, 1), (0, 6), xycoords="axes fraction", textcoords="offset points", fontsize=8, color=GREY)
    for domain in range(num_domains):
        color, marker = style_of(domain)
        axes.scatter(*samples.of(domain).T, s=14, color=color, marker=marker, alpha=0.3, linewidths=0)
        style = {"color": color, "marker": marker, "edgecolors": _outline(color), "linewidths": 0.9}
        axes.scatter(*anchors.of(domain).T, s=90 if marker == "*" else 52, zorder=3, **style)
    axes.set_xlabel(f"first principal component ({shares[0]:.0%} of the variance)")
    axes.set_ylabel(f"second ({shares[1]:.0%})")
    axes.tick_params(labelsize=8)
    axes.margins(0.14)


def _outline(color: str) -> str:
    return "#B0B0B0" if color == "#000000" else "black"


def _name_clouds(axes: Any, names: Sequence[str], anchors: Cloud, samples: Cloud) -> None:
    """Near each cloud's centre, not upon another name and upon as few points as may be."""
    axes.autoscale(False)
    pixels = axes.transData
    points = pixels.transform(np.concatenate([*[anchors.vectors] * 4, samples.vectors]))  # an anchor weighs more
    taken: list[tuple[Array, Array]] = []
    for domain, name in enumerate(names):
        own = pixels.transform(np.concatenate([anchors.of(domain), samples.of(domain)]))
        if not len(own):
            continue
        color, _ = style_of(domain)
        box = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": color, "alpha": 0.9, "lw": 1.2}
        text = axes.text(0, 0, name, fontweight="bold", ha="center", va="center", zorder=6, bbox=box)
        size = text.get_window_extent().size + 14.0
        middle = np.median(own, 0)
        places = list(_places(middle, own, size, axes.get_window_extent(), axes.figure.dpi / 72))
        free = [place for place in places if not any(_overlap(place, size, *other) for other in taken)] or places
        far = [float(np.linalg.norm(place - middle)) / _WORTH_A_POINT for place in free]
        costs = [_num_covered(place, size, points) + away for place, away in zip(free, far, strict=True)]
        best = free[int(np.argmin(costs))]
        taken.append((best, size))
        ends = pixels.inverted().transform([middle, best])
        text.set_position(ends[1])
        axes.plot(*ends.T, color=color, lw=0.8, zorder=2)


def _places(middle: Array, own: Array, size: Array, inside: Any, scale: float) -> Iterator[Array]:
    """Where a name may stand, in pixels, the best first: beside its cloud, further and further away."""
    spread = np.quantile(np.abs(own - middle), 0.85, axis=0)
    low, high = inside.min + size / 2, inside.max - size / 2
    for away, direction in itertools.product(_AWAY, _DIRECTIONS):
        place = middle + np.array(direction) * (spread + size / 2 + away * scale)
        if (place >= low).all() and (place <= high).all():
            yield place
    yield np.clip(middle, low, np.maximum(low, high))


def _overlap(place: Array, size: Array, other: Array, other_size: Array) -> bool:
    return bool((np.abs(place - other) < (size + other_size) / 2).all())


def _num_covered(place: Array, size: Array, points: Array) -> int:
    return int((np.abs(points - place) < size / 2).all(-1).sum())


# ------------------------------------------------------------------------------------------------ the sets


def _draw_strips(axes: Any, found: KnownDomains, num_layers: int) -> None:
    title_strips(axes, "Which sub-layers draft, by domain")
    skips = [one.found.skip if one.found and one.found.skip else None for one in found.rows]
    draw_strips(axes, skips, num_layers, max_ticks=16)
    for place, one in enumerate(found.rows):
        _label_strip(axes, place, one, None if one is found.general else place, num_layers)
    by_length = any(one.found and one.found.match is not None for one in found.rows)
    where = f", chosen for {found.num_context} tokens of text" if by_length else ""
    axes.set_xlabel(f"layer (sets by {found.search}{where})")


def _label_strip(axes: Any, place: int, one: KnownDomain, domain: int | None, num_layers: int) -> None:
    across = axes.get_yaxis_transform()
    beside_strip(axes, place - 0.17, one.name, -0.06, is_bold=True)
    if domain is None:
        beside_strip(axes, place + 0.2, "for strangers", -0.06, fontsize=8, color=GREY)
    else:
        color, marker = style_of(domain)
        style = {
            "color": color,
            "marker": marker,
            "markeredgecolor": _outline(color),
            "markersize": 10 if marker == "*" else 7.5,
        }
        axes.plot([-0.032], [place], transform=across, clip_on=False, linestyle="none", markeredgewidth=0.8, **style)
        beside_strip(axes, place + 0.2, f"{one.num_vectors} vectors", -0.06, fontsize=8, color=GREY)
    if one.found is None or not one.found.skip:
        text = "plain decoding was fastest" if one.is_searched else "not searched yet"
        middle = (num_layers - 1) / 2
        beside_strip(axes, place, text, middle, ha="center", color=GREY, xycoords="data")
        return
    beside_strip(axes, place, "\n".join(_facts(one)), 1.015)


def _facts(one: KnownDomain) -> Iterator[str]:
    found = one.found
    assert found is not None
    if one.is_outdone:
        yield "decodes plainly; best set:"
    yield f"{len(found.skip.attention)} attention, {len(found.skip.mlp)} MLP skipped"
    told = {"match": found.match, "predicted": found.predicted, "measured": found.measured}
    facts = [
        f"{name} {value:.1%}" if name == "match" else f"{name} {value:.2f}x"
        for name, value in told.items()
        if value is not None
    ]
    yield "   ".join(facts)
