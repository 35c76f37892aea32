"""`selfdraft generate`: stream a text; with `--compare` also decode plainly and show what drafting changed: speed.

Plain decoding itself is compared with transformers' `model.generate`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import secrets
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from ..engine.audit import rule_for
from ..engine.cores import Watch
from ..engine.engine import Engine
from ..engine.metrics import Comparison
from ..engine.text import OnePrompt, encode_prompts
from ..errors import OptionError
from ..measure.peers import generate_by_transformers
from ..options import GenerateOptions, make
from ..registry import AXES, names_drafts
from ..types import Generation, Stats
from . import terminal
from .inputs import checked_method, heading, load_engine, read_method
from .parsers.use import SHAPING
from .prompt import as_prompt, read_prompt

WARM_UP_TOKENS = 8
WORTH_TELLING = 0.01
"""Planning that takes more than this share of decoding is told."""
_NOTHING_LEARNED = (
    "(plain decoding: `selfdraft calibrate` learns what pays on this machine and makes it the default; "
    "--drafter lookup drafts where the answer repeats the prompt)"
)
_NOTHING_FASTER = "(plain decoding: nothing that was calibrated is surely faster on this machine)"

AS_MESSAGE = "the prompt was sent as one user message; in Python pass messages (a plain string is sent as with --raw)"


def run(options: argparse.Namespace) -> int:
    _draw_seed(options)
    fields = {item.name for item in dataclasses.fields(GenerateOptions)}
    call = {name: value for name, value in vars(options).items() if name in fields and value not in (None, [])}
    method = checked_method(read_method(options), options)  # all slips, before the time that a model takes to load
    settings = make(GenerateOptions, call, "generate")
    asked = read_prompt(options)
    engine = load_engine(options, **method)
    if profile := engine.knowledge.profile_in_use:
        fastest = "" if names_drafts(method) else engine.knowledge.fastest.get("strategy", "")
        terminal.say(f"{profile.summary}{fastest and f'; {fastest} was the fastest and is used'}")
    prompt, is_plain = as_prompt(asked, engine, options.raw), engine.names()["strategy"] == "off"
    if is_plain and options.compare:
        _check_greedy(call)
    other = partial(_by_transformers if is_plain else _plainly, engine, prompt)
    if options.compare:
        engine.generate(prompt, max_new_tokens=WARM_UP_TOKENS)
        other({"max_new_tokens": WARM_UP_TOKENS})
    watch = Watch()
    generation = _generate(engine, prompt, call, options)
    plain = other(call) if options.compare else None
    busy = watch.summary(engine.device) if plain else None
    rule = rule_for(engine.names()["acceptance"], settings)
    comparison = engine.compare(prompt, plain, generation, **call) if plain and rule == "choice" else None
    if options.json:
        document = _document(engine, options, generation, plain, comparison) | ({"busy": busy} if busy else {})
        (prompt_tokens,), _ = encode_prompts(prompt, engine.tokenizer)
        shaping = {name: getattr(settings, name) for name in SHAPING}
        print(json.dumps({**document, "prompt_tokens": prompt_tokens, "options": shaping}, ensure_ascii=False))
    else:
        noisy = [f"the machine was busy for {busy}; speeds are noisy"] if busy else []
        terminal.say("\n".join([*_summary(generation, plain, comparison, is_plain), *noisy]))
        if is_plain and not names_drafts(method):
            terminal.say(_NOTHING_FASTER if engine.knowledge.profile_in_use else _NOTHING_LEARNED)
        if isinstance(asked, str) and not isinstance(prompt, str):
            terminal.say(AS_MESSAGE)
    if generation.finish_reason == "cancelled":
        return 130
    return 1 if comparison is not None and comparison.verdict == "different" else 0


def _draw_seed(options: argparse.Namespace) -> None:
    if options.seed == "random":
        options.seed = str(secrets.randbelow(2**32))
        terminal.say(f"seed {options.seed}")


def _plainly(engine: Engine, prompt: OnePrompt, call: Mapping[str, Any]) -> Generation:
    return engine.generate(prompt, **call, strategy="off")


def _by_transformers(engine: Engine, prompt: OnePrompt, call: Mapping[str, Any]) -> Generation:
    """As our own, with the seconds of the whole call: nothing else can be told from outside."""
    (prompt_tokens,), _ = encode_prompts(prompt, engine.tokenizer)
    room = (engine.context_length or sys.maxsize) - len(prompt_tokens)
    num_tokens = min(int(call.get("max_new_tokens", GenerateOptions.max_new_tokens)), room)
    tokens, seconds = generate_by_transformers(engine, prompt_tokens, max_new_tokens=num_tokens)
    text = engine.tokenizer.decode(tokens, skip_special_tokens=True)
    count = len(tokens)
    stats = Stats(count, count, count, 0, 0, 0.0, 1.0, 0.0, seconds, 0.0, 0.0, seconds, count / seconds)
    return Generation(text, tokens, ("target",) * count, len(prompt_tokens), "length", stats)


def _check_greedy(call: Mapping[str, Any]) -> None:
    """What transformers draws, or is told to avoid, cannot be told from an error."""
    for name in call:
        if name not in ("max_new_tokens", "seed"):
            flag = f"--{name.replace('_', '-')}"
            raise OptionError(
                f"--compare sets plain decoding against transformers' greedy text, got {flag}; leave {flag} out, or "
                "name what drafts (--drafter lookup), to compare that with plain decoding"
            )


def _generate(engine: Engine, prompt: OnePrompt, call: dict[str, Any], options: argparse.Namespace) -> Generation:
    """Stream to the terminal; Ctrl-C ends the text, not the program's manners."""
    stream = engine.stream(prompt, **call)
    color = terminal.wants_color(options.color, sys.stdout)
    try:
        for chunk in stream:
            if not options.json:
                for piece in chunk.pieces:
                    code = terminal.DRAFT if piece.source == "draft" else terminal.TARGET
                    sys.stdout.write(terminal.paint(piece.text, code, color))
                sys.stdout.flush()
    except KeyboardInterrupt:
        stream.close()
        options.compare = False
    if not options.json:
        print()
    return stream.generation


