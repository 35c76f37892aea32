"""`asd`: skip the attentions that hardly turn the prompt's hidden states, and every third layer.

Adaptive self-speculative decoding (Draft on the Fly, arXiv:2410.01028, algorithm 1): no search, a set for each prompt.
With layers counted from 1 to L, and C_l the mean cosine of the prompt's hidden states before and after attention l:

- attention l is skipped where C_l >= similarity,
- attention and MLP (feed-forward block) of every m-th layer are skipped (rule 1),
- the last n layers are kept in both cases (rule 2).

The similarities come with the prefill; nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..options import setting
from ..protocols import Knowledge, PlanContext
from ..types import OFF, Plan, SkipSet
from .base import PlainStrategy


class Asd(PlainStrategy):
    @dataclass(frozen=True)
    class Options:
        similarity: float = setting(
            0.985, "skip attentions whose mean cosine is at least this; above 1: none", minimum=-1.0, maximum=2.0
        )
        every: int = setting(3, "skip attention and MLP of every m-th layer; 0: of none (4 for code models)", minimum=0)
        last: int = setting(2, "never skip the last n layers; 0: they may go (3 for code models)", minimum=0)

    pairs_with: ClassVar[Mapping[str, Any]] = {"lookahead": "adaptive"}

    def __init__(self, options: Options, knowledge: Knowledge) -> None:
        self._options, self._num_layers = options, knowledge.num_layers
        points = [f"{kind}{layer}" for layer in range(knowledge.num_layers) for kind in "am"]
        self.prefill_needs = ("embedding", *points[:-1])
        self._plans: dict[int, Plan] = {}

    def condense(self, captured: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """The cosine around every attention, [rows, tokens, layers]."""
        streams = [captured[point] for point in self.prefill_needs]
        pairs = zip(streams[::2], streams[1::2], strict=True)  # before and after attention 0, 1, ...
        return {"cosines": torch.stack([_cosine(*pair) for pair in pairs], dim=-1)}

    def begin(self, sequence_id: int, prefill: Mapping[str, torch.Tensor]) -> None:
        cosines = prefill["cosines"].mean(0).tolist() if prefill else []
        skip = skip_set(cosines, self._num_layers, self._options)
        self._plans[sequence_id] = Plan(skip) if skip else OFF

    def plan(self, sequence_id: int, context: PlanContext) -> Plan:
        return self._plans[sequence_id]

    def end(self, sequence_id: int) -> None:
        self._plans.pop(sequence_id, None)


def _cosine(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    return torch.cosine_similarity(before.float(), after.float(), dim=-1)


def skip_set(cosines: Sequence[float], num_layers: int, options: Asd.Options) -> SkipSet:
    """`cosines` of the attentions, none for a prompt of one token; layers from 0 on."""
    num_open = max(num_layers - options.last, 0)
    similar = {layer for layer, cosine in enumerate(cosines[:num_open]) if cosine >= options.similarity}
    regular = set(range(options.every - 1, num_open, options.every)) if options.every else set()
    return SkipSet.of(sorted(similar | regular), sorted(regular))
