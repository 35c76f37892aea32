"""A document of the lookahead benchmark as Markdown. Nothing is computed here that the document does not say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..report import Table, markdown_table, number, times, verdicts
from .rows import ORACLE, PLAIN

Document = Mapping[str, Any]
Row = Mapping[str, Any]
ALL = "all"

_FIGURES: Sequence[tuple[str, str, str]] = (
    ("ms/token", "ms_per_token", ".2f"),
    ("speed-up", "speedup", "x"),
    ("accepted", "acceptance_rate", ".1%"),
    ("length", "mean_generated_length", ".2f"),
    ("drafted", "drafted_per_round", ".2f"),
)


def as_markdown(document: Document) -> str:
    parts = [heading(document), _learned(document)]
    for found in document["temperatures"]:
        parts += _temperature(document, found)
    parts += _oracle_table(document) + _gain_table(document)
    return "\n\n".join([*parts, "\n".join(f"* {note}" for note in notes(document))])


def heading(document: Document) -> str:
    counts = ", ".join(f"{domain} {count}" for domain, count in document["prompts"].items()) or "no prompts"
    splits = document["splits"]
    commit = f", commit {document['commit']}" if document.get("commit") else ""
    return (
        f"{document['model']} ({document['num_layers']} layers), {document['dtype']}, {document['device_name']}, "
        f"{document['threads']} threads; {_method(document)}; one text at a time, prompts measured: {counts}; others "
        f"train ({sum(splits['train'].values())}) and validate ({sum(splits['validation'].values())}); up to "
        f"{document['options']['max_new_tokens']} new tokens; selfdraft {document['selfdraft']}{commit}, torch "
        f"{document['torch']}, transformers {document['transformers']}, {document['date'][:10]}."
    )


def _method(document: Document) -> str:
    method = document["method"]
    named = [f"{axis} {method[axis]}" for axis in ("strategy", "drafter", "tree") if axis in method]
    settings = [
        f"{name}.{option}={value}" for name, values in method["settings"].items() for option, value in values.items()
    ]
    return ", ".join([*named, *settings])


def _learned(document: Document) -> str:
    found = document["learning"]
    header = ["learned of", "train tokens", "validation tokens", "match", "static-opt", "perplexity", "disco"]
    rows = []
    for domain, lesson in found["domains"].items():
        best = lesson["best"]
        rows.append(
            [
                domain,
                str(lesson["num_train_tokens"]),
                str(lesson["num_validation_tokens"]),
                number(lesson["match"], ".3f"),
                str(best["fixed"]["tokens"]),
                *(f"{best[name]['threshold']:g}, up to {best[name]['max_tokens']}" for name in ("perplexity", "disco")),
            ]
        )
    return markdown_table(Table("learned", header, rows))


# ------------------------------------------------------------------------------------------------------ the tables


def _temperature(document: Document, found: Row) -> list[str]:
    """All prompts first, then domain by domain."""
    domains = list(document["prompts"])
    scopes = [ALL, *(domains if len(domains) > 1 else [])]
    tables = [_table(document, found, scope) for scope in scopes]
    return [f"### Temperature {found['temperature']:g}", *tables]


def _table(document: Document, found: Row, scope: str) -> str:
    header = [scope, "settings", *(title for title, _, _ in _FIGURES), "F1", "outputs"]
    rules = {rule["name"]: rule for rule in document["rules"]}
    rows = []
    for row in found["rows"]:
        rule = rules[row["name"]]
        figures = row["total"] if scope == ALL else row["domains"][scope]
        f1 = rule["f1_all"] if scope == ALL else rule["f1"].get(scope)
        shown = [times(figures[key]) if form == "x" else number(figures[key], form) for _, key, form in _FIGURES]
        rows.append([row["name"], _settings(rule, scope), *shown, number(f1, ".3f"), verdicts(figures)])
    return markdown_table(Table(scope, header, rows))


def _settings(rule: Row, scope: str) -> str:
    """Where they are not the same in all domains, the domains' own tables say them."""
    found = set(rule["settings"].values()) if scope == ALL else {rule["settings"].get(scope, "-")}
    return found.pop() if len(found) == 1 else "by domain" if found else "-"


