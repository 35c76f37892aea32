"""The tables of `knn`: routing, sets, the matrix of sets and tasks, mixed streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..report import Table, markdown_table, number
from .names import GENERAL
from .tables import FIGURES, cells, interval

Found = Mapping[str, Any]


def knn_tables(found: Found) -> Iterator[str]:
    if found["routing"]:
        yield from _routing(found["routing"], found["domains"])
    if found["sets"]:
        yield from _sets(found["sets"], found["overlaps"])
    if found["matrix"] and found["matrix"]["num_prompts"]:
        yield from _matrix(found["matrix"])
    if found["mixed"]:
        yield from _mixed(found["mixed"])


def _routing(found: Found, domains: Sequence[str]) -> Iterator[str]:
    own, others, seconds = found["own"], found["others"], found["seconds"]
    yield "### Routing"
    yield (
        f"{own['num_prompts']} measured prompts of known domains: {number(own['accuracy'], '.1%')} sent to their own, "
        f"{number(own['general'], '.1%')} to the general set; similarity to the nearest anchor "
        f"{number(own['similarity']['mean'], '.3f')} on average, {number(own['similarity']['lowest'], '.3f')} at "
        f"least. {others['num_prompts']} prompts of other domains: {number(others['general'], '.1%')} to the general "
        f"set, similarity {number(others['similarity']['mean'], '.3f')}. A decision takes "
        f"{_milli(seconds['median'])} ms (median; {_milli(seconds['max'])} ms at most), behind a prefill that is "
        "needed anyway. Rows: where prompts of a domain were sent."
    )
    header = ["prompts of", *domains, GENERAL]
    counts = {**own["confusion"], **others["confusion"]}
    rows = [
        [domain if domain in domains else f"{domain} (unknown)", *(str(routes.get(name, 0)) for name in header[1:])]
        for domain, routes in counts.items()
    ]
    yield markdown_table(Table("routing", header, rows))


def _milli(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.2f}"


def _sets(sets: Mapping[str, Found], overlaps: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    domains = list(sets)
    yield "### The set of each domain"
    yield (
        "What the search of the domain would draft with behind 512 tokens; where it would rather decode plainly "
        "(marked `*`), the one that promises most. Match: on the texts it was found with. Then what two "
        "sets both skip, of all that either skips."
    )
    header = ["set of", "attention", "MLP", "match", *domains, "sub-layers skipped"]
    rows = [
        [
            name + ("" if one["is_planned"] else " *"),
            str(one["attention"]),
            str(one["mlp"]),
            number(one["match"], ".3f"),
            *(number(overlaps[name][other], ".2f") for other in domains),
            f"`{one['skip']}`" if one["skip"] else "nothing",
        ]
        for name, one in sets.items()
    ]
    yield markdown_table(Table("sets", header, rows))


def _matrix(found: Found) -> Iterator[str]:
    tasks = found["tasks"]
    yield "### The set of domain X (rows) on task Y (columns)"
    yield (
        f"Speed-up of the fixed set as a chain (confidence 0.8) on {found['num_prompts']} prompts of all tasks, in "
        "brackets 95 %."
    )
    rows = [[name, *(interval(row[task]) for task in tasks)] for name, row in found["speedup"].items()]
    yield markdown_table(Table("matrix", ["set of", *tasks], rows))
    yield (
        f"How often the same sets meet the target's choice, teacher-forced on the plain texts of the same prompts "
        f"({found['num_tokens']} tokens): the same question with far less noise."
    )
    rows = [[name, *(number(row[task], ".3f") for task in tasks)] for name, row in found["match"].items()]
    yield markdown_table(Table("match", ["set of", *tasks], rows))


def _mixed(streams: Sequence[Found]) -> Iterator[str]:
    names = [row["name"] for row in streams[0]["ways"]]
    yield "### Mixed streams"
    yield (
        "The same prompts in other orders: with the mix ratio as probability the next prompt belongs to another task. "
        "All as chains with confidence 0.8, so that the choice of sets alone differs, but for the last rows. `ssd-f` "
        "and `ssd-m`: `draft-verify` calibrated on the first and on mixed tasks. Speed-up, in brackets 95 %."
    )
    header = ["way", *(f"r = {one['ratio']:g} ({one['num_prompts']} prompts)" for one in streams)]
    by_name = [{row["name"]: row for row in one["ways"]} for one in streams]
    rows = [[name, *(interval(ways[name]["interval"]) for ways in by_name)] for name in names]
    yield markdown_table(Table("mixed", header, rows))
    for one, ways in zip(streams, by_name, strict=True):
        yield f"r = {one['ratio']:g}; the next task was another in {number(one['changes'], '.0%')} of the cases."
        header = ["way", *(title for title, _, _ in FIGURES), "outputs"]
        yield markdown_table(Table("stream", header, [[name, *cells(ways[name])] for name in names]))
