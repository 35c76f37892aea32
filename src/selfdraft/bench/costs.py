"""The speed that follows from what single passes cost: the bound.

A round drafts with so many passes and verifies with one; whatever else it does is overhead. So the costs of passes,
measured alone, and the rounds a method needed predict the least time it could have taken. A verification is priced as
a whole pass over a chain of its width; `early-exit`, which goes on behind its draft, may do better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..economics import seconds_of_width
from ..types import SkipSet, StepRecord


@dataclass(frozen=True)
class DraftKind:
    """What a drafted token's cost depends on. `vocabulary`: how many of the first tokens it proposes, None: all."""

    skip: SkipSet = SkipSet()
    vocabulary: int | None = None


@dataclass(frozen=True)
class Round:
    """What one round asks of the device. `num_draft_passes` is None where its drafts come from another model."""

    draft: DraftKind
    num_draft_passes: int | None
    width: int  # of the verification: the last committed token and the nodes of the draft


def round_of(step: StepRecord, drafter: str, vocabulary: int | None = None) -> Round:
    """`drafter`: the caller's, where the plan leaves it open; `vocabulary`: that of `self`. A lookup takes no pass."""
    name = step.plan.drafter or drafter
    num_steps = step.draft.num_draft_steps
    passes = num_steps if name == "self" or not num_steps else None if name == "model" else 0
    draft = DraftKind(step.plan.skip, vocabulary) if passes else DraftKind()
    return Round(draft, passes, 1 + len(step.draft.tokens))


@dataclass
class Costs:
    """Seconds of one pass by width with nothing skipped, and of one drafted token by kind.

    `is_recorded`: passes take the next width that was measured, as the runner pads them.
    """

    width_seconds: Mapping[int, float]
    draft_seconds: dict[DraftKind, float] = field(default_factory=dict)
    is_recorded: bool = False

    def verify_seconds(self, width: int) -> float:
        return seconds_of_width(self.width_seconds, width, self.is_recorded)

    def predict_seconds(self, rounds: Mapping[Round, int]) -> float | None:
        """The passes of these rounds and nothing else; None where some of them were not ours to measure."""
        seconds = 0.0
        for item, count in rounds.items():
            if item.num_draft_passes is None:
                return None
            draft = item.num_draft_passes * self.draft_seconds[item.draft] if item.num_draft_passes else 0.0
            seconds += count * (draft + self.verify_seconds(item.width))
        return seconds

    def predict_speedup(self, rounds: Mapping[Round, int], num_tokens: int) -> float | None:
        """Against as many passes of one token as there are tokens."""
        seconds = self.predict_seconds(rounds)
        return num_tokens * self.verify_seconds(1) / seconds if seconds else None


def draft_kinds(rounds: Iterable[Counter[Round]]) -> list[DraftKind]:
    """Those that some round drafted with."""
    found = {item.draft for counter in rounds for item in counter if item.num_draft_passes}
    return sorted(found, key=lambda draft: (str(draft.skip), draft.vocabulary or 0))


def weight_share(shares: Iterable[tuple[float, float]], skip: SkipSet) -> float:
    """What a draft pass reads of the weights; `shares`: of attention and MLP, layer by layer."""
    saved = sum(
        attention * (layer in skip.attention) + mlp * (layer in skip.mlp)
        for layer, (attention, mlp) in enumerate(shares)
    )
    return 1.0 - saved
