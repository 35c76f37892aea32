"""Which methods are compared: combinations by name, every method by itself, or a preset."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..measure.records import OFF
from ..registry import AXES, BENCH_ONLY, DEFAULTS, DRAFTING, unknown_method

ALL = "all"
CROSSED = ("strategy", "lookahead", "drafter", "tree")
"""The axes whose values are combined, in the order of an arm's name."""
Methods = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Preset:
    """`methods(base)`: what is compared; `options`: of the command, where nothing else is asked for."""

    help: str
    methods: Callable[[Mapping[str, Any]], Methods]
    options: Mapping[str, Any] = field(default_factory=dict)


def crossed(chosen: Mapping[str, Sequence[str]], base: Mapping[str, Any]) -> Methods:
    """Every combination of the values of each axis; what an axis leaves open is as `base` or the strategy's pairing."""
    values = {axis: _values(axis, chosen.get(axis) or ()) for axis in CROSSED}
    given = {axis: names for axis, names in values.items() if names}
    methods: Methods = {}
    for combination in itertools.product(*given.values()) if given else ():
        named = dict(zip(given, combination, strict=True))
        if named.get("strategy") != OFF:  # plain decoding is there in any case
            methods[", ".join(combination)] = {"strategy": DRAFTING, **base, **named}
    return methods


def _values(axis: str, names: Sequence[str]) -> list[str]:
    known = [*AXES[axis], *BENCH_ONLY.get(axis, ())]
    for name in names:
        if name != ALL and name not in known:
            raise unknown_method(axis, name, [*known, ALL])
    return list(AXES[axis]) if ALL in names else list(dict.fromkeys(names))


def every_method(base: Mapping[str, Any]) -> Methods:
    """Each strategy with what it pairs with; lookaheads, drafters and trees each with the strategy of `base`.

    These draft with a chain, and `confidence` says how far, unless they say otherwise themselves. And plain decoding a
    second time: its distance from 1.00x shows the noise of the run.
    """
    strategy = base.get("strategy", DRAFTING)
    plain = {"strategy": strategy, "lookahead": DEFAULTS["lookahead"], "drafter": "self", "tree": "chain"}
    open_base = {name: value for name, value in base.items() if name not in CROSSED}
    methods = {name: {**open_base, "strategy": name} for name in AXES["strategy"] if name != OFF}
    for axis in CROSSED[1:]:
        for name in (*AXES[axis], *BENCH_ONLY.get(axis, ())):
            if name != DEFAULTS[axis]:
                methods[f"{strategy}, {axis} {name}"] = {**base, **plain, axis: name}
    methods[f"{strategy}, plain"] = {**base, **plain}
    methods["off, again"] = {**open_base, "strategy": OFF}
    return methods


def every_lookahead(base: Mapping[str, Any]) -> Methods:
    """Each with the same drafts, and both oracles; no length beats that of `oracle-length`."""
    names = (*AXES["lookahead"], *BENCH_ONLY["lookahead"])
    return {name: {"strategy": DRAFTING, **base, "lookahead": name, "tree": "chain"} for name in names}


def _named(**methods: Mapping[str, str]) -> Callable[[Mapping[str, Any]], Methods]:
    return lambda base: {name: {**base, **method} for name, method in methods.items()}


_LOOKUP, _PRUNE = {"strategy": DRAFTING, "drafter": "lookup"}, {"strategy": "prune"}
PRESETS: Mapping[str, Preset] = {
    "quick": Preset(
        "four methods: the default, learned on the way, copied, fitted",
        _named(auto={"strategy": "auto"}, swift={"strategy": "swift"}, lookup=_LOOKUP, prune=_PRUNE),
        {"per_domain": 2, "max_new_tokens": 40, "peers": ["none"]},
    ),
    "all": Preset("every method by itself, on the strategy that --strategy names", every_method),
    "lookaheads": Preset("every lookahead on the same drafts, and the oracles", every_lookahead, {"peers": ["none"]}),
    "gpu": Preset(
        "lookup, prune, transformers' own; passes, bound, first token",
        _named(lookup=_LOOKUP, prune=_PRUNE),
        {"passes": True, "max_new_tokens": 256},
    ),
}
"""What `selfdraft bench --preset` knows. A new one is an entry here."""
