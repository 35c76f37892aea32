"""KnapSpec (arXiv:2602.20217): which sub-layers to skip as a knapsack of measured seconds, planned as the text grows.

What is known of the paper here is a summary of it: experiments have names of ours instead of the numbers of its tables,
and published is only what the summary states.
"""

from __future__ import annotations

from ..recipe import Experiment, Recipe
from . import contexts, correlation, decoupling, methods, pruning

RECIPE = Recipe(
    "knapspec",
    [
        Experiment(
            "main", "against SWIFT and CLaSp, greedy and at temperature 0.7", methods.main_units, methods.show_main
        ),
        Experiment("pruning", "pruning on and off, and the share of time in the DP", pruning.units, pruning.show),
        Experiment("decoupling", "attention and MLP apart, or bound to each other", decoupling.units, decoupling.show),
        Experiment(
            "correlation", "what tells throughput: tokens per time or others", correlation.units, correlation.show
        ),
        Experiment("contexts", "speed-up and tokens per time against the length", contexts.units, contexts.show),
    ],
    quick_prompts=3,
)
