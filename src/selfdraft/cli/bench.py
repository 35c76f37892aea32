"""`selfdraft bench`: methods against plain decoding on prompts of several kinds; what would one gain?"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..bench.advice import document
from ..bench.methods import PRESETS, Methods, crossed
from ..bench.tables import as_text
from ..engine.engine import Engine
from ..errors import OptionError, unknown_name
from ..measure.arms import is_bound
from ..measure.cores import Watch
from ..measure.peers import PEERS, check_greedy
from ..measure.records import OFF, RecordFile
from ..measure.result import Result
from ..measure.run import Measurement, MeasurePlan
from ..models.load import loading
from ..models.load.catalogue import DEFAULT_MODEL
from ..options import typed_call
from ..progress import Budget
from ..prompts.arrange import context_prompts, in_modes, mixed_prompts
from ..prompts.sets import select_prompts
from ..prompts.tokens import encode
from ..registry import AXES, find, read_settings
from ..types import Prompt
from . import terminal
from .inputs import (
    check_output,
    checked_methods,
    load_engine,
    load_model,
    read_method,
    read_named,
    shown_name,
)
from .parsers.measure import PLURALS
from .soak import Sample, growth, soak

MODE_OPTIONS = (
    *("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    "acceptance",
)


def run(options: argparse.Namespace) -> int:
    budget = Budget(options.seconds)
    given = {name: getattr(options, name) for name in ("temperature", "top_p", "seed")}
    sampling = typed_call({name: value for name, value in given.items() if value is not None})
    methods, modes = _methods(options), _modes(options)
    peers, prompts = _peers(options, [{**sampling, **mode} for mode in modes.values()] or [sampling]), _prompts(options)
    if options.output:
        check_output(options.output)
    watch, engine = Watch(), load_engine(options)
    if warning := watch.warning(engine.device):
        terminal.say(warning)
    peer_model = load_model(options, options.peer_model)[0] if options.peer_model else None
    if profile := engine.knowledge.profile:
        terminal.say(profile.summary)
    plan = MeasurePlan(
        prompts=in_modes([*prompts, *context_prompts(prompts, engine, options.contexts, per_length=2)], modes),
        methods=methods,
        peers=peers,
        peer_model=peer_model,
        peer_prompts=options.peer_prompts,
        max_new_tokens=_asked(options, "max_new_tokens") or 128,
        seed=sampling.pop("seed"),
        sampling=sampling,
        runs=options.runs,
        with_passes=bool(_asked(options, "passes")),
        facts=_facts(options),
    )
    file = RecordFile(options.output) if options.output else None
    with terminal.Progress("") as bar:
        work = Measurement(engine, plan, file, budget=budget, progress=bar, is_new=options.again)
        result = work.run()
        if options.soak and not work.is_interrupted:
            result = _soak(engine, work, options.soak)
    print(json.dumps(document(result)) if options.json else as_text(result))
    if work.is_interrupted:
        return 130
    return 1 if result.is_different else 0


def _soak(engine: Engine, work: Measurement, num_texts: int) -> Result:
    prompts = [encode(prompt, engine) for prompt in work.plan.prompts]
    arms = [arm for arm in work.ours if arm.error is None]
    samples: list[Sample] = []
    try:
        for sample in soak(engine, arms, prompts, work.plan.calls, num_texts):
            samples.append(sample)
            terminal.say(f"soak: {sample['num_generations']}/{num_texts} generations")
    except KeyboardInterrupt:
        work.is_interrupted = True
    return work.result(soak=growth(samples))


def _methods(options: argparse.Namespace) -> Methods:
    """Validate the whole command before the model is loaded."""
    if options.strategy == OFF:
        raise OptionError("--strategy off is plain decoding, which is always measured; leave it out")
    base = read_method(options)
    chosen = {axis: getattr(options, name) for axis, name in PLURALS.items()}
    preset = PRESETS.get(options.preset)
    methods: Methods = preset.methods(base) if preset else {}
    methods |= crossed(chosen, base)
    methods |= read_variants(options, base)
    if not (methods or any(chosen.values())):
        named = ", ".join(base[axis] for axis in AXES if axis in base)
        methods = {named: base} if named else PRESETS["quick"].methods(base)
    bounds = {name: {"lookahead": method["lookahead"]} for name, method in methods.items() if is_bound(method)}
    known = {  # what knows the text beforehand is not among the methods by name
        name: {axis: value for axis, value in method.items() if axis not in bounds.get(name, ())}
        for name, method in methods.items()
    }
    return {name: {**method, **bounds.get(name, {})} for name, method in checked_methods(known, options).items()}


def read_variants(options: argparse.Namespace, base: Mapping[str, Any]) -> Methods:
    """`NAME: strategy=fixed fixed.skip=a4,m1-3` each; what a variant leaves open is as in `base`."""
    variants: Methods = {}
    example = "skip: strategy=fixed fixed.skip=a4,m1-3 tree=siblings"
    for name, text, words in _rows("variant", options, "AXIS=METHOD METHOD.OPTION=VALUE", example):
        own = [word for word in words if "." in word.partition("=")[0]]
        named = dict(word.split("=", 1) for word in words if word not in own)
        for axis in named.keys() - AXES.keys():
            raise unknown_name(f"axis in --variant {text!r}:", axis, AXES)
        settings = dict(base.get("settings", {}))
        for owner, values in read_settings(own).items():
            settings[owner] = {**settings.get(owner, {}), **values}
        variants[name] = {**base, **named, "settings": settings}
    return variants


def _modes(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """`NAME: temperature=0.8 top_p=0.95` each; an acceptance, too, as it decides how a text is drawn."""
    modes: dict[str, dict[str, Any]] = {}
    for name, text, words in _rows("mode", options, "OPTION=VALUE", "warm: temperature=0.8 top_p=0.95"):
        given = dict(word.split("=", 1) for word in words)
        for option in given.keys() - set(MODE_OPTIONS):
            raise unknown_name(f"option in --mode {text!r}:", option, MODE_OPTIONS)
        acceptance = {axis: find(axis, value) and value for axis, value in given.items() if axis in AXES}
        modes[name] = typed_call({option: value for option, value in given.items() if option not in AXES}) | acceptance
    return modes


def _rows(flag: str, options: argparse.Namespace, form: str, example: str) -> Iterator[tuple[str, str, list[str]]]:
    """Each `NAME: WORD=VALUE ...` of a flag: the name, all of it, the words."""
    taken = {OFF}
    for text in getattr(options, flag):
        name, colon, rest = (part.strip() for part in text.partition(":"))
        try:
            words = shlex.split(rest)
        except ValueError as error:
            raise OptionError(f"cannot read --{flag} {text!r}: {error}") from None
        if not (name and colon and words) or not all("=" in word for word in words):
            raise OptionError(f'cannot read --{flag} {text!r}; write NAME: {form} ..., for example "{example}"')
        if name in taken:
            raise OptionError(f"two rows cannot both be named {name!r}; give --{flag} {text!r} another name")
        taken.add(name)
        yield name, text, words


def _asked(options: argparse.Namespace, name: str) -> Any:
    """What the command says, else what its preset does."""
    given, preset = getattr(options, name), PRESETS.get(options.preset)
    return given if given is not None or preset is None else preset.options.get(name)


def _peers(options: argparse.Namespace, calls: Iterable[Mapping[str, Any]]) -> list[str]:
    device = loading.choose_device(options.device)
    loading.choose_dtype(options.dtype, device)
    asked = _asked(options, "peers")
    if not asked:  # on a CPU a static cache brings nothing but waiting
        usual = [name for name in PEERS if device.type == "cuda" or name != "static"]
        asked = ["none"] if options.temperature or options.mode else usual
    if "none" in asked and len(asked) > 1:
        raise OptionError(f"--peers {' '.join(asked)}: none stands alone; leave it out, or give nothing else")
    for name in asked:
        if name not in (*PEERS, "none"):
            raise unknown_name("peer", name, [*PEERS, "none"])
    found = [name for name in dict.fromkeys(asked) if name != "none"]
    check_greedy(found, options.peer_model, calls)
    return found


def _prompts(options: argparse.Namespace) -> list[Prompt]:
    files, per_domain = read_named(options.prompts), _asked(options, "per_domain")
    prompts = select_prompts(options.prompt_sets, files, options.datasets, per_domain)
    return prompts if options.mix is None else mixed_prompts(prompts, options.mix, options.seed)


def _facts(options: argparse.Namespace) -> dict[str, Any]:
    left_out: tuple[str, ...] = ("run", "command", "model", "output", "again", "json", "commit", "seconds", "soak")
    left_out += ("threads", "config", "time")
    values = {name: value for name, value in vars(options).items() if name not in left_out}
    files = {
        "prompts": [Path(file).name for file in options.prompts],
        "set": ["=".join(map(shown_name, word.split("=", 1))) for word in (*options.configured, *options.set)],
        "peer_model": options.peer_model and shown_name(options.peer_model),
    }
    commit = {"commit": options.commit} if options.commit else {}
    return {"model": shown_name(options.model or DEFAULT_MODEL), "options": {**values, **files}, **commit}
