"""`Generation.explain()`: what each round did, what was expected of it, and why; as values and as a few lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

NAMES: Mapping[str, str] = {"off": "plain", "copy": "copied", "skip": "drafted"}
"""What a round does, in words; `skip`: by the model without some sub-layers, or whatever else drafts."""
COPYING = ("lookup", "ngram-pool")
"""Drafters that copy."""


@dataclass(frozen=True)
class Done:
    """Rounds of one kind; what was expected of them is None where nobody expected anything."""

    kind: str
    num_rounds: int
    num_tokens: int
    seconds: float
    expected_tokens: float | None = None
    expected_seconds: float | None = None

    @property
    def line(self) -> str:
        count = self.num_rounds
        tokens, each = self.num_tokens / count, 1000 * self.seconds / count
        if self.expected_tokens is None or self.expected_seconds is None:
            return f"{NAMES[self.kind]}: {count} rounds of {tokens:.2f} tokens in {each:.3g} ms"
        expected = f"expected {self.expected_tokens / count:.2f} in {1000 * self.expected_seconds / count:.3g} ms"
        return f"{NAMES[self.kind]}: {count} rounds of {tokens:.2f} tokens in {each:.3g} ms ({expected})"


@dataclass(frozen=True)
class Explanation:
    """`plain_seconds`: of a plain round at the time, as far as known; `reasons`: what the strategy has to say.

    `rounds`: of each its kind, tokens drafted and emitted, and seconds.
    """

    done: tuple[Done, ...]
    rounds: tuple[tuple[str, int, int, float], ...]
    plain_seconds: float | None = None
    reasons: tuple[str, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(one.num_tokens for one in self.done)

    @property
    def seconds(self) -> float:
        return sum(one.seconds for one in self.done)

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds if self.seconds else 0.0

    @property
    def expected_tokens_per_second(self) -> float | None:
        """As the choices promised; None: nobody expected anything."""
        tokens, seconds = ([one.expected_tokens for one in self.done], [one.expected_seconds for one in self.done])
        known = sum(one or 0.0 for one in seconds)
        return None if None in (*tokens, *seconds) or not known else sum(one or 0.0 for one in tokens) / known

    @property
    def lines(self) -> tuple[str, ...]:
        rounds = sum(one.num_rounds for one in self.done)
        whole = f"{self.num_tokens} tokens in {rounds} rounds, {self.tokens_per_second:.1f} tokens/s"
        if self.expected_tokens_per_second is not None:
            whole += f" (expected {self.expected_tokens_per_second:.1f})"
        if self.plain_seconds:
            whole += f"; plain rounds here: {1 / self.plain_seconds:.1f} tokens/s"
        return (whole, *(one.line for one in self.done), *self.reasons)

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def to_dict(self) -> dict[str, Any]:
        """For `json.dumps`."""
        speeds = {name: getattr(self, name) for name in ("tokens_per_second", "expected_tokens_per_second")}
        own = {"plain_seconds": self.plain_seconds, "reasons": list(self.reasons), **speeds}
        return {**own, "done": [asdict(one) for one in self.done], "rounds": [list(one) for one in self.rounds]}


def explain(generation: Any) -> Explanation:
    """Of a `types.Generation`."""
    report = generation.report
    rounds = tuple(_round(step) for step in generation.steps)
    told: Mapping[str, Mapping[str, float]] = report.get("rounds", {})
    done = tuple(one for kind in NAMES if (one := _done(kind, rounds, told.get(kind, {}))))
    return Explanation(done, rounds, report.get("plain_seconds"), tuple(report.get("reasons", ())))


def kind_of(step: Any) -> str:
    """Of a `types.StepRecord`: one of `NAMES`."""
    return "off" if not step.draft.tokens else "copy" if step.plan.drafter in COPYING else "skip"


def _round(step: Any) -> tuple[str, int, int, float]:
    seconds = step.draft_seconds + step.verify_seconds
    return kind_of(step), len(step.draft.tokens), len(step.verdict.tokens), seconds


def _done(kind: str, rounds: Sequence[tuple[str, int, int, float]], told: Mapping[str, float]) -> Done | None:
    own = [one for one in rounds if one[0] == kind]
    if not own:
        return None
    expected = (told.get("expected_tokens"), told.get("expected_seconds"))
    return Done(kind, len(own), sum(one[2] for one in own), sum(one[3] for one in own), *expected)
