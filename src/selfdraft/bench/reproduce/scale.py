"""How much is done of what the papers did."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Scale:
    """`prompts`, `learned_prompts`: of each task, to measure with and to learn from; `tokens`: new ones of a text.

    `lesson_seconds`: what a method that learns beforehand may take for it; `lesson_tokens`: of text to learn from.
    """

    prompts: int
    learned_prompts: int
    tokens: int
    lesson_seconds: float
    lesson_tokens: int
    is_quick: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


QUICK = Scale(prompts=1, learned_prompts=1, tokens=24, lesson_seconds=12.0, lesson_tokens=96, is_quick=True)
WHOLE = Scale(prompts=8, learned_prompts=8, tokens=128, lesson_seconds=60.0, lesson_tokens=1024)
QUICK_SECONDS = 540.0
"""What a quick recipe takes at most, so that with loading it is less than ten minutes."""
