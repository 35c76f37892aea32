"""What is fitted once and kept: asked the same again, it is read instead.

Everything is kept in profiles of a folder of its own; the user's profiles are neither read nor written.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..engine.engine import Engine
from ..errors import SelfdraftError
from ..models.latency import measure
from ..profiles.key import ProfileKey, as_file_name
from ..profiles.profile import Artefact, Profile, as_json
from ..profiles.store import Store
from ..progress import LogProgress, Say
from ..prompts.arrange import digest
from ..prompts.tokens import encoded
from ..types import Prompt
from .fit_session import PRACTICE_TOKENS, FitSession

_LENGTHS = (64, 512, 2048)  # tokens of context at which passes are timed


def fit_once(
    folder: Path, key: ProfileKey, name: str, question: Mapping[str, Any], fit: Callable[[], Mapping[str, Any]]
) -> Artefact:
    """What `fit` found for this question, now or before."""
    store, asked = Store(folder / as_file_name(name)), as_json(question)
    profile = store.load(key)
    known = profile.artefacts.get(name) if profile else None
    if known is None or known.values.get("question") != asked:
        known = Artefact.of({**fit(), "question": asked})
        store.update(key, name, known)
    return known


def latency_profile(engine: Engine, folder: Path, seconds: float, say: Say) -> Profile:
    """A profile that holds what passes take and nothing else; they are timed where no earlier run did."""
    store, key = Store(folder / "latency"), engine.knowledge.key
    profile = store.load(key)
    if profile is None or profile.latency is None:
        say("timing passes")
        store.set_latency(key, measure(engine.runner, _LENGTHS, seconds, LogProgress(say, "latency")).to_json())
        profile = store.load(key)
    assert profile is not None
    return profile


@dataclass(frozen=True)
class FitRequest:
    """`name` tells the fits of one strategy apart; `method`: the strategy and its settings; `text_tokens`: new ones of
    each text that it practises with, if it learns by generating.
    """

    name: str
    method: Mapping[str, Any]
    prompts: Sequence[Prompt]
    seconds: float
    num_tokens: int
    text_tokens: int = PRACTICE_TOKENS


@dataclass(frozen=True)
class Fitted:
    """What a strategy knows (`artefacts`), and `facts` of fitting it: seconds, num_steps, is_complete, error, ..."""

    strategy: str
    facts: Mapping[str, Any]
    artefacts: Mapping[str, Artefact]

    @property
    def values(self) -> Mapping[str, Any]:
        """Of its artefact; nothing where nothing was fitted."""
        return self.artefacts[self.strategy].values if self.strategy in self.artefacts else {}


def fit_method(engine: Engine, request: FitRequest, folder: Path, say: Say) -> Fitted:
    """Fit a strategy. `engine` knows what passes take. What cannot be fitted has an `error` instead of artefacts."""
    strategy, prompts = str(request.method["strategy"]), [encoded(prompt, engine) for prompt in request.prompts]
    question = {
        "prompts": digest(prompts),
        "tokens": request.num_tokens,
        "text_tokens": request.text_tokens,
        "seconds": request.seconds,
        "settings": dict(request.method.get("settings", {})),
    }
    facts = {"strategy": strategy, "allowed_seconds": request.seconds, "num_prompts": len(prompts), "error": None}

    def fit() -> dict[str, Any]:
        began = engine.runner.seconds()
        found = _fit(engine, request, prompts, say)
        seconds, is_complete = engine.runner.seconds() - began, bool(found["is_complete"])
        own = {"seconds": seconds, "num_steps": _num_steps(found), "is_complete": is_complete}
        return {**found, "facts": {**facts, **own}}

    try:
        artefact = fit_once(folder, engine.knowledge.key, request.name, question, fit)
    except SelfdraftError as error:  # what cannot be fitted is left out, the others are measured
        say(f"{request.name} could not be fitted: {error}")
        return Fitted(strategy, {**facts, "is_complete": False, "num_steps": None, "error": str(error)}, {})
    return Fitted(strategy, artefact.values["facts"], {strategy: artefact})


def _fit(engine: Engine, request: FitRequest, prompts: Sequence[Prompt], say: Say) -> dict[str, Any]:
    """Texts that the model writes for it are part of its seconds, however often others had them written."""
    knowledge, progress = engine.knowledge, LogProgress(say, request.name)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        session = FitSession(
            engine.fork(knowledge.profile),
            request.num_tokens,
            lambda name, **question: store.journal(knowledge.key, name, question),
            progress,
            request.text_tokens,
            say,
        )
        settings = request.method.get("settings", {})
        return session.fit(request.method["strategy"], settings, prompts, request.seconds, name=request.name)


def _num_steps(found: Mapping[str, Any]) -> int | None:
    """Points of a frontier, sets that were tried, steps of a search; of several domains all of them."""
    if "frontier" in found:
        return sum(bool(point["skip"]) for point in found["frontier"])
    if "sets" in found:
        return sum(int(one["num_tried"]) for one in found["sets"].values())
    if "domains" in found:
        parts = [*(domain["found"] for domain in found["domains"]), found.get("general")]
        return sum(_num_steps(part) or 0 for part in parts if part)
    steps: int | None = found.get("step")
    return steps
