"""Every method by name: `name -> "module:Class"`, imported when asked for.

Being listed here means being in `--help`, in the settings and in the lossless tests.
"""

from __future__ import annotations

import importlib
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .errors import OptionError, unknown_name, warn_caller
from .options import Settings, convert, make, parse_settings

STRATEGIES: Mapping[str, str] = {
    "auto": "selfdraft.strategies.auto:Auto",
    "off": "selfdraft.strategies.off:Off",
    "fixed": "selfdraft.strategies.fixed:Fixed",
    "uniform": "selfdraft.strategies.uniform:Uniform",
    "early-exit": "selfdraft.strategies.early_exit:EarlyExit",
    "dynamic-exit": "selfdraft.strategies.dynamic_exit:DynamicExit",
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
    "lookahead": {
        "oracle": "selfdraft.lookahead.oracle:Oracle",
        "oracle-length": "selfdraft.lookahead.oracle_length:OracleLength",
    },
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
    "tree": "what else is verified",
    "acceptance": "what is kept of a draft",
}
DEFAULTS: Mapping[str, str] = {
    "strategy": "auto",
    "lookahead": "confidence",
    "drafter": "self",
    "tree": "chain",
    "acceptance": "coupled",
}
DRAFTING = "uniform"
"""The strategy where lookaheads, drafters or trees are compared or fitted: it has nothing to learn."""


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
        raise unknown_method(axis, name, table)
    module, _, attribute = table[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def unknown_method(axis: str, name: object, known: Iterable[str]) -> OptionError:
    """The error for a name that an axis does not have; it may be one of another axis."""
    other = next((other for other, table in AXES.items() if isinstance(name, str) and name in table), None)
    if other is None:
        return unknown_name(axis, name, known)
    return OptionError(f"{name!r} is {_a(other)}, not {_a(axis)}; use --{other} {name} (in Python: {other}={name!r})")


def _a(axis: str) -> str:
    return f"an {axis}" if axis[0] in "aeiou" else f"a {axis}"


def resolve(*choices: Mapping[str, Any]) -> dict[str, Any]:
    """A method with nothing left open: what was chosen (the last one counts), what the strategy pairs with, defaults.

    The settings that come with a pairing hold where its method was not chosen, each option unless it was set.
    """
    chosen = {name: value for choice in choices for name, value in choice.items() if value is not None}
    settings: dict[str, dict[str, Any]] = {}
    for choice in choices:
        for name, values in (choice.get("settings") or {}).items():
            settings.setdefault(name, {}).update(values)
    strategy = chosen.get("strategy", DEFAULTS["strategy"])
    for axis in getattr(find("strategy", strategy).Options, "CHOOSES", ()):
        if axis in chosen:
            name = chosen[axis] if isinstance(chosen[axis], str) else type(chosen[axis]).__name__
            settings.setdefault(strategy, {}).setdefault(axis, name)
    pairs = _pairing(strategy, settings)
    named = {pairs[axis] for axis in AXES if axis in pairs and axis in chosen}
    for name, values in pairs.get("settings", {}).items():
        if name not in named:
            settings[name] = {**values, **settings.get(name, {})}
    return {**DEFAULTS, **{axis: pairs[axis] for axis in AXES if axis in pairs}, **chosen, "settings": settings}


def _pairing(strategy: str, settings: Settings) -> Mapping[str, Any]:
    """Values may be text still, as a command line has them."""
    kind, is_paper = find("strategy", strategy), settings.get(strategy, {}).get("paper")
    pairs: Mapping[str, Any] = kind.paper_pairs_with if str(is_paper).lower() == "true" else {}
    return pairs or kind.pairs_with


def options_for(axis: str, name: str, settings: Settings, *, reads_text: bool = True) -> Any:
    """The method's options dataclass, filled from `settings`; profiles of earlier versions have numbers as text.

    Two axes may use one name (`fixed`): an option belongs to every method of that name that knows it.
    """
    options_class = find(axis, name).Options
    known = _settable(options_class)
    values = {key: value for key, value in settings.get(name, {}).items() if key in known}
    options = make(options_class, values, name, reads_text=reads_text)
    if inner := inner_of(axis, options):
        object.__setattr__(options, "inner", options_for(*inner, settings, reads_text=reads_text))
    return options


def inner_of(axis: str, options: Any) -> tuple[str, str] | None:
    """Axis and name of the method that runs inside another: `knn` drafts as the strategy of its searches does."""
    names_it = getattr(options, "RUNS", None)
    return (axis, getattr(options, names_it)) if names_it else None


def _settable(options_class: Any) -> set[str]:
    return {name for name, item in options_class.__dataclass_fields__.items() if item.init}


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
            options_for(axis, method, settings, reads_text=False)


def read_settings(texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """`["uniform.ratio=0.3"]` -> `{"uniform": {"ratio": 0.3}}`; what does not exist stays, for `check_settings`."""
    return {
        method: {option: _read_option(method, option, text) for option, text in values.items()}
        for method, values in parse_settings(texts).items()
    }


def _read_option(method: str, option: str, text: str) -> Any:
    kinds = (find(axis, method).Options for axis in _axes_of(method))
    hint = next((typing.get_type_hints(kind)[option] for kind in kinds if option in _settable(kind)), str)
    return convert(f"{method}.{option}", text, hint)


def _options_named(method: str) -> set[str]:
    return {name for axis in _axes_of(method) for name in _settable(find(axis, method).Options)}


def _axes_of(method: str) -> list[str]:
    return [axis for axis, table in AXES.items() if axis != "acceptance" and method in table]


# ------------------------------------------------------------------------------------------------ what is in use


def unused_settings(method: Mapping[str, Any], *defaults: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(method, option) of each of its settings that nothing chosen reads; `defaults`: what it leaves open."""
    whole = resolve(*defaults, method)
    read = {(name, option) for axis, name in _running(whole) for option in _settable(find(axis, name).Options)}
    given: Settings = method.get("settings") or {}
    return [(name, option) for name in given for option in given[name] if (name, option) not in read]


def settings_of(axis: str, name: str, settings: Settings) -> dict[str, dict[str, Any]]:
    """Those of a method, and of what runs inside it."""
    return {name: dict(settings[name]) for _, name in _chain(axis, name, settings) if name in settings}


def _chain(axis: str, name: str, settings: Settings) -> Iterator[tuple[str, str]]:
    """A method, and what runs inside it."""
    part: tuple[str, str] | None = (axis, name)
    while part:
        yield part
        part = inner_of(part[0], options_for(*part, settings))


def _running(whole: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(axis, name) of each method that reads its options. `off` drafts nothing, so that no other axis is asked."""
    for axis in AXES if whole["strategy"] != "off" else ("strategy",):
        if axis != "acceptance" and isinstance(whole[axis], str):
            yield from _chain(axis, whole[axis], whole["settings"])


def in_use(method: Mapping[str, Any]) -> dict[str, Any]:
    """The method without what it does not use: settings that nothing reads, axes beside `off`."""
    unused = set(unused_settings(method))
    kept = {
        name: {option: value for option, value in values.items() if (name, option) not in unused}
        for name, values in (method.get("settings") or {}).items()
    }
    axes = {name: value for name, value in method.items() if name not in idle_axes(method)}
    return {**axes, "settings": {name: values for name, values in kept.items() if values}}


def unused_text(name: str, option: str, *choices: Mapping[str, Any]) -> str:
    """What is wrong with a setting that nothing reads, and what would read it."""
    if is_off(*choices):
        return f"{name}.{option} is set, but the strategy 'off' drafts nothing; choose another one, or leave it out"
    readers = [axis for axis in _axes_of(name) if option in _settable(find(axis, name).Options)]
    flags = " or ".join(f"--{axis} {name}" for axis in readers)
    python = " or ".join(f"{axis}={name!r}" for axis in readers)
    return f"{name}.{option} is set, but nothing chosen reads it; add {flags} (in Python: {python}), or leave it out"


def check_use(method: Mapping[str, Any], *defaults: Mapping[str, Any]) -> None:
    """Raise for a setting of a call that nothing chosen reads; `defaults`: what the call leaves open.

    An engine's own settings are not asked: a later call may choose what reads them.
    """
    for name, option in unused_settings(method, *defaults):
        raise OptionError(unused_text(name, option, *defaults, method))
    warn_of_idle(method, *defaults)


def warn_of_idle(method: Mapping[str, Any], *defaults: Mapping[str, Any]) -> None:
    """Where `off` was chosen, and what drafts as well."""
    if idle := idle_axes(method, *defaults):
        given = ", ".join(f"{axis}={method[axis]!r}" for axis in idle)
        warn_caller(f"strategy='off' decodes plainly: {given} is not used")


def idle_axes(method: Mapping[str, Any], *defaults: Mapping[str, Any]) -> list[str]:
    """What was chosen together with `off`, which drafts nothing."""
    given = [axis for axis in ("lookahead", "drafter", "tree") if method.get(axis) is not None]
    return given if is_off(*defaults, method) else []


def is_off(*choices: Mapping[str, Any]) -> bool:
    """Whether `off` was chosen; the last one counts."""
    return [choice["strategy"] for choice in choices if choice.get("strategy") is not None][-1:] == ["off"]
