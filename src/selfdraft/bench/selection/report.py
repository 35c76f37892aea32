"""A document of the selection benchmark as Markdown. Nothing is computed here that the document does not say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..report import Table, markdown_table, number, times, verdicts
from ..ways import OFF
from .methods import OWN_PAIRING

Document = Mapping[str, Any]
Row = Mapping[str, Any]

TITLES = {
    "A": "Table A: the same for all (lookahead confidence 0.8, a chain)",
    "B": f"Table B: each as it is meant (its own pairing; measured apart where marked `{OWN_PAIRING}`, else as in A)",
}
_FIGURES: Sequence[tuple[str, str, str]] = (
    ("drafting rounds", "drafting_share", ".0%"),
    ("attention skipped", "skipped_attention", ".1f"),
    ("MLP skipped", "skipped_mlp", ".1f"),
    ("cost, weights", "cost_by_weights", ".3f"),
    ("cost, fit", "cost_by_seconds", ".3f"),
    ("cost, measured", "cost_measured", ".3f"),
    ("accepted", "acceptance_rate", ".1%"),
    ("length", "mean_generated_length", ".2f"),
    ("speed-up", "speedup", "x"),
    ("planning s", "planning_seconds", ".2f"),
    ("of decoding", "planning_share", ".1%"),
    ("prefill", "prefill_ratio", "x"),
)


def as_markdown(document: Document) -> str:
    parts = [heading(document), "\n".join(f"* {note}" for note in calibration_notes(document))]
    for letter in TITLES if document["ways"] else ():
        parts += _strategy_tables(document, letter)
    if document["held_out"]:
        parts += [_frontier(document), "\n".join(f"* {line}" for line in answer_lines(document["held_out"]))]
    if document["contexts"]:
        parts += _contexts(document)
    return "\n\n".join([*parts, "\n".join(f"* {note}" for note in notes(document))])


def heading(document: Document) -> str:
    counts = ", ".join(f"{domain} {count}" for domain, count in document["prompts"].items()) or "no prompts"
    commit = f", commit {document['commit']}" if document.get("commit") else ""
    return (
        f"{document['model']} ({document['num_layers']} layers), {document['dtype']}, {document['device_name']}, "
        f"{document['threads']} threads; greedy, one text at a time, {counts}, up to "
        f"{document['options']['max_new_tokens']} new tokens; selfdraft {document['selfdraft']}{commit}, torch "
        f"{document['torch']}, transformers {document['transformers']}, {document['date'][:10]}."
    )


def calibration_notes(document: Document) -> Iterator[str]:
    found, fit = document["calibration"], document["latency"]
    seconds = ", ".join(f"{name} {value:.1f} s" for name, value in found["seconds"].items())
    origin = f", read from {found['source']}" if found["source"] else ""
    end = "" if found["is_whole"] else "; the fit was cut short by its budget"
    yield (
        f"calibration{origin}: {seconds}; {found['num_texts']} texts that are not measured, {found['num_tokens']} "
        f"generated tokens, {found['num_points']} points{end}"
    )
    yield (
        f"latency behind {', '.join(map(str, fit['lengths']))} tokens: attention "
        f"{1e3 * fit['attention']['base']:.3f} ms + {1e6 * fit['attention']['per_slot']:.3f} ms per 1000 tokens, MLP "
        f"{1e3 * fit['mlp_seconds']:.3f} ms, rest {1e3 * fit['rest_seconds']:.3f} ms; error of the fit "
        f"{fit['rms_error']:.1%}, at most {fit['max_error']:.1%}"
    )


def _strategy_tables(document: Document, letter: str) -> list[str]:
    """All prompts first, then domain by domain."""
    ways = {row["name"]: row for row in document["ways"]}
    rows = {"off": ways[OFF], **{label: ways[name] for label, name in document["tables"][letter].items()}}
    if letter == "B":
        rows = {_marked(label, row["name"]): row for label, row in rows.items()}
    domains = list(document["prompts"])
    tables = [f"### {TITLES[letter]}", _table("all", {label: row["total"] for label, row in rows.items()})]
    if len(domains) > 1:
        tables += [_table(domain, {label: row["domains"][domain] for label, row in rows.items()}) for domain in domains]
    return tables


def _marked(label: str, name: str) -> str:
    return label if label == name else name


def _table(scope: str, rows: Mapping[str, Row]) -> str:
    header = [scope, *(title for title, _, _ in _FIGURES), "outputs"]
    return markdown_table(Table(scope, header, [_cells(label, row) for label, row in rows.items()]))


def _cells(label: str, row: Row) -> list[str]:
    shown = [times(row[key]) if form == "x" else number(row[key], form) for _, key, form in _FIGURES]
    return [label, *shown, verdicts(row)]


# ----------------------------------------------------------------------------------------------------- the frontier


def _frontier(document: Document) -> str:
    held_out = document["held_out"]
    domains = [domain for domain in document["prompts"] if len(document["prompts"]) > 1]
    header = [
        *("attention skipped", "MLP skipped", "cost, weights", "cost, fit", "match, calibration", "match"),
        *(f"match, {domain}" for domain in domains),
        "lost",
    ]
    rows = [
        [
            str(point["attention"]),
            str(point["mlp"]),
            number(point["cost_by_weights"], ".3f"),
            number(point["cost_by_seconds"], ".3f"),
            number(point["calibration_match"], ".3f"),
            number(point["match"], ".3f"),
            *(number(point["domains"].get(domain, {}).get("match"), ".3f") for domain in domains),
            number(point["lost"], ".3f"),
        ]
        for point in held_out["points"]
    ]
    title = (
        f"### The frontier of `prune` on held-out texts: {held_out['num_tokens']} tokens, behind "
        f"{number(held_out['mean_context'], '.0f')} on average"
    )
    return f"{title}\n\n{markdown_table(Table('frontier', header, rows))}"


def answer_lines(held_out: Mapping[str, Any]) -> Iterator[str]:
    """Does some point match enough for little enough?"""
    answer = held_out["answer"]
    if answer is None:
        return
    asked = f"match >= {answer['min_match']} at cost <= {answer['max_cost_by_weights']} by weights, on held-out prompts"
    points = {point["skip"]: point for point in held_out["points"]}
    if answer["skips"]:
        yield f"{asked}: yes, {len(answer['skips'])} points:"
        yield from (_described(points[skip]) for skip in answer["skips"])
        return
    yield f"{asked}: no point"
    for name, text in (("cheapest_matching", "cheapest that matches"), ("best_cheap", "best match that is cheap")):
        yield f"{text} enough: {_described(answer[name]) if answer[name] else 'none'}"


def _described(point: Mapping[str, Any]) -> str:
    return (
        f"match {number(point['match'], '.3f')}, cost {number(point['cost_by_weights'], '.3f')} by weights, "
        f"{number(point['cost_by_seconds'], '.3f')} by seconds: `{point['skip']}`"
    )


# ------------------------------------------------------------------------------------------------------ long texts


def _contexts(document: Document) -> list[str]:
    parts = [f"### Long texts: {document['options']['context_tokens']} new tokens, the same lookahead as in table A"]
    for context in document["contexts"]:
        weights = context["weights"]
        parts.append(
            f"{context['length']} tokens, {context['num_prompts']} texts; KnapSpec weighs attention "
            f"{weights['attention']} ({1e3 * weights['attention_seconds']:.3f} ms), MLP {weights['mlp']} "
            f"({1e3 * weights['mlp_seconds']:.3f} ms)"
        )
        header = [str(context["length"]), *(title for title, _, _ in _FIGURES), "new plans", "outputs"]
        rows = [_context_cells(row) for row in context["ways"]]
        parts.append(markdown_table(Table("contexts", header, rows)))
        parts += ["\n".join(lines) for lines in [list(_plan_lines(context))] if lines]
    return parts


def _context_cells(row: Mapping[str, Any]) -> list[str]:
    *cells, outputs = _cells(row["name"], row["total"])
    return [*cells, str(row["total"]["num_new_plans"]), outputs]


def _plan_lines(context: Mapping[str, Any]) -> Iterator[str]:
    """What KnapSpec planned; the others' plans are in the document."""
    for row in context["ways"]:
        if row["method"].get("strategy") == "knapspec":
            for plan in row["plans"]:
                does = f"`{plan['skip']}`, {plan['max_draft_tokens']} tokens" if plan["skip"] else "plain decoding"
                yield f"* {row['name']}: {plan['num_rounds']} rounds of {does}"


