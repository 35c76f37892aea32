"""How a prompt gets into the cache: many tokens at once, no scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F

from ...passes import PassOutput, PassRequest
from ..cache import SlotCache
from ..decoder import Decoder
from ..placement import Placement
from .memory import power_of_two

PREFILL_STEP = 64


def prefill_width(width: int) -> int:
    """In whole steps, and at most an eighth more from eight of them on: each width is prepared for itself."""
    step = max(PREFILL_STEP, power_of_two(width) // 16)
    return -(-width // step) * step


class Prefill:
    """The decoder's own sub-layers, for any family, operation by operation. What pads a prompt is scratch."""

    recorded_widths: Sequence[int] = ()
    """Of one row from its first slot on."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    @torch.inference_mode()
    def run(self, request: PassRequest, cache: SlotCache) -> PassOutput:
        """A chain in each row, as the eager runner reads it; `request` asks for no scores."""
        self._decoder.check_points(request.capture)
        width = len(request.tokens[0])
        padded = prefill_width(width)
        cache.reserve(max(request.starts) + padded)
        captured = self._run(request, padded, cache)
        embedding = self._decoder.embedding
        nothing = embedding.new_empty(len(request.starts), 0, embedding.shape[1])
        return PassOutput(nothing, {point: states[:, :width] for point, states in captured.items()})

    def _run(self, request: PassRequest, width: int, cache: SlotCache) -> Mapping[str, torch.Tensor]:
        """The captured states of the request's tokens, padded to `width`."""
        tokens = torch.as_tensor(request.tokens, device=self._decoder.device)
        placement = Placement.chain(request.starts, width, tokens.device, request.rows)
        padded = F.pad(tokens, (0, width - tokens.shape[1]))
        return self._decoder.forward(
            padded, placement, cache, skip=request.skip, capture=request.capture, needs_scores=False
        ).captured
