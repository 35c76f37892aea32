"""Two themes, and files made of charts. Needs matplotlib to draw, not to import."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...errors import MissingExtraError

BLUE, ORANGE, GREEN, PINK, SKY, RED, YELLOW = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442",
)  # fmt: skip
"""Okabe and Ito's, which colour-blind readers can tell apart."""
MARKERS = "osD^vPX*"
_DPI = 150


@dataclass(frozen=True)
class Theme:
    """Colours on one ground. `roles`: by what a bar says; `stack`: parts of a whole."""

    name: str
    ground: str
    ink: str
    soft: str  # secondary text
    grid: str
    band: str
    skipped: str
    roles: Mapping[str, str]
    series: Sequence[str]
    stack: Sequence[str]

    def style(self, place: int) -> tuple[str, str]:
        """Colour and marker of a series; where colours run out, they come again with other markers."""
        num_colors = len(self.series)
        return self.series[place % num_colors], MARKERS[(place + place // num_colors) % len(MARKERS)]


LIGHT = Theme(
    "light", ground="#FFFFFF", ink="#1B1F24", soft="#57606A", grid="#DDE1E6", band="#F4F6F8", skipped="#ECEFF2",
    roles={"faster": BLUE, "unsure": "#A9CDE6", "slower": ORANGE, "peer": "#8C959F"},
    series=(BLUE, RED, GREEN, PINK, ORANGE, SKY),
    stack=(ORANGE, BLUE, GREEN, "#C3C9CF"),
)  # fmt: skip
DARK = Theme(
    "dark", ground="#14181D", ink="#E8EBEE", soft="#A3ACB5", grid="#30363D", band="#1C2128", skipped="#262C33",
    roles={"faster": SKY, "unsure": "#2C5A7A", "slower": ORANGE, "peer": "#7D8790"},
    series=(SKY, RED, GREEN, PINK, YELLOW, "#FFFFFF"),
    stack=(ORANGE, SKY, GREEN, "#59626B"),
)  # fmt: skip


class Draw(Protocol):
    """Draws onto an empty figure."""

    def __call__(self, figure: Any, theme: Theme = LIGHT) -> None: ...


@dataclass(frozen=True)
class Chart:
    """A drawing and the words around it."""

    title: str
    text: str  # how to read it
    alt: str  # what is in it, for who cannot see it
    size: tuple[float, float]  # inches
    draw: Draw
    left_out: str = ""  # which methods, and why


@dataclass(frozen=True)
class Missing:
    """Nothing to draw, and why."""

    title: str
    why: str


def require_matplotlib(what: str, instead: str) -> None:
    """Refuse, before any work, when nothing can draw."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError(f"drawing {what} needs matplotlib. Install with: pip install matplotlib. Or {instead}")


def render(draw: Draw, size: tuple[float, float], *, theme: Theme = LIGHT, form: str = "png", title: str = "") -> bytes:
    """`size`: inches; `form`: svg or png. The same drawing gives the same bytes."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    buffer = io.BytesIO()
    with rc_context(_style(theme)):
        figure = Figure(figsize=size, layout="constrained")
        if title:
            figure.suptitle(title, fontsize=9, color=theme.soft)
        draw(figure, theme)
        metadata = {"Date": None} if form == "svg" else {"Software": None}
        figure.savefig(buffer, format=form, dpi=_DPI, metadata=metadata)
    return buffer.getvalue()


def _style(theme: Theme) -> dict[str, Any]:
    inks = dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), theme.ink)
    lines = dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color", "grid.color"), theme.grid)
    grounds = dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), theme.ground)
    legend = {"legend.frameon": False, "legend.borderaxespad": 0.4}
    text = {"font.size": 9.5, "font.family": "DejaVu Sans", "svg.hashsalt": "selfdraft", "svg.fonttype": "path"}
    return {**inks, **lines, **grounds, **legend, **text, "hatch.color": theme.ground}


def short(name: str, most: int = 38) -> str:
    """As a label."""
    return name if len(name) <= most else name[: most - 1] + "…"


def two_lines(name: str) -> str:
    """What stands in brackets goes below: there is little room side by side."""
    return name.replace(" (", "\n(")


def ink_on(color: str) -> str:
    """Black or white, whichever is easier to read on it."""
    from matplotlib.colors import to_rgb

    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(color)]
    luminance = sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True))
    return "black" if luminance > 0.179 else "white"
