"""`selfdraft calibrate --lookahead`: how far to draft, for a model and what drafts for it, on this device."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ..calibrate.lookahead import (
    USUAL_TOKENS,
    LookaheadOptions,
    Trained,
    Tried,
    Tuned,
    check_enough,
    train_lookahead,
    tune,
)
from ..calibrate.tuning import MAX_TOKENS, TUNABLE
from ..engine.engine import Engine
from ..errors import OptionError, unknown_name
from ..lookahead.disco import artefact_name
from ..measure.cores import Watch
from ..models.load import loading
from ..profiles.store import Store
from ..prompts.tokens import encoded
from ..registry import DRAFTING
from ..types import Prompt
from . import terminal
from .budget import load_within
from .inputs import checked_method, heading, read_learning_prompts, read_method
from .parsers.learn import seconds

DRAFTING_AXES = ("strategy", "drafter", "tree")
BUDGET = "10m"
TRAINED = "disco"


def run(options: argparse.Namespace) -> int:
    prompts, method = _read_before_loading(options)
    options.budget = options.budget or seconds(BUDGET)
    engine, budget = load_within(options, **method)
    asked, watch = [encoded(prompt, engine) for prompt in prompts], Watch()
    asked_for = (options.tokens or USUAL_TOKENS, budget.left(), options.max_tokens or MAX_TOKENS)
    wanted = LookaheadOptions(*asked_for, label=options.label or "match")
    learn = _train if options.lookahead == TRAINED else _tune
    try:
        with terminal.Progress(unit="") as progress:
            bar = watch.beside(progress, engine.device)
            text, flags, document = learn(engine, method, asked, wanted, options.lookahead, bar)
    except KeyboardInterrupt:
        terminal.say("\ninterrupted: nothing was kept; the profile is as it was")
        return 130
    terminal.say(f"took {budget.spent:.0f} s of the budget of {options.budget.words}")
    if busy := watch.summary(engine.device):
        text, document = f"{text}\nthe machine was busy for {busy}", {**document, "busy": busy}
    if options.json:
        print(json.dumps({**_circumstances(engine, method, options), **document}, default=str))
    else:
        print(f"{text}\nuse it with: {_generate_command(engine, options, flags)}")
    return 0


def _read_before_loading(options: argparse.Namespace) -> tuple[list[Prompt], dict[str, Any]]:
    """Validate the whole command before the model is loaded."""
    if options.lookahead not in (*TUNABLE, TRAINED):
        raise unknown_name("lookahead to calibrate", options.lookahead, [*TUNABLE, TRAINED])
    if options.lookahead != TRAINED and options.label:
        raise OptionError(f"--label belongs to --lookahead {TRAINED}; leave it out")
    if options.strategy and len(options.strategy) > 1:
        raise OptionError(f"--lookahead learns for one strategy, got {', '.join(options.strategy)}; name one")
    if options.strategy == ["off"]:
        raise OptionError("the strategy 'off' drafts nothing, so there is nothing to learn; name another --strategy")
    options.strategy = options.strategy[0] if options.strategy else None
    asked = checked_method(read_method(options), options)
    method = {"strategy": DRAFTING, **asked}
    del method["lookahead"]  # it is learned
    loading.choose_dtype(options.dtype, loading.choose_device(options.device))
    prompts = read_learning_prompts(options)
    if options.lookahead == TRAINED:
        check_enough((prompt.domain, prompt.text) for prompt in prompts)
    return prompts, method


Learned = tuple[str, str, dict[str, Any]]  # text, flags that use it, facts


def _train(engine: Engine, method: Any, prompts: Any, wanted: LookaheadOptions, name: str, progress: Any) -> Learned:
    found = train_lookahead(engine, method, prompts, wanted, progress=progress, say=terminal.say)
    path = Store().path_of(engine.knowledge.key)
    kept = f"kept in {path} as {artefact_name(found.facts['drafter'])}"
    rows = [row.to_json() for row in found.rows]
    facts = {**found.facts, "kept_share": found.counts.kept_share, "rows": rows, "path": str(path)}
    return f"{_trained_text(found)}\n{kept}", f"--lookahead {name}", facts


def _tune(engine: Engine, method: Any, prompts: Any, wanted: LookaheadOptions, name: str, progress: Any) -> Learned:
    found = tune(engine, method, name, prompts, wanted, progress=progress, say=terminal.say)
    best = found.fastest(name)
    assert best.candidate is not None
    facts = {
        "best": best.to_json(),
        "flags": best.candidate.flags,
        "rows": [row.to_json() for row in found.rows],
        "num_tokens": found.counts.num_tokens,
    }
    return _tuned_text(found, best), best.candidate.flags, facts


# ------------------------------------------------------------------------------------------------ what came out


def _trained_text(found: Trained) -> str:
    facts, best = found.facts, found.fastest(TRAINED)
    plain, static, disco = (f"{1000 * facts['seconds_per_token'][arm]:.2f}" for arm in ("plain", "static", TRAINED))
    tokens = f"{facts['num_tokens']} to train with, {facts['num_validation_tokens']} held out"
    kept = f"{found.counts.kept_share:.1%} of the drafted tokens were the target's"
    own = f"{facts['f1']:.3f} on tokens held out ({facts['f1_at_half']:.3f} at 0.5)"
    fixed = f"{facts['f1_static']:.3f} of the best fixed length, {facts['static_tokens']}"
    rows = {
        "tokens": f"{tokens} ({', '.join(facts['domains'])}); {kept}",
        "F1": f"{own}; {fixed} (of any length at most {facts['f1_any_static']:.3f})",
        "tuned": f"threshold {facts['threshold']:g}, at most {terminal.number(facts['max_tokens'], 'token')}",
        "ms a token": f"disco {disco}, best fixed length {static}, plain decoding {plain}",
    }
    lines = [*(f"{label:12}{value}" for label, value in rows.items()), "", _table(found.rows, best), ""]
    if best.seconds_per_token > found.plain.seconds_per_token:
        lines.append("plain decoding is faster here: this draft costs more than it saves, however far it goes")
    return "\n".join(lines)


def _tuned_text(found: Tuned, best: Tried) -> str:
    counts = found.counts
    drafted = f"{counts.num_drafted} of {counts.num_tokens} tokens had a draft"
    lines = [f"{drafted}, {counts.kept_share:.1%} of these a right one", "", _table(found.rows, best), ""]
    if best.seconds_per_token > found.plain.seconds_per_token:
        lines.append("plain decoding is faster than all of them here; --strategy off decodes plainly")
    return "\n".join([*lines, f"best: {best.candidate}"])


def _table(rows: Sequence[Tried], best: Tried) -> str:
    """Milliseconds a token of plain decoding and of every setting that was tried; the best one is starred."""
    plain = rows[0].seconds_per_token
    labels = [f"{row.candidate or 'plain decoding'}{' (usual)' if row.is_usual else ''}" for row in rows]
    width = max(map(len, labels))
    lines = [f"  {'':{width}}  {'predicted':>9}  {'measured':>9}  {'speed-up':>8}  {'mean length':>11}"]
    for label, row in zip(labels, rows, strict=True):
        length, speedup = row.total.mean_generated_length or 0.0, plain / row.seconds_per_token
        seconds = f"{1000 * row.predicted_seconds:9.2f}  {1000 * row.seconds_per_token:9.2f}"
        lines.append(f"{'*' if row is best else ' '} {label:{width}}  {seconds}  {speedup:7.2f}x  {length:11.2f}")
    texts = terminal.number(rows[0].total.num_prompts, "prompt")
    return "\n".join([*lines, f"  (milliseconds a token, {texts} in turns; predicted: by replay)"])


def _generate_command(engine: Engine, options: argparse.Namespace, flags: str) -> str:
    """With what was learned, and what it was learned for."""
    chosen = [f"--{axis} {getattr(options, axis)}" for axis in DRAFTING_AXES if getattr(options, axis)]
    chosen += [f"--set {shlex.quote(text)}" for text in options.set]
    model = f" --model {shlex.quote(options.model)}" if options.model else ""
    command = f"selfdraft generate{model}{engine.knowledge.key.options}"
    return " ".join([command, *chosen, flags, '"Why is the sky blue?"'])


def _circumstances(engine: Engine, method: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    names = engine.names(**method)
    return {
        **heading(engine, options),
        "device": engine.knowledge.key.device,
        **{axis: names[axis] for axis in DRAFTING_AXES},
        "settings": names["settings"],
    }
