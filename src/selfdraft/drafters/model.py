"""`model`: a separate, smaller model with the same tokenizer drafts (speculative decoding).

Leviathan et al. (arXiv:2211.17192), Chen et al. (arXiv:2302.01318); the setting of DISCO (arXiv:2405.04304). The draft
model keeps a cache of its own; what of it still agrees with the committed text is kept, the rest is fed again.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import OptionError
from ..models.checks import unwrapped
from ..models.eager import EagerRunner
from ..models.load import loading
from ..options import setting
from ..passes import PassRequest
from ..protocols import Cache, DraftRows, Host, Proposal, Runner
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
        tokenizer: Any = setting(None, "in Python, the tokenizer of a loaded draft model, to check that it is the same")

        def __post_init__(self) -> None:
            if not isinstance(self.source, str | Path) and not hasattr(self.source, "get_output_embeddings"):
                raise OptionError(f"model.source must be a name, a path or a loaded model, got {self.source!r}")
            if self.tokenizer is not None and not hasattr(self.tokenizer, "get_vocab"):
                raise OptionError(f"model.tokenizer must be a tokenizer, got {self.tokenizer!r}")

    def __init__(self, options: Options, host: Host) -> None:
        super().__init__(options, host)
        model, tokenizer = _load(options, host.runner)
        check_same_tokens(model, tokenizer, host)
        self._runner = EagerRunner(model)
        self._vocab_size = host.runner.vocab_size
        self._batches: list[DraftBatch] = []
        self._ended: set[int] = set()

    @staticmethod
    def draft_model(options: Options) -> str:
        """A loaded one may have no name."""
        source = options.source
        return str(source if isinstance(source, str | Path) else source.config._name_or_path or "")

    def open(self, runner: Runner, cache: Cache, rows: DraftRows) -> ModelSession:
        self._runner.refresh()
        self._drop(self._ended)
        self._ended = set()
        batch = self._batch_of(rows)
        batch.catch_up(rows)
        return ModelSession(batch, rows, self._vocab_size)

    def end(self, sequence_id: int) -> None:
        """Many texts may end at once; their rows are given up together, at the latest when none is left."""
        if any(sequence_id in batch.ids for batch in self._batches):
            self._ended.add(sequence_id)
        self._batches = [batch for batch in self._batches if not self._ended.issuperset(batch.ids)]
        self._ended &= {known for batch in self._batches for known in batch.ids}

    def _drop(self, ids: Collection[int]) -> None:
        for batch in self._batches:
            batch.drop(ids)
        self._batches = [batch for batch in self._batches if batch.ids]

    def _batch_of(self, rows: DraftRows) -> DraftBatch:
        """The rows' common cache; where they never met in this order, a new one."""
        wanted = set(rows.sequence_ids)
        for batch in self._batches:
            if [sequence_id for sequence_id in batch.ids if sequence_id in wanted] == list(rows.sequence_ids):
                return batch
        self._drop(wanted)
        self._batches.append(DraftBatch(self._runner, rows.sequence_ids, max(map(len, rows.committed))))
        return self._batches[-1]


