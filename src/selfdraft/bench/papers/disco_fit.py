"""What DISCO's experiments share: prompts, what drafts, what is fitted to a task, and what is measured.

The paper drafts with another, smaller model. Ours is the model itself without some sub-layers, one set for all tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ...calibrate.fit_once import Fitted
from ...calibrate.lookahead import DraftCounts, LookaheadFit, LookaheadOptions, check_enough
from ...calibrate.traces import collect
from ...calibrate.training import classifier_hits, f1, static_hits, train
from ...calibrate.tuning import MAX_TOKENS, Candidate, rank
from ...lookahead.disco import Classifier, artefact_name
from ...lookahead.oracle import Oracle
from ...progress import LogProgress
from ...prompts.arrange import digest, hold_out, in_turn
from ...prompts.tokens import encoded
from ...types import FrontierPoint, Prompt
from .experiment import Found, Unit, Values
from .workbench import Task, UnitsOf, Workbench, why_missing

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
_LEAST_FIT_PROMPTS = 8  # of a task, where it has as many: fewer tokens would teach a classifier nothing
_DRAFT_SHARE = 3.0  # times the seconds of other fits: this one is for all tasks


def fit_prompts(bench: Workbench, name: str) -> Sequence[Prompt]:
    """That a task, or its teacher, is fitted to."""
    count = max(_LEAST_FIT_PROMPTS, bench.scale.fit_prompts)
    task = bench.task(TEACHERS.get(name, name), num_fit=count)
    return task.fitting if task else ()


def unseen(bench: Workbench, name: str) -> Task:
    """With prompts to measure that nothing was fitted to, in any task: prompts of ours may stand for two data sets."""
    task = bench.task(name, num_measured=len(bench.prompts), num_fit=0)
    assert task is not None
    known = {prompt.id for other in FITTED for prompt in fit_prompts(bench, other)}
    return replace(task, measured=[one for one in task.measured if one.id not in known][: bench.scale.prompts])


def per_task(names: Sequence[str], measure: Callable[[Workbench, Task], Values], prefix: str = "") -> UnitsOf:
    """A unit of each task; of one that cannot be fitted and measured why."""

    def unit(bench: Workbench, name: str) -> Unit:
        absent = [needed for needed in (name, TEACHERS.get(name, name)) if bench.task(needed) is None]
        if absent:
            return Unit(prefix + name, missing=why_missing(absent[0]))
        task = unseen(bench, name)
        if not task.measured:
            return Unit(prefix + name, missing="all prompts of its kind are needed to fit; name others with --prompts")
        return Unit(prefix + name, partial(measure, bench, task))

    return lambda bench: [unit(bench, name) for name in names]


def encode_all(bench: Workbench, task: str, prompts: Sequence[Prompt]) -> list[Prompt]:
    """All of one domain, the task's."""
    return [replace(encoded(prompt, bench.engine), domain=task) for prompt in prompts]


def longer(bench: Workbench, factor: int) -> int:
    """Tokens of texts that are few, or written together: a quick run can afford more of them than elsewhere."""
    return bench.scale.tokens * (factor if bench.scale.is_quick else 1)


# --------------------------------------------------------------------------------------------------- what drafts


def draft(bench: Workbench) -> dict[str, Any]:
    """Without what a short elimination, on prompts of all tasks, found superfluous; else without every fourth layer."""
    prompts = in_turn(prompt for name in FITTED for prompt in fit_prompts(bench, name))
    seconds = _DRAFT_SHARE * bench.scale.fit_seconds
    found = bench.fit("disco-prune", {"strategy": "prune"}, prompts, seconds).values
    if skip := chosen_skip(found.get("frontier", ())):
        return {"strategy": "fixed", "tree": "chain", "settings": {"fixed": {"skip": skip}}}
    return {"strategy": "uniform", "tree": "chain", "settings": {}}


