"""Ways that take turns, text by text: what became of each text is kept, so that intervals can be told."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...engine.engine import Engine
from ...profiles.profile import Profile
from ...types import Generation
from ..bootstrap import Pair, speed_up
from ..selection.sums import Prices
from ..selection.turns import Arm, Turns
from ..totals import ratio
from ..ways import OFF

_NUM_PLANS = 5
"""Plans of a way that the document names: of one that searches there are hundreds."""


@dataclass(frozen=True)
class TextFigures:
    """Of one text in one way; seconds are those of decoding. `capture`: of them, recording graphs."""

    domain: str
    num_tokens: int
    seconds: float
    optimise: float
    draft: float
    verify: float
    capture: float
    num_accepted: int
    num_draft_steps: int
    num_rounds: int
    verdict: str | None

    @classmethod
    def of(cls, domain: str, generation: Generation, capture_seconds: float, verdict: str | None) -> TextFigures:
        stats = generation.stats
        return cls(
            domain,
            stats.num_tokens,
            stats.decode_seconds,
            stats.optimise_seconds,
            stats.draft_seconds,
            stats.verify_seconds,
            capture_seconds,
            stats.num_accepted,
            stats.num_draft_steps,
            stats.num_rounds,
            verdict,
        )


def speedup(texts: Sequence[TextFigures], plain: Sequence[TextFigures], seed: int) -> dict[str, Any]:
    """Of the prompts on which both took some time; `low` to `high`: 95 %."""
    both = [(one, two) for one, two in zip(texts, plain, strict=True) if one.seconds > 0 and two.seconds > 0]
    found = speed_up([Pair(one.num_tokens, one.seconds, two.num_tokens, two.seconds) for one, two in both], seed)
    value, low, high = found or (None, None, None)
    return {"speedup": value, "low": low, "high": high, "num_prompts": len(both)}


def time_split(texts: Sequence[TextFigures]) -> dict[str, float | None]:
    """Where decoding spends its time, in shares of it. `other`: what stands between the passes."""
    seconds = sum(text.seconds for text in texts)
    parts = {name: sum(getattr(text, name) for text in texts) for name in ("optimise", "draft", "verify")}
    return {name: ratio(part, seconds) for name, part in {**parts, "other": seconds - sum(parts.values())}.items()}


class TextTurns(Turns):
    """`off` and the `methods` by name; `texts` of each way, in the order of the prompts."""

    def __init__(
        self,
        engine: Engine,
        profile: Profile,
        methods: Mapping[str, Mapping[str, Any]],
        prices: Prices,
        seed: int,
    ) -> None:
        super().__init__(engine, profile, methods, prices)
        self._seed = seed
        self.texts: dict[str, list[TextFigures]] = defaultdict(list)

    def arm(self, name: str) -> Arm:
        return next(arm for arm in self.arms if arm.name == name)

    def count(self, arm: Arm, domain: str, generation: Generation, capture_seconds: float, verdict: str | None) -> None:
        super().count(arm, domain, generation, capture_seconds, verdict)
        self.texts[arm.name].append(TextFigures.of(domain, generation, capture_seconds, verdict))

    def begin_anew(self) -> None:
        """As if nothing had been measured or learned; what was recorded stays."""
        for arm in self.arms:
            arm.engine.forget()
            arm.sums.clear()
            arm.differences = []
        self.texts.clear()
        self.num_measured = 0

    def speedup(self, name: str, is_wanted: Callable[[int], bool] = lambda number: True) -> dict[str, Any]:
        """Of one way, over the prompts with these numbers."""
        numbers = [number for number in range(self.num_measured) if is_wanted(number)]
        own, plain = ([self.texts[one][number] for number in numbers] for one in (name, OFF))
        return speedup(own, plain, self._seed)

    def speedup_on(self, name: str, domain: str) -> dict[str, Any]:
        return self.speedup(name, lambda number: self.texts[OFF][number].domain == domain)

    def rows(self) -> list[dict[str, Any]]:
        """With intervals and shares of time; few plans."""
        return [self._row(row) for row in super().rows()]

    def _row(self, row: dict[str, Any]) -> dict[str, Any]:
        plans = row["plans"]
        return {
            **row,
            "interval": self.speedup(row["name"]),
            "split": time_split(self.texts[row["name"]]),
            "plans": plans[:_NUM_PLANS],
            "num_plans": len(plans),
        }

    def text_rows(self) -> dict[str, list[dict[str, Any]]]:
        return {name: [asdict(text) for text in texts] for name, texts in self.texts.items()}


def is_different(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether some output of these ways is another than the plain one, by more than rounding."""
    return any(row["total"]["different"] for row in rows)
