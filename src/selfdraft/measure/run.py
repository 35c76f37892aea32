"""Measurement: arms take turns, prompt by prompt, plain decoding among them; every output is compared with plain."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..economics import LatencyFit, PassCosts
from ..engine.engine import Engine
from ..errors import OptionError
from ..progress import Budget, Progress, Steps, no_progress
from ..prompts.arrange import digest, in_turn
from ..prompts.tokens import encode, tokens_of
from ..registry import AXES
from ..types import FrontierPoint, Prompt, SkipSet
from ..version import __version__
from .arms import Ours, Output
from .circumstances import SHAPING, circumstances
from .cores import Watch
from .passes import CONTEXT, cost_figures, predicted_seconds
from .peers import PeerArm, check_greedy, peer_arms
from .records import OFF, Head, Machine, Record, RecordFile, complete_texts
from .result import Result

WARM_UP = Prompt("warm-up", "warm-up", "Arms take turns on a text that is not measured, so that first times are over. ")
WARM_UP_TOKENS = 8  # new ones, where nothing is recorded on the way
USUAL_LENGTH = 512  # tokens of context at which attention and MLP are compared
_ROOM = 16  # tokens of a chat template around an answer, at most


@dataclass(frozen=True)
class MeasurePlan:
    """What to measure. `methods`: by arm name; `prompts` in their order.

    `runs`: how often all prompts are measured, arms beginning each time as if new, so that intervals hold the machine's
    own spread. `with_passes`: also what passes cost, the bound that follows, and how long one waits for a first token.
    """

    prompts: Sequence[Prompt]
    methods: Mapping[str, Mapping[str, Any]]
    peers: Sequence[str] = ()
    peer_model: Any = None  # that drafts for a peer
    peer_prompts: int | None = None  # of each domain, for peers: they may be many times slower
    max_new_tokens: int = 128
    sampling: Mapping[str, Any] = field(default_factory=dict)  # options of `generate` for all texts; none: greedy
    seed: int = 0
    runs: int = 1
    with_passes: bool = False
    prices: LatencyFit | None = None  # by which to predict the seconds of the rounds of each text
    facts: Mapping[str, Any] = field(default_factory=dict)  # of the question: the command's options, the model's name

    @property
    def num_texts(self) -> int:
        return self.runs * sum(1 + len(prompt.later) for prompt in self.prompts)

    @property
    def numbered(self) -> Iterator[tuple[Prompt, range]]:
        """Each prompt with the numbers of its texts."""
        first = 0
        for prompt in self.prompts:
            yield prompt, range(first, first := first + 1 + len(prompt.later))

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

    def call(self, number: int, prompt: Prompt) -> dict[str, Any]:
        """Options of `generate` for a text."""
        options = {"max_new_tokens": self.max_new_tokens, "temperature": 0.0, "seed": self.seed + number}
        return {**options, **self.sampling, **dict(prompt.options)}

    @property
    def calls(self) -> list[dict[str, Any]]:
        """One for each mode."""
        return [self.call(0, prompt) for prompt in {prompt.options: prompt for prompt in self.prompts}.values()]

    def question(self, engine: Engine, where: Mapping[str, Any]) -> dict[str, Any]:
        """All that shapes the figures: only a run that asks the same goes on with what another has kept."""
        profile = engine.knowledge.profile
        modes = {prompt.domain: dict(prompt.options) for prompt in self.prompts if prompt.options}
        return {
            "selfdraft": __version__,
            "fingerprint": engine.knowledge.key.fingerprint,
            "profile": profile and profile.updated,
            **{name: where[name] for name in SHAPING},
            **self.facts,
            "methods": dict(self.methods),
            "peers": list(self.peers),
            "prompts": [prompt.id for prompt in self.prompts],
            "prompts_digest": digest(self.prompts),
            "num_texts": self.num_texts,
            "max_new_tokens": self.max_new_tokens,
            "temperature": 0.0,
            **self.sampling,
            **({"modes": modes} if modes else {}),
            **({} if self.runs == 1 else {"runs": self.runs}),
            **({"with_passes": True} if self.with_passes else {}),
            "seed": self.seed,
        }


class Measurement:
    """One run; `file`: where records are kept, if anywhere; `budget`: begin no prompt that would end later."""

    def __init__(
        self,
        engine: Engine,
        plan: MeasurePlan,
        file: RecordFile | None = None,
        *,
        budget: Budget | None = None,
        progress: Progress = no_progress,
        is_new: bool = False,
    ) -> None:
        check_greedy(plan.peers, plan.peer_model, plan.calls)
        self._engine, self.plan, self._file = engine, plan.fitting(engine), file
        self._budget, self._progress, self._is_new = budget or Budget(None), progress, is_new
        self._ids_for_peers = {prompt.id for prompt in in_turn(plan.prompts, plan.peer_prompts)}
        self._num_turns_left_out = plan.num_texts - self.plan.num_texts
        methods = {OFF: {"strategy": OFF}, **plan.methods}
        self.ours = [Ours(name, method, engine, plan.max_new_tokens) for name, method in methods.items()]
        self._arms: list[Ours | PeerArm] = [*self.ours, *peer_arms(engine, plan.peers, plan.peer_model)]
        self._costs: PassCosts | None = None
        self.records: list[Record] = []
        self.is_interrupted = False

    def run(self) -> Result:
        where = circumstances(self._engine.runner)
        question = self.plan.question(self._engine, where)
        known = None if self._file is None or self._is_new else self._file.known(question)
        skips = self._warm_up()
        self._head = Head(question, where, asdict(self._machine(skips)), self._described())
        if known is not None:
            self._go_on(*known)
        if self._file is not None:
            self._file.write(self._head, self.records)
        try:
            self._measure_prompts()
        except KeyboardInterrupt:
            if not self.records:
                raise
            self.is_interrupted = True
        return self.result()

    def result(self, **facts: Any) -> Result:
        """`facts`: of the machine, found afterwards."""
        where, machine = self._head.circumstances, {**self._head.machine, **facts}
        if busy := self._watch.summary(self._engine.device):
            where = {**where, "busy": busy}
        self._head = replace(self._head, circumstances=where, machine=machine, arms=self._described())
        if self._file is not None and (busy or facts):
            self._file.write(self._head, self.records)
        return Result(self._head, self.records)

    def _described(self) -> list[dict[str, Any]]:
        return [{**arm.described, "error": arm.error} for arm in self._arms]

    def _go_on(self, old: Head, records: Sequence[Record]) -> None:
        """With whole conversations that all arms have finished."""
        records = complete_texts(records, self._head.arms)
        done = {record.text for record in records}
        for run, (_, numbers) in itertools.product(range(self.plan.runs), self.plan.numbered):
            texts = {(run, number) for number in numbers}
            if not done >= texts:
                done -= texts
        self.records = [record for record in records if record.text in done]
        self._head = replace(old, arms=self._head.arms, resumed_at=[*old.resumed_at, *([len(done)] if done else [])])

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
        for number, (arm, call) in enumerate(itertools.product(self._arms, plan.calls)):
            self._progress(number, len(self._arms) * len(plan.calls), "methods warmed up")
            skips |= arm.warm_up(texts, num_tokens, call)
        if self.ours[0].error:  # nothing could be compared
            raise OptionError(self.ours[0].error)
        return skips

    def _machine(self, skips: set[SkipSet]) -> Machine:
        latency, num_layers = self._engine.knowledge.latency(), self._engine.runner.num_layers
        usual = latency.at(USUAL_LENGTH)
        beta = usual.attention / latency.mlp_seconds if latency.mlp_seconds else 1.0
        self._costs = latency.at(CONTEXT) if self.plan.with_passes else None
        costs = cost_figures(self._engine, self._costs, skips) if self._costs else None
        return Machine(num_layers, beta, self._frontier(usual), self._num_turns_left_out, costs)

    def _frontier(self, costs: PassCosts) -> list[dict[str, Any]] | None:
        """What `prune` found, if it was asked: match against the seconds of a drafted token."""
        if not (found := self._engine.knowledge.known("prune")):
            return None
        points, plain = map(FrontierPoint.from_json, found["frontier"]), costs.plain
        return [{"skip": str(one.skip), "match": one.match, "cost": costs.draft(one.skip) / plain} for one in points]

    # ------------------------------------------------------------------------------------------------- prompts

    def _measure_prompts(self) -> None:
        done = {record.text for record in self.records}
        self._last_end, self._watch, steps = time.perf_counter(), Watch(), Steps(self._budget)
        for run in range(self.plan.runs):
            for arm in self.ours if run else ():
                arm.engine.forget()
            for prompt, numbers in self.plan.numbered:
                if (run, numbers[0]) in done:
                    continue
                if not steps.has_time() and self.records:
                    return
                self._keep(list(self._measure(run, prompt, numbers)))

    def _keep(self, records: Sequence[Record]) -> None:
        self.records += records
        if self._file is not None:
            self._file.add(records)
        self._watch.look(self._engine.device)
        self._progress(len({record.text for record in self.records}), self.plan.num_texts, "texts measured")

    def _measure(self, run: int, prompt: Prompt, numbers: Sequence[int]) -> Iterator[Record]:
        """All turns of a conversation; what the plain run answered is part of the next turn's prompt."""
        answers: list[str] = []
        for turn, number in enumerate(numbers):
            name = f"{prompt.id}/{turn + 1}" if prompt.later else prompt.id
            tokens = encode(prompt, self._engine, answers)
            text = Record("", name, prompt.domain, number, len(tokens), 0, 0.0, turn=turn, run=run)
            call = self.plan.call(number, prompt)
            plain, outputs = self._take_turns(text, tokens, call, prompt.id in self._ids_for_peers)
            taken = time.perf_counter()
            records = [self._judge(output, plain, tokens, call) for output in outputs]
            before, self._last_end = self._last_end, time.perf_counter()
            seconds: dict[str, Any] = {"turn_seconds": self._last_end - before, "judge_seconds": self._last_end - taken}
            yield from (replace(record, **seconds) if record.arm == OFF else record for record in records)
            assert plain.generation is not None
            answers.append(plain.generation.text)

    def _take_turns(
        self, text: Record, prompt: Sequence[int], call: Mapping[str, Any], with_peers: bool
    ) -> tuple[Output, list[Output]]:
        """In an order that is drawn for every text; who must be told the plain text comes last.

        Peers' outputs stand first: where a file ends in the middle of a text, one of ours is missing.
        """
        running = [arm for arm in self._arms if arm.error is None and (with_peers or arm in self.ours)]
        free = [arm for arm in running if not arm.must_be_told]
        run = f" {text.run}" if text.run else ""
        random.Random(f"{self.plan.seed} {text.number}{run}").shuffle(free)
        outputs = {arm.name: self._run(arm, text, prompt, call) for arm in free}
        plain = outputs[OFF]
        assert plain is not None
        for arm in self.ours:
            if arm.must_be_told and arm.error is None:
                arm.tell(plain.tokens, prompt, call)
                outputs[arm.name] = self._run(arm, text, prompt, call)
        found = (outputs[arm.name] for arm in reversed(running))
        return plain, [output for output in found if output is not None]

    def _run(self, arm: Ours | PeerArm, text: Record, prompt: Sequence[int], call: Mapping[str, Any]) -> Output | None:
        output = arm.run(text, prompt, call)
        if output is None:
            return None
        record, prices = output.record, self.plan.prices
        costs = self._costs or (prices and prices.at(record.num_prompt_tokens + record.num_tokens / 2))
        if costs and output.generation is not None:
            seconds = predicted_seconds(output.generation.steps, arm.described["method"]["drafter"], costs)
            record = replace(record, predicted_seconds=seconds)
        if self._costs:
            record = replace(record, first_token_seconds=arm.first_token_seconds(prompt, call))
        return replace(output, record=record)

    def _judge(self, output: Output, plain: Output, prompt: Sequence[int], call: Mapping[str, Any]) -> Record:
        """Not where rejection sampling draws: it promises the distribution, not the text."""
        if output is plain or output.is_drawn:
            return output.record
        options = {name: value for name, value in call.items() if name not in AXES}
        found = self._engine.compare(prompt, plain.tokens, output.tokens, **options)
        gap = found.gap if math.isfinite(found.gap or 0.0) else None  # JSON knows no infinity
        where = found.first_difference
        return replace(output.record, verdict=found.verdict, first_difference=where, gap=gap, reason=found.reason)


def run_whole(
    engine: Engine, plan: MeasurePlan, progress: Progress = no_progress, budget: Budget | None = None
) -> Result:
    """For whom the first texts of an interrupted run are not a result: the interruption goes on."""
    measurement = Measurement(engine, plan, progress=progress, budget=budget)
    result = measurement.run()
    if measurement.is_interrupted:
        raise KeyboardInterrupt
    return result
