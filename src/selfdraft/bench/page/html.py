"""One page of results that needs nothing but itself: no script, no font, no picture from elsewhere; light and dark."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

from ...measure.records import OFF, VERDICTS
from ...measure.result import Result
from ..advice import advice, best_of_ours, method_options, warnings
from ..charts import DARK, LIGHT, Chart, Missing, Theme, render
from ..tables import COLUMNS, domain_table, heading, name_of, number, remarks, shown_arms, times, title

Charts = Mapping[str, Chart | Missing]
_SHARES = ("measuring_share", "judge_share")
_DERIVED = ("benchmark", "machine", "arms", "prompts_of", "num_texts", "is_complete", "seconds", *_SHARES)
_FOLDERS = re.compile(r"(?<![\w.:/])(?:~|[A-Za-z]:)?[/\\](?:[^/\\\s'\":]+[/\\])+")


def without_folders(text: str) -> str:
    """Where a file lies on the machine that measured says nothing to a reader."""
    return _FOLDERS.sub("", text)


def page(results: Sequence[tuple[Result, Charts]]) -> str:
    titles = [_title(result) for result, _ in results]
    name = f"selfdraft: {titles[0]}" if len(titles) == 1 else f"selfdraft: {len(titles)} results"
    items = "".join(f'<li><a href="#result-{place}">{_text(one)}</a></li>' for place, one in enumerate(titles))
    head = f"<h1>{_text(name)}</h1>" + (f"<nav><ul>{items}</ul></nav>\n" if len(titles) > 1 else "")
    names = [f"<h2 class=result>{_text(one)}</h2>\n" for one in titles] if len(titles) > 1 else [""]
    sections = "".join(
        f'<section id="result-{place}">\n{names[place]}{_section(*one)}</section>\n'
        for place, one in enumerate(results)
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{_text(name)}</title>\n<style>\n{_style()}</style>\n</head>\n"
        f"<body>\n<main>\n{head}{sections}</main>\n</body>\n</html>\n"
    )


def _section(result: Result, charts: Charts) -> str:
    return "".join((
        f"<p class=soft>{_text(_about(result))}</p>\n",
        _advice(result),
        _tiles(result),
        _main_table(result),
        *(_chart(name, chart) for name, chart in charts.items()),
        _domain_table(result),
        _could_not_run(result),
        _circumstances(result),
    ))  # fmt: skip


def _about(result: Result) -> str:
    """Below the title, which says the model and the device already."""
    counts = heading(result).removeprefix(_title(result)).removeprefix("; ")
    date = str(result.head.circumstances.get("date", ""))[:10].replace("-", "\N{NON-BREAKING HYPHEN}")
    temperature = result.head.question.get("temperature")
    how = f"temperature {temperature:g}" if temperature else "greedy"
    facts = [counts, f"{how}, one text at a time, all methods in turns", date]
    return "; ".join(fact for fact in facts if fact) + "."


def _advice(result: Result) -> str:
    loud = list(warnings(result))
    rest = advice(result).removeprefix(" ".join(loud)).strip()
    best = best_of_ours(result)
    typed = [method_options(best.asked or best.method)] if best else ["--strategy off", "selfdraft calibrate"]
    warned = "".join(f'<div class="note warning" role=alert><p>{_text(text)}</p></div>\n' for text in loud)
    return f'{warned}<div class="note"><p>{_with_code(rest, typed)}</p></div>\n'


def _with_code(text: str, typed: Sequence[str]) -> str:
    """What is to be typed stands out, and is broken between words only."""
    shown = _text(text)
    for code in map(_text, filter(None, typed)):
        shown = shown.replace(code, "<code>" + " ".join(f"<span>{word}</span>" for word in code.split()) + "</code>")
    return shown


def _tiles(result: Result) -> str:
    """The figures to take home."""
    best, arms = best_of_ours(result), shown_arms(result)
    plain = next((arm for arm in arms if arm.name == OFF), None)
    tiles = []
    if best and best.total and best.total.shown_speedup:
        tiles.append((times(best.total.shown_speedup.value), f"with {best.name}"))
        speeds = [number(arm.total.tokens_per_second, ".0f") for arm in (plain, best) if arm and arm.total]
        tiles.append((" → ".join(speeds), "tokens per second, plainly and with it"))
    ours = [arm.total for arm in arms if arm.kind != "peer" and arm is not plain and arm.total]
    counts = {verdict: sum(getattr(total, verdict) for total in ours) for verdict in VERDICTS}
    if any(counts.values()):
        told = f"outputs of ours equal to plain decoding, {counts['tie']} ties, {counts['different']} different"
        tiles.append((f"{counts['equal']} of {sum(counts.values())}", told))
    cells = "".join(f"<div><strong>{_text(value)}</strong><span>{_text(name)}</span></div>" for value, name in tiles)
    return f'<div class="tiles">{cells}</div>\n' if cells else ""


# ----------------------------------------------------------------------------------------------------------- tables


def _main_table(result: Result) -> str:
    arms = shown_arms(result)
    if not arms:
        return "<p>No text has been finished yet.</p>\n"
    best = best_of_ours(result)
    lines = [
        _row(
            [name_of(arm), *(cell(arm.total) for *_, cell in COLUMNS)],
            f"{arm.kind} best" if arm is best else arm.kind,
            arm.kind,
        )
        for arm in arms
        if arm.total
    ]
    said = "".join(f"<li>{_text(remark)}</li>" for remark in remarks(result))
    return (
        f"<h2>All methods</h2>\n{_scrolling(_main_header() + '<tbody>' + ''.join(lines) + '</tbody>')}"
        + (f"<ul class=soft>{said}</ul>\n" if said else "")
        + f"<p class=soft>{_text(_LEGEND)}</p>\n"
    )


_LEGEND = (
    "Accepted: share of drafted tokens. Length: tokens a round brings. Cost: seconds of a drafted token, a plain pass "
    "being 1. Expected speed-up: M a / ((M - 1) c + a) of length M, acceptance a and cost c: as measured, as 1 less "
    "the share of sub-layers skipped, and with attention and MLP apart (equation 11). = / tie / ≠: outputs compared "
    "with plain decoding; tie: different by rounding alone."
)


def _main_header() -> str:
    """Columns that share something stand below its name."""
    shared = groupby(COLUMNS, key=lambda column: column[0] or column[1])
    groups = [(columns[0][0], len(columns)) for columns in (list(found) for _, found in shared)]
    upper = "".join(f"<th colspan={span} scope=colgroup class=group>{_text(name)}</th>" for name, span in groups)
    lower = "".join(f"<th scope=col>{_text(name)}</th>" for _, name, _ in COLUMNS)
    return f"<thead><tr><th></th>{upper}</tr><tr><th scope=col>method</th>{lower}</tr></thead>"


def _domain_table(result: Result) -> str:
    table = domain_table(result)
    if not table.rows or len(result.prompts_of) < 2:
        return ""
    header = "".join(f"<th scope=col>{_text(name)}</th>" for name in table.header)
    rows = "".join(_row(row) for row in table.rows)
    return f"<h2>By domain</h2>\n{_scrolling(f'<thead><tr>{header}</tr></thead><tbody>{rows}</tbody>')}"


def _row(cells: Sequence[str], kind: str = "", mark: str = "") -> str:
    chip = f' <span class="chip">{_text(mark)}</span>' if mark in ("peer", "bound") else ""
    rest = "".join(f"<td>{_cell(cell)}</td>" for cell in cells[1:])
    return f'<tr class="{_text(kind)}"><th scope=row>{_text(cells[0])}{chip}</th>{rest}</tr>'


def _cell(text: str) -> str:
    """An interval is smaller than its value."""
    value, bracket, rest = text.partition(" [")
    return f"{_text(value)} <small>[{_text(rest)}</small>" if bracket else _text(value)


def _scrolling(table: str) -> str:
    """A wide table scrolls by itself, the page never does; it can be reached by keyboard."""
    return f'<div class="scroll" tabindex=0 role=region aria-label="table">\n<table>{table}</table>\n</div>\n'


def _could_not_run(result: Result) -> str:
    failed = [(arm.name, without_folders(arm.error)) for arm in result.arms if arm.error]
    items = "".join(f"<li><strong>{_text(name)}</strong>: {_text(error)}</li>" for name, error in failed)
    return f"<h2>What could not run</h2>\n<ul>{items}</ul>\n" if items else ""


def _circumstances(result: Result) -> str:
    document = result.document()
    facts = {name: value for name, value in document.items() if name not in _DERIVED}
    facts["layers"] = document["machine"].get("num_layers")
    facts["attention against MLP"] = number(document["machine"].get("beta"), ".3f")
    facts["seconds measured"] = number(document["seconds"], ".0f")
    shares = [number(document[name], ".2%") for name in _SHARES]
    facts["outside calls"] = f"{shares[0]} of the time; comparing outputs {shares[1]}"
    lines = "".join(
        f"<tr><th scope=row>{_text(name.replace('_', ' '))}</th><td>{_text(value)}</td></tr>"
        for name, value in _flat(facts)
    )
    return f'<h2>Circumstances</h2>\n<div class="scroll"><table class="facts"><tbody>{lines}</tbody></table></div>\n'


def _flat(facts: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        elif value not in (None, "", []):
            shown = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            yield f"{before}{name}", without_folders(shown)


# ----------------------------------------------------------------------------------------------------------- charts


def _chart(name: str, chart: Chart | Missing) -> str:
    if isinstance(chart, Missing):
        return f"<h2>{_text(chart.title)}</h2>\n<p class=soft>Not drawn: {_text(chart.why)}.</p>\n"
    width, height = (round(96 * inches) for inches in chart.size)
    return (
        f"<h2>{_text(chart.title)}</h2>\n<p>{_text(chart.text)}</p>\n"
        + (f"<p class=soft>{_text(chart.left_out)}</p>\n" if chart.left_out else "")
        + f'<div class="scroll" tabindex=0 role=region aria-label="{_text(chart.title)}"><picture>\n'
        f'<source media="(prefers-color-scheme: dark)" srcset="{_data(chart, DARK)}">\n'
        f'<img id="{_text(name)}" class="chart" src="{_data(chart, LIGHT)}" alt="{_text(chart.alt)}" '
        f"width={width} height={height}>\n</picture></div>\n"
    )


def _data(chart: Chart, theme: Theme) -> str:
    drawn = render(chart.draw, chart.size, theme=theme, form="svg")
    return "data:image/svg+xml;base64," + base64.b64encode(drawn).decode("ascii")


def _text(value: Any) -> str:
    return escape(str(value), quote=True)


def _title(result: Result) -> str:
    return title({**result.head.circumstances, **result.head.question})


# ------------------------------------------------------------------------------------------------------------ style


def _style() -> str:
    """The colours are those of the charts."""
    return (
        f":root {{ color-scheme: light dark; {_variables(LIGHT)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}\n{_SHEET}"
    )


def _variables(theme: Theme) -> str:
    colors = {name: getattr(theme, name) for name in ("ground", "ink", "soft", "grid", "band")}
    colors |= {"link": theme.roles["faster"], "alarm": theme.series[1]}
    return " ".join(f"--{name}: {color};" for name, color in colors.items())


_SHEET = """\
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); line-height: 1.5;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif; }
main { max-width: 1320px; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .4rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .5rem; }
p { margin: .5rem 0; max-width: 90ch; overflow-wrap: anywhere; }
ul { padding-left: 1.2rem; overflow-wrap: anywhere; }
a { color: var(--link); }
h2.result { font-size: 1.4rem; overflow-wrap: anywhere; }
section + section { border-top: 1px solid var(--grid); margin-top: 3rem; }
.soft { color: var(--soft); font-size: .9rem; }
.note { border-left: 4px solid var(--link); background: var(--band); padding: .5rem 1rem; margin: 1rem 0;
  border-radius: 0 6px 6px 0; font-size: 1.05rem; }
