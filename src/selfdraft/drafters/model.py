"""`model`: a separate, smaller model with the same tokenizer drafts (speculative decoding).

Leviathan et al. (arXiv:2211.17192), Chen et al. (arXiv:2302.01318); the setting of DISCO (arXiv:2405.04304). The draft
model keeps a cache of its own; what of it still agrees with the committed text is kept, the rest is fed again.

Where there is no other model, one can be cut from the target: `model.without=4-11` leaves these layers out.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..chains import DraftedChain, DraftTask
from ..errors import OptionError
from ..models.checks import unwrapped
from ..models.load import loading
from ..models.load.cut import cut
from ..options import setting
from ..passes import PassRequest
from ..protocols import Cache, DraftRows, Host, Proposal, Runner
from ..types import PAD, SkipSet
from .base import PlainDrafter, PlainSession

MAX_PENDING = 8
"""A row with more tokens to catch up with is brought up by itself, so that its neighbours are not padded to it."""
CHUNK = 512


class Model(PlainDrafter):
    @dataclass(frozen=True)
    class Options:
        source: Any = setting(
            "", "hub id, folder, GGUF file (llama.cpp's) or catalogue name of the draft model (in Python: or a model)"
        )
        without: str = setting(
            "", "without a source: the target itself lacks these layers, like 4,7-11, counted from 0"
        )
        tokenizer: Any = setting(None, "in Python, the tokenizer of a loaded draft model, to check that it is the same")

        def __post_init__(self) -> None:
            if not isinstance(self.source, str | Path) and not hasattr(self.source, "get_output_embeddings"):
                raise OptionError(f"model.source must be a name, a path or a loaded model, got {self.source!r}")
            if self.tokenizer is not None and not hasattr(self.tokenizer, "get_vocab"):
                raise OptionError(f"model.tokenizer must be a tokenizer, got {self.tokenizer!r}")
            if self.without and (not isinstance(self.source, str) or self.source):
                raise OptionError("model.without cuts a draft model from the target; leave it out, or model.source")
            left_out(self.without)

    def __init__(self, options: Options, host: Host) -> None:
        super().__init__(options, host)
        if options not in host.draft_runners:
            model, tokenizer = _load(options, host.runner)
            check_same_tokens(model, tokenizer, host)
            host.draft_runners[options] = host.runner.another(model)
        self._runner = host.draft_runners[options]
        self.slot_bytes, self._vocab_size = self._runner.slot_bytes, host.runner.vocab_size
        self._batches: list[DraftBatch] = []
        self._ended: set[int] = set()

    @staticmethod
    def draft_model(options: Options) -> str:
        """A loaded one may have no name."""
        source = options.source
        if options.without:
            return f"without {options.without}"
        return str(source if isinstance(source, str | Path) else source.config._name_or_path or "")

    @property
    def runner(self) -> Runner:
        """Of the draft model."""
        return self._runner

    def open(self, runner: Runner, cache: Cache, rows: DraftRows) -> ModelSession:
        self._drop(self._ended)
        self._ended = set()
        batch = self._batch_of(rows, cache.num_slots)
        batch.catch_up(rows)
        return ModelSession(batch, rows, self._vocab_size)

    def held_bytes(self, ids: Collection[int]) -> int:
        return sum(batch.cache.num_bytes for batch in self._batches if not batch.rows.keys().isdisjoint(ids))

    def end(self, sequence_id: int) -> None:
        """Many texts may end at once; their rows are given up together, at the latest when none is left."""
        if any(sequence_id in batch.rows for batch in self._batches):
            self._ended.add(sequence_id)
        self._batches = [batch for batch in self._batches if not self._ended.issuperset(batch.rows)]
        self._ended &= {known for batch in self._batches for known in batch.rows}

    def _drop(self, ids: Collection[int]) -> None:
        for batch in self._batches:
            batch.drop(ids)
        self._batches = [batch for batch in self._batches if batch.rows]

    def _batch_of(self, rows: DraftRows, num_slots: int) -> DraftBatch:
        """The rows' common cache; where they never met in this order, a new one, as long as the target's."""
        wanted = set(rows.sequence_ids)
        for batch in self._batches:
            if [sequence_id for sequence_id in batch.rows if sequence_id in wanted] == list(rows.sequence_ids):
                return batch
        self._drop(wanted)
        self._runner.refresh()
        self._batches.append(DraftBatch(self._runner, rows.sequence_ids, num_slots))
        return self._batches[-1]


class DraftBatch:
    """Texts that share a cache of the draft model; `rows` by sequence id, ascending.

    `cached[i]` are the tokens that row i's slots were computed from.
    """

    def __init__(self, runner: Runner, ids: Sequence[int], num_slots: int) -> None:
        self.runner, self.rows = runner, {sequence_id: row for row, sequence_id in enumerate(ids)}
        self.cache = runner.new_cache(len(ids), num_slots)
        self.cached: list[list[int]] = [[] for _ in ids]
        self._verified = [0] * len(ids)  # that many agree with the text, where that many are cached
        self._fed: list[torch.Tensor] = []  # [rows `_fed_rows`] each; read when the round is over
        self._fed_rows: Sequence[int] = ()

    def drop(self, ids: Collection[int]) -> None:
        """Nothing begins in their rows."""
        self.rows = {sequence_id: row for sequence_id, row in self.rows.items() if sequence_id not in ids}

    def catch_up(self, rows: DraftRows) -> None:
        """Forget what was refused or never meant; leave at most a few tokens of each text to be fed."""
        self._read_fed()
        for sequence_id, text in zip(rows.sequence_ids, rows.committed, strict=True):
            row = self.rows[sequence_id]
            cached = self.cached[row]
            known = min(self._verified[row], len(cached))
            del cached[min(_common_length(cached, text, known), len(text) - 1) :]
            if len(text) - len(cached) > MAX_PENDING:
                self.bring_up(row, text)
            self._verified[row] = len(text)  # as soon as it is fed

    def bring_up(self, row: int, text: Sequence[int]) -> None:
        """Run all but the last token of one row. After a gap by recorded passes, which have scores, if they can."""
        cached, end = self.cached[row], len(text) - 1
        widest = self.runner.recorded_widths[-1] if cached and self.runner.is_recording else 0
        self.cache.reserve(len(text))
        size = max((CHUNK, *self.runner.recorded_prompts))
        for begin in range(len(cached), end, size):
            chunk = self._known(text[begin : min(begin + size, end)])
            request = PassRequest([chunk], [begin], [row], needs_scores=len(chunk) <= widest)
            self.runner.forward(request, self.cache)
        cached.extend(text[len(cached) : end])

    def feed(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> torch.Tensor:
        """Run the next tokens of these rows, at least one each; scores [rows, vocabulary] after the last."""
        width, device = max(map(len, tokens)), self.runner.device
        padded = [[*self._known(row), *[0] * (width - len(row))] for row in tokens]
        scores = self._forward(rows, torch.tensor(padded, device=device))
        for row, new in zip(rows, tokens, strict=True):
            self.cached[row].extend(new)
        last = torch.tensor([len(row) - 1 for row in tokens], device=device)
        return scores[torch.arange(len(tokens), device=device), last]

    def feed_one(self, rows: Sequence[int], tokens: torch.Tensor) -> torch.Tensor:
        """One more token [rows] for each of the same rows."""
        scores = self._forward(rows, tokens[:, None].clamp(max=self.runner.vocab_size - 1))[:, -1]
        self._fed.append(tokens)
        self._fed_rows = rows
        return scores

    def _forward(self, rows: Sequence[int], tokens: torch.Tensor) -> torch.Tensor:
        starts = [len(self.cached[row]) + len(self._fed) for row in rows]
        self.cache.reserve(max(starts) + tokens.shape[1])
        return self.runner.forward(PassRequest(tokens, starts, rows), self.cache).scores

    def draft(
        self,
        task: DraftTask,
        rows: Sequence[int],
        texts: Sequence[Sequence[int]],
        width: int,
        vocabulary: int | None,
    ) -> DraftedChain | None:
        """The chain after the last `width` tokens of each text; those that are cached already are computed again."""
        starts = [len(text) - width for text in texts]
        tokens = [self._known(text[start:]) for text, start in zip(texts, starts, strict=True)]
        chain = self.runner.draft(task, PassRequest(tokens, starts, rows), self.cache, vocabulary)
        if chain is not None:
            for number, row in enumerate(rows):
                cached, text = self.cached[row], texts[number]
                drafted = (column[number][0] for column in chain.candidates[:-1])  # the last was never fed
                cached.extend(text[len(cached) :])
                cached.extend(itertools.takewhile(lambda token: token != PAD, drafted))
        return chain

    def _known(self, tokens: Sequence[int]) -> list[int]:
        """Ids that only pad the target's vocabulary mean nothing to the draft model either."""
        last = self.runner.vocab_size - 1
        return [min(token, last) for token in tokens]

    def _read_fed(self) -> None:
        if self._fed:
            for row, tokens in zip(self._fed_rows, torch.stack(self._fed, 1).tolist(), strict=True):
                self.cached[row].extend(tokens)
            self._fed = []


