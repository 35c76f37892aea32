"""How a prompt gets into the cache: many tokens at once, no scores. Not recorded: every prompt has its own length."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ...passes import PassOutput, PassRequest
from ..cache import SlotCache
from ..decoder import Decoder
from ..placement import Placement

PREFILL_STEP = 64


class Prefill:
    """The decoder's own sub-layers, for any family.

    In widths of whole steps: libraries prepare products and attention again for every width. What pads is scratch.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    @torch.inference_mode()
    def run(self, request: PassRequest, cache: SlotCache) -> PassOutput:
        """A chain in each row, as the eager runner reads it; `request` asks for no scores."""
        tokens = torch.as_tensor(request.tokens, device=self._decoder.device)
        width = tokens.shape[1]
        padded = F.pad(tokens, (0, -width % PREFILL_STEP))
        cache.reserve(max(request.starts) + padded.shape[1])
        output = self._run(padded, request, cache)
        return PassOutput(output.scores, {name: states[:, :width] for name, states in output.captured.items()})

    def _run(self, tokens: torch.Tensor, request: PassRequest, cache: SlotCache) -> PassOutput:
        """Of `tokens` in the place of the request's own."""
        placement = Placement.chain(request.starts, tokens.shape[1], tokens.device, request.first_row)
        return self._decoder.forward(
            tokens, placement, cache, skip=request.skip, capture=request.capture, needs_scores=False
        )
