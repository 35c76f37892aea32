"""The kit a strategy is fitted with: an engine's model, the texts it wrote, a journal and a budget (protocols.Kit)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from time import monotonic
from typing import Any

from ..profiles.journal import Journal
from ..profiles.profile import Artefact
from ..protocols import Probe, Runner
from ..strategies.elimination import qualities, sample
from ..types import LatencyFit, SkipSet
from .texts import Text, look_at


@dataclass(frozen=True)
class Budget:
    """Seconds from now on."""

    seconds: float
    began: float = field(default_factory=lambda: monotonic())

    def left(self, share: float = 1.0) -> float:
        """Of the first `share` of it."""
        return share * self.seconds - (monotonic() - self.began)


class Looks:
    """The calibration texts as strategies are judged by them; read into caches when first asked for."""

    def __init__(self, runner: Runner, texts: Sequence[Text]) -> None:
        self._runner, self.texts = runner, texts
        self._matches: dict[SkipSet, float] = {SkipSet(): 1.0}

    @cached_property
    def probes(self) -> tuple[Probe, ...]:
        return tuple(look_at(text, self._runner) for text in self.texts)

    def match(self, skip: SkipSet) -> float:
        """How often the sub-network makes the target's choice."""
        if skip not in self._matches:
            samples = [sample(probe) for probe in self.probes]
            self._matches[skip] = qualities(samples, skip.numbers)[0].match
        return self._matches[skip]

    def remember(self, matches: Mapping[SkipSet, float]) -> None:
        """What a fit has found anyway."""
        self._matches.update(matches)


class EngineKit:
    """One fit. `is_out_of_time` once it was told so; `seconds` counts what earlier, interrupted runs took as well."""

    def __init__(
        self,
        runner: Runner,
        latency: LatencyFit,
        looks: Looks,
        journal: Journal,
        deadline: float,
        progress: Callable[[int, int], None],
    ) -> None:
        """`deadline`: seconds from now. `progress` is told percents, of 100."""
        self._runner, self.latency, self._looks = runner, latency, looks
        self._journal, self._progress = journal, progress
        self._began, self._deadline = monotonic(), monotonic() + deadline
        self._seconds_before = max((kept.values["seconds"] for kept in journal.done.values()), default=0.0)
        self._share = 0.0
        self.is_out_of_time = False

    @property
    def num_layers(self) -> int:
        return self._runner.num_layers

    @property
    def probes(self) -> Sequence[Probe]:
        return self._looks.probes

    @property
    def done(self) -> Sequence[Mapping[str, Any]]:
        """Without gaps from the first on."""
        kept = self._journal.done
        found: list[Mapping[str, Any]] = []
        while (step := _name(len(found))) in kept:
            found.append(kept[step].values["found"])
        return found

    def keep(self, found: Mapping[str, Any]) -> None:
        self._journal.record(_name(len(self.done)), Artefact({"found": found, "seconds": self.seconds}))

    @property
    def seconds(self) -> float:
        return self._seconds_before + monotonic() - self._began

    def has_time(self) -> bool:
        self.is_out_of_time = monotonic() >= self._deadline
        return not self.is_out_of_time

    def progress(self, share: float) -> None:
        self._share = max(self._share, share)  # an estimate may take something back, a bar may not
        self._progress(round(100 * self._share), 100)


def _name(number: int) -> str:
    """Of a step, in the order of the alphabet."""
    return f"{number:06d}"
