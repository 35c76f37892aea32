"""What the parts of the benchmark share: the model, what it costs, how ways are warmed up, and the document."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...calibrate.texts import Text
from ...engine.engine import Engine
from ...errors import SelfdraftError
from ...models.load.info import ModelInfo, describe
from ...profiles.profile import Profile
from ..pace import Say
from ..prompts import BenchPrompt, encode
from ..selection.sums import Prices
from ..selection.turns import texts_to_warm_up
from .learning import School
from .turns import TextTurns


@dataclass(frozen=True)
class Bench:
    """`school`: has measured the passes; `save`: keeps all that is known so far."""

    engine: Engine
    school: School
    max_new_tokens: int
    held_out_tokens: int
    learned_tokens: int
    seed: int
    say: Say
    save: Callable[[], object]

    @cached_property
    def info(self) -> ModelInfo:
        return describe(self.engine.runner.decoder)

    @cached_property
    def prices(self) -> Prices:
        return Prices.of(self.info, self.school.latency)

    @property
    def num_layers(self) -> int:
        return self.engine.runner.num_layers

    def encode(self, prompts: Sequence[BenchPrompt]) -> list[list[int]]:
        return [encode(prompt, self.engine) for prompt in prompts]

    def turns(self, profile: Profile, methods: Mapping[str, Mapping[str, Any]]) -> TextTurns:
        """Of those that can be built; others are left out, and that is said."""
        return TextTurns(self.engine, profile, self._usable(profile, methods), self.prices, self.seed)

    def _usable(self, profile: Profile, methods: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
        """A strategy whose time to learn was too short may have nothing to go by."""
        engine, found = copy.copy(self.engine), {}
        engine.remember(profile)
        for name, method in methods.items():
            try:
                engine.method(**method)
                found[name] = method
            except SelfdraftError as error:
                self.say(f"{name} is left out: {error}")
        return found

    def warm_up(self, turns: TextTurns, kept_apart: Sequence[BenchPrompt], measured: Sequence[Sequence[int]]) -> None:
        """On prompts that are not measured; nothing of it is learned."""
        self.say(f"warming up {len(turns.arms)} ways")
        is_recorded = self.engine.runner.is_recording
        longest = max(len(tokens) for tokens in measured)
        turns.warm_up(texts_to_warm_up(self.encode(kept_apart), longest, is_recorded), self.max_new_tokens)

    def plain_text(self, prompt: Sequence[int], tokens: Sequence[int]) -> Text:
        """As far as sets are judged by it."""
        return Text((*prompt, *tokens[: self.held_out_tokens]), len(prompt))

    def plain_texts(self, prompts: Sequence[BenchPrompt]) -> list[Text]:
        """What the model says behind them."""
        found = []
        for tokens in self.encode(prompts):
            plain = self.engine.generate(tokens, max_new_tokens=self.held_out_tokens, strategy="off")
            found.append(self.plain_text(tokens, plain.tokens))
        return [text for text in found if text.num_generated]
