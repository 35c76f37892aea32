"""The figures of SWIFT, in the order of the paper."""

from __future__ import annotations

from collections.abc import Sequence

from ..recipe import Experiment
from .figures_cost import latency_units, show_latency, show_strips, strip_units
from .figures_options import option_units, ratio_units, show_options, show_ratios
from .figures_sets import set_units, show_sets
from .figures_shift import shift_units, show_shift
from .figures_sparsity import show_sparsity, sparsity_units
from .figures_timeline import show_timeline, timeline_units

FIGURES: Sequence[Experiment] = (
    Experiment("figure-2a", "evenly thinned layers, one candidate or several", sparsity_units, show_sparsity),
    Experiment("figure-2b", "the set of one task on another", set_units, show_sets),
    Experiment("figure-6", "along a stream, and where the time goes", timeline_units, show_timeline),
    Experiment("figure-7", "a stream that changes its task, against Self-SD", shift_units, show_shift),
    Experiment("figure-8a", "most steps S and Bayesian interval", option_units, show_options),
    Experiment("figure-8b", "speed-up against the skip ratio", ratio_units, show_ratios),
    Experiment("figure-11", "speed-up against seconds of optimisation", latency_units, show_latency),
    Experiment("figure-12", "the set step by step", strip_units, show_strips),
)
