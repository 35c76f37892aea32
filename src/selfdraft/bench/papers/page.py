"""Experiments as text: tables, the paper's, what became of its claims; on the terminal, or as a page of Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...measure.records import VERDICTS
from ..tables import Table, markdown_table, number, text_table, title
from .claims import TOO_FEW
from .experiment import EFFORTS, FAILED, Experiment, Found, Judgement, Plot, Recipe
from .headlines import headline_table, headlines
from .recipes import ALL, PublishedTable, published, recipes
from .run import NO_TIME, Line, ReproduceHead, num_outputs, read_units
from .workbench import SELF, Scale

OUTCOMES: Mapping[bool | None, str] = {True: "confirmed", False: "not confirmed", None: "inconclusive"}
BARE = {"-", "1.0", "1.00", "1.00x", "1.00x [1.00, 1.00]"}
MARK = "**{}**".format


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
    def published(self) -> PublishedTable:
        return published(self.recipe.name).tables[self.experiment.id]

    @property
    def title(self) -> str:
        drafter = drafted_by(self.recipe, self.found.scale)
        return f"{self.recipe.name} {self.experiment.id}: {self.published.title}{drafter}"

    @property
    def judgements(self) -> list[Judgement]:
        return self.experiment.judge(self.found)


def drafted_by(recipe: Recipe, scale: Mapping[str, Any]) -> str:
    """What drafted, where it was not the model itself."""
    drafter = str(scale.get("drafter", SELF)) if recipe.has_drafters else SELF
    return "" if drafter == SELF else f" (drafter: {drafter})"


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
            found = Found(units, missing, _scale_of(recipe, experiment, head))
            yield Section(recipe, experiment, found, max(line.date for line in here)[:10])


def _scale_of(recipe: Recipe, experiment: Experiment, head: ReproduceHead) -> Mapping[str, Any]:
    """One that was kept without `asked` held for all experiments alike."""
    known = head.question.get("scale", {})
    return Scale(**known).of(recipe, experiment).to_json() if "asked" in known else known


def as_text(section: Section, head: ReproduceHead) -> str:
    where, tables = f"({where_of(head)}, {section.date})", section.tables
    ours = [f"{', '.join(filter(None, ('ours', table.title)))} {where}:\n\n{text_table(table)}" for table in tables]
    paper = section.published
    theirs = [f"published ({paper.source}; {paper.setup}):\n\n{text_table(paper.table)}"] if paper.rows else []
    parts = [f"== {section.title}", *(ours or [f"ours {where}: nothing was measured"]), *theirs]
    return "\n\n".join([*parts, "\n".join(_remarks(section, str))])


def as_markdown(section: Section, picture: str | None = None) -> str:
    """What the paper published stands beside ours where the rows are the same. `picture`: where its chart is."""
    experiment, ours, paper = section.experiment, section.tables, section.published
    plot = experiment.chart(section.found) if picture and experiment.chart else None
    drawn, remarks = [f"![{plot.alt}]({picture})"] if plot else [], list(_remarks(section, MARK))
    if paper.rows:
        table, models = paper.folded()
        source = "; ".join(filter(None, (paper.source, paper.setup, models)))
        said = f"published: {source}"
        if paper.is_beside and ours:
            ours = [beside(ours[0], table, paper.num_keys), *ours[1:]]
        elif len(table.header) > paper.num_keys + 1:
            ours = [*ours, replace(table, title=said)]
        else:
            numbers = "; ".join(f"{', '.join(row[:-1])} {row[-1]}" for row in table.rows)
            said = f"published: {numbers} ({source})"
        remarks += [] if ours and ours[-1].title == said else [f"* {said}"]
    tables = [part for one in ours for part in (one.title, markdown_table(without_bare(one))) if part]
    first, *rest = [*drawn, *tables, "\n".join(remarks)]
    return "\n\n".join([f"### {section.title}\n{first}", *rest])


def beside(ours: Table, paper: Table, num_keys: int) -> Table:
    """The paper's columns at the right of ours; what we have no row for comes last."""
    theirs = {tuple(row[:num_keys]): row[num_keys:] for row in paper.rows}
    rows, met = [], set()
    for row in ours.rows:
        names = {row[1], row[0], row[0].split(" (")[0], *row[0].split(", ")}
        key = next((key for key in theirs if names.issuperset(key)), None)
        met.add(key)
        rows.append([*row, *(theirs[key] if key else ["-"] * (len(paper.header) - num_keys))])
    for key, cells in theirs.items():
        if key not in met:
            rows.append([*key, *["-"] * (len(ours.header) - num_keys), *cells])
    return Table(ours.title, [*ours.header, *(f"paper: {name}" for name in paper.header[num_keys:])], rows)