class ModelSession(PlainSession):
    """One round of some of a batch's rows."""

    def __init__(self, batch: DraftBatch, rows: DraftRows, vocab_size: int) -> None:
        self.device = batch.runner.device
        self._batch, self._texts, self._vocab_size = batch, rows.committed, vocab_size
        self._rows = [batch.rows[sequence_id] for sequence_id in rows.sequence_ids]
        self._is_first = True

    @property
    def _pending(self) -> list[Sequence[int]]:
        """What of each text is not cached."""
        return [text[len(self._batch.cached[row]) :] for row, text in zip(self._rows, self._texts, strict=True)]

    def propose(self, last_tokens: torch.Tensor) -> Proposal:
        if self._is_first:
            scores = self._batch.feed(self._rows, self._pending)
            self._is_first = False
        else:
            scores = self._batch.feed_one(self._rows, last_tokens)
        return Proposal(scores=fit_vocabulary(scores, self._vocab_size))

    def chain(self, task: DraftTask) -> DraftedChain | None:
        """One pass takes what is pending, the last token included: the chain begins after it."""
        runner = self._batch.runner
        if not runner.is_recording or not task.runs_on_device:
            return None
        num_pending = max(map(len, self._pending))
        width = next(width for width in runner.recorded_widths if width >= num_pending)
        if width > min(map(len, self._texts)):
            for row, text in zip(self._rows, self._texts, strict=True):
                self._batch.bring_up(row, text)
            width = 1
        return self._draft(task, self._texts, width)

    def rehearse(self, task: DraftTask) -> None:
        """Rounds that begin with each number of pending tokens, in texts that are long enough for them."""
        for width in self._batch.runner.recorded_widths:
            if width <= MAX_PENDING:
                self._draft(task, [[*text, *[0] * (width - len(text))] for text in self._texts], width)

    def _draft(self, task: DraftTask, texts: Sequence[Sequence[int]], width: int) -> DraftedChain | None:
        vocabulary = self._vocab_size if self._vocab_size < self._batch.runner.vocab_size else None
        return self._batch.draft(task, self._rows, texts, width, vocabulary)


