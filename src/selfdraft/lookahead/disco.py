"""`disco`: a small classifier decides after each drafted token whether to draft another (arXiv:2405.04304).

DISCO (dynamic speculation lookahead optimization): a feed-forward network reads the draft's ten largest probabilities,
their entropy and the position in the generated text; drafting goes on while what it says, C_i, is at least a threshold,
up to a maximum. The classifier is trained for one model and one drafter by `selfdraft calibrate --lookahead disco`,
which also tunes both numbers on the latency of other prompts; the profile keeps it.

What differs from the paper, or is not said there:
- the label is whether the target says the token (appendix D); section 4 has the total variation (`--label tv`);
- the entropy is that of the whole distribution (the formula), not of the ten (appendix D may mean that);
- of both numbers the most promising are found by replay, and the clock decides among a few; the paper times all;
- features are the draft's alone (appendix D names those of target tokens, too), before temperature; texts to learn from
  are greedy;
- the maximum is at most 15 unless `--max-tokens` says more; positions later than any trained on count as the last;
- two layers of 32 units.
"""

from __future__ import annotations

import logging
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from ..drafted import DraftStats
from ..errors import ProfileError
from ..kernels.top import runs_triton
from ..options import setting
from ..protocols import DraftedBy, Knowledge
from ..registry import find
from .base import PlainLookahead
from .learned import Learned

NUM_FEATURES = DraftStats.NUM_TOP + 2
ARRAYS = ("hidden_weight", "hidden_bias", "output_weight", "output_bias")
_LOGGER = logging.getLogger(__name__)


def artefact_name(drafter: str) -> str:
    """What a profile calls the classifier for drafts of this kind."""
    return f"disco-{drafter}"


def features(stats: DraftStats, last_position: float) -> torch.Tensor:
    return join_features(stats.top_probs, stats.entropy, stats.index, last_position)


def join_features(
    top_probs: torch.Tensor, entropy: torch.Tensor, index: torch.Tensor, last_position: float
) -> torch.Tensor:
    """[rows, 12]: top-10 probabilities, entropy, position. Positions beyond those trained on count as the last one."""
    position = index.clamp(max=last_position)
    return torch.cat((top_probs, entropy[:, None], position[:, None]), dim=-1)


def apply(
    rows: torch.Tensor,
    hidden_weight: torch.Tensor,
    hidden_bias: torch.Tensor,
    output_weight: torch.Tensor,
    output_bias: torch.Tensor,
) -> torch.Tensor:
    """The network: [rows, 12] -> logits [rows]."""
    hidden = torch.relu(torch.nn.functional.linear(rows, hidden_weight, hidden_bias))
    return torch.addmv(output_bias, hidden, output_weight)


@dataclass(frozen=True)
class Classifier:
    """Two layers over raw features. `threshold` and `max_tokens` are what validation found best."""

    hidden_weight: torch.Tensor  # [hidden, 12]
    hidden_bias: torch.Tensor  # [hidden]
    output_weight: torch.Tensor  # [hidden]
    output_bias: torch.Tensor  # []
    last_position: float
    threshold: float
    max_tokens: int

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        return apply(rows, *self.arrays().values())

    def arrays(self) -> dict[str, torch.Tensor]:
        return {name: getattr(self, name) for name in ARRAYS}

    def values(self) -> dict[str, Any]:
        return {"last_position": self.last_position, "threshold": self.threshold, "max_tokens": self.max_tokens}

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Classifier:
        """LookupError, TypeError, ValueError: it is none."""
        arrays = {name: torch.as_tensor(found[name], dtype=torch.float32) for name in ARRAYS}
        last_position, threshold, max_tokens = (found[name] for name in ("last_position", "threshold", "max_tokens"))
        num_hidden = len(arrays["hidden_bias"])
        shapes = [tuple(arrays[name].shape) for name in ARRAYS]
        if shapes != [(num_hidden, NUM_FEATURES), (num_hidden,), (num_hidden,), ()]:
            raise ValueError(f"its arrays have the shapes {shapes}")
        if not all(bool(array.isfinite().all()) for array in arrays.values()):
            raise ValueError("its arrays hold values that are not numbers")
        if not (0 <= threshold <= 1 and last_position >= 0 and isinstance(max_tokens, int) and max_tokens >= 1):
            raise ValueError(f"its threshold {threshold!r} or its maximum {max_tokens!r} is out of range")
        return cls(**arrays, last_position=last_position, threshold=threshold, max_tokens=max_tokens)


