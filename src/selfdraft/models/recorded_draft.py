"""A chain drafted on the device: each token is chosen and fed there, the host only asks whether to go on.

A pass is recorded in two parts. The first part of the next token is launched before the host knows whether it is
wanted, so that the device never waits for the host; at most that head start is wasted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..protocols import DraftedChain, DraftRule, DraftStats, Spots
from ..types import PAD, SkipSet
from .bodies import Body
from .buffers import DraftBuffers
from .cache import SlotCache
from .device import Device, Readback
from .graphs import Recorder, Recording

MAX_DEPTHS = 64
"""Tokens a row that are read back together."""


@dataclass(frozen=True)
class DraftGraphs:
    """One drafted token. `state` is what `finish` takes over from `begin`: its memory must stay."""

    begin: Recording
    finish: Recording
    state: Any


class DraftOutputs:
    """`drafted` [depths, rows, candidates + 1]: the candidates and, as the bits of a float64, the confidence."""

    def __init__(self, device: Device, rows: int, num_candidates: int) -> None:
        self.drafted = device.zeros(MAX_DEPTHS, rows, num_candidates + 1)
        self.goes_on = device.host_zeros(1)  # written by the device
        self.flag = self.goes_on.numpy()
        self.signal = device.signal()
        self._readback = Readback(device, self.drafted)

    def write(self, depth: torch.Tensor, candidates: torch.Tensor, confidence: torch.Tensor) -> None:
        bits = confidence.double().view(torch.long)
        self.drafted.index_copy_(0, depth % MAX_DEPTHS, torch.cat((candidates, bits[:, None]), 1)[None])

    def read(self, num_depths: int, rows: int) -> DraftedChain:
        self._readback.start()
        numbers = self._readback.read()[:num_depths, :rows]
        confidences = np.ascontiguousarray(numbers[:, :, -1]).view(np.float64)
        return DraftedChain(numbers[:, :, :-1].tolist(), confidences.tolist())


def record_draft(
    record: Recorder,
    body: Body,
    buffers: DraftBuffers,
    outputs: DraftOutputs,
    rule: DraftRule,
    cache: SlotCache,
    end: int,
    skip: SkipSet,
    vocabulary: int | None = None,
) -> DraftGraphs:
    saved = [(tensor, tensor.clone()) for tensor in (buffers.data, outputs.drafted)]

    def reset() -> None:
        for tensor, values in saved:
            tensor.copy_(values)

    begin, state = record(lambda: body.begin(buffers, cache, end, skip), reset)

    def begin_again() -> None:
        reset()
        begin.replay()

    def finish() -> None:
        scores, _ = body.finish(state, vocabulary=vocabulary)
        draft_token(scores[:, 0], buffers, outputs, rule)

    finishing, _ = record(finish, begin_again)
    return DraftGraphs(begin, finishing, state)


def draft_token(scores: torch.Tensor, buffers: DraftBuffers, outputs: DraftOutputs, rule: DraftRule) -> None:
    """Choose behind `scores` [rows, vocabulary], note it, and feed it: one round of the loop in engine/draft.py."""
    known = buffers.tensors
    depth, active = known["depth"] + 1, known["active"] > 0
    spots = Spots(known["sequences"], known["indices"] + known["depth"], known["rounds"])
    stats = DraftStats(depth, spots.indices, torch.zeros_like(depth), known["ids"], scores)
    choice = rule(stats, spots, (known["seed"][0], known["seed"][1]))
    candidates = torch.where(active[:, None], choice.candidates, PAD)
    outputs.write(known["depth"][:1], candidates, choice.confidence)
    tokens = candidates[:, :1]
    active = (tokens[:, 0] != PAD) & choice.wants_more & (known["caps"] > depth)
    buffers.tokens.copy_(torch.where(tokens == PAD, buffers.tokens, tokens))
    buffers.starts.add_(1)
    known["depth"].copy_(depth)
    known["active"].copy_(active)
    outputs.goes_on.copy_(active.any()[None].long(), non_blocking=True)


def run_draft(
    graphs_at: Callable[[int], DraftGraphs], outputs: DraftOutputs, max_depth: int, rows: int
) -> DraftedChain:
    """Draft until no row goes on; `graphs_at(depth)` draft the token behind so many."""
    candidates: list[Any] = []
    confidences: list[Any] = []
    graphs = graphs_at(0)
    graphs.begin.replay()
    for depth in range(1, max_depth + 1):
        # Asked for before this token is finished: recording the next runs over the flag.
        following = graphs_at(depth) if depth < max_depth else None
        graphs.finish.replay()
        is_over = following is None
        if following is not None:
            outputs.signal.set()
            following.begin.replay()  # a head start
            outputs.signal.wait()
            graphs, is_over = following, not outputs.flag[0]
        if is_over or depth % MAX_DEPTHS == 0:
            part = outputs.read((depth - 1) % MAX_DEPTHS + 1, rows)
            candidates.extend(part.candidates)
            confidences.extend(part.confidences)
        if is_over:
            break
    return DraftedChain(candidates, confidences)
