"""How prompts get into the cache: packed into passes, as many as there are or a part beside each round."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch

from ..passes import PassRequest
from ..protocols import Runner, Strategy
from .beginnings import Beginnings
from .state import State, TextSequence

PREFILL_CHUNK = 512
"""Prompt tokens a pass; bounds the memory that masks and activations of a long prompt take."""
FIRST_CHUNK, CHUNK_STEP = 256, 64
"""Prompt tokens beside a round before it is known what they take, and what their number is a multiple of."""


class Part(NamedTuple):
    """Tokens of one text in one pass."""

    sequence: TextSequence
    start: int
    end: int


class Prompts:
    """Of the texts in `State.reading`. First come, first read; as many as there is room for share a pass."""

    def __init__(
        self,
        runner: Runner,
        state: State,
        strategy_of: Callable[[TextSequence], Strategy],
        beginnings: Beginnings | None = None,
    ) -> None:
        self._runner, self._state, self._strategy_of, self._beginnings = runner, state, strategy_of, beginnings
        self._kept: dict[int, list[Mapping[str, torch.Tensor]]] = defaultdict(list)  # of each part, by sequence id
        self._begun: set[int] = set()  # ids of those whose rows have what was known of them
        self._chunk = float(FIRST_CHUNK)  # tokens that can be read beside a round, on average

    def read_all(self) -> None:
        """In the largest passes; one wait for all of them."""
        began, parts = self._runner.seconds(), []
        while more := self._read():
            parts += more
        self._share(parts, self._runner.seconds() - began)

    def read_some(self, max_seconds: float | None) -> None:
        """One pass of about as many tokens as can be read in that time; None: it is not known yet."""
        began, recorded = self._runner.seconds(), self._runner.record_seconds
        chunk = max(int(self._chunk) // CHUNK_STEP, 1) * CHUNK_STEP
        parts = self._read(math.inf if max_seconds == math.inf else chunk)
        seconds = self._runner.seconds() - began
        num_tokens = self._share(parts, seconds)
        seconds -= self._runner.record_seconds - recorded
        if num_tokens == chunk and max_seconds is not None:  # a smaller pass tells little
            wanted = num_tokens * max_seconds / max(seconds, 1e-9)
            self._chunk = (self._chunk + min(wanted, 2 * num_tokens)) / 2

    def _read(self, max_tokens: float = math.inf) -> list[Part]:
        """One pass, of texts whose strategies need the same states; empty: nothing is left."""
        while unread := [one for one in self._state.reading if not one.is_read and one.finish_reason is None]:
            ready = [one for one in self._with_known(unread) if not one.is_read]
            if ready:
                return self._read_parts(ready, max_tokens)
        return []

    def _with_known(self, unread: Sequence[TextSequence]) -> list[TextSequence]:
        """Those that need not wait for what another one reads, with what is known of them in their rows.

        A strategy that needs a prompt's states needs them whole.
        """
        some = [one for one in unread if not prefill_needs(self._strategy_of(one))]
        fresh = [one for one in some if one.sequence_id not in self._begun]
        if self._beginnings is None or not fresh:
            return list(unread)
        read = [*self._state.begun.values(), *(one for one in self._state.reading if one.is_read)]
        waiting = self._beginnings.who_waits(some, read) - self._begun
        ready = [one for one in fresh if one.sequence_id not in waiting]
        self._beginnings.fill(self._state.cache, ready, read)
        self._begun |= {one.sequence_id for one in ready}
        return [one for one in unread if one.sequence_id not in waiting]

    def _read_parts(self, waiting: Sequence[TextSequence], max_tokens: float) -> list[Part]:
        needs = prefill_needs(self._strategy_of(waiting[0]))
        parts, room = [], int(min(max_tokens, prompt_chunk(self._runner, needs)))
        for sequence in waiting:
            if room and prefill_needs(self._strategy_of(sequence)) == needs:
                end = min(sequence.num_read + room, sequence.num_cached)
                parts.append(Part(sequence, sequence.num_read, end))
                room -= end - sequence.num_read
        parts.sort(key=lambda part: part.sequence.row)
        self._run(parts, needs)
        return parts

    def _run(self, parts: Sequence[Part], needs: Sequence[str]) -> None:
        tokens = [part.sequence.tokens[part.start : part.end] for part in parts]
        starts, rows = [part.start for part in parts], [part.sequence.row for part in parts]
        request = PassRequest(tokens, starts, rows, capture=needs, needs_scores=False)
        captured = self._runner.forward(request, self._state.cache).captured
        for part in parts:
            part.sequence.num_read = part.end
        first = 0
        for part in parts if needs else ():
            span = slice(first, first + part.end - part.start)
            states = {name: values[:, span] for name, values in captured.items()}
            found = self._strategy_of(part.sequence).condense(states)
            kept = {name: values.clone() for name, values in found.items()}  # the next pass may write over them
            self._kept[part.sequence.sequence_id].append(kept)
            first = span.stop

    def _share(self, parts: Sequence[Part], seconds: float) -> int:
        """Each text took its share of the seconds, by tokens. Their number."""
        num_tokens = sum(part.end - part.start for part in parts)
        for part in parts:
            part.sequence.prefill_seconds += seconds * (part.end - part.start) / num_tokens
        return num_tokens

    def begin(self) -> float:
        """Texts that have been read take part from now on; the seconds of what their strategies make of them.

        That is not part of the prefill: decoding has these seconds.
        """
        here = {sequence.sequence_id for sequence in self._state.reading}
        for number in self._kept.keys() - here:
            del self._kept[number]  # cancelled
        self._begun &= here
        read = [sequence for sequence in self._state.reading if sequence.is_read]
        if not read:
            return 0.0
        began = self._runner.seconds()
        for sequence in read:
            parts = self._kept.pop(sequence.sequence_id, [])
            names = parts[0] if parts else ()
            states = {name: torch.cat([part[name] for part in parts], dim=1)[0] for name in names}
            self._strategy_of(sequence).begin(sequence.sequence_id, states)
            self._state.begin([sequence])
        seconds = self._runner.seconds() - began
        for sequence in read:
            sequence.decode_seconds = seconds
        return seconds


def read_prompt(runner: Runner, strategy: Strategy, sequence_id: int, tokens: Sequence[int]) -> float:
    """Let a strategy see a prompt as it would when a text begins; the seconds of what it makes of it."""
    state = State(runner.new_cache(1, len(tokens)))
    state.seat([TextSequence(sequence_id, list(tokens), 1)])
    prompts = Prompts(runner, state, lambda _: strategy)
    prompts.read_all()
    return prompts.begin()


def prefill_needs(strategy: Strategy) -> tuple[str, ...]:
    """The points captured of a prompt."""
    return tuple(dict.fromkeys((*strategy.needs, *strategy.prefill_needs)))


def prompt_chunk(runner: Runner, needs: Sequence[str]) -> int:
    """Tokens of the largest pass, all rows together."""
    return max(PREFILL_CHUNK, max(runner.recorded_prompts, default=0) // max(1, len(needs)))