def _oracle_table(document: Document) -> list[str]:
    """The paper's table 3."""
    found = [one for one in document["temperatures"] if one["oracle_all"]]
    if not found:
        return []
    header = ["tokens kept by the oracle", *(f"temperature {one['temperature']:g}" for one in found)]
    rows = [
        [domain, *(_spread(one["oracle_all"] if domain == ALL else one["oracle"][domain]) for one in found)]
        for domain in (*found[0]["oracle"], ALL)
    ]
    return ["### How far the oracle drafts: mean, standard deviation, rounds", markdown_table(Table("", header, rows))]


def _spread(found: Row) -> str:
    return f"{number(found['mean'], '.2f')} ± {number(found['std'], '.2f')} ({found['num_rounds']})"


def _gain_table(document: Document) -> list[str]:
    """The paper's table 6."""
    found = [(one["temperature"], gain) for one in document["temperatures"] for gain in one["gains"]]
    if not found:
        return []
    domains = list(document["prompts"])
    header = ["latency lower by", "than", "temperature", *domains, "average of the domains"]
    rows = [
        [
            gain["rule"],
            gain["over"],
            f"{temperature:g}",
            *(_percent(gain["domains"].get(domain)) for domain in domains),
            _percent(gain["average"]),
        ]
        for temperature, gain in found
    ]
    return ["### Improvement in percent of the latency", markdown_table(Table("", header, rows))]


def _percent(gain: Row | None) -> str:
    if gain is None:
        return "-"
    error = f" ± {gain['error']:.1f}" if gain["error"] is not None else ""
    return f"{gain['percent']:.1f}{error}"


# ------------------------------------------------------------------------------------------------------- the notes


def notes(document: Document) -> Iterator[str]:
    yield (
        "speed-up is total tokens over total seconds of decoding, against plain in the same run; accepted: share of "
        "drafted tokens; length: tokens a round emits; drafted: tokens a round drafts"
    )
    yield (
        "F1 of saying which drafted tokens will be kept, greedy, on the measured prompts, in rounds that end with the "
        "first refused token: a rule that looks at tokens says so of one that it would draft on behind, a rule that "
        "counts them of those that it drafts"
    )
    learning = document["learning"]
    verify = ", ".join(f"{length}: {ms:.2f}" for length, ms in learning["verify_ms"].items())
    took = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in learning["seconds"].items())
    yield (
        f"measured before tuning: a drafted token takes {learning['draft_ms']:.2f} ms, a round beside that, by tokens "
        f"drafted, {verify} ms; learning took: {took}"
    )
    if any(gain["average"]["error"] is not None for one in document["temperatures"] for gain in one["gains"]):
        yield "± behind a percentage: standard error over the prompts"
    every = [(one["temperature"], row) for one in document["temperatures"] for row in one["rows"]]
    captured = sum(row["total"]["capture_seconds"] for _, row in every)
    if captured:
        yield f"{captured:.1f} s of decoding went into recording graphs that warming up had not met"
    for temperature, row in every:
        for item in row["differences"]:
            gap = "one text ends earlier" if item["gap"] is None else f"gap {item['gap']:.2g}"
            where = f"{item['id']} ({item['domain']}) from token {item['first_difference']} on"
            yield f"{row['name']}, temperature {temperature:g}: {item['verdict']} in {where}, {gap}"
    if not document["is_complete"]:
        yield "cut short: only the prompts counted above were measured"


def rows_to_show(found: Row) -> list[Row]:
    """Those of a temperature that draft and are no bound."""
    return [row for row in found["rows"] if row["name"] not in (PLAIN, ORACLE)]
