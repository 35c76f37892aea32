"""Lemma 4.1 of KnapSpec (arXiv:2602.20217), why a close state drafts the same token, checked on a model's own states.

Let x be the state that the head reads, w_1, w_2, ... the head's rows, i the target's choice, xi the margin by which its
score leads. If x' is as long as x and

    cos(x, x') >= 1 - xi^2 / (2 |x|^2 max_j |w_i - w_j|^2)        (the premise)

then x' has the same choice (the conclusion). Any x' may be made as long as x: where the head has no bias, scores grow
by one factor and the choice stays. What a family does to its scores behind the head (dividing, softcapping) grows with
them, so it changes no choice either. Everything is computed in float64, of states and weights as the model has them;
what rounding may still do is taken off the margin, so that it can only spoil a premise, never a conclusion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import UnsupportedModelError
from ..models.checks import relative_error, tolerance_of
from ..models.decoder import Decoder
from ..models.eager import EagerRunner
from ..strategies.knapsack import Candidate, solve
from ..strategies.knapspec import items
from ..types import SkipSet
from .texts import Text, probe_text

_CHUNK_BYTES = 2**26
"""Of the head's rows in float64 and the scores by them, at a time."""
_STEPS = 10
"""The table's rows: so many parts of all sub-layers."""


@dataclass(frozen=True)
class Check:
    """What the lemma says about the states of some sub-networks, and what is so."""

    cosines: torch.Tensor  # [sub-networks, tokens]
    is_close: torch.Tensor  # [sub-networks, tokens] the premise holds
    is_same: torch.Tensor  # [sub-networks, tokens] the conclusion holds
    allowed: torch.Tensor  # [tokens] by how much the cosine may fall short of 1

    @property
    def violations(self) -> torch.Tensor:
        return self.is_close & ~self.is_same


def allowed_gap(margin: torch.Tensor, length: torch.Tensor, widest: torch.Tensor) -> torch.Tensor:
    """By how much the cosine may fall short of 1, by the lemma."""
    return margin.square() / (2 * length.square() * widest.square())


def check(target: torch.Tensor, others: torch.Tensor, head: torch.Tensor) -> Check:
    """Of states [tokens, hidden] and [sub-networks, tokens, hidden] as the head [vocabulary, hidden] reads them."""
    target, others = target.double(), others.double()
    length = target.norm(dim=-1)
    others = others * (length / others.norm(dim=-1).clamp(min=torch.finfo(torch.float64).tiny))[..., None]
    # Of unit vectors: half the squared distance is what the cosine lacks, without the rounding of 1 - cosine.
    gaps = ((others - target) / length[:, None]).square().sum(-1) / 2
    best, words = _choices(torch.cat((target[None], others)).flatten(0, 1), head)
    choices = words.view(len(others) + 1, len(target))
    margin, widest, longest = _rivals(target, best[: len(target)], choices[0], head)
    rounding = 4 * head.shape[1] * torch.finfo(torch.float64).eps * length * longest  # of two differences of scores
    margin = (margin - rounding).clamp(min=0)
    allowed = allowed_gap(margin, length, widest)
    return Check(1 - gaps, (gaps <= allowed) & (margin > 0), choices[1:] == choices[0], allowed)


