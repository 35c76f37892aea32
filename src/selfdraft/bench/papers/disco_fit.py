"""What DISCO's experiments share: prompts, what drafts, what is fitted to a task, and what is measured.

The paper drafts with another, smaller model. Here it is the model itself without some sub-layers, one set for all
tasks; or (`--drafter model`) a model of its own, named or cut from the target: the layers of that set are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ...calibrate.calibrate import thinned
from ...calibrate.fit_once import Fitted
from ...calibrate.lookahead import DraftCounts, LookaheadFit, LookaheadOptions, Tuned, check_enough
from ...calibrate.traces import collect
from ...calibrate.training import LABELS, classifier_hits, f1, static_hits, train
from ...calibrate.tuning import Candidate, predicted, rank, shortlist
from ...lookahead.disco import Classifier, Disco, artefact_name
from ...lookahead.oracle import MAX_TOKENS, Oracle
from ...measure.run import MeasurePlan, run_whole
from ...progress import LogProgress
from ...prompts.arrange import digest, hold_out, in_turn
from ...prompts.tokens import encoded
from ...registry import DRAFTING
from ...strategies.uniform import spread
from ...types import FrontierPoint, Prompt, SkipSet
from .experiment import Found, Unit, Values
from .workbench import Task, UnitsOf, Workbench, why_missing

TASKS = ("mbpp", "humaneval", "cnn-dm", "alpaca")
TEACHERS = {"humaneval": "mbpp"}
"""HumanEval has nothing to train with: it goes by what was fitted to MBPP."""
FITTED = tuple(name for name in TASKS if name not in TEACHERS)
HEURISTIC, STATIC_5, STATIC_OPT = "dynHeur SL", "static SL-5", "static SL-opt"
DISCO, BY_TV, PERPLEXITY = "DISCO", "DISCO, tv", "ppl SL-opt"
ORACLE, ORACLE_LENGTH = "oracle", "oracle, told its length"
FIVE = Candidate("fixed", {"tokens": 5})
SHORT = (1, 2, 3)
"""Static lengths that are timed beside those that replay finds best; and how many of these."""

USUAL_RULES = [*(Candidate("fixed", {"tokens": length}) for length in SHORT), Candidate("confidence", {})]
"""That end drafts while it is found out what drafts."""
USUAL_LENGTH = 512  # tokens of a text for which sets are held to promise much
_PROMISING = 0.9  # of the speed that the best set promises
_NUM_SETS, _NUM_PROMPTS, _NUM_TOKENS = 5, 8, 128  # that are timed, of the latter at most as many as the scale has
_DRAFT_SHARE = 3.0  # times the seconds of other fits: this one is for all tasks


def prompts_of(bench: Workbench, name: str) -> Sequence[Prompt]:
    """All of a task, in the order of the run: the first are measured, the last are fitted to."""
    task = bench.task(name, num_measured=len(bench.prompts), num_fit=0)
    return task.measured if task else ()


def fit_prompts(bench: Workbench, name: str) -> Sequence[Prompt]:
    """Of a task, or of its teacher: as many as are to be learned from, but for those to measure with."""
    every = prompts_of(bench, TEACHERS.get(name, name))
    return every[len(every) - min(bench.scale.learn, max(len(every) // 2, len(every) - bench.scale.prompts)) :]


def unseen(bench: Workbench, name: str) -> Task:
    """With prompts to measure that nothing was fitted to, in any task: prompts of ours may stand for two data sets."""
    task = bench.task(name)
    assert task is not None
    known = {
        prompt.id for some in (draft_prompts(bench), *(fit_prompts(bench, one) for one in FITTED)) for prompt in some
    }
    measured = [one for one in prompts_of(bench, name) if one.id not in known]
    return replace(task, measured=measured[: bench.scale.prompts])


def more_prompts(bench: Workbench, own: Sequence[Prompt]) -> list[Prompt]:
    """To train with, of other kinds, where a task has too few of its own; none that are measured, or like those of a
    task that another one teaches.
    """
    known = [*own, *(one for name in TASKS if bench.task(name) for one in unseen(bench, name).measured)]
    known += [one for name in TEACHERS for one in prompts_of(bench, name)]
    ids = {prompt.id for prompt in known}
    return in_turn(prompt for prompt in bench.prompts if prompt.id not in ids)


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


def draft_prompts(bench: Workbench) -> list[Prompt]:
    """Of all tasks in turn: their later halves, whatever is measured of the others, so that all has the same draft."""
    every = [prompts_of(bench, name) for name in FITTED]
    starts = [max(len(own) // 2, min(bench.scale.prompts, len(own) - 1)) for own in every]
    return in_turn(prompt for own, start in zip(every, starts, strict=True) for prompt in own[start:])


def promising(bench: Workbench, prompts: Sequence[Prompt]) -> list[SkipSet]:
    """The sets of a short elimination that promise most, a few of them, from small to large."""
    seconds = _DRAFT_SHARE * bench.scale.fit_seconds
    found = bench.fit("disco-prune", {"strategy": "prune"}, prompts, seconds).values
    points = [point for point in map(FrontierPoint.from_json, found.get("frontier", ())) if point.skip]
    costs = bench.latency.at(USUAL_LENGTH)
    speeds = {point.skip: costs.speeds(point.match, point.skip)[1:].max() for point in points}
    count = 2 if bench.scale.is_quick else _NUM_SETS
    return thinned([skip for skip, speed in speeds.items() if speed >= _PROMISING * max(speeds.values())], count)


def without(skip: SkipSet) -> dict[str, Any]:
    return {"strategy": "fixed", "drafter": "self", "tree": "chain", "settings": {"fixed": {"skip": str(skip)}}}


def fastest(bench: Workbench, skips: Sequence[SkipSet], prompts: Sequence[Prompt]) -> SkipSet:
    """By the clock, with whichever rule suits it best; empty where there is none."""
    if len(skips) < 2:
        return next(iter(skips), SkipSet())
    num_tokens = min(_NUM_TOKENS, bench.scale.tokens)
    methods = {f"{skip} {rule}": (skip, rule.method(without(skip))) for skip in skips for rule in USUAL_RULES}
    plan = MeasurePlan(prompts, {name: method for name, (_, method) in methods.items()}, max_new_tokens=num_tokens)

    def race() -> dict[str, Any]:
        bench.say(f"measuring {len(skips)} drafts with {len(USUAL_RULES)} rules in turns, on {len(prompts)} prompts")
        totals = {arm.name: arm.total for arm in run_whole(bench.fork(), plan).arms if arm.name in methods}
        speeds = {name: total.tokens_per_second or 0.0 for name, total in totals.items() if total}
        return {"skip": str(methods[max(speeds, key=speeds.__getitem__)][0]), "tokens_per_second": speeds}

    question = {"methods": list(methods), "prompts": digest(prompts), "tokens": num_tokens}
    return SkipSet.parse(str(bench.once("disco-draft", question, race).values["skip"]))


def draft(bench: Workbench) -> dict[str, Any]:
    """Without what a short elimination, on prompts of all tasks, found superfluous; else without every fourth layer."""
    prompts = draft_prompts(bench)
    raced = prompts[: min(_NUM_PROMPTS, bench.scale.prompts)]
    num_texts = (1 + len(USUAL_RULES) * (2 if bench.scale.is_quick else _NUM_SETS)) * len(raced)
    bench.expect(num_texts, min(_NUM_TOKENS, bench.scale.tokens), once="disco-draft")
    skip, num_layers = fastest(bench, promising(bench, prompts), raced), bench.engine.runner.num_layers
    kind, _, source = bench.scale.drafter.partition("=")
    if kind == "model":
        layers = sorted(skip.attention & skip.mlp) or spread(num_layers, 0.5)
        model = {"source": source} if source else {"without": ",".join(map(str, layers))}
        return {"strategy": DRAFTING, "drafter": kind, "tree": "chain", "settings": {"model": model}}
    layers = spread(num_layers, 0.25)
    return without(skip or SkipSet.of(layers, layers))


def draft_note(found: Found) -> Iterator[str]:
    for values in list(found.units.values())[:1]:
        settings = (values.get("method") or values["fit"]["method"])["settings"]
        own, model = settings.get("fixed", {}).get("skip"), settings.get("model", {})
        cut = f"a model of its own, cut from it without the layers {model.get('without')}"
        yield f"all tasks are drafted by {f'the model itself without {own}' if own else model.get('source') or cut}"


def fitted(bench: Workbench, name: str) -> Fitted:
    """The classifier of a task or of its teacher, with what else was chosen; asked the same again, it is read.

    About a quarter of the task's prompts to fit with is held out, to choose settings with.
    """
    teacher = TEACHERS.get(name, name)
    own = encode_all(bench, teacher, fit_prompts(bench, teacher))
    check_enough((prompt.domain, prompt.tokens) for prompt in own)
    fitting, held_out = hold_out(own)
    fitting += encode_all(bench, teacher, more_prompts(bench, own)[: max(0, bench.scale.learn - len(fitting))])
    method, num_tokens = draft(bench), longer(bench, 2)
    num_texts = len(fitting) + (2 + 3 * len(SHORT)) * len(held_out)  # a trace, plainly, and what is timed
    bench.expect(num_texts, num_tokens, once=f"disco-{teacher}")
    question = {"prompts": digest([*fitting, *held_out]), "tokens": num_tokens, "method": method}
    artefact = bench.once(f"disco-{teacher}", question, lambda: _fit(bench, method, fitting, held_out, num_tokens))
    return Fitted("disco", artefact.values, {artefact_name(method["drafter"]): artefact})


def _fit(
    bench: Workbench, method: Mapping[str, Any], fitting: Sequence[Prompt], held_out: Sequence[Prompt], num_tokens: int
) -> dict[str, Any]:
    """As the profile keeps a classifier. Its settings and the best static length, which it is compared with, are chosen
    by the clock among those that replay finds best; those of the other rules by replay alone.

    `tv`: another classifier, trained by the overlap of both distributions.
    """
    progress = LogProgress(bench.say, f"disco, {fitting[0].domain}")
    options = LookaheadOptions(num_tokens, math.inf, MAX_TOKENS)
    work = LookaheadFit(bench.fork(), method, options, progress, bench.say)
    training, validation = work.collect(fitting, "to train with"), work.collect(held_out, "to tune with")
    replay = work.replay(validation, held_out)
    match, tv = (train(training, validation, label) for label in LABELS)
    promising = shortlist(rank("disco", replay, match), len(SHORT))
    lengths = [predicted(Candidate("fixed", {"tokens": length}), replay) for length in SHORT]
    longest = [one for one in rank("fixed", replay)[: len(SHORT)] if one.options["tokens"] not in SHORT]
    counts = DraftCounts.of([*training, *validation])
    timed = Tuned(work.race(lengths[0], [*lengths[1:], *longest, *promising], held_out, replay), counts)
    static, best = timed.fastest("fixed").candidate, timed.fastest("disco").candidate
    assert static is not None
    assert best is not None
    match, tv = replace(match, **best.options), replace(tv, **rank("disco", replay, tv)[0].options)
    return {
        **work.facts(match),
        **match.arrays(),
        "method": dict(method),
        "tv": tv.values(),
        **{f"tv {name}": array for name, array in tv.arrays().items()},
        "best": {"fixed": dict(static.options), "perplexity": dict(rank("perplexity", replay)[0].options)},
        "match": counts.kept_share,
        "num_train": len(training),
        "num_train_tokens": sum(map(len, training)),
        "num_validation": len(held_out),
    }


def classifiers(known: Fitted) -> dict[str, Classifier]:
    """By label."""
    (artefact,) = known.artefacts.values()
    content = artefact.content
    by_tv = {name.removeprefix("tv "): array for name, array in content.items() if name.startswith("tv ")}
    return {"match": Classifier.read(content), "tv": Classifier.read({**content["tv"], **by_tv})}


def methods(known: Fitted, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Rules by the paper's names, all with the same drafts."""
    method, best = known.facts["method"], known.facts["best"]
    every = {
        HEURISTIC: Candidate("heuristic", {"max_tokens": MAX_TOKENS}).method(method),
        STATIC_5: FIVE.method(method),
        STATIC_OPT: Candidate("fixed", best["fixed"]).method(method),
        PERPLEXITY: Candidate("perplexity", best["perplexity"]).method(method),
        DISCO: {**method, "lookahead": "disco"},
        BY_TV: {**method, "lookahead": Disco.of(classifiers(known)["tv"])},
        ORACLE: {**method, "lookahead": "oracle"},
        ORACLE_LENGTH: {**method, "lookahead": "oracle-length"},
    }
    return {name: every[name] for name in names}


