"""`selfdraft bench`: ways that take turns, prompt by prompt, plain decoding among them; every output is compared."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...engine.engine import Engine
from ...errors import OptionError
from ...types import FrontierPoint, Generation
from ...version import __version__
from ..circumstances import circumstances
from ..prompts import BenchPrompt, encode_turns, in_turn
from ..selection.turns import WARM_UP_TOKENS, texts_to_warm_up
from ..ways import OFF, draft_model_way, peer_ways
from .arms import OurArm, PeerArm, Place, Result, judged
from .figures import document
from .records import Head, RecordFile, TextRecord, complete_prompts

WARM_UP_TEXT = "Ways take turns on a text that is not measured, so that whatever is slow only once has been slow. "
USUAL_LENGTH = 512
"""Tokens behind which attention and MLP are compared."""

Progress = Callable[[int, int | None, str], None]


@dataclass(frozen=True)
class BenchPlan:
    """What to measure. `methods`: by row name; `prompts` in the order in which they come; `seconds`: begin no later."""

    prompts: Sequence[BenchPrompt]
    methods: Mapping[str, Mapping[str, Any]]
    peers: Sequence[str] = ()
    peer_model: Any = None  # that drafts for a peer
    peer_prompts: int | None = None  # of each domain, for peers: they may be many times slower
    max_new_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    seconds: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)  # of the question: the command's options, the model's name

    @property
    def num_texts(self) -> int:
        return sum(1 + len(prompt.later) for prompt in self.prompts)

    @property
    def ids_for_peers(self) -> frozenset[str]:
        return frozenset(prompt.id for prompt in in_turn(self.prompts, self.peer_prompts))


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
        self._engine, self._plan, self._file = engine, plan, file
        self._began = time.perf_counter() if began is None else began
        self._progress, self._is_new = progress, is_new
        if (plan.peers or plan.peer_model) and plan.temperature:
            raise OptionError("peers are greedy; leave out --temperature, or ask for --peers none and no --peer-model")
        methods = {OFF: {"strategy": OFF}, **plan.methods}
        peers = peer_ways(plan.peers, engine.runner.num_layers, plan.max_new_tokens, None)
        if plan.peer_model is not None:
            peers.append(draft_model_way(plan.peer_model, plan.max_new_tokens))
        self._ours = [OurArm(name, method, engine, plan.max_new_tokens) for name, method in methods.items()]
        self._arms: list[OurArm | PeerArm] = [*self._ours, *(PeerArm(way, engine) for way in peers)]
        self._ids_for_peers = plan.ids_for_peers
        self.records: list[TextRecord] = []
        self.is_interrupted = False

    # -------------------------------------------------------------------------------------------------- the run

    def run(self) -> dict[str, Any]:
        self._warm_up()
        self._head = self._make_head()
        if self._file is not None:
            kept = self._file.begin(self._head, self._is_new)
            self.records = complete_prompts(kept, [arm.name for arm in self._ours if arm.error is None])
        try:
            self._measure_prompts()
        except KeyboardInterrupt:
            if not self.records:
                raise
            self.is_interrupted = True
        return self.document()

    def document(self) -> dict[str, Any]:
        ways = [{**arm.described, "error": arm.error} for arm in self._arms]
        return document(replace(self._head, ways=ways), self.records)

    @property
    def _running(self) -> list[OurArm | PeerArm]:
        return [arm for arm in self._arms if arm.error is None]

    def _warm_up(self) -> None:
        """With all new tokens where passes are recorded: that must not happen while measuring."""
        is_recorded = bool(self._engine.runner.recorded_slots(1))
        longest = max(len(encode_turns(prompt, self._engine)) for prompt in self._plan.prompts)
        texts = texts_to_warm_up([encode_turns(_warm_up_prompt(), self._engine)], longest, is_recorded)
        num_tokens = self._plan.max_new_tokens if is_recorded else min(self._plan.max_new_tokens, WARM_UP_TOKENS)
        for number, arm in enumerate(self._arms):
            self._progress(number, len(self._arms), "ways warmed up")
            arm.warm_up(texts, num_tokens, self._call(0))

    def _call(self, number: int) -> dict[str, Any]:
        plan = self._plan
        return {"max_new_tokens": plan.max_new_tokens, "temperature": plan.temperature, "seed": plan.seed + number}

    def _measure_prompts(self) -> None:
        done = {record.number for record in self.records}
        for first, prompt in self._numbered():
            if all(number in done for number in _numbers(first, prompt)):
                continue
            if self.records and self._is_late:
                return
            records = list(self._measure(first, prompt))
            self.records += records
            if self._file is not None:
                self._file.add(records)
            self._progress(first + 1 + len(prompt.later), self._plan.num_texts, "texts measured")

    def _numbered(self) -> Iterator[tuple[int, BenchPrompt]]:
        """Each prompt with the number of its first text."""
        sizes = [1 + len(prompt.later) for prompt in self._plan.prompts]
        return zip(itertools.accumulate(sizes, initial=0), self._plan.prompts, strict=False)

    @property
    def _is_late(self) -> bool:
        return self._plan.seconds is not None and time.perf_counter() - self._began > self._plan.seconds

    def _measure(self, first: int, prompt: BenchPrompt) -> Iterator[TextRecord]:
        """All turns of a conversation; what the plain run answered is part of the next turn's prompt."""
        answers: list[str] = []
        for turn, number in enumerate(_numbers(first, prompt)):
            name = f"{prompt.id}/{turn + 1}" if prompt.later else prompt.id
            tokens = encode_turns(prompt, self._engine, answers)
            place = Place(name, prompt.domain, number, len(tokens))
            plain, records = self._take_turns(place, tokens, prompt.id in self._ids_for_peers)
            answers.append(plain.text)
            yield from records

    def _take_turns(self, place: Place, prompt: Sequence[int], with_peers: bool) -> tuple[Generation, list[TextRecord]]:
        """Nobody always comes first; who must be told the plain text comes last."""
        began, call = time.perf_counter(), self._call(place.number)
        present = self._running if with_peers else [arm for arm in self._ours if arm.error is None]
        running = [arm for arm in present if not arm.must_be_told]
        shift = place.number % len(running)
        results = {arm.name: arm.run(place, prompt, call) for arm in (*running[shift:], *running[:shift])}
        plain = results[OFF]
        assert plain is not None
        assert plain.generation is not None
        for arm in self._ours:
            if arm.must_be_told and arm.error is None:
                arm.tell(plain.tokens)
                results[arm.name] = arm.run(place, prompt, call)
        seconds = time.perf_counter() - began
        found = {name: result for name, result in results.items() if result is not None}
        records = [self._judge(found[arm.name], plain, prompt, call) for arm in self._arms if arm.name in found]
        return plain.generation, [
            replace(record, turn_seconds=seconds) if record.way == OFF else record for record in records
        ]

    def _judge(self, result: Result, plain: Result, prompt: Sequence[int], call: Mapping[str, Any]) -> TextRecord:
        if result is plain:
            return result.record
        return judged(result.record, self._engine.compare(prompt, plain.tokens, result.tokens, **call))

    # ------------------------------------------------------------------------------------------------- its head

    def _make_head(self) -> Head:
        plan, engine = self._plan, self._engine
        where = circumstances(engine.runner)
        question = {
            "selfdraft": __version__,
            "fingerprint": engine.memory.key.fingerprint,
            **{name: where[name] for name in ("device_name", "dtype", "threads", "torch", "transformers", "commit")},
            **plan.facts,
            "methods": {name: _as_names(method) for name, method in plan.methods.items()},
            "peers": list(plan.peers),
            "prompts": [prompt.id for prompt in plan.prompts],
            "num_texts": plan.num_texts,
            "max_new_tokens": plan.max_new_tokens,
            "temperature": plan.temperature,
            "seed": plan.seed,
        }
        return Head(question, where, self._machine(), [{**arm.described, "error": arm.error} for arm in self._arms])

    def _machine(self) -> dict[str, Any]:
        latency, num_layers = self._engine.memory.latency(), self._engine.runner.num_layers
        beta = latency.attention_seconds(USUAL_LENGTH) / latency.mlp_seconds if latency.mlp_seconds else 1.0
        return {"num_layers": num_layers, "beta": beta, "frontier": self._frontier(num_layers)}

    def _frontier(self, num_layers: int) -> list[dict[str, Any]] | None:
        """What `prune` found, if it was asked: match against the seconds of a drafted token."""
        found = self._engine.memory.known("prune")
        if not found:
            return None
        latency = self._engine.memory.latency()
        points = [FrontierPoint.from_json(point) for point in found["frontier"]]
        plain = latency.plain_seconds(USUAL_LENGTH)
        return [
            {
                "skip": str(point.skip),
                "match": point.match,
                "cost": latency.draft_seconds(point.skip, USUAL_LENGTH, num_layers) / plain,
            }
            for point in points
        ]


def _warm_up_prompt() -> BenchPrompt:
    return BenchPrompt("warm-up", "warm-up", WARM_UP_TEXT)


def _numbers(first: int, prompt: BenchPrompt) -> range:
    return range(first, first + 1 + len(prompt.later))


def _as_names(method: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value if isinstance(value, str | dict) else str(value) for name, value in method.items()}


def is_different(found: Mapping[str, Any]) -> bool:
    """Whether some way of ours said something else than plain decoding, by more than rounding."""
    return any(way["kind"] != "peer" and "total" in way and way["total"]["different"] for way in found["ways"])
