"""Ties by routing: rounding may choose another expert of a mixture, and from there on scores differ by more than that.

Close scores of a router are no excuse: of many experts in many layers, some pair is close for nearly every token. So
the text is read again in passes of several widths, as plain decoding and verification read it. Two tokens tie if each
is the choice of some reading, or within rounding of it, and a router chooses otherwise in one of these two readings
than in the other; in the first layer where it does, the swapped experts' scores must be within rounding of each other,
and what it chose must reach the position.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import permutations
from typing import Any, NamedTuple

import torch

from .metrics import TIE_EPS, rounding_of

_NUM_TOKENS = 16
"""Up to a position, whose routing is compared: what other experts said of one of them is in the keys and values."""


class Routing(NamedTuple):
    """Of the tokens of a text, in the layers that have experts."""

    scores: torch.Tensor  # [tokens, layers, experts]
    is_chosen: torch.Tensor  # the same

    @classmethod
    @torch.inference_mode()
    def of(cls, routers: Mapping[str, Callable[[torch.Tensor], Any]], captured: Mapping[str, torch.Tensor]) -> Routing:
        """Of one pass that captured what the routers read."""
        routed = [router(captured[point][0]) for point, router in routers.items()]
        scores, chosen = (torch.stack([one[part] for one in routed], 1) for part in (0, -1))
        return cls(scores.cpu(), torch.zeros_like(scores, dtype=torch.bool).scatter(2, chosen, True).cpu())

    def noted(self, first: int, positions: Collection[int]) -> dict[int, Routing]:
        """By position, of those that are asked for; `first`: the position of the first token here."""
        inside = [index for index in range(first, first + len(self.scores)) if index in positions]
        return {index: Routing(*(part[index - first] for part in self)) for index in inside}


class Reading(NamedTuple):
    """What came of reading a text in passes of one width."""

    routing: Mapping[int, Routing]  # by position: [layers, experts]
    reached: Mapping[int, Sequence[bool]]  # position -> whether each of its two tokens is the choice or within rounding


def positions_before(rivals: Collection[int]) -> set[int]:
    """Whose routing matters for these positions."""
    return {index for last in rivals for index in range(max(0, last + 1 - _NUM_TOKENS), last + 1)}


def _up_to(reading: Reading, last: int) -> Routing:
    tokens = [reading.routing[index] for index in sorted(positions_before([last]))]
    return Routing(*map(torch.stack, zip(*tokens, strict=True)))


def reason_for(index: int, readings: Sequence[Reading], points: Sequence[str]) -> str | None:
    """Why the two tokens of a position tie, in words; None: they do not. `points`: of the layers, see `Routing`."""
    pairs = [pair for pair in permutations(readings, 2) if pair[0].reached[index][0] and pair[1].reached[index][1]]
    flips = (flip_between(_up_to(one, index), _up_to(other, index), points) for one, other in pairs)
    return next(filter(None, flips), None)


def flip_between(one: Routing, other: Routing, points: Sequence[str]) -> str | None:
    """What the first layer that chooses otherwise swaps by rounding; None: none does, or it is more than rounding."""
    flips = (one.is_chosen != other.is_chosen).any(2).T.nonzero().tolist()  # layer and token
    if not flips or not _reaches(one, other, flips[0][0]):
        return None
    swaps = [_swap(one, other, token, place) for place, token in flips if place == flips[0][0]]
    return f"routing: layer {points[flips[0][0]][1:]} chooses {swaps[0]}" if all(swaps) else None


def _reaches(one: Routing, other: Routing, place: int) -> bool:
    """Whether the last token chooses otherwise there, or a later layer's router reads of it what is not the same."""
    if bool((one.is_chosen[-1, place] != other.is_chosen[-1, place]).any()):
        return True
    later = zip(one.scores[-1, place + 1 :], other.scores[-1, place + 1 :], strict=True)
    return any(float((mine - yours).abs().max()) > TIE_EPS * rounding_of(mine) for mine, yours in later)


def _swap(one: Routing, other: Routing, token: int, place: int) -> str | None:
    """The experts of a token that are swapped, if some scores are as far as rounding from those of both readings."""
    scores = [routing.scores[token, place] for routing in (one, other)]
    chosen = [routing.is_chosen[token, place] for routing in (one, other)]
    swapped = chosen[0] != chosen[1]
    gaps = [float(those[swapped].max() - those[swapped].min()) for those in scores]
    if sum(gaps) / 2 > TIE_EPS * rounding_of(scores[0]):
        return None
    first, second = (int((those & swapped).int().argmax()) for those in chosen)
    return f"expert {first} or {second} (scores {float(scores[0][first]):.4g} / {float(scores[0][second]):.4g})"
