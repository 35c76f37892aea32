"""Experiments as text: tables, the paper's, what became of its claims; on the terminal, or as a page of Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...measure.records import VERDICTS
from ..tables import Table, markdown_table, number, text_table, title
from .claims import TOO_FEW
from .experiment import Effort, Experiment, Found, Judgement, Plot, Recipe
from .recipes import ALL, published, recipes
from .run import NO_TIME, Line, ReproduceHead, num_outputs, read_units

OUTCOMES: Mapping[bool | None, str] = {True: "confirmed", False: "not confirmed", None: "inconclusive"}


@dataclass(frozen=True)
class Form:
    """How a table is written, and a word that stands out."""

    table: Callable[[Table], str]
    mark: Callable[[str], str]


TEXT = Form(text_table, str)
MARKDOWN = Form(markdown_table, lambda word: f"**{word}**")


@dataclass(frozen=True)
class Section:
    """An experiment with what was measured of it."""

    recipe: Recipe
    experiment: Experiment
    found: Found
    date: str

    @property
    def tables(self) -> list[Table]:
        made = (table(self.found) for table in self.experiment.tables)
        return [table for table in made if table.rows]

    @property
    def judgements(self) -> list[Judgement]:
        return self.experiment.judge(self.found)


def sections(
    recipes: Sequence[Recipe], lines: Sequence[Line], head: ReproduceHead, wanted: Sequence[str] = ()
) -> Iterator[Section]:
    """Experiments of which something was measured, or asked and not to be had. `wanted`: ids, none: all."""
    for recipe in recipes:
        own = [line for line in lines if line.paper == recipe.name]
        for experiment in recipe.experiments:
            here = [line for line in own if line.experiment == experiment.kept_as]
            if not here or (wanted and experiment.id not in wanted):
                continue
            missing = {line.unit: line.missing for line in here if line.missing is not None}
            units = {line.unit: line.values for line in here if line.missing is None}
            found = Found(units, missing, head.question.get("scale", {}))
            yield Section(recipe, experiment, found, max(line.date for line in here)[:10])


def as_text(section: Section, head: ReproduceHead) -> str:
    title = f"== {section.recipe.name} {section.experiment.id}: {section.experiment.title}"
    return "\n\n".join([title, *_ours(section, head, TEXT), *_published(section, TEXT), *_remarks(section, TEXT)])


def as_markdown(section: Section, head: ReproduceHead, picture: str | None = None) -> Iterator[str]:
    """`picture`: where its chart is."""
    yield from _ours(section, head, MARKDOWN)
    chart = section.experiment.chart
    if picture and chart and (plot := chart(section.found)):
        yield f"![{plot.alt} ({where_of(head)}, {section.date})]({picture})"
    yield from _remarks(section, MARKDOWN)
    yield from _published(section, MARKDOWN)


def _ours(section: Section, head: ReproduceHead, form: Form) -> Iterator[str]:
    where = f"({where_of(head)}, {section.date})"
    if not section.tables:
        yield f"{form.mark('ours')} {where}: nothing was measured"
    for table in section.tables:
        named = f"{form.mark('ours')}, {table.title}" if table.title else form.mark("ours")
        yield f"{named} {where}:\n\n{form.table(table)}"


def _published(section: Section, form: Form) -> Iterator[str]:
    paper = published(section.recipe.name).tables.get(section.experiment.id)
    if paper is None:
        yield f"{form.mark('published')}: a picture, or words; no numbers that could be set beside ours"
    else:
        numbers = form.table(paper.as_table("published"))
        yield f"{form.mark('published')} ({paper.source}; {paper.setup}):\n\n{numbers}"


def _remarks(section: Section, form: Form) -> Iterator[str]:
    """How much was done, what became of the claims, what else is to be said."""
    experiment, found = section.experiment, section.found
    if experiment.efforts and section.tables:
        yield "done: " + "; ".join(_effort(effort, found) for effort in experiment.efforts)
    remarks = (f"* {note}" for note in experiment.remarks(found))
    if lines := [*_claims(section.judgements, form), *remarks, *_missing(found)]:
        yield "\n".join(lines)


def where_of(head: ReproduceHead) -> str:
    """Model, device, dtype, whose prompts."""
    names = [head.question.get("model"), head.circumstances.get("device_name"), head.circumstances.get("dtype")]
    stand_in = None if head.question.get("prompts") else "prompts of ours"
    return ", ".join(str(name) for name in (*names, stand_in) if name)


def _effort(effort: Effort, found: Found) -> str:
    paper = "" if effort.paper is None else f" of the paper's {effort.paper:g}"
    return f"{effort.what} {number(effort.ours(found), 'g')}{paper}"


def _claims(judgements: Sequence[Judgement], form: Form) -> Iterator[str]:
    """A line each; those for which there are too few prompts share one."""
    for one in judgements:
        if not one.because.startswith(TOO_FEW):
            yield f"* {form.mark(OUTCOMES[one.outcome])}: {one.claim} ({one.because})"
    if few := [one.claim for one in judgements if one.because.startswith(TOO_FEW)]:
        yield f"* {form.mark(OUTCOMES[None])}, {TOO_FEW}: {'; '.join(few)}"


def _missing(found: Found) -> Iterator[str]:
    for unit, reason in found.missing.items():
        if reason != NO_TIME:
            yield f"* not to be had, {unit}: {reason}"
    if later := [unit for unit, reason in found.missing.items() if reason == NO_TIME]:
        yield f"* not measured, {NO_TIME} (the same command goes on): {', '.join(later)}"


# ---------------------------------------------------------------------------------------------------------- the page

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
    measured = [(recipe, [(file, own) for file in files if (own := file.of(recipe))]) for recipe in recipes([ALL])]
    papers = [(recipe, found) for recipe, found in measured if found]
    made = f"Made by `{command}`; only the paragraph that begins each paper's part is written by hand."
    parts = [TITLE, made, HOW_TO_READ, _overview(papers)]
    for recipe, found in papers:
        parts += _paper(recipe, found, notes.get(recipe.name), pictures)
    return "\n\n".join(parts) + "\n"


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
