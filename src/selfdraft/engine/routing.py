"""Ties by routing: rounding may choose another expert of a mixture, and from there on scores differ by more than that.

Close scores of a router are no excuse: of many experts in many layers, some pair is close for nearly every token. So
the text is read again in passes of several widths, as plain decoding and verification read it. Two tokens tie if each
is the choice of some reading, or within rounding of it, and a router chooses otherwise in one of these two readings
than in the other; in the first layer where it does, the swapped experts' scores must be within rounding of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
    def of(cls, routers: Iterable[Callable[[torch.Tensor], Any]], streams: Iterable[torch.Tensor]) -> Routing:
        """Of one pass: `streams` [1, tokens, hidden] are what the routers read."""
        routed = [router(stream[0]) for router, stream in zip(routers, streams, strict=True)]
        scores, chosen = (torch.stack([one[part] for one in routed], 1) for part in (0, -1))
        return cls(scores.cpu(), torch.zeros_like(scores, dtype=torch.bool).scatter(2, chosen, True).cpu())

    def up_to(self, last: int) -> Routing:
        return Routing(*(part[max(0, last + 1 - _NUM_TOKENS) : last + 1] for part in self))


class Reading(NamedTuple):
    """What came of reading a text in passes of one width."""

    routing: Routing
    reached: Mapping[int, Sequence[bool]]  # position -> whether each of its two tokens is the choice or within rounding


def reason_for(index: int, readings: Sequence[Reading], layers: Sequence[int]) -> str | None:
    """Why the two tokens of a position tie, in words; None: they do not."""
    pairs = [pair for pair in permutations(readings, 2) if pair[0].reached[index][0] and pair[1].reached[index][1]]
    flips = (flip_between(one.routing.up_to(index), other.routing.up_to(index), layers) for one, other in pairs)
    return next(filter(None, flips), None)


def flip_between(one: Routing, other: Routing, layers: Sequence[int]) -> str | None:
    """Which expert the first layer that chooses otherwise swaps by rounding; None: none does, or by more than that."""
    is_swapped = one.is_chosen != other.is_chosen
    for place, token in is_swapped.any(2).T.nonzero()[:1].tolist():
        swapped = is_swapped[token, place]
        both = [routing.scores[token, place] for routing in (one, other)]
        gaps = [float(scores[swapped].max() - scores[swapped].min()) for scores in both]
        if sum(gaps) / 2 <= TIE_EPS * rounding_of(both[0]):  # there are scores from which both are as far as rounding
            pair = [int((swapped & routing.is_chosen[token, place]).int().argmax()) for routing in (one, other)]
            told = " / ".join(f"{float(both[0][expert]):.4g}" for expert in pair)
            return f"routing: layer {layers[place]} chooses expert {pair[0]} or {pair[1]} (scores {told})"
    return None
