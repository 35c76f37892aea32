"""Results of recipes as one page of Markdown: paper by paper, what held and what did not, then every table."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..harness.table import title
from ..report import Table, markdown_table
from .journal import Line, ReproduceHead, read_units
from .published import published
from .recipe import Experiment, Plot, Recipe
from .recipes import ALL, recipes
from .report import HELD, Shown, ours_as_markdown, published_as_markdown, shown, where_of
from .workbench import num_compared, num_different

OWN_FILES = "any JSON lines with id, domain and prompt do whose ids begin with cnndm, gsm8k, humaneval, ..."
TITLE = "# The papers' tables, and ours"
HOW_TO_READ = """\
Each table of ours says model, device and date. What the paper published follows it, with its source: of other models,
other devices and more prompts. Under our tables stand the paper's claims, and whether they hold here. *Cannot be told*:
fewer than three prompts; or two speeds whose intervals (in brackets: the middle 95 % of resampled prompts) overlap; or
other figures less than 3 % apart.

M: tokens that a pass of the whole model brings, its own one included; alpha, acceptance: share of the drafted tokens
that are accepted; r: share of the sub-layers skipped; c, draft cost: seconds of a draft step over those of a plain
token; speed-up: tokens per second of decoding over those of plain decoding, in turns on the same prompts. `a3,m6`:
attention of layer 3 and MLP of layer 6 are skipped. `prune`, `knn`, `draft-verify`, ... are strategies of selfdraft."""


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
        return str(self.head.circumstances.get("command") or "selfdraft reproduce all")

    def command_of(self, recipe: Recipe, experiment: Experiment) -> str:
        """Of one table alone."""
        program, verb, _, *options = shlex.split(self.command)
        if "--experiments" in options:
            begin = options.index("--experiments")
            end = next((i for i, word in enumerate(options) if i > begin and word.startswith("--")), len(options))
            del options[begin:end]
        return shlex.join([program, verb, recipe.name, *options, "--experiments", experiment.id])


@dataclass(frozen=True)
class _Measured:
    """A paper's experiments in one file."""

    result: Result
    sections: Sequence[Shown]

    @property
    def counts(self) -> Mapping[bool | None, int]:
        """Of claims by what is said of them; tables of one measurement may claim the same, that is one claim."""
        trends = {(trend.claim, trend.because): trend for one in self.sections for trend in one.section.trends}.values()
        return {holds: sum(trend.holds is holds for trend in trends) for holds in HELD}


def page(results: Sequence[Result], notes: Mapping[str, str], pictures: str | None, command: str) -> str:
    """`notes`: a paragraph by recipe, written by a person; `pictures`: where links of pictures point to."""
    papers = [(recipe, found) for recipe in recipes([ALL]) if (found := _measured(recipe, results))]
    made = f"Made by `{command}`; written by hand is only what begins each paper's part."
    parts = [TITLE, made, HOW_TO_READ, _overview(papers)]
    for recipe, found in papers:
        parts += _paper(recipe, found, notes.get(recipe.name), pictures)
    return "\n\n".join(parts) + "\n"


def _measured(recipe: Recipe, results: Sequence[Result]) -> list[_Measured]:
    return [_Measured(result, sections) for result in results if (sections := result.of(recipe))]


def _overview(papers: Sequence[tuple[Recipe, Sequence[_Measured]]]) -> str:
    rows = [
        [f"[{recipe.name}](#{recipe.name})", one.result.where, *(str(count) for count in one.counts.values())]
        for recipe, found in papers
        for one in found
    ]
    return markdown_table(Table("", ["paper", "measured on", "claims that hold", "do not", "cannot be told"], rows))


def _paper(recipe: Recipe, found: Sequence[_Measured], note: str | None, pictures: str | None) -> Iterator[str]:
    paper = published(recipe.name)
    yield f"## {recipe.name}"
    yield f"{paper.title} (arXiv:{paper.arxiv})"
    if note:
        yield note.strip()
    yield "\n".join(f"* {_run(one.result)}" for one in found)
    for experiment in recipe.experiments:
        yield from _experiment(recipe, experiment, found, pictures)


def _experiment(
    recipe: Recipe, experiment: Experiment, found: Sequence[_Measured], pictures: str | None
) -> Iterator[str]:
    """What was measured, file by file, and what was published once."""
    mine = [(one.result, section) for one in found for section in one.sections if section.experiment is experiment]
    if not mine:
        return
    yield f"### {recipe.name} {experiment.id}: {experiment.title}"
    for result, section in mine:
        yield from ours_as_markdown(section, result.head, picture_link(pictures, result, section))
        yield f"```sh\n{result.command_of(recipe, experiment)}\n```"
    yield from published_as_markdown(mine[0][1])


def _run(result: Result) -> str:
    """Where it was measured, by which command and with which prompts; and whether outputs were equal."""
    files = result.head.question.get("prompts") or []
    digest = result.head.question.get("prompts_digest")
    foreign = f"; the prompts ({', '.join(files)}, digest {digest}) are no part of this repository: {OWN_FILES}"
    compared = sum(num_compared(line.values) for line in result.lines)
    different = sum(num_different(line.values) for line in result.lines)
    outputs = f"{compared} outputs compared with plain decoding, {different} different"
    made = f"{result.where}: selfdraft {_commit(result)}, `{result.command}`; {outputs}"
    return made + (foreign if files else "")


def _commit(result: Result) -> str:
    question = result.head.question
    parts = (f"{question.get('selfdraft')}", question.get("commit") and f"commit {question['commit']}")
    versions = f"torch {question.get('torch')}, transformers {question.get('transformers')}"
    return f"{' '.join(filter(None, parts))} ({versions})"


def picture_name(result: Result, one: Shown) -> str:
    stem = Path(result.name).stem
    paper = "" if stem.startswith(one.recipe.name) else f"-{one.recipe.name}"
    return f"{stem}{paper}-{one.experiment.id}.png"


def picture_link(pictures: str | None, result: Result, one: Shown) -> str | None:
    return f"{pictures}/{picture_name(result, one)}" if pictures and one.section.plot else None


def plots(results: Sequence[Result]) -> Iterator[tuple[str, Plot, str]]:
    """(file name, plot, caption) of all pictures of the page."""
    for recipe in recipes([ALL]):
        for result in results:
            for one in result.of(recipe):
                if one.section.plot:
                    yield picture_name(result, one), one.section.plot, f"{where_of(result.head)}, {one.date}"
