"""The recipes by name."""

from __future__ import annotations

from importlib import import_module

from ...errors import unknown_name
from .experiment import Recipe

RECIPES = {
    "swift": "swift",
    "knn-ssd": "knn_ssd",
    "knapspec": "knapspec",
    "asd": "asd",
    "disco": "disco",
}
"""Name -> module."""
ALL = "all"


def recipe(name: str) -> Recipe:
    if name not in RECIPES:
        raise unknown_name("paper", name, [*RECIPES, ALL])
    found: Recipe = import_module(f".{RECIPES[name]}", __package__).RECIPE
    return found


def recipes(names: list[str]) -> list[Recipe]:
    return [recipe(name) for name in (RECIPES if ALL in names else dict.fromkeys(names))]
