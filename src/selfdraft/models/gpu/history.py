"""What the device knows of each row's text, so that penalties, biases and bans need no word from the host.

It knows all tokens but the last, which is the first of every pass. Those that a round has committed are sent before
the next pass; a pass or a draft that runs ahead adds its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from ...passes import WORD_EOS, WORD_PROMPT, Choosing, Columns, Text
from ...types import SkipSet
from ..cache import SlotCache, StoragePool
from .graphs import GraphKey, Graphs, Recorder, Recording
from .memory import Device, Packed

MAX_NEWS = 64
"""Tokens a row that are added at once; more (a prompt) are added operation by operation."""


class History:
    """`words` [rows, vocabulary] (see `passes.WORD_COUNT`) and `biases` of the texts in the rows of one cache."""

    def __init__(self, device: Device, graphs: Graphs, pool: StoragePool, num_rows: int, vocab_size: int) -> None:
        self._device, self._graphs, self._pool = device, graphs, pool
        self._shape = (num_rows, vocab_size)
        self.words, self._lease = pool.take(self._shape, torch.int32, device.device)
        self.biases: torch.Tensor | None = None
        self._known = [0] * num_rows  # tokens of each row's text that `words` knows; 0: a new text
        # Since, by the device: which rows, where they stood, how much.
        self._added: tuple[Sequence[int], Sequence[int], Callable[[], Sequence[int]]] | None = None

    def forget(self, rows: Sequence[int]) -> None:
        """See `SlotCache.free_rows`."""
        self._catch_up()
        for row in rows:
            self._known[row] = 0

    def follow(self, rows: Sequence[int], choosing: Choosing) -> None:
        """Know all of these texts but their last tokens."""
        self._catch_up()
        news: list[list[int]] = []
        for row, text in zip(rows, choosing.texts, strict=True):
            if not self._known[row]:
                self._begin(row, text)
            known, end = self._known[row], len(text.tokens) - 1
            if end - known > MAX_NEWS:
                self._add(row, text.tokens[known:end])
                known = end
            news.append(list(text.tokens[known:end]))
            self._known[row] = max(end, known)
        if any(news):
            self._send(rows, news)

    def advanced(self, rows: Sequence[int], starts: Sequence[int]) -> None:
        """A pass that runs ahead has added the first token of the pass before it, which stood at these places."""
        for row, start in zip(rows, starts, strict=True):
            self._known[row] = max(self._known[row], start + 1)

    def will_know(self, rows: Sequence[int], starts: Sequence[int], num_emitted: Callable[[], Sequence[int]]) -> None:
        """A draft that runs ahead has added what the pass at these places emitted; how much, the host reads later."""
        self._added = (rows, starts, num_emitted)

    def _catch_up(self) -> None:
        if self._added is not None:
            rows, starts, num_emitted = self._added
            self._added = None
            for row, start, count in zip(rows, starts, num_emitted(), strict=True):
                self._known[row] = start + count

    def add_tokens(self, rows: torch.Tensor, tokens: torch.Tensor, is_token: torch.Tensor) -> None:
        """Recorded: count tokens [rows, n] of these cache rows where they are any."""
        vocab_size = self._shape[1]
        places = rows[:, None] * vocab_size + tokens.clamp(max=vocab_size - 1)
        self.words.view(-1).scatter_add_(0, places.flatten(), is_token.int().flatten())

    def seen_by(self, columns: Columns) -> Columns:
        return replace(columns, words=self.words, biases=self.biases)

    @property
    def addresses(self) -> tuple[int, ...]:
        """What recordings that use it are bound to."""
        return self.words.data_ptr(), 0 if self.biases is None else self.biases.data_ptr()

    def _begin(self, row: int, text: Text) -> None:
        words, prompt = self.words[row], [*text.lead, *text.tokens[: text.num_prompt_tokens]]
        words.zero_()
        words[self._tensor(prompt)] = WORD_PROMPT
        if text.eos_tokens:
            words[self._tensor(text.eos_tokens)] |= WORD_EOS
        if text.biases and self.biases is None:
            self.biases, self._bias_lease = self._pool.take(self._shape, torch.float32, self._device.device)
        if self.biases is not None:
            self.biases[row].zero_()
        if text.biases and self.biases is not None:
            tokens, values = zip(*text.biases, strict=True)
            self.biases[row, self._tensor(tokens)] = torch.tensor(values, device=self._device.device)
        self._known[row] = text.num_prompt_tokens

    def _add(self, row: int, tokens: Sequence[int]) -> None:
        numbers = self._tensor(tokens)
        self.words[row].index_add_(0, numbers, torch.ones_like(numbers, dtype=torch.int32))

    def _tensor(self, tokens: Sequence[int]) -> torch.Tensor:
        """Numbers after the vocabulary mean its last one: a draft model's may be smaller."""
        return torch.tensor(tokens, device=self._device.device).clamp_(max=self._shape[1] - 1)

    def _send(self, rows: Sequence[int], news: Sequence[Sequence[int]]) -> None:
        key = GraphKey("news", None, len(rows), MAX_NEWS, 0, SkipSet(), (), (self.words.data_ptr(),))
        packed, recording = self._graphs.get(key, lambda record: self._record(record, len(rows)))
        packed.write([*rows, *(number for row in news for number in [*row, *[-1] * (MAX_NEWS - len(row))])])
        packed.send()
        recording.replay()

    def _record(self, record: Recorder, num_rows: int) -> tuple[Packed, Recording]:
        packed = Packed(self._device, {"rows": (num_rows,), "tokens": (num_rows, MAX_NEWS)})
        rows, tokens = packed.tensors["rows"], packed.tensors["tokens"].fill_(-1)
        recording, _ = record(lambda: self.add_tokens(rows, tokens.clamp(min=0), tokens >= 0))
        return packed, recording


class Histories:
    """The histories of caches, made when they are first asked for."""

    def __init__(self, device: Device, graphs: Graphs, vocab_size: int) -> None:
        pool = StoragePool()
        self._make: Callable[[int], History] = lambda num_rows: History(device, graphs, pool, num_rows, vocab_size)

    def of(self, cache: SlotCache, rows: Sequence[int], choosing: Choosing) -> History | None:
        """That of the cache's rows, up to date; None where nothing goes by the text so far."""
        if not choosing.kind.has_rules:
            return None
        if cache.history is None:
            cache.history = self._make(cache.num_rows_allocated)
        history: History = cache.history
        history.follow(rows, choosing)
        return history
