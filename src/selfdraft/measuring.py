"""What `selfdraft calibrate` and `bench` do, from Python: `learn` about a model, `measure_methods` on prompts."""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch

from .calibrate.calibrate import CalibrateOptions, calibrate, check_strategies
from .engine.engine import Engine
from .engine.keywords import check_method
from .engine.text import Encoded, OnePrompt, encode_prompt, encode_prompts
from .errors import OptionError, PromptError, unknown_name
from .measure.arms import is_bound
from .measure.figures import Figures
from .measure.records import OFF
from .measure.run import MeasurePlan, run_whole
from .options import GenerateOptions, Settings, check_function, check_value, make
from .profiles.profile import Profile
from .progress import Budget, Progress, Say, no_progress
from .prompts.read import CALIBRATION_PROMPTS, read_prompts
from .prompts.tokens import encoded
from .registry import AXES, check_settings
from .strategies.domains import UNLABELLED
from .types import Prompt

Method = Mapping[str, Any]
P = ParamSpec("P")
R = TypeVar("R")


def _checked(function: Callable[P, R]) -> Callable[P, R]:
    """Of what both take: an engine, names of keywords, and who is told how far it is."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        for name in options:
            if name not in known:
                raise unknown_name(f"option of {function.__name__}", name, known)
        engine = arguments[0] if arguments else options.get("engine")
        if not isinstance(engine, Engine):
            got = " ".join(reprlib.repr(engine).split())
            raise OptionError(f"{function.__name__} needs an engine, got {got}; pass an Engine(model, tokenizer)")
        check_function("progress", options.get("progress", no_progress), 3, "a function (done, total, what)")
        return function(*arguments, **options)

    return call


@_checked
def learn(
    engine: Engine,
    budget: float = 1200.0,
    *,
    strategies: str | Sequence[str] = ("prune",),
    prompts: Sequence[Prompt | OnePrompt] | Encoded | None = None,
    settings: Settings | None = None,
    num_tokens: int | None = None,
    num_trial_prompts: int | None = None,
    again: bool = False,
    progress: Progress = no_progress,
    say: Say = lambda text: None,
) -> Profile:
    """Learn what passes take on this device and what `strategies` may skip, within `budget` seconds: the profile.

    It is kept in the cache folder, where every engine of this model on this device finds it; this one goes by it from
    now on. Calling it again goes on where the budget or Ctrl-C ended it; `again`: from the start. `prompts` are text (a
    user message where there is a chat template), token ids, messages, or `selfdraft.types.Prompt`s with domains of
    their own; None: ours. `num_tokens`: that the model writes to learn from; `num_trial_prompts`: of those held out.
    `progress(done, total, what)` and `say(text)` are told how far it is.
    """
    _check_budget(budget)
    check_function("say", say, 1, "a function (text)")
    strategies = [strategies] if isinstance(strategies, str) else strategies
    if not isinstance(strategies, list | tuple) or not strategies:
        raise OptionError(f"strategies must be a list of names like ['prune'], got {reprlib.repr(strategies)}")
    check_strategies(strategies)
    settings = {} if settings is None else settings
    check_settings(settings)
    counts = {"num_tokens": num_tokens, "num_trial_prompts": num_trial_prompts, "again": again}
    options = make(CalibrateOptions, {"budget_seconds": budget, "settings": settings, **counts}, "learn")
    found = _as_prompts(prompts, engine) if prompts is not None else _ours()
    asked = [encoded(prompt, engine) for prompt in found]
    profile = calibrate(
        engine.fork(None, method={}, prefix_cache=False), asked, strategies, options, progress=progress, say=say
    )
    engine.remember(profile)
    return profile


@_checked
def measure_methods(
    engine: Engine,
    prompts: Sequence[Prompt | OnePrompt] | Encoded,
    methods: str | Sequence[str] | Mapping[str, str | Method],
    *,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    seed: int | None = 0,
    runs: int = 1,
    budget: float | None = None,
    progress: Progress = no_progress,
) -> dict[str, Figures]:
    """How fast methods are on these prompts, in turn with plain decoding (`off`, which is among the figures).

    `methods`: keywords of `Engine` by a name of your own (`{"mine": {"drafter": "lookup"}}`), or names of strategies,
    lookaheads, drafters and trees (`["prune", "lookup"]`). Every output is compared with the plain one:
    `figures["mine"].speedup` is an estimate with its interval, `.different` counts texts that are not the same.
    `budget`: begin no prompt after this many seconds; `runs`: measure all prompts this often. Prompts as in `learn`.
    """
    if budget is not None:
        _check_budget(budget)
    check_value("runs", runs, int, minimum=1)
    asked = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    made = make(GenerateOptions, asked, "measure_methods")
    call: dict[str, Any] = {"max_new_tokens": made.max_new_tokens, "seed": made.seed, "runs": runs}
    named, bare = _by_name(methods), engine.fork(method={}, prefix_cache=False)
    for method in named.values():  # raises what is wrong with it before anything is measured
        bare.method(**{**method, "lookahead": None} if is_bound(method) else method)
    plan = MeasurePlan(_as_prompts(prompts, engine), named, sampling={"temperature": made.temperature}, **call)
    found = run_whole(bare, plan, progress, Budget(budget)).all_of
    figures = {name: found.figures(name) for name in (OFF, *named)}
    return {name: figure for name, figure in figures.items() if figure is not None}


def _check_budget(budget: Any) -> None:
    if isinstance(budget, bool) or not isinstance(budget, numbers.Real) or not 0 < float(budget) < math.inf:
        raise OptionError(f"budget is a number of seconds above 0, got {budget!r}; ten minutes are budget=600")


def _by_name(methods: Any) -> dict[str, Method]:
    if not isinstance(methods, str | Sequence | Mapping) or isinstance(methods, bytes):
        raise OptionError(
            f"methods must be names like ['lookup'] or keywords of Engine by name like {{'mine': {{'drafter': "
            f"'lookup'}}}}, got {reprlib.repr(methods)}"
        )
    names = [methods] if isinstance(methods, str) else list(methods)
    for name in names:
        check_value("the name of a method", name, str)
    if not names or OFF in names:
        raise OptionError(f"name methods to measure beside {OFF!r}, which always is; got {names}")
    given = methods if isinstance(methods, Mapping) else {name: name for name in names}
    return {
        name: _method_named(method) if isinstance(method, str) else check_method(method)
        for name, method in given.items()
    }


def _method_named(name: str) -> dict[str, str]:
    if name in AXES["acceptance"]:
        instead = {"mine": {"drafter": "lookup", "acceptance": name}}
        raise OptionError(f"{name!r} is an acceptance, which drafts nothing by itself; pass methods={instead}")
    axes = {axis: names for axis, names in AXES.items() if axis != "acceptance"}
    axis = next((axis for axis, names in axes.items() if name in names), None)
    if axis is None:
        raise unknown_name("method", name, {name for names in axes.values() for name in names} - {OFF})
    return {axis: name}


def _ours() -> list[Prompt]:
    return read_prompts([(CALIBRATION_PROMPTS.name, CALIBRATION_PROMPTS.read_text(encoding="utf-8"))])


def _as_prompts(prompts: Sequence[Prompt | OnePrompt] | Encoded, engine: Engine) -> list[Prompt]:
    if isinstance(prompts, torch.Tensor | np.ndarray | Mapping):
        prompts, _ = encode_prompts(prompts, engine.tokenizer)
    if not isinstance(prompts, Sequence) or isinstance(prompts, str | bytes) or not prompts:
        what = "texts, token ids, messages or selfdraft.types.Prompt"
        raise PromptError(f"pass a list of prompts: {what}, got {reprlib.repr(prompts)}")
    return [_as_prompt(prompt, f"prompt-{number}", engine) for number, prompt in enumerate(prompts, start=1)]


def _as_prompt(prompt: Prompt | OnePrompt, name: str, engine: Engine) -> Prompt:
    if isinstance(prompt, Prompt):
        return prompt
    if isinstance(prompt, str) and prompt.strip():
        return Prompt(name, UNLABELLED, prompt)
    tokens = encode_prompt(prompt, engine.tokenizer, {}, f"{name} is one text")
    return Prompt(name, UNLABELLED, tokens=tuple(tokens))
