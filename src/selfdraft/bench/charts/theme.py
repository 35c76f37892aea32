"""Two themes: colours on a light and on a dark ground; and names as labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

BLUE, ORANGE, GREEN, PINK, SKY, RED, YELLOW = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442",
)  # fmt: skip
"""Okabe and Ito's, which colour-blind readers can tell apart."""
MARKERS = "osD^vPX*"


@dataclass(frozen=True)
class Theme:
    """Colours on one ground. `roles`: by what a bar says; `stack`: parts of a whole."""

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
    ground="#FFFFFF", ink="#1B1F24", soft="#57606A", grid="#DDE1E6", band="#F4F6F8", skipped="#ECEFF2",
    roles={"faster": BLUE, "inconclusive": "#A9CDE6", "slower": ORANGE, "peer": "#8C959F"},
    series=(BLUE, RED, GREEN, PINK, ORANGE, SKY),
    stack=(ORANGE, BLUE, GREEN, "#C3C9CF"),
)  # fmt: skip
DARK = Theme(
    ground="#14181D", ink="#E8EBEE", soft="#A3ACB5", grid="#30363D", band="#1C2128", skipped="#262C33",
    roles={"faster": SKY, "inconclusive": "#2C5A7A", "slower": ORANGE, "peer": "#7D8790"},
    series=(SKY, RED, GREEN, PINK, YELLOW, "#FFFFFF"),
    stack=(ORANGE, SKY, GREEN, "#59626B"),
)  # fmt: skip


def short(name: str, most: int = 38) -> str:
    """As a label."""
    return name if len(name) <= most else name[: most - 1] + "…"
