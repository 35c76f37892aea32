"""The best tokens of a distribution: Triton's kernel where it runs, torch everywhere else."""

from __future__ import annotations

import logging
from functools import cache
from importlib.util import find_spec

import torch

from ..drafted import Outline
from ..passes import ChoiceKind, Columns, Drawn
from . import choose_reference, reject_reference

_LOGGER = logging.getLogger(__name__)


def top(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """[rows, vocabulary] -> values and tokens [rows, count], best first; the softmax's peak [rows] if it came along."""
    count = min(count, scores.shape[-1])
    if runs_triton(scores.device):
        from .rank import rank

        return rank(scores, count)
    if count == 1:
        best = scores.max(-1, keepdim=True)
        return best.values, best.indices, None
    values, tokens = scores.topk(count, dim=-1)
    return values, tokens, None


def distribution(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Outline]:
    """As `top`, always with the peak, and with the softmax's outline."""
    if runs_triton(scores.device):
        from .rank import rank_and_outline

        ranked, outline = rank_and_outline(scores, min(count, scores.shape[-1]))
        return *ranked, outline
    values, tokens, _ = top(scores, count)
    outline = Outline.of(scores)
    return values, tokens, outline.top_probs[:, 0], outline


def processed(scores: torch.Tensor, columns: Columns, kind: ChoiceKind) -> torch.Tensor:
    """Raw scores [lines, vocabulary] after the rules."""
    if not runs_triton(scores.device):
        return choose_reference.processed(scores, columns, kind)
    from . import choose

    return choose.processed(scores, columns, kind)


def draw(scores: torch.Tensor, columns: Columns, kind: ChoiceKind, count: int) -> Drawn:
    """The winners [lines, count] of scores after the rules."""
    count = min(count, scores.shape[-1])
    if not runs_triton(scores.device):
        return choose_reference.draw(scores, columns, kind, count)
    from . import choose

    return choose.draw(scores, columns, kind, count)


def reject(scores: torch.Tensor, drawn_from: torch.Tensor, columns: Columns, kind: ChoiceKind) -> torch.Tensor:
    """What is kept of each row's draft: its number of columns, then these columns; in the end the target's last word.

    `scores` [lines, vocabulary] and `drawn_from` [rows, depths, vocabulary] are those after the rules. Returns
    [rows, 1 + width].
    """
    if not runs_triton(scores.device):
        return reject_reference.reject(scores, drawn_from, columns, kind)
    from .reject import reject

    return reject(scores, drawn_from, columns, kind)


def logprobs(scores: torch.Tensor, tokens: torch.Tensor, count: int) -> torch.Tensor:
    """By the softmax of scores [n, vocabulary]: of `tokens` [n], of the `count` best, then which these are.

    Returns [n, 1 + 2 count] in float64, which holds both.
    """
    count = min(count, scores.shape[-1])
    values, best, peak = top(scores, max(count, 1))
    values = values.float()
    total = scores.float().logsumexp(-1, keepdim=True) if peak is None else values[:, :1] - peak.log()[:, None]
    own = scores.gather(1, tokens[:, None]).float()
    told = torch.cat((own, values[:, :count]), -1) - total
    return torch.cat((told.double(), best[:, :count].double()), -1)


def said(verdicts: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """[rows, width] what `reject` says after each column of its `tokens` that it kept, after the others anything."""
    num_kept, kept, last = verdicts.tensor_split((1, tokens.shape[1]), dim=1)
    columns = torch.nn.functional.pad(kept, (1, 0))  # of each emitted token, the one it stands after
    place = torch.arange(tokens.shape[1], device=tokens.device)
    emitted = torch.where(place < num_kept, tokens.gather(1, columns).roll(-1, 1), last)
    spare = torch.where(place <= num_kept, columns, tokens.shape[1])
    return tokens.new_zeros(len(tokens), tokens.shape[1] + 1).scatter(1, spare, emitted)[:, :-1]


@cache
def runs_triton(device: torch.device) -> bool:
    """Whether kernels can be built and run for this device; tried once."""
    if device.type != "cuda" or find_spec("triton") is None:
        return False
    try:
        from .rank import rank

        return int(rank(torch.arange(8.0, device=device)[None], 1)[1]) == 7
    except Exception as error:
        _LOGGER.warning("Triton does not run on %s, so its kernels are not used: %s", device, error)
        return False
