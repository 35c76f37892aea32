"""What single passes take on the engine's own runner, what the device's memory gives, and the bound that follows.

A round drafts with some passes and verifies with one; whatever else it does is overhead. So the costs of passes, timed
alone, and the rounds a method needed predict the least time it could have taken. A verification is priced as a whole
pass over a chain of its width; `early-exit`, which goes on where its draft stopped, may do better.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from ..economics import seconds_of_width
from ..engine.draft import Rule
from ..engine.state import PREFILL_CHUNK
from ..models.latency import ROOM, WIDTHS, fitting_length
from ..options import GenerateOptions, NoOptions
from ..passes import PassRequest
from ..protocols import DraftedChain, DraftTask, Runner
from ..registry import DEFAULTS, find, options_for
from ..types import SkipSet, StepRecord
from .circumstances import device_seconds

SHORT_DRAFT, LONG_DRAFT = 8, 16
_MAX_PASSES = ROOM - 2
_BATCHES = 5
_BATCH_SECONDS = 0.03
_COPY_BYTES = {"cuda": 2**30}
_CPU_COPY_BYTES = 2**26


@dataclass(frozen=True)
class DraftKind:
    """What a drafted token's cost depends on. `vocabulary`: how many of the first tokens it proposes, None: all."""

    skip: SkipSet = SkipSet()
    vocabulary: int | None = None


@dataclass(frozen=True)
class Round:
    """What one round asks of the device. `num_draft_passes` is None where its drafts come from another model."""

    draft: DraftKind
    num_draft_passes: int | None
    width: int  # of the verification: the last committed token and the nodes of the draft


def round_of(step: StepRecord, drafter: str, vocabulary: int | None = None) -> Round:
    """`drafter`: the caller's, where the plan leaves it open; `vocabulary`: that of `self`. A lookup takes no pass."""
    name = step.plan.drafter or drafter
    num_steps = step.draft.num_draft_steps
    passes = num_steps if name == "self" or not num_steps else None if name == "model" else 0
    draft = DraftKind(step.plan.skip, vocabulary) if passes else DraftKind()
    return Round(draft, passes, 1 + len(step.draft.tokens))


@dataclass
class Costs:
    """Seconds of one pass by width with nothing skipped, and of one drafted token by kind.

    `is_recorded`: passes take the next width that was measured, as the runner pads them.
    """

    width_seconds: Mapping[int, float]
    draft_seconds: dict[DraftKind, float] = field(default_factory=dict)
    is_recorded: bool = False

    def verify_seconds(self, width: int) -> float:
        return seconds_of_width(self.width_seconds, width, self.is_recorded)

    def predict(self, rounds: Iterable[Round]) -> float | None:
        """Seconds of the passes of these rounds and nothing else; None where some of them were not timed."""
        seconds = 0.0
        for item in rounds:
            if item.num_draft_passes is None or (item.num_draft_passes and item.draft not in self.draft_seconds):
                return None
            draft = item.num_draft_passes * self.draft_seconds[item.draft] if item.num_draft_passes else 0.0
            seconds += draft + self.verify_seconds(item.width)
        return seconds

    def to_json(self, context: int, pass_bytes: int, bandwidth: float) -> dict[str, Any]:
        """`floor_seconds`: reading all weights once at the bandwidth of a large copy."""
        return {
            "context": context,
            "width_seconds": {str(width): seconds for width, seconds in self.width_seconds.items()},
            "drafts": [
                {"skip": str(draft.skip), "vocabulary": draft.vocabulary, "seconds": seconds}
                for draft, seconds in self.draft_seconds.items()
            ],
            "pass_bytes": pass_bytes,
            "copy_bytes_per_second": bandwidth,
            "floor_seconds": pass_bytes / bandwidth,
        }


def draft_kinds(rounds: Iterable[Round]) -> list[DraftKind]:
    """Those that some round drafted with."""
    found = {item.draft for item in rounds if item.num_draft_passes}
    return sorted(found, key=lambda draft: (str(draft.skip), draft.vocabulary or 0))


class PassMeter:
    """Times passes after a text of `context` tokens, as decoding runs them.

    They all read the cache bucket that `context` is in: where it leaves them too little room, the text is shorter.
    """

    def __init__(self, runner: Runner, context: int) -> None:
        self.context = fitting_length(runner, context)
        self._runner, self._is_recorded, self._rule = runner, runner.is_recording, _chain_rule()

    def measure(self, drafts: Iterable[DraftKind]) -> Costs:
        widths, cache = self._width_seconds(), self._new_text()
        return Costs(widths, {draft: self._draft_seconds(cache, draft) for draft in drafts}, self._is_recorded)

    def _width_seconds(self) -> dict[int, float]:
        cache = self._new_text()
        wider = self._runner.recorded_widths[1:] if self._is_recorded else WIDTHS[1:]
        return {1: self._plain_seconds(cache), **{width: self._pass_seconds(cache, width) for width in wider}}

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
