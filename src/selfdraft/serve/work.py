"""One request while it is being answered: its texts, where each of them stands, and who is told of it."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..engine.session import Event

_numbers = itertools.count()


@dataclass
class Text:
    """`shown`: its tokens that were told, from which it goes on if a round fails."""

    index: int
    shown: list[int] = field(default_factory=list)
    has_ended: bool = False


class LateError(Exception):
    """A request was not answered in the time that it had."""


class Work:
    """A request: `num_texts` continuations of one prompt. `tell` is called by the thread that decodes, with events that
    name a text by its place among them.

    `client`: who asks; clients take turns. `deadline`: on the clock of `time.monotonic`.
    """

    def __init__(
        self,
        prompt: list[int],
        options: Mapping[str, Any],
        num_texts: int,
        tell: Callable[[Event | Exception], None],
        client: str = "",
        deadline: float | None = None,
    ) -> None:
        self.prompt, self.options, self.client, self.deadline = prompt, dict(options), client, deadline
        self.number, self.began = next(_numbers), time.monotonic()
        self.texts = [Text(index) for index in range(num_texts)]
        self.num_failures, self.num_failures_alone = 0, 0  # rounds that failed while it was decoded
        self.is_over = False
        self._tell = tell

    @property
    def open_texts(self) -> list[Text]:
        return [text for text in self.texts if not text.has_ended]

    @property
    def is_late(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def told(self, text: Text, event: Event) -> None:
        text.shown.extend(piece.token for piece in event.pieces)
        text.has_ended = event.generation is not None
        self.is_over = not self.open_texts
        self._tell(replace(event, id=text.index))

    def fail(self, error: Exception) -> None:
        if not self.is_over:
            self.is_over = True
            with contextlib.suppress(RuntimeError):  # who asked has ended with its loop
                self._tell(error)
