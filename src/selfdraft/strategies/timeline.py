"""What became of a search while it went on: step by step, and text by text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..types import StepRecord
from .swift_search import Optimisation

_MAX_ROWS = 4096
"""Of each kind; the first ones stay."""


@dataclass
class TextSums:
    num_tokens: int = 0
    seconds: float = 0.0
    optimise_seconds: float = 0.0
    plain_seconds: float = 0.0


@dataclass
class Timeline:
    """Rows for the profile: `steps` of the search, and finished `texts`, with what plain decoding would have taken."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    texts: list[dict[str, Any]] = field(default_factory=list)
    num_tokens: int = 0
    seconds: float = 0.0
    _open: dict[int, TextSums] = field(default_factory=dict)

    def begin(self, sequence_id: int) -> None:
        self._open[sequence_id] = TextSums()

    def observe(self, step: StepRecord, plain_seconds: float) -> None:
        """`plain_seconds`: what plain decoding takes for one token there. Texts of a batch share a round's seconds."""
        text, num_tokens, num_texts = self._open[step.sequence_id], len(step.verdict.tokens), len(self._open)
        seconds = (step.optimise_seconds + step.draft_seconds + step.verify_seconds) / num_texts
        text.num_tokens += num_tokens
        text.seconds += seconds
        text.optimise_seconds += step.optimise_seconds / num_texts
        text.plain_seconds += num_tokens * plain_seconds
        self.num_tokens += num_tokens
        self.seconds += seconds

    def add_step(self, search: Optimisation, matchness: float, is_new: bool) -> None:
        """`matchness`: of the best candidate."""
        if len(self.steps) < _MAX_ROWS:
            row = {"step": search.step, "num_tokens": self.num_tokens, "seconds": self.seconds, "matchness": matchness}
            self.steps.append({**row, "best": search.matchness, "ratio": search.ratio, "is_best": is_new})

    def end(self, sequence_id: int, search: Optimisation) -> None:
        text = self._open.pop(sequence_id, None)
        if text is not None and text.num_tokens and len(self.texts) < _MAX_ROWS:
            found = {"matchness": search.matchness, "phase": search.phase, "ratio": search.ratio}
            self.texts.append({**asdict(text), **found})

    def to_json(self) -> dict[str, Any]:
        return {"steps": self.steps, "texts": self.texts}

    @classmethod
    def of_json(cls, saved: Mapping[str, Any]) -> Timeline:
        texts = list(saved["texts"])
        num_tokens, seconds = (sum(text[name] for text in texts) for name in ("num_tokens", "seconds"))
        return cls(list(saved["steps"]), texts, num_tokens, seconds)
