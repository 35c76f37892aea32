"""What `selfdraft calibrate` and `bench` do, from Python: `learn` about a model, `measure_methods` on prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .calibrate.calibrate import CalibrateOptions, calibrate, check_strategies
from .engine.engine import Engine
from .engine.text import OnePrompt, encode_prompts
from .errors import OptionError, PromptError, unknown_name
from .measure.arms import is_bound
from .measure.figures import Figures
from .measure.records import OFF
from .measure.run import MeasurePlan, run_whole
from .options import GenerateOptions, Settings, make
from .profiles.profile import Profile
from .progress import Budget, Progress, Say, no_progress
from .prompts.read import CALIBRATION_PROMPTS, read_prompts
from .prompts.tokens import encoded
from .registry import AXES, check_settings
from .strategies.domains import UNLABELLED
from .types import Prompt

Method = Mapping[str, Any]


def learn(
    engine: Engine,
    budget: float = 1200.0,
    *,
    strategies: Sequence[str] = ("prune",),
    prompts: Sequence[Prompt | OnePrompt] | None = None,
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
    check_strategies(strategies)
    check_settings(settings or {})
    found = _as_prompts(prompts, engine) if prompts is not None else _ours()
    options = CalibrateOptions(budget, num_tokens, num_trial_prompts, again, settings or {})
    asked = [encoded(prompt, engine) for prompt in found]
    profile = calibrate(engine.fork(None, method={}), asked, strategies, options, progress=progress, say=say)
    engine.remember(profile)
    return profile


def measure_methods(
    engine: Engine,
    prompts: Sequence[Prompt | OnePrompt],
    methods: Mapping[str, Method] | Sequence[str],
    *,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    seed: int = 0,
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
    if not isinstance(runs, int) or runs < 1:
        raise OptionError(f"runs must be a whole number of at least 1, got {runs!r}")
    call: dict[str, Any] = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    make(GenerateOptions, call, "measure_methods")
    named = dict(methods) if isinstance(methods, Mapping) else {name: _method_named(name) for name in methods}
    if not named or OFF in named:
        raise OptionError(f"name methods to measure beside {OFF!r}, which always is; got {list(named)}")
    bare = engine.fork(method={})
    for method in named.values():
        if not is_bound(method):
            bare.method(**method)  # raises what is wrong with it before anything is measured
    plan = MeasurePlan(_as_prompts(prompts, engine), named, runs=runs, **call)
    found = run_whole(bare, plan, progress, Budget(budget)).all_of
    figures = {name: found.figures(name) for name in (OFF, *named)}
    return {name: figure for name, figure in figures.items() if figure is not None}


def _check_budget(budget: float) -> None:
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not budget > 0:
        raise OptionError(f"budget is a number of seconds above 0, got {budget!r}; ten minutes are budget=600")


def _method_named(name: str) -> dict[str, str]:
    axis = next((axis for axis in ("strategy", "drafter", "lookahead", "tree") if name in AXES[axis]), None)
    if axis is None:
        raise unknown_name("method", name, sorted({name for axis in AXES.values() for name in axis} - {OFF}))
    return {axis: name}


def _ours() -> list[Prompt]:
    return read_prompts([(CALIBRATION_PROMPTS.name, CALIBRATION_PROMPTS.read_text(encoding="utf-8"))])


def _as_prompts(prompts: Sequence[Prompt | OnePrompt], engine: Engine) -> list[Prompt]:
    if isinstance(prompts, str) or not prompts:
        raise PromptError("pass a list of prompts: texts, token ids, messages or selfdraft.types.Prompt")
    return [_as_prompt(prompt, f"prompt-{number}", engine) for number, prompt in enumerate(prompts, start=1)]


def _as_prompt(prompt: Prompt | OnePrompt, name: str, engine: Engine) -> Prompt:
    if isinstance(prompt, Prompt):
        return prompt
    if isinstance(prompt, str) and prompt.strip():
        return Prompt(name, UNLABELLED, prompt)
    (tokens,), _ = encode_prompts(prompt, engine.tokenizer)
    return Prompt(name, UNLABELLED, tokens=tuple(tokens))
