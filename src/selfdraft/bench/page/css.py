"""How the page looks; the colours are those of the charts."""

from __future__ import annotations

from ..charts import Theme

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


def style_sheet(light: Theme, dark: Theme) -> str:
    return (
        f":root {{ color-scheme: light dark; {_variables(light)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {_variables(dark)} }} }}\n{_SHEET}"
    )


def _variables(theme: Theme) -> str:
    names = ("ground", "ink", "soft", "grid", "band")
    colors = {name: getattr(theme, name) for name in names} | {"link": theme.roles["faster"], "alarm": theme.series[1]}
    return " ".join(f"--{name}: {color};" for name, color in colors.items())
