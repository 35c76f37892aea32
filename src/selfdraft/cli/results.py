"""`selfdraft results`: what `selfdraft reproduce` measured, as one page of Markdown with pictures."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

from ..bench.charts import render, require_matplotlib
from ..bench.reproduce.page import Result, page, plots
from ..errors import OptionError
from .outputs import check_output, write_file

EXAMPLES = """\
examples:
  selfdraft results result.jsonl                                           on the terminal
  selfdraft results cpu.jsonl gpu.jsonl --output results.md --pictures images --notes notes
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "results",
        help="what `reproduce` measured as a page of Markdown",
        description="Results of `selfdraft reproduce` as one page of Markdown, paper by paper.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    what = "what `selfdraft reproduce --output` wrote; of a folder all such files in it"
    add("files", metavar="FILE.jsonl", nargs="+", help=what)
    add("--output", metavar="FILE.md", help="default: the terminal")
    add("--pictures", metavar="FOLDER", help="draw the figures there; beside --output, or below; needs matplotlib")
    add("--notes", metavar="FOLDER", help="a paragraph on each paper: swift.md, knn-ssd.md, ...")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if options.output:
        check_output(options.output)
    results = read_results(options.files)
    notes = read_notes(options.notes) if options.notes else {}
    text = page(results, notes, _link(options), command_of(options))
    if options.pictures:
        _draw_all(results, Path(options.pictures))
    if options.output:
        write_file(options.output, text.encode())
    else:
        print(text, end="")
    return 0


def read_results(names: list[str]) -> list[Result]:
    results = [Result.read(file) for file in find_files(names)]
    for result in results:
        if not result.lines:
            raise OptionError(f"{result.name} has nothing that was measured; run its command again: {result.command}")
    return results


def find_files(names: list[str]) -> list[Path]:
    """Those named, and those in folders."""
    found = []
    for path in map(Path, names):
        inside = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not inside:
            raise OptionError(f"the folder {path} has no .jsonl; name what `selfdraft reproduce --output` wrote")
        found += inside
    for path in found:
        if found.count(path) > 1:
            raise OptionError(f"{path} is named twice; name each file once")
    return found


def command_of(options: argparse.Namespace) -> str:
    words = ["selfdraft", "results", *options.files]
    for name in ("output", "pictures", "notes"):
        if getattr(options, name):
            words += [f"--{name}", getattr(options, name)]
    return shlex.join(words)


def read_notes(folder: str) -> dict[str, str]:
    if not Path(folder).is_dir():
        raise OptionError(f"there is no folder {folder}; --notes takes one with files like swift.md")
    return {file.stem: file.read_text(encoding="utf-8") for file in sorted(Path(folder).glob("*.md"))}


def _link(options: argparse.Namespace) -> str | None:
    """How the page names the folder of pictures."""
    if not options.pictures:
        return None
    beside = Path(options.output).resolve().parent if options.output else Path.cwd()
    folder = Path(options.pictures).resolve()
    if not folder.is_relative_to(beside):
        raise OptionError(f"--pictures {options.pictures} must be below the folder of --output, {beside}")
    return folder.relative_to(beside).as_posix()


def _draw_all(results: list[Result], folder: Path) -> None:
    require_matplotlib("pictures", "leave out --pictures")
    folder.mkdir(parents=True, exist_ok=True)
    for name, plot, caption in plots(results):
        write_file(str(folder / name), render(plot.draw, plot.size, title=caption))
