"""The tables of the methods that choose which sub-layers to skip: one process, one model, everything greedy.

What is fitted is fitted on prompts that are not measured. For each prompt all ways take turns, plain decoding among
them; every output is compared with the plain one. The plain texts are also what the frontier of `prune` is judged by.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...calibrate.texts import Text, look_at
from ...engine.engine import Engine
from ...errors import OptionError
from ...models.load.info import describe
from ...types import Generation
from ..circumstances import circumstances
from ..long_prompts import long_prompts
from ..pace import Pace
from ..prompts import BenchPrompt, encode
from .calibration import Calibration, Recipe, calibrate
from .contexts import weights_at
from .held_out import HeldOut
from .methods import context_methods, table_methods
from .sums import Prices
from .turns import Turns, texts_to_warm_up

TABLES, CONTEXTS, ALL = "tables", "contexts", "all"
PARTS = (TABLES, CONTEXTS, ALL)
_WARM_UP_LENGTH = 64
"""Of a long prompt, where nothing is recorded for its length."""


@dataclass(frozen=True)
class SelectionPlan:
    """What to measure. `variants`: rows beside the known strategies; `seconds`: begin no prompt later than that.

    `held_out_tokens`: of each text that the frontier is judged by, which takes a pass for each of its points.
    """

    recipe: Recipe
    prompts: Sequence[BenchPrompt] = ()
    variants: Sequence[str] = ()
    max_new_tokens: int = 128
    held_out_tokens: int = 64
    contexts: Sequence[int] = ()
    articles: Sequence[str] = ()
    context_prompts: int = 2
    context_tokens: int = 64
    seconds: float | None = None


@dataclass
class SelectionBench:
    """One run. `began` is when the command did; `say` shows progress; `save` keeps what is complete so far."""

    model: Any
    tokenizer: Any
    plan: SelectionPlan
    began: float = field(default_factory=time.perf_counter)
    say: Callable[[str], None] = lambda text: None
    save: Callable[[dict[str, Any]], object] = lambda document: None
    name: str | None = None
    calibration: Calibration = field(init=False)
    tables: Turns | None = None
    held_out: HeldOut | None = None
    contexts: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pace = Pace(self.began, self.plan.seconds, self.say)
        self.engine = Engine(self.model, self.tokenizer, profile=None, name=self.name)
        runner = self.engine.runner
        self.num_layers = runner.num_layers
        self.circumstances = circumstances(runner)
        self.info = describe(runner.decoder)
        self.prompts = [(prompt, encode(prompt, self.engine)) for prompt in self.plan.prompts]
        self.methods, self.rows = table_methods(self.num_layers, self.plan.variants)
        limit = self.engine.context_length
        for length in self.plan.contexts:
            if not self.plan.context_tokens < length <= (limit or length):
                raise OptionError(
                    f"cannot measure behind {length} tokens: give lengths from {self.plan.context_tokens + 1} "
                    f"(the new tokens and one before them) to {limit}, what the model's context holds"
                )

    def run(self) -> dict[str, Any]:
        self.calibration = calibrate(self.engine, self.plan.recipe, self.say)
        self.prices = Prices.of(self.info, self.calibration.latency)
        self.save(self.document())
        if self.prompts:
            self._measure_tables()
        for length in self.plan.contexts:
            self._measure_context(length)
        return self.document()

    # ------------------------------------------------------------------------------------------------- the tables

    def _measure_tables(self) -> None:
        """The first prompt is measured in any case."""
        self.tables = Turns(self.engine, self.calibration.profile, self.methods, self.prices)
        self.held_out = HeldOut(self.calibration.points, self.prices)
        self.say(f"warming up {len(self.tables.arms)} ways")
        self.tables.warm_up(self._texts_to_warm_up(), self.plan.max_new_tokens)
        for prompt, tokens in self.pace.each(self.prompts, "prompts"):
            plain = self.tables.measure(prompt.id, prompt.domain, tokens, self.plan.max_new_tokens)
            self._look_at(prompt.domain, tokens, plain)
            self.save(self.document())

    def _texts_to_warm_up(self) -> list[Sequence[int]]:
        texts = (encode(prompt, self.engine) for prompt in self.plan.recipe.prompts)
        return texts_to_warm_up(texts, max(len(tokens) for _, tokens in self.prompts), self._is_recorded)

    def _look_at(self, domain: str, prompt: Sequence[int], plain: Generation) -> None:
        """At the tokens behind which the model generated its text."""
        assert self.held_out is not None
        text = Text((*prompt, *plain.tokens[: self.plan.held_out_tokens]), len(prompt))
        self.held_out.add(domain, look_at(text, self.engine.runner), len(prompt) - 1, text.num_generated)

    # ------------------------------------------------------------------------------------------------- long texts

    def _measure_context(self, length: int) -> None:
        """With strategies that know no other length."""
        if self.pace.is_late:
            self.say(f"time is up before texts of {length} tokens")
            return
        num_tokens = self.plan.context_tokens
        count = self.plan.context_prompts + 1
        *prompts, other = long_prompts(self.plan.articles, self.tokenizer, length - num_tokens, count)
        methods = context_methods(self.num_layers, self.plan.variants)
        turns = Turns(self.engine, self.calibration.profile, methods, self.prices)
        self.say(f"texts of {length} tokens: warming up {len(turns.arms)} ways")
        turns.warm_up([other if self._is_recorded else other[:_WARM_UP_LENGTH]], num_tokens)
        self.contexts.append({"length": length})
        for count, prompt in enumerate(self.pace.each(prompts, f"texts of {length} tokens"), start=1):
            turns.measure(f"{length}-{count}", str(length), prompt, num_tokens)
            weights = weights_at(self.calibration.latency, length)
            self.contexts[-1] = {"length": length, "num_prompts": count, "weights": weights, "ways": turns.rows()}
            self.save(self.document())

    # -------------------------------------------------------------------------------------------------- bookkeeping

    @property
    def _is_recorded(self) -> bool:
        """Where passes are recorded for caches of each size, all of these must be met before measuring."""
        return self.engine.runner.is_recording

    @property
    def _is_complete(self) -> bool:
        num_measured = self.tables.num_measured if self.tables else 0
        wanted = [(length, self.plan.context_prompts) for length in self.plan.contexts]
        found = [(context["length"], context.get("num_prompts")) for context in self.contexts]
        return num_measured == len(self.prompts) and wanted == found

    def document(self) -> dict[str, Any]:
        """All that is known so far; report.py and plot.py read nothing else."""
        measured = [prompt for prompt, _ in self.prompts[: self.tables.num_measured if self.tables else 0]]
        has_figures = bool(measured and self.tables and self.held_out)
        return {
            "benchmark": "selection",
            **self.circumstances,
            "num_layers": self.num_layers,
            "is_complete": self._is_complete,
            "seconds": time.perf_counter() - self.began,
            "calibration": self.calibration.figures(),
            "latency": self.calibration.latency.to_json(),
            "prompts": dict(Counter(prompt.domain for prompt in measured)),
            "held_out": self.held_out.figures() if has_figures and self.held_out else None,
            "tables": self.rows,
            "ways": self.tables.rows() if has_figures and self.tables else [],
            "contexts": [context for context in self.contexts if "ways" in context],
        }


def has_difference(document: dict[str, Any]) -> bool:
    """Whether some output is another than that of plain decoding, by more than rounding."""
    rows = [*document["ways"], *(row for context in document["contexts"] for row in context["ways"])]
    return any(row["total"]["different"] for row in rows)