def notes(document: Document) -> Iterator[str]:
    yield (
        "a drafted token's cost is its share of a plain pass: by weights read, by the seconds fitted to this device, "
        "and measured while drafting; attention and MLP skipped are means over the rounds that drafted; speed-up is "
        "total tokens over total seconds of decoding, against off in the same run; planning is part of decoding"
    )
    every = [*document["ways"], *(row for context in document["contexts"] for row in context["ways"])]
    controls = [row["total"]["control"] for row in every if row["total"]["control"] and row["name"] != OFF]
    if controls:
        yield (
            f"how far to trust the speed-ups: ways that never drafted did what off did, and were measured at "
            f"{min(controls):.2f}x to {max(controls):.2f}x without their planning"
        )
    captured = sum(row["total"]["capture_seconds"] for row in every)
    if captured:
        yield f"{captured:.1f} s of decoding went into recording graphs, for plans not known before"
    for row in every:
        for item in row["differences"]:
            gap = "one text ends earlier" if item["gap"] is None else f"gap {item['gap']:.2g}"
            where = f"{item['id']} ({item['domain']}) from token {item['first_difference']} on"
            yield f"{row['name']}: {item['verdict']} in {where}, {gap}"
    if not document["is_complete"]:
        yield "cut short: only the prompts counted above were measured"
