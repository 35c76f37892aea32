"""A chain drafted on the device: each token is chosen and fed there, the host only asks whether to go on.

A pass is recorded in two parts. The first part of the next token is launched before the host knows whether it is
wanted, so that the device never waits for the host; at most that head start is wasted. What was drafted has come to
the host by the time it learns that the draft is over.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...chains import MAX_TESTED, Choice, DraftedChain, DraftRule, DraftTask
from ...drafted import DraftStats
from ...kernels.top import draw, processed, runs_triton
from ...passes import Columns
from ...types import PAD, SkipSet
from ..cache import SlotCache
from .forward import Forward
from .graphs import GraphKey, Recorder, Recording
from .history import History
from .memory import Device, DraftBuffers, PassBuffers

MAX_DEPTHS = 64
"""Tokens a row that the device notes before the host must have taken them."""
DEPTH_BITS = 16
DEPTH = 1 << DEPTH_BITS
"""One number tells the host the depth that was reached, in these units, and how many rows go on."""
MAX_SPINS = 100_000
"""Reads of a number that the device is about to write; asking the driver would take longer than most waits."""

_yield: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))
"""Other threads may run. Where there is a choice not by sleeping, which takes 50 us on Linux, even for no time."""


@dataclass(frozen=True)
class DraftGraphs:
    """One drafted token. `state` is what `finish` takes over from `begin`: its memory must stay."""

    begin: Recording
    finish: Recording
    state: Any


class DraftOutputs:
    """`drafted` [depths, rows, candidates + 1]: the candidates and, as the bits of a float64, the confidence.

    `progress` [1]: the depth reached, in units of `DEPTH`, plus the number of rows that go on. `kept` [1 + depths,
    rows, vocabulary], if the rule keeps it: what each depth, from 1 on, was drawn from.
    """

    def __init__(self, device: Device, rows: int, num_candidates: int, kept: tuple[int, torch.dtype] | None) -> None:
        self._is_busy = False
        self.kept = None if kept is None else device.zeros(1 + MAX_TESTED, rows, kept[0], dtype=kept[1])
        self._device, shape = device, (MAX_DEPTHS, rows, num_candidates + 1)
        self._host_drafted, self._host_progress = device.host_zeros(*shape), device.host_zeros(1)
        self._is_at_host = runs_triton(device.device)  # our own kernels write there
        at_host = (self._host_drafted, self._host_progress)
        self.drafted, self.progress = at_host if self._is_at_host else (device.zeros(*shape), device.zeros(1))
        self._numbers, self._flag = self._host_drafted.numpy(), self._host_progress.numpy()
        self._confidences = self._numbers.view(np.float64)[:, :, -1]

    def send(self) -> None:
        """Recorded: first the tokens, then the word that they are there."""
        if not self._is_at_host:
            self._host_drafted.copy_(self.drafted, non_blocking=True)
            self._host_progress.copy_(self.progress, non_blocking=True)

    def settle(self) -> None:
        """What the device writes is there: the host does not wait in line for its own memory."""
        if self._is_at_host:
            self._device.wait()

    def begin(self) -> None:
        if self._is_busy:  # an interrupted draft may still be writing
            self._device.wait()
        self._is_busy, self._flag[0] = True, 0
        self.progress.zero_()  # of the last draft: what is recorded in this one sends it once more

    def end(self) -> None:
        self._is_busy = False

    def num_going_on(self, depth: int) -> int:
        """How many rows draft on after `depth`; returns when the device has come that far."""
        for _ in range(MAX_SPINS):
            if self._flag[0] >> DEPTH_BITS >= depth:
                break
            _yield()
        else:
            self._device.wait()  # it takes long, or it failed, which shows here
        return int(self._flag[0] & DEPTH - 1)

    def read(self, num_depths: int, rows: int) -> DraftedChain:
        candidates, confidences = self._numbers[:num_depths, :rows, :-1], self._confidences[:num_depths, :rows]
        return DraftedChain(candidates.tolist(), confidences.tolist())

    def keep(self, scores: torch.Tensor, depth: torch.Tensor) -> None:
        """Recorded."""
        if self.kept is not None:
            self.kept.index_copy_(0, depth[:1], scores[None])

    def read_kept(self, num_depths: int, rows: int) -> torch.Tensor | None:
        """Where the next draft writes its own."""
        return None if self.kept is None else self.kept[1 : 1 + num_depths, :rows]


def draft_token(
    scores: torch.Tensor, buffers: DraftBuffers, columns: Columns, outputs: DraftOutputs, rule: DraftRule
) -> None:
    """Choose after `scores` [rows, vocabulary], note it, and feed it: one round of the loop in engine/draft.py."""
    known = buffers.tensors
    scores = processed(scores, columns, rule.kind)
    outputs.keep(scores, known["depth"])
    stats = DraftStats(
        known["depth"], known["indices"], known["nothing"], known["ids"], scores, sequences=known["sequences"]
    )
    choice = rule(stats, lambda scores, count: draw(scores, columns, rule.kind, count))
    if runs_triton(scores.device):
        from ...kernels.feed import feed as feed_at_once

        parts = (choice.candidates, choice.confidence, choice.wants_more)
        feed_at_once(*parts, outputs.drafted, outputs.progress, known, PAD, DEPTH)
    else:
        feed(choice, buffers, outputs)
    outputs.send()


def feed(choice: Choice, buffers: DraftBuffers, outputs: DraftOutputs) -> None:
    """Note what was chosen, make it the next pass's input, and say which rows go on."""
    known = buffers.tensors
    depth, active = known["depth"], known["active"] > 0
    candidates = torch.where(active[:, None], choice.candidates, PAD)
    bits = choice.confidence.double().view(torch.long)
    place = (depth[:1] - 1) % MAX_DEPTHS
    outputs.drafted.index_copy_(0, place, torch.cat((candidates, bits[:, None]), 1)[None])
    tokens = candidates[:, :1]
    goes_on = (tokens[:, 0] != PAD) & choice.wants_more & (known["caps"] > depth)
    outputs.progress.copy_(depth[:1] * DEPTH + goes_on.sum())
    buffers.tokens.copy_(torch.where(tokens == PAD, buffers.tokens, tokens))
    known["active"].copy_(goes_on)
    path, has_room = known["path"], depth < known["path"].shape[1]
    place, is_noted = depth.clamp(max=path.shape[1] - 1)[:, None], has_room[:, None] & (tokens != PAD)
    path.scatter_(1, place, torch.where(is_noted, tokens, path.gather(1, place)))
    known["on_path"].copy_(torch.where(has_room, known["on_path"] * 2 + 1, known["on_path"]))
    for counter in ("starts", "indices", "depth"):
        known[counter].add_(1)


