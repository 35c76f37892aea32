"""Noise that is a pure function of (seed, sequence, index, token): the same integers on every device.

Its key is mixed part by part, so what is known of a text beforehand is mixed once, on the host.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from .passes import NoiseKey, Salt

_MASK = 0xFFFFFFFF
_STREAMS = (0x243F6A88, 0x85A308D3)
DRAW, TEST, REST = 1, 2, 3
"""Salts: noise that draws a draft, tests it, and draws what is left. They must not know of each other."""


def gumbel(noise: NoiseKey, tokens: torch.Tensor | int, *salts: Salt) -> torch.Tensor:
    """Standard Gumbel noise for `tokens` [n, k] (a number: for all below it), float64; a pure function."""
    first, second = (_key(stream, noise.seeds, noise.sequences, noise.indices, *salts) for stream in _STREAMS)
    return gumbel_at((first, second), tokens)


def uniform_at(keys: tuple[torch.Tensor, torch.Tensor], numbers: torch.Tensor | int) -> torch.Tensor:
    """A number strictly between 0 and 1 for each of `numbers`, float64, from integers bit-equal on every device.

    Other keys [n] give other numbers.
    """
    first, second = keys[0][:, None], keys[1][:, None]
    if isinstance(numbers, int):
        numbers = torch.arange(numbers, device=first.device)
    bits = _mix(_mix(numbers ^ first) ^ second)
    return (bits.double() + 0.5) / 2.0**32


def _key(stream: int, seed: Salt, *parts: Salt) -> torch.Tensor:
    key = torch.full_like(torch.as_tensor(parts[0]), stream)
    return mixed(key, seed & _MASK, (seed >> 32) & _MASK, *parts)


def _mix(bits: torch.Tensor) -> torch.Tensor:
    """A bijective 32-bit mixer (Wellons' lowbias32) in int64; products wrap, the low 32 bits stay right."""
    bits = ((bits ^ (bits >> 16)) * 0x7FEB352D) & _MASK
    bits = ((bits ^ (bits >> 15)) * 0x846CA68B) & _MASK
    return bits ^ (bits >> 16)


@lru_cache(maxsize=4096)
def keys_of(seed: int, sequence: int) -> tuple[int, int]:
    """Both keys of a text, as far as they do not depend on the place in it."""
    first, second = (_key(stream, seed, torch.tensor(sequence)) for stream in _STREAMS)
    return int(first), int(second)


def gumbel_at(keys: tuple[torch.Tensor, torch.Tensor], tokens: torch.Tensor | int) -> torch.Tensor:
    """As `gumbel`, with keys [n] that are mixed already."""
    return -torch.log(-torch.log(uniform_at(keys, tokens)))


def mixed(key: torch.Tensor, *parts: Salt) -> torch.Tensor:
    """The key with more parts."""
    for part in parts:
        key = _mix(key ^ part)
    return key