def without_bare(table: Table) -> Table:
    """Without rows that only say that plain decoding is as fast as itself."""

    def numbers(row: Sequence[str]) -> set[str]:
        parts = {part for cell in row[1:] for part in cell.split(" / ")}
        return {part for part in parts if part == "-" or any(map(str.isdigit, part))}

    return replace(table, rows=[row for row in table.rows if numbers(row) - BARE or not numbers(row)])


def _remarks(section: Section, mark: Callable[[str], str]) -> Iterator[str]:
    """How much was done, what became of the claims, what else is to be said."""
    experiment, found = section.experiment, section.found
    if section.published.effort and section.tables:
        yield "* done: " + "; ".join(_efforts(section))
    yield from _claims(section.judgements, mark)
    yield from (f"* {note}" for note in (*section.published.notes, *experiment.remarks(found)))
    yield from _missing(found)


def where_of(head: ReproduceHead) -> str:
    """Model, device, dtype, whose prompts."""
    names = [head.question.get("model"), head.circumstances.get("device_name"), head.circumstances.get("dtype")]
    stand_in = None if head.question.get("prompts") else "prompts of ours"
    return ", ".join(str(name) for name in (*names, stand_in) if name)


def _efforts(section: Section) -> Iterator[str]:
    known = {**EFFORTS, **section.recipe.efforts}
    for what, paper in section.published.effort.items():
        ours = known[what](section.found)
        of_paper = "" if paper is None else f" of the paper's {paper:g}"
        yield f"{what} {number(ours and round(ours, 1), 'g')}{of_paper}"


def _claims(judgements: Sequence[Judgement], mark: Callable[[str], str]) -> Iterator[str]:
    """A line each, wherever it was made; those for which there are too few prompts share one."""
    groups: dict[str, list[str]] = {}
    for one in judgements:
        if not one.because.startswith(TOO_FEW):
            told = f"{mark(OUTCOMES[one.outcome])}{one.where} ({one.because})"
            groups.setdefault(one.what.rstrip(", "), []).append(told)
    yield from (f"* {what}: {'; '.join(told)}" for what, told in groups.items())
    if few := [one.claim for one in judgements if one.because.startswith(TOO_FEW)]:
        yield f"* {mark(OUTCOMES[None])}, {TOO_FEW}: {'; '.join(few)}"


def _missing(found: Found) -> Iterator[str]:
    for unit, values in found.units.items():
        for arm, reason in values.get(FAILED, {}).items():
            yield f"* {arm} could not run ({found.label(unit)}): {reason}"
    for unit, reason in found.missing.items():
        if reason != NO_TIME:
            yield f"* not to be had, {unit}: {reason}"
    if later := [unit for unit, reason in found.missing.items() if reason == NO_TIME]:
        yield f"* not measured, {NO_TIME} (the same command goes on): {', '.join(later)}"


# ---------------------------------------------------------------------------------------------------------- the page

OWN_FILES = "any JSON lines with id, domain and prompt will do whose ids begin with cnndm, gsm8k, humaneval, ..."
TITLE = "# The papers' tables, and ours"
HOW_TO_READ = """\
Tables are ours. What the paper published stands in the columns `paper:`, or follows: of other models, other devices and
more prompts (`a / b`: of one model and of another; the line `published` says which). Where there is no such line the
paper has a picture, or words. Rows that would only say that plain decoding is as fast as itself are left out. The
paper's claims stand under the tables. *Confirmed*, *not confirmed*: the interval of the estimate (in brackets: the
middle 95 % of resampled prompts) is clear of the bound. Methods that took turns on the same prompts are compared
paired: `ratio` is the speed of one over the other's, prompts resampled with both together. *Inconclusive*: the interval
holds the bound, or there are fewer than three prompts. Where each text ran once, the interval does not hold how much a
machine's speed differs from one table to the next.

M: tokens that a pass of the whole model brings, its own one included; alpha, accepted: share of the drafted tokens that
are accepted; r: share of the sub-layers skipped; c: seconds of a draft step over those of a plain token; speed-up:
tokens per second of decoding over those of plain decoding, in turns on the same prompts. `a3,m6`: attention of layer 3
and MLP of layer 6 are skipped. Planning: its share of decoding, recording included. `prune`, `knn`, ...: strategies of
selfdraft."""


