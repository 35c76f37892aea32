"""Texts that the model writes by itself after prompts, within some time, and probes of them: what fits go by."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from ..engine.engine import Engine
from ..passes import PassRequest
from ..profiles.journal import Journal
from ..profiles.profile import Artefact
from ..progress import Budget, Progress, Steps
from ..protocols import Probe, Runner
from ..types import Prompt

_CHUNK = 512
_FEW_TEXTS, _LONG_ENOUGH = 8, 96
_NUM_READ = 2  # times that a prompt is: to write after it, and for the probe
HasTime = Callable[..., bool]  # Steps.has_time
ALWAYS: HasTime = Steps(Budget(None)).has_time
_MAX_ROWS = 16  # texts that a CPU writes together: a pass of many rows takes little longer than one of one row


@dataclass(frozen=True)
class Text:
    """A prompt and what was generated after it."""

    tokens: tuple[int, ...]
    num_prompt_tokens: int
    is_whole: bool = True  # else time was up
    read_seconds: float = field(default=0.0, compare=False)  # of its prompt

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens


def write_texts(
    engine: Engine,
    prompts: Sequence[Prompt],
    num_tokens: int,
    journal: Journal,
    progress: Progress,
    has_time: HasTime = ALWAYS,
) -> list[Text]:
    """At most `num_tokens` generated tokens, spread evenly; what the journal already has is not written again.

    Where time is up the texts at hand are cut, and the others left out: the journal has neither. What comes back is of
    the first prompts, without gaps. One is written first: what reading takes is known then.
    """
    prompts = to_continue(prompts, num_tokens)
    each = num_tokens // len(prompts)
    waiting = [number for number in range(len(prompts)) if str(number) not in journal.done]
    known = {int(number): one.values for number, one in journal.done.items()}
    kept = {number: Text(**{**one, "tokens": tuple(one["tokens"])}) for number, one in known.items()}
    while waiting:
        sizes = dict.fromkeys((rows_at_once(engine), 1)) if 0 in kept else [1]
        batches = ([prompts[number] for number in waiting[:size]] for size in sizes)
        fits = (some for some in batches if 0 not in kept or has_time(_NUM_READ * _reading(kept.values(), some)))
        if not (some := next(fits, [])):
            break
        numbers, waiting = waiting[: len(some)], waiting[len(some) :]
        told = Told(progress, (len(prompts) - len(waiting) - len(numbers)) * each, len(prompts) * each, "writing texts")
        written = write(engine, some, each, told, has_time)
        for number, text in zip(numbers, written, strict=True):
            kept[number] = text
            if text.is_whole:
                journal.record(str(number), Artefact(dict(vars(text))))
    return [kept[number] for number in itertools.takewhile(kept.__contains__, range(len(prompts)))]


def _reading(texts: Collection[Text], prompts: Sequence[Prompt]) -> float:
    """Seconds that prompts will take, by those that were read."""
    each = sum(one.read_seconds for one in texts) / sum(one.num_prompt_tokens for one in texts)
    return each * sum(len(prompt.tokens) for prompt in prompts)


def to_continue(prompts: Sequence[Prompt], num_tokens: int) -> Sequence[Prompt]:
    """Many short texts would take longer than a few of some length, and say no more."""
    return prompts[: min(num_tokens, max(_FEW_TEXTS, num_tokens // _LONG_ENOUGH))]


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


def write(
    engine: Engine, prompts: Sequence[Prompt], num_tokens: int, told: Told, has_time: HasTime = ALWAYS
) -> Iterator[Text]:
    """What the model says after each of them, greedily and plainly, all at once; a token of each in any case."""
    asked = [list(prompt.tokens) for prompt in prompts]
    stream = engine.stream(asked, max_new_tokens=num_tokens, strategy="off")
    for chunk in stream:
        told.add(len(chunk.pieces))
        if not has_time(0.0):  # what a token takes is not worth asking, and reading took longer
            stream.cancel()
    for prompt, generation in zip(prompts, stream.generations, strict=True):
        tokens = (*prompt.tokens, *generation.tokens)
        is_whole = generation.finish_reason != "cancelled"
        yield Text(tokens, len(prompt.tokens), is_whole, generation.stats.prefill_seconds)


def probe_text(text: Text, runner: Runner) -> Probe:
    """At the tokens after which the model generated one: the prompt's last to the last but one."""
    known = text.tokens[:-1]
    cache = runner.new_cache(1, len(text.tokens))
    for start in range(0, len(known), _CHUNK):
        runner.forward(PassRequest([list(known[start : start + _CHUNK])], [start], needs_scores=False), cache)
    first = text.num_prompt_tokens - 1
    return runner.probe(cache, known[first:], first)