@dataclass(frozen=True)
class DraftSpec:
    """One draft: what its recordings freeze, and the tensors they work on."""

    forward: Forward
    rule: DraftRule
    skip: SkipSet
    vocabulary: int | None
    history: History | None
    buffers: DraftBuffers
    outputs: DraftOutputs

    @property
    def kind(self) -> Hashable:
        """Whatever rows there are."""
        return self.forward, self.rule, self.skip, self.vocabulary, self.history

    def key(self, width: int, end: int, bound_to: tuple[int, ...]) -> GraphKey:
        kind = (self.rule, self.vocabulary)
        bound_to += () if self.history is None else self.history.addresses
        return GraphKey(kind, self.forward, self.buffers.rows, width, end, self.skip, (), bound_to)

    @property
    def columns(self) -> Columns:
        columns = self.buffers.columns
        return columns if self.history is None else self.history.seen_by(columns)

    def record(self, record: Recorder, inputs: PassBuffers, cache: SlotCache, end: int) -> DraftGraphs:
        """The token after the last column of `inputs`."""
        buffers, outputs = self.buffers, self.outputs
        saved: list[tuple[torch.Tensor, torch.Tensor]] = []  # before the first warm-up, if there is one

        def reset() -> None:
            outputs.settle()
            if not saved:
                saved.extend((one, one.clone()) for one in (buffers.data, outputs.drafted, outputs.progress))
            for tensor, values in saved:
                tensor.copy_(values)

        begin, state = record(lambda: self.forward.begin(inputs, cache, end, self.skip), reset)

        def begin_again() -> None:
            reset()
            outputs.send()
            begin.replay()

        def finish() -> None:
            scores, _ = self.forward.finish(state, self.vocabulary)
            draft_token(scores.view(buffers.rows, inputs.width, -1)[:, -1], buffers, self.columns, outputs, self.rule)

        finishing, _ = record(finish, begin_again)
        return DraftGraphs(begin, finishing, state)


def run_draft(
    graphs_at: Callable[[int], DraftGraphs],
    outputs: DraftOutputs,
    max_depth: int,
    rows: int,
    task: DraftTask,
    is_begun: bool = False,
) -> DraftedChain:
    """Draft until too few rows go on; `graphs_at(depth)` draft the token after that many.

    `is_begun`: the first one is under way already.
    """
    candidates: list[Any] = []
    confidences: list[Any] = []
    graphs = graphs_at(0)
    if not is_begun:
        outputs.begin()
        graphs.begin.replay()
    for depth in range(1, max_depth + 1):
        # Asked for before this token is finished: recording the next writes the outputs, too.
        following = graphs_at(depth) if depth < max_depth else None
        if depth > 1 or not is_begun:
            graphs.finish.replay()
        if following is not None:
            following.begin.replay()  # a head start
            graphs = following
        if depth == 1:
            task.meanwhile()
        # Rows of texts that have left run along, and may go on after the last depth.
        is_over = outputs.num_going_on(depth) < task.min_rows or depth == max_depth
        if is_over or depth % MAX_DEPTHS == 0:
            part = outputs.read((depth - 1) % MAX_DEPTHS + 1, rows)
            candidates.extend(part.candidates)
            confidences.extend(part.confidences)
        if is_over:
            break
    outputs.end()
    return DraftedChain(candidates, confidences, outputs.read_kept(len(candidates), rows))
