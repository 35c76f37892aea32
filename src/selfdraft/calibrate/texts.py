"""Calibration texts: prompts, and what the model itself says behind them. Strategies are fitted to its own words."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..engine.engine import Engine
from ..fitting import CalibrationPrompt
from ..passes import PassRequest
from ..profiles.journal import Journal
from ..profiles.profile import Artefact
from ..progress import Progress
from ..protocols import Probe, Runner

_CHUNK = 512
_FEW_TEXTS, _LONG_ENOUGH = 8, 96
_MAX_ROWS = 16
"""Texts that a CPU writes together: a pass of many rows takes little longer than one of one row."""


@dataclass(frozen=True)
class Text:
    """A prompt and what was generated behind it."""

    tokens: tuple[int, ...]
    num_prompt_tokens: int

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens


def hold_out(prompts: Sequence[CalibrationPrompt]) -> tuple[list[CalibrationPrompt], list[CalibrationPrompt]]:
    """(to fit to, to try it with): of each domain about a quarter is held out, its only prompt never. No text twice."""
    domains: dict[str, list[CalibrationPrompt]] = {}
    unique: dict[tuple[int, ...], CalibrationPrompt] = {}
    for prompt in prompts:
        unique.setdefault(prompt.tokens, prompt)
    prompts = list(unique.values())
    for prompt in prompts:
        domains.setdefault(prompt.domain, []).append(prompt)
    held_out = {id(prompt) for members in domains.values() for prompt in members[len(members) - _share(members) :]}
    return (
        [prompt for prompt in prompts if id(prompt) not in held_out],
        [prompt for prompt in prompts if id(prompt) in held_out],
    )


def in_turn(prompts: Sequence[CalibrationPrompt]) -> list[CalibrationPrompt]:
    """The first of every domain, then the second of every domain, and so on."""
    domains: dict[str, list[CalibrationPrompt]] = {}
    for prompt in prompts:
        domains.setdefault(prompt.domain, []).append(prompt)
    turns = itertools.zip_longest(*domains.values())
    return [prompt for turn in turns for prompt in turn if prompt is not None]


def _share(members: Sequence[CalibrationPrompt]) -> int:
    return max(1, round(len(members) / 4)) if len(members) > 1 else 0


def digest(prompts: Sequence[CalibrationPrompt]) -> str:
    """Other prompts are another question."""
    return hashlib.sha256(json.dumps([prompt.tokens for prompt in prompts]).encode()).hexdigest()


def write_texts(
    engine: Engine, prompts: Sequence[CalibrationPrompt], num_tokens: int, journal: Journal, progress: Progress
) -> list[Text]:
    """At most `num_tokens` generated tokens, spread evenly; what the journal already has is not written again.

    Many short texts would take longer than a few of some length, and say no more.
    """
    prompts = prompts[: min(num_tokens, max(_FEW_TEXTS, num_tokens // _LONG_ENOUGH))]
    each = num_tokens // len(prompts)
    waiting = [number for number in range(len(prompts)) if str(number) not in journal.done]
    count = rows_at_once(engine)
    for first in range(0, len(waiting), count):
        numbers = waiting[first : first + count]
        num_before = (len(prompts) - len(waiting) + first) * each
        told = Told(progress, num_before, len(prompts) * each, "writing texts")
        for number, text in zip(numbers, write(engine, [prompts[n] for n in numbers], each, told), strict=True):
            values = {"tokens": text.tokens, "num_prompt_tokens": text.num_prompt_tokens}
            journal.record(str(number), Artefact(values))
    kept = (journal.done[str(number)].values for number in range(len(prompts)))
    return [Text(tuple(values["tokens"]), values["num_prompt_tokens"]) for values in kept]


def rows_at_once(engine: Engine) -> int:
    return _MAX_ROWS if engine.device.type == "cpu" else 1


@dataclass
class Told:
    """Tokens written so far, for the progress bar."""

    progress: Progress
    num_tokens: int
    total: int
    label: str

    def add(self, num_tokens: int) -> None:
        self.num_tokens += num_tokens
        self.progress(min(self.num_tokens, self.total), self.total, self.label)


def write(engine: Engine, prompts: Sequence[CalibrationPrompt], num_tokens: int, told: Told) -> Iterator[Text]:
    """What the model says behind each of them, greedily and plainly, all of them at once."""
    stream = engine.stream([list(prompt.tokens) for prompt in prompts], max_new_tokens=num_tokens, strategy="off")
    for chunk in stream:
        told.add(len(chunk.pieces))
    for prompt, generation in zip(prompts, stream.generations, strict=True):
        yield Text((*prompt.tokens, *generation.tokens), len(prompt.tokens))


def look_at(text: Text, runner: Runner) -> Probe:
    """At the tokens behind which the model generated one: the prompt's last to the last but one."""
    known = text.tokens[:-1]
    cache = runner.new_cache(1, len(text.tokens))
    for start in range(0, len(known), _CHUNK):
        runner.forward(PassRequest([list(known[start : start + _CHUNK])], [start], needs_scores=False), cache)
    first = text.num_prompt_tokens - 1
    return runner.probe(cache, known[first:], first)
