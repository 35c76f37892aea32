"""What DISCO's experiments share: prompts, what drafts, what is fitted to a task, and what is measured.

The paper drafts with another, smaller model. Ours is the model itself without some sub-layers, one set for all tasks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ...calibrate.fit_once import Fitted
from ...calibrate.lookahead import check_enough
from ...calibrate.round_seconds import measure_rounds
from ...calibrate.traces import collect
from ...calibrate.training import classifier_hits, f1, static_hits, train, tuned
from ...calibrate.tuning import MAX_TOKENS, Candidate, Replay, rank
from ...lookahead.disco import Classifier, artefact_name
from ...lookahead.oracle import Oracle
from ...progress import LogProgress
from ...prompts.arrange import digest, hold_out, in_turn
from ...prompts.tokens import encoded
from ...registry import options_for
from ...types import FrontierPoint, Generation, Prompt
from .experiment import Found, Unit, Values
from .tasks import Task
from .workbench import Workbench

TASKS = ("mbpp", "humaneval", "cnn-dm", "alpaca")
TEACHERS = {"humaneval": "mbpp"}
"""HumanEval has nothing to train with: it goes by what was fitted to MBPP."""
FITTED = tuple(name for name in TASKS if name not in TEACHERS)
CLASSIFIER = artefact_name("self")
HEURISTIC, STATIC_5, STATIC_OPT = "dynHeur SL", "static SL-5", "static SL-opt"
DISCO, ORACLE, PERPLEXITY = "DISCO", "oracle", "ppl SL-opt"
FIVE = Candidate("fixed", {"tokens": 5})

MIN_MATCH = 0.7
"""The paper's oracles keep 2.4 tokens a round or more: their drafts are right at least seven times in ten."""
_LEAST_FIT_PROMPTS = 8
"""Of a task, where it has as many: fewer tokens would teach a classifier nothing."""
_DRAFT_SHARE = 3.0
"""Times the seconds of other fits: this one is for all tasks."""
_FACTS = ("draft", "match", "threshold", "max_tokens", "best", "num_train", "num_validation")
"""Of a fit, for the unit's values."""
LONG_TEXTS = 4
"""Times as many tokens as elsewhere, where texts are short and few."""

# ------------------------------------------------------------------------------------------------------ prompts


def fit_prompts(bench: Workbench, name: str) -> Sequence[Prompt]:
    """That a task, or its teacher, is fitted to."""
    count = max(_LEAST_FIT_PROMPTS, bench.scale.fit_prompts)
    task = bench.task(TEACHERS.get(name, name), num_fit=count)
    return task.fitting if task else ()


def unseen(bench: Workbench, name: str) -> Task | None:
    """With prompts to measure that nothing was fitted to, in any task: prompts of ours may stand for two data sets."""
    task = bench.task(name, num_measured=len(bench.prompts), num_fit=0)
    known = {prompt.id for other in FITTED for prompt in fit_prompts(bench, other)}
    left = [prompt for prompt in task.measured if prompt.id not in known] if task else []
    return task and replace(task, measured=left[: bench.scale.prompts])


def units(
    bench: Workbench, names: Sequence[str], measure: Callable[[Task], Values], prefix: str = ""
) -> Iterator[Unit]:
    """One of each task; of one that cannot be fitted and measured why."""
    for name in names:
        task, teacher = unseen(bench, name), TEACHERS.get(name, name)
        absent = [needed for needed in (name, teacher) if bench.tasks.find(needed) is None]
        if absent or task is None:
            yield Unit(prefix + name, missing=bench.tasks.why_missing(absent[0]))
        elif not task.measured:
            reason = f"all prompts of its kind are needed to fit ({teacher}); name a file of others with --prompts"
            yield Unit(prefix + name, missing=reason)
        else:
            yield Unit(prefix + name, partial(measure, task))


def encode_all(bench: Workbench, task: str, prompts: Sequence[Prompt]) -> list[Prompt]:
    """All of one domain, the task's."""
    return [replace(encoded(prompt, bench.engine), domain=task) for prompt in prompts]


def longer(bench: Workbench, factor: int) -> int:
    """Tokens of texts that are few, or written together: a quick run can afford more of them than elsewhere."""
    return bench.scale.tokens * (factor if bench.scale.is_quick else 1)


# --------------------------------------------------------------------------------------------------- what drafts


