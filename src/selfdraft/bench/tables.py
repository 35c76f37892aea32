"""Results as tables for the terminal and as Markdown; the columns of `selfdraft bench` as data."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..measure.estimate import FEW_PROMPTS, Estimate
from ..measure.figures import PARTS, Figures, share
from ..measure.records import OFF, VERDICTS
from ..measure.result import Arm, Result
from .advice import INCONCLUSIVE, advice, peer_remarks, verdict_of

WIDTH = 120
EXPECTED: Mapping[str, str] = {"measured": "c measured", "by_ratio": "c = 1 - r", "by_parts": "eq. 11"}
"""How the cost of a drafted token is stated -> what a reader sees."""
LEGEND = (
    "accepted (acc.): share of drafted tokens kept; length: tokens a round emits; cost: of a drafted token, a plain "
    "pass = 1; expected: the speed-up M a / ((M - 1) c + a) that length M, accepted share a and cost c promise, with c"
    " measured, with c = 1 - r for a share r of sub-layers skipped, and by equation 11 of KNN-SSD (arXiv:2505.16162), "
    "attention and MLP (feed-forward) apart; o/d/v/-: optimise, draft, verify, other in percent of decoding; peak: the"
    " most memory during a call; =/tie/diff: outputs compared with plain decoding, tie: different by rounding alone"
)


@dataclass(frozen=True)
class Table:
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


# ------------------------------------------------------------------------------------------------------------- cells


def number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def interval(found: Estimate | None) -> str:
    """`1.20x [1.15, 1.26]`."""
    return "-" if found is None else f"{times(found.value)} [{found.low:.2f}, {found.high:.2f}]"


def size(num_bytes: float | None) -> str:
    if num_bytes is None:
        return "-"
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"


def outputs(total: Figures) -> str:
    """Equal, tie, different."""
    counts = [getattr(total, verdict) for verdict in VERDICTS]
    return "/".join(map(str, counts)) if any(counts) else "-"


Cell = Callable[[Figures], str]
CELLS: Mapping[str, Cell] = {
    "speed-up": lambda total: interval(total.shown_speedup),
    "tokens/s": lambda total: number(total.tokens_per_second, ".1f"),
    "ms/token": lambda total: number(total.milliseconds, ".2f"),
    "calls, tok/s": lambda total: number(total.num_tokens / total.call_seconds, ".1f"),
    "accepted": lambda total: number(total.acceptance_rate, ".1%"),
    "alpha": lambda total: number(total.acceptance_rate, ".2f"),
    "M": lambda total: number(total.mean_generated_length, ".2f"),
    "r": lambda total: number(total.skip_ratio, ".2f"),
    "c": lambda total: number(total.cost, ".2f"),
    "x": lambda total: times(total.shown_speedup and total.shown_speedup.value),
    "expected": lambda total: times(total.expected["by_ratio"]),
    "expected by c": lambda total: times(total.expected["measured"]),
    "attention skipped": lambda total: number(total.skipped_attention, ".0%"),
    "MLP skipped": lambda total: number(total.skipped_mlp, ".0%"),
    "planning": lambda total: number(total.split["optimise"], ".1%"),
    "recording": lambda total: number(share(total.record_seconds, total.decode_seconds), ".1%"),
    "outputs": outputs,
    "bound": lambda total: times(total.bound),
    "reached": lambda total: number(share(total.speedup and total.speedup.value, total.bound), ".0%"),
    "kept": lambda total: number(share(total.speedup and total.speedup.value, total.expected["measured"]), ".0%"),
}
"""A figure of an arm by the name of its column, for any table.

