"""`selfdraft bench gpu`: transformers' ways and ours in turn, prompt by prompt, in one process.

Greedy, one text at a time. Every output is compared with that of plain decoding. Single passes are timed first; with
the rounds a method needed they give the bound that its speed is held against.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..engine.engine import Engine
from ..models.gpu.runner import PREFILL_STEP
from ..models.load.info import ModelInfo, describe
from .circumstances import GraphWatch, circumstances, graph_figures, memory_bytes
from .costs import Costs, DraftKind, draft_kinds, weight_share
from .meter import PassMeter, copy_bandwidth
from .prompts import BenchPrompt, encode
from .soak import Soak
from .totals import Total, add_up, difference, figures, total_of
from .ways import BASELINES, OFF, Way, our_ways, peer_ways

SHORT_TOKENS = 8

Say = Callable[[str], None]


@dataclass(frozen=True)
class GpuPlan:
    """What to measure. `variants`: method options by row name; `seconds`: take no new prompt after so long."""

    prompts: Sequence[BenchPrompt]
    variants: Mapping[str, Mapping[str, Any]]
    peers: Sequence[str]
    max_new_tokens: int = 256
    peer_tokens: int | None = None
    warm_up_tokens: int | None = None
    context: int = 320
    seconds: float | None = None
    soak: int = 0


@dataclass
class GpuBench:
    """One run. `began` is when the command did; `say` shows progress; `save` keeps what is complete so far.

    `name`: what messages call the model.
    """

    model: Any
    tokenizer: Any
    plan: GpuPlan
    began: float = field(default_factory=time.perf_counter)
    say: Say = lambda text: None
    save: Callable[[dict[str, Any]], object] = lambda document: None
    name: str | None = None
    costs: Costs = field(init=False)
    is_interrupted: bool = False
    num_measured: int = 0
    soak_figures: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self.bandwidth = copy_bandwidth(self.model.device)
        began = time.perf_counter()
        self.engine = Engine(self.model, self.tokenizer, name=self.name)
        runner = self.engine.runner
        self.prompts = [(prompt, encode(prompt, self.engine)) for prompt in self.plan.prompts]
        self.longest = max((tokens for _, tokens in self.prompts), key=len)
        count = self.plan.max_new_tokens
        self.prepare_seconds = self._prepare(our_ways(self.plan.variants, count))
        if profile := self.engine.memory.profile_in_use:
            self.say(profile.summary)
        self.engine.generate(self.longest, max_new_tokens=SHORT_TOKENS, strategy=OFF)
        self.ready_seconds = runner.seconds() - began
        self.circumstances, self.watch = circumstances(runner), GraphWatch(runner)
        self.ways = [
            *our_ways(self.plan.variants, count),
            *peer_ways(self.plan.peers, runner.num_layers, count, self.plan.peer_tokens),
        ]
        self.totals: dict[str, dict[str, Total]] = {way.label: defaultdict(Total) for way in self.ways}
        self.differences: dict[str, list[dict[str, Any]]] = {way.label: [] for way in self.ways}

    def _prepare(self, ways: Sequence[Way]) -> float:
        """Record what they will use; the seconds it took."""
        began = self.engine.runner.seconds()
        for way in ways:
            self.engine.prepare(len(self.longest) + way.num_tokens, **way.options)
        return self.engine.runner.seconds() - began

    def run(self) -> dict[str, Any]:
        self._warm_up()
        self._measure_prompts()
        if self.plan.soak and not self.is_interrupted:
            self._soak()
        return self.document()

    def _warm_up(self) -> None:
        """Each way on the longest and on the shortest prompt, to meet caches of all sizes; then single passes."""
        used: list[Counter[Any]] = []
        shortest = min((tokens for _, tokens in self.prompts), key=len)
        for way in self.ways:
            self.say(f"warming up {way.label}")
            began = time.perf_counter()
            for tokens in (self.longest, shortest):
                output = way.run(self.engine, tokens, self._warm_up_tokens(way))
                if output is not None:
                    used.append(total_of(output, way, None).rounds)
            way.warm_up_seconds = time.perf_counter() - began
        self._warm_up_prefill()
        self.say("timing single passes")
        runner = self.engine.runner
        self.info: ModelInfo = describe(runner.decoder)
        self.meter = PassMeter(runner, self.plan.context)
        self.costs = self.meter.measure(draft_kinds(used))

    def _warm_up_prefill(self) -> None:
        """A prompt of each padded length, with every way: the first waits for what libraries prepare for it."""
        by_steps = {-(-(len(tokens) - 1) // PREFILL_STEP): tokens for _, tokens in self.prompts}
        for tokens in by_steps.values():
            for way in self.ways:
                way.first_token_seconds(self.engine, tokens)

    def _warm_up_tokens(self, way: Way) -> int:
        """All of them where something is compiled or captured on the way; it must not happen while measuring."""
        if way.is_compiled or (not way.is_peer and self.engine.device.type == "cuda"):
            return self.plan.warm_up_tokens or way.num_tokens
        return min(self.plan.warm_up_tokens or SHORT_TOKENS, way.num_tokens)

    def _measure_prompts(self) -> None:
        """The first prompt is always measured; a prompt that was interrupted counts for no way."""
        began, count = time.perf_counter(), len(self.prompts)
        try:
            for prompt, tokens in self.prompts:
                if self.num_measured and self._seconds_left() <= 0:
                    self.say(f"time is up after {self.num_measured} of {count} prompts")
                    break
                self._measure(prompt, tokens)
                self.num_measured += 1
                each = (time.perf_counter() - began) / self.num_measured
                left = min(each * (count - self.num_measured), max(self._seconds_left(), 0))
                self.say(f"{self.num_measured}/{count} prompts, about {left / 60:.1f} minutes left")
                self.save(self.document())
        except KeyboardInterrupt:
            if not self.num_measured:
                raise
            self.is_interrupted = True
            self.say(f"interrupted after {self.num_measured} of {count} prompts")

    def _seconds_left(self) -> float:
        if self.plan.seconds is None:
            return float("inf")
        return self.began + self.plan.seconds - time.perf_counter()

    def _measure(self, prompt: BenchPrompt, tokens: list[int]) -> None:
        shift = self.num_measured % len(self.ways)  # nobody pays for all first times
        with self.watch.watching():
            outputs = [(way, way.measure(self.engine, tokens)) for way in (*self.ways[shift:], *self.ways[:shift])]
        plain = next(output.tokens for way, output in outputs if output is not None and way.is_plain)
        judged = [
            (way, output, None if way.is_plain else self.engine.compare(tokens, plain[: way.num_tokens], output.tokens))
            for way, output in outputs
            if output is not None
        ]
        for way, output, comparison in judged:
            if comparison is not None and comparison.verdict != "equal":
                self.differences[way.label].append(difference(prompt.id, prompt.domain, comparison))
            self.totals[way.label][prompt.domain] += total_of(output, way, comparison)

    def _soak(self) -> None:
        ours = [way for way in self.ways if not way.is_peer]
        soak = Soak(self.engine, ours, [tokens for _, tokens in self.prompts], self.plan.max_new_tokens)
        try:
            soak.run(self.plan.soak, self.say)
        except KeyboardInterrupt:
            self.is_interrupted = True
            self.say("soak: interrupted")
        self.soak_figures = soak.figures()

    def document(self) -> dict[str, Any]:
        """All that is known so far; report.py and plot.py read nothing else."""
        self.meter.add_drafts(
            self.costs, draft_kinds(total.rounds for by in self.totals.values() for total in by.values())
        )
        baseline = self._baseline()
        measured = [prompt for prompt, _ in self.prompts[: self.num_measured]]
        return {
            "benchmark": "gpu",
            **self.circumstances,
            "prompts": dict(Counter(prompt.domain for prompt in measured)),
            "is_complete": self.num_measured == len(self.prompts) and not self.is_interrupted,
            "seconds": time.perf_counter() - self.began,
            "baseline": baseline.name if baseline else None,
            "rows": [self._row(way, baseline) for way in self.ways],
            "costs": self._cost_figures(),
            "graphs": {**graph_figures(self.engine.runner), "while_measuring": self.watch.figures()},
            "ready_seconds": self.ready_seconds,
            "prepare_seconds": self.prepare_seconds,
            "memory": memory_bytes(self.engine.device),
            "soak": self.soak_figures,
        }

    def _baseline(self) -> Way | None:
        peers = {way.name: way for way in self.ways if way.is_peer and way.error is None}
        return next((peers[name] for name in BASELINES if name in peers), None)

    def _row(self, way: Way, baseline: Way | None) -> dict[str, Any]:
        row = {
            "name": way.name,
            "label": way.label,
            "kind": "peer" if way.is_peer else "ours",
            "options": dict(way.options),
            "max_new_tokens": way.num_tokens,
            "warm_up_seconds": way.warm_up_seconds,
            "error": way.error,
        }
        if way.error is not None:
            return row
        domains = {name: self._figures(way, baseline, name) for name in self.totals[way.label]}
        whole = self._figures(way, baseline, None)
        return {**row, "domains": domains, "total": whole, "differences": self.differences[way.label]}

    def _figures(self, way: Way, baseline: Way | None, domain: str | None) -> dict[str, Any]:
        def pick(chosen: Way) -> Total:
            by_domain = self.totals[chosen.label]
            return add_up(by_domain.values()) if domain is None else by_domain[domain]

        base = pick(baseline) if baseline else None
        plain = next(other for other in self.ways if other.is_plain)
        return figures(pick(way), base, pick(plain), self.costs, self.info.pass_bytes / self.bandwidth)

    def _cost_figures(self) -> dict[str, Any]:
        return {
            "context": self.meter.context,
            "width_ms": {str(width): 1000 * seconds for width, seconds in self.costs.width_seconds.items()},
            "drafts": [self._draft_figures(draft, seconds) for draft, seconds in self.costs.draft_seconds.items()],
            "pass_bytes": self.info.pass_bytes,
            "copy_bytes_per_second": self.bandwidth,
            "floor_ms": 1000 * self.info.pass_bytes / self.bandwidth,
        }

    def _draft_figures(self, draft: DraftKind, seconds: float) -> dict[str, Any]:
        return {
            "skip": str(draft.skip),
            "vocabulary": draft.vocabulary,
            "ms": 1000 * seconds,
            "ratio": seconds / self.costs.verify_seconds(1),
            "ratio_by_weights": self._weight_share(draft),
            "ways": self._ways_with(draft),
        }

    def _weight_share(self, draft: DraftKind) -> float:
        """A recorded draft reads no more of the head than it proposes tokens."""
        shares = [(layer.attention_share, layer.mlp_share) for layer in self.info.layers]
        unread = 0.0
        if self.costs.is_recorded and draft.vocabulary:
            unread = self.info.head_share * max(0.0, 1 - draft.vocabulary / self.info.vocab_size)
        return weight_share(shares, draft.skip) - unread

    def _ways_with(self, draft: DraftKind) -> list[str]:
        rounds = {way.name: [total.rounds for total in self.totals[way.label].values()] for way in self.ways}
        return [name for name, counters in rounds.items() if draft in draft_kinds(counters)]
