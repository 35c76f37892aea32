"""One engine that answers requests: prompts become tokens, tokens become events, and somebody waits for these."""

from __future__ import annotations

import asyncio
import copy
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from starlette.requests import Request

from ..engine.engine import Engine
from ..engine.keywords import read_call
from ..engine.session import Event
from ..engine.text import encode_prompt
from ..errors import OptionError, PromptError
from ..types import Generation
from .answers import Answer
from .grammar import Grammars
from .metrics import Metrics
from .scheduler import Scheduler
from .schema import ChatRequest, Sampling
from .tools import AUTO, NONE, REQUIRED, Free, Named, Reader, Required, template_of
from .work import Work

_GLANCE = 0.1
"""Seconds between two looks at whether who asked is still there."""


@dataclass(frozen=True)
class Limits:
    """`seconds`: for a request, its waiting included; None: as long as it takes."""

    max_rows: int = 64
    max_waiting: int = 256
    max_tokens: int = 4096
    max_body: int = 4 * 2**20
    seconds: float | None = None
    drain_seconds: float = 30.0
    max_stall_seconds: float | None = None


class GoneError(Exception):
    """Who asked has left."""


@dataclass
class Asked:
    """A request's works, one a prompt, and where what is told of them arrives."""

    works: list[Work]
    events: asyncio.Queue[tuple[int, Event | Exception]]
    answer: Answer
    texts: dict[int, Generation] = field(default_factory=dict)

    @property
    def num_texts(self) -> int:
        return sum(len(work.texts) for work in self.works)

    @property
    def groups(self) -> list[list[Generation]]:
        """The texts of each prompt, in order."""
        found, first = [], 0
        for work in self.works:
            found.append([self.texts[first + index] for index in range(len(work.texts))])
            first += len(work.texts)
        return found


class Service:
    """`model`: the name by which it is asked for."""

    def __init__(self, engine: Engine, model: str, limits: Limits) -> None:
        self.engine, self.model, self.limits = engine, model, limits
        self.created = int(time.time())
        self.scheduler = Scheduler(engine, limits.max_rows, limits.max_waiting, limits.max_stall_seconds)
        self.metrics = Metrics(engine, self.scheduler, model)
        self._tokenizer = copy.deepcopy(engine.tokenizer)  # the other one is read by the thread that decodes
        self._grammars = Grammars(self._tokenizer, engine.eos_tokens)
        self._encoder = ThreadPoolExecutor(1, "selfdraft-encode")

    async def ask(self, body: Sampling, answer: Answer, client: str) -> Asked:
        """Its works are in the queue; OptionError, PromptError, FullError, ClosedError: none of them is."""
        loop, events = asyncio.get_running_loop(), asyncio.Queue[tuple[int, Event | Exception]]()
        deadline = None if self.limits.seconds is None else time.monotonic() + self.limits.seconds
        if len(body.prompts) > self.limits.max_waiting:
            raise OptionError(
                f"{len(body.prompts)} prompts at once, and {self.limits.max_waiting} may wait; send fewer"
            )
        works: list[Work] = []
        grammar = await loop.run_in_executor(self._encoder, self._grammars.grammar, body.form) if body.form else ""
        for prompt in body.prompts:
            tokens = await loop.run_in_executor(self._encoder, self._encode, prompt, body)
            options = body.options(self._room(len(tokens), body))
            if grammar:
                options["processors"] = (self._grammars.processor(grammar, len(tokens)),)
            read_call(options)

            def tell(told: Event | Exception, first: int = body.n * len(works)) -> None:
                index = first + told.id if isinstance(told, Event) else first
                loop.call_soon_threadsafe(events.put_nowait, (index, told))

            works.append(Work(tokens, options, body.n, tell, client, deadline))
        asked = Asked(works, events, answer)
        try:
            for work in works:
                self.scheduler.put(work)
        except BaseException:
            self.give_up(asked)
            raise
        return asked

    def decode(self, token: int) -> str:
        return str(self._tokenizer.decode([token]))

    def reader(self, body: ChatRequest) -> Callable[[], Reader] | None:
        """Of calls, for each text; None: none can come."""
        if body.choice == NONE:
            return None
        if body.choice == AUTO:
            return partial(Free, template_of(self._tokenizer), body.told_tools)
        return Required if body.choice == REQUIRED else partial(Named, body.choice)

    def give_up(self, asked: Asked) -> None:
        for work in asked.works:
            self.scheduler.cancel(work)

    async def events(self, asked: Asked) -> AsyncIterator[tuple[int, Event]]:
        """Until all texts have ended; what is left when nobody listens any more is given up."""
        watch = self.metrics.watch()
        try:
            while len(asked.texts) < asked.num_texts:
                index, told = await asked.events.get()
                if isinstance(told, Exception):
                    raise told
                watch.told(index, told)
                if told.generation is not None:
                    asked.texts[index] = told.generation
                yield index, told
            watch.ended(asked.groups)
        finally:
            self.give_up(asked)

    async def while_there(self, request: Request, waiting: Any) -> Any:
        """What it waits for; GoneError: who asked has left first."""
        task = asyncio.ensure_future(waiting)
        try:
            while not task.done():
                await asyncio.wait([task], timeout=_GLANCE)
                if not task.done() and await request.is_disconnected():
                    raise GoneError
            return task.result()
        finally:
            task.cancel()

    def _encode(self, prompt: Any, body: Any) -> list[int]:
        try:
            json.dumps(prompt, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise PromptError("the prompt has characters that are none: half of a pair of surrogates") from error
        told = body.for_template
        if "tools" not in str(getattr(self._tokenizer, "chat_template", "")):  # a call that must come needs no telling
            told.pop("tools", None)
        return encode_prompt(prompt, self._tokenizer, told, "each prompt stands alone")

    def _room(self, num_prompt_tokens: int, body: Sampling) -> int:
        """New tokens at most."""
        longest, most, limit = self.engine.context_length, self.limits.max_tokens, body.limit
        if limit is not None and limit > most:
            raise OptionError(f"max_tokens is {limit}, and this server writes {most} tokens at most; ask for fewer")
        room = most if longest is None else longest - num_prompt_tokens
        if room < 1:
            raise PromptError(
                f"the prompt has {num_prompt_tokens} tokens, and the model's context {longest}; shorten the prompt"
            )
        return min(room, most, *(one for one in (limit or body.usual,) if one))

    def close(self) -> bool:
        """Answer what was taken, in the time there is for it; returns whether all was."""
        is_done = self.scheduler.drain(self.limits.drain_seconds)
        self._encoder.shutdown(wait=False)
        return is_done


def all_texts(groups: Sequence[Sequence[Generation]]) -> list[Generation]:
    return [one for group in groups for one in group]