def draft(bench: Workbench) -> dict[str, Any]:
    """Without what a short elimination, on prompts of all tasks, found superfluous; else without every fourth layer.

    The choice is kept: an elimination that found nothing is not asked again by every unit.
    """
    prompts = in_turn(prompt for name in FITTED for prompt in fit_prompts(bench, name))
    seconds = _DRAFT_SHARE * bench.scale.fit_seconds
    question = {
        "prompts": digest([encoded(prompt, bench.engine) for prompt in prompts]),
        "seconds": seconds,
        "tokens": bench.scale.fit_tokens,
    }

    def choose() -> dict[str, Any]:
        found = bench.fit("disco-prune", {"strategy": "prune"}, prompts, seconds).values
        return {"skip": chosen_skip(found.get("frontier", ()))}

    if skip := bench.once("disco-draft", question, choose).values["skip"]:
        return {"strategy": "fixed", "tree": "chain", "settings": {"fixed": {"skip": skip}}}
    return {"strategy": "uniform", "tree": "chain", "settings": {}}


def chosen_skip(frontier: Sequence[Mapping[str, Any]]) -> str:
    """The cheapest draft that is right as often as the paper's; where none is, the one that skips least."""
    points = [point for point in map(FrontierPoint.from_json, frontier) if point.skip]
    points.sort(key=lambda point: len(point.skip))
    right = [point for point in points if point.match >= MIN_MATCH]
    chosen = right[-1] if right else next(iter(points), None)
    return str(chosen.skip) if chosen else ""


def told_draft(method: Mapping[str, Any]) -> str:
    skip = method["settings"].get("fixed", {}).get("skip")
    return f"the model itself without {skip or 'every fourth layer'}"


def draft_note(found: Found) -> Iterator[str]:
    drafts = (values.get("draft") or values.get("fit", {}).get("draft") for values in found.units.values())
    yield from (f"drafted by {what}, for all tasks" for what in dict.fromkeys(drafts) if what)


# ------------------------------------------------------------------------------------------------ what tasks teach


def fitted(bench: Workbench, name: str) -> Fitted:
    """The classifier of a task or of its teacher, with what else was chosen; asked the same again, it is read.

    About a quarter of the prompts to fit with is held out, to choose settings with.
    """
    teacher = TEACHERS.get(name, name)
    prompts = encode_all(bench, teacher, fit_prompts(bench, teacher))
    check_enough((prompt.domain, prompt.tokens) for prompt in prompts)
    method, num_tokens = draft(bench), longer(bench, 2)
    question = {"prompts": digest(prompts), "tokens": num_tokens, "method": method}
    artefact = bench.once(f"disco-{teacher}", question, lambda: _fit(bench, method, prompts, num_tokens))
    return Fitted("disco", artefact.values, {CLASSIFIER: artefact})


def _fit(bench: Workbench, method: Mapping[str, Any], prompts: Sequence[Prompt], num_tokens: int) -> dict[str, Any]:
    """As the profile keeps a classifier, but with settings chosen by replay alone, as those of the other rules are."""
    began, engine = time.perf_counter(), bench.fork()
    fitting, held_out = hold_out(prompts)
    bench.say(f"fitting the lookahead disco to {len(fitting)} prompts of {prompts[0].domain}")
    progress = LogProgress(bench.say, "disco")
    seconds = measure_rounds(engine, method, held_out[:1], num_tokens, MAX_TOKENS, progress)
    training, validation = (collect(engine, method, some, num_tokens, progress) for some in (fitting, held_out))
    classifier, replay = train(training, validation), Replay(validation, seconds)
    best = {name: rank(name, replay)[0] for name in ("fixed", "perplexity")}
    classifier = tuned(classifier, **rank("disco", replay, classifier)[0].options)
    drafted, kept = (
        sum(int(getattr(trace, flags).sum()) for trace in (*training, *validation))
        for flags in ("is_drafted", "is_kept")
    )
    return {
        **classifier.values(),
        **classifier.arrays(),
        "drafter": "self",
        "fingerprint": engine.knowledge.key.fingerprint,
        "strategy": method["strategy"],
        "strategy_options": repr(options_for("strategy", method["strategy"], method["settings"])),
        "method": dict(method),
        "draft": told_draft(method),
        "best": {name: dict(candidate.options) for name, candidate in best.items()},
        "match": kept / max(1, drafted),
        "num_train": len(fitting),
        "num_validation": len(held_out),
        "seconds": time.perf_counter() - began,
    }