def _choices(states: torch.Tensor, head: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The best score and its word, each [states]."""
    best = states.new_full((len(states),), -torch.inf)
    words = torch.zeros(len(states), dtype=torch.long, device=states.device)
    for start, rows in _parts(head, len(states)):
        found, places = (states @ rows.T).max(-1)
        words = torch.where(found > best, places + start, words)
        best = torch.maximum(best, found)
    return best, words


def _rivals(
    states: torch.Tensor, best: torch.Tensor, words: torch.Tensor, head: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """By how much the best word leads, how far the row furthest from its own is, how long the longest row is."""
    chosen = head[words].double()
    margin, furthest, longest = torch.full_like(best, torch.inf), torch.zeros_like(best), best.new_zeros(())
    for start, rows in _parts(head, len(states)):
        others = torch.arange(start, start + len(rows), device=words.device) != words[:, None]
        leads = (best[:, None] - states @ rows.T).where(others, torch.inf)
        margin = torch.minimum(margin, leads.amin(-1))
        squares = rows.square().sum(-1)
        furthest = torch.maximum(furthest, (squares - 2 * chosen @ rows.T).amax(-1) + chosen.square().sum(-1))
        longest = torch.maximum(longest, squares.max())
    return margin, furthest.clamp(min=0).sqrt(), longest.sqrt()


def _parts(head: torch.Tensor, num_states: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Some rows at a time, so that large vocabularies take no more memory than small ones."""
    size = max(1, _CHUNK_BYTES // (8 * (head.shape[1] + num_states)))
    for start in range(0, len(head), size):
        yield start, head[start : start + size].double()


# ------------------------------------------------------------------------------------------------ on a model's texts


@dataclass(frozen=True)
class Judged:
    """The sub-networks that the dynamic programme found behind one text, and what the lemma says about them."""

    candidates: Sequence[Candidate]
    check: Check


class Lemma:
    """Examines texts of one model. Sub-layers weigh 1 each; of every weight up to half there is one sub-network."""

    def __init__(self, model: Any) -> None:
        self._runner = EagerRunner(model)
        self._head = head_weight(self._runner.decoder)
        self.num_sublayers = 2 * self._runner.num_layers
        if self._runner.num_layers < 3:
            raise UnsupportedModelError(
                f"the model has {self._runner.num_layers} layers, and the first and the last always run: there is no "
                "sub-network to look at. Take a model of at least 3 layers"
            )

    @torch.inference_mode()
    def examine(self, text: Text) -> Judged:
        """Where each of the tokens behind the prompt was chosen."""
        runner = self._runner
        probe = probe_text(text, runner)
        candidates, states = solve(probe, items(runner.num_layers, (1, 1)), runner.num_layers, min_cosine=-1.0)
        normed = runner.decoder.final_norm(states.hidden)
        check_head(runner.decoder, normed[:1, :1], self._head)
        if normed.device.type == "mps":  # it has no float64
            normed = normed.cpu()
        return Judged(candidates[1:], check(normed[0], normed[1:], self._head.to(normed.device)))


def head_weight(decoder: Decoder) -> torch.Tensor:
    """[vocabulary, hidden], where the scores are the state times that and nothing else."""
    head, name = decoder.head, type(decoder.model).__name__
    if getattr(head, "bias", None) is not None:
        raise UnsupportedModelError(
            f"the head of {name} has a bias: its choice changes with the length of a state, and the lemma says nothing "
            "about it. Take a model whose head has none"
        )
    weight = getattr(head, "weight", None)
    if not isinstance(weight, torch.Tensor) or not weight.is_floating_point():
        raise UnsupportedModelError(
            f"the head of {name} has no weights that can be read as numbers (quantised?); load the model in float32, "
            "bfloat16 or float16"
        )
    return weight.detach()


def check_head(decoder: Decoder, normed: torch.Tensor, weight: torch.Tensor) -> None:
    """An adapter or a hook may do more than the weight says."""
    expected = torch.nn.functional.linear(normed, weight)
    if not relative_error(decoder.head(normed), expected) <= tolerance_of(normed.dtype):
        raise UnsupportedModelError(
            f"the head of {type(decoder.model).__name__} gives other scores than its weight times the state (an "
            "adapter?), and the lemma says nothing about it. Merge the adapter, or load the model without it"
        )


# ------------------------------------------------------------------------------------------------ the table


@dataclass(frozen=True)
class Row:
    """Sub-networks that skip more than the row before and at most `up_to` of all sub-layers; None: all of them."""

    up_to: float | None
    num_networks: int
    num_pairs: int  # of a sub-network and a token
    mean_cosine: float
    premise_share: float
    same_share: float
    num_violations: int


def table(judged: Sequence[Judged], num_sublayers: int) -> list[Row]:
    """By the share skipped, the row of all last."""
    steps = sorted({_step(one, num_sublayers) for text in judged for one in text.candidates})
    return [_row(judged, num_sublayers, step) for step in (*steps, None)]


def _step(candidate: Candidate, num_sublayers: int) -> int:
    return -(-_STEPS * candidate.weight // num_sublayers)


def _row(judged: Sequence[Judged], num_sublayers: int, step: int | None) -> Row:
    checks, num_networks = [], 0
    for text in judged:
        rows = [n for n, one in enumerate(text.candidates) if step is None or _step(one, num_sublayers) == step]
        num_networks += len(rows)
        found = text.check
        checks.append(torch.stack((found.cosines, found.is_close, found.is_same, found.violations))[:, rows].flatten(1))
    cosines, is_close, is_same, violations = torch.cat(checks, dim=1).cpu()
    return Row(
        up_to=None if step is None else step / _STEPS,
        num_networks=num_networks,
        num_pairs=len(cosines),
        mean_cosine=float(cosines.mean()),
        premise_share=float(is_close.mean()),
        same_share=float(is_same.mean()),
        num_violations=int(violations.sum()),
    )


def median_needed(judged: Sequence[Judged]) -> float:
    """The cosine that the premise asks for, of the middle token."""
    return float(1 - torch.cat([text.check.allowed for text in judged]).median())


@dataclass(frozen=True)
class Counterexample:
    """A premise that holds without its conclusion: something is wrong with the states, the head or this file."""

    text: int
    token: int  # of those written, from 0 on
    skip: str
    cosine: float
    needed: float


def counterexamples(judged: Sequence[Judged]) -> list[Counterexample]:
    return [
        Counterexample(
            number,
            token,
            str(SkipSet.of_numbers(text.candidates[row].skipped)),
            float(text.check.cosines[row, token]),
            float(1 - text.check.allowed[token]),
        )
        for number, text in enumerate(judged)
        for row, token in text.check.violations.nonzero().tolist()
    ]
