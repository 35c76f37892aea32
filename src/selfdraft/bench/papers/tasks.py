"""The papers' data sets, as far as the prompts at hand have them: by their ids, else by their domain.

Prompts of a domain stand for a data set of the same kind; where they do, a row says so, or else the caption.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...errors import unknown_name
from ...types import Prompt


@dataclass(frozen=True)
class TaskKind:
    """`title`: as papers call it; `ids`: how ids of its prompts begin; `domains`: what may stand for it."""

    title: str
    ids: tuple[str, ...]
    domains: tuple[str, ...] = ()


TASKS: Mapping[str, TaskKind] = {
    "cnn-dm": TaskKind("CNN/DM", ("cnndm",), ("summarization", "summarise")),
    "xsum": TaskKind("XSum", ("xsum",)),
    "gsm8k": TaskKind("GSM8K", ("gsm8k",), ("math",)),
    "math": TaskKind("MATH", ("MATH",)),
    "tinystories": TaskKind("TinyStories", ("tinystories",), ("story",)),
    "wmt": TaskKind("WMT DE-EN", ("wmt",), ("translation", "translate")),
    "sql": TaskKind("SQL", ("spider", "wikisql"), ("sql",)),
    "alpaca": TaskKind("Alpaca", ("alpaca",), ("chat",)),
    "nq": TaskKind("NQ", ("nq",), ("qa",)),
    "humaneval": TaskKind("HumanEval", ("humaneval",), ("code",)),
    "mbpp": TaskKind("MBPP", ("mbpp",), ("code",)),
    "rewrite": TaskKind("rewrite", (), ("rewrite",)),
}


@dataclass(frozen=True)
class Task:
    """`measured` and `fitting` have no prompt in common; `stand_in`: the domain that stands for the data set."""

    name: str
    title: str
    measured: Sequence[Prompt]
    fitting: Sequence[Prompt]
    stand_in: str | None = None

    @property
    def label(self) -> str:
        """For a row."""
        return f"{self.title} ({self.stand_in})" if self.stand_in else self.title


class Tasks:
    """`num_measured` and `num_fit` prompts of each, drawn by `seed`; fewer where there are not enough."""

    def __init__(self, prompts: Sequence[Prompt], num_measured: int, num_fit: int, seed: int) -> None:
        self._prompts, self._seed = prompts, seed
        self._num_measured, self._num_fit = num_measured, num_fit

    def find(self, name: str) -> Task | None:
        """None where no prompt is of it, or only one: it could not be fitted and measured."""
        if name not in TASKS:
            raise unknown_name("task", name, list(TASKS))
        kind = TASKS[name]
        found = [prompt for prompt in self._prompts if prompt.id.startswith(kind.ids)] if kind.ids else []
        stand_in = None
        if len(found) < 2:
            found = [prompt for prompt in self._prompts if prompt.domain in kind.domains]
            stand_in = found[0].domain if found else None
        if len(found) < 2:
            return None
        found = random.Random(f"{self._seed} {name}").sample(found, len(found))
        num_fit = min(self._num_fit, len(found) // 2)
        num_measured = min(self._num_measured, len(found) - num_fit)
        fitting = found[len(found) - num_fit :]
        return Task(name, kind.title, found[:num_measured], fitting, stand_in)

    @staticmethod
    def why_missing(name: str) -> str:
        kind = TASKS[name]
        words = " or ".join([*(f"{ids}..." for ids in kind.ids), *(f"domain {domain}" for domain in kind.domains)])
        return f"there are no prompts of {kind.title} (ids {words}); name a file of them with --prompts"