def methods(known: Fitted, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Rules by the paper's names, all with the same drafts."""
    method, best = known.facts["method"], known.facts["best"]
    every = {
        HEURISTIC: {**method, "lookahead": "heuristic"},
        STATIC_5: FIVE.method(method),
        STATIC_OPT: Candidate("fixed", best["fixed"]).method(method),
        PERPLEXITY: Candidate("perplexity", best["perplexity"]).method(method),
        DISCO: {**method, "lookahead": "disco"},
        ORACLE: {**method, "lookahead": "oracle"},
    }
    return {name: every[name] for name in names}


def fit_notes(found: Found) -> Iterator[str]:
    for unit, one in found.units.items():
        fit, fixed, perplexity = one["fit"], *(one["fit"]["best"][name] for name in ("fixed", "perplexity"))
        yield (
            f"{unit}: {fit['match']:.0%} of drafted tokens were right where it was fitted; chosen there: {STATIC_OPT} "
            f"{fixed['tokens']}, {PERPLEXITY} {perplexity['threshold']:g} up to {perplexity['max_tokens']}, "
            f"DISCO {fit['threshold']:g} up to {fit['max_tokens']}"
        )


# ------------------------------------------------------------------------------------------------- what is measured


def compare(bench: Workbench, rules: Sequence[str], suffix: str, temperature: float, task: Task) -> Values:
    """Rules in turns on the prompts of a task. `suffix`: of its label."""
    known = fitted(bench, task.name)
    values = bench.measure(task, methods(known, rules), knows=[known], temperature=temperature)
    return {**values, "task": task.label + suffix, "fit": _facts(known)}


def _facts(known: Fitted) -> dict[str, Any]:
    return {name: known.facts[name] for name in _FACTS}


def count_hits(bench: Workbench, task: Task) -> Values:
    """What rules say of drafted tokens, by text, on the prompts that are measured: they neither trained nor chose."""
    known = fitted(bench, task.name)
    classifier = Classifier.read(known.artefacts[CLASSIFIER].content)
    prompts, progress = encode_all(bench, task.name, task.measured), LogProgress(bench.say, "disco")
    traces = collect(bench.fork(), known.facts["method"], prompts, longer(bench, 2), progress)
    lengths = {length: [static_hits(trace, length) for trace in traces] for length in range(1, MAX_TOKENS + 1)}
    hits = {
        "static": lengths[known.facts["best"]["fixed"]["tokens"]],
        "disco": [classifier_hits(classifier, trace) for trace in traces],
        "any static": max(lengths.values(), key=f1),
        "at half": [classifier_hits(classifier, trace, 0.5) for trace in traces],
    }
    num_tokens = sum(int(trace.is_drafted.sum()) for trace in traces)
    return {"task": task.label, "hits": hits, "num_tokens": num_tokens, "fit": _facts(known)}


def run_oracle(
    bench: Workbench, task: Task, prompts: Sequence[Prompt], others: Mapping[str, Candidate] | None = None
) -> Values:
    """What became of each round of each text, under the oracle and `others`. Records would hold no rounds.

    `outputs`: how texts compare with plain decoding, counted with those of records.
    """
    method, num_tokens, engine = draft(bench), longer(bench, LONG_TEXTS), bench.fork()
    oracle = Oracle([[]], room=num_tokens)
    rules = {name: rule.method(method) for name, rule in (others or {}).items()}
    rules[ORACLE] = {**method, "lookahead": oracle}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in rules}
    verdicts = []
    for number, prompt in enumerate(encode_all(bench, task.name, prompts)):
        call: dict[str, Any] = {"max_new_tokens": num_tokens, "seed": bench.seed + number}
        plain = engine.generate(prompt.tokens, strategy="off", **call)
        oracle.tell([plain.tokens])
        for name, rule in rules.items():
            generation = engine.generate(prompt.tokens, **rule, **call)
            found[name].append(_rounds_of(generation))
            verdicts.append({"verdict": engine.compare(prompt.tokens, plain, generation, **call).verdict})
    return {"task": task.label, "draft": told_draft(method), "rules": found, "outputs": {"records": verdicts}}


def run_example(bench: Workbench, task: Task) -> Values:
    return run_oracle(bench, task, task.measured[:1], {STATIC_5: FIVE})


def _rounds_of(generation: Generation) -> dict[str, Any]:
    return {
        "target passes": generation.stats.num_target_passes,
        "draft passes": generation.stats.num_draft_steps,
        "drafted": [step.draft.num_draft_steps for step in generation.steps],
        "kept": [step.verdict.num_accepted for step in generation.steps],
    }