class DraftBatch:
    """Texts that share a cache of the draft model. `cached[i]` are the tokens that row i's slots were computed from."""

    def __init__(self, runner: EagerRunner, ids: Sequence[int], num_slots: int) -> None:
        self.runner, self.ids = runner, list(ids)
        self.cache = runner.new_cache(len(self.ids), num_slots)
        self.cached: list[list[int]] = [[] for _ in self.ids]
        self._verified = [0] * len(self.ids)
        self._fed: list[torch.Tensor] = []  # [rows] each; read when the round is over

    def drop(self, ids: Collection[int]) -> None:
        keep = [row for row, sequence_id in enumerate(self.ids) if sequence_id not in ids]
        if len(keep) < len(self.ids):
            self._read_fed()
            self.cache.keep_rows(keep)
            self.ids = [self.ids[row] for row in keep]
            self.cached = [self.cached[row] for row in keep]
            self._verified = [self._verified[row] for row in keep]

    def catch_up(self, rows: DraftRows) -> None:
        """Forget what was refused or never meant; leave at most a few tokens of each text to be fed."""
        self._read_fed()
        self.cached = [
            cached if sequence_id in rows.sequence_ids else cached[:known]
            for sequence_id, cached, known in zip(self.ids, self.cached, self._verified, strict=True)
        ]
        for sequence_id, text in zip(rows.sequence_ids, rows.committed, strict=True):
            row = self.ids.index(sequence_id)
            known = self._verified[row]
            known = min(_common_length(self.cached[row], text, known), len(text) - 1)
            if len(text) - known > MAX_PENDING:
                self._prefill(row, text, known)
                known = len(text) - 1
            self._verified[row] = known
            self.cached[row] = list(text[:known])

    def feed(self, tokens: Sequence[Sequence[int]]) -> torch.Tensor:
        """Run each row's next tokens (any number, at least one); scores [rows, vocabulary] after the last of each."""
        width = max(len(row) for row in tokens)
        padded = torch.tensor([[*row, *[0] * (width - len(row))] for row in tokens], device=self.runner.device)
        scores = self._forward(padded)
        for cached, row in zip(self.cached, tokens, strict=True):
            cached.extend(row)
        last = torch.tensor([len(row) - 1 for row in tokens], device=self.runner.device)
        return scores[torch.arange(len(tokens), device=self.runner.device), last]

    def feed_one(self, tokens: torch.Tensor) -> torch.Tensor:
        """One more token [rows] for every row."""
        scores = self._forward(tokens[:, None])[:, -1]
        self._fed.append(tokens)
        return scores

    def _forward(self, tokens: torch.Tensor) -> torch.Tensor:
        starts = [len(cached) + len(self._fed) for cached in self.cached]
        self.cache.reserve(max(starts) + tokens.shape[1])
        return self.runner.forward(PassRequest(self._known(tokens), starts), self.cache).scores

    def _prefill(self, row: int, text: Sequence[int], start: int) -> None:
        self.cache.reserve(len(text))
        for begin in range(start, len(text) - 1, CHUNK):
            chunk = torch.tensor([text[begin : min(begin + CHUNK, len(text) - 1)]], device=self.runner.device)
            self.runner.forward(PassRequest(self._known(chunk), [begin], row, needs_scores=False), self.cache)

    def _known(self, tokens: torch.Tensor) -> torch.Tensor:
        """Ids that only pad the target's vocabulary mean nothing to the draft model either."""
        return tokens.clamp(max=self.runner.vocab_size - 1)

    def _read_fed(self) -> None:
        if self._fed:
            for cached, tokens in zip(self.cached, torch.stack(self._fed, 1).tolist(), strict=True):
                cached.extend(tokens)
            self._fed = []


class ModelSession(PlainSession):
    def __init__(self, batch: DraftBatch, rows: DraftRows, vocab_size: int) -> None:
        self.device = batch.runner.device
        self._batch, self._rows, self._vocab_size = batch, rows, vocab_size
        self._members = [batch.ids.index(sequence_id) for sequence_id in rows.sequence_ids]
        self._is_first = True

    def propose(self, last_tokens: torch.Tensor) -> Proposal:
        """Rows of the batch that do not draft now are fed a token that nobody will read."""
        batch = self._batch
        if self._is_first:
            pending: list[Sequence[int]] = [[0]] * len(batch.ids)
            for row, text in zip(self._members, self._rows.committed, strict=True):
                pending[row] = text[len(batch.cached[row]) :]
            scores = batch.feed(pending)
            self._is_first = False
        else:
            tokens = last_tokens.new_zeros(len(batch.ids))
            tokens[self._members] = last_tokens
            scores = batch.feed_one(tokens)
        return Proposal(scores=_fit(scores[self._members], self._vocab_size))


def _common_length(one: Sequence[int], other: Sequence[int], start: int) -> int:
    """Length of the common beginning; the first `start` tokens are known to agree."""
    pairs = zip(one[start:], other[start:], strict=False)
    return start + sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _fit(scores: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Models of one tokenizer may pad their vocabularies differently; what the target lacks cannot be drafted."""
    missing = vocab_size - scores.shape[-1]
    if missing > 0:
        return torch.nn.functional.pad(scores, (0, missing), value=-torch.inf)
    return scores[:, :vocab_size]


def _load(options: Model.Options, target: Runner) -> tuple[Any, Any]:
    source = options.source
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