def _common_length(one: Sequence[int], other: Sequence[int], start: int) -> int:
    """Length of the common beginning; the first `start` tokens are known to agree."""
    pairs = zip(one[start:], other[start:], strict=False)
    return start + sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def fit_vocabulary(scores: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Models of one tokenizer may pad their vocabularies differently; what the target lacks cannot be drafted."""
    missing = vocab_size - scores.shape[-1]
    if missing > 0:
        return torch.nn.functional.pad(scores, (0, missing), value=-torch.inf)
    return scores[:, :vocab_size]


def left_out(layers: str) -> frozenset[int]:
    """`4,7-9` -> {4, 7, 8, 9}."""
    try:
        return SkipSet.parse(",".join(f"a{part.strip()}" for part in layers.split(",") if part.strip())).attention
    except OptionError:
        raise OptionError(f"model.without must be layers like 4,7-11, counted from 0, got {layers!r}") from None


def _load(options: Model.Options, target: Runner) -> tuple[Any, Any]:
    source = options.source
    if options.without:
        return cut(target.decoder.model, left_out(options.without)), None
    if isinstance(source, str | Path):
        if not str(source):
            raise OptionError(
                "the drafter 'model' needs a draft model: pass settings={'model': {'source': 'NAME'}}, on the command "
                "line --set model.source=NAME (a hub id, a folder, a GGUF file or a catalogue name)"
            )
        return loading.load(source, device=str(target.device), dtype=target.dtype)
    if source.device != target.device:
        raise OptionError(
            f"the draft model is on {source.device}, the target on {target.device}; move it: draft.to(...)"
        )
    return unwrapped(source), options.tokenizer


def check_same_tokens(model: Any, tokenizer: Any, host: Host) -> None:
    """A token id must mean the same text to both models; without both tokenizers only the numbers can be compared."""
    if tokenizer is not None and host.tokenizer is not None:
        if tokenizer.get_vocab() == host.tokenizer.get_vocab():
            return
        problem = f"its tokenizer has {len(tokenizer)} tokens that are not the {len(host.tokenizer)} of the target's"
    else:
        size = int(model.get_output_embeddings().weight.shape[0])
        if size == host.runner.vocab_size:
            return
        problem = (
            f"its vocabulary has {size} tokens, the target's {host.runner.vocab_size} (if only their padding differs, "
            "pass both tokenizers: Engine(model, tokenizer) and settings={'model': {'tokenizer': ...}})"
        )
    raise OptionError(
        f"{type(model).__name__} cannot draft for this model: {problem}. Use a smaller model of the same family, whose "
        "tokenizer is the same"
    )
