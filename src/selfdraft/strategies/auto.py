"""`auto`: what is fastest at the moment, chosen before every round; never slower than plain decoding for long.

Ours. A round is plain, or checks a copy of what followed the last words before (as the drafter `lookup` finds it), or a
draft of the skipped self, with copies beside it. Each is worth its expected tokens, less what its seconds would bring
otherwise; the one that is worth most is done, with as many tokens as pay.

- Seconds are those of rounds that ran on this machine, by the columns of a pass and by how many texts share it. What a
  calibration or an earlier process knows is where they begin.
- How often copies hold is told by every decoded token, used or not, by the length of the match and per text.
- The skipped self drafts as the profile says: `knn` where it has domains, else `prune`. Without a profile its sets are
  looked for on the way, as `swift` does it, in a small share of the time. It is tried for a few rounds, and again
  occasionally, as long as such trials lose at most a hundredth of the time.

An axis that the caller names stays as it is; the others are chosen. What was learned is kept for the next process.
`clock=false` goes by what is known of seconds beforehand, so that a command decides the same each time.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from ..errors import OptionError, ProfileError
from ..options import setting
from ..protocols import Knowledge, PlanContext, Strategy
from ..registry import find
from ..types import OFF, Plan, StepRecord
from .base import ConstantStrategy, PlainStrategy
from .choosing.company import Choice, Company, Kind
from .choosing.copies import MAX_BESIDE, MAX_LENGTH, MAX_TOKENS, MIN_LENGTH, CopiedText, Copies
from .choosing.costs import GUESS, KNOTS, RECORDED_GUESS, Costs
from .choosing.known import Known
from .choosing.numbers import bounded, one_of
from .choosing.text import Ended, Text
from .swift import Swift

COPY = "lookup"
"""The drafter of copies."""
INNER = ("knn", "prune")
"""Strategies whose sets the skipped self drafts with: the first one that the profile knows."""
_PLAIN_ROUNDS = 16
"""That are timed before sets are looked for."""
_INTERVAL = 8
"""Rounds between two looks at whether a search is due."""
MAX_ROWS = 8
"""Texts that share a pass: for more of them each checked token takes its time."""


class Auto(PlainStrategy):
    @dataclass(frozen=True)
    class Options:
        drafter: str = setting("", "what drafts; empty: chosen every round")
        tree: str = setting("", "what stands beside it; empty: chosen every round")
        lookahead: str = setting("", "how far it drafts; empty: chosen every round")
        max_tokens: int = setting(MAX_TOKENS, "copy or draft at most N tokens", minimum=1)
        clock: bool = setting(True, "time the rounds; false: go by what is known beforehand, the same each time")
        budget: float | None = setting(
            None,
            "share of the time to look for sets where the profile has none, at first five times as much; "
            "None: 0.008 where passes are recorded, else 0.002",
            minimum=0.0,
            maximum=1.0,
        )
        always: bool = setting(False, "draft wherever there is something to draft, even where plain decoding is faster")
        saved: bool = setting(True, "go on with what was kept of earlier texts")

        CHOOSES: ClassVar[tuple[str, ...]] = ("drafter", "tree", "lookahead")

        def __post_init__(self) -> None:
            for axis in ("drafter", "tree"):  # a lookahead may be an object of the caller's
                if name := getattr(self, axis):
                    find(axis, name)

    is_kept = True
    max_rows = MAX_ROWS
    pairs_with: ClassVar[Mapping[str, Any]] = {
        "lookahead": "confidence",
        "tree": "siblings",
        "settings": {
            "confidence": {"threshold": 0.9, "copies": True},
            "siblings": {"table": "swift", "lookup": 2},
            COPY: {"min_ngram": MIN_LENGTH, "max_ngram": MAX_LENGTH, "max_tokens": MAX_TOKENS},
        },
    }

    def __init__(self, options: Options, knowledge: Knowledge) -> None:
        self._options, self._is_recording = options, knowledge.is_recording
        self._is_open = not (options.drafter or options.tree or options.lookahead)  # else rounds are others
        self.is_kept = self._is_open and options.saved and options.clock and not options.always
        self._may_copy = options.drafter in ("", COPY)
        self._may_skip = options.drafter in ("", "self")
        self._known: Known | None = None
        self._nothing = ConstantStrategy(OFF if self._may_skip or self._may_copy else Plan())
        self._inner: Strategy = self._find_inner(knowledge) if self._may_skip else self._nothing
        self._searched: dict[str, Any] = {}  # by an earlier process
        self._shares = knowledge.shares() if self._may_search else (0.0, 0.0)
        self._num_layers = knowledge.num_layers
        self._copies, self._companies = Copies(), dict[int, Company]()
        self._gains: Sequence[float] = ()  # that copies promise the one that gains least of those that share rounds
        self._texts: dict[int, Text] = {}
        self._shown: dict[str, Sequence[float]] = {}  # by the last text of each domain
        self._round: list[Ended] = []  # the last one, until it has been learned from
        self._shared: Choice | None = None  # of this round
        self._num_rounds, self._num_restored = 0, 0  # that it has learned from, those of earlier processes included
        self._copy_plan = Plan(drafter=COPY, tree=options.tree or ("siblings" if knowledge.is_recording else "chain"))
        self._num_beside = MAX_BESIDE if self._may_copy and options.tree in ("", "siblings") else 0
        copies = (self._copy_plan,) if self._may_copy else ()
        inner = () if self._inner is self._nothing else self._inner.known_plans
        self.known_plans = tuple(dict.fromkeys((*inner, *copies)))
        self.needs, self.prefill_needs = self._inner.needs, self._inner.prefill_needs
        if options.saved:
            self._restore(knowledge)

    def _find_inner(self, knowledge: Knowledge) -> Strategy:
        """What the profile knows; a damaged one is told, and done without. Where the caller wants the skipped self,
        evenly spaced layers will do.
        """
        for name in (*INNER, *(["uniform"] if self._options.drafter == "self" else ())):
            try:
                if name not in INNER or knowledge.known(name):
                    kind = find("strategy", name)
                    told = {"always": self._options.always} if name in INNER else {}
                    found: Strategy = kind(kind.Options(**told), knowledge)
                    self._known = Known.of(knowledge, name) if name in INNER else None
                    return found
            except (ProfileError, OptionError) as error:
                warnings.warn(f"drafting does without sets of {name!r}, for {error}", stacklevel=2)
        return self._nothing

    @property
    def _may_search(self) -> bool:
        return self._may_skip and self._inner is self._nothing and self._options.budget != 0 and self._options.clock

    @property
    def _is_searching(self) -> bool:
        return isinstance(self._inner, Swift)

    def _begin_search(self, costs: Costs) -> None:
        """By what plain rounds took: nothing else is timed for it. Where passes are not recorded steps are short: one
        takes as long as a few rounds, so that nobody notices.
        """
        fit = costs.fit(self._shares, self._num_layers, is_recorded=self._is_recording)
        known = Knowledge(self._num_layers, lambda: fit, lambda *told: {}, known=lambda name: self._searched)
        usual: dict[str, Any] = (
            {"budget": 0.008} if self._is_recording else {"budget": 0.002, "window": 32, "candidates": 2}
        )
        told = {} if self._options.budget is None else {"budget": self._options.budget}
        options = Swift.Options(**{**usual, **told})
        try:
            self._inner = Swift(options, known)
        except ProfileError:  # what was kept of a search is damaged
            self._searched = {}
            self._inner = Swift(options, known)
        for sequence_id in self._texts:
            self._inner.begin(sequence_id, {})

    # ------------------------------------------------------------------------------------------------ the loop's calls

    def condense(self, captured: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return self._inner.condense(captured)

    def begin(self, sequence_id: int, prefill: Mapping[str, torch.Tensor]) -> None:
        self._texts[sequence_id] = text = Text(CopiedText(self._copies))
        self._inner.begin(sequence_id, prefill)
        text.domain = "" if self._is_searching else self._inner.report(sequence_id).get("domain") or ""
        if text.domain in self._shown:
            text.expect(self._shown[text.domain])

    def plan(self, sequence_id: int, context: PlanContext) -> Plan:
        text, company = self._texts[sequence_id], self._company(context.num_rows)
        chances = self._chances(text, context)
        inner = self._inner_plan(sequence_id, context)
        text.num_rows, is_shared = context.num_rows, context.num_rows > 1
        text.num_context = context.num_context_tokens
        if is_shared:
            text.promise(chances)
        if not (is_shared and self._shared):
            gains, alone = (self._gains[: self._options.max_tokens], None) if is_shared else (chances, text.skipped)
            always, may = self._options.always, (inner is not OFF, self._num_beside)
            self._shared = company.choose(gains, alone, *may, always=always, last=text.last)
        text.choice = self._shared
        if text.choice.kind == "skip":
            return inner
        return self._copy(text, context) if text.choice.kind == "copy" and chances else OFF

    def observe(self, sequence_id: int, step: StepRecord) -> None:
        text, kind = self._texts[sequence_id], _kind(step)
        self._round.append(Ended(step, text, text.choice, text.last))
        self._shared, text.last = None, kind
        # it would take a copy for a draft of its own
        if not (kind == "copy" and self._is_searching):
            self._inner.observe(sequence_id, step)

    def meanwhile(self) -> None:
        self._end_round()
        self._inner.meanwhile()

    def rehearse(self, context: PlanContext) -> None:
        self._inner.rehearse(context)

    def report(self, sequence_id: int) -> Mapping[str, Any]:
        self._end_round()
        inner = {} if self._is_searching else self._inner.report(sequence_id)
        text = self._texts[sequence_id]
        company = self._company(text.num_rows)
        plain = company.costs.seconds(1) if company.costs.is_known else None
        return {**inner, "rounds": text.told.to_json(), "plain_seconds": plain, "reasons": self._reasons(company)}

    def _reasons(self, company: Company) -> list[str]:
        """Why rounds were what they were, as far as these do not say it."""
        found = []
        if self._may_copy and company.costs.is_known:
            plain, (one, four) = company.costs.seconds(1), (company.costs.seconds(width) for width in (2, 5))
            found.append(f"to check 1 or 4 more tokens takes {one / plain:.2f} or {four / plain:.2f} plain rounds")
        if self._may_skip:
            found.append(f"skipped self: {self._skipping(company)}")
        return found

    def _skipping(self, company: Company) -> str:
        arm = company.skipping
        if self._inner is self._nothing or (self._is_searching and not arm.total.rounds):
            return "no sets are known; `selfdraft calibrate` finds some"
        if not arm.total.rounds:
            return "plain decoding promises more, by the profile" if company.costs.is_known else "not tried yet"
        speed = f"{arm.total.rate:.2f} times as fast as plain rounds"
        return speed if arm.total.rate > 1 else f"{speed}; tried again after {arm.retry} tokens"

    def end(self, sequence_id: int) -> None:
        self._end_round()
        if (text := self._texts.pop(sequence_id, None)) and text.domain:
            self._shown[text.domain] = text.shown
        self._inner.end(sequence_id)

    # ------------------------------------------------------------------------------------------------ choosing

    def _chances(self, text: Text, context: PlanContext) -> list[float]:
        if not self._may_copy:
            return []
        match = text.copied.look(context.tokens)
        return text.copied.chances(match)[: self._options.max_tokens]

    def _inner_plan(self, sequence_id: int, context: PlanContext) -> Plan:
        costs = self._company(1).costs
        if self._may_search and costs.num_plain >= _PLAIN_ROUNDS and context.num_rows == 1:
            self._begin_search(costs)
        text = self._texts[sequence_id]
        text.num_asked += 1
        if text.inner is not OFF or text.num_asked % _INTERVAL == 0 or not self._is_searching:
            text.inner = self._inner.plan(sequence_id, context)
        return text.inner

    def _copy(self, text: Text, context: PlanContext) -> Plan:
        """Where an axis is named, its part says what is drafted, and how far."""
        plan, count = self._copy_plan, text.choice.num_drafted
        if not self._is_open:
            return plan if self._options.lookahead else replace(plan, max_draft_tokens=count)
        found = [text.copied.match.tokens[:count]]
        if self._is_recording and (other := text.copied.other(context.tokens)):
            found.append(other)
        paths = tuple(map(tuple, found))
        return Plan(drafter=plan.drafter, tree=plan.tree, max_draft_tokens=count, paths=paths)

    def _company(self, num_rows: int) -> Company:
        """Of about that many rows: as `passes.serves` tells them apart."""
        size = (num_rows - 1).bit_length()
        if size not in self._companies:
            self._companies[size] = Company(self._guess(1 << size), self._options.clock, self._is_recording)
            if self._known and not size:
                self._known.tell(self._companies[size])
        return self._companies[size]

    def _guess(self, num_rows: int) -> Sequence[float]:
        """As many columns as all rows have: what is known of one text tells about it."""
        if num_rows > 1:
            alone = self._company(1).costs
            return [alone.seconds(num_rows * width) / alone.seconds(num_rows) for width in KNOTS]
        if self._known:
            return self._known.guess
        return RECORDED_GUESS if self._is_recording else GUESS

    def _end_round(self) -> None:
        """Learn from the last round once all of its rows are known."""
        ended, self._round = self._round, []
        if not ended:
            return
        steps, texts = [one.step for one in ended], [one.text for one in ended]
        first, text, chosen, last = ended[0]
        company, stretch = self._company(text.num_rows), self._known.stretch(text.num_context) if self._known else 1.0
        seconds = first.draft_seconds + first.verify_seconds
        width = 1 + max(len(step.draft.tokens) for step in steps)
        tokens = sum(len(step.verdict.tokens) for step in steps) / len(steps)
        choice = _done(chosen, steps, company.costs.seconds(1))
        # else of no clock
        expected = choice._replace(seconds=choice.seconds * stretch if company.costs.num_rounds else seconds)
        for text, step in zip(texts, steps, strict=True):
            text.told.add(_own(expected, step), len(step.verdict.tokens), seconds)
        if len(texts) > 1:  # who waits for all of them is not helped by copies of some
            self._gains = [min(column) for column in zip(*(text.gains for text in texts), strict=True)]
        self._num_rounds += 1
        # texts that were told that they are alone may not be
        if not first.record_seconds and len(ended) <= texts[0].num_rows:
            alone = texts[0].skipped if texts[0].num_rows == 1 else None
            own = sum(map(_drafted, steps)) / len(steps)
            company.observe(choice, width, tokens, seconds / stretch, alone, last, own)

    # ------------------------------------------------------------------------------------------------ its state

    def state(self) -> dict[str, Any]:
        """Nothing where nothing new was learned."""
        if self._num_rounds == self._num_restored or not self.is_kept:
            return {}
        companies = {str(size): company.state() for size, company in self._companies.items()}
        if isinstance(self._inner, Swift):
            self._searched = {**self._inner.state(), "steps": [], "texts": []}
        learned = {"copies": self._copies.state(), "companies": companies, "search": self._searched}
        return {"rounds": self._num_rounds, "sets": self._sets, **learned}

    @property
    def _sets(self) -> str:
        """Whose sets the skipped self drafts with."""
        return "swift" if self._known is None else type(self._inner).__name__.lower()

    def _restore(self, knowledge: Knowledge) -> None:
        """What cannot be read is told, and learned again."""
        try:
            if saved := knowledge.learned("auto"):
                self._copies.restore(saved["copies"])
                self._searched = dict(saved["search"])
                is_same = saved.get("sets") == self._sets
                for size, state in saved["companies"].items():
                    self._company(1 << int(one_of(size, range(MAX_ROWS.bit_length())))).restore(state, is_same)
                self._num_rounds = self._num_restored = int(bounded(saved["rounds"]))
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            self._copies, self._companies, self._searched = Copies(), {}, {}
            warnings.warn(f"`auto` starts again, for what was kept cannot be read ({error})", stacklevel=2)


def _drafted(step: StepRecord) -> int:
    """Tokens of a round without those that copies beside the draft brought: the chain's, a sibling, the target's."""
    chain = sum(node < step.draft.chain_length for node in step.verdict.nodes)
    return 1 + min(len(step.verdict.nodes), chain + 1)


def _own(choice: Choice, step: StepRecord) -> Choice:
    """Of a row, which may have had nothing to draft."""
    return choice if step.draft.tokens or choice.kind == "off" else Choice("off", 0, 1.0, choice.seconds)


def _kind(step: StepRecord) -> Kind:
    if not step.draft.tokens:
        return "off"
    return "copy" if step.plan.drafter == COPY else "skip"


def _done(choice: Choice, steps: Sequence[StepRecord], plain: float) -> Choice:
    """What became of it: nothing may have been drafted, as where a pass was under way already. `plain`: seconds."""
    kinds = {_kind(step) for step in steps} - {"off"}
    if not kinds:
        return Choice("off", 0, 1.0, plain)
    kind: Kind = "copy" if kinds == {"copy"} else "skip"
    return choice if choice.kind == kind else Choice(kind, 0, choice.tokens, choice.seconds)