def fit_notes(found: Found) -> Iterator[str]:
    for unit, one in found.units.items():
        fit, best = one["fit"], one["fit"]["best"]
        chosen = {STATIC_OPT: best["fixed"], PERPLEXITY: best["perplexity"], DISCO: fit, BY_TV: fit.get("tv")}
        told = [f"{name} {_spelled(options)}" for name, options in chosen.items() if options]
        where = f"where it was fitted, to {fit['num_train']} prompts ({fit.get('num_train_tokens', '-')} tokens)"
        yield f"{unit}: {fit['match']:.0%} of drafted tokens were right {where}; chosen: {', '.join(told)}"


def _spelled(options: Mapping[str, Any]) -> str:
    return str(options.get("tokens") or f"{options['threshold']:g} up to {options['max_tokens']}")


# ------------------------------------------------------------------------------------------------- what is measured


def compare(bench: Workbench, task: Task, rules: Sequence[str], temperature: float | None = None) -> Values:
    """Rules in turns on the prompts of a task. A temperature stands in its label, and rejection tests the drafts."""
    bench.expect((1 + len(rules)) * len(task.measured) * bench.scale.runs, bench.scale.tokens)
    known, tested = fitted(bench, task.name), {"acceptance": "rejection"} if temperature else {}
    asked = {name: {**method, **tested} for name, method in methods(known, rules).items()}
    values = bench.measure(task, asked, knows=[known], temperature=temperature or 0.0)
    where = "" if temperature is None else f", T = {temperature:g}"
    transfer = ", transfer learning" if task.name in TEACHERS else ""
    return {**values, "task": task.label + transfer + where, "fit": known.facts}


