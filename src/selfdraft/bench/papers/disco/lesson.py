"""What must be known before DISCO is measured: what drafts, and of each task a classifier and other rules' settings.

The paper's draft is another, smaller model. Ours is the model itself without some sub-layers, one set for all tasks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ....calibrate.lookahead import check_enough
from ....calibrate.texts import digest, hold_out
from ....calibrate.tuning import Candidate
from ....fitting import CalibrationPrompt
from ....lookahead.disco import artefact_name
from ....profiles.key import ProfileKey
from ....profiles.profile import Artefact
from ....profiles.store import Store
from ....registry import options_for
from ....types import FrontierPoint
from ...lookahead.learning import School
from ...prompts import BenchPrompt, in_turn
from ...search.learning import as_calibration
from ..recipe import Unit, Values
from ..tasks import Tasks
from ..workbench import Learned, Workbench

TASKS = ("mbpp", "humaneval", "cnn-dm", "alpaca")
TEACHERS = {"humaneval": "mbpp"}
"""HumanEval has nothing to learn from: it goes by what MBPP taught."""
TAUGHT = tuple(name for name in TASKS if name not in TEACHERS)
PAPER_PROMPTS, PAPER_VALIDATION = 80, 80
PAPER_TRAINING = {"mbpp": 374, "cnn-dm": 500, "alpaca": 500}

HEURISTIC, STATIC_5, STATIC_OPT = "dynHeur SL", "static SL-5", "static SL-opt"
DISCO, ORACLE, PERPLEXITY = "DISCO", "oracle", "ppl SL-opt"
CLASSIFIER = artefact_name("self")

MIN_MATCH = 0.7
"""The paper's oracles keep 2.4 tokens a round or more: their drafts are right at least seven times in ten."""
_LEAST_LEARNED = 8
"""Prompts of a task to learn from, where there are so many: fewer tokens would teach a classifier nothing."""
_DRAFT = "draft"
"""The artefact that says what drafts."""
_DRAFT_LESSONS = 3.0
"""Of the seconds of other lessons: this one is for all tasks."""

# ------------------------------------------------------------------------------------------------------ prompts


def learned_prompts(bench: Workbench, name: str) -> Sequence[BenchPrompt]:
    """That a task, or its teacher, learns from."""
    count = max(_LEAST_LEARNED, bench.scale.learned_prompts)
    task = Tasks(bench.prompts, bench.scale.prompts, count, bench.seed).find(TEACHERS.get(name, name))
    return task.learned if task else ()


def measured_prompts(bench: Workbench, name: str) -> list[BenchPrompt]:
    """None of them was learned from, in any task: prompts of ours may stand for two data sets."""
    task = Tasks(bench.prompts, len(bench.prompts), 0, bench.seed).find(name)
    known = {prompt.id for other in TAUGHT for prompt in learned_prompts(bench, other)}
    unseen = [prompt for prompt in task.measured if prompt.id not in known] if task else []
    return unseen[: bench.scale.prompts]


def label(bench: Workbench, name: str) -> str:
    task = bench.tasks.find(name)
    return task.label if task else name


def units(bench: Workbench, names: Sequence[str], measure: Callable[[str], Values], prefix: str = "") -> Iterator[Unit]:
    """One of each task; each says what its row is called."""
    for name in names:
        missing = _why_missing(bench, name)
        yield Unit(prefix + name, None if missing else partial(_labelled, bench, name, measure), missing)


def _why_missing(bench: Workbench, name: str) -> str | None:
    teacher = TEACHERS.get(name, name)
    for needed in (name, teacher):
        if bench.tasks.find(needed) is None:
            return bench.tasks.why_missing(needed)
    if not measured_prompts(bench, name):
        return f"all prompts of its kind are learned from ({teacher}); name a file of others with --prompts"
    return None


def _labelled(bench: Workbench, name: str, measure: Callable[[str], Values]) -> Values:
    return {"label": label(bench, name), **measure(name)}


def encoded(bench: Workbench, name: str, prompts: Sequence[BenchPrompt]) -> list[CalibrationPrompt]:
    """All of one domain, the task's."""
    return [replace(prompt, domain=name) for prompt in as_calibration(prompts, bench.engine)]


def longer(bench: Workbench, factor: int) -> int:
    """Tokens of texts that are few, or written together: where texts are quick and short, these are not so short."""
    return bench.scale.tokens * (factor if bench.scale.is_quick else 1)


# ----------------------------------------------------------------------------------------------------- what drafts


