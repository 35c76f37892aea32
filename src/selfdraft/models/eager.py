"""EagerRunner: passes operation by operation, on any device; on a CPU those of a few tokens by compiled kernels.

One interface (protocols.Runner), chosen by device.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from ..chains import DraftedChain, DraftTask
from ..passes import PassOutput, PassRequest
from .cache import SlotCache, round_up
from .checks import check_ready
from .cpu.library import library
from .cpu.products import Products
from .decoder import Decoder
from .free_memory import free_bytes
from .placement import Placement
from .probe import Probe
from .prompts import read_prompts


class EagerRunner:
    """The specification for every other runner."""

    saves_by_reuse = True
    recorded_widths: Sequence[int] = ()
    fallback_reason: str | None = None
    lock: Any = nullcontext()
    _num_begun = 0

    def __init__(self, model: Any, *, is_quick: bool = False, packed_weights: bool | int = True) -> None:
        """`is_quick`: on a CPU by compiled kernels, or else by the quickest of torch's products.

        These may hold weights a second time; `packed_weights` bounds the bytes, see `Products`.
        """
        self._how: dict[str, Any] = {"is_quick": is_quick, "packed_weights": packed_weights}
        if is_quick and model.device.type == "cpu":
            self.decoder = Decoder(model, kernels=library(), products=Products(packed_weights))
        else:
            self.decoder = Decoder(model)
        self._begin()

    def _begin(self) -> None:
        """With the decoder as it is attached now."""
        self._num_begun += 1
        self.vocab_size = int(self.decoder.model.get_output_embeddings().weight.shape[0])  # slow to find, as the dtype
        numbers = sum(shape.num_heads * (shape.key_dim + shape.value_dim) for shape in self.decoder.shapes)
        self.slot_bytes = numbers * self.decoder.dtype.itemsize

    def another(self, model: Any) -> EagerRunner:
        return EagerRunner(model, **self._how)

    def refresh(self) -> None:
        check_ready(self.decoder.model)
        if not self.decoder.is_current:
            self.decoder.attach()
            self._begin()
        if self.decoder.compiled is not None:
            self.decoder.compiled.refresh()

    @property
    def num_layers(self) -> int:
        return self.decoder.num_layers

    @property
    def context_length(self) -> int | None:
        return self.decoder.context_length

    @property
    def device(self) -> torch.device:
        return self.decoder.device

    @property
    def dtype(self) -> torch.dtype:
        return self.decoder.dtype

    @property
    def packed_bytes(self) -> int:
        return self.decoder.packed_bytes

    @property
    def recorded_prompts(self) -> Sequence[int]:
        return ()

    @property
    def is_recording(self) -> bool:
        return False

    @property
    def record_seconds(self) -> float:
        return 0.0

    @property
    def graph_keys(self) -> Sequence[Any]:
        return ()

    def recorded_slots(self, num_slots: int) -> Sequence[int]:
        return ()

    @property
    def weights_version(self) -> Hashable | None:
        return (
            None
            if not all(map(is_transformers, self.decoder.watched.hooks))
            else (self._num_begun, self.decoder.watched.num_writes)
        )

    @property
    def free_bytes(self) -> int:
        return free_bytes(self.device)

    def cache_slots(self, num_slots: int) -> int:
        return round_up(num_slots)

    def new_cache(self, num_rows: int, num_slots: int) -> SlotCache:
        return self.decoder.new_cache(num_rows, num_slots)

    def is_under_way(self, cache: SlotCache, rows: Sequence[int], starts: Sequence[int]) -> bool:
        return False

    @torch.inference_mode()
    def forward(self, request: PassRequest, cache: SlotCache) -> PassOutput:
        if request.is_prompt:
            return read_prompts(self.decoder, request, cache)
        tokens, starts, rows = request.tokens, request.starts, request.rows
        tokens = torch.as_tensor(tokens, device=self.device)
        if request.tree is None:
            placement = Placement.chain(starts, tokens.shape[1], self.device, rows)
        else:
            placement = Placement.tree(starts, request.tree, self.device, rows)
        return self.decoder.forward(
            tokens,
            placement,
            cache,
            skip=request.skip,
            capture=request.capture,
            needs_scores=request.needs_scores,
            resume=request.resume,
        )

    def draft(
        self, task: DraftTask, request: PassRequest, cache: SlotCache, vocabulary: int | None = None
    ) -> DraftedChain | None:
        return None

    def probe(self, cache: SlotCache, tokens: Sequence[int], first: int = 0, row: int = 0) -> Probe:
        return Probe(self.decoder, cache, tokens, first, row)

    def can_resume(self, point: str, capture: Sequence[str]) -> bool:
        return self.decoder.can_resume(point, capture)

    def seconds(self, is_idle: bool = False) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def is_transformers(hook: Any) -> bool:
    """Its own hooks do nothing unless a call asks for hidden states."""
    return str(getattr(hook, "__module__", "")).startswith("transformers.")