def count_hits(bench: Workbench, task: Task) -> Values:
    """What rules say of drafted tokens, by text, on the prompts that are measured: they neither trained nor chose."""
    bench.expect(len(task.measured), longer(bench, 2))
    known = fitted(bench, task.name)
    by_label = classifiers(known)
    prompts, progress = encode_all(bench, task.name, task.measured), LogProgress(bench.say, "disco")
    traces = collect(bench.fork(), known.facts["method"], prompts, longer(bench, 2), progress)
    lengths = {length: [static_hits(trace, length) for trace in traces] for length in range(1, MAX_TOKENS + 1)}
    hits = {
        "static": lengths[known.facts["best"]["fixed"]["tokens"]],
        "disco": [classifier_hits(by_label["match"], trace) for trace in traces],
        "tv": [classifier_hits(by_label["tv"], trace) for trace in traces],
        "any static": max(lengths.values(), key=f1),
    }
    num_tokens = sum(int(trace.is_drafted.sum()) for trace in traces)
    return {"task": task.label, "hits": hits, "num_tokens": num_tokens, "fit": known.facts}


def run_oracle(
    bench: Workbench, task: Task, most: int | None = None, others: Mapping[str, Candidate] | None = None
) -> Values:
    """Tokens drafted and kept in each round of each text, by the oracle and `others`; records would hold no rounds.

    `most`: prompts; `outputs`: how texts compare with plain decoding, counted with those of records.
    """
    prompts, others, num_tokens = task.measured[:most], others or {}, longer(bench, 4)
    bench.expect((2 + len(others)) * len(prompts), num_tokens)
    method, engine, oracle = draft(bench), bench.fork(), Oracle([[]], room=num_tokens)
    rules = {name: rule.method(method) for name, rule in others.items()}
    rules[ORACLE] = {**method, "lookahead": oracle}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in rules}
    verdicts = []
    for number, prompt in enumerate(encode_all(bench, task.name, prompts)):
        call: dict[str, Any] = {"max_new_tokens": num_tokens, "seed": bench.seed + number}
        plain = engine.generate(prompt.tokens, strategy="off", **call)
        oracle.tell([plain.tokens])
        for name, rule in rules.items():
            text = engine.generate(prompt.tokens, **rule, **call)
            drafted = [step.draft.num_draft_steps for step in text.steps]
            found[name].append({"drafted": drafted, "kept": [step.verdict.num_accepted for step in text.steps]})
            verdicts.append({"verdict": engine.compare(prompt.tokens, plain, text, **call).verdict})
    return {"task": task.label, "method": method, "rules": found, "outputs": {"records": verdicts}}
