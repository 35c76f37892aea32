"""Measurement: arms take turns, prompt by prompt, plain decoding among them; every output is compared with plain."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..economics import PassCosts
from ..engine.engine import Engine
from ..errors import OptionError
from ..progress import Progress, no_progress
from ..prompts.arrange import in_turn
from ..prompts.tokens import encode, tokens_of
from ..types import FrontierPoint, Prompt, SkipSet
from ..version import __version__
from .arms import Ours, Output, PeerArm, Site, judged
from .circumstances import circumstances
from .passes import CONTEXT, cost_figures
from .peers import check_greedy, peers
from .records import OFF, Head, Machine, Record, RecordFile, complete_texts, profile_digest, prompts_digest
from .result import Result

WARM_UP = Prompt("warm-up", "warm-up", "Arms take turns on a text that is not measured, so that first times are over. ")
WARM_UP_TOKENS = 8
"""New tokens, where nothing is recorded on the way."""
USUAL_LENGTH = 512
"""Tokens of context at which attention and MLP are compared."""
_ROOM = 16
"""Tokens of a chat template around an answer, at most."""
_WHERE = ("device_name", "dtype", "threads", "torch", "transformers", "commit")


@dataclass(frozen=True)
class MeasurePlan:
    """What to measure. `methods`: by arm name; `prompts` in their order; `seconds`: begin no prompt later.

    `runs`: how often all prompts are measured, arms beginning each time as if new, so that intervals hold the machine's
    own spread. `with_passes`: also what passes cost, the bound that follows, and how long one waits for a first token.
    """

    prompts: Sequence[Prompt]
    methods: Mapping[str, Mapping[str, Any]]
    peers: Sequence[str] = ()
    peer_model: Any = None  # that drafts for a peer
    peer_prompts: int | None = None  # of each domain, for peers: they may be many times slower
    max_new_tokens: int = 128
    temperature: float = 0.0
    top_p: float | None = None  # None: all tokens
    seed: int = 0
    runs: int = 1
    seconds: float | None = None
    with_passes: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)  # of the question: the command's options, the model's name

    @property
    def num_texts(self) -> int:
        return self.runs * sum(1 + len(prompt.later) for prompt in self.prompts)

    @property
    def ids_for_peers(self) -> frozenset[str]:
        return frozenset(prompt.id for prompt in in_turn(self.prompts, self.peer_prompts))

    def fitting(self, engine: Engine) -> MeasurePlan:
        """Without turns that, after answers as long as they may be, would be more than the model's context holds."""
        return replace(self, prompts=[self._cut(prompt, engine) for prompt in self.prompts])

    def _cut(self, prompt: Prompt, engine: Engine) -> Prompt:
        while prompt.later and self.longest(prompt, engine) >= (engine.context_length or float("inf")):
            prompt = replace(prompt, later=prompt.later[:-1])
        return prompt

    def longest(self, prompt: Prompt, engine: Engine) -> int:
        """Tokens before the last answer, at most."""
        num_answers = len(prompt.later)
        return len(tokens_of(prompt, engine, [""] * num_answers)) + num_answers * (self.max_new_tokens + _ROOM)

    def call(self, number: int) -> dict[str, Any]:
        """Options of `generate` for a text."""
        options = {"max_new_tokens": self.max_new_tokens, "temperature": self.temperature, "seed": self.seed + number}
        return options if self.top_p is None else {**options, "top_p": self.top_p}

    def question(self, engine: Engine, where: Mapping[str, Any]) -> dict[str, Any]:
        """All that shapes the figures: only a run that asks the same goes on with what another has kept."""
        return {
            "selfdraft": __version__,
            "fingerprint": engine.knowledge.key.fingerprint,
            "profile": profile_digest(engine.knowledge.profile),
            **{name: where[name] for name in _WHERE},
            **self.facts,
            "methods": {name: _as_names(method) for name, method in self.methods.items()},
            "peers": list(self.peers),
            "prompts": [prompt.id for prompt in self.prompts],
            "prompts_digest": prompts_digest(self.prompts),
            "num_texts": self.num_texts,
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            **({} if self.top_p is None else {"top_p": self.top_p}),
            **({} if self.runs == 1 else {"runs": self.runs}),
            **({"with_passes": True} if self.with_passes else {}),
            "seed": self.seed,
        }


def _as_names(method: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value if isinstance(value, str | dict) else str(value) for name, value in method.items()}


