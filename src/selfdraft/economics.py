"""Economics: what passes cost on one machine after a text of some length (`fit.at(num_context)`), and whether to draft.

Tokens per second and integer weights are KnapSpec's (arXiv:2602.20217), but a verification costs what was measured at
its width, a draft its head, too, plain decoding (a draft of length 0) is one of the choices, and weights may be 3 : 4.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .types import SkipSet

Array = npt.NDArray[np.float64]
MAX_DRAFTED, MAX_WEIGHT, PAPER_MAX_WEIGHT = 12, 8, 5
NEAR = 0.1  # weights may be off their ratio by this share: larger numbers would make larger tables
LENGTH_STEP = 256  # texts whose lengths differ by less are held to be alike
HOPE = 1 / 3  # as often as a match says that was counted after every token, drafts fail that end where they are unsure
USUAL_DRAFTED = 2  # tokens of a draft, before any was made


@dataclass(frozen=True)
class Line:
    """Seconds that grow with the number of slots in front of a pass."""

    per_slot: float
    base: float

    def at(self, num_slots: float) -> float:
        return self.per_slot * num_slots + self.base


@dataclass(frozen=True)
class LatencyFit:
    """The seconds of a pass of one row as they were measured, never negative; models/latency.py makes it."""

    num_layers: int  # of the model
    attention: Line  # one attention sub-layer
    mlp_seconds: float  # one MLP sub-layer
    rest_seconds: float  # embedding, last norm, head, and what a launch costs
    plain: Line  # a pass of plain decoding, its token read back
    widths: tuple[int, ...]  # ascending
    verify: tuple[Line, ...]  # a whole pass of each width
    is_recorded: bool  # passes take the next of `widths`, as the runner pads them
    lengths: tuple[int, ...]  # of the texts in front of the measured passes; of one length alone nothing grows
    rms_error: float  # relative, of what the fit says against what was measured
    max_error: float
    clamped: tuple[str, ...] = ()  # coefficients that would have been negative, beyond rounding, and are 0

    def at(self, num_context: float) -> PassCosts:
        return PassCosts(self, num_context)

    def about(self, num_context: float) -> PassCosts:
        """The same for all texts of about this length."""
        return self.at((num_context // LENGTH_STEP + 0.5) * LENGTH_STEP)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any], num_layers: int) -> LatencyFit:
        """Of a model with `num_layers`, which older profiles lack. LookupError, TypeError, ValueError: damaged."""
        lines = {name: Line(**document[name]) for name in ("attention", "plain")}
        tuples = {name: tuple(document[name]) for name in ("widths", "lengths", "clamped")}
        verify = tuple(Line(**line) for line in document["verify"])
        if not verify or len(verify) != len(tuples["widths"]):
            raise ValueError("its verifications do not fit its widths")
        found = cls(**{**document, **lines, **tuples, "verify": verify, "num_layers": num_layers})
        seconds = [value for line in (*lines.values(), *verify) for value in (line.base, line.per_slot)]
        for value in (*seconds, found.mlp_seconds, found.rest_seconds):
            if type(value) not in (int, float) or not 0 <= value < math.inf:
                raise ValueError("its seconds are not numbers of at least 0")
        return found


@dataclass(frozen=True)
class PassCosts:
    """Seconds of passes after a text of one length."""

    fit: LatencyFit
    num_context: float

    @property
    def attention(self) -> float:
        return self.fit.attention.at(self.num_context)

    @property
    def plain(self) -> float:
        return self.fit.plain.at(self.num_context)

    @property
    def weights(self) -> tuple[int, int]:
        return self.weights_up_to(MAX_WEIGHT)

    def weights_up_to(self, largest: int) -> tuple[int, int]:
        """Of an attention and an MLP sub-layer: the smallest whole numbers that are near their ratio."""
        both = (self.attention, self.fit.mlp_seconds)
        attention, mlp = (max(one, max(both) / largest, 1e-12) for one in both)

        def distance(pair: tuple[int, int]) -> float:
            ratio = pair[0] * mlp / (pair[1] * attention)
            return max(ratio, 1 / ratio, 1 + NEAR)

        numbers = range(1, largest + 1)
        return min(itertools.product(numbers, numbers), key=lambda pair: (distance(pair), sum(pair)))

    @property
    def paper_weights(self) -> tuple[int, int]:
        """As KnapSpec's authors have them: the cheaper weighs 1, the dearer the rounded ratio, at most 5."""
        low, high = sorted((self.attention, self.fit.mlp_seconds))
        ratio = 1 if low == high else PAPER_MAX_WEIGHT if high >= PAPER_MAX_WEIGHT * low else round(high / low)
        return (ratio, 1) if self.attention == high else (1, ratio)

    def draft(self, skip: SkipSet, rows: int = 1) -> float:
        """One drafted token of each row; more rows take as much more as they do in a whole pass."""
        num_attentions, num_mlps = (self.fit.num_layers - len(skipped) for skipped in (skip.attention, skip.mlp))
        one = num_attentions * self.attention + num_mlps * self.fit.mlp_seconds + self.fit.rest_seconds
        return one if rows == 1 else one * self.verify(1, rows) / (self.verify(1) or 1.0)

    def verify(self, width: int, rows: int = 1) -> float:
        """Of the last committed token and `width - 1` drafted ones.

        One row was measured: others count as more columns, and by the slots that their attention reads.
        """
        fit, slots = self.fit, (rows - 1) * self.fit.num_layers * self.num_context
        known = {width: line.at(self.num_context) for width, line in zip(fit.widths, fit.verify, strict=True)}
        return max(0.0, seconds_of_width(known, rows * width, fit.is_recorded)) + fit.attention.per_slot * slots

    def rounds(self, skips: Sequence[SkipSet], max_drafted: int = MAX_DRAFTED, rows: int = 1) -> Array:
        """[skip sets, lengths from 0 on]: seconds of rounds that draft N tokens a row; 0: of a plain pass."""
        drafting = np.array([self.draft(skip, rows) for skip in skips])[:, None] * np.arange(1, max_drafted + 1)
        verifying = np.array([self.verify(length + 1, rows) for length in range(1, max_drafted + 1)])
        plain = self.plain if rows == 1 else self.verify(1, rows)
        return np.hstack((np.full((len(skips), 1), plain), drafting + verifying))

    def hoped(self, skip: SkipSet, matches: Sequence[float] | Array) -> Array:
        """[matches]: tokens per second of usual drafts, before any was seen to fail."""
        acceptances = 1 - HOPE * (1 - np.asarray(matches))
        return np.asarray(speed_table(acceptances, self.rounds([skip], USUAL_DRAFTED))[:, USUAL_DRAFTED])

    def speeds(self, acceptance: float, skip: SkipSet, max_drafted: int = MAX_DRAFTED) -> Array:
        """[lengths from 0 on]: tokens per second of rounds that draft N tokens."""
        return np.asarray(speed_table([acceptance], self.rounds([skip], max_drafted))[0])

    def best_length(self, acceptance: float, skip: SkipSet, max_drafted: int = MAX_DRAFTED) -> tuple[int, float]:
        """How many tokens to draft, 0: none (OFF), and the tokens per second to be expected; the shortest of equals."""
        speeds = self.speeds(acceptance, skip, max_drafted)
        return int(speeds.argmax()), float(speeds.max())


