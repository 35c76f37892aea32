"""Every method by name: `name -> "module:Class"`, imported when asked for.

Being listed here means being in `--help`, in the settings and in the lossless tests.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from .errors import OptionError, unknown_name
from .options import Settings, make

STRATEGIES: Mapping[str, str] = {
    "off": "selfdraft.strategies.off:Off",
    "fixed": "selfdraft.strategies.fixed:Fixed",
    "uniform": "selfdraft.strategies.uniform:Uniform",
    "early-exit": "selfdraft.strategies.early_exit:EarlyExit",
    "asd": "selfdraft.strategies.asd:Asd",
    "clasp": "selfdraft.strategies.clasp:Clasp",
    "draft-verify": "selfdraft.strategies.draft_verify:DraftVerify",
    "knapspec": "selfdraft.strategies.knapspec:KnapSpec",
    "prune": "selfdraft.strategies.prune:Prune",
    "swift": "selfdraft.strategies.swift:Swift",
    "knn": "selfdraft.strategies.knn:Knn",
}
LOOKAHEADS: Mapping[str, str] = {
    "fixed": "selfdraft.lookahead.fixed:Fixed",
    "heuristic": "selfdraft.lookahead.heuristic:Heuristic",
    "confidence": "selfdraft.lookahead.confidence:Confidence",
    "adaptive": "selfdraft.lookahead.adaptive:Adaptive",
    "roc": "selfdraft.lookahead.roc:Roc",
    "perplexity": "selfdraft.lookahead.perplexity:Perplexity",
    "disco": "selfdraft.lookahead.disco:Disco",
    "tpt": "selfdraft.lookahead.tpt:Tpt",
}
DRAFTERS: Mapping[str, str] = {
    "self": "selfdraft.drafters.self:Self",
    "lookup": "selfdraft.drafters.lookup:Lookup",
    "ngram-pool": "selfdraft.drafters.ngram_pool:NgramPool",
    "model": "selfdraft.drafters.model:Model",
}
TREES: Mapping[str, str] = {
    "chain": "selfdraft.trees.chain:Chain",
    "siblings": "selfdraft.trees.siblings:Siblings",
}
ACCEPTANCES: Mapping[str, str] = {
    "coupled": "selfdraft.engine.accept:Coupled",
    "rejection": "selfdraft.engine.accept:Rejection",
}
BENCH_ONLY: Mapping[str, Mapping[str, str]] = {
    "lookahead": {"oracle": "selfdraft.lookahead.oracle:Oracle"},
}
"""What must know the text before it is generated: benchmarks show it as a bound, nobody can generate with it."""
AXES: Mapping[str, Mapping[str, str]] = {
    "strategy": STRATEGIES,
    "lookahead": LOOKAHEADS,
    "drafter": DRAFTERS,
    "tree": TREES,
    "acceptance": ACCEPTANCES,
}
AXIS_HELP: Mapping[str, str] = {
    "strategy": "which sub-layers draft",
    "lookahead": "how far to draft",
    "drafter": "what drafts",
    "tree": "what is verified beside the draft",
    "acceptance": "what is kept of a draft",
}
DEFAULTS: Mapping[str, str] = {
    "strategy": "uniform",
    "lookahead": "confidence",
    "drafter": "self",
    "tree": "chain",
    "acceptance": "coupled",
}


def find(axis: str, name: str) -> Any:
    """The class (or function) registered under `name`."""
    table = AXES[axis]
    if not isinstance(name, str):
        raise unknown_name(axis, name, table)
    if name in BENCH_ONLY.get(axis, ()):
        raise OptionError(
            f"the {axis} {name!r} cannot generate: it has to know the text beforehand. It is a bound that "
            f"`selfdraft bench --preset {axis}s` shows; use one of: {', '.join(table)}"
        )
    if name not in table:
        raise unknown_name(axis, name, table)
    module, _, attribute = table[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def resolve(*choices: Mapping[str, Any]) -> dict[str, Any]:
    """A method with nothing left open: what was chosen (the last one counts), what the strategy pairs with, defaults.

    The settings that come with a pairing hold where its method was not chosen, each option unless it was set.
    """
    chosen = {name: value for choice in choices for name, value in choice.items() if value is not None}
    settings: dict[str, dict[str, Any]] = {}
    for choice in choices:
        for name, values in (choice.get("settings") or {}).items():
            settings.setdefault(name, {}).update(values)
    pairs: Mapping[str, Any] = find("strategy", chosen.get("strategy", DEFAULTS["strategy"])).pairs_with
    for axis in AXES:
        if axis in pairs and axis not in chosen:
            settings[pairs[axis]] = {**pairs.get("settings", {}).get(pairs[axis], {}), **settings.get(pairs[axis], {})}
    return {**DEFAULTS, **{axis: pairs[axis] for axis in AXES if axis in pairs}, **chosen, "settings": settings}


def options_for(axis: str, name: str, settings: Settings) -> Any:
    """The method's options dataclass, filled from `settings`.

    Two axes may use one name (`fixed`): an option belongs to every method of that name that knows it.
    """
    options_class = find(axis, name).Options
    known = set(options_class.__dataclass_fields__)
    values = {key: value for key, value in settings.get(name, {}).items() if key in known}
    return make(options_class, values, name)


def check_settings(settings: Settings) -> None:
    """Raise for a method, an option or a value that does not exist."""
    if not isinstance(settings, Mapping) or not all(isinstance(values, Mapping) for values in settings.values()):
        raise OptionError(f"settings must be a dict of dicts like {{'uniform': {{'ratio': 0.3}}}}, got {settings!r}")
    methods = {name for axis, table in AXES.items() if axis != "acceptance" for name in table}
    for method, values in settings.items():
        if method not in methods:
            raise unknown_name("method in the settings", method, methods)
        known = _options_named(method)
        for option in values:
            if not known:
                raise OptionError(f"{method} has no options, got {option!r}; leave it out")
            if option not in known:
                raise unknown_name(f"option of {method}", option, known)
        for axis in _axes_of(method):
            options_for(axis, method, settings)


def _options_named(method: str) -> set[str]:
    return {name for axis in _axes_of(method) for name in find(axis, method).Options.__dataclass_fields__}


def _axes_of(method: str) -> list[str]:
    return [axis for axis, table in AXES.items() if axis != "acceptance" and method in table]