def chosen_skip(frontier: Sequence[Mapping[str, Any]]) -> str:
    """The cheapest draft that is right as often as the paper's; where none is, the one that skips least."""
    points = [point for point in map(FrontierPoint.from_json, frontier) if point.skip]
    points.sort(key=lambda point: len(point.skip))
    chosen = [*points[:1], *(point for point in points if point.match >= MIN_MATCH)]
    return str(chosen[-1].skip) if chosen else ""


def draft_note(found: Found) -> Iterator[str]:
    for values in list(found.units.values())[:1]:
        method = values.get("method") or values["fit"]["method"]
        skip = method["settings"].get("fixed", {}).get("skip", "every fourth layer")
        yield f"all tasks are drafted by the model itself without {skip}"


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
    fitting, held_out = hold_out(prompts)
    progress = LogProgress(bench.say, f"disco, {prompts[0].domain}")
    work = LookaheadFit(bench.fork(), method, LookaheadOptions(num_tokens, math.inf), progress, bench.say)
    training, validation = work.collect(fitting, "to train with"), work.collect(held_out, "to tune with")
    classifier, replay = train(training, validation), work.replay(validation, held_out)
    classifier = replace(classifier, **rank("disco", replay, classifier)[0].options)
    return {
        **work.facts(classifier),
        **classifier.arrays(),
        "method": dict(method),
        "best": {name: dict(rank(name, replay)[0].options) for name in ("fixed", "perplexity")},
        "match": DraftCounts.of([*training, *validation]).kept_share,
        "num_train": len(fitting),
        "num_validation": len(held_out),
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
        fit, best = one["fit"], one["fit"]["best"]
        chosen = {STATIC_OPT: best["fixed"], PERPLEXITY: best["perplexity"], DISCO: fit}
        told = [f"{name} {_spelled(options)}" for name, options in chosen.items()]
        yield f"{unit}: {fit['match']:.0%} of drafted tokens were right where it was fitted; chosen: {', '.join(told)}"


def _spelled(options: Mapping[str, Any]) -> str:
    return str(options.get("tokens") or f"{options['threshold']:g} up to {options['max_tokens']}")


# ------------------------------------------------------------------------------------------------- what is measured


def compare(bench: Workbench, task: Task, rules: Sequence[str], temperature: float | None = None) -> Values:
    """Rules in turns on the prompts of a task; a temperature stands in its label."""
    known = fitted(bench, task.name)
    values = bench.measure(task, methods(known, rules), knows=[known], temperature=temperature or 0.0)
    where = "" if temperature is None else f", T = {temperature:g}"
    transfer = ", transfer learning" if task.name in TEACHERS else ""
    return {**values, "task": task.label + transfer + where, "fit": known.facts}


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
    return {"task": task.label, "hits": hits, "num_tokens": num_tokens, "fit": known.facts}


def run_oracle(
    bench: Workbench, task: Task, most: int | None = None, others: Mapping[str, Candidate] | None = None
) -> Values:
    """Tokens drafted and kept in each round of each text, by the oracle and `others`; records would hold no rounds.

    `most`: prompts; `outputs`: how texts compare with plain decoding, counted with those of records.
    """
    method, num_tokens, engine = draft(bench), longer(bench, 4), bench.fork()
    oracle = Oracle([[]], room=num_tokens)
    rules = {name: rule.method(method) for name, rule in (others or {}).items()}
    rules[ORACLE] = {**method, "lookahead": oracle}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in rules}
    verdicts = []
    for number, prompt in enumerate(encode_all(bench, task.name, task.measured[:most])):
        call: dict[str, Any] = {"max_new_tokens": num_tokens, "seed": bench.seed + number}
        plain = engine.generate(prompt.tokens, strategy="off", **call)
        oracle.tell([plain.tokens])
        for name, rule in rules.items():
            text = engine.generate(prompt.tokens, **rule, **call)
            drafted = [step.draft.num_draft_steps for step in text.steps]
            found[name].append({"drafted": drafted, "kept": [step.verdict.num_accepted for step in text.steps]})
            verdicts.append({"verdict": engine.compare(prompt.tokens, plain, text, **call).verdict})
    return {"task": task.label, "method": method, "rules": found, "outputs": {"records": verdicts}}
