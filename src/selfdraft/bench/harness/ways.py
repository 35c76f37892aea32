"""Which ways are compared: combinations of methods by name, every method by itself, or a few for a quick look."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...errors import OptionError, unknown_name
from ...registry import AXES, BENCH_ONLY, DEFAULTS, resolve
from ..ways import OFF

ALL = "all"
CROSSED = ("strategy", "lookahead", "drafter", "tree")
"""The axes whose values are combined, in the order of a way's name."""
AGAIN = "off, again"
QUICK: Mapping[str, Mapping[str, str]] = {
    "uniform": {"strategy": "uniform"},
    "swift": {"strategy": "swift"},
    "lookup": {"strategy": "uniform", "drafter": "lookup"},
    "prune": {"strategy": "prune"},
}
"""What answers "what would I gain?": nothing learned, learned on the way, copied from the text, learned beforehand."""

Methods = dict[str, dict[str, Any]]


def crossed(chosen: Mapping[str, Sequence[str]], base: Mapping[str, Any]) -> Methods:
    """Every combination of the values of each axis; what an axis leaves open is as `base` or the strategy's pairing."""
    values = {axis: _values(axis, chosen.get(axis) or ()) for axis in CROSSED}
    given = [axis for axis in CROSSED if values[axis]]
    combinations = itertools.product(*(values[axis] for axis in given)) if given else ()
    methods: Methods = {}
    for combination in combinations:
        named = dict(zip(given, combination, strict=True))
        if named.get("strategy") != OFF:  # plain decoding is there in any case
            methods[", ".join(combination)] = _method(base, named)
    return methods


def _values(axis: str, names: Sequence[str]) -> list[str]:
    known = [*AXES[axis], *BENCH_ONLY.get(axis, ())]
    for name in names:
        if name != ALL and name not in known:
            raise unknown_name(axis, name, [*known, ALL])
    return list(AXES[axis]) if ALL in names else list(dict.fromkeys(names))


def every_method(base: Mapping[str, Any]) -> Methods:
    """Each strategy with what it pairs with; lookaheads, drafters and trees each with the strategy of `base`.

    These draft with a chain, and `confidence` says how far, unless they say otherwise themselves. And plain decoding a
    second time: by how much it is off 1.00x is what the machine's moods make of nothing.
    """
    strategy = base.get("strategy", DEFAULTS["strategy"])
    plain = {"strategy": strategy, "lookahead": DEFAULTS["lookahead"], "drafter": "self", "tree": "chain"}
    methods = {name: _method(base, {"strategy": name}, without=CROSSED) for name in AXES["strategy"] if name != OFF}
    for axis in CROSSED[1:]:
        for name in (*AXES[axis], *BENCH_ONLY.get(axis, ())):
            if name != DEFAULTS[axis]:
                methods[f"{strategy}, {axis} {name}"] = _method(base, {**plain, axis: name})
    methods[f"{strategy}, plain"] = _method(base, plain)
    methods[AGAIN] = _method(base, {"strategy": OFF}, without=CROSSED)
    return methods


def quick(base: Mapping[str, Any]) -> Methods:
    return {name: _method(base, method) for name, method in QUICK.items()}


def _method(base: Mapping[str, Any], named: Mapping[str, str], without: Iterable[str] = ()) -> dict[str, Any]:
    kept = {name: value for name, value in base.items() if name not in without}
    return {**kept, **named}


def is_bound(method: Mapping[str, Any]) -> bool:
    """Whether it must know the text beforehand."""
    return method.get("lookahead") in BENCH_ONLY["lookahead"]


def described(name: str, method: Mapping[str, Any]) -> dict[str, Any]:
    """A row's name, kind and method, with nothing left open; `asked`: as much of it as one has to ask for."""
    if not is_bound(method):
        whole = resolve(method)
        kind = "control" if whole["strategy"] == OFF else "ours"
        return {"name": name, "kind": kind, "method": whole, "asked": _asked(method, whole)}
    whole = resolve({**method, "lookahead": DEFAULTS["lookahead"]})
    return {"name": name, "kind": "bound", "method": {**whole, "lookahead": method["lookahead"]}}


def _asked(method: Mapping[str, Any], whole: Mapping[str, Any]) -> dict[str, Any]:
    """Without options of methods that are not in it."""
    used = {whole[axis] for axis in AXES}
    settings = {
        name: dict(values) for name, values in (method.get("settings") or {}).items() if name in used and values
    }
    return {**{axis: method[axis] for axis in AXES if axis in method}, **({"settings": settings} if settings else {})}


def check_names(methods: Methods) -> None:
    if OFF in methods:
        raise OptionError(f"a way cannot be named {OFF!r}: that is plain decoding, which is always measured")