class Measurement:
    """One run; `file`: where records are kept, if anywhere; `began`: when the command did."""

    def __init__(
        self,
        engine: Engine,
        plan: MeasurePlan,
        file: RecordFile | None = None,
        *,
        began: float | None = None,
        progress: Progress = no_progress,
        is_new: bool = False,
    ) -> None:
        self._began = time.perf_counter() if began is None else began
        check_greedy(plan.peers, plan.peer_model, plan.temperature)
        self._engine, self.plan, self._file = engine, plan.fitting(engine), file
        self._progress, self._is_new = progress, is_new
        self._num_turns_left_out = plan.num_texts - self.plan.num_texts
        methods = {OFF: {"strategy": OFF}, **plan.methods}
        self.ours = [Ours(name, method, engine, plan.max_new_tokens) for name, method in methods.items()]
        others = peers(plan.peers, engine.runner.num_layers, plan.peer_model)
        self._arms: list[Ours | PeerArm] = [*self.ours, *(PeerArm(peer, engine) for peer in others)]
        self._costs: PassCosts | None = None
        self.records: list[Record] = []
        self.is_interrupted = False

    def run(self) -> Result:
        where = circumstances(self._engine.runner)
        question = self.plan.question(self._engine, where)
        if self._file is not None and not self._is_new:
            self._file.check(question)
        skips = self._warm_up()
        self._head = Head(question, where, asdict(self._machine(skips)), self._described())
        if self._file is not None:
            self._head, kept = self._file.begin(self._head, self._is_new)
            self.records = self._whole_conversations(kept)
        try:
            self._measure_prompts()
        except KeyboardInterrupt:
            if not self.records:
                raise
            self.is_interrupted = True
        return self.result()

    def result(self, **facts: Any) -> Result:
        """`facts`: of the machine, found afterwards."""
        machine = {**self._head.machine, **facts}
        self._head = replace(self._head, machine=machine, arms=self._described())
        return Result(self._head, self.records)

    def _described(self) -> list[dict[str, Any]]:
        return [{**arm.described, "error": arm.error} for arm in self._arms]

    # ------------------------------------------------------------------------------------------------- warming up

    def _warm_up(self) -> set[SkipSet]:
        """With all new tokens where passes are recorded: that must not happen while measuring."""
        plan, engine, is_recording = self.plan, self._engine, self._engine.runner.is_recording
        for prompt in plan.prompts:
            encode(prompt, engine)  # raises where it is longer than the context
        short = encode(WARM_UP if engine.tokenizer else min(plan.prompts, key=lambda one: len(one.tokens)), engine)
        longest = max(plan.longest(prompt, engine) for prompt in plan.prompts)
        texts = [list(itertools.islice(itertools.cycle(short), longest)), short] if is_recording else [short]
        num_tokens = plan.max_new_tokens if is_recording else min(plan.max_new_tokens, WARM_UP_TOKENS)
        skips: set[SkipSet] = set()
        for number, arm in enumerate(self._arms):
            self._progress(number, len(self._arms), "methods warmed up")
            skips |= arm.warm_up(texts, num_tokens, plan.call(0))
        if self.ours[0].error:  # nothing could be compared
            raise OptionError(self.ours[0].error)
        return skips

    def _machine(self, skips: set[SkipSet]) -> Machine:
        latency, num_layers = self._engine.knowledge.latency(), self._engine.runner.num_layers
        beta = latency.at(USUAL_LENGTH).attention / latency.mlp_seconds if latency.mlp_seconds else 1.0
        if self.plan.with_passes:
            self._costs = latency.at(CONTEXT)
        costs = cost_figures(self._engine, self._costs, skips) if self._costs else None
        return Machine(num_layers, beta, self._frontier(), self._num_turns_left_out, costs)

    def _frontier(self) -> list[dict[str, Any]] | None:
        """What `prune` found, if it was asked: match against the seconds of a drafted token."""
        found = self._engine.knowledge.known("prune")
        if not found:
            return None
        costs = self._engine.knowledge.latency().at(USUAL_LENGTH)
        points = [FrontierPoint.from_json(point) for point in found["frontier"]]
        return [
            {"skip": str(point.skip), "match": point.match, "cost": costs.draft(point.skip) / costs.plain}
            for point in points
        ]

    # ------------------------------------------------------------------------------------------------- prompts

    def _measure_prompts(self) -> None:
        done = {record.text for record in self.records}
        writing_seconds = 0.0
        for run in range(self.plan.runs):
            if run:
                for arm in self.ours:
                    arm.engine.forget()
            for first, prompt in self._numbered():
                if all((run, number) in done for number in _numbers(first, prompt)):
                    continue
                if self.records and self._is_late:
                    return
                records = list(self._measure(run, first, prompt, writing_seconds))
                writing_seconds = self._keep(records)

    def _keep(self, records: Sequence[Record]) -> float:
        """The seconds it took."""
        began = time.perf_counter()
        self.records += records
        if self._file is not None:
            self._file.add(records)
        num_done = len({record.text for record in self.records})
        self._progress(num_done, self.plan.num_texts, "texts measured")
        return time.perf_counter() - began

    def _numbered(self) -> Iterator[tuple[int, Prompt]]:
        """Each prompt with the number of its first text."""
        sizes = [1 + len(prompt.later) for prompt in self.plan.prompts]
        return zip(itertools.accumulate(sizes, initial=0), self.plan.prompts, strict=False)

    def _whole_conversations(self, kept: Sequence[Record]) -> list[Record]:
        kept = complete_texts(kept, [arm.name for arm in self.ours if arm.error is None])
        done = {record.text for record in kept}
        whole = {
            (run, number)
            for run in range(self.plan.runs)
            for first, prompt in self._numbered()
            for number in _numbers(first, prompt)
            if done.issuperset((run, one) for one in _numbers(first, prompt))
        }
        return [record for record in kept if record.text in whole]

    @property
    def _is_late(self) -> bool:
        return self.plan.seconds is not None and time.perf_counter() - self._began > self.plan.seconds

    def _measure(self, run: int, first: int, prompt: Prompt, before_seconds: float) -> Iterator[Record]:
        """All turns of a conversation; what the plain run answered is part of the next turn's prompt.

        `before_seconds`: what writing down the last prompt took; it belongs to measuring as well.
        """
        answers: list[str] = []
        for turn, number in enumerate(_numbers(first, prompt)):
            began = time.perf_counter() - before_seconds
            name = f"{prompt.id}/{turn + 1}" if prompt.later else prompt.id
            tokens = encode(prompt, self._engine, answers)
            site = Site(name, prompt.domain, number, len(tokens), turn, run)
            plain, outputs = self._take_turns(site, tokens, prompt.id in self.plan.ids_for_peers)
            taken = time.perf_counter()
            records = [self._judge(output, plain, tokens) for output in outputs]
            judged_at = time.perf_counter()
            for record in records:
                is_plain, taking, judging = record.arm == OFF, judged_at - began, judged_at - taken
                yield replace(record, turn_seconds=taking, judge_seconds=judging) if is_plain else record
            assert plain.generation is not None
            answers.append(plain.generation.text)
            before_seconds = 0.0

    def _take_turns(self, site: Site, prompt: Sequence[int], with_peers: bool) -> tuple[Output, list[Output]]:
        """In an order that is drawn for every text; who must be told the plain text comes last.

        Peers' outputs stand first: where a file ends in the middle of a text, one of ours is missing.
        """
        running = [arm for arm in self._arms if arm.error is None and (with_peers or arm in self.ours)]
        free = [arm for arm in running if not arm.must_be_told]
        run = f" {site.run}" if site.run else ""
        random.Random(f"{self.plan.seed} {site.number}{run}").shuffle(free)
        outputs = {arm.name: self._run(arm, site, prompt) for arm in free}
        plain = outputs[OFF]
        assert plain is not None
        for arm in self.ours:
            if arm.must_be_told and arm.error is None:
                arm.tell(plain.tokens)
                outputs[arm.name] = self._run(arm, site, prompt)
        found = (outputs[arm.name] for arm in reversed(self._arms) if arm in running)
        return plain, [output for output in found if output is not None]

    def _run(self, arm: Ours | PeerArm, site: Site, prompt: Sequence[int]) -> Output | None:
        call = self.plan.call(site.number)
        output = arm.run(site, prompt, call, self._costs)
        if output is None or not self.plan.with_passes:
            return output
        seconds = arm.first_token_seconds(prompt, call)
        return replace(output, record=replace(output.record, first_token_seconds=seconds))

    def _judge(self, output: Output, plain: Output, prompt: Sequence[int]) -> Record:
        """Not where rejection sampling draws: it promises the distribution, not the text."""
        if output is plain or (output.is_drawn and self.plan.temperature):
            return output.record
        call = self.plan.call(output.record.number)
        return judged(output.record, self._engine.compare(prompt, plain.tokens, output.tokens, **call))


def run_whole(engine: Engine, plan: MeasurePlan, progress: Progress = no_progress) -> Result:
    """For whom the first texts of an interrupted run are not a result: the interruption goes on."""
    measurement = Measurement(engine, plan, progress=progress)
    result = measurement.run()
    if measurement.is_interrupted:
        raise KeyboardInterrupt
    return result


def _numbers(first: int, prompt: Prompt) -> range:
    return range(first, first + 1 + len(prompt.later))
