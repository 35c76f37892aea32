"""`swift`: search while generating. Candidates are scored by how much of the text so far they would have drafted.

SWIFT (arXiv:2410.06916). Drafting begins with evenly spaced layers. Once a window of generated tokens is there, a step
before each round scores a candidate of the same size: the share of these tokens that it would have drafted, in one pass
beside the target's own keys and values (matchness). Candidates are random, every 25th comes from Bayesian optimisation;
the best one drafts. The search is over after 1000 steps, 300 without improvement or beyond a matchness of 0.95. It goes
on from text to text. The ratio is lowered while too few drafted tokens are accepted.

Ours, as long as `paper` is not set: the window slides, and candidates are believed by tokens they were not chosen by;
they differ a little from the set in use, and several share a pass; optimisation takes at most a twentieth of the time;
when acceptance falls the search begins again; where rounds that draft turn out slower than plain ones, nothing is
drafted, and another set drafts only where it matches noticeably more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from ..errors import OptionError, ProfileError
from ..protocols import Knowledge, PlanContext
from ..types import OFF, Plan, SkipSet, StepRecord
from .base import PlainStrategy
from .bayes import Point
from .draft_switch import DraftSwitch
from .matching import choices
from .replanning import Account
from .swift_search import Optimisation, SwiftOptions
from .timeline import Timeline

_GAIN = 0.03
"""Another set drafts if its matchness is larger by this: a set that is new has to be recorded and tried."""
_CANDIDATES_ON_GPU, _CANDIDATES = 32, 4
_HIGH, _MAX_DRAFTED, _USUAL_LENGTH = 0.9, 12, 512
"""An acceptance, a draft length and a length of text at which a set must promise something to be tried at once."""
_RATIO_STEPS = 100
"""Steps between two looks at whether too much is skipped."""
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


class Swift(PlainStrategy):
    Options = SwiftOptions
    learns_online = True
    pairs_with: ClassVar[Mapping[str, Any]] = {
        "lookahead": "confidence",
        "tree": "siblings",
        "settings": {"confidence": {"threshold": 0.8, "max_tokens": 25}, "siblings": {"table": "swift"}},
    }
    practice: ClassVar[Mapping[str, Any]] = {"budget": 1.0}

    def __init__(self, options: SwiftOptions, knowledge: Knowledge) -> None:
        self._latency = knowledge.latency()
        rules = options.rules
        usual = _CANDIDATES_ON_GPU if self._latency.is_recorded else _CANDIDATES
        self._options = replace(rules, candidates=rules.candidates or usual)
        self._search, self._timeline = Optimisation(knowledge.num_layers, self._options), Timeline()
        saved = knowledge.known("swift") if options.saved else {}
        if saved and {**saved, **self._asked} == saved:
            self._restore(saved, knowledge)
        self._account = Account(last=self._first_seconds())
        self._switch, self._acceptance = DraftSwitch(), Acceptance()
        self._level: float | None  # of the acceptance after the search
        self._level_of_looks: float | None  # of matchness, where nothing is drafted
        self._last_ratio_step = self._search.step
        self._texts: dict[int, Text] = {}
        self._draft_with_best()

    @property
    def _asked(self) -> dict[str, Any]:
        """A saved state answers this question, or another."""
        names = ("paper", "ratio", "min_ratio", "window", "sliding", "held_out")
        return {"asked": {name: getattr(self._options, name) for name in names}}

    def _first_seconds(self) -> float:
        """About what the first step will take."""
        options = self._options
        num_tokens = (options.candidates + options.held_out) * options.window * (1 + options.held_out)
        return self._latency.at(0).verify(num_tokens)

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
        if self._search.skipped != self._plan.skip.numbers and self._is_noticeably_better:
            self._draft_with_best()
        return self._plan if self._options.always or self._switch.is_drafting else OFF

    def observe(self, sequence_id: int, step: StepRecord) -> None:
        self._account.add(step)
        seconds = step.draft_seconds + step.verify_seconds
        self._timeline.observe(step, self._latency.plain.at(self._texts[sequence_id].num_tokens))
        if step.draft.tokens and step.plan.skip != self._plan.skip:  # says nothing about the set in use
            return
        self._switch.observe(bool(step.draft.tokens), len(step.verdict.tokens), seconds)
        if step.draft.num_draft_steps:
            self._acceptance.observe(step)
            self._watch()

    def report(self, sequence_id: int) -> Mapping[str, Any]:
        search = self._search
        return {"phase": search.phase, "ratio": search.ratio, "step": search.step, "matchness": search.matchness}

    def end(self, sequence_id: int) -> None:
        self._texts.pop(sequence_id, None)
        self._timeline.end(sequence_id, self._search)

    # ------------------------------------------------------------------------------------------------ optimisation

    def _is_due(self, text: Text, context: PlanContext) -> bool:
        """Tokens that are scored again and again would be learned by heart: so some must be new, where it slides.

        After the search a look must tell a shift from chance, and takes as many tokens as there can be.
        """
        options, num_fresh = self._options, context.num_generated_tokens - text.num_scored
        num_needed = options.window * (1 + options.held_out if self._search.is_over else 1)
        if context.num_generated_tokens < num_needed or not self._account.allows(options.budget):
            return False
        if options.sliding and num_fresh < options.window // 2:
            return False
        is_watching = not self._switch.is_drafting and not options.always and options.resume and not text.num_scored
        return not self._search.is_over or is_watching

    def _optimise(self, text: Text, context: PlanContext) -> None:
        num_fresh, text.num_scored = context.num_generated_tokens - text.num_scored, context.num_generated_tokens
        points = [self._search.skipped] if self._search.is_over else self._search.candidates()
        if not points:
            return
        hits = self._hits(points, context)
        if self._search.is_over:
            self._look_again(float(hits[0].mean()), min(num_fresh, hits.shape[1]))
            return
        middle = hits.shape[1] // 2 if self._options.held_out else hits.shape[1]
        searched: list[float] = hits[:, :middle].mean(1).tolist()
        held_out: list[float] = hits[:, middle:].mean(1).tolist() if self._options.held_out else []
        is_new = self._search.judge(points, searched, held_out, min(num_fresh, hits.shape[1] - middle))
        self._timeline.add_step(self._search, max(searched[1:] if held_out else searched), is_new)
        self._lower_if_poor()

    def _hits(self, points: Sequence[Point], context: PlanContext) -> torch.Tensor:
        """[sets, tokens]: 1 where a set would have drafted the token. Held out is the half that comes last."""
        options = self._options
        count = min(context.num_generated_tokens, options.window * (1 + options.held_out))
        num_prompt_tokens = context.num_context_tokens - context.num_generated_tokens
        end = context.num_context_tokens if options.sliding else num_prompt_tokens + count
        wanted = torch.tensor(list(context.tokens[end - count : end]))
        probe = context.probe(count, before=context.num_context_tokens - end + 1)
        return (choices(probe, points).cpu() == wanted).double()

    def _lower_if_poor(self) -> None:
        """Acceptance, or matchness where too little is drafted to tell."""
        if self._search.is_over or self._search.step - self._last_ratio_step < _RATIO_STEPS:
            return
        self._last_ratio_step = self._search.step
        rate = self._acceptance.rate
        found = self._search.matchness if rate is None else rate
        if found is not None and found < self._options.tolerance and self._search.lower():
            self._draft_with_best()

    def _watch(self) -> None:
        """After the search: does acceptance stay what it was?"""
        rate = self._acceptance.rate
        if not self._options.resume or not self._search.is_over or rate is None:
            return
        if self._level is None:
            self._level = rate
        elif rate < self._level - self._options.shift:
            self._resume()

    def _look_again(self, matchness: float, num_fresh: int) -> None:
        """Nothing is drafted, so only a look can tell that texts have become easier, or other ones."""
        if self._level_of_looks is None:
            self._level_of_looks = self._search.matchness
        self._search.look(matchness, min(num_fresh, self._options.window))
        found, level = self._search.matchness, self._level_of_looks
        if found is not None and level is not None and abs(found - level) > self._options.shift:
            self._resume()

    def _resume(self) -> None:
        self._search.resume()
        self._last_ratio_step = self._search.step
        self._draft_with_best()

    # ------------------------------------------------------------------------------------------------ what drafts

    def _draft_with_best(self) -> None:
        skip = SkipSet.of_numbers(self._search.skipped)
        self._plan, self._search.gain = Plan(skip) if skip else OFF, 0.0
        self._acceptance, self._level, self._level_of_looks = Acceptance(), None, None
        self._switch.renew(self._is_promising(skip))

    def _is_promising(self, skip: SkipSet) -> bool:
        """Whether drafts with it would pay if nearly all were accepted."""
        return self._latency.at(_USUAL_LENGTH).best_length(_HIGH, skip, _MAX_DRAFTED)[0] > 0

    @property
    def _is_noticeably_better(self) -> bool:
        """The best set, than the one that drafts so far."""
        return self._options.always or self._search.is_over or self._search.gain >= _GAIN

    # ------------------------------------------------------------------------------------------------ its state

    @property
    def is_settled(self) -> bool:
        return self._search.is_over

    @property
    def progress(self) -> float:
        return self._search.progress

    def state(self) -> dict[str, Any]:
        return {**self._search.state(), **self._timeline.to_json(), **self._asked}

    def _restore(self, saved: Mapping[str, Any], knowledge: Knowledge) -> None:
        try:
            self._search = Optimisation.of_state(knowledge.num_layers, self._options, saved)
            self._timeline = Timeline.of_json(saved)
        except (LookupError, TypeError, ValueError, AttributeError, OptionError) as error:
            raise ProfileError(
                f"the profile's state of `swift` cannot be read ({type(error).__name__}: {error}). Start again with: "
                f"{knowledge.command('calibrate')} --strategy swift --again, or without it: --set swift.saved=false"
            ) from error
