"""What a pass is made of: sub-layers one after the other, and what they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F

from .cache import CacheView, KeyValues
from .placement import Placement
from .rotary import Angles

Multiply = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""A stream, a weight, a bias."""


@dataclass(frozen=True)
class Pass:
    """What every sub-layer of one pass shares."""

    placement: Placement
    cache: KeyValues
    find_rotary: Callable[[], Mapping[str | None, Angles]]  # by layer type; None: one for all layers
    block_inputs: dict[int, torch.Tensor] = field(default_factory=dict)
    """What the MLP of a parallel block reads, left there by its attention; one that was skipped changed nothing."""

    multiply: Multiply = F.linear
    compiled: dict[Any, Any] = field(default_factory=dict)
    """What compiled kernels are told of it."""

    _turns: dict[str | None, Angles] = field(default_factory=dict)

    def turns(self, kind: str | None, is_interleaved: bool = False) -> Angles:
        """cos and sign-carrying sin of a layer type as [rows, width, 1, size]; the layers of a model pair alike."""
        if kind not in self._turns:
            cos, (low, high) = self.rotary[kind][0][:, :, None], self.rotary[kind][1][:, :, None].chunk(2, dim=-1)
            if is_interleaved:
                cos = cos.chunk(2, dim=-1)[0].repeat_interleave(2, dim=-1)
                self._turns[kind] = cos, torch.stack((-low, high), dim=-1).flatten(-2)
            else:
                self._turns[kind] = cos, torch.cat((-low, high), dim=-1)
        return self._turns[kind]

    @cached_property
    def rotary(self) -> Mapping[str | None, Angles]:
        return self.find_rotary()

    def look_up(self) -> None:
        """Angles, before any part of the pass is recorded by itself."""
        _ = self.rotary

    @cached_property
    def view(self) -> CacheView:
        return CacheView(self.cache, self.placement)

    def fork(self) -> Pass:
        """The same pass with what it has computed so far: what the fork computes later stays its own."""
        placement = replace(self.placement, _masks=dict(self.placement._masks))
        return replace(
            self,
            placement=placement,
            find_rotary=lambda: self.rotary,
            block_inputs=dict(self.block_inputs),
            compiled={},
            _turns=dict(self._turns),
        )


@dataclass(frozen=True)
class SubLayer:
    """One residual branch: `run(hidden, pass)` returns the stream after it."""

    name: str
    run: Callable[[torch.Tensor, Pass], torch.Tensor]


def up_to_last_keys(sublayers: Sequence[SubLayer]) -> Sequence[SubLayer]:
    """Those that leave keys and values, and what is between them: all that a pass without scores is run for."""
    return sublayers[: max((place for place, part in enumerate(sublayers, 1) if part.name.startswith("a")), default=0)]


@dataclass(frozen=True)
class Halfway:
    """A pass on its way: the stream, what is still to run, and the stream after each point passed so far."""

    hidden: torch.Tensor
    step: Pass
    rest: Sequence[SubLayer]
    streams: Mapping[str, torch.Tensor]
