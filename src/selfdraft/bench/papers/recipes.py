"""The papers by name: their recipes, and what they published, with its source. Nothing published was measured by us."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.resources import files

from ...errors import unknown_name
from ..tables import Table
from .experiment import Recipe

RECIPES = {"swift": "swift", "knn-ssd": "knn_ssd", "knapspec": "knapspec", "asd": "asd", "disco": "disco"}
"""Name -> module."""
ALL = "all"


def recipe(name: str) -> Recipe:
    if name not in RECIPES:
        raise unknown_name("paper", name, [*RECIPES, ALL])
    found: Recipe = import_module(f".{RECIPES[name]}", __package__).RECIPE
    return found


def recipes(names: list[str]) -> list[Recipe]:
    return [recipe(name) for name in (RECIPES if ALL in names else dict.fromkeys(names))]


# -------------------------------------------------------------------------------------------------------- published

Cell = str | float | int | None


@dataclass(frozen=True)
class PublishedTable:
    """What a table is about and what a reader must know; and, unless the paper has only a picture, its numbers.

    `effort`: how much the paper did, None: it does not say. `setup`: models, device, prompts of the paper; `source`:
    where it stands there. `num_keys`: columns, after that of models, that name a row; `is_beside`: as in our table.
    """

    title: str
    effort: Mapping[str, float | None] = field(default_factory=dict)
    notes: Sequence[str] = ()
    source: str = ""
    setup: str = ""
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Cell]] = ()
    num_keys: int = 1
    is_beside: bool = False

    @property
    def table(self) -> Table:
        return Table("", self.columns, [["-" if cell is None else str(cell) for cell in row] for row in self.rows])

    def folded(self) -> tuple[Table, str]:
        """One row for all models, their numbers one after the other; and the models."""
        table, models = self.table, list(dict.fromkeys(str(row[0]) for row in self.rows))
        rows: dict[tuple[str, ...], list[Sequence[str]]] = {}
        for _, *row in table.rows:
            rows.setdefault(tuple(row[: self.num_keys]), []).append(row[self.num_keys :])
        if self.columns[0] != "model" or any(len(own) != len(models) for own in rows.values()):
            return table, ""
        joined = [[*key, *(" / ".join(cells) for cells in zip(*own, strict=True))] for key, own in rows.items()]
        return Table("", self.columns[1:], joined), " / ".join(models)


@dataclass(frozen=True)
class Paper:
    title: str
    arxiv: str
    tables: Mapping[str, PublishedTable]


@cache
def published(name: str) -> Paper:
    """Of the recipe `name`."""
    text = (files(__package__) / "published" / f"{name}.json").read_text(encoding="utf-8")
    found = json.loads(text)
    tables = {key: PublishedTable(**table) for key, table in found["tables"].items()}
    return Paper(found["title"], found["arxiv"], tables)
