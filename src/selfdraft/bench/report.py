"""The document of a benchmark as tables: for the terminal, and as Markdown for a README."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..models.latency import WIDTHS
from .ways import OFF, STATIC

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def as_text(document: Document) -> str:
    parts = [heading(document), *(text_table(table) for table in tables(document)), "\n".join(notes(document))]
    return "\n\n".join(parts)


def as_markdown(document: Document) -> str:
    parts = [heading(document) + ".", *(markdown_table(table) for table in tables(document))]
    return "\n\n".join([*parts, "\n".join(f"* {note}" for note in notes(document))])


def heading(document: Document) -> str:
    counts = "; ".join(_domain(document, domain) for domain in document["prompts"])
    commit = f", commit {document['commit']}" if document.get("commit") else ""
    return (
        f"{document['model']}, {document['dtype']}, {document['device_name']}; greedy, one text at a time, "
        f"{sum(document['prompts'].values())} prompts ({counts}), up to {document['options']['max_new_tokens']} new "
        f"tokens; selfdraft {document['selfdraft']}{commit}, torch {document['torch']}, transformers "
        f"{document['transformers']}, {document['date'][:10]}"
    )


def _domain(document: Document, domain: str) -> str:
    """How much was measured, in prompts and in tokens of plain decoding."""
    (off,) = (row for row in document["rows"] if row["kind"] == "ours" and row["name"] == OFF)
    num_tokens = number(_of(off, domain, "num_tokens"), "d")
    count = document["prompts"][domain]
    return f"{domain} {count} prompt{'s' if count != 1 else ''}, {num_tokens} tokens"


def label(document: Document, row: Mapping[str, Any]) -> str:
    """With the number of new tokens, where it is not that of the others."""
    count = row["max_new_tokens"]
    return row["label"] if count == document["options"]["max_new_tokens"] else f"{row['label']} ({count} tokens)"


def tables(document: Document) -> list[Table]:
    return [table for table in (_calls(document), _decoding(document), _passes(document), _drafts(document)) if table]


def _calls(document: Document) -> Table:
    """Whole calls, prefill included."""
    domains = list(document["prompts"])
    base = [f"against {document['baseline']}"] if document["baseline"] else []
    header = ["whole calls", "tokens/s", *domains, *base, "against off", "ms/token", "first token ms", "outputs"]
    rows = []
    for row in document["rows"]:
        if row["error"]:
            rows.append([label(document, row), f"failed: {row['error']}", *[""] * (len(header) - 2)])
            continue
        total = row["total"]
        rows.append(
            [
                label(document, row),
                number(total["tokens_per_second"], ".1f"),
                *(number(_of(row, domain, "tokens_per_second"), ".1f") for domain in domains),
                *(times(total["speedup"]) for _ in base),
                times(total["speedup_over_off"]),
                number(total["ms_per_token"], ".2f"),
                number(total["first_token_ms"], ".1f"),
                verdicts(total) if row["name"] != "off" else "-",
            ]
        )
    return Table("whole calls", header, rows)


def _decoding(document: Document) -> Table:
    """Ours alone, prefill excluded; first what the passes cost predicts, then what was reached."""
    domains = list(document["prompts"])
    header = [
        "decoding",
        "ms/token",
        "accepted",
        "length",
        "bound",
        "reached",
        *domains,
        "of bound",
        "overhead",
        "floor",
    ]
    rows = []
    for row in (row for row in document["rows"] if row["kind"] == "ours"):
        total, is_off = row["total"], row["name"] == "off"
        rows.append(
            [
                row["label"],
                number(total["decode_ms_per_token"], ".2f"),
                number(total["acceptance_rate"], ".0%"),
                number(total["mean_generated_length"], ".2f"),
                "-" if is_off else times(total["predicted_speedup"]),
                times(total["decode_speedup_over_off"]),
                *(times(_of(row, domain, "decode_speedup_over_off")) for domain in domains),
                "-" if is_off else number(total["reached_share"], ".0%"),
                number(total["round_overhead"], ".1%"),
                number(total["floor_share"], ".0%"),
            ]
        )
    return Table("decoding", header, rows)


def _passes(document: Document) -> Table:
    """A readable selection; the document has them all."""
    known = document["costs"]["width_ms"]
    one, shown = known["1"], {str(width): known[str(width)] for width in WIDTHS if str(width) in known}
    header = ["one pass of so many tokens", *shown]
    return Table(
        "passes",
        header,
        [
            ["ms", *(f"{value:.3f}" for value in shown.values())],
            ["against one token", *(times(value / one) for value in shown.values())],
        ],
    )


def _drafts(document: Document) -> Table | None:
    rows = [
        [
            draft["skip"] or "nothing",
            number(draft["vocabulary"], "d"),
            f"{draft['ms']:.3f}",
            f"{draft['ratio']:.3f}",
            f"{draft['ratio_by_weights']:.3f}",
            ", ".join(draft["ways"]) or "-",
        ]
        for draft in document["costs"]["drafts"]
    ]
    header = ["one drafted token, skipped", "vocabulary", "ms", "of a full pass", "by weights", "used by"]
    return Table("drafts", header, rows) if rows else None


def notes(document: Document) -> Iterator[str]:
    costs, graphs, memory = document["costs"], document["graphs"], document["memory"]
    for row in document["rows"]:
        if row["kind"] == "peer" and not row["error"] and 0 < row["total"]["different"] == row["total"]["num_prompts"]:
            yield f"WARNING: {row['label']} says something else on every prompt: its figures are not comparable"
    yield (
        f"passes behind {costs['context']} tokens; memory floor {costs['floor_ms']:.3f} ms: "
        f"{size(costs['pass_bytes'])} of weights at {costs['copy_bytes_per_second'] / 1e9:.0f} GB/s (measured copy)"
    )
    yield (
        f"graphs {number(graphs['num_graphs'], 'd')}, {size(graphs['num_bytes'])}; captured "
        f"{number(graphs['num_captures'], 'd')} in {number(graphs['capture_seconds'], '.1f')} s, "
        f"{_recorded(graphs['while_measuring'])} while measuring; fallback: {graphs['fallback_reason'] or '-'}"
    )
    recording = number(document.get("prepare_seconds"), ".1f")
    yield (
        f"ready {document['ready_seconds']:.1f} s after loading, {recording} s of it recording ahead of time; "
        f"memory {size(memory['used'])}, "
        f"peak {size(memory['peak'])} (held {size(memory['peak_held'])})"
    )
    first_calls = (f"{row['label']} {row['warm_up_seconds']:.1f} s" for row in document["rows"])
    yield f"warm-up: {', '.join(first_calls)}"
    if soak := document["soak"]:
        grown = ", ".join(_growth(soak, name) for name in ("used", "held"))
        yield f"memory over {soak['num_generations']} generations of mixed length: {grown}"
        yield f"graphs captured meanwhile: {_recorded(soak['graphs'])}"
    if document["baseline"] is None:
        yield "no peer ran: there is nothing to hold the speed of whole calls against"
    for row in document["rows"]:
        if row["name"] == STATIC and document["device"].startswith("cuda"):
            yield f"{row['label']}: static cache, compiled by transformers itself"
        if row["max_new_tokens"] != document["options"]["max_new_tokens"]:
            yield f"{row['label']}: {row['max_new_tokens']} new tokens only"
    for row in document["rows"]:
        yield from _differences(row)
    if not document["is_complete"]:
        yield "cut short: only the prompts counted above were measured"


def _recorded(graphs: Mapping[str, Any]) -> str:
    """How many, and which."""
    found = (f"{one['kind']} {one['rows']}x{one['width']} up to {one['end']}" for one in graphs["recorded"])
    listed = ", ".join(found)
    return number(graphs["num_captures"], "d") + (f" ({listed})" if listed else "")


def _growth(soak: Mapping[str, Any], name: str) -> str:
    samples = " -> ".join(size(sample[name]) for sample in soak["samples"])
    grown = soak["growth"][name]
    return f"{name} {samples} ({'-' if grown is None else f'{grown / 1e6:+.1f} MB'})"


def _differences(row: Mapping[str, Any]) -> Iterator[str]:
    """Ties and differences in one line each; the document has them all."""
    for verdict in ("tie", "different"):
        items = [item for item in row.get("differences", ()) if item["verdict"] == verdict]
        if items:
            gaps = [item["gap"] for item in items if item["gap"] is not None]
            gap = f"largest gap {max(gaps):.2g}" if gaps else "one text ends earlier"
            first = f"{items[0]['id']} ({items[0]['domain']}) from token {items[0]['first_difference']} on"
            yield f"{row['label']}: {len(items)} {verdict}, {gap}, the first in {first}"


def _of(row: Mapping[str, Any], domain: str, name: str) -> float | None:
    value: float | None = row["domains"].get(domain, {}).get(name)
    return value


def verdicts(total: Mapping[str, Any]) -> str:
    found = [f"{total[verdict]} {verdict}" for verdict in ("equal", "tie", "different") if total[verdict]]
    return ", ".join(found) or "-"


def number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def size(num_bytes: float | None) -> str:
    if num_bytes is None:
        return "-"
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"


def text_table(table: Table) -> str:
    lines = [table.header, *table.rows]
    spans = [row for row in lines if all(row[1:])]  # a failed row says one long thing
    widths = [max(len(row[column]) for row in (lines if column == 0 else spans)) for column in range(len(table.header))]
    return "\n".join(_text_row(row, widths) for row in lines)


def _text_row(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)]
    return f"{row[0]:{widths[0]}}  {'  '.join(cells)}".rstrip()


def markdown_table(table: Table) -> str:
    lines = [table.header, ["---", *["---:"] * (len(table.header) - 1)], *table.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
