"""`selfdraft report`: what `bench` and `reproduce` measured as tables, as one page to look at, and as pictures."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from ..bench import timeline
from ..bench.charts import can_draw, render, require_matplotlib
from ..bench.page.charts import CHARTS
from ..bench.page.html import NO_PICTURES, Charts, page
from ..bench.papers.page import PaperFile, plots
from ..bench.papers.page import page as papers_page
from ..bench.passes_page import as_markdown as passes_markdown
from ..bench.passes_page import as_text as passes_text
from ..bench.shapes.results import is_shapes_file, read_shapes
from ..bench.tables import as_markdown, as_text
from ..errors import OptionError
from ..measure.records import is_record_file
from ..measure.result import Result
from .inputs import check_output, write_file


def run(options: argparse.Namespace) -> int:
    files = find_files(options.files)
    _check(options, files)
    kinds = {_report_of(file) for file in files}
    if len(kinds) > 1:
        named = "`bench`, of `bench passes`, of `reproduce` and of `generate`"
        raise OptionError(f"results of {named} do not go on one page; give one kind at a time")
    return kinds.pop()(options, files)


def _report_of(file: Path) -> Callable[[argparse.Namespace, Sequence[Path]], int]:
    if is_shapes_file(file):
        return _report_passes
    if timeline.Run.read(file):
        return _report_runs
    return _report_bench if is_record_file(file) else _report_papers


def find_files(names: Sequence[str]) -> list[Path]:
    """Those named, and those in folders."""
    found: list[Path] = []
    for path in map(Path, names):
        inside = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not inside:
            raise OptionError(f"the folder {path} has no .jsonl; name what `bench --output` or `reproduce` wrote")
        found += inside
    for path in found:
        if not path.is_file():
            raise OptionError(f"cannot read {path}: no such file; name what `bench --output` or `reproduce` wrote")
        if found.count(path) > 1:
            raise OptionError(f"{path} is named twice; name each file once")
    return found


def _check(options: argparse.Namespace, files: Sequence[Path]) -> None:
    """Before any work."""
    if options.png:
        require_matplotlib("pictures", "leave out --png: tables and --html do without")
    _check_kind(options.output or "")
    for output in filter(None, (options.output, options.html)):
        if Path(output).resolve() in {file.resolve() for file in files}:
            raise OptionError(f"{output} is a result itself, which would be lost; name another file")
        check_output(output)
    if options.png:
        folder = Path(options.png)
        if folder.exists() and (not folder.is_dir() or not os.access(folder, os.W_OK)):
            raise OptionError(f"cannot write pictures to {folder}; name a folder that you may write to")


def _check_kind(name: str) -> None:
    """Of --output."""
    ending, page = Path(name).suffix.lower(), f"--html {shlex.quote(name)}"
    instead = {".html": page, ".htm": page, **dict.fromkeys((".png", ".svg", ".pdf", ".jpg"), "--png FOLDER")}.get(
        ending
    )
    if instead:
        raise OptionError(f"--output writes text or Markdown, not {ending[1:]}; use {instead}")


def _write(options: argparse.Namespace, text: str) -> None:
    if options.output:
        write_file(options.output, text.encode())
        print(f"wrote {options.output}")
    else:
        print(text, end="")


# -------------------------------------------------------------------------------------------------------------- bench


def _report_bench(options: argparse.Namespace, files: Sequence[Path]) -> int:
    for name in ("notes", "before"):
        if getattr(options, name):
            raise OptionError(f"--{name} belongs to results of `reproduce`; leave it out")
    results = [_read(file) for file in files]
    if options.output or not (options.html or options.png):
        show = as_markdown if options.markdown else as_text
        _write(options, "\n\n".join(show(result) for result in results) + "\n")
    if not (options.html or options.png):
        return 0
    charts = [{name: make(result) for name, make in CHARTS.items()} if can_draw() else {} for result in results]
    if options.html:
        write_file(options.html, page(list(zip(results, charts, strict=True))).encode())
        print(f"wrote {options.html}{'' if can_draw() else f' {NO_PICTURES}'}")
    if options.png:
        _write_pictures(Path(options.png), _prefixes(files), charts)
    return 0


def _read(file: Path) -> Result:
    try:
        result = Result.read(file).complete()
        result.document()
        return result
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        what = f"{file} is damaged ({type(error).__name__}: {error})"
        raise OptionError(f"{what}; it must be what `selfdraft bench --output {file}` wrote") from None


def _prefixes(files: Sequence[Path]) -> list[str]:
    """One result needs none; two of one name are numbered."""
    if len(files) == 1:
        return [""]
    stems = [file.stem for file in files]
    return [
        f"{stem}-" if stems.count(stem) == 1 else f"{stem}-{stems[: place + 1].count(stem)}-"
        for place, stem in enumerate(stems)
    ]


def _write_pictures(folder: Path, prefixes: Sequence[str], charts: Sequence[Charts]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, some in zip(prefixes, charts, strict=True):
        for name, chart in some.items():
            if chart.draw:
                write_file(str(folder / f"{prefix}{name}.png"), render(chart.draw, chart.size))
    print(f"wrote pictures to {folder}")


# ------------------------------------------------------------------------------------------------------------- passes


def _report_passes(options: argparse.Namespace, files: Sequence[Path]) -> int:
    for name in ("html", "png", "notes", "before"):
        if getattr(options, name):
            raise OptionError(f"--{name} is not for results of `bench passes`, which become text or Markdown")
    runs = [read_shapes(file) for file in files]
    _write(options, (passes_markdown if options.markdown else passes_text)(runs) + "\n")
    return 0


# --------------------------------------------------------------------------------------------------------------- runs


def _report_runs(options: argparse.Namespace, files: Sequence[Path]) -> int:
    """Texts that `generate --json` wrote."""
    for name in ("html", "notes", "before", "markdown"):
        if getattr(options, name):
            raise OptionError(f"--{name} is not for texts of `generate --json`, which become text or pictures (--png)")
    runs = [run for file in files if (run := timeline.Run.read(file))]
    if options.output or not options.png:
        _write(options, "\n\n".join(map(timeline.as_text, runs)) + "\n")
    if options.png:
        Path(options.png).mkdir(parents=True, exist_ok=True)
        for prefix, run in zip(_prefixes(files), runs, strict=True):
            write_file(str(Path(options.png) / f"{prefix}timeline.png"), render(timeline.chart(run), timeline.SIZE))
        print(f"wrote pictures to {options.png}")
    return 0


# ------------------------------------------------------------------------------------------------------------- papers


def _report_papers(options: argparse.Namespace, files: Sequence[Path]) -> int:
    results = [PaperFile.read(file) for file in files]
    if options.html:
        raise OptionError("results of `reproduce` become Markdown; use --markdown --output FILE.md")
    names = [result.name for result in results]
    for result in results:
        if options.png and names.count(result.name) > 1:
            raise OptionError(f"two files are called {result.name}, and so would their pictures; rename one of them")
        if not result.lines:
            raise OptionError(f"{result.name} has nothing that was measured; run its command again: {result.command}")
    notes = _read_notes(options.notes) if options.notes else {}
    before = [PaperFile.read(file) for file in find_files(options.before or [])]
    _write(options, papers_page(results, notes, _link(options), _command(options), before))
    if options.png:
        Path(options.png).mkdir(parents=True, exist_ok=True)
        for name, plot, caption in plots(results):
            write_file(f"{Path(options.png) / name}", render(plot.draw, plot.size, title=caption))
    return 0


def _command(options: argparse.Namespace) -> str:
    words = ["selfdraft", "report", *options.files, *(["--markdown"] if options.markdown else [])]
    words += ["--before", *options.before] if options.before else []
    for name in ("output", "png", "notes"):
        if getattr(options, name):
            words += [f"--{name}", getattr(options, name)]
    return shlex.join(words)


def _read_notes(folder: str) -> dict[str, str]:
    if not Path(folder).is_dir():
        raise OptionError(f"there is no folder {folder}; --notes takes one with files like swift.md")
    return {file.stem: file.read_text(encoding="utf-8") for file in sorted(Path(folder).glob("*.md"))}


def _link(options: argparse.Namespace) -> str | None:
    """How the page names the folder of pictures."""
    if not options.png:
        return None
    beside = Path(options.output).resolve().parent if options.output else Path.cwd()
    return Path(os.path.relpath(Path(options.png).resolve(), beside)).as_posix()
