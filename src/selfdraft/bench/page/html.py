"""One page of results that needs nothing but itself: no script, no font, no picture from elsewhere; light and dark.

`page.html` has its frame and its style; here is what stands in it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from ...measure.records import OFF, VERDICTS
from ...measure.result import Result
from .. import tables
from ..advice import advice, best_of_ours, method_options, warnings
from ..charts import DARK, LIGHT, PLOT_EXTRA, Theme, render
from ..tables import Table, number, times
from .charts import Chart

Charts = Mapping[str, Chart]
NO_PICTURES = f"without pictures: these need matplotlib, {PLOT_EXTRA}"
_FOLDERS = re.compile(r"(?<![\w.:/])(?:~|[A-Za-z]:)?[/\\](?:[^/\\\s'\":]+[/\\])+")


def page(results: Sequence[tuple[Result, Charts]]) -> str:
    """A result without charts says why it has none."""
    titles = [_text(tables.title(tables.facts_of(result))) for result, _ in results]
    links = "".join(f'<li><a href="#result-{place}">{one}</a></li>' for place, one in enumerate(titles))
    sections = [f'<section id="result-{place}">\n{_section(*one)}</section>' for place, one in enumerate(results)]
    template = Template(files(__package__).joinpath("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        name=f"selfdraft: {titles[0] if len(titles) == 1 else f'{len(titles)} results'}",
        light=_variables(LIGHT),
        dark=_variables(DARK),
        nav=f"<nav><ul>{links}</ul></nav>" if len(titles) > 1 else "",
        sections="\n".join(sections),
    )


def _variables(theme: Theme) -> str:
    """The colours are those of the charts."""
    colors = {name: getattr(theme, name) for name in ("ground", "ink", "soft", "grid", "band")}
    colors |= {"link": theme.roles["faster"], "alarm": theme.series[1]}
    return " ".join(f"--{name}: {color};" for name, color in colors.items())


def _section(result: Result, charts: Charts) -> str:
    arms, best = tables.shown_arms(result), best_of_ours(result)
    kinds = [f"{arm.kind} best" if arm is best else arm.kind for arm in arms]
    notes = "".join(f"<li>{_text(note)}</li>" for note in (*tables.notes(result), tables.LEGEND))
    return "".join((
        f"<p class=result>{_text(tables.heading(result))}</p>\n",
        f"<p class=soft>{_text(tables.measured_with(result))}</p>\n",
        _advice(result),
        _tiles(result),
        _table("All methods", tables.main_table(result), kinds) if arms else "<p>No text has been finished yet.</p>\n",
        f"<ul class=soft>{notes}</ul>\n",
        *(_chart(name, chart) for name, chart in charts.items()),
        "" if charts else f"<p class=soft>{_text(NO_PICTURES)}</p>\n",
        _table("By domain", tables.domain_table(result)) if len(result.prompts_of) > 1 else "",
        *(_table("By mode", table) for table in tables.mode_tables(result)),
        *(_table(f"Single passes: {table.title}", table) for table in tables.pass_tables(result)),
        _table("Circumstances", Table("facts", ["", ""], list(_flat(_facts(result))))),
    ))  # fmt: skip


def _advice(result: Result) -> str:
    """What is to be typed stands out."""
    loud, best = list(warnings(result)), best_of_ours(result)
    rest = advice(result).removeprefix(" ".join(loud)).strip()
    typed = method_options(best.asked or best.method) if best else "--strategy off"
    shown = _text(rest).replace(_text(typed), f"<code>{_text(typed)}</code>") if typed else _text(rest)
    warned = "".join(f'<div class="note warning" role=alert><p>{_text(text)}</p></div>\n' for text in loud)
    return f'{warned}<div class="note"><p>{shown}</p></div>\n'


def _tiles(result: Result) -> str:
    """The figures to take home."""
    best, tiles = best_of_ours(result), []
    totals = {arm.name: arm.total for arm in tables.shown_arms(result) if arm.kind != "peer" and arm.total}
    plain = totals.pop(OFF, None)
    if plain and best and best.total and best.total.shown_speedup:
        speeds = [number(total.tokens_per_second, ".0f") for total in (plain, best.total)]
        tiles += [(times(best.total.shown_speedup.value), f"with {best.name}")]
        tiles += [(" → ".join(speeds), "tokens per second, plainly and with it")]
    equal, tie, different = (sum(getattr(total, verdict) for total in totals.values()) for verdict in VERDICTS)
    if count := equal + tie + different:
        said = f"outputs of ours equal to plain decoding, {tie} ties, {different} different"
        tiles += [(f"{equal} of {count}", said)]
    cells = "".join(f"<div><strong>{_text(value)}</strong><span>{_text(name)}</span></div>" for value, name in tiles)
    return f'<div class="tiles">{cells}</div>\n' if cells else ""


def _table(title: str, table: Table, kinds: Sequence[str] = ()) -> str:
    """A wide table scrolls by itself, the page never does; it can be reached by keyboard."""
    header = "".join(f"<th scope=col>{_text(name)}</th>" for name in table.header)
    rows = "".join(map(_row, table.rows, kinds or [""] * len(table.rows)))
    return (
        f'<h2>{_text(title)}</h2>\n<div class="scroll" tabindex=0 role=region aria-label="{_text(title)}">\n'
        f'<table class="{table.title}"><thead><tr>{header}</tr></thead><tbody>{rows}</tbody></table>\n</div>\n'
    )


def _row(cells: Sequence[str], kind: str) -> str:
    """An interval is smaller than its value."""
    chip = f' <span class="chip">{kind}</span>' if kind in ("peer", "bound") else ""
    small = (re.sub(r" (\[.*\])$", r" <small>\1</small>", _text(cell)) for cell in cells[1:])
    rest = "".join(f"<td>{cell}</td>" for cell in small)
    return f'<tr class="{_text(kind)}"><th scope=row>{_text(cells[0])}{chip}</th>{rest}</tr>'


def _facts(result: Result) -> dict[str, Any]:
    machine = {"layers": result.all_of.machine.num_layers, "attention against MLP": result.all_of.machine.beta}
    return {name: value for name, value in result.document().items() if name not in ("arms", "machine")} | machine


def _flat(facts: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        elif value not in (None, "", []):
            one = f"{value:.4g}" if isinstance(value, float) else str(value)
            yield f"{before}{name}".replace("_", " "), ", ".join(map(str, value)) if isinstance(value, list) else one


def _chart(name: str, chart: Chart) -> str:
    head = f"<h2>{_text(chart.title)}</h2>\n<p>{_text(chart.text)}</p>\n"
    if chart.draw is None:
        return head
    alt, (width, height) = _text(chart.alt or chart.text), (round(96 * inches) for inches in chart.size)
    drawn = [render(chart.draw, chart.size, theme=theme, form="svg") for theme in (LIGHT, DARK)]
    light, dark = ("data:image/svg+xml;base64," + base64.b64encode(one).decode() for one in drawn)
    return (
        f'{head}<div class="scroll" tabindex=0 role=region aria-label="{_text(chart.title)}"><picture>\n'
        f'<source media="(prefers-color-scheme: dark)" srcset="{dark}">\n'
        f'<img id="{name}" class="chart" src="{light}" alt="{alt}" width={width} height={height}>\n'
        "</picture></div>\n"
    )


def _text(value: str) -> str:
    """Where a file lies on the machine that measured says nothing to a reader."""
    return escape(_FOLDERS.sub("", value))
