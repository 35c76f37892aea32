"""Results of recipes as one page of Markdown: paper by paper, what held and what did not, then every table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..harness.table import title
from .journal import Line, ReproduceHead, read_units
from .published import published
from .recipe import Plot, Recipe, Trend
from .recipes import ALL, recipes
from .report import HELD, Shown, as_markdown, shown

TITLE = "# The papers' tables, and ours"


@dataclass(frozen=True)
class Result:
    """One file of `selfdraft reproduce`."""

    name: str
    head: ReproduceHead
    lines: Sequence[Line]

    @classmethod
    def read(cls, file: str | Path) -> Result:
        return cls(Path(file).name, *read_units(file))

    def of(self, recipe: Recipe) -> list[Shown]:
        return list(shown([recipe], self.lines, self.head))

    @property
    def where(self) -> str:
        return title({**self.head.circumstances, **self.head.question})

    @property
    def command(self) -> str:
        return str(self.head.circumstances.get("command") or "selfdraft reproduce")


def page(results: Sequence[Result], notes: Mapping[str, str], pictures: str | None, command: str) -> str:
    """`notes`: a paragraph by recipe, written by a person; `pictures`: where links of pictures point to."""
    parts = [TITLE, f"Made by `{command}`; written by hand is only the first paragraph on each paper."]
    for recipe in recipes([ALL]):
        parts += _paper(recipe, results, notes.get(recipe.name), pictures)
    return "\n\n".join(parts) + "\n"


def _paper(recipe: Recipe, results: Sequence[Result], note: str | None, pictures: str | None) -> Iterator[str]:
    found = [(result, result.of(recipe)) for result in results]
    found = [(result, sections) for result, sections in found if sections]
    if not found:
        return
    paper = published(recipe.name)
    yield f"## {recipe.name}: {paper.title} (arXiv:{paper.arxiv})"
    if note:
        yield note.strip()
    for result, sections in found:
        yield f"On {result.where}: {_held(trend for one in sections for trend in one.section.trends)}"
    for result, sections in found:
        yield f"Measured with selfdraft {_commit(result)} by\n\n    {result.command}"
        for one in sections:
            yield as_markdown(one, result.head, picture_link(pictures, result, one))


def _held(trends: Iterator[Trend]) -> str:
    counts = dict.fromkeys(HELD, 0)
    for trend in trends:
        counts[trend.holds] += 1
    return (
        f"of {sum(counts.values())} claims {counts[True]} hold, {counts[False]} do not, {counts[None]} cannot be told."
    )


def _commit(result: Result) -> str:
    question = result.head.question
    parts = (f"{question.get('selfdraft')}", question.get("commit") and f"commit {question['commit']}")
    versions = f"torch {question.get('torch')}, transformers {question.get('transformers')}"
    return f"{' '.join(filter(None, parts))} ({versions})"


def picture_name(result: Result, one: Shown) -> str:
    return f"{Path(result.name).stem}-{one.recipe.name}-{one.experiment.id}.png"


def picture_link(pictures: str | None, result: Result, one: Shown) -> str | None:
    return f"{pictures}/{picture_name(result, one)}" if pictures and one.section.plot else None


def plots(results: Sequence[Result]) -> Iterator[tuple[str, Plot]]:
    """(file name, plot) of all pictures of the page."""
    for recipe in recipes([ALL]):
        for result in results:
            for one in result.of(recipe):
                if one.section.plot:
                    yield picture_name(result, one), one.section.plot