def expected_tokens(acceptances: Sequence[float] | Array, max_drafted: int) -> Array:
    """[acceptances, lengths from 0 on]: of a round that drafts N tokens, the target's own included."""
    alpha = np.asarray(acceptances, dtype=np.float64)[:, None]
    return np.asarray(np.cumsum(alpha ** np.arange(max_drafted + 1), axis=1))


def speed_table(acceptances: Sequence[float] | Array, rounds: Array) -> Array:
    """[skip sets, lengths from 0 on]: tokens per second; `rounds` as `PassCosts.rounds` has them."""
    with np.errstate(divide="ignore"):
        return np.asarray(expected_tokens(acceptances, rounds.shape[1] - 1) / rounds)


def seconds_of_width(known: Mapping[int, float], width: int, is_recorded: bool) -> float:
    """Of a pass: recorded widths are taken up to the next one, others interpolated, or extrapolated beyond the last."""
    widths = sorted(known)
    place = min(bisect.bisect_left(widths, width), len(widths) - 1)
    if len(widths) == 1 or width == widths[place] or (is_recorded and width < widths[place]):
        return known[widths[place]]
    low, high = widths[max(place, 1) - 1], widths[max(place, 1)]
    return known[low] + (known[high] - known[low]) / (high - low) * (width - low)
