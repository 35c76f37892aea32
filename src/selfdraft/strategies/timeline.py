"""What became of the search of `swift` while it went on, step by step and text by text: as it is kept, and read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from ..types import SkipSet, StepRecord
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


# ------------------------------------------------------------------------------------------------ read from a profile


class SearchStep(NamedTuple):
    """Candidates were scored."""

    step: int
    num_tokens: int  # generated until then
    matchness: float  # of the best of them
    best: float | None  # of the set in use after it
    ratio: float


@dataclass(frozen=True)
class FinishedText:
    begin: int  # tokens generated before it
    end: int
    seconds: float
    optimise_seconds: float
    plain_seconds: float
    matchness: float | None
    phase: str
    ratio: float

    @property
    def speed_up(self) -> float:
        return self.plain_seconds / self.seconds


@dataclass(frozen=True)
class KnownSearch:
    """Where the search stands and how it came there."""

    phase: str
    ratio: float
    step: int
    skip: SkipSet
    matchness: float | None
    snapshots: Mapping[int, SkipSet]
    steps: Sequence[SearchStep]
    texts: Sequence[FinishedText]

    @property
    def num_tokens(self) -> int:
        return max([0, *(step.num_tokens for step in self.steps), *(text.end for text in self.texts)])

    @property
    def optimise_share(self) -> float | None:
        """Of the seconds of finished texts."""
        seconds = sum(text.seconds for text in self.texts)
        return sum(text.optimise_seconds for text in self.texts) / seconds if seconds else None

    @property
    def overall(self) -> list[float]:
        """Speed-up up to the end of each text."""
        plain = itertools.accumulate(text.plain_seconds for text in self.texts)
        spent = itertools.accumulate(text.seconds for text in self.texts)
        return [before / after for before, after in zip(plain, spent, strict=True)]

    @property
    def in_use(self) -> list[tuple[int, float]]:
        """Tokens generated, and how well the set in use matches from there on: after steps and after texts."""
        changed = [(step.num_tokens, step.best) for step in self.steps if step.best is not None]
        told = [(text.end, text.matchness) for text in self.texts if text.matchness is not None]
        return sorted([*changed, *told], key=lambda point: point[0])

    def matchness_at(self, step: int) -> float | None:
        """Of the set in use after `step` steps."""
        found = [one.best for one in self.steps if one.step <= step]
        return found[-1] if found else None

    @property
    def ratios(self) -> list[tuple[int, float]]:
        """Tokens generated, and the ratio from there on: at the beginning and where it changed."""
        told = [(one.num_tokens, one.ratio) for one in self.steps] + [(text.end, text.ratio) for text in self.texts]
        told = sorted([*told, (self.num_tokens, self.ratio)], key=lambda point: point[0])
        return [point for place, point in enumerate(told) if not place or told[place - 1][1] != point[1]]

    @property
    def phases(self) -> list[tuple[int, int, str]]:
        """(first token, last token, phase), neighbours of one phase as one."""
        found: list[tuple[int, int, str]] = []
        for begin, end, phase in self._phases():
            if found and found[-1][2] == phase:
                begin = found.pop()[0]
            if end > begin:
                found.append((begin, end, phase))
        return found

    def _phases(self) -> Iterator[tuple[int, int, str]]:
        """A text is told to be in the phase it ended in; its steps tell where the phase began or ended."""
        before = "optimise"
        for text in self.texts:
            steps = [one.num_tokens for one in self.steps if text.begin <= one.num_tokens <= text.end]
            if text.phase == "optimise":
                change = min(steps, default=text.begin) if before != "optimise" else text.begin
                yield text.begin, change, before
            else:
                change = max(steps, default=text.begin) if before == "optimise" else text.begin
                yield text.begin, change, "optimise"
            yield change, text.end, text.phase
            before = text.phase
        last = self.texts[-1].end if self.texts else 0
        yield last, self.num_tokens, self.phase

    def check(self, num_layers: int) -> None:
        for skip in (self.skip, *self.snapshots.values()):
            skip.check(num_layers)


def read_search(values: Mapping[str, Any]) -> KnownSearch:
    """LookupError, TypeError, ValueError, AttributeError: it is damaged."""
    matchness, snapshots = values.get("matchness"), values["snapshots"]
    return KnownSearch(
        phase=str(values["phase"]),
        ratio=float(values["ratio"]),
        step=int(values["step"]),
        skip=SkipSet.parse(values["skip"]),
        matchness=None if matchness is None else float(matchness),
        snapshots={int(step): SkipSet.parse(snapshots[step]) for step in sorted(snapshots, key=int)},
        steps=[_step(one) for one in values["steps"]],
        texts=list(_texts(values["texts"])),
    )


def _step(kept: Mapping[str, Any]) -> SearchStep:
    best = None if kept["best"] is None else float(kept["best"])
    return SearchStep(int(kept["step"]), int(kept["num_tokens"]), float(kept["matchness"]), best, float(kept["ratio"]))


def _texts(kept: Sequence[Mapping[str, Any]]) -> Iterator[FinishedText]:
    end = 0
    for one in kept:
        begin, end = end, end + int(one["num_tokens"])
        seconds, optimise, plain = (float(one[name]) for name in ("seconds", "optimise_seconds", "plain_seconds"))
        if not seconds > 0:
            raise ValueError(f"a text took {seconds} seconds")
        matchness = None if one["matchness"] is None else float(one["matchness"])
        yield FinishedText(begin, end, seconds, optimise, plain, matchness, str(one["phase"]), float(one["ratio"]))