def draft(bench: Workbench) -> dict[str, Any]:
    """Without what a short elimination, on prompts of all tasks, found superfluous; else without every fourth layer.

    What was chosen is kept: an elimination that found nothing is not asked again by every unit.
    """
    prompts = in_turn(prompt for name in TAUGHT for prompt in learned_prompts(bench, name))
    seconds = _DRAFT_LESSONS * bench.scale.lesson_seconds
    question = {
        "prompts": digest(as_calibration(prompts, bench.engine)),
        "seconds": seconds,
        "tokens": bench.scale.lesson_tokens,
    }
    store, key = Store(bench.folder / "disco-draft"), bench.engine.knowledge.key
    known = _kept(store, key, _DRAFT)
    if known is None or known.values["question"] != question:
        found = bench.learn("disco-prune", {"strategy": "prune"}, prompts, seconds).values
        known = Artefact({"question": question, "skip": chosen_skip(found.get("frontier", ()))})
        store.update(key, _DRAFT, known)
    if skip := known.values["skip"]:
        return {"strategy": "fixed", "tree": "chain", "settings": {"fixed": {"skip": skip}}}
    return {"strategy": "uniform", "tree": "chain", "settings": {}}


def _kept(store: Store, key: ProfileKey, name: str) -> Artefact | None:
    profile = store.load(key)
    return profile.artefacts.get(name) if profile else None


def chosen_skip(frontier: Sequence[Mapping[str, Any]]) -> str:
    """The cheapest draft that is right as often as the paper's; where none is, the one that skips least."""
    points = [point for point in map(FrontierPoint.from_json, frontier) if point.skip]
    points.sort(key=lambda point: len(point.skip))
    right = [point for point in points if point.match >= MIN_MATCH]
    chosen = right[-1] if right else next(iter(points), None)
    return str(chosen.skip) if chosen else ""


def shown_draft(method: Mapping[str, Any]) -> str:
    skip = method["settings"].get("fixed", {}).get("skip")
    return f"the model itself without {skip}" if skip else "the model itself without every fourth layer"


def draft_notes(drafts: Iterable[str]) -> list[str]:
    """Of what drafted, as `shown_draft` says it; for a section."""
    return [
        f"drafted by {what}, the same for all tasks; the paper drafts with a separate, smaller model, as `selfdraft "
        "bench lookahead --drafter model --set model.source=NAME` does"
        for what in dict.fromkeys(drafts)
    ]


# -------------------------------------------------------------------------------------------------- what tasks teach


def taught(bench: Workbench, name: str) -> Learned:
    """The classifier of a task or of its teacher, with what else was chosen; asked the same again, it is read.

    About a quarter of the prompts to learn from is held out, to choose settings with.
    """
    teacher = TEACHERS.get(name, name)
    prompts = encoded(bench, teacher, learned_prompts(bench, teacher))
    check_enough((prompt.domain, prompt.tokens) for prompt in prompts)
    question = {"prompts": digest(prompts), "tokens": longer(bench, 2), "method": draft(bench)}
    store, key = Store(bench.folder / f"disco-{teacher}"), bench.engine.knowledge.key
    known = _kept(store, key, CLASSIFIER)
    if known is None or known.values.get("question") != question:
        bench.say(f"disco learns from {len(prompts)} prompts of {teacher}")
        known = _learn(bench, question, prompts)
        store.update(key, CLASSIFIER, known)
    return Learned(CLASSIFIER, known.values, {CLASSIFIER: known})


def _learn(bench: Workbench, question: Mapping[str, Any], prompts: Sequence[CalibrationPrompt]) -> Artefact:
    """As `train_lookahead` would keep it, but with settings chosen by replay alone, as those of the other rules are."""
    began = time.perf_counter()
    method = question["method"]
    training, validation = hold_out(prompts)
    school = School(bench.engine.fork(), method, question["tokens"], bench.say)
    lesson = school.learn(training, validation).by_domain[prompts[0].domain]
    values = {
        **lesson.classifier.values(),
        "drafter": "self",
        "fingerprint": bench.engine.knowledge.key.fingerprint,
        "strategy": method["strategy"],
        "strategy_options": repr(options_for("strategy", method["strategy"], method["settings"])),
        "draft": shown_draft(method),
        "question": question,
        "best": {name: dict(candidate.options) for name, candidate in lesson.best.items()},
        "match": lesson.match,
        "num_train": len(training),
        "num_validation": len(validation),
        "num_train_tokens": lesson.num_train_tokens,
        "seconds": time.perf_counter() - began,
    }
    return Artefact(values, lesson.classifier.arrays())


def ways(learned: Learned, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Rules by the paper's names, all with the same drafts."""
    method, best = learned.facts["question"]["method"], learned.facts["best"]
    every = {
        HEURISTIC: {**method, "lookahead": "heuristic"},
        STATIC_5: Candidate("fixed", {"tokens": 5}).method(method),
        STATIC_OPT: Candidate("fixed", best["fixed"]).method(method),
        PERPLEXITY: Candidate("perplexity", best["perplexity"]).method(method),
        DISCO: {**method, "lookahead": "disco"},
        ORACLE: {**method, "lookahead": "oracle"},
    }
    return {name: every[name] for name in names}
