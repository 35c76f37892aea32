"""How prompts get into the cache: packed into passes, as many as there are or a part beside each round."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from ..passes import PassRequest
from ..protocols import Runner, Strategy
from .beginnings import Beginnings
from .state import State, TextSequence

PREFILL_CHUNK = 1024
"""Prompt tokens a pass; bounds the memory that masks and activations of a long prompt take."""
FIRST_CHUNK, CHUNK_STEP = 256, 64
"""Prompt tokens beside a round before it is known what they take, and what their number is a multiple of."""


class Part(NamedTuple):
    """Tokens of one text in one pass."""

    sequence: TextSequence
    start: int
    end: int


class PartSeconds:
    """What a part takes, by the last ones: a constant, each token, and each slot that each token looks back at."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, ...]] = deque(maxlen=32)

    def observe(self, parts: Sequence[Part], seconds: float) -> None:
        tokens = sum(part.end - part.start for part in parts)
        looks = sum((part.end - part.start) * (part.start + part.end) / 2 for part in parts)
        if tokens and tokens % CHUNK_STEP == 0:  # else it is padded
            self._seen.append((1.0, tokens, looks, max(seconds, 1e-9)))

    def most_tokens(self, max_seconds: float | None, past: int) -> float:
        """After `past` slots: whole steps, one at least, at most twice as many as were read before."""
        if max_seconds == math.inf:
            return math.inf
        if max_seconds is None or not self._seen:
            return FIRST_CHUNK
        constant, token, look = self._fit()
        sizes = np.arange(CHUNK_STEP, 2 * max(seen[1] for seen in self._seen) + 1, CHUNK_STEP)
        num_within = int((constant + sizes * (token + look * (past + sizes / 2)) <= max_seconds).sum())
        return CHUNK_STEP * max(num_within, 1)

    def _fit(self) -> Sequence[float]:
        """By relative errors; a term that would be negative is left out. What few parts do not tell apart is shared."""
        seen = np.array(self._seen)
        terms = seen[:, :3] / seen[:, 3:]
        scale, found = terms.max(axis=0), np.ones(3)
        while (kept := found > 0).any():
            found = np.zeros(3)
            found[kept] = np.linalg.lstsq(terms[:, kept] / scale[kept], np.ones(len(seen)), rcond=1e-6)[0]
            if (found >= 0).all():
                break
        return [float(number) for number in found / scale]


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
        self._seconds = PartSeconds()

    def read_all(self) -> None:
        """In the largest passes; one wait for all of them."""
        began, parts = self._runner.seconds(), []
        while more := self._read():
            parts += more
        self._share(parts, self._runner.seconds() - began)

    def read_some(self, max_seconds: float | None) -> None:
        """One pass of about as many tokens as can be read in that time; None: it is not known yet."""
        began, recorded = self._runner.seconds(), self._runner.record_seconds
        parts = self._read(lambda past: self._seconds.most_tokens(max_seconds, past))
        seconds = self._runner.seconds() - began
        self._share(parts, seconds)
        self._seconds.observe(parts, seconds - (self._runner.record_seconds - recorded))

    def _read(self, max_tokens: Callable[[int], float] = lambda past: math.inf) -> list[Part]:
        """One pass, of texts whose strategies need the same states; empty: nothing is left.

        `max_tokens`: by what the first of them has in its row.
        """
        while unread := [one for one in self._state.reading if not one.is_read and one.finish_reason is None]:
            ready = [one for one in self._with_known(unread) if not one.is_read]
            if ready:
                return self._read_parts(ready, max_tokens(ready[0].num_read))
        return []

    def _with_known(self, unread: Sequence[TextSequence]) -> list[TextSequence]:
        """Those that need not wait for what another one reads, with what is known of them in their rows.

        A strategy that needs a prompt's states needs them whole.
        """
        begun, strategy_of = self._begun, self._strategy_of
        some = [one for one in unread if one.sequence_id in begun or not prefill_needs(strategy_of(one))]
        fresh = [one for one in some if one.sequence_id not in begun]
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
        parts, room = [], int(min(max_tokens, prompt_chunk(self._runner)))
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

    def _share(self, parts: Sequence[Part], seconds: float) -> None:
        """Each text took its share of the seconds, by tokens."""
        num_tokens = sum(part.end - part.start for part in parts)
        for part in parts:
            part.sequence.prefill_seconds += seconds * (part.end - part.start) / num_tokens

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
            self._state.begun[sequence.sequence_id] = sequence
        self._state.begin(read)
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


def prompt_chunk(runner: Runner) -> int:
    """Tokens of the largest pass, all rows together; whatever is captured, for other sizes round differently."""
    return max(runner.recorded_prompts, default=PREFILL_CHUNK)
