"""KNN-SSD (arXiv:2505.16162): a skip set for each domain, chosen by the nearest hidden vector.

Its tables and figures: streams that change between tasks (streams.py), sets and vectors of domains (domains.py),
prompts of no known domain and the number of clusters (beyond.py), one data set of several kinds (kinds.py).
"""

from __future__ import annotations

from functools import partial

from ..recipe import Experiment, Recipe
from . import beyond, domains, kinds, streams

_of_streams = partial(Experiment, shares="table-2")

RECIPE = Recipe(
    "knn-ssd",
    [  # where time is short: a lesson, then a stream for each table that shares them, last what is left of them
        Experiment("figure-5", "vectors of domains, and routing", domains.vector_units, domains.show_vectors),
        _of_streams("table-1", "all mix ratios", streams.stream_units, streams.show_overall),
        _of_streams("table-7", "what is accepted, by mix ratio", streams.stream_units, streams.show_counts),
        _of_streams("table-3", "the mix ratio 1, by the clock", streams.both_searches_units, streams.show_one_ratio),
        _of_streams("figure-1", "speed-ups task by task", streams.first_stream_units, streams.show_tasks),
        _of_streams("figure-4", "what is accepted, task by task", streams.first_stream_units, streams.show_task_counts),
        Experiment("figure-2", "the set of each task on every task", domains.matrix_units, domains.show_matrix),
        Experiment("table-5", "domains that were not learned", beyond.stranger_units, beyond.show_strangers),
        Experiment("table-6", "the number of clusters, on chat", beyond.cluster_units, beyond.show_clusters),
        Experiment("figure-6", "vectors of MATH", kinds.vector_units, kinds.show_vectors),
        Experiment("table-4", "MATH, which has several kinds", kinds.stream_units, kinds.show_stream),
        Experiment("figure-7", "MATH, kind by kind", kinds.stream_units, kinds.show_kinds, shares="table-4"),
        Experiment("table-2", "speed-ups by mix ratio", streams.stream_units, streams.show_ratios),
    ],
    quick_prompts=3,
)
