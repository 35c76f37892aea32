"""Table 5: how well the classifier tells tokens that will be kept from others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ....calibrate.training import classifier_f1, static_f1
from ....calibrate.tuning import MAX_TOKENS
from ....lookahead.disco import Classifier
from ...lookahead.learning import School
from ...report import Table
from ..cells import from_enough
from ..estimates import is_above, share_of
from ..recipe import Effort, Found, Section, Trend, Unit, Values
from ..workbench import Workbench
from .lesson import (
    CLASSIFIER,
    PAPER_PROMPTS,
    PAPER_TRAINING,
    TAUGHT,
    draft_notes,
    encoded,
    longer,
    measured_prompts,
    taught,
    units,
)

LONG_TEXTS = 2
COLUMNS = {"static": "F1 static-SL", "disco": "F1 DISCO", "any_static": "any static length", "at_half": "DISCO at 0.5"}


def f1_units(bench: Workbench) -> Iterable[Unit]:
    return units(bench, TAUGHT, lambda name: _f1(bench, name))


def _f1(bench: Workbench, name: str) -> Values:
    """On the prompts that are measured: they neither trained nor chose anything."""
    learned = taught(bench, name)
    classifier = Classifier.read(learned.artefacts[CLASSIFIER].content)
    school = School(bench.engine.fork(), learned.facts["question"]["method"], longer(bench, LONG_TEXTS), bench.say)
    prompts = measured_prompts(bench, name)
    traces = school.traces(encoded(bench, name, prompts))
    static_tokens: int = learned.facts["best"]["fixed"]["tokens"]
    return {
        "static": static_f1(traces, static_tokens),
        "disco": classifier_f1(classifier, traces),
        "any_static": max(static_f1(traces, length) for length in range(1, MAX_TOKENS + 1)),
        "at_half": classifier_f1(classifier, traces, 0.5),
        "num_prompts": len(prompts),
        "num_tokens": sum(int(trace.is_drafted.sum()) for trace in traces),
        "lesson": learned.facts,
    }


def show_f1(found: Found) -> Section:
    known = {name: found.units[name] for name in TAUGHT if name in found.units}
    rows = [[one["label"], *(f"{100 * one[column]:.0f}" for column in COLUMNS)] for one in known.values()]
    num_prompts = min((one["num_prompts"] for one in known.values()), default=None)
    efforts = [
        Effort(f"prompts to train with ({one['label']})", one["lesson"]["num_train"], PAPER_TRAINING[name])
        for name, one in known.items()
    ]
    notes = [
        *draft_notes(one["lesson"]["draft"] for one in known.values()),
        "a token's label is whether the target said it (the paper's appendix D; its section 4 names total variation)",
        "in percent, at the length and the threshold that promised most speed; then, of any static length the highest, "
        "and the classifier's own at 0.5",
        "on prompts that neither trained nor chose settings; the paper's are those that chose them",
        *(f"{one['label']}: of {one['num_tokens']} tokens" for one in known.values()),
    ]
    return Section(
        [Table("", ["dataset", *COLUMNS.values()], rows)],
        [Effort("prompts a task", num_prompts, PAPER_PROMPTS), *efforts],
        [trend for one in known.values() for trend in _trends(one)],
        notes if rows else [],
    )


def _trends(one: Values) -> Iterator[Trend]:
    bases = {"static": "the static length that is fastest", "any_static": "any static length"}
    own = share_of(one["disco"], one["num_tokens"])
    for name, title in bases.items():
        claim = f"{one['label']}: DISCO's F1 is above that of {title}"
        yield from_enough(is_above(claim, own, share_of(one[name], one["num_tokens"])), one["num_prompts"])
