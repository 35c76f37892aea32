"""What may change under a decoder between two texts: modules, weights, hooks, adapters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

_ADAPTER_STATE = ("_active_adapter", "_disable_adapters", "merged_adapters", "scaling")


class Watched:
    """A model's modules, found once: another one would be somebody's child."""

    def __init__(self, model: Any) -> None:
        self._states = [vars(module) for module in model.modules()]

    @property
    def hooks(self) -> list[Any]:
        """What runs before or after the modules. accelerate's, which bring offloaded weights, are apart."""
        apart = [state["_hf_hook"] for state in self._states if "_hf_hook" in state]
        return [*_members(self._states, "_forward_pre_hooks"), *_members(self._states, "_forward_hooks"), *apart]

    @property
    def num_writes(self) -> int:
        """How often weights were changed where they are; what goes through `.data` leaves no trace."""
        return sum(
            weight._version
            for weight in _members(self._states, "_parameters")
            if weight is not None and not weight.is_inference()
        )

    def fingerprint(self) -> list[Any]:
        """Looked at before every text."""
        weights = [weight is not None and weight.data_ptr() for weight in _members(self._states, "_parameters")]
        own = [(place, _own(state)) for place, state in enumerate(self._states) if _acts(state)]
        return [*_members(self._states, "_modules"), *weights, *own]


def _members(states: Sequence[dict[str, Any]], name: str) -> Iterator[Any]:
    """Of all modules: their children, parameters or hooks."""
    return chain.from_iterable(map(dict.values, filter(None, map(itemgetter(name), states))))


def _acts(state: dict[str, Any]) -> bool:
    marks = "forward" in state or "_hf_hook" in state or "_active_adapter" in state
    return marks or bool(state["_forward_hooks"] or state["_forward_pre_hooks"])


def _own(state: dict[str, Any]) -> tuple[Any, ...]:
    """What acts in one module beside its class: PEFT's adapters can be switched, merged and scaled at any time."""
    hooks = [tuple(state[name].values()) for name in ("_forward_pre_hooks", "_forward_hooks")]
    return hooks, state.get("_hf_hook"), state.get("forward"), str([state.get(name) for name in _ADAPTER_STATE])
