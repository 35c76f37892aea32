"""`uniform`: skip evenly spaced sub-layers, keep the first and the last layer.

The pattern SWIFT (arXiv:2410.06916, section 3.2.1) found to draft well without any search: a fixed share of the layers,
spread evenly. Attention and MLP (feed-forward block) of a chosen layer are skipped together; what is spread is the
number of layers that `ratio` of all layers comes to, over the layers between the first and the last.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..options import setting
from ..protocols import Knowledge
from ..types import Plan, SkipSet
from .base import ConstantStrategy


def spread(num_layers: int, ratio: float) -> tuple[int, ...]:
    """Evenly spaced layers, first and last kept: `spread(10, 0.3) == (2, 5, 7)`."""
    return spread_over(num_layers, round(ratio * num_layers))


def spread_over(num_layers: int, count: int) -> tuple[int, ...]:
    """`count` of them, or all that may go."""
    num_inner = max(num_layers - 2, 0)
    count = min(count, num_inner)
    return tuple(1 + int((index + 0.5) * num_inner / count) for index in range(count))


class Uniform(ConstantStrategy):
    @dataclass(frozen=True)
    class Options:
        ratio: float = setting(0.25, "share of the layers to skip", minimum=0.0, maximum=1.0)

    def __init__(self, options: Options, knowledge: Knowledge) -> None:
        layers = spread(knowledge.num_layers, options.ratio)
        super().__init__(Plan(SkipSet.of(layers, layers)))
