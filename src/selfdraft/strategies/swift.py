"""`swift`: search while generating. Candidates are scored by how much of the text so far they would have drafted.

SWIFT (arXiv:2410.06916). Drafting begins with evenly spaced layers. Once a window of generated tokens is there, a step
before each round scores a candidate of the same size: the share of these tokens that it would have drafted, in one pass
(matchness). Candidates are random, every 25th comes from Bayesian optimisation; the best one drafts. The search is over
after 1000 steps, 300 without improvement or beyond a matchness of 0.95. It goes on from text to text. The ratio is
lowered while too few drafted tokens are accepted. `paper` is that, with sizes and siblings as the authors' code has
them: int(2 (L - 2) r) sub-layers, 3/5/8/10 candidates (when it samples 1/3/5/10: `siblings.table=swift`). Even then:
- the tokens of the window see the target's keys and values of each other; in the authors' code the draft's own;
- the evenly spaced layers are as many as candidates have, and are scored first; theirs are half of all, and the first
  candidate that matches anything takes their place;
- no set is scored twice, and the Gaussian process of Bayesian optimisation is one over sets;
- the ratio is lowered at most every 100 steps, by 0.05, down to 0.4: the paper does not say how, its code never does;
- drafts go by the confidence of the best token, not of the drawn one, and trees end at 62 tokens (31 unrecorded).

Ours, as long as `paper` is not set:
- the search begins with what each sub-layer loses, left out alone, and drops the cheapest per second saved, two a step;
- it scores the last tokens, of the prompt if need be, and has 256 of them where passes are recorded;
- sets of several sizes are kept; the one drafts that promises most tokens per second at its matchness, corrected by
  how often drafts fail here;
- then candidates differ a little from the set in use, several share a pass, none is Bayesian;
- log-probability decides between sets of one size, on tokens they are chosen by and on held-out ones; matchness between
  sizes, and when to end;
- optimisation takes at most a fiftieth of the time, a tenth while sub-layers are dropped; less after that where
  drafting is slower;
- where no size could pay, nothing is searched or drafted; where none seems to, the next look comes later and later;
- nothing is drafted before a set was found, nor while rounds that draft are slower than plain ones, by the clock;
- another set drafts only where it is noticeably better; when acceptance falls the search begins again;
- drafts stop earlier, at 0.9 and after 12 tokens; the paper's table of siblings has branches beside it that are looked
  up in the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..economics import LENGTH_STEP, MAX_DRAFTED
from ..errors import OptionError, ProfileError
from ..protocols import Knowledge, PlanContext
from ..types import OFF, Plan, SkipSet, StepRecord
from .base import PlainStrategy
from .bayes import Point
from .draft_switch import MAX_RETRY, RETRY, DraftSwitch
from .failures import Failures
from .matching import Matched, matched
from .prune import USUAL_LENGTH
from .replanning import Account
from .swift_ranked import GAIN, Ranked
from .swift_search import Published, SwiftOptions, evenly, size_of
from .timeline import Timeline

_LEAST_TOKENS = 32
"""Generated ones before a text is scored on, where the window has as many; and new ones before it is again."""
_FIRST, _RESTING = 5.0, 0.2
"""Of the budget, until sets are found, and while drafting is slower than plain decoding."""
_INTERVAL = 32
"""Rounds that drafted between two looks at which size promises most."""
_HIGH = 0.9
"""An acceptance at which drafts must promise something to be searched for and tried."""
_RATIO_STEPS = 100
"""Steps between two looks at whether too much is skipped, under `paper`."""
_ENOUGH_DRAFTS, _MEMORY = 150, 0.997
"""Drafted tokens that tell an acceptance rate, and what each leaves of the weight of those before it."""


@dataclass
class Text:
    """Tokens of one text, and how many of those generated had been scored."""

    num_tokens: int = 0
    num_scored: int = 0


@dataclass
class Acceptance:
    """Accepted tokens per draft step of late."""

    accepted: float = 0.0
    drafted: float = 0.0

    def observe(self, step: StepRecord) -> None:
        fades = _MEMORY**step.draft.num_draft_steps
        self.accepted = fades * self.accepted + min(step.verdict.num_accepted, step.draft.num_draft_steps)
        self.drafted = fades * self.drafted + step.draft.num_draft_steps

    @property
    def rate(self) -> float | None:
        """None: too few drafts to tell."""
        return self.accepted / self.drafted if self.drafted >= _ENOUGH_DRAFTS else None


_PAIRING = {"lookahead": "confidence", "tree": "siblings"}


class Swift(PlainStrategy):
    Options = SwiftOptions
    learns_online = True
    pairs_with: ClassVar[Mapping[str, Any]] = {
        **_PAIRING,
        "settings": {
            "confidence": {"threshold": 0.9, "max_tokens": MAX_DRAFTED},
            "siblings": {"table": "swift", "lookup": 2},
        },
    }
    paper_pairs_with: ClassVar[Mapping[str, Any]] = {
        **_PAIRING,
        "settings": {"confidence": {"threshold": 0.8, "max_tokens": 25}, "siblings": {"table": "swift-code"}},
    }
    practice: ClassVar[Mapping[str, Any]] = {"budget": 1.0}

    def __init__(self, options: SwiftOptions, knowledge: Knowledge) -> None:
        self._latency = knowledge.latency()
        self._options = options.rules(is_recorded=self._latency.is_recorded)
        self._search: Published | Ranked = (
            Published(knowledge.num_layers, self._options)
            if options.paper
            else Ranked(knowledge.num_layers, self._options, self._latency)
        )
        self._timeline = Timeline()
        saved = knowledge.known("swift") if options.saved else {}
        if saved and {**saved, **self._asked} == saved:
            self._restore(saved, knowledge)
        self._account = Account(last=self._first_seconds())
        self._switch, self._acceptance, self._failures = DraftSwitch(), Acceptance(), Failures()
        self._num_drafts = 0
        self._level: float | None  # of the acceptance after the search
        self._last_ratio_step = self._search.step
        self._pause, self._wake = RETRY, self._timeline.num_tokens + RETRY  # tokens; see `_rest`
        self._can_pay_at: dict[int, bool] = {}
        self._texts: dict[int, Text] = {}
        self.known_plans = (Plan(self._usual_skip),)
        self._draft_with_best()

    @property
    def _asked(self) -> dict[str, Any]:
        """A saved state answers this question, or another."""
        names = ("paper", "ratio", "min_ratio", "max_ratio", "window")
        return {"asked": {name: getattr(self._options, name) for name in names}}

    def _first_seconds(self) -> float:
        """About what the first step will take."""
        return self._latency.at(0).verify(self._options.window * self._num_rows)

    @property
    def _num_rows(self) -> int:
        """Of a pass, at least: each number is recorded for itself."""
        return 1 if self._options.paper else 1 + self._options.candidates

    # ------------------------------------------------------------------------------------------------ the loop's calls

    def begin(self, sequence_id: int, prefill: Mapping[str, torch.Tensor]) -> None:
        self._timeline.begin(sequence_id)
        self._texts[sequence_id] = Text()

    def plan(self, sequence_id: int, context: PlanContext) -> Plan:
        text = self._texts[sequence_id]
        text.num_tokens = context.num_context_tokens
        if self._is_due(text, context):
            self._account.is_planning = True
            self._optimise(text, context)
        if self._search.skipped == self._plan.skip.numbers:
            self._search.gain = 0.0
        elif self._is_noticeably_better:
            self._draft_with_best()
        return self._plan if self._is_drafting(context.num_context_tokens) else OFF

    def observe(self, sequence_id: int, step: StepRecord) -> None:
        self._account.add(step)
        seconds = step.draft_seconds + step.verify_seconds
        self._timeline.observe(step, self._latency.plain.at(self._texts[sequence_id].num_tokens))
        if step.draft.tokens and step.plan.skip != self._plan.skip:  # says nothing about the set in use
            return
        self._switch.observe(bool(step.draft.tokens), len(step.verdict.tokens), seconds)
        if step.draft.num_draft_steps:
            self._acceptance.observe(step)
            self._watch(step)

    def rehearse(self, context: PlanContext) -> None:
        self._matched([frozenset()], context)

    def report(self, sequence_id: int) -> Mapping[str, Any]:
        search = self._search
        return {"phase": search.phase, "ratio": search.ratio, "step": search.step, "matchness": search.matchness}

    def end(self, sequence_id: int) -> None:
        self._texts.pop(sequence_id, None)
        self._timeline.end(sequence_id, self._search)

    # ------------------------------------------------------------------------------------------------ optimisation

    def _is_due(self, text: Text, context: PlanContext) -> bool:
        """Tokens that are scored again and again would be learned by heart: so some must be new, where it slides."""
        options, search, num_generated = self._options, self._search, context.num_generated_tokens
        least = options.window if options.paper else min(options.window, _LEAST_TOKENS)
        if num_generated < least or not self._account.allows(self._budget):
            return False
        if not options.paper and num_generated - text.num_scored < min(options.window // 4, _LEAST_TOKENS):
            return False
        if search.is_resting:
            return options.resume and self._is_outdone and self._timeline.num_tokens >= self._wake
        return options.always or self._can_pay(context.num_context_tokens)

    @property
    def _budget(self) -> float:
        budget = self._options.budget
        if budget >= 1:
            return budget
        return budget * (_FIRST if self._search.is_growing else _RESTING if self._is_outdone else 1.0)

    @property
    def _is_outdone(self) -> bool:
        """By plain decoding, as far as that is known."""
        return not self._options.always and (self._search.is_hopeless or self._switch.is_slower)

    def _can_pay(self, num_context: int) -> bool:
        """Whether drafts would if nearly all were accepted, as much as may be skipped."""
        key = num_context // LENGTH_STEP
        if key not in self._can_pay_at:
            self._can_pay_at[key] = self._latency.about(num_context).best_length(_HIGH, self._usual_skip)[0] > 0
        return self._can_pay_at[key]

    @property
    def _usual_skip(self) -> SkipSet:
        """As much as may be skipped: stands for the sets to come, whose drafts are built by the same kernels."""
        num_layers = self._latency.num_layers
        return SkipSet.of_numbers(evenly(num_layers, size_of(num_layers, self._options.max_ratio)))

    def _optimise(self, text: Text, context: PlanContext) -> None:
        num_fresh, text.num_scored = context.num_generated_tokens - text.num_scored, context.num_generated_tokens
        search, before = self._search, self._search.skipped
        if isinstance(search, Ranked) and search.is_resting:
            search.look_again()
            self._failures = Failures()
        points = search.candidates()
        if not points:
            return
        found = self._matched(points, context)
        num_tokens = found.hits.shape[1]
        matchness = search.judge(points, found, min(num_fresh, num_tokens - num_tokens // 2))
        if matchness is not None:
            self._timeline.add_step(search, matchness, search.skipped != before)
        if isinstance(search, Published):
            self._lower_if_poor(search)
        elif search.is_resting:
            self._rest()

    def _rest(self) -> None:
        """Where nothing is drafted, texts may become easier, or other ones: the next look comes later each time."""
        self._wake = self._timeline.num_tokens + self._pause
        self._pause = min(2 * self._pause, MAX_RETRY)

    def _matched(self, points: Sequence[Point], context: PlanContext) -> Matched:
        """On the last tokens, the second half held out; by the paper on the first that were generated. A power of two:
        each number of them is recorded for itself.
        """
        options, num_context, num_generated = self._options, context.num_context_tokens, context.num_generated_tokens
        count = min(num_generated if options.paper else 1 << (num_context - 1).bit_length() - 1, options.window)
        end = num_context - num_generated + count if options.paper else num_context
        probe = context.probe(count, before=num_context - end + 1)
        padding = [points[0]] * (self._num_rows - len(points))
        found = matched(probe, [*points, *padding], context.tokens[end - count : end])
        return Matched(found.hits[: len(points)], found.log_probs[: len(points)])

    def _lower_if_poor(self, search: Published) -> None:
        """By acceptance, or matchness where too little is drafted to tell."""
        if search.is_over or search.step - self._last_ratio_step < _RATIO_STEPS:
            return
        self._last_ratio_step = search.step
        rate = self._acceptance.rate
        found = search.matchness if rate is None else rate
        if found is not None and found < self._options.tolerance and search.lower():
            self._draft_with_best()

    def _watch(self, step: StepRecord) -> None:
        """How often do drafts fail, and once there are sets: does acceptance stay what it was?"""
        search, rate = self._search, self._acceptance.rate
        if isinstance(search, Published) or search.matchness is None:
            return
        self._failures.observe(step, search.matchness)
        self._num_drafts += 1
        if self._num_drafts % _INTERVAL == 0:
            search.failures = self._failures.ratio
            search.choose()
        if not self._options.resume or rate is None or (search.is_growing and not search.is_over):
            return
        if self._level is None:
            self._level = rate
        elif rate < self._level - self._options.shift:
            search.resume()
            self._pause, self._failures = RETRY, Failures()
            self._draft_with_best()

    # ------------------------------------------------------------------------------------------------ what drafts

    def _draft_with_best(self) -> None:
        skip = SkipSet.of_numbers(self._search.skipped)
        self._plan, self._search.gain = Plan(skip) if skip else OFF, 0.0
        self._acceptance, self._level = Acceptance(), None
        self._switch.renew()

    def _is_drafting(self, num_context: int) -> bool:
        """Not before a set was found by what it matches."""
        is_found = self._search.matchness is not None and self._search.can_pay
        return self._options.always or (is_found and self._switch.is_drafting and self._can_pay(num_context))

    @property
    def _is_noticeably_better(self) -> bool:
        """The best set, than the one that drafts so far."""
        return self._options.always or self._search.is_over or self._search.gain >= GAIN

    # ------------------------------------------------------------------------------------------------ its state

    @property
    def is_settled(self) -> bool:
        is_needless = self._search.is_hopeless or not self._can_pay(USUAL_LENGTH)
        return self._search.is_over or (is_needless and not self._options.always)

    @property
    def progress(self) -> float:
        return self._search.progress

    def state(self) -> dict[str, Any]:
        return {**self._search.state(), **self._timeline.to_json(), **self._asked}

    def _restore(self, saved: Mapping[str, Any], knowledge: Knowledge) -> None:
        try:
            self._search.restore(saved)
            self._timeline = Timeline.of_json(saved)
        except (LookupError, TypeError, ValueError, AttributeError, OptionError) as error:
            raise ProfileError(
                f"the profile's state of `swift` cannot be read ({type(error).__name__}: {error}). Start again with: "
                f"{knowledge.command('calibrate')} --strategy swift --again, or without it: --set swift.saved=false"
            ) from error
