"""A model's rotary module: its answers for one pass, and tables of all positions.

Two rope types change their frequencies with the longest position of a pass: `longrope` after its original length,
`dynamic` after the context length. Keys written before keep the old ones, so that a token's scores depend on where
passes begin and end. Up to that length they are constant: texts end there, and angles are read from a table, which
nothing else in a pass can change.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import Any

import torch

from ..kernels.features import Rotary

MAX_POSITIONS = 1 << 17
"""Where a model does not say how long its context is."""

Angles = tuple[torch.Tensor, torch.Tensor]  # cos and sin


def constant_length(module: Any) -> int | None:
    """How many positions have frequencies that no pass changes; None: all."""
    kinds = getattr(module, "rope_type", "default")
    if not isinstance(kinds, dict):
        return _constant_length(module, kinds, None)
    lengths = [_constant_length(module, kind, layer_type) for layer_type, kind in kinds.items()]
    return min((length for length in lengths if length is not None), default=None)


def _constant_length(module: Any, kind: str, layer_type: str | None) -> int | None:
    if "dynamic" in kind:
        return int(module.original_max_seq_len)
    if kind != "longrope":
        return None
    parameters = module.config.rope_parameters
    return int((parameters if layer_type is None else parameters[layer_type])["original_max_position_embeddings"])


class Rotaries:
    """By layer type where the module is asked with one; by None: one for all layers. `like`: the embedding."""

    def __init__(self, module: Any, layer_types: Collection[str], like: torch.Tensor) -> None:
        self._module, self._layer_types, self._like = module, layer_types, like
        self._tables: dict[tuple[int, str | None], Angles] = {}
        self.constant_length = constant_length(module)
        self._constant = {} if self.constant_length is None else self._first(self.constant_length)

    def of(self, hidden: torch.Tensor, positions: torch.Tensor) -> dict[str | None, Angles]:
        if self.constant_length is None:
            return self._asked(hidden, positions)
        places = positions.clamp(max=self.constant_length - 1)  # padding may stand after the last
        return {kind: (cos[0, places], sin[0, places]) for kind, (cos, sin) in self._constant.items()}

    def _first(self, num_positions: int) -> dict[str | None, Angles]:
        """A longer text may have come before: after a short pass the frequencies are the first ones again."""
        positions = torch.arange(num_positions, device=self._like.device)[None]
        self._asked(self._like, positions[:, :1])
        return self._asked(self._like, positions)

    def _asked(self, hidden: torch.Tensor, positions: torch.Tensor) -> dict[str | None, Angles]:
        if self._module is None:
            return {}
        if not self._layer_types:
            return {None: self._module(hidden, positions)}
        return {kind: self._module(hidden, positions, kind) for kind in self._layer_types}

    def table(self, num_positions: int, kind: str | None = None) -> Angles:
        """cos and sin [positions, n] of rotary over 2n numbers, as the model rounds them."""
        key = num_positions, kind
        if key not in self._tables:
            positions = torch.arange(num_positions, device=self._like.device)[None]
            cos, sin = (part[0, :, : part.shape[-1] // 2] for part in self.of(self._like[:1, None], positions)[kind])
            self._tables[key] = cos.contiguous(), sin.contiguous()
        return self._tables[key]


class RotaryTable(Rotary):
    """Computed when it is first read: torch's own operations take the angles of their pass instead."""

    def __init__(self, rotaries: Rotaries, num_positions: int, kind: str | None, is_interleaved: bool) -> None:
        vars(self).update(_of=(rotaries, num_positions, kind), is_interleaved=is_interleaved)

    @cached_property
    def _angles(self) -> Angles:
        rotaries, num_positions, kind = vars(self)["_of"]
        angles: Angles = rotaries.table(num_positions, kind)
        return angles

    @property
    def cos(self) -> torch.Tensor:
        return self._angles[0]

    @property
    def sin(self) -> torch.Tensor:
        return self._angles[1]


def no_rotary(size: int, like: torch.Tensor) -> Rotary:
    """One position that turns nothing."""
    cos = torch.ones(1, size // 2, dtype=like.dtype, device=like.device)
    return Rotary(cos, torch.zeros_like(cos))