class Disco(PlainLookahead):
    reads_distribution = True

    @dataclass(frozen=True)
    class Options:
        threshold: float = setting(0.0, "of the classifier, to go on; 0: as it was tuned", minimum=0.0, maximum=1.0)
        max_tokens: int = setting(0, "never draft more tokens than this in a round; 0: as it was tuned", minimum=0)

    def __init__(self, options: Options, knowledge: Knowledge, drafted_by: DraftedBy) -> None:
        self._use(options, read_classifier(knowledge, drafted_by))

    @classmethod
    def of(cls, classifier: Classifier, options: Options | None = None) -> Disco:
        """With a classifier that no profile keeps."""
        made = cls.__new__(cls)
        made._use(options or cls.Options(), classifier)
        return made

    def _use(self, options: Options, classifier: Classifier) -> None:
        self.options, self.classifier = options, classifier
        self.max_tokens = options.max_tokens or classifier.max_tokens
        threshold = options.threshold or classifier.threshold
        self._bar = math.log(threshold) - math.log1p(-threshold) if 0 < threshold < 1 else (threshold - 0.5) * math.inf
        self._arrays = [Learned(array.cpu().numpy()) for array in classifier.arrays().values()]

    def wants_more(self, stats: DraftStats) -> torch.Tensor:
        if stats.scores is not None and runs_triton(stats.scores.device):
            from ..kernels.stop_rules import by_classifier

            network = [array.on(stats.scores.device) for array in self._arrays]
            limits = (self.classifier.last_position, self._bar, self.max_tokens)
            return by_classifier(stats.top_probs, stats.entropy, stats.index, stats.depth, network, *limits)
        return (self.logits(stats) >= self._bar) & (stats.depth < self.max_tokens)

    def logits(self, stats: DraftStats) -> torch.Tensor:
        rows = features(stats, self.classifier.last_position)
        return apply(rows, *(array.on(rows.device) for array in self._arrays))


# ------------------------------------------------------------------------------------------------ in the profile


def read_classifier(knowledge: Knowledge, drafted_by: DraftedBy) -> Classifier:
    """The one for these drafts; a ProfileError names the command that trains it where there is none that can be used.

    A classifier that knows other skip sets may still be a fair judge, so that is a warning.
    """
    drafter, command = drafted_by.drafter, train_command(knowledge, drafted_by)
    found = knowledge.artefact(artefact_name(drafter), f"the lookahead 'disco' with the drafter {drafter!r}", command)
    try:
        classifier = Classifier.read(found)
        trained_for = (str(found["drafter"]), str(found.get("source", "")))
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise ProfileError(
            f"the classifier of the lookahead 'disco' cannot be used ({type(error).__name__}: {error}). "
            f"Train it again with: {command}"
        ) from error
    if found.get("fingerprint", "") not in ("", knowledge.fingerprint()):
        raise ProfileError(
            f"the classifier of the lookahead 'disco' was trained for another model ({found['fingerprint']}). "
            f"Train one with: {command}"
        )
    asked_for = (drafter, find("drafter", drafter).draft_model(drafted_by.drafter_options))
    if trained_for[0] != drafter or (all((trained_for[1], asked_for[1])) and trained_for[1] != asked_for[1]):
        before, now = (f"{name!r} ({source})" if source else repr(name) for name, source in (trained_for, asked_for))
        raise ProfileError(
            f"the classifier of the lookahead 'disco' was trained for the drafter {before}, not for {now}. "
            f"Train one with: {command}"
        )
    skipped = (drafted_by.strategy, repr(drafted_by.strategy_options))
    trained_with = (found.get("strategy"), found.get("strategy_options", skipped[1]))
    if trained_with != skipped:
        message = "disco was trained with %s %s, not with %s %s; a better one: %s"
        _LOGGER.warning(message, *trained_with, *skipped, command)
    return classifier


def train_command(knowledge: Knowledge, drafted_by: DraftedBy) -> str:
    """What trains a classifier for these drafts: their settings are named where they are not the defaults."""
    drafts = f"--strategy {drafted_by.strategy} --drafter {drafted_by.drafter}"
    parts = [f"{knowledge.command('calibrate')} --lookahead disco {drafts}"]
    by_method = {
        drafted_by.strategy: drafted_by.strategy_options,
        drafted_by.drafter: drafted_by.drafter_options,
    }
    for method, options in by_method.items():
        for item in fields(options):
            value = getattr(options, item.name)
            if value != item.default and isinstance(value, str | int | float):
                text = str(value).lower() if isinstance(value, bool) else value
                parts += ["--set", shlex.quote(f"{method}.{item.name}={text}")]
    return " ".join(parts)
