"""`asd`: skip the attentions that hardly turn the prompt's hidden states, and every third layer.

Adaptive self-speculative decoding (Draft on the Fly, arXiv:2410.01028, algorithm 1): no search, a set for each prompt.
With layers counted from 1 to L, and C_l the mean cosine of the prompt's hidden states before and after attention l:

- attention l is skipped where C_l >= similarity,
- attention and MLP (feed-forward block) of every m-th layer are skipped (rule 1),
- the last n layers are kept in both cases (rule 2).

The similarities come with the prefill, of all tokens but the last; nothing is computed twice. Ours: `selfdraft
calibrate` finds the similarity, m and n that promise most for the model (the paper's: 0.985, 3, 2, the latter as far as
its table 2 can be read), and where rounds that draft turn out slower than plain ones nothing is drafted. As the paper:
`similarity=0.985 every=3 last=2 always=true`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

from ..economics import PassCosts
from ..fitting import Kit
from ..options import setting
from ..protocols import Knowledge, PlanContext, Probe
from ..types import OFF, Plan, SkipSet, StepRecord
from .base import PlainStrategy, damaged
from .draft_switch import DraftSwitch
from .kept_sets import AT_ONCE, best_drafting, hits_of, rate_of


@dataclass(frozen=True)
class Rules:
    """What algorithm 1 is given."""

    similarity: float = 0.985
    every: int = 3
    last: int = 2


_SHARES, _EVERY, _LAST = (0.2, 0.4, 0.6, 0.8), (0, 2, 3, 4, 6, 8), (1, 2, 3)
"""What calibration tries: similarities that so large a share of the attentions reach, m, n."""
_NONE = 2.0
"""A similarity that no attention reaches."""


class Asd(PlainStrategy):
    @dataclass(frozen=True)
    class Options:
        similarity: float | None = setting(
            None,
            "skip attentions whose mean cosine is at least this; above 1: none; None: as calibrated, else 0.985",
            minimum=-1.0,
            maximum=2.0,
        )
        every: int | None = setting(
            None, "skip attention and MLP of every m-th layer; 0: of none; None: as calibrated, else 3", minimum=0
        )
        last: int | None = setting(
            None, "never skip the last n layers; 0: they may go; None: as calibrated, else 2", minimum=0
        )
        always: bool = setting(False, "draft even where plain rounds turn out faster")

    can_fit = True
    pairs_with: ClassVar[Mapping[str, Any]] = {"lookahead": "adaptive"}

    def __init__(self, options: Options, knowledge: Knowledge) -> None:
        self._num_layers, self._always = knowledge.num_layers, options.always
        self._rules, is_promising = read_rules(options, knowledge)
        self.prefill_needs = points(knowledge.num_layers)
        self._plans: dict[int, Plan] = {}
        self._switch = DraftSwitch()
        self._switch.renew(is_promising)

    def condense(self, captured: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return cosines_of(captured)

    def begin(self, sequence_id: int, prefill: Mapping[str, torch.Tensor]) -> None:
        skip = skip_set(_means(prefill), self._num_layers, self._rules)
        self._plans[sequence_id] = Plan(skip) if skip else OFF

    def plan(self, sequence_id: int, context: PlanContext) -> Plan:
        return self._plans[sequence_id] if self._always or self._switch.is_drafting else OFF

    def observe(self, sequence_id: int, step: StepRecord) -> None:
        """Each prompt has a set of its own, so recording it belongs to the price of drafting."""
        seconds = step.draft_seconds + step.verify_seconds + step.record_seconds
        self._switch.observe(bool(step.draft.tokens), len(step.verdict.tokens), seconds)

    def report(self, sequence_id: int) -> Mapping[str, Any]:
        skip, is_drafting = self._plans[sequence_id].skip, self._always or self._switch.is_drafting
        why = "plain decoding is faster" if skip else "its rules skip nothing here"
        return {"drafts": f"without {skip}" if skip and is_drafting else f"nothing: {why}"}

    def end(self, sequence_id: int) -> None:
        self._plans.pop(sequence_id, None)

    @staticmethod
    def fit(kit: Kit, options: Options) -> dict[str, Any]:
        """The rules under which the texts would take least time; goes on after those that an interrupted fit kept."""
        num_layers, pairs = kit.latency.num_layers, list(zip(kit.prompts, kit.probes, strict=False))
        cosines = [_means(kit.hidden(prompt, points(num_layers), cosines_of)) for prompt, _ in pairs]
        means = np.mean([one for one in cosines if one], axis=0).tolist() if any(cosines) else []
        trial = Trial(list(candidates(means, options)))
        for number, (prompt, probe) in enumerate(pairs):
            sets = [skip_set(cosines[number], num_layers, rules) for rules in trial.rules]
            wanted = [skip for skip in dict.fromkeys(sets) if skip]
            kept = kit.done[number] if number < len(kit.done) else None
            if kept is None and number and not kit.has_time():
                break
            counted = _counted(probe, wanted, kit.has_time, kept or {"hits": {}, "num_tokens": 0})
            if kept is None:
                kit.keep(counted)
            if number and any(str(skip) not in counted["hits"] for skip in wanted):
                break
            trial.add(kit.latency.at(len(prompt.tokens) + counted["num_tokens"] / 2), sets, **counted)
            kit.progress((number + 1) / len(pairs))
        return {**trial.best(), "cosines": means}


def points(num_layers: int) -> tuple[str, ...]:
    """States before and after attention 0, 1, ..."""
    return ("embedding", *[f"{kind}{layer}" for layer in range(num_layers) for kind in "am"][:-1])


def cosines_of(captured: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """Around every attention, [rows, tokens, layers]."""
    num_layers = sum(point.startswith("a") for point in captured)
    states = (captured[point].float() for point in points(num_layers))
    cosines = [torch.cosine_similarity(*around, dim=-1) for around in zip(states, states, strict=True)]
    return {"cosines": torch.stack(cosines, dim=-1)}


def _means(prefill: Mapping[str, torch.Tensor]) -> list[float]:
    """C_l by layer; a prompt of one token has none."""
    return prefill["cosines"].mean(0).tolist() if prefill else []


def skip_set(cosines: Sequence[float], num_layers: int, rules: Rules) -> SkipSet:
    """Algorithm 1, layers from 0 on. `cosines` of the attentions, none for a prompt of one token."""
    num_open = max(num_layers - rules.last, 0)
    similar = {layer for layer, cosine in enumerate(cosines[:num_open]) if cosine >= rules.similarity}
    regular = set(range(rules.every - 1, num_open, rules.every)) if rules.every else set()
    return SkipSet.of(sorted(similar | regular), sorted(regular))


def read_rules(options: Asd.Options, knowledge: Knowledge) -> tuple[Rules, bool]:
    """As set, else as calibrated, else the paper's; and whether drafts may pay by what calibration says of them."""
    known = knowledge.known("asd")
    try:
        learned = Rules(*(type(usual)(known.get(name, usual)) for name, usual in vars(Rules()).items()))
        is_promising = float(known.get("predicted", 1.0)) >= 1
    except (TypeError, ValueError, AttributeError) as error:
        raise damaged("rules of `asd`", error, f"{knowledge.command('calibrate')} --strategy asd") from error
    rules = replace(learned, **{name: one for name in vars(learned) if (one := getattr(options, name)) is not None})
    return rules, is_promising or rules != learned


