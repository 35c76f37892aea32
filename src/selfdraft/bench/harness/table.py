"""A document as tables: for the terminal, as Markdown, and the cells that the page shows."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..report import Table, markdown_table, number, size, text_table, times
from ..totals import VERDICTS
from ..ways import OFF
from .advice import advice
from .rows import Document, Row, failed, interval, is_of_calls, measured, shown_speedup

WIDTH = 120
PARTS = ("optimise", "draft", "verify", "other")
EXPECTED: Mapping[str, str] = {"measured": "c measured", "by_ratio": "c = 1 - r", "by_parts": "eq. 11"}
"""How the cost of a drafted token is told -> what a reader sees."""
Figures = Mapping[str, Any]


def outputs(total: Figures) -> str:
    """Equal, tie, different."""
    counts = [total[verdict] for verdict in VERDICTS]
    return "/".join(map(str, counts)) if any(counts) else "-"


def _figure(name: str, form: str) -> Callable[[Figures], str]:
    return lambda total: number(total[name], form)


def _expected(name: str) -> Callable[[Figures], str]:
    return lambda total: times(total["expected"][name])


def _part(name: str) -> Callable[[Figures], str]:
    return lambda total: number(total["split"][name], ".1%")


COLUMNS: Sequence[tuple[str, str, Callable[[Figures], str]]] = (
    ("", "speed-up", lambda total: interval(shown_speedup(total))),
    ("", "tokens/s", _figure("tokens_per_second", ".1f")),
    ("", "accepted", _figure("acceptance_rate", ".1%")),
    ("", "length", _figure("mean_generated_length", ".2f")),
    ("", "cost", _figure("cost_measured", ".3f")),
    *(("expected speed-up", label, _expected(name)) for name, label in EXPECTED.items()),
    *(("share of decoding", name, _part(name)) for name in PARTS),
    ("", "peak memory", lambda total: size(total["peak_bytes"])),
    ("", "= / tie / ≠", outputs),
)
"""(what a few columns share, name, cell)."""


def shown_rows(document: Document) -> list[Row]:
    """Plain decoding first, then the fastest first."""
    return [*(row for row in document["ways"] if row["name"] == OFF and "total" in row), *measured(document)]


def name_of(row: Row) -> str:
    """With a mark where the speed-up is that of whole calls."""
    return f"{row['name']} *" if is_of_calls(row["total"]) else str(row["name"])


def main_table(document: Document) -> Table:
    header = ["way", *(f"{group}, {name}" if group else name for group, name, _ in COLUMNS)]
    rows = [[name_of(row), *(cell(row["total"]) for *_, cell in COLUMNS)] for row in shown_rows(document)]
    return Table("ways", header, rows)


def domain_table(document: Document) -> Table:
    domains = list(document["prompts_of"])
    rows = [
        [name_of(row), *(_of_domain(row, domain) for domain in domains), interval(shown_speedup(row["total"]))]
        for row in measured(document)
    ]
    return Table("domains", ["speed-up", *domains, "all"], rows)


def _of_domain(row: Row, domain: str) -> str:
    """One prompt has no interval."""
    found = row["domains"].get(domain)
    if found is None:
        return "-"
    return interval(shown_speedup(found)) if found["num_prompts"] > 1 else times(shown_speedup(found)["value"])


def heading(document: Document) -> str:
    counts = ", ".join(f"{domain} {count}" for domain, count in document["prompts_of"].items())
    return f"{title(document)}; {_texts(document['num_texts'])} ({counts or 'none yet'})"


def _texts(count: int) -> str:
    return "1 text" if count == 1 else f"{count} texts"


def _is_drawn(row: Row) -> bool:
    return (row.get("method") or {}).get("acceptance") == "rejection"


def title(document: Document) -> str:
    parts = (document.get("model"), document.get("device_name") or document.get("device"), document.get("dtype"))
    return ", ".join(str(part) for part in parts if part) or "selfdraft"


def notes(document: Document) -> Iterator[str]:
    yield from remarks(document)
    for row in failed(document):
        yield f"{row['name']} could not run: {row['error']}"


def remarks(document: Document) -> Iterator[str]:
    """On the table."""
    if any(is_of_calls(row["total"]) for row in measured(document)):
        yield "* speed-up of whole calls, prefill included: how long such a way decodes is not known"
    if any(row["total"]["different"] for row in measured(document) if row["kind"] == "peer"):
        yield "different outputs of peers: they do not promise to say what plain decoding says"
    fewest = min((row["total"]["num_prompts"] for row in measured(document) if row["kind"] == "peer"), default=None)
    if fewest is not None and fewest < document["num_texts"]:
        yield f"peers were measured on {fewest} of the texts, and held against plain decoding of the same ones"
    for row in measured(document):
        if row["kind"] == "control":
            yield f"{row['name']}: plain decoding once more; what it is off 1.00x is chance"
    if document.get("temperature") and any(_is_drawn(row) for row in measured(document)):
        yield "rejection sampling promises the distribution, not the text: such outputs are not compared"
    for count in document["resumed_at"]:
        yield f"interrupted and resumed behind {_texts(count)}: what strategies had learned by then was learned again"
    if count := document["machine"].get("num_turns_left_out"):
        yield f"later turns left out, as they might not fit the model's context: {count}"
    if not document["is_complete"]:
        yield f"cut short: the first {_texts(document['num_texts'])} only"


_LEGEND = (
    "acc.: share of drafted tokens accepted; length: tokens a round; cost: of a drafted token, a plain pass = 1; "
    "expected: speed-up by M a / ((M - 1) c + a) with c measured, c = 1 - r, and by equation 11; o/d/v/-: optimise, "
    "draft, verify, other in percent of decoding; =/tie/diff: outputs held against plain decoding"
)
_TERMINAL = ("way", "speed-up", "tok/s", "acc.", "length", "cost", "expected c/r/11", "o/d/v/- %", "peak", "=/tie/diff")


def as_text(document: Document) -> str:
    paragraphs = [advice(document), *notes(document)]
    paragraphs.append(_LEGEND)
    below = "\n".join(textwrap.fill(text, WIDTH, subsequent_indent="  ") for text in paragraphs)
    table = text_table(_terminal_table(document))
    return "\n\n".join([textwrap.fill(heading(document), WIDTH), table, below])


def _terminal_table(document: Document) -> Table:
    """What belongs together in one column; a long name is cut."""
    cells = [_terminal_cells(row["total"]) for row in shown_rows(document)]
    widths = [max(map(len, column)) for column in zip(_TERMINAL[1:], *cells, strict=True)]
    room = max(8, WIDTH - sum(widths) - 2 * len(widths))
    names = [_cut(row, room) for row in shown_rows(document)]
    return Table("ways", _TERMINAL, [[name, *rest] for name, rest in zip(names, cells, strict=True)])


def _terminal_cells(total: Figures) -> list[str]:
    expected = [number(total["expected"][name], ".2f") for name in EXPECTED]
    parts = [total["split"][name] for name in PARTS]
    return [
        interval(shown_speedup(total)),
        number(total["tokens_per_second"], ".1f"),
        number(total["acceptance_rate"], ".0%"),
        number(total["mean_generated_length"], ".2f"),
        number(total["cost_measured"], ".2f"),
        "/".join(expected) if any(cell != "-" for cell in expected) else "-",
        "-" if None in parts else "/".join(f"{100 * part:.0f}" for part in parts),
        size(total["peak_bytes"]),
        outputs(total),
    ]


def _cut(row: Row, width: int) -> str:
    """The name, its mark included."""
    mark, name = name_of(row).removeprefix(row["name"]), str(row["name"])
    room = width - len(mark)
    return (name if len(name) <= room else name[: room - 2] + "..") + mark


def as_markdown(document: Document) -> str:
    tables = [markdown_table(main_table(document)), markdown_table(domain_table(document))]
    return "\n\n".join(
        [f"{heading(document)}.", *tables, "\n".join(f"* {note}" for note in (advice(document), *notes(document)))]
    )
