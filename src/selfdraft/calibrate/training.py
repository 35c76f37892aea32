"""Training the classifier of `disco`: from what a draft shows of a token to the chance that the target keeps it.

DISCO (arXiv:2405.04304, appendix D): a two-layer network over top-10 probabilities, entropy and position. The label of
a token is `match` (1 where it was the target's own) or, softer, `tv`: 1 - the total variation between both
distributions, which is the chance that rejection sampling keeps a token drawn from the draft.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

from ..lookahead.disco import NUM_FEATURES, Classifier, apply, join_features
from .traces import Trace

Label = Literal["match", "tv"]
LABELS: tuple[Label, ...] = ("match", "tv")
Arrays = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
NUM_HIDDEN = 32
_USUAL_THRESHOLD, _USUAL_MAX_TOKENS = 0.5, 12  # of a classifier that nobody has tuned
_MAX_EPOCHS, _PATIENCE, _CHECK_EVERY = 500, 50, 5
_LEARNING_RATE, _WEIGHT_DECAY = 0.01, 0.01
_TINY = 1e-6
_MIN_GAIN = 1e-5  # a smaller fall of the validation loss is none


@dataclass(frozen=True)
class Examples:
    """Drafted tokens: what was seen of them, what to learn of them, and what became of them."""

    rows: torch.Tensor  # [tokens, 12]
    labels: torch.Tensor  # [tokens] between 0 and 1
    is_kept: torch.Tensor  # [tokens] bool

    @classmethod
    def of(cls, traces: Sequence[Trace], label: Label, last_position: float) -> Examples:
        parts = [(torch.zeros(0, NUM_FEATURES), torch.zeros(0), torch.zeros(0, dtype=torch.bool))]
        for trace in traces:
            rows = join_features(trace.top_probs, trace.entropies, torch.arange(len(trace)), last_position)
            labels = trace.is_kept.float() if label == "match" else trace.overlaps.float().clamp(0, 1)
            parts.append((rows[trace.is_drafted], labels[trace.is_drafted], trace.is_kept[trace.is_drafted]))
        return cls(*map(torch.cat, zip(*parts, strict=True)))


def train(training: Sequence[Trace], validation: Sequence[Trace], label: Label = "match", seed: int = 0) -> Classifier:
    """A classifier with the usual threshold and maximum (tuning.py finds better ones); the same seed, the same one.

    Training ends when the loss on `validation` no longer falls, and goes back to where it was lowest.
    """
    last_position = float(max(map(len, training)) - 1)
    examples, checks = (Examples.of(traces, label, last_position) for traces in (training, validation))
    with torch.inference_mode(False), torch.enable_grad():
        arrays = _fit(examples, checks, seed)
    return Classifier(*arrays, last_position, _USUAL_THRESHOLD, _USUAL_MAX_TOKENS)


def _fit(examples: Examples, checks: Examples, seed: int) -> Arrays:
    """The network's arrays, for features as they come."""
    mean, spread = examples.rows.mean(0), examples.rows.std(0, correction=0)
    scale = torch.where(spread > _TINY, 1 / spread.clamp(min=_TINY), 0.0)  # what never varied says nothing when it does
    inputs, check_inputs = ((part.rows - mean) * scale for part in (examples, checks))
    labels, check_labels = examples.labels.clone(), checks.labels.clone()
    arrays = _initial(float(labels.mean()), seed)
    optimiser = torch.optim.AdamW(arrays, lr=_LEARNING_RATE, weight_decay=_WEIGHT_DECAY)
    best, lowest, best_epoch = [array.detach().clone() for array in arrays], float("inf"), 0
    for epoch in range(_MAX_EPOCHS):
        if epoch % _CHECK_EVERY == 0:
            with torch.no_grad():
                loss = float(_loss(check_inputs, check_labels, arrays))
            if loss < lowest - _MIN_GAIN:
                best, lowest, best_epoch = [array.detach().clone() for array in arrays], loss, epoch
            elif epoch - best_epoch >= _PATIENCE:
                break
        optimiser.zero_grad()
        _loss(inputs, labels, arrays).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    hidden_weight, hidden_bias, output_weight, output_bias = best
    folded = hidden_weight * scale
    return folded, hidden_bias - folded @ mean, output_weight, output_bias


def _initial(mean_label: float, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    arrays = [
        torch.randn(NUM_HIDDEN, NUM_FEATURES, generator=generator) * (2 / NUM_FEATURES) ** 0.5,
        torch.zeros(NUM_HIDDEN),
        torch.randn(NUM_HIDDEN, generator=generator) * NUM_HIDDEN**-0.5,
        torch.logit(torch.tensor(min(max(mean_label, 0.01), 0.99))),
    ]
    return [array.requires_grad_() for array in arrays]


def _loss(inputs: torch.Tensor, labels: torch.Tensor, arrays: Sequence[torch.Tensor]) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(apply(inputs, *arrays), labels)


# Of one text: twice the tokens that were rightly said to be kept; tokens said to be kept and tokens kept, together.
Hits = tuple[int, int]


def hits(predicted: torch.Tensor, is_kept: torch.Tensor) -> Hits:
    predicted, is_kept = predicted.bool(), is_kept.bool()
    return 2 * int((predicted & is_kept).sum()), int(predicted.sum()) + int(is_kept.sum())


def f1(texts: Iterable[Hits]) -> float:
    """The harmonic mean of precision and recall; 0 where nothing is right."""
    right, said = map(sum, zip((0, 0), *texts, strict=True))
    return right / max(1, said)


def classifier_hits(classifier: Classifier, trace: Trace, threshold: float | None = None) -> Hits:
    """At its own threshold unless told."""
    examples = Examples.of([trace], "match", classifier.last_position)
    chances = classifier.logits(examples.rows).sigmoid()
    return hits(chances >= (classifier.threshold if threshold is None else threshold), examples.is_kept)


def static_hits(trace: Trace, num_tokens: int) -> Hits:
    """Of the rule that calls the first `num_tokens` of every round kept, in rounds that end with a refused token."""
    return hits(oracle_depths(trace)[trace.is_drafted] <= num_tokens, trace.is_kept[trace.is_drafted])


def oracle_depths(trace: Trace) -> torch.Tensor:
    """[tokens] the place of each token in its round, from 1, if every round drafts to its first refused token."""
    places = torch.arange(len(trace))
    is_last = ~(trace.is_drafted & trace.is_kept)
    last = torch.where(is_last, places, -1).cummax(0).values
    before = torch.cat((torch.tensor([-1]), last[:-1]))
    return places - before
