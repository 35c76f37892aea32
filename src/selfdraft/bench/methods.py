"""Which methods are compared: combinations by name, every method by itself, variants, or a preset."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import OptionError, unknown_name
from ..measure.records import OFF
from ..options import parse_settings
from ..registry import AXES, BENCH_ONLY, DEFAULTS

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
            methods[", ".join(combination)] = {**base, **named}
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
    second time: its distance from 1.00x shows the noise of the run.
    """
    strategy = base.get("strategy", DEFAULTS["strategy"])
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
    """Each with the same drafts, and the `oracle`, which no lookahead can beat."""
    names = (*AXES["lookahead"], *BENCH_ONLY["lookahead"])
    return {name: {**base, "lookahead": name, "tree": "chain"} for name in names}


def _named(**methods: Mapping[str, str]) -> Callable[[Mapping[str, Any]], Methods]:
    return lambda base: {name: {**base, **method} for name, method in methods.items()}


_LOOKUP, _PRUNE = {"strategy": "uniform", "drafter": "lookup"}, {"strategy": "prune"}
PRESETS: Mapping[str, Preset] = {
    "quick": Preset(
        "what would I gain? four methods (nothing fitted, learned on the way, copied from the text, fitted beforehand)",
        _named(uniform={"strategy": "uniform"}, swift={"strategy": "swift"}, lookup=_LOOKUP, prune=_PRUNE),
        {"per_domain": 2, "max_new_tokens": 40, "peers": ["none"]},
    ),
    "all": Preset("every method by itself, on the strategy that --strategy names", every_method),
    "lookaheads": Preset("every lookahead on the same drafts, and the oracle", every_lookahead, {"peers": ["none"]}),
    "gpu": Preset(
        "lookup and prune against transformers' own; single passes, the bound, the first token",
        _named(lookup=_LOOKUP, prune=_PRUNE),
        {"passes": True, "max_new_tokens": 256},
    ),
}
"""What `selfdraft bench --preset` knows. A new one is an entry here."""


def check_names(methods: Methods) -> None:
    if OFF in methods:
        raise OptionError(f"a method cannot be named {OFF!r}: that is plain decoding, which is always measured")


def name_method(method: Mapping[str, Any]) -> str:
    """A row name for the method options of the command: the methods that were named."""
    return ", ".join(method[axis] for axis in AXES if axis in method) or DEFAULTS["strategy"]


def parse_variants(texts: Iterable[str], base: Mapping[str, Any]) -> Methods:
    """`NAME: strategy=fixed fixed.skip=a4,m1-3` each; what a variant leaves open is as in `base`."""
    variants: Methods = {}
    for text in texts:
        name, method = _parse_variant(text, base)
        if name in variants or name == OFF:
            raise OptionError(f"two rows cannot both be named {name!r}; give --variant {text!r} another name")
        variants[name] = method
    return variants


def _parse_variant(text: str, base: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    name, colon, rest = (part.strip() for part in text.partition(":"))
    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise OptionError(f"cannot read --variant {text!r}: {error}") from None
    if not (name and colon and words) or not all("=" in word for word in words):
        raise OptionError(
            f"cannot read --variant {text!r}; write NAME: AXIS=METHOD METHOD.OPTION=VALUE ..., for example "
            '"skip: strategy=fixed fixed.skip=a4,m1-3 tree=siblings"'
        )
    method = dict(base)
    settings = {key: dict(values) for key, values in base.get("settings", {}).items()}
    for word in words:
        key, _, value = word.partition("=")
        if "." in key:
            for owner, options in parse_settings([word]).items():
                settings.setdefault(owner, {}).update(options)
        elif key in AXES:
            method[key] = value
        else:
            raise unknown_name(f"axis in --variant {text!r}:", key, AXES)
    return name, {**method, "settings": settings}
