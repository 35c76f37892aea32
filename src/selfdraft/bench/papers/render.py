"""Experiments as text: our tables, the paper's, and what became of its claims; for the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..tables import Table, markdown_table, number, text_table
from .claims import TOO_FEW
from .experiment import Effort, Experiment, Found, Judgement, Recipe
from .published import Paper, published
from .units import NO_TIME, Line, ReproduceHead

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
    def paper(self) -> Paper:
        return published(self.recipe.name)

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
        by_experiment: dict[str, dict[str, Mapping[str, Any]]] = {}
        for line in own:
            if line.missing is None:
                by_experiment.setdefault(line.experiment, {})[line.unit] = line.values
        for experiment in recipe.experiments:
            here = [line for line in own if line.experiment == experiment.kept_as]
            if not here or (wanted and experiment.id not in wanted):
                continue
            missing = {line.unit: line.missing for line in here if line.missing is not None}
            units = by_experiment.get(experiment.kept_as, {})
            found = Found(units, missing, head.question.get("scale", {}), by_experiment)
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
    paper = section.paper.tables.get(section.experiment.id)
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
