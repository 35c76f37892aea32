"""`early-exit`: the first layers draft, the others are skipped; verification goes on where the draft stopped.

LayerSkip's self-speculation (arXiv:2404.16710) without its training: the head reads the hidden state after layer E.
Keys, values and hidden states of the first E layers are the target's own, so verification starts after them; only
siblings and the last drafted token, which no draft pass has seen, start at the embedding.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import OptionError
from ..options import setting
from ..protocols import Knowledge
from ..types import Plan, SkipSet
from .base import ConstantStrategy


class EarlyExit(ConstantStrategy):
    @dataclass(frozen=True)
    class Options:
        layers: int = setting(0, "number of the first layers to draft with; 0: half of them", minimum=0)

    def __init__(self, options: Options, knowledge: Knowledge) -> None:
        num_layers = knowledge.num_layers
        num_drafting = options.layers or num_layers // 2
        if not 0 < num_drafting < num_layers:
            raise OptionError(
                f"early-exit.layers={options.layers} leaves nothing to skip or to draft with: the model has "
                f"{num_layers} layers, use 1 to {num_layers - 1}"
                if num_layers > 1
                else "early-exit needs a model of at least 2 layers, this one has 1; use another strategy"
            )
        skipped = range(num_drafting, num_layers)
        super().__init__(Plan(SkipSet.of(skipped, skipped), reuse=True))
