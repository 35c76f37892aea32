"""Results of recipes as one page of Markdown: paper by paper, what was confirmed and what was not, then every table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...measure.records import VERDICTS
from ..tables import Table, markdown_table, title
from .experiment import Plot, Recipe
from .published import published
from .recipes import ALL, recipes
from .render import OUTCOMES, Section, as_markdown, sections, where_of
from .units import Line, ReproduceHead, num_outputs, read_units

OWN_FILES = "any JSON lines with id, domain and prompt will do whose ids begin with cnndm, gsm8k, humaneval, ..."
TITLE = "# The papers' tables, and ours"
HOW_TO_READ = """\
Each table of ours says model, device and date. What the paper published follows it, with its source: of other models,
other devices and more prompts. The paper's claims stand under our tables. *Confirmed*, *not confirmed*: the interval of
the estimate (in brackets: the middle 95 % of resampled prompts) is clear of the bound. Methods that took turns on the
same prompts are compared paired: `ratio` is the speed of one over the other's, prompts resampled with both together.
*Inconclusive*: the interval holds the bound, or there are fewer than three prompts.

M: tokens that a pass of the whole model brings, its own one included; alpha, accepted: share of the drafted tokens that
are accepted; r: share of the sub-layers skipped; c: seconds of a draft step over those of a plain token; speed-up:
tokens per second of decoding over those of plain decoding, in turns on the same prompts. `a3,m6`: attention of layer 3
and MLP of layer 6 are skipped. `prune`, `knn`, `draft-verify`, ... are strategies of selfdraft."""


@dataclass(frozen=True)
class PaperFile:
    """One file of `selfdraft reproduce`."""

    name: str
    head: ReproduceHead
    lines: Sequence[Line]

    @classmethod
    def read(cls, file: str | Path) -> PaperFile:
        return cls(Path(file).name, *read_units(file))

    def of(self, recipe: Recipe) -> list[Section]:
        return list(sections([recipe], self.lines, self.head))

    @property
    def where(self) -> str:
        return title({**self.head.circumstances, **self.head.question})

    @property
    def command(self) -> str:
        return str(self.head.circumstances.get("command") or "selfdraft reproduce all")


Measured = Sequence[tuple[PaperFile, Sequence[Section]]]


def page(files: Sequence[PaperFile], notes: Mapping[str, str], pictures: str | None, command: str) -> str:
    """`notes`: a paragraph by recipe, written by a person; `pictures`: where links of pictures point to."""
    papers = [(recipe, found) for recipe in recipes([ALL]) if (found := _measured(recipe, files))]
    made = f"Made by `{command}`; only the paragraph that begins each paper's part is written by hand."
    parts = [TITLE, made, HOW_TO_READ, _overview(papers)]
    for recipe, found in papers:
        parts += _paper(recipe, found, notes.get(recipe.name), pictures)
    return "\n\n".join(parts) + "\n"


def _measured(recipe: Recipe, files: Sequence[PaperFile]) -> Measured:
    return [(file, own) for file in files if (own := file.of(recipe))]


def _overview(papers: Sequence[tuple[Recipe, Measured]]) -> str:
    rows = [
        [f"[{recipe.name}](#{recipe.name})", file.where, *(str(count) for count in _counts(own).values())]
        for recipe, found in papers
        for file, own in found
    ]
    return markdown_table(Table("", ["paper", "measured on", *(f"claims {word}" for word in OUTCOMES.values())], rows))


def _counts(own: Sequence[Section]) -> Mapping[bool | None, int]:
    """Of claims by outcome; tables of one measurement may claim the same, that is one claim."""
    unique = {(one.claim, one.because): one.outcome for section in own for one in section.judgements}
    return {outcome: sum(found is outcome for found in unique.values()) for outcome in OUTCOMES}


def _paper(recipe: Recipe, found: Measured, note: str | None, pictures: str | None) -> Iterator[str]:
    paper = published(recipe.name)
    yield f"## {recipe.name}"
    yield f"{paper.title} (arXiv:{paper.arxiv})"
    if note:
        yield note.strip()
    for file, _ in found:
        yield f"{_run(file)}\n\n    {file.command}"
    for file, own in found:
        for section in own:
            yield f"### {recipe.name} {section.experiment.id}: {section.experiment.title}"
            yield from as_markdown(section, file.head, pictures and f"{pictures}/{picture_name(file, section)}")


def _run(file: PaperFile) -> str:
    """Where it was measured, with which prompts, and whether outputs were equal."""
    question = file.head.question
    commit = question.get("commit") and f" commit {question['commit']}"
    versions = f"torch {question.get('torch')}, transformers {question.get('transformers')}"
    compared, different = (
        sum(num_outputs(line.values, *verdicts) for line in file.lines) for verdicts in (VERDICTS, VERDICTS[-1:])
    )
    foreign = ""
    if files := question.get("prompts"):
        names = f"{', '.join(files)}, digest {question.get('prompts_digest')}"
        foreign = f" The prompts ({names}) are not part of this repository: {OWN_FILES}."
    return (
        f"{file.where}: selfdraft {question.get('selfdraft')}{commit or ''} ({versions}); {compared} outputs compared "
        f"with plain decoding, {different} different.{foreign}"
    )


def picture_name(file: PaperFile, section: Section) -> str:
    stem = Path(file.name).stem
    paper = "" if stem.startswith(section.recipe.name) else f"-{section.recipe.name}"
    return f"{stem}{paper}-{section.experiment.id}.png"


def plots(files: Sequence[PaperFile]) -> Iterator[tuple[str, Plot, str]]:
    """(file name, plot, caption) of all pictures of the page."""
    for recipe in recipes([ALL]):
        for file in files:
            for section in file.of(recipe):
                if section.experiment.chart and (plot := section.experiment.chart(section.found)):
                    yield picture_name(file, section), plot, f"{where_of(file.head)}, {section.date}"
