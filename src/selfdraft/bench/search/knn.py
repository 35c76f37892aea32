"""`knn` on several domains: what was learned, routing, the sets, the matrix and mixed streams."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ...calibrate.kit import Workshop
from ...profiles.store import Store
from ..pace import Pace
from ..selection.calibration import journal
from ..streams import RATIOS
from . import routing
from .bench import Bench
from .learning import Lesson
from .matrix import Matrix
from .mixed import MixedStreams
from .names import FIRST, KNN, MIXED, PRUNE, SSD_F, SSD_M, draft_verify, knn
from .prompts import Prompts
from .sets import DomainSet, overlaps, sets_of

_SHARE_OF_MATRIX = 0.3
"""Of the time left: the streams have more ways and more prompts."""


@dataclass
class KnnDomains:
    """One run; `figures` at any time."""

    bench: Bench
    prompts: Prompts
    fit_seconds: float
    ratios: Sequence[float] = RATIOS
    mixed_length: int | None = None
    routed: dict[str, Any] | None = None
    sets: list[DomainSet] | None = None
    matrix: Matrix | None = None
    streams: MixedStreams | None = None
    _matrix_figures: dict[str, Any] | None = None  # once it has ended

    def run(self, pace: Pace) -> None:
        for lesson in self._lessons():
            self.bench.school.learn(lesson)
            self.bench.save()
        self._route()
        knowledge = self.bench.school.profile.artefacts[KNN].content
        self.sets = sets_of(knowledge, self.bench.school.latency)
        self.bench.save()
        self.matrix = Matrix(self.bench, self.prompts, self.sets)
        self.matrix.run(pace.share(_SHARE_OF_MATRIX))
        self._matrix_figures = self.matrix.figures()
        if pace.is_late:
            self.bench.say("time is up before the mixed streams")
            return
        self.streams = MixedStreams(self.bench, self.prompts, self.ratios, self.mixed_length)
        self.streams.run(pace)

    def _lessons(self) -> list[Lesson]:
        methods = {PRUNE: {"strategy": PRUNE}, SSD_F: draft_verify(FIRST), SSD_M: draft_verify(MIXED), KNN: knn()}
        prompts, num_tokens = self.prompts.mixed_kept_apart, self.bench.learned_tokens
        return [Lesson(name, method, prompts, self.fit_seconds, num_tokens) for name, method in methods.items()]

    def _route(self) -> None:
        """Every measured prompt, and those of domains that nothing was learned from."""
        bench, engine = self.bench, self.bench.engine.fork()
        bench.say("routing")
        with tempfile.TemporaryDirectory() as folder:
            pages = partial(journal, Store(Path(folder)), engine.knowledge.key)
            workshop = Workshop(engine, bench.school.latency, 1, pages)
            groups = {**self.prompts.measured, **self.prompts.others}
            found = routing.route(engine, bench.school.profile, groups, workshop)
        self.routed = routing.figures(found, list(self.prompts.measured))

    @property
    def is_complete(self) -> bool:
        parts = (self.matrix, self.streams)
        return all(part is not None and part.is_complete for part in parts)

    def figures(self) -> dict[str, Any]:
        return {
            "is_complete": self.is_complete,
            "domains": list(self.prompts.measured),
            "lessons": self.bench.school.figures(),
            "routing": self.routed,
            "sets": None if self.sets is None else {one.domain: one.figures() for one in self.sets},
            "overlaps": None if self.sets is None else overlaps(self.sets),
            "matrix": self._matrix_figures or (self.matrix.figures() if self.matrix is not None else None),
            "mixed": self.streams.figures() if self.streams is not None else [],
        }
