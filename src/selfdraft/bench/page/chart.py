"""What charts have in common: two themes, the figure, and files made of it. Needs matplotlib to draw."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..plot import COLORS
from ..strips import StripColors

BLUE, ORANGE, GREEN, PINK, SKY, RED, YELLOW = COLORS[:7]
MARKERS = "osD^vP"
_DPI = 150


@dataclass(frozen=True)
class Theme:
    """Colours that readers with any colour vision can tell apart, on this ground."""

    name: str
    ground: str
    ink: str
    soft: str  # second-rate text
    grid: str
    band: str
    faster: str
    unsure: str
    slower: str
    peer: str
    series: tuple[str, ...]
    parts: Mapping[str, str]  # of decoding
    strips: StripColors


LIGHT = Theme(
    name="light",
    ground="#FFFFFF",
    ink="#1B1F24",
    soft="#57606A",
    grid="#DDE1E6",
    band="#F4F6F8",
    faster=BLUE,
    unsure="#A9CDE6",
    slower=ORANGE,
    peer="#8C959F",
    series=(BLUE, RED, GREEN, PINK, ORANGE, SKY),
    parts={"optimise": ORANGE, "draft": BLUE, "verify": GREEN, "other": "#C3C9CF"},
    strips=StripColors(BLUE, ORANGE, "#ECEFF2", "#C3C9CF"),
)
DARK = Theme(
    name="dark",
    ground="#14181D",
    ink="#E8EBEE",
    soft="#A3ACB5",
    grid="#30363D",
    band="#1C2128",
    faster=SKY,
    unsure="#2C5A7A",
    slower=ORANGE,
    peer="#7D8790",
    series=(SKY, RED, GREEN, PINK, YELLOW, "#FFFFFF"),
    parts={"optimise": ORANGE, "draft": SKY, "verify": GREEN, "other": "#59626B"},
    strips=StripColors(SKY, ORANGE, "#262C33", "#3A424B"),
)
THEMES = (LIGHT, DARK)


@dataclass(frozen=True)
class Chart:
    title: str
    text: str  # how to read it
    alt: str  # what is in it, for who cannot see it
    size: tuple[float, float]  # inches
    draw: Callable[[Any, Theme], None]  # (figure, theme)
    left_out: str = ""  # which ways, and why


@dataclass(frozen=True)
class Missing:
    """Nothing to draw, and why."""

    title: str
    why: str


def render(chart: Chart, theme: Theme, form: str) -> bytes:
    """`form`: svg or png. The same chart gives the same bytes."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    buffer = io.BytesIO()
    with rc_context(_style(theme)):
        figure = Figure(figsize=chart.size, layout="constrained")
        chart.draw(figure, theme)
        metadata = {"Date": None} if form == "svg" else {"Software": None}
        figure.savefig(buffer, format=form, dpi=_DPI, metadata=metadata)
    return buffer.getvalue()


def _style(theme: Theme) -> dict[str, Any]:
    inks = dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), theme.ink)
    lines = dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color", "grid.color"), theme.grid)
    grounds = dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), theme.ground)
    return {
        **inks,
        **lines,
        **grounds,
        "font.size": 9.5,
        "font.family": "DejaVu Sans",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "legend.frameon": False,
        "hatch.color": theme.ground,
        "svg.hashsalt": "selfdraft",
        "svg.fonttype": "path",
    }


def short(name: str, most: int = 38) -> str:
    """As a label."""
    return name if len(name) <= most else name[: most - 1] + "…"
