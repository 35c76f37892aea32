"""Clocks: what single passes and drafts take on the engine's own runner, and what the device's memory gives."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from ..engine.draft import Rule
from ..engine.state import PREFILL_CHUNK
from ..models.latency import ROOM, WIDTHS, fitting_length
from ..options import GenerateOptions, NoOptions
from ..passes import PassRequest
from ..protocols import DraftedChain, DraftTask, Runner
from ..registry import DEFAULTS, find, options_for
from ..types import SkipSet
from .costs import Costs, DraftKind

SHORT_DRAFT, LONG_DRAFT = 8, 16
_MAX_PASSES = ROOM - 2
_BATCHES = 5
_BATCH_SECONDS = 0.03
_COPY_BYTES = {"cuda": 2**30}
_CPU_COPY_BYTES = 2**26


class PassMeter:
    """Times passes behind a text of `context` tokens, as decoding runs them.

    They all read the cache bucket that `context` is in: where it leaves them too little room, the text is shorter.
    """

    def __init__(self, runner: Runner, context: int) -> None:
        self.context = fitting_length(runner, context)
        self._runner, self._is_recorded, self._rule = runner, runner.is_recording, _chain_rule()

    def measure(self, drafts: Iterable[DraftKind]) -> Costs:
        costs = Costs(self._width_seconds(), is_recorded=self._is_recorded)
        self.add_drafts(costs, drafts)
        return costs

    def _width_seconds(self) -> dict[int, float]:
        cache = self._new_text()
        wider = self._runner.recorded_widths[1:] if self._is_recorded else WIDTHS[1:]
        return {1: self._plain_seconds(cache), **{width: self._pass_seconds(cache, width) for width in wider}}

    def add_drafts(self, costs: Costs, drafts: Iterable[DraftKind]) -> None:
        new = [draft for draft in drafts if draft not in costs.draft_seconds]
        if new:
            cache = self._new_text()
            costs.draft_seconds.update({draft: self._draft_seconds(cache, draft) for draft in new})

    def _new_text(self) -> Any:
        """A cache with the text; given back after use, for recordings may be bound to its storage."""
        cache = self._runner.new_cache(1, self.context + ROOM)
        for start in range(0, self.context, PREFILL_CHUNK):
            width = min(PREFILL_CHUNK, self.context - start)
            self._runner.forward(PassRequest(self._tokens(width), [start], needs_scores=False), cache)
        return cache

    def _tokens(self, width: int) -> list[list[int]]:
        return [[token % self._runner.vocab_size for token in range(1, width + 1)]]

    def _plain_seconds(self, cache: Any) -> float:
        """Token by token, each read and fed to the next pass, which a runner may have launched already."""
        runner = self._runner

        def batch(count: int) -> float:
            tokens = runner.forward(PassRequest(self._tokens(1), [self.context], run_ahead=True), cache).choices()
            began = runner.seconds()
            for start in range(self.context + 1, self.context + 1 + count):
                tokens = runner.forward(PassRequest(tokens, [start], run_ahead=True), cache).choices()
            return (runner.seconds() - began) / count

        return _median_seconds(batch)

    def _pass_seconds(self, cache: Any, width: int, skip: SkipSet = SkipSet()) -> float:  # noqa: B008 - frozen
        """Many in a row, nothing read back in between."""
        request = PassRequest(self._tokens(width), [self.context], skip=skip)
        return self._repeated(lambda: self._runner.forward(request, cache))

    def _draft_seconds(self, cache: Any, draft: DraftKind) -> float:
        """What one more token adds to a draft: a long one against a short one, over the tokens between."""
        if self._draft(cache, draft, SHORT_DRAFT) is None:
            return self._pass_seconds(cache, 1, draft.skip)
        short, long = (self._repeated(partial(self._draft, cache, draft, count)) for count in (SHORT_DRAFT, LONG_DRAFT))
        return (long - short) / (LONG_DRAFT - SHORT_DRAFT)

    def _draft(self, cache: Any, draft: DraftKind, num_tokens: int) -> DraftedChain | None:
        task = DraftTask(self._rule, [num_tokens], [(0, 0, 0)], [0], seed=0)
        return self._runner.draft(task, PassRequest([[1]], [self.context], skip=draft.skip), cache, draft.vocabulary)

    def _repeated(self, run: Callable[[], object]) -> float:
        def batch(count: int) -> float:
            began = self._runner.seconds()
            for _ in range(count):
                run()
            return (self._runner.seconds() - began) / count

        return _median_seconds(batch)


def _median_seconds(batch: Callable[[int], float]) -> float:
    """Of a few batches; `batch(count)` gives the seconds of one of `count`. The first ones warm up."""
    batch(3)
    count = min(max(3, round(_BATCH_SECONDS / max(batch(3), 1e-6))), _MAX_PASSES)
    return statistics.median(batch(count) for _ in range(_BATCHES))


def _chain_rule() -> Rule:
    """The draft's best tokens, as many as the task allows."""
    options = options_for("lookahead", "fixed", {"fixed": {"tokens": LONG_DRAFT}})
    lookahead, tree = find("lookahead", "fixed")(options), find("tree", "chain")(NoOptions())
    return Rule(lookahead, tree, find("acceptance", DEFAULTS["acceptance"])(), GenerateOptions())


def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second, read and written, of a large copy on the device: what memory gives at best."""
    num_bytes = _COPY_BYTES.get(device.type, _CPU_COPY_BYTES)
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = 0.0
    for _ in range(_BATCHES + 1):
        began = device_seconds(device)
        for _ in range(4):
            target.copy_(source)
        best = max(best, 4 * 2 * num_bytes / (device_seconds(device) - began))
    del source, target
    if device.type == "cuda":  # so that the model's own peak is seen later
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    return best


def device_seconds(device: torch.device) -> float:
    """A clock that has waited for the device, whoever keeps it busy."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
