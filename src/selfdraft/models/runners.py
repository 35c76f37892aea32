"""Runners: how passes are executed on a device. One interface (protocols.Runner), chosen by device."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from ..passes import PassOutput, Resume, Tokens, TreeMask
from ..protocols import DraftedChain, DraftTask
from ..types import SkipSet
from .cache import SlotCache
from .checks import check_eval
from .decoder import Decoder
from .placement import Placement
from .probe import Probe


class EagerRunner:
    """Operation by operation, on any device. The specification for every other runner."""

    saves_by_reuse = True
    recorded_widths: Sequence[int] = ()

    def __init__(self, model: Any) -> None:
        self.decoder = Decoder(model)

    @property
    def num_layers(self) -> int:
        return self.decoder.num_layers

    @property
    def vocab_size(self) -> int:
        return int(self.decoder.model.get_output_embeddings().weight.shape[0])

    @property
    def context_length(self) -> int | None:
        return self.decoder.context_length

    @property
    def device(self) -> torch.device:
        return self.decoder.device

    @property
    def dtype(self) -> torch.dtype:
        return self.decoder.dtype

    def refresh(self) -> None:
        """Attach anew where the model was moved, cast, hooked or given new weights since."""
        check_eval(self.decoder.model)
        if not self.decoder.is_current:
            self.decoder.attach()

    def recorded_slots(self, num_slots: int) -> Sequence[int]:
        return ()

    def new_cache(self, num_rows: int, num_slots: int) -> SlotCache:
        return self.decoder.new_cache(num_rows, num_slots)

    @torch.inference_mode()
    def forward(
        self,
        tokens: Tokens,
        starts: Sequence[int],
        cache: SlotCache,
        *,
        first_row: int = 0,
        skip: SkipSet = SkipSet(),  # noqa: B008 - frozen
        capture: Sequence[str] = (),
        needs_scores: bool = True,
        tree: TreeMask | None = None,
        resume: Resume | None = None,
        ahead: bool = False,
    ) -> PassOutput:
        tokens = torch.as_tensor(tokens, device=self.device)
        if tree is None:
            placement = Placement.chain(starts, tokens.shape[1], self.device, first_row)
        else:
            placement = Placement.tree(starts, tree, self.device, first_row)
        return self.decoder.forward(
            tokens, placement, cache, skip=skip, capture=capture, needs_scores=needs_scores, resume=resume
        )

    def draft(
        self,
        task: DraftTask,
        tokens: Sequence[int],
        starts: Sequence[int],
        cache: SlotCache,
        *,
        first_row: int = 0,
        skip: SkipSet = SkipSet(),  # noqa: B008 - frozen
        vocabulary: int | None = None,
    ) -> DraftedChain | None:
        return None

    def probe(self, cache: SlotCache, tokens: Sequence[int], first: int = 0, row: int = 0) -> Probe:
        return Probe(self.decoder, cache, tokens, first, row)

    def can_resume(self, point: str, capture: Sequence[str]) -> bool:
        return self.decoder.can_resume(point, capture)

    def seconds(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()