METHODS = """\
The papers' own methods on the tasks of their main tables, as speed-up over plain decoding. Published: of the paper's
models. Bound: told how far to draft (DISCO), else the same rounds, if one took as long as a plain token, and a draft
the share of the time that it runs of the sub-layers."""


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
    def commit(self) -> str:
        return str(self.head.question.get("commit") or "-")

    def drafted_by(self, recipe: Recipe) -> str:
        return drafted_by(recipe, self.head.question.get("scale", {}))

    @property
    def command(self) -> str:
        return str(self.head.circumstances.get("command") or "selfdraft reproduce all")


Measured = Sequence[tuple[PaperFile, Sequence[Section]]]


def page(
    files: Sequence[PaperFile],
    notes: Mapping[str, str],
    pictures: str | None,
    command: str,
    before: Sequence[PaperFile] = (),
) -> str:
    """`notes`: a paragraph by recipe, written by a person; `pictures`: where links of pictures point to; `before`:
    files to compare main tables with.
    """
    measured = [(recipe, [(file, own) for file in files if (own := file.of(recipe))]) for recipe in recipes([ALL])]
    papers = [(recipe, found) for recipe, found in measured if found]
    made = f"Made by `{command}`; only the paragraph that begins each paper's part is written by hand."
    parts = [TITLE, made, HOW_TO_READ, _overview(papers)]
    if rows := [row for recipe, found in papers for row in _headlines(recipe, found, before)]:
        parts += [METHODS, markdown_table(headline_table(rows, _commits(before)))]
    for recipe, found in papers:
        parts += _paper(recipe, found, notes.get(recipe.name), pictures)
    return "\n\n".join(parts) + "\n"


def _overview(papers: Sequence[tuple[Recipe, Measured]]) -> str:
    rows = [
        [
            f"[{recipe.name}](#{recipe.name}){file.drafted_by(recipe)}",
            file.where,
            file.commit,
            *(str(count) for count in _counts(own).values()),
        ]
        for recipe, found in papers
        for file, own in found
    ]
    header = ["paper", "measured on", "commit", *(f"claims {word}" for word in OUTCOMES.values())]
    return markdown_table(Table("", header, rows))


def _headlines(recipe: Recipe, found: Measured, before: Sequence[PaperFile]) -> Iterator[list[str]]:
    earlier = {(one.experiment.id, file.drafted_by(recipe)): one.found for file in before for one in file.of(recipe)}
    for file, own in found:
        for section in (one for one in own if one.experiment.id in recipe.main):
            known = earlier.get((section.experiment.id, file.drafted_by(recipe)))
            for paper, *row in headlines(recipe, section.published, section.found, known):
                yield [f"{paper}{file.drafted_by(recipe)}", *row]


def _commits(before: Sequence[PaperFile]) -> str:
    return ", ".join(dict.fromkeys(file.commit for file in before))


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
            yield as_markdown(section, pictures and f"{pictures}/{picture_name(file, section)}")


def _run(file: PaperFile) -> str:
    """Where it was measured, with which prompts, and whether outputs were equal."""
    question, date = file.head.question, max(line.date for line in file.lines)[:10]
    commit = question.get("commit") and f" commit {question['commit']}"
    versions = f"torch {question.get('torch')}, transformers {question.get('transformers')}"
    equal, ties, different = (sum(num_outputs(line.values, verdict) for line in file.lines) for verdict in VERDICTS)
    foreign = ""
    if files := question.get("prompts"):
        names = f"{', '.join(files)}, digest {question.get('prompts_digest')}"
        foreign = f" The prompts ({names}) are not part of this repository: {OWN_FILES}."
    return (
        f"{file.where}, {date}: selfdraft {question.get('selfdraft')}{commit or ''} ({versions}); outputs beside those "
        f"of plain decoding: {equal} equal, {ties} ties, {different} different.{foreign}"
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
