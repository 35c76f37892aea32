"""`selfdraft verify`: teacher-force a text and name each token that is not the target's own choice."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import reprlib
import sys
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..config import read_config
from ..engine.audit import Finding, Verification, rule_for
from ..engine.engine import Engine
from ..engine.text import OnePrompt
from ..errors import OptionError, PromptError, SelfdraftError
from ..options import GenerateOptions, make, read_object, typed_call
from ..types import FinishReason
from . import terminal
from .inputs import as_message, check_prompt_text, heading, load_engine, read_file
from .parsers.use import FOR_PLAIN_TEXT

_NEEDED = ("prompt_tokens", "tokens", "options", "acceptance", "finish_reason")
_AMOUNTS = ("num_tokens", "num_choices", "num_ties", "num_different")
_OPTIONAL = ("text", "model", "device", "dtype")
RETOKENISED = "the text was tokenised again: where the generated tokens were others, a difference means nothing"
ONLY_POSSIBLE = (
    "rejection sampling draws with noise of its own: whether each token was possible is all that can be said"
)


def run(options: argparse.Namespace) -> int:
    given = {name: getattr(options, name) for name in FOR_PLAIN_TEXT if getattr(options, name) is not None}
    prompt, content = _read_inputs(options)
    call = typed_call(given)  # a slip in the command must not cost the time a model takes to load
    document = None
    if prompt is None:
        _refuse_own_options(options, given)
        document = read_document(content, options.file)
    else:
        _check_plain_text(prompt, content, options.file)
    options.dtype = options.dtype or (document.dtype if document else read_config().values.get("dtype"))
    engine = load_engine(options)
    if document is not None:
        verification = _verify_document(engine, document, options)
        notes = _notes(engine, document, options, verification)
    else:
        verification = _verify_plain_text(engine, str(prompt), content, call, options.raw)
        notes = [RETOKENISED]
    if options.json:
        print(json.dumps(_report(engine, options, verification, notes), ensure_ascii=False))
    else:
        print("\n".join(_lines(engine, verification, notes)))
    return 1 if verification.verdict == "different" else 0


def _read_inputs(options: argparse.Namespace) -> tuple[str | None, str]:
    """(prompt of a plain text, the file's content)."""
    if options.prompt is not None and options.prompt_file is not None:
        raise OptionError("--prompt and --prompt-file are two prompts; leave one out")
    if options.prompt_file == "-" and options.file == "-":
        raise OptionError("prompt and text cannot both come from standard input; name a file for one of them")
    prompt = options.prompt if options.prompt_file is None else read_file(options.prompt_file)
    return prompt, read_file(options.file)


def _refuse_own_options(options: argparse.Namespace, call: dict[str, Any]) -> None:
    given = [f"--{name.replace('_', '-')}" for name in call] + ["--raw"] * options.raw
    if given:
        raise OptionError(f"a document says itself how it was made; leave out {', '.join(given)}, or give --prompt")


def _check_plain_text(prompt: str, text: str, file: str) -> None:
    check_prompt_text(prompt)
    if is_document(text):
        raise OptionError(f"{file} is a document that has its own prompt; leave out --prompt and --prompt-file")
    if not _without_last_break(text):
        raise OptionError(f"{file} is empty: there is no text to judge")


def _verify_document(engine: Engine, document: Document, options: argparse.Namespace) -> Verification:
    claim = {name: getattr(document, name) for name in ("finish_reason", "text", "acceptance")}
    try:
        return _verify(engine, document.prompt_tokens, document.tokens, **claim, **document.options)
    except PromptError as error:
        made_with = f"; it was made with the model {document.model!r}" if document.model else ""
        raise PromptError(f"{options.file} does not fit {options.model}: {error}{made_with}") from None


def _verify_plain_text(engine: Engine, prompt: str, text: str, call: dict[str, Any], is_raw: bool) -> Verification:
    tokens = engine.tokenizer(_without_last_break(text), add_special_tokens=False).input_ids
    longest = max(len(tokens), int(call.get("min_new_tokens", 1)))
    return _verify(engine, as_message(prompt, engine, is_raw), tokens, max_new_tokens=longest, **call)


def _verify(engine: Engine, prompt: OnePrompt, tokens: list[int], **options: Any) -> Verification:
    with terminal.Progress("tokens") as progress:
        return engine.verify(prompt, tokens, progress=progress if sys.stderr.isatty() else None, **options)


def _without_last_break(text: str) -> str:
    return text.removesuffix("\n").removesuffix("\r")


def _notes(engine: Engine, document: Document, options: argparse.Namespace, verification: Verification) -> list[str]:
    notes = []
    if document.model is not None and document.model != options.model:
        notes.append(f"the document names the model {document.model!r}")
    device, dtype = (heading(engine, options)[name] for name in ("device", "dtype"))
    if document.device and document.dtype and (document.device, document.dtype) != (device, dtype):
        made = f"made on {document.device} in {document.dtype}"
        notes.append(f"{made}, judged on {device} in {dtype}: rounding differs, and with it some choices may")
    return [*notes, ONLY_POSSIBLE] if verification.rule == "possible" else notes


def _lines(engine: Engine, verification: Verification, notes: list[str]) -> list[str]:
    good = "the target's own choice" if verification.rule == "choice" else "possible"
    return [
        *(_finding_line(engine, finding, verification.rule) for finding in verification.findings),
        *verification.faults,
        f"{verification.num_tokens} tokens: {verification.num_choices} {good}, "
        f"{terminal.number(verification.num_ties, 'tie')}, {verification.num_different} different",
        *(f"note: {note}" for note in notes),
    ]


def _finding_line(engine: Engine, finding: Finding, rule: str) -> str:
    instead = "the target chooses" if rule == "choice" else "likeliest is"
    gap = "ruled out by the options" if math.isinf(finding.gap) else f"gap {finding.gap:.3g}"
    return (
        f"token {finding.index:<5} {finding.verdict:10} {_token_text(engine, finding.token)} (id {finding.token}); "
        f"{instead} {_token_text(engine, finding.choice)} (id {finding.choice}), {gap}"
        f"{f'; {finding.reason}' if finding.reason else ''}"
    )


def _token_text(engine: Engine, token: int) -> str:
    return json.dumps(_decode(engine, token), ensure_ascii=False)


def _decode(engine: Engine, token: int) -> str:
    """Special tokens included: an end-of-text token that is missing must be seen."""
    text: str = engine.tokenizer.decode([token], clean_up_tokenization_spaces=False)
    return text


def _report(engine: Engine, options: Any, verification: Verification, notes: list[str]) -> dict[str, Any]:
    return {
        **heading(engine, options),
        **{name: getattr(verification, name) for name in ("verdict", "rule", *_AMOUNTS)},
        "findings": [_finding(engine, finding) for finding in verification.findings],
        "faults": list(verification.faults),
        "notes": notes,
    }


def _finding(engine: Engine, finding: Finding) -> dict[str, Any]:
    return {
        **dataclasses.asdict(finding),
        "gap": None if math.isinf(finding.gap) else finding.gap,  # JSON knows no infinity
        "text": _decode(engine, finding.token),
        "choice_text": _decode(engine, finding.choice),
    }


# ------------------------------------------------------------------------------------------ the document of generate


@dataclass(frozen=True)
class Document:
    prompt_tokens: list[int]
    tokens: list[int]
    options: Mapping[str, Any]
    acceptance: str
    finish_reason: FinishReason
    text: str | None
    model: str | None
    device: str | None
    dtype: str | None


def is_document(text: str) -> bool:
    with contextlib.suppress(OptionError):
        return {"prompt_tokens", "tokens"} <= set(read_object(text, "", ""))
    return False


def read_document(text: str, file: str) -> Document:
    """Raise, naming the file and what is wrong with it, unless everything a judge needs is there."""
    claim = f"{file} is not a document of `selfdraft generate --json`"
    content = read_object(text, claim, "a plain text needs its prompt: --prompt or --prompt-file")
    missing = [key for key in _NEEDED if key not in content]
    if missing:
        wanted = "it must be a document that this version's `selfdraft generate --json` printed"
        raise OptionError(f"{file} lacks {', '.join(missing)}; {wanted}")
    for key in ("prompt_tokens", "tokens"):
        if not isinstance(content[key], list) or any(type(token) is not int for token in content[key]):
            raise OptionError(f"{key} in {file} must be a list of token ids, got {reprlib.repr(content[key])}")
    if content["finish_reason"] not in typing.get_args(FinishReason):
        known = ", ".join(typing.get_args(FinishReason))
        raise OptionError(
            f"finish_reason in {file} must be one of {known}, got {reprlib.repr(content['finish_reason'])}"
        )
    if not isinstance(content["options"], dict):
        raise OptionError(f"options in {file} must be an object, got {reprlib.repr(content['options'])}")
    try:
        rule_for(content["acceptance"], make(GenerateOptions, content["options"], "generate"))
    except SelfdraftError as error:
        raise OptionError(f"{file}: {error}") from None
    for key in _OPTIONAL:
        if not isinstance(content.get(key), str | None):
            raise OptionError(f"{key} in {file} must be text, got {reprlib.repr(content[key])}")
    values: dict[str, Any] = {key: content.get(key) for key in (*_NEEDED, *_OPTIONAL)}
    return Document(**values)
