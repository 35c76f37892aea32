"""The parts of methods that an engine has built: kept across calls, for what they learn about the model stays."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

from ..errors import OptionError
from ..options import Settings
from ..profiles import learned
from ..profiles.profile import Artefact
from ..profiles.store import Store
from ..protocols import DraftedBy, Host, Strategy
from ..registry import AXES, DEFAULTS, DRAFTING, find, options_for
from .knowledge import EngineKnowledge
from .method import Method, Parts

_LEARNING_AXES = ("strategy", "lookahead")
_SHARED_AXES = ("tree", "acceptance")
"""What forks share: recordings are found by the acceptance, and neither learns anything."""
_OBJECTS = {"lookahead": ("wants_more", "observe", "end", "max_tokens"), "acceptance": ("candidates", "accept")}
"""Axes that take an object of the caller's, and what it must have."""


class BuiltParts:
    """Finds the parts of a method by name, or builds them."""

    def __init__(self, host: Host, knowledge: EngineKnowledge) -> None:
        self._host, self.knowledge = host, knowledge
        self.built: dict[Any, Any] = {}
        self.kept: dict[str, Any] = {}  # strategies whose state is kept for the next process, by name

    def fork(self, knowledge: EngineKnowledge) -> BuiltParts:
        """Parts that have seen no text."""
        return self._with(knowledge, lambda axis: axis in _SHARED_AXES)

    def remember(self, knowledge: EngineKnowledge) -> BuiltParts:
        """Those that go by what is known of the model are built again."""
        return self._with(knowledge, lambda axis: axis not in _LEARNING_AXES)

    def _with(self, knowledge: EngineKnowledge, keeps: Any) -> BuiltParts:
        other = BuiltParts(self._host, knowledge)
        other.built = {key: part for key, part in self.built.items() if keeps(key[0])}
        return other

    def forget(self) -> None:
        """A lookahead stays the same object, for what was recorded with it is found by it."""
        self.kept.clear()
        self.knowledge.has_forgotten = True
        self.built = {key: part for key, part in self.built.items() if key[0] != "strategy"}
        for key, part in self.built.items():
            if key[0] in ("lookahead", "drafter"):
                part.forget()

    def method(self, names: Mapping[str, Any]) -> Method:
        """`names`: one for each axis, and settings, nothing left open."""
        settings: Settings = names["settings"]
        return Method(
            strategy=self._part("strategy", names["strategy"], settings, self.knowledge.for_methods),
            lookahead=self._lookahead(names, settings),
            drafters=Parts(lambda name: self._part("drafter", name, settings, self._host), names["drafter"]),
            drafter=names["drafter"],
            trees=Parts(lambda name: self._part("tree", name, settings), names["tree"]),
            tree=names["tree"],
            accept=self._acceptance(names["acceptance"]),
        )

    def _lookahead(self, names: Mapping[str, Any], settings: Settings) -> Any:
        """What it learns about drafts is about those of one strategy and one drafter."""
        chosen = names["lookahead"]
        if not isinstance(chosen, str):
            check_part("lookahead", chosen)
            return chosen
        strategy = DRAFTING if names["strategy"] == DEFAULTS["strategy"] else names["strategy"]  # `auto` has many
        axes = (("strategy", strategy), ("drafter", names["drafter"]))
        drafts = (part for axis in axes for part in (axis[1], options_for(*axis, settings)))
        drafted_by = DraftedBy(*drafts)
        return self._part("lookahead", chosen, settings, self.knowledge.for_methods, drafted_by, about=drafted_by)

    def _acceptance(self, name: Any) -> Any:
        """One object for all calls: what is recorded for it is found again."""
        if not isinstance(name, str):
            check_part("acceptance", name)
            return name
        key = ("acceptance", name)
        if key not in self.built:
            self.built[key] = find(*key)()
        return self.built[key]

    def _part(self, axis: str, name: str, settings: Settings, *arguments: Any, about: Hashable = None) -> Any:
        options = options_for(axis, name, settings)
        key = (axis, name, options, about)
        if key not in self.built:
            self.built[key] = find(axis, name)(options, *arguments)
            if axis == "strategy" and self.built[key].is_kept:
                self.kept.setdefault(name, self.built[key])
        return self.built[key]

    def save(self, name: str, strategy: Strategy) -> Path:
        """What it has learned, and where that is."""
        key = self.knowledge.key
        if strategy.is_kept:
            return learned.save(key, name, strategy.state()) if self.knowledge.keeps else learned.refuse()
        if not strategy.learns_online:
            raise OptionError(
                f"the strategy {name!r} learns nothing while it generates, so there is nothing to save; leave it out"
            )
        state = {**strategy.state(), "is_complete": strategy.is_settled, "trials": []}
        Store().update(key, name, Artefact.of(state))
        return Store().path_of(key)


def check_part(axis: str, value: Any) -> None:
    """Raise for what is neither a name of the axis nor, where it takes one, an object of the caller's."""
    if isinstance(value, str) or axis not in _OBJECTS:
        find(axis, value)
    elif isinstance(value, type) or not all(hasattr(value, name) for name in _OBJECTS[axis]):
        raise OptionError(
            f"{axis} must be a name ({', '.join(AXES[axis])}) or an object with {', '.join(_OBJECTS[axis])}, "
            f"got {value!r}"
        )
