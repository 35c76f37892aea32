"""How a prompt gets into the cache: many tokens at once, no scores."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...passes import PassOutput, PassRequest
from ..cache import SlotCache
from ..decoder import Decoder
from ..prompts import read_prompts
from .memory import power_of_two

PREFILL_STEP = 64


def prefill_width(width: int) -> int:
    """In whole steps, and at most an eighth more from eight of them on: each width is prepared for itself."""
    step = max(PREFILL_STEP, power_of_two(width) // 16)
    return -(-width // step) * step


class Prefill:
    """The decoder's own sub-layers, for any family, operation by operation."""

    recorded_widths: Sequence[int] = ()
    """Tokens of a pass, all rows together."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    @torch.inference_mode()
    def run(self, request: PassRequest, cache: SlotCache) -> PassOutput:
        """A chain in each row, as the eager runner reads it; `request` asks for no scores."""
        cache.make_whole(request.cache_rows)
        return read_prompts(self._decoder, request, cache, prefill_width)