# ---------------------------------------------------------------------------------------------------- calibration


def candidates(means: Sequence[float], options: Asd.Options) -> Iterator[Rules]:
    """What is set stays."""
    shares = np.quantile(means, [1 - share for share in _SHARES]).tolist() if means else []
    similarities = dict.fromkeys([_NONE, Rules.similarity, *(math.floor(10000 * one) / 10000 for one in shares)])
    given = [
        list(usual) if one is None else [one]
        for one, usual in ((options.similarity, similarities), (options.every, _EVERY), (options.last, _LAST))
    ]
    found = itertools.starmap(Rules, itertools.product(*given))
    return (rules for rules in found if rules.every or rules.similarity <= 1)


def _counted(
    probe: Probe, wanted: Sequence[SkipSet], has_time: Callable[[], bool], kept: Mapping[str, Any]
) -> dict[str, Any]:
    """How often each set says what the target says: some at least, and all that there is time for. `kept`: what was
    counted before; what are candidates depends on all texts.
    """
    counts, num_tokens = {**kept["hits"]}, kept["num_tokens"]
    missing = [skip for skip in wanted if str(skip) not in counts]
    for first in range(0, len(missing), AT_ONCE):
        if counts and not has_time():
            break
        some = missing[first : first + AT_ONCE]
        hits = hits_of(probe, some)
        counts |= {str(skip): sum(own) for skip, own in zip(some, hits, strict=True)}
        num_tokens = len(hits[0])
    return {"hits": counts, "num_tokens": num_tokens}


class Trial:
    """How rules fare on calibration texts: what they match where they draft, and the seconds of all."""

    def __init__(self, rules: Sequence[Rules]) -> None:
        self.rules = rules
        self._seconds, self._hits, self._num_tokens = np.zeros((3, len(rules)))
        self._plain = 0.0

    def add(self, costs: PassCosts, sets: Sequence[SkipSet], hits: Mapping[str, int], num_tokens: int) -> None:
        """A text, and the set of each of the rules; one that skips nothing decodes plainly, one without hits is out."""
        is_drafting = np.array([str(skip) in hits for skip in sets])
        own = np.array([hits.get(str(skip), 0) for skip in sets])
        faster = best_drafting(costs, sets, rate_of(own, num_tokens))
        plain = num_tokens * costs.plain
        self._seconds += np.where(is_drafting, plain / faster, [np.inf if skip else plain for skip in sets])
        self._hits, self._num_tokens = self._hits + own, self._num_tokens + num_tokens * is_drafting
        self._plain += plain

    def best(self) -> dict[str, Any]:
        """Of those that draft anything, even where plain decoding is faster: `predicted` tells."""
        if not self._num_tokens.any():
            return {"num_tried": 0}
        row = int(np.where(self._num_tokens > 0, self._seconds, np.inf).argmin())
        match, predicted = self._hits[row] / self._num_tokens[row], self._plain / self._seconds[row]
        return {
            **vars(self.rules[row]),
            "match": float(match),
            "predicted": float(predicted),
            "num_tried": int((self._num_tokens > 0).sum()),
        }
