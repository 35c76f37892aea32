"""What is learned on prompts that are not measured: SWIFT's search, and the one of Self-SD. Both are kept.

The paper's streams are so long that its search is over soon; here it is given seconds of its own beforehand.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ....calibrate.kit import EngineKit, Workshop
from ....calibrate.texts import digest
from ....fitting import CalibrationPrompt
from ....profiles.key import as_file_name
from ....profiles.profile import Artefact
from ....profiles.store import Store
from ....strategies.draft_verify import DraftVerify
from ....strategies.swift_search import SwiftOptions
from ...search.learning import as_calibration
from ...selection.calibration import journal
from ..tasks import Task
from ..workbench import Learned, Workbench
from .methods import swift

TEXT_TOKENS = 512
"""Of a text to learn from, as in the paper's analyses."""
_KEPT = "lesson"


def swift_lesson(bench: Workbench, task: Task, **options: Any) -> Learned:
    """SWIFT as its paper has it, behind some seconds of text; `options`: of the strategy."""
    method, seconds = swift(**options), bench.scale.lesson_seconds
    prompts = as_calibration(task.learned, bench.engine)
    name = "-".join(["swift-paper", task.name, *(f"{key}-{value}" for key, value in options.items())])
    found = _kept(bench, name, prompts, seconds, method, lambda: _practise(bench, method, prompts, seconds))
    return Learned("swift", found["facts"], {"swift": Artefact.of(found["state"])})


def _practise(
    bench: Workbench, method: Mapping[str, Any], prompts: Sequence[CalibrationPrompt], seconds: float
) -> dict[str, Any]:
    """Text after text until the search or the time is over, or all prompts brought nothing: texts may be too short."""
    engine, began = bench.apart(), time.monotonic()
    strategy: Any = engine.method(**method).strategy
    stats, num_idle = [], 0

    def is_over() -> bool:
        return bool(strategy.is_settled) or time.monotonic() - began >= seconds

    for prompt in itertools.cycle(prompts):
        if is_over() or num_idle >= len(prompts):
            break
        progress = strategy.progress
        stats.append(engine.generate(prompt.tokens, max_new_tokens=TEXT_TOKENS, cancel=is_over, **method).stats)
        num_idle = num_idle + 1 if strategy.progress == progress else 0
    state = strategy.state()
    facts = {
        "num_steps": state["step"],
        "num_bayesian": state["step"] // SwiftOptions().interval,
        "matchness": state["matchness"],
        "skip": state["skip"],
        "is_over": strategy.is_settled,
        "seconds": time.monotonic() - began,
        "optimise_seconds": sum(one.optimise_seconds for one in stats),
        "num_tokens": sum(one.num_tokens for one in stats),
    }
    return {"facts": facts, "state": state}


def self_sd_lesson(
    bench: Workbench, task: Task, *, seconds: float, num_prompts: int = 8, num_tokens: int = 32
) -> Mapping[str, Any]:
    """The fastest set that drafts (`skip`; None: none was tried), sets tried, seconds, its speed and the plain one;
    `num_prompts`: that there were to try each set on.

    Unlike `draft-verify` it does not decode plainly where that was faster: the paper's Self-SD drafts in any case.
    """
    prompts = as_calibration(task.learned, bench.engine)
    options = DraftVerify.Options(num_prompts=num_prompts, num_tokens=num_tokens)
    asked = {"num_prompts": num_prompts, "num_tokens": num_tokens}
    name = f"self-sd-{task.name}-{num_prompts}-{num_tokens}-{seconds:g}"
    return _kept(bench, name, prompts, seconds, asked, lambda: _search(bench, options, prompts, seconds))


def _search(
    bench: Workbench, options: DraftVerify.Options, prompts: Sequence[CalibrationPrompt], seconds: float
) -> dict[str, Any]:
    engine, began = bench.apart(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        pages = partial(journal, Store(Path(folder)), engine.knowledge.key)
        workshop = Workshop(engine, bench.latency, bench.scale.lesson_tokens, pages)
        kit = _SearchKit(
            workshop, prompts, lambda: workshop.write(prompts), workshop.journal("self-sd"), seconds, "self-sd"
        )
        DraftVerify.fit(kit, options)
        speeds = {step["skip"]: step["tokens_per_second"] for step in kit.done}
    plain = speeds.pop("")
    best = max(speeds, key=lambda skip: speeds[skip], default=None)
    return {
        "skip": best,
        "num_steps": len(speeds),
        "num_prompts": min(options.num_prompts, len(prompts)),
        "seconds": time.monotonic() - began,
        "tokens_per_second": None if best is None else speeds[best],
        "plain": plain,
    }


class _SearchKit(EngineKit):
    """Behind plain decoding there is time for one set in any case."""

    def has_time(self) -> bool:
        return super().has_time() or len(self.done) < 2


def _kept(
    bench: Workbench,
    name: str,
    prompts: Sequence[CalibrationPrompt],
    seconds: float,
    asked: Mapping[str, Any],
    find: Callable[[], Mapping[str, Any]],
) -> Mapping[str, Any]:
    """What was found before, if it was asked the same."""
    question = Artefact({"prompts": digest(prompts), "seconds": seconds, "asked": asked}).values
    store, key = Store(bench.folder / as_file_name(name)), bench.engine.knowledge.key
    profile = store.load(key)
    known = profile.artefacts.get(_KEPT) if profile else None
    if known is None or known.values["question"] != question:
        bench.say(f"{name} learns, for at most {seconds:.0f} s")
        known = Artefact({"question": question, "found": find()})
        store.update(key, _KEPT, known)
    found: Mapping[str, Any] = known.values["found"]
    return found
