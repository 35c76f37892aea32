"""What a probe is asked for again and again (plans, scores of skip sets), recorded: tokens, row and inputs are numbers.

Of a kind that is asked for the first time nothing is recorded: it may stay the only one, and running it warms up what a
recording cannot. One reads the cache where it is, in slots up to a power of two; tokens that pad come last.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence

import torch

from ...kernels.top import runs_triton
from ...types import SkipSet
from ..cache import SlotCache
from ..decoder import Decoder
from ..probe import Branches, Probe
from .forward import addresses_of
from .graphs import GraphKey, Graphs, Recorder, Recording, RecordingError, bucket, padded_tokens
from .memory import Device, Packed, Rooms

_LOGGER = logging.getLogger(__name__)
MAX_TOKENS = 256
"""Of more tokens a pass takes longer than the host needs to launch it."""
_MAX_ASKED = 1024
Tensors = tuple[torch.Tensor, ...]


def branches_for(decoder: Decoder) -> Branches | None:
    """Fused ones where they can run: found when something is probed first, for their kernels are built then."""
    if not runs_triton(decoder.device):
        return None
    from .fused import reason_against
    from .fused_probe import FusedBranches

    if reason_against(decoder) is not None:
        return None
    branches = FusedBranches(decoder)
    try:
        branches.prove()
    except Exception as error:
        _LOGGER.warning("%s is probed without fused kernels: %s", type(decoder.model).__name__, error)
        return None
    return branches


class Works:
    """The recordings of one runner's probes."""

    def __init__(self, device: Device, graphs: Graphs, decoder: Decoder) -> None:
        self._graphs, self.decoder = graphs, decoder
        self._buffers = functools.cache(functools.partial(_buffers, device))
        self._asked: set[GraphKey] = set()
        self._room = Rooms()
        self._is_refused = False

    @functools.cached_property
    def branches(self) -> Branches | None:
        return branches_for(self.decoder)

    def takes(self, num_tokens: int) -> bool:
        return not self._is_refused and num_tokens <= MAX_TOKENS

    def refuse(self, error: RecordingError) -> None:
        self._is_refused = True
        _LOGGER.info("%s is probed without recordings: %s", type(self.decoder.model).__name__, error)

    def run(
        self,
        work: Callable[..., Tensors],
        inputs: Sequence[torch.Tensor],
        cache: SlotCache,
        tokens: Sequence[int],
        first: int,
        row: int,
    ) -> Tensors:
        width, shapes = padded_tokens(len(tokens)), tuple(tuple(one.shape) for one in inputs)
        end = min(bucket(first + width), cache.num_slots)
        buffers, twin = self._buffers(width, shapes), cache.without_lease()
        header, padded, *numbers = buffers.tensors.values()
        buffers.write([row, first, len(tokens), 0, *tokens, *[0] * (width - len(tokens))])
        for place, one in enumerate(inputs):
            buffers.host[f"input {place}"][...] = one.numpy()
        buffers.send()

        def probed() -> Tensors:
            place = (padded, header[1:2], header[:1])
            probe = Probe(self.decoder, twin, *place, num_tokens=header[2:3], end=end, branches=self.branches)
            return work(probe, *numbers)

        def build(record: Recorder) -> tuple[Recording, Tensors]:
            return record(lambda: tuple(self._keep(*one) for one in enumerate(probed())), is_warm=True)

        key = GraphKey((work, shapes), None, 1, width, end, SkipSet(), (), addresses_of(cache, ()))
        if key not in self._asked:
            if len(self._asked) >= _MAX_ASKED:
                self._asked.clear()
            self._asked.add(key)
            return probed()
        recording, results = self._graphs.get(key, build)
        recording.replay()
        return results

    def _keep(self, place: int, value: torch.Tensor) -> torch.Tensor:
        """A copy outside of the recordings' memory."""
        kept = self._room(str(place), value.shape, value.dtype, value.device)
        kept.copy_(value)
        return kept


def _buffers(device: Device, width: int, shapes: Sequence[tuple[int, ...]]) -> Packed:
    """`header`: row, first position, tokens, 0; then the tokens and what else the work is given."""
    inputs = {f"input {place}": shape for place, shape in enumerate(shapes)}
    return Packed(device, {"header": (4,), "tokens": (width,), **inputs})


class RecordedProbe(Probe):
    """A probe whose works are recorded, unless they are too large or cannot be."""

    def __init__(self, works: Works, cache: SlotCache, tokens: Sequence[int], first: int, row: int) -> None:
        super().__init__(works.decoder, cache, tokens, first, row, branches=works.branches)
        self._works, self._asked_of = works, (cache, tokens, first, row)

    @torch.inference_mode()
    def record(self, work: Callable[..., Tensors], *inputs: torch.Tensor) -> Tensors:
        if self._works.takes(self.num_tokens):
            try:
                return self._works.run(work, inputs, *self._asked_of)
            except RecordingError as error:
                self._works.refuse(error)
        return super().record(work, *inputs)
