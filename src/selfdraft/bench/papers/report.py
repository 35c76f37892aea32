"""A reproduction as text: each table of ours, then the paper's, then whether its claims hold here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..report import Table, markdown_table, number, text_table
from .cells import TOO_FEW
from .journal import NO_TIME, Line, ReproduceHead
from .published import Paper, published
from .recipe import Effort, Experiment, Found, Recipe, Section, Trend

HELD: Mapping[bool | None, str] = {True: "holds", False: "does not hold", None: "cannot be told"}


@dataclass(frozen=True)
class Form:
    """How a table is written, and a word that stands out."""

    table: Callable[[Table], str]
    mark: Callable[[str], str]


TEXT = Form(text_table, str)
MARKDOWN = Form(markdown_table, lambda word: f"**{word}**")


@dataclass(frozen=True)
class Shown:
    """An experiment with what was measured of it."""

    recipe: Recipe
    experiment: Experiment
    found: Found
    section: Section
    date: str

    @property
    def paper(self) -> Paper:
        return published(self.recipe.name)


def shown(
    recipes: Sequence[Recipe], lines: Sequence[Line], head: ReproduceHead, wanted: Sequence[str] = ()
) -> Iterator[Shown]:
    """Of experiments of which something was measured, or asked and not to be had. `wanted`: ids, none: all."""
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
            date = max(line.date for line in here)[:10]
            yield Shown(recipe, experiment, found, experiment.show(found), date)


def as_text(one: Shown, head: ReproduceHead) -> str:
    title = f"== {one.recipe.name} {one.experiment.id}: {one.experiment.title}"
    parts = [title, *_tables(one, head, TEXT), *_published(one, TEXT), *_said(one, TEXT)]
    return "\n\n".join(parts)


def ours_as_markdown(one: Shown, head: ReproduceHead, picture: str | None = None) -> Iterator[str]:
    yield from _tables(one, head, MARKDOWN)
    if picture and one.section.plot:
        yield f"![{one.section.plot.alt} ({where_of(head)}, {one.date})]({picture})"
    yield from _said(one, MARKDOWN)


def published_as_markdown(one: Shown) -> Iterator[str]:
    yield from _published(one, MARKDOWN)


def _tables(one: Shown, head: ReproduceHead, form: Form) -> Iterator[str]:
    if not any(ours.rows for ours in one.section.ours):
        yield f"{form.mark('ours')} ({where_of(head)}, {one.date}): nothing was measured"
    for ours in one.section.ours:
        if ours.rows:
            yield f"{_titled(form.mark('ours'), ours)} ({where_of(head)}, {one.date}):\n\n{form.table(ours)}"


def _published(one: Shown, form: Form) -> Iterator[str]:
    paper = one.paper.tables.get(one.experiment.id)
    if paper is None:
        yield f"{form.mark('published')}: a picture, or words; no numbers that could be set beside ours"
    else:
        numbers = form.table(paper.as_table("published"))
        yield f"{form.mark('published')} ({paper.source}; {paper.setup}):\n\n{numbers}"


def _said(one: Shown, form: Form) -> Iterator[str]:
    """How much was done, what holds, what else is to be said."""
    section = one.section
    if section.efforts and any(ours.rows for ours in section.ours):
        yield "done: " + "; ".join(map(_effort, section.efforts))
    if lines := [*_trends(section.trends, form), *(f"* {note}" for note in section.notes), *_missing(one.found)]:
        yield "\n".join(lines)


def _titled(text: str, table: Table) -> str:
    return f"{text}, {table.title}" if table.title else text


def where_of(head: ReproduceHead) -> str:
    """Model, device, dtype, whose prompts."""
    names = [head.question.get("model"), head.circumstances.get("device_name"), head.circumstances.get("dtype")]
    stand_in = None if head.question.get("prompts") else "prompts of ours"
    return ", ".join(str(name) for name in (*names, stand_in) if name)


def _effort(effort: Effort) -> str:
    paper = "" if effort.paper is None else f" of the paper's {effort.paper:g}"
    return f"{effort.what} {number(effort.ours, 'g')}{paper}"


def _trends(trends: Sequence[Trend], form: Form) -> Iterator[str]:
    """A line each; those for which there are too few prompts have one together."""
    for trend in trends:
        if not trend.because.startswith(TOO_FEW):
            yield f"* {form.mark(HELD[trend.holds])}: {trend.claim} ({trend.because})"
    if few := [trend.claim for trend in trends if trend.because.startswith(TOO_FEW)]:
        yield f"* {form.mark(HELD[None])}, {TOO_FEW}: {'; '.join(few)}"


def _missing(found: Found) -> Iterator[str]:
    for unit, reason in found.missing.items():
        if reason != NO_TIME:
            yield f"* not to be had, {unit}: {reason}"
    if later := [unit for unit, reason in found.missing.items() if reason == NO_TIME]:
        yield f"* not measured, {NO_TIME} (the same command goes on): {', '.join(later)}"
