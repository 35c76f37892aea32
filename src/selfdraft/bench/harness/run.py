"""`selfdraft bench`: ways that take turns, prompt by prompt, plain decoding among them; every output is compared."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...engine.engine import Engine
from ...errors import OptionError
from ...types import FrontierPoint
from ..circumstances import circumstances
from ..prompts import BenchPrompt, encode_turns
from ..selection.turns import WARM_UP_TOKENS, texts_to_warm_up
from ..ways import OFF, draft_model_way, peer_ways
from .arms import OurArm, PeerArm, Place, Result, judged
from .figures import document
from .plan import BenchPlan
from .question import question_of
from .records import Head, RecordFile, TextRecord, complete_prompts

WARM_UP_TEXT = "Ways take turns on a text that is not measured, so that whatever is slow only once has been slow. "
USUAL_LENGTH = 512
"""Tokens behind which attention and MLP are compared."""

Progress = Callable[[int, int | None, str], None]


class MethodBench:
    """One run; `file`: where records are kept, if anywhere; `began`: when the command did."""

    def __init__(
        self,
        engine: Engine,
        plan: BenchPlan,
        file: RecordFile | None = None,
        *,
        began: float | None = None,
        progress: Progress = lambda done, total, label: None,
        is_new: bool = False,
    ) -> None:
        self._began = time.perf_counter() if began is None else began
        if (plan.peers or plan.peer_model) and plan.temperature:
            raise OptionError("peers are greedy; leave out --temperature, or ask for --peers none and no --peer-model")
        self._engine, self._plan, self._file = engine, plan.fitting(engine), file
        self._progress, self._is_new = progress, is_new
        self._num_turns_left_out = plan.num_texts - self._plan.num_texts
        methods = {OFF: {"strategy": OFF}, **plan.methods}
        peers = peer_ways(plan.peers, engine.runner.num_layers, plan.max_new_tokens, None)
        if plan.peer_model is not None:
            peers.append(draft_model_way(plan.peer_model, plan.max_new_tokens))
        self._ours = [OurArm(name, method, engine, plan.max_new_tokens) for name, method in methods.items()]
        self._arms: list[OurArm | PeerArm] = [*self._ours, *(PeerArm(way, engine) for way in peers)]
        self._ids_for_peers = self._plan.ids_for_peers
        self.records: list[TextRecord] = []
        self.is_interrupted = False

    # -------------------------------------------------------------------------------------------------- the run

    def run(self) -> dict[str, Any]:
        where = circumstances(self._engine.runner)
        question = question_of(self._plan, self._engine, where)
        if self._file is not None and not self._is_new:
            self._file.check(question)
        self._warm_up()
        self._head = Head(question, where, self._machine(), self._described())
        if self._file is not None:
            self._head, kept = self._file.begin(self._head, self._is_new)
            self.records = self._whole_conversations(kept)
        try:
            self._measure_prompts()
        except KeyboardInterrupt:
            if not self.records:
                raise
            self.is_interrupted = True
        return self.document()

    def document(self) -> dict[str, Any]:
        return document(replace(self._head, ways=self._described()), self.records)

    def _described(self) -> list[dict[str, Any]]:
        return [{**arm.described, "error": arm.error} for arm in self._arms]

    def _warm_up(self) -> None:
        """With all new tokens where passes are recorded: that must not happen while measuring."""
        plan, engine = self._plan, self._engine
        is_recorded = bool(engine.runner.recorded_slots(1))
        for prompt in plan.prompts:
            encode_turns(prompt, engine)  # raises where it is longer than the context
        longest = max(plan.longest(prompt, engine) for prompt in plan.prompts)
        texts = texts_to_warm_up([encode_turns(_warm_up_prompt(), engine)], longest, is_recorded)
        num_tokens = plan.max_new_tokens if is_recorded else min(plan.max_new_tokens, WARM_UP_TOKENS)
        for number, arm in enumerate(self._arms):
            self._progress(number, len(self._arms), "ways warmed up")
            arm.warm_up(texts, num_tokens, self._call(0))

    def _call(self, number: int) -> dict[str, Any]:
        plan = self._plan
        call = {"max_new_tokens": plan.max_new_tokens, "temperature": plan.temperature, "seed": plan.seed + number}
        return call if plan.top_p is None else {**call, "top_p": plan.top_p}

    # ------------------------------------------------------------------------------------------------- prompts

    def _measure_prompts(self) -> None:
        done = {record.number for record in self.records}
        writing_seconds = 0.0
        for first, prompt in self._numbered():
            if all(number in done for number in _numbers(first, prompt)):
                continue
            if self.records and self._is_late:
                return
            records = list(self._measure(first, prompt, writing_seconds))
            measured = time.perf_counter()
            self.records += records
            if self._file is not None:
                self._file.add(records)
            self._progress(first + 1 + len(prompt.later), self._plan.num_texts, "texts measured")
            writing_seconds = time.perf_counter() - measured

    def _numbered(self) -> Iterator[tuple[int, BenchPrompt]]:
        """Each prompt with the number of its first text."""
        sizes = [1 + len(prompt.later) for prompt in self._plan.prompts]
        return zip(itertools.accumulate(sizes, initial=0), self._plan.prompts, strict=False)

    def _whole_conversations(self, kept: Sequence[TextRecord]) -> list[TextRecord]:
        kept = complete_prompts(kept, [arm.name for arm in self._ours if arm.error is None])
        done = {record.number for record in kept}
        whole = {
            number
            for first, prompt in self._numbered()
            for number in _numbers(first, prompt)
            if done.issuperset(_numbers(first, prompt))
        }
        return [record for record in kept if record.number in whole]

    @property
    def _is_late(self) -> bool:
        return self._plan.seconds is not None and time.perf_counter() - self._began > self._plan.seconds

    def _measure(self, first: int, prompt: BenchPrompt, before_seconds: float) -> Iterator[TextRecord]:
        """All turns of a conversation; what the plain run answered is part of the next turn's prompt.

        `before_seconds`: what writing down the last prompt took; it belongs to the harness as well.
        """
        answers: list[str] = []
        for turn, number in enumerate(_numbers(first, prompt)):
            began = time.perf_counter() - before_seconds
            name = f"{prompt.id}/{turn + 1}" if prompt.later else prompt.id
            tokens = encode_turns(prompt, self._engine, answers)
            place = Place(name, prompt.domain, number, len(tokens), turn)
            plain, results = self._take_turns(place, tokens, prompt.id in self._ids_for_peers)
            taken = time.perf_counter()
            records = [self._judge(result, plain, tokens) for result in results]
            judged = time.perf_counter()
            for record in records:
                is_plain = record.way == OFF
                yield replace(record, turn_seconds=judged - began, judge_seconds=judged - taken) if is_plain else record
            assert plain.generation is not None
            answers.append(plain.generation.text)
            before_seconds = 0.0

    def _take_turns(self, place: Place, prompt: Sequence[int], with_peers: bool) -> tuple[Result, list[Result]]:
        """In an order that is drawn anew for every text; who must be told the plain text comes last.

        Peers' results stand first: where a file ends in the middle of a text, one of ours is missing.
        """
        call = self._call(place.number)
        running = [arm for arm in self._arms if arm.error is None and (with_peers or arm in self._ours)]
        free = [arm for arm in running if not arm.must_be_told]
        random.Random(f"{self._plan.seed} {place.number}").shuffle(free)
        results = {arm.name: arm.run(place, prompt, call) for arm in free}
        plain = results[OFF]
        assert plain is not None
        for arm in self._ours:
            if arm.must_be_told and arm.error is None:
                arm.tell(plain.tokens)
                results[arm.name] = arm.run(place, prompt, call)
        found = (results[arm.name] for arm in reversed(self._arms) if arm in running)
        return plain, [result for result in found if result is not None]

    def _judge(self, result: Result, plain: Result, prompt: Sequence[int]) -> TextRecord:
        """Not where rejection sampling draws: it promises the distribution, not the text."""
        if result is plain or (result.is_drawn and self._plan.temperature):
            return result.record
        call = self._call(result.record.number)
        return judged(result.record, self._engine.compare(prompt, plain.tokens, result.tokens, **call))

    # ------------------------------------------------------------------------------------------------- its head

    def _machine(self) -> dict[str, Any]:
        latency = self._engine.knowledge.latency()
        beta = latency.at(USUAL_LENGTH).attention / latency.mlp_seconds if latency.mlp_seconds else 1.0
        return {
            "num_layers": latency.num_layers,
            "beta": beta,
            "frontier": self._frontier(),
            "num_turns_left_out": self._num_turns_left_out,
        }

    def _frontier(self) -> list[dict[str, Any]] | None:
        """What `prune` found, if it was asked: match against the seconds of a drafted token."""
        found = self._engine.knowledge.known("prune")
        if not found:
            return None
        costs = self._engine.knowledge.latency().at(USUAL_LENGTH)
        points = [FrontierPoint.from_json(point) for point in found["frontier"]]
        return [
            {
                "skip": str(point.skip),
                "match": point.match,
                "cost": costs.draft(point.skip) / costs.plain,
            }
            for point in points
        ]


def _warm_up_prompt() -> BenchPrompt:
    return BenchPrompt("warm-up", "warm-up", WARM_UP_TEXT)


def _numbers(first: int, prompt: BenchPrompt) -> range:
    return range(first, first + 1 + len(prompt.later))


def is_different(found: Mapping[str, Any]) -> bool:
    """Whether some way of ours said something else than plain decoding, by more than rounding."""
    return any(way["kind"] != "peer" and "total" in way and way["total"]["different"] for way in found["ways"])
