"""The ways that the tables compare. Table A: the same lookahead and a chain for all; table B: as each is meant."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from ...registry import AXES, options_for, resolve
from ..ways import parse_variants

Method = Mapping[str, Any]

ALIKE: Method = {
    "lookahead": "confidence",
    "drafter": "self",
    "tree": "chain",
    "settings": {"confidence": {"threshold": 0.8}},
}
OWN_PAIRING = "own pairing"


def strategies(num_layers: int) -> dict[str, Method]:
    """An early exit at two thirds, where an untrained model begins to know what it will say."""
    num_drafting = max(1, num_layers * 2 // 3)
    return {
        "uniform 0.25": {"strategy": "uniform", "settings": {"uniform": {"ratio": 0.25}}},
        f"early-exit {num_drafting}": {"strategy": "early-exit", "settings": {"early-exit": {"layers": num_drafting}}},
        "asd": {"strategy": "asd"},
        "clasp": {"strategy": "clasp"},
        "knapspec": {"strategy": "knapspec"},
        "prune": {"strategy": "prune"},
        "prune always": {"strategy": "prune", "settings": {"prune": {"always": True}}},
    }


def table_methods(num_layers: int, variants: Sequence[str]) -> tuple[dict[str, Method], dict[str, dict[str, str]]]:
    """(methods by name, the rows of tables A and B: label -> name of the method)."""
    known = strategies(num_layers)
    alike = {name: as_all(method) for name, method in known.items()}
    return both_tables({**known, **parse_variants(variants, {})}, {**alike, **parse_variants(variants, ALIKE)})


def both_tables(
    own: Mapping[str, Method], alike: Mapping[str, Method]
) -> tuple[dict[str, Method], dict[str, dict[str, str]]]:
    """Where a strategy is meant to be used as table A has it, it is measured once and stands in both."""
    methods, rows = dict(alike), {"A": {name: name for name in alike}, "B": {name: name for name in alike}}
    for name, method in own.items():
        if _essence(method) != _essence(alike[name]):
            rows["B"][name] = f"{name}, {OWN_PAIRING}"
            methods[rows["B"][name]] = method
    return methods, rows


def context_methods(num_layers: int, variants: Sequence[str]) -> dict[str, Method]:
    known = strategies(num_layers)
    bound: Method = {"strategy": "knapspec", "settings": {"knapspec": {"bound": True}}}
    chosen = {
        "knapspec": known["knapspec"],
        "knapspec bound": bound,
        **{name: known[name] for name in ("clasp", "prune", "prune always", "uniform 0.25")},
    }
    return {**{name: as_all(method) for name, method in chosen.items()}, **parse_variants(variants, ALIKE)}


def as_all(method: Method) -> Method:
    """The strategy with what table A gives to all."""
    return {**ALIKE, **method, "settings": {**ALIKE["settings"], **method.get("settings", {})}}


def _essence(method: Method) -> Hashable:
    """All that shapes what the method does: names, and the options of each."""
    whole = resolve(method)
    axes = [axis for axis in AXES if axis != "acceptance"]
    parts = tuple((axis, whole[axis], options_for(axis, whole[axis], whole["settings"])) for axis in axes)
    return whole["acceptance"], parts