.warning { border-color: var(--alarm); font-weight: 600; }
code { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: .92em;
  background: var(--ground); border: 1px solid var(--grid); border-radius: 4px; padding: .1em .3em;
  -webkit-box-decoration-break: clone; box-decoration-break: clone; }
code span { white-space: nowrap; }
.tiles { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1rem 0; }
.tiles div { flex: 1 1 11rem; border: 1px solid var(--grid); border-radius: 8px; padding: .6rem 1rem; }
.tiles strong { display: block; font-size: 1.5rem; line-height: 1.3; font-variant-numeric: tabular-nums; }
.tiles span { color: var(--soft); font-size: .9rem; }
.scroll { overflow-x: auto; margin: .75rem 0; }
.scroll:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
table { border-collapse: collapse; font-size: .8rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .4rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--grid); }
thead th { vertical-align: bottom; color: var(--soft); font-weight: 600; white-space: normal; }
thead tr:first-child:not(:last-child) th { text-align: center; border-bottom: 0; padding-bottom: 0; }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--ground); font-weight: 500; }
tbody tr:hover > * { background: var(--band); }
tr.best > * { background: var(--band); font-weight: 700; }
tr.peer > th, tr.peer > td { color: var(--soft); }
small { color: var(--soft); font-size: .85em; font-weight: 400; }
.chip { border: 1px solid var(--grid); border-radius: 99px; padding: 0 .45em; font-size: .75em; font-weight: 400;
  color: var(--soft); }
.facts td { text-align: left; white-space: normal; overflow-wrap: anywhere; min-width: 12rem; }
img.chart { display: block; max-width: 100%; height: auto; }
@media (max-width: 720px) {
  img.chart { width: auto; max-width: none; height: auto; min-width: 760px; }
  th:first-child { min-width: 7rem; max-width: 42vw; white-space: normal; overflow-wrap: break-word; }
}
@media print { .scroll { overflow: visible; } }
"""