def _summary(
    generation: Generation, plain: Generation | None, comparison: Comparison | None, is_plain: bool
) -> Iterator[str]:
    stats = generation.stats
    yield f"\n{'':12}{'tokens/s':>9} {'tokens':>7} {'passes':>7} {'acceptance':>11} {'mean length':>12}"
    is_of_calls = is_plain and plain is not None
    yield _row("plain" if is_plain else "drafting", generation, is_of_calls)
    if plain is not None:
        yield _row("transformers" if is_plain else "plain", plain, is_of_calls)
        speedup = _speedup(generation, plain, is_of_calls)
        yield f"outputs: {_comparison_text(comparison)}"
        why = f" (slower: {_why_slower(generation, plain)})" if speedup < 1 and not is_plain else ""
        yield f"speed-up: {speedup:.2f}x{' (whole calls, the prompt included)' * is_plain}{why}"
    prefill = f"{generation.num_prompt_tokens} tokens {stats.prefill_seconds:.2f} s"
    yield f"ended by {generation.finish_reason}; prefill of {prefill}"
    if generation.report:
        yield _report_text(generation.report)
    if stats.optimise_seconds > WORTH_TELLING * stats.decode_seconds:
        share = stats.optimise_seconds / stats.decode_seconds
        yield f"planning took {stats.optimise_seconds:.2f} s, {share:.0%} of decoding"


def _report_text(report: Mapping[str, Any]) -> str:
    """What the strategy has to say: where it sent the prompt, or each value by its name."""
    if "domain" not in report:
        return ", ".join(f"{name} {_value_text(value)}" for name, value in report.items())
    similarity, nearest = report.get("similarity"), report.get("nearest")
    if similarity is None:
        return f"route: {report['domain']} (the prompt is too short to tell)"
    towards = f" to {nearest}, too little" if nearest != report["domain"] else ""
    return f"route: {report['domain']} (similarity {similarity:.2f}{towards})"


def _value_text(value: Any) -> str:
    return "not known yet" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def _row(name: str, generation: Generation, is_of_calls: bool) -> str:
    stats = generation.stats
    acceptance = f"{stats.acceptance_rate:.0%}" if stats.num_draft_steps else "-"
    return (
        f"{name:12}{_speed(stats, is_of_calls):9.1f} {stats.num_tokens:7d} {stats.num_target_passes:7d} "
        f"{acceptance:>11} {stats.mean_generated_length:12.2f}"
    )


def _comparison_text(comparison: Comparison | None) -> str:
    if comparison is None:
        return "two draws from the target's distribution; texts drawn by rejection cannot be compared"
    if comparison.verdict == "equal":
        return "equal, token for token"
    gap = "" if comparison.gap is None else f"; the target's scores differ by {comparison.gap:.2g} there"
    return f"{comparison.verdict} from token {comparison.first_difference} on{gap}"


def _speed(stats: Stats, is_of_calls: bool) -> float:
    """Tokens per second of decoding, or with the pass of the prompt."""
    seconds = stats.prefill_seconds + stats.decode_seconds
    return stats.num_tokens / seconds if is_of_calls and seconds else stats.tokens_per_second


def _speedup(generation: Generation, other: Generation, is_of_calls: bool) -> float:
    speed = _speed(other.stats, is_of_calls)
    return _speed(generation.stats, is_of_calls) / speed if speed else 0.0


def _why_slower(generation: Generation, plain: Generation) -> str:
    """The measured costs that did not pay, in target passes of one token."""
    stats = generation.stats
    plain_pass = plain.stats.decode_seconds / max(plain.stats.num_target_passes, 1)
    draft = stats.draft_seconds / max(stats.num_draft_steps, 1) / plain_pass
    verify = stats.verify_seconds / max(stats.num_target_passes, 1) / plain_pass
    return (
        f"a draft token costs {draft:.2f} and a verification {verify:.2f} of a plain pass on this machine, "
        f"too much for {stats.mean_generated_length:.2f} tokens a round"
    )


def _document(
    engine: Engine,
    options: argparse.Namespace,
    generation: Generation,
    plain: Generation | None,
    comparison: Comparison | None,
) -> dict[str, Any]:
    document: dict[str, Any] = {
        **heading(engine, options),
        **{axis: engine.names()[axis] for axis in AXES},
        "seed": int(options.seed or 0),
        **_output(generation),
        "finish_reason": generation.finish_reason,
        "report": dict(generation.report),
    }
    if plain is not None:
        is_plain = document["strategy"] == "off"
        document |= {
            "transformers" if is_plain else "plain": _output(plain),
            "comparison": comparison.verdict if comparison else None,
            "first_difference": comparison.first_difference if comparison else None,
            "speedup": _speedup(generation, plain, is_plain),
        }
    return document


def _output(generation: Generation) -> dict[str, Any]:
    stats = dataclasses.asdict(generation.stats)
    return {"text": generation.text, "tokens": list(generation.tokens), "stats": stats}
