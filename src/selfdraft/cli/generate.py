"""`selfdraft generate`: stream a text; with `--compare` write it in another way, too, and show what differs: speed."""

from __future__ import annotations

import argparse
import dataclasses
import json
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ..engine.engine import Engine
from ..engine.text import OnePrompt, encode_prompts
from ..errors import OptionError
from ..measure.cores import Watch
from ..options import GenerateOptions, make, typed_call
from ..registry import AXES
from ..types import Generation
from . import terminal
from .compare import HEADER, Baseline, Compared, row
from .inputs import checked_method, heading, load_engine, read_method
from .interrupt import INTERRUPTED
from .parsers.use import SHAPING
from .prompt import as_prompt, read_prompt
from .several import check_several, write_several

WORTH_TELLING = 0.01
"""Planning that takes more than this share of decoding is told."""
EXPLAINED = ("rounds", "plain_seconds", "reasons")
"""Of a strategy's report: what `explain` says in other words."""
AS_MESSAGE = "the prompt was sent as one user message; in Python pass messages (a plain string is sent as with --raw)"


def run(options: argparse.Namespace) -> int:
    _draw_seed(options)
    fields = {item.name for item in dataclasses.fields(GenerateOptions)}
    given = {name: value for name, value in vars(options).items() if name in fields and value not in (None, [])}
    method = checked_method(read_method(options), options)  # all slips, before the time that a model takes to load
    call = typed_call(given)
    settings = make(GenerateOptions, call, "generate")
    if settings.logprobs is not None and not options.json:
        raise OptionError("--logprobs are part of the JSON document; add --json")
    if options.transformers and not options.compare:
        raise OptionError("--transformers says what else --compare compares with; add --compare")
    is_several = check_several(options)
    asked = read_prompt(options)
    engine = load_engine(options, **method)
    _say_profile(engine)
    prompt = as_prompt(asked, engine, options.raw)
    if is_several:
        return _several(engine, prompt, call, options, settings)
    baseline = Baseline(engine, prompt, call, options.transformers) if options.compare else None
    if baseline:
        baseline.warm_up()
    watch = Watch()
    generation = _generate(engine, prompt, call, options)
    compared, busy = None, None
    if baseline and generation.finish_reason != "cancelled":
        other, third = baseline.write(), baseline.write_third()
        busy = watch.summary(engine.device)
        compared = baseline.compare(generation, other, third)
    if options.json:
        document = _document(engine, options, generation, compared) | ({"busy": busy} if busy else {})
        _print_document(engine, prompt, settings, document)
    elif generation.finish_reason != "cancelled":
        notes = [*_notes(engine, busy), *([AS_MESSAGE] if isinstance(asked, str) and prompt != asked else [])]
        is_plain = engine.names()["strategy"] == "off"
        explained = generation.explain().lines if options.explain else ()
        terminal.say("\n".join([*_summary(generation, compared, is_plain), *explained, *notes]))
    if generation.finish_reason == "cancelled":
        terminal.say(f"interrupted after {terminal.number(len(generation.tokens), 'token')}")
        return INTERRUPTED
    return 1 if compared and compared.is_different else 0


def _several(
    engine: Engine, prompt: OnePrompt, call: dict[str, Any], options: argparse.Namespace, settings: GenerateOptions
) -> int:
    texts = write_several(engine, prompt, call, options)
    if options.json:
        one = _document(engine, options, texts[0], None)
        shared = {name: value for name, value in one.items() if name in ("version", "model", "device", "dtype", "seed")}
        shared |= {axis: one[axis] for axis in AXES}
        own = [{**_output(text), "finish_reason": text.finish_reason} for text in texts]
        _print_document(engine, prompt, settings, {**shared, "texts": own})
    return INTERRUPTED if any(text.finish_reason == "cancelled" for text in texts) else 0


def _print_document(engine: Engine, prompt: OnePrompt, settings: GenerateOptions, document: dict[str, Any]) -> None:
    (prompt_tokens,), _ = encode_prompts(prompt, engine.tokenizer)
    shaping = {name: getattr(settings, name) for name in SHAPING}
    print(json.dumps({**document, "prompt_tokens": prompt_tokens, "options": shaping}, ensure_ascii=False))


def _draw_seed(options: argparse.Namespace) -> None:
    if options.seed == "random":
        options.seed = str(secrets.randbelow(2**32))
        terminal.say(f"seed {options.seed}")


def _say_profile(engine: Engine) -> None:
    if profile := engine.knowledge.profile_in_use:
        terminal.say(profile.summary)


def _notes(engine: Engine, busy: str | None) -> Iterator[str]:
    if engine.device.type == "cpu" and engine.dtype != torch.float32:
        yield f"{str(engine.dtype).removeprefix('torch.')} is many times slower than float32 on most CPUs"
    if busy:
        yield f"the machine was busy for {busy}; speeds are noisy"


def _generate(engine: Engine, prompt: OnePrompt, call: dict[str, Any], options: argparse.Namespace) -> Generation:
    """Stream to the terminal; Ctrl-C ends the text, not the program's manners."""
    stream = engine.stream(prompt, **call)
    if not options.json:
        terminal.write_pieces(stream, options.color)
        return stream.generation
    try:
        stream.run()
    except KeyboardInterrupt:
        stream.close()
    return stream.generation


def _summary(generation: Generation, compared: Compared | None, is_plain: bool) -> Iterator[str]:
    stats = generation.stats
    yield f"\n{HEADER}"
    yield row("plain" if is_plain else "drafting", generation, is_of_calls=is_plain and compared is not None)
    if compared:
        yield from compared.lines()
    prefill = f"{generation.num_prompt_tokens} tokens {stats.prefill_seconds:.2f} s"
    yield f"ended by {generation.finish_reason}; prefill of {prefill}"
    if report := {name: value for name, value in generation.report.items() if name not in EXPLAINED}:
        yield _report_text(report)
    if stats.optimise_seconds > WORTH_TELLING * stats.decode_seconds:
        share = stats.optimise_seconds / stats.decode_seconds
        what = "planning and recording" if stats.record_seconds else "planning"
        yield f"{what} took {stats.optimise_seconds:.2f} s, {share:.0%} of decoding"


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


def _document(
    engine: Engine, options: argparse.Namespace, generation: Generation, compared: Compared | None
) -> dict[str, Any]:
    document: dict[str, Any] = {
        **heading(engine, options),
        **{axis: engine.names()[axis] for axis in AXES},
        "seed": int(options.seed or 0),
        **_output(generation),
        "finish_reason": generation.finish_reason,
        "report": {name: value for name, value in generation.report.items() if name not in EXPLAINED},
        "explanation": generation.explain().to_dict(),
    }
    if generation.logprobs is not None:
        document["logprobs"] = [dataclasses.asdict(one) for one in generation.logprobs]
    if compared:
        facts = compared.document()
        document |= {name: _output(value) if isinstance(value, Generation) else value for name, value in facts.items()}
    return document


def _output(generation: Generation) -> dict[str, Any]:
    stats = dataclasses.asdict(generation.stats)
    return {"text": generation.text, "tokens": list(generation.tokens), "stats": stats}
