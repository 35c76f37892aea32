"""What the papers published: numbers with their source, one file per paper. Nothing of it was measured by us."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from ..tables import Table

Cell = str | float | int | None


@dataclass(frozen=True)
class PublishedTable:
    """`setup`: models, device, prompts of the paper; `source`: where it stands there."""

    source: str
    setup: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def as_table(self, title: str) -> Table:
        return Table(title, self.columns, [[shown(cell) for cell in row] for row in self.rows])


@dataclass(frozen=True)
class Paper:
    title: str
    arxiv: str
    tables: Mapping[str, PublishedTable]


def shown(cell: Cell) -> str:
    return "-" if cell is None else str(cell)


@cache
def published(name: str) -> Paper:
    """Of the recipe `name`."""
    text = (files(__package__) / "published" / f"{name}.json").read_text(encoding="utf-8")
    found = json.loads(text)
    tables = {key: PublishedTable(**table) for key, table in found["tables"].items()}
    return Paper(found["title"], found["arxiv"], tables)
