"""`swift` on a stream of one domain: what it gains while it searches and behind, and where the time goes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...calibrate.kit import Looks
from ...calibrate.texts import Text
from ...types import SkipSet
from ..pace import Pace
from ..selection.turns import Arm
from ..ways import OFF
from .bench import Bench
from .names import swift_stream
from .prompts import Prompts
from .turns import TextTurns

NUM_FIRST, NUM_LAST = 10, 50
MAX_STEPS = 400
"""Of a search, that the document shows."""
NUM_HELD_OUT = 8
"""Texts that the last set is judged by."""
_STATE = ("phase", "step", "ratio", "matchness", "skip", "snapshots")
_NOW = ("phase", "step", "ratio", "matchness", "skip")


@dataclass
class SwiftStream:
    """One run; `figures` at any time."""

    bench: Bench
    prompts: Prompts
    turns: TextTurns = field(init=False)
    timeline: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    held_out: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        profile = replace(self.bench.school.profile, artefacts={})
        self.turns = self.bench.turns(profile, swift_stream())

    def run(self, pace: Pace) -> None:
        bench = self.bench
        tokens = bench.encode(self.prompts.stream)
        bench.warm_up(self.turns, self.prompts.stream_kept_apart, tokens)
        for prompt, known in pace.each(list(zip(self.prompts.stream, tokens, strict=True)), "prompts of the stream"):
            self.turns.measure(prompt.id, prompt.domain, known, bench.max_new_tokens)
            for arm in self._searching:
                state = _state(arm)
                self.timeline[arm.name].append({name: state.get(name) for name in _NOW})
            bench.save()
        self._judge()

    @property
    def _searching(self) -> list[Arm]:
        return [arm for arm in self.turns.arms if _strategy(arm).learns_online]

    def _judge(self) -> None:
        """The last sets on texts behind prompts that are not in the stream."""
        texts = self.bench.plain_texts(self.prompts.stream_kept_apart[:NUM_HELD_OUT])
        looks = Looks(self.bench.engine.runner, texts)
        sets = {arm.name: _last_set(arm) for arm in self.turns.arms if arm.name != OFF}
        self.held_out = {
            "num_texts": len(texts),
            "num_tokens": sum(text.num_generated for text in texts),
            "match": {name: _match(looks, texts, skip) for name, skip in sets.items()},
            "skip": {name: None if skip is None else str(skip) for name, skip in sets.items()},
        }

    @property
    def is_complete(self) -> bool:
        return self.turns.num_measured == len(self.prompts.stream) and self.held_out is not None

    def figures(self) -> dict[str, Any]:
        turns, count = self.turns, self.turns.num_measured
        num_first, num_last = min(NUM_FIRST, count), min(NUM_LAST, count // 2)
        rows = [
            {
                **row,
                "first": turns.speedup(row["name"], lambda number: number < num_first),
                "last": turns.speedup(row["name"], lambda number: number >= count - num_last),
            }
            for row in turns.rows()
        ]
        return {
            "domain": self.prompts.stream_domain,
            "num_prompts": count,
            "is_complete": self.is_complete,
            "ways": rows,
            "texts": turns.text_rows(),
            "timeline": dict(self.timeline),
            "states": {arm.name: shown_state(_state(arm)) for arm in self._searching},
            "held_out": self.held_out,
        }


def _strategy(arm: Arm) -> Any:
    return arm.engine.method(**arm.method).strategy


def _state(arm: Arm) -> Mapping[str, Any]:
    found: Mapping[str, Any] = _strategy(arm).state()
    return found


def _last_set(arm: Arm) -> SkipSet | None:
    strategy = _strategy(arm)
    if strategy.learns_online:
        return SkipSet.parse(strategy.state()["skip"])
    return strategy.known_plans[0].skip if strategy.known_plans else None


def _match(looks: Looks, texts: Sequence[Text], skip: SkipSet | None) -> float | None:
    return looks.match(skip) if texts and skip is not None else None


def shown_state(state: Mapping[str, Any]) -> dict[str, Any]:
    steps = list(state.get("steps", ()))
    return {**{name: state.get(name) for name in _STATE}, "num_steps": len(steps), "steps": thinned(steps)}


def thinned(steps: Sequence[Mapping[str, Any]], most: int = MAX_STEPS) -> list[Mapping[str, Any]]:
    """Evenly, the first and the last among them; what was best when it was tried stays, as far as there is room."""
    if len(steps) <= most:
        return list(steps)
    kept = {number for number, step in enumerate(steps) if step.get("is_best")}
    kept = set(sorted(kept)[-most // 2 :])
    room = most - len(kept)
    kept |= {round(place * (len(steps) - 1) / (room - 1)) for place in range(room)}
    return [steps[number] for number in sorted(kept)]
