"""DISCO (arXiv:2405.04304): how far an oracle drafts, how well a classifier tells, and what a token takes.

The oracle comes first, then the classifier, then what both are for: tables 1, 6 and 2 take most of the time.
"""

from __future__ import annotations

from ..recipe import Experiment, Recipe
from .latency import latency_units, sampled_units, show_gains, show_latency, show_sampled
from .oracle import (
    example_units,
    oracle_units,
    show_course,
    show_course_of_alpaca,
    show_example,
    show_histogram,
    show_spread,
)
from .quality import f1_units, show_f1

RECIPE = Recipe(
    "disco",
    [
        Experiment("figure-2", "oracle and static lookahead in one text", example_units, show_example),
        Experiment("table-3", "how far the oracle drafts", oracle_units, show_spread),
        Experiment(
            "figure-3", "the oracle over the iterations, Alpaca", oracle_units, show_course_of_alpaca, shares="table-3"
        ),
        Experiment("figure-4", "histogram of the oracle's lookahead", oracle_units, show_histogram, shares="table-3"),
        Experiment("figure-5", "the oracle over the iterations", oracle_units, show_course, shares="table-3"),
        Experiment("table-5", "how well the classifier tells", f1_units, show_f1),
        Experiment("table-1", "latency of each rule, greedy", latency_units, show_latency),
        Experiment("table-6", "what DISCO saves", latency_units, show_gains, shares="table-1"),
        Experiment("table-2", "with a temperature, and by perplexity", sampled_units, show_sampled),
    ],
    quick_prompts=3,
)
