"""The kit a strategy is fitted with: an engine's model, the texts it wrote, a journal and a budget (fitting.Kit)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from time import monotonic
from typing import Any

import torch

from ..economics import LatencyFit
from ..engine.engine import Engine
from ..engine.state import State, TextSequence, prefill
from ..fitting import CalibrationPrompt, Condense
from ..models.pull import Progress
from ..profiles.journal import Journal
from ..profiles.profile import Artefact
from ..protocols import Probe, Runner
from ..strategies.base import PlainStrategy
from ..strategies.elimination import qualities, sample
from ..types import SkipSet
from .texts import Text, digest, probe_text, write_texts

_FEWER_TOKENS = 2
"""A fit inside a fit has texts of N times fewer tokens."""


@dataclass(frozen=True)
class Budget:
    """Seconds from now on."""

    seconds: float
    began: float = field(default_factory=lambda: monotonic())

    def left(self, share: float = 1.0) -> float:
        """Of the first `share` of it."""
        return share * self.seconds - (monotonic() - self.began)


class ScoredTexts:
    """The calibration texts as strategies are judged by them; read into caches when first asked for."""

    def __init__(self, runner: Runner, texts: Sequence[Text]) -> None:
        self._runner, self.texts = runner, texts
        self._matches: dict[SkipSet, float] = {SkipSet(): 1.0}

    @cached_property
    def probes(self) -> tuple[Probe, ...]:
        return tuple(probe_text(text, self._runner) for text in self.texts)

    def match(self, skip: SkipSet) -> float:
        """How often the sub-network makes the target's choice."""
        if skip not in self._matches:
            samples = [sample(probe) for probe in self.probes]
            self._matches[skip] = qualities(samples, skip.numbers)[0].match
        return self._matches[skip]

    def remember(self, matches: Mapping[SkipSet, float]) -> None:
        """What a fit has found anyway."""
        self._matches.update(matches)


@dataclass(frozen=True)
class Workshop:
    """What the kits of one calibration share. `journal(name, **question)`: where steps are kept as they are done."""

    engine: Engine
    latency: LatencyFit
    num_tokens: int
    journal: Callable[..., Journal]
    progress: Progress = lambda done, total, label: None

    def write(
        self, prompts: Sequence[CalibrationPrompt], num_tokens: int | None = None, name: str = "texts"
    ) -> ScoredTexts:
        """What the model says after them, `num_tokens` in all; each text is written once."""
        num_tokens = num_tokens or self.num_tokens
        journal = self.journal(name, texts=digest(prompts), tokens_of_texts=num_tokens)
        return ScoredTexts(self.engine.runner, write_texts(self.engine, prompts, num_tokens, journal, self.progress))


class EngineKit:
    """One fit. `is_out_of_time` once it was told so; `seconds` counts what earlier, interrupted runs took as well."""

    def __init__(
        self,
        workshop: Workshop,
        prompts: Sequence[CalibrationPrompt],
        texts: Callable[[], ScoredTexts],
        journal: Journal,
        deadline: float,
        label: str,
        known: Mapping[str, Any] | None = None,
    ) -> None:
        """`deadline`: seconds from now. `texts`: after the prompts, written when first asked for."""
        self._workshop, self.prompts, self._write = workshop, prompts, texts
        self._journal, self._label = journal, label
        self.known = known or {}
        self._began, self._deadline = monotonic(), monotonic() + deadline
        self._seconds_before = max((kept.values["seconds"] for kept in journal.done.values()), default=0.0)
        self._share = 0.0
        self.is_out_of_time = False

    @property
    def latency(self) -> LatencyFit:
        return self._workshop.latency

    @cached_property
    def texts(self) -> ScoredTexts:
        return self._write()

    @property
    def probes(self) -> Sequence[Probe]:
        return self.texts.probes

    def hidden(
        self, prompt: CalibrationPrompt, points: Sequence[str], condense: Condense
    ) -> Mapping[str, torch.Tensor]:
        runner, caught = self._workshop.engine.runner, _Caught(points, condense)
        state = State([TextSequence(0, list(prompt.tokens), 1)], runner.new_cache(1, len(prompt.tokens)))
        prefill(runner, state, caught)
        return caught.found

    def tokens_per_second(
        self, method: Mapping[str, Any], prompts: Sequence[CalibrationPrompt], num_tokens: int
    ) -> float:
        engine, recorded_before = self._workshop.engine, self._recording_seconds
        stats = [engine.generate(prompt.tokens, max_new_tokens=num_tokens, **method).stats for prompt in prompts]
        seconds = sum(one.decode_seconds for one in stats) - (self._recording_seconds - recorded_before)
        return sum(one.num_tokens for one in stats) / max(seconds, 1e-9)

    @property
    def _recording_seconds(self) -> float:
        graphs = getattr(self._workshop.engine.runner, "graphs", None)
        return float(getattr(graphs, "capture_seconds", 0.0))

    def among(self, prompts: Sequence[CalibrationPrompt], name: str, share: float) -> EngineKit:
        journal = self._workshop.journal(name, inside=self._label, prompts_inside=digest(prompts))
        seconds = share * (self._deadline - monotonic())
        num_tokens = max(1, self._workshop.num_tokens // _FEWER_TOKENS)

        def write() -> ScoredTexts:
            return self._workshop.write(prompts, num_tokens, f"texts of {name}")

        return EngineKit(self._workshop, prompts, write, journal, seconds, f"fitting {name}")

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
        self._workshop.progress(round(100 * self._share), 100, f"{self._label}, percent")


class _Caught(PlainStrategy):
    """Sees a prompt as a strategy would, and keeps it."""

    def __init__(self, points: Sequence[str], condense: Condense) -> None:
        self.prefill_needs, self._condense = tuple(points), condense
        self.found: Mapping[str, torch.Tensor] = {}

    def condense(self, captured: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return self._condense(captured)

    def begin(self, sequence_id: int, prefill: Mapping[str, torch.Tensor]) -> None:
        self.found = prefill

    def plan(self, sequence_id: int, context: Any) -> Any:
        raise AssertionError("nothing is generated")


def _name(number: int) -> str:
    """Of a step, in the order of the alphabet."""
    return f"{number:06d}"
