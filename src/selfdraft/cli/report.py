"""`selfdraft report`: results of `selfdraft bench` as one page to look at, and as pictures."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..bench.charts import require_matplotlib
from ..bench.harness.records import read_records
from ..bench.page.charts import charts_of, pictures
from ..bench.page.html import Charts, page
from ..bench.page.result import Result
from ..errors import OptionError
from .outputs import check_output, write_file

DESCRIPTION = """\
Turn results into one HTML page that needs nothing but itself (no script, nothing from the network; light and dark).
It says what to use, and shows: speed-up with intervals by domain, acceptance against cost, where the time goes, which
sub-layers draft, speed against context length, and speed along the stream of texts. Needs matplotlib.
"""
EXAMPLES = """\
A result is what `selfdraft bench --output FILE.jsonl` wrote; one that is still being written can be shown as well.
Several results become sections of one page. --png keeps the charts as pictures, too: speedup.png, cost.png, split.png,
skips.png, length.png, stream.png (of several results each name begins with that of its file). A chart that has nothing
to show is left out, and the page says why.

examples:
  selfdraft report result.jsonl                                 writes result.html
  selfdraft report result.jsonl --output page.html --png charts
  selfdraft report cpu.jsonl gpu.jsonl --output page.html       one section each
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "report",
        help="results as one HTML page",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("results", metavar="RESULT.jsonl", nargs="+", help="what `selfdraft bench --output` wrote")
    add("--output", metavar="FILE.html", help="the page (default: the name of the first result, ending in .html)")
    add("--png", metavar="FOLDER", help="keep the charts here as pictures, too; made where it is missing")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    require_matplotlib("a report", "draw it elsewhere: the result is all it needs")
    output = options.output or str(Path(options.results[0]).with_suffix(".html"))
    _check(output, options)
    results = [_read(file) for file in options.results]
    write_file(output, page(results).encode())
    print(f"wrote {output}")
    if options.png:
        _write_pictures(Path(options.png), _prefixes(options.results), [charts for _, charts in results])
    return 0


def _check(output: str, options: argparse.Namespace) -> None:
    """Before any work."""
    if Path(output).resolve() in {Path(file).resolve() for file in options.results}:
        raise OptionError(f"--output {output} is a result itself, which would be lost; name another file")
    check_output(output)
    if options.png:
        folder = Path(options.png)
        if folder.exists() and (not folder.is_dir() or not os.access(folder, os.W_OK)):
            raise OptionError(f"cannot write pictures to {folder}; name a folder that you may write to")
        if not folder.exists():
            check_output(options.png)


def _read(file: str) -> tuple[Result, Charts]:
    head, records = read_records(file)
    try:
        result = Result.of(head, records)
        return result, charts_of(result)
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise OptionError(
            f"{file} is damaged ({type(error).__name__}: {error}); it must be what "
            f"`selfdraft bench --output {file}` wrote"
        ) from None


def _prefixes(files: Sequence[str]) -> list[str]:
    """One result needs none; two of one name are numbered."""
    if len(files) == 1:
        return [""]
    stems = [Path(file).stem for file in files]
    return [
        f"{stem}-" if stems.count(stem) == 1 else f"{stem}-{stems[: place + 1].count(stem)}-"
        for place, stem in enumerate(stems)
    ]


def _write_pictures(folder: Path, prefixes: Sequence[str], charts: Sequence[Charts]) -> None:
    folder.mkdir(exist_ok=True)
    for prefix, some in zip(prefixes, charts, strict=True):
        for name, content in pictures(some).items():
            write_file(str(folder / f"{prefix}{name}.png"), content)
    print(f"wrote pictures to {folder}")
