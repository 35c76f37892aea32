"""What a strategy is fitted with: the interface of the kit that calibration hands to `fit(kit, options)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from .economics import LatencyFit
from .protocols import Probe
from .types import Prompt, SkipSet

Condense = Callable[[Mapping[str, torch.Tensor]], Mapping[str, torch.Tensor]]
"""`Strategy.condense`."""


class Kit(Protocol):
    """A model, prompts, texts that the model wrote after them, and a clock."""

    @property
    def latency(self) -> LatencyFit: ...

    @property
    def prompts(self) -> Sequence[Prompt]:
        """To fit to, in turn from each domain; prompts that methods are tried on are not among them."""
        ...

    @property
    def probes(self) -> Sequence[Probe]:
        """A look at each calibration text: at the tokens that stand before those the model generated."""
        ...

    @property
    def known(self) -> Mapping[str, Any]:
        """What the profile has of the strategy already, values and arrays; empty: nothing."""
        ...

    def hidden(self, prompt: Prompt, points: Sequence[str], condense: Condense) -> Mapping[str, torch.Tensor]:
        """What a strategy with these `prefill_needs` gets to see of a prompt in `begin`."""
        ...

    def tokens_per_second(self, method: Mapping[str, Any], prompts: Sequence[Prompt], num_tokens: int) -> float:
        """Total tokens over total seconds of decoding `num_tokens` after each prompt, greedily, one text at a time.

        `method`: as `Engine.generate` takes it. What recording takes is not counted.
        """
        ...

    @property
    def others(self) -> Sequence[SkipSet]:
        """Sets that were found on other texts, to be judged on these as well."""
        ...

    def among(self, prompts: Sequence[Prompt], name: str, share: float, others: Sequence[SkipSet] = ()) -> Kit:
        """A kit of its own with these prompts and texts after them, for a fit inside this one.

        `name` tells it from others, should the fit be interrupted; `share`: of the time that is left.
        """
        ...

    @property
    def done(self) -> Sequence[Mapping[str, Any]]:
        """What an interrupted fit had kept."""
        ...

    def keep(self, found: Mapping[str, Any]) -> None:
        """Remember a step of the fit, should it be interrupted."""
        ...

    def has_time(self) -> bool:
        """Whether the budget allows another step."""
        ...

    @property
    def is_out_of_time(self) -> bool:
        """Whether a step was refused so far: what was found is not all that there is."""
        ...

    def progress(self, share: float) -> None:
        """What share of the fit is done."""
        ...