`bound`: the speed-up that the costs of passes allow; `reached`: the share of it; `kept`: of what is expected by c.
"""


# ---------------------------------------------------------------------------------------------------------- of bench


def _cell(field: str, name: str, spelled: Callable[[float | None], str]) -> Cell:
    """Of figures that are several by name."""
    return lambda total: spelled(getattr(total, field)[name])


COLUMNS: Mapping[str, Cell] = {
    "speed-up": CELLS["speed-up"],
    "tokens/s": CELLS["tokens/s"],
    "accepted": CELLS["accepted"],
    "length": CELLS["M"],
    "cost": lambda total: number(total.cost, ".3f"),
    **{f"expected speed-up, {label}": _cell("expected", name, times) for name, label in EXPECTED.items()},
    **{f"share of decoding, {name}": _cell("split", name, partial(number, form=".1%")) for name in PARTS},
    "peak memory": lambda total: size(total.peak_bytes),
    "= / tie / ≠": outputs,
}
TERMINAL: Mapping[str, Cell] = {
    "speed-up": CELLS["speed-up"],
    "tok/s": CELLS["tokens/s"],
    "acc.": lambda total: number(total.acceptance_rate, ".0%"),
    "length": CELLS["M"],
    "cost": CELLS["c"],
    "expected c/r/11": lambda total: _joined([total.expected[name] for name in EXPECTED], ".2f"),
    "o/d/v/- %": lambda total: _joined([total.split[name] for name in PARTS], ".0%").replace("%", ""),
    "peak": COLUMNS["peak memory"],
    "=/tie/diff": outputs,
}
"""Narrow: what belongs together stands in one column."""
PASS_COLUMNS: Mapping[str, Cell] = {
    "whole calls, tokens/s": CELLS["calls, tok/s"],
    "first token ms": lambda total: number(total.first_token_seconds and 1000 * total.first_token_seconds, ".1f"),
    "decoding, ms/token": lambda total: number(total.milliseconds if total.decode_seconds else None, ".2f"),
    "bound": CELLS["bound"],
    "reached": CELLS["reached"],
}
"""Where single passes were timed."""
MODE_COLUMNS = (
    *("ms/token", "calls, tok/s", "speed-up", "accepted", "M", "c"),
    *("expected by c", "kept", "bound", "reached", "outputs"),
)


def _joined(values: Sequence[float | None], form: str) -> str:
    return "/".join(number(value, form) for value in values) if any(value is not None for value in values) else "-"


def shown_arms(result: Result) -> list[Arm]:
    """Plain decoding first, then the fastest first."""
    return [*(arm for arm in result.arms if arm.name == OFF and arm.total), *result.measured]


def name_of(arm: Arm) -> str:
    """With a mark where the speed-up is that of whole calls."""
    return f"{arm.name} *" if arm.total and arm.total.is_of_calls else arm.name


def main_table(result: Result, name: str = "methods", columns: Mapping[str, Cell] = COLUMNS) -> Table:
    """A speed-up that is inconclusive has a mark."""
    rows = [
        [name_of(arm), *(mark(result, arm, column) + cell(arm.total) for column, cell in columns.items())]
        for arm in shown_arms(result)
        if arm.total
    ]
    return Table(name, ["method", *columns], rows)


def mark(result: Result, arm: Arm, column: str = "speed-up") -> str:
    return "? " if column == "speed-up" and verdict_of(result, arm) == INCONCLUSIVE else ""


def domain_table(result: Result) -> Table:
    domains, cell = list(result.prompts_of), CELLS["speed-up"]
    rows = [
        [name_of(arm), *(_of_domain(arm, domain) for domain in domains), mark(result, arm) + cell(arm.total)]
        for arm in result.measured
        if arm.total
    ]
    return Table("domains", ["speed-up", *domains, "all"], rows)


def _of_domain(arm: Arm, domain: str) -> str:
    """One prompt has no interval."""
    found = arm.domains.get(domain)
    if found is None or found.shown_speedup is None:
        return "-"
    return interval(found.shown_speedup) if found.num_prompts > 1 else times(found.shown_speedup.value)


def mode_tables(result: Result) -> list[Table]:
    """Where prompts were decoded in several modes: each method in each of them."""
    rows = [
        [mode, arm.name, *(CELLS[column](arm.domains[mode]) for column in MODE_COLUMNS)]
        for mode in result.head.question.get("modes", ())
        for arm in shown_arms(result)
        if mode in arm.domains
    ]
    return [Table("modes", ["mode", "method", *MODE_COLUMNS], rows)] if rows else []


def pass_tables(result: Result) -> list[Table]:
    """What single passes take, and how close methods come to the bound that follows."""
    costs = result.all_of.machine.costs
    if costs is None:
        return []
    widths = costs["width_seconds"]
    passes = [
        ["ms", *(f"{1000 * seconds:.3f}" for seconds in widths.values())],
        ["against one token", *(times(seconds / widths["1"]) for seconds in widths.values())],
    ]
    drafts = [
        [draft["skip"] or "nothing", f"{1000 * draft['seconds']:.3f}", times(draft["seconds"] / widths["1"])]
        for draft in costs["drafts"]
    ]
    tables = [main_table(result, "calls", PASS_COLUMNS), Table("passes", ["one pass, tokens", *widths], passes)]
    return [*tables, *([Table("drafts", ["one drafted token, skipped", "ms", "of a pass"], drafts)] if drafts else [])]


# -------------------------------------------------------------------------------------------------------- around them


def title(facts: Mapping[str, object]) -> str:
    parts = (facts.get("model"), facts.get("device_name") or facts.get("device"), facts.get("dtype"))
    return ", ".join(str(part) for part in parts if part) or "selfdraft"


def facts_of(result: Result) -> dict[str, Any]:
    return {**result.head.circumstances, **result.head.question}


def heading(result: Result) -> str:
    counts = ", ".join(f"{domain} {count}" for domain, count in result.prompts_of.items())
    return f"{title(facts_of(result))}; {_texts(len(result.plain))} ({counts or 'none yet'})"


def _texts(count: int) -> str:
    return "1 text" if count == 1 else f"{count} texts"


def notes(result: Result) -> Iterator[str]:
    """On the tables."""
    totals = [(arm, arm.total) for arm in result.measured if arm.total]
    if any(verdict_of(result, arm) == INCONCLUSIVE for arm, _ in totals):
        yield f"? inconclusive: 1.00x in the interval, or fewer than {FEW_PROMPTS} prompts; rerun, or use more prompts"
    if any(total.is_of_calls for _, total in totals):
        yield "* speed-up of whole calls, prefill included: how long such a method decodes is not known"
    yield from peer_remarks(result)
    for arm, _ in totals:
        if arm.kind == "control":
            yield f"{arm.name}: plain decoding once more; its distance from 1.00x shows the noise of this run"
    if any(record.verdict is None and record.arm != OFF for record in result.all_of.records):
        yield "rejection sampling promises the distribution, not the text: such outputs are not compared"
    yield from _run_notes(result)
    yield from (f"{arm.name} could not run: {arm.error}" for arm in result.arms if arm.error)


def _run_notes(result: Result) -> Iterator[str]:
    for count in result.head.resumed_at:
        yield f"interrupted and resumed after {_texts(count)}: what strategies had learned by then was learned again"
    if busy := result.head.circumstances.get("busy"):
        yield f"the machine was busy for {busy}"
    machine = result.all_of.machine
    if machine.num_turns_left_out:
        yield f"later turns left out, as they might not fit the model's context: {machine.num_turns_left_out}"
    if costs := machine.costs:
        floor = f"{size(costs['pass_bytes'])} of weights at {costs['copy_bytes_per_second'] / 1e9:.0f} GB/s"
        yield f"passes after {costs['context']} tokens; memory floor {1000 * costs['floor_seconds']:.3f} ms: {floor}"
    if soak := machine.soak:
        grown = soak["growth"]["used"]
        change = "-" if grown is None else f"{grown / 1e6:+.1f} MB"
        yield f"memory over {soak['num_generations']} generations of mixed length: {change}"
    if not result.is_complete:
        yield f"cut short: the first {_texts(len(result.plain))} only"


def as_text(result: Result) -> str:
    paragraphs = [advice(result), *notes(result), LEGEND]
    below = "\n".join(textwrap.fill(text, WIDTH, subsequent_indent="  ") for text in paragraphs)
    tables = [_terminal_table(result), *mode_tables(result), *pass_tables(result)]
    return "\n\n".join([textwrap.fill(heading(result), WIDTH), *map(text_table, tables), below])


def as_markdown(result: Result) -> str:
    tables = map(markdown_table, (main_table(result), domain_table(result), *mode_tables(result), *pass_tables(result)))
    said = (advice(result), *notes(result), measured_with(result))
    below = "\n".join("- " + note.replace("*", "\\*") for note in said)  # a star would begin a list
    return "\n\n".join([f"{heading(result)}.", *tables, below])


def measured_with(result: Result) -> str:
    facts = facts_of(result)
    versions = (f"{name} {facts[name]}" for name in ("selfdraft", "commit", "torch", "transformers") if facts.get(name))
    return f"measured with {', '.join(versions)}; {str(facts.get('date', ''))[:10]}"


def _terminal_table(result: Result) -> Table:
    """A long name is cut; its mark stays."""
    table = main_table(result, columns=TERMINAL)
    widths = [max(map(len, column)) for column in zip(table.header, *table.rows, strict=True)]
    room = max(8, WIDTH - sum(widths[1:]) - 2 * len(widths[1:]))
    rows = []
    for name, *rest in table.rows:
        mark = " *" if name.endswith(" *") else ""
        rows.append([name if len(name) <= room else f"{name[: room - 2 - len(mark)]}..{mark}", *rest])
    return Table(table.title, table.header, rows)


def text_table(table: Table) -> str:
    """The first column to the left, all others to the right."""
    lines = [table.header, *table.rows]
    first, *widths = (max(map(len, column)) for column in zip(*lines, strict=True))
    padded = ([f"{cell:>{width}}" for cell, width in zip(row[1:], widths, strict=True)] for row in lines)
    return "\n".join("  ".join([f"{row[0]:{first}}", *rest]).rstrip() for row, rest in zip(lines, padded, strict=True))


def markdown_table(table: Table) -> str:
    lines = [table.header, ["---", *["---:"] * (len(table.header) - 1)], *table.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
