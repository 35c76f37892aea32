"""FusedBranches: the sub-layers of a joined model over the tokens of a probe, all rows packed into one vector.

Five launches each: norm, QKV product, attention, output product, sum; norm, product, gating, product, sum.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ...kernels.known import attend_known
from ...kernels.norm import add_norm
from ...passes import States
from ..decoder import Decoder
from ..joined import JoinedAttention
from ..placement import Placement
from ..probe import Known, Probe
from .fused_prefill import check_states, run_branch

_PROOF_TOKENS = 70


class FusedBranches:
    """`probe.Branches` of the models that FusedForward is for."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def __call__(self, number: int, hidden: torch.Tensor, known: Known) -> torch.Tensor:
        part: Any = self._decoder.sublayers[number].run
        stream = hidden.reshape(-1, hidden.shape[-1])
        _, normed = add_norm(stream, None, part.norm)
        branch = run_branch(part, normed, partial(_attend, known))
        return add_norm(stream, branch, None, part.after, part.multiplier)[0].view(hidden.shape)

    @torch.inference_mode()
    def prove(self) -> None:
        """Raise unless its streams are the decoder's: of two rows, from the beginning of a text on."""
        decoder, size = self._decoder, len(self._decoder.embedding)
        tokens = [(7919 * position + 11) % size for position in range(_PROOF_TOKENS)]
        cache, placement = decoder.new_cache(1, len(tokens)), Placement.chain([0], len(tokens), decoder.device)
        decoder.forward(torch.tensor([tokens], device=decoder.device), placement, cache, needs_scores=False)
        streams = []
        for probe in (Probe(decoder, cache, tokens, branches=self), Probe(decoder, cache, tokens)):
            states = States.join([probe.begin(), States(probe.begin().hidden.flip(1))])
            for number in range(probe.num_sublayers):
                states = probe.run(number, states)
            streams.append(decoder.final_norm(states.hidden))
        check_states(*streams)


def _attend(known: Known, part: JoinedAttention, qkv: torch.Tensor) -> torch.Tensor:
    keys, values = known.cache.keys[part.layer], known.cache.values[part.layer]
    return attend_known(qkv, known.place, keys, values, known.width, known.end, part.heads)
