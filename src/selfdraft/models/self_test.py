"""A decoder proves itself against its model: with nothing skipped it must give the model's own scores."""

from __future__ import annotations

import logging
from typing import Any

import torch

from ..errors import ModelError, SelfTestError
from .checks import relative_error, tolerance_of
from .placement import Placement

NUM_TOKENS = 12
_LOGGER = logging.getLogger(__name__)


@torch.inference_mode()
def self_test(decoder: Any) -> float:
    """The relative error after a prefill, one token and a chain."""
    model, family = decoder.model, decoder.family
    tokens = (torch.arange(NUM_TOKENS, device=decoder.device) * 7919 + 11)[None] % len(decoder.embedding)
    try:
        expected = model(tokens, use_cache=False).logits
    except RuntimeError as cause:
        raise ModelError(
            f"{type(model).__name__} cannot read a text by itself: {' '.join(str(cause).split())}. Bring it "
            "to one dtype as a whole, for example model.to(torch.bfloat16), or load it again"
        ) from cause
    error = relative_error(_scores_in_parts(decoder, tokens), expected)
    tolerance = tolerance_of(expected.dtype)
    if not error <= tolerance:
        raise SelfTestError(
            f"the decoder for family {family.name!r} does not reproduce {type(model).__name__}: relative "
            f"error {error:.2g}, allowed {tolerance:.2g} in {expected.dtype}. The model differs from its family (a "
            "custom forward, an adapter outside the layers, a newer transformers layout?): correct its row in "
            "selfdraft/models/families.py, or load the unmodified model"
        )
    return error


def proves(decoder: Any, what: str) -> bool:
    """Whether its scores are still the model's with what has just been put in; else it is told."""
    try:
        self_test(decoder)
    except SelfTestError:
        _LOGGER.warning("%s runs without %s: its scores would differ", type(decoder.model).__name__, what)
        return False
    return True


def _scores_in_parts(decoder: Any, tokens: torch.Tensor) -> torch.Tensor:
    cache, start, scores = decoder.new_cache(1, tokens.shape[1]), 0, []
    for width in (5, 1, NUM_TOKENS - 6):
        placement = Placement.chain([start], width, decoder.device)
        scores.append(decoder.forward(tokens[:, start : start + width], placement, cache).scores)
        start += width
    return torch.cat(scores, dim=1)
