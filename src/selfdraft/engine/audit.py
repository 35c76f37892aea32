"""Judges a text by teacher-forcing it: which of its tokens are not the target's own choice, and by how much?

The whole model reads the text once, in chunks, and is asked at every position what it would have said there, under the
options and the seed of the call. What is a tie is defined in metrics.py and, for mixtures of experts, in routing.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch

from ..errors import unknown_name
from ..options import GenerateOptions, check_function, check_value
from ..passes import NoiseKey, PassOutput, PassRequest, Site
from ..progress import Progress
from ..protocols import Runner
from ..types import FinishReason, Generation
from .metrics import Comparison, Contest, compare, contest_for
from .prefill import PREFILL_CHUNK
from .routing import Reading, Routing, positions_before, reason_for
from .sampling import Sampler
from .state import TextSequence
from .text import TextTail, read_tokens

Rule = Literal["choice", "possible"]

RULES: Mapping[str, Rule] = {"coupled": "choice", "rejection": "possible"}
"""What can be said of a sampled text, by the acceptance that made it: a coupled text is a function of the seed; one of
rejection sampling follows the target's distribution, so that all a token can be is possible."""

SCORED_CHUNK = 128
"""Judged tokens a pass: their scores [tokens, vocabulary] are held at once."""
REPLAYED_WIDTHS = (1, 2, 4, 8, 16, SCORED_CHUNK)
"""Tokens a pass where routing is looked at: one as in plain decoding, a few as in verifying drafts, many as here."""
_ROWS = 16
"""Positions that choose together; noise and sorted probabilities take several times the scores' memory."""


@dataclass(frozen=True)
class Claim:
    """What is said to be the target's own output; an ending or a text that is not given is not checked."""

    tokens: Sequence[int]
    finish_reason: FinishReason | None = None
    text: str | None = None


def read_claim(tokens: Any, finish_reason: FinishReason | None, text: Any, progress: Any) -> Claim:
    """What a caller says of a text, unless it says so itself; `progress` is told how far judging it is."""
    if finish_reason is not None and not (isinstance(finish_reason, str) and finish_reason in get_args(FinishReason)):
        raise unknown_name("finish_reason", finish_reason, get_args(FinishReason))
    check_value("text", text, str | None)
    if progress is not None:
        check_function("progress", progress, 3, "a function (done, total, what)")
    if isinstance(tokens, Generation):
        return Claim(tokens.tokens, tokens.finish_reason, tokens.text)
    return Claim(read_tokens(tokens), finish_reason, text)


@dataclass(frozen=True)
class Finding:
    """A token that is not the target's own choice (rule `possible`: that the options rule out there).

    `gap`: by how much the target's scores, noise included, prefer `choice`; infinite where truncation or a rule drops
    the token. Under the rule `possible`, `choice` is the likeliest token. `reason`: as `Comparison` has it.
    """

    index: int  # position in the generated text, from 0
    token: int
    choice: int
    gap: float
    verdict: Literal["tie", "different"]
    reason: str | None = None


@dataclass(frozen=True)
class Verification:
    """What the target says of a text. `faults` are in words: a wrong ending, or a text its tokens do not spell."""

    num_tokens: int
    findings: tuple[Finding, ...] = ()
    faults: tuple[str, ...] = ()
    rule: Rule = "choice"

    @property
    def num_ties(self) -> int:
        return sum(finding.verdict == "tie" for finding in self.findings)

    @property
    def num_different(self) -> int:
        return sum(finding.verdict == "different" for finding in self.findings)

    @property
    def num_choices(self) -> int:
        """Tokens that are the target's own choice (rule `possible`: that were possible)."""
        return self.num_tokens - len(self.findings)

    @property
    def verdict(self) -> Literal["equal", "tie", "different"]:
        """As `Comparison` has it: only `different` says that this is not what the target says."""
        if self.num_different or self.faults:
            return "different"
        return "tie" if self.num_ties else "equal"


def rule_for(acceptance: str, options: GenerateOptions) -> Rule:
    if not isinstance(acceptance, str) or acceptance not in RULES:
        raise unknown_name("acceptance", acceptance, RULES)
    return RULES[acceptance] if options.temperature > 0 else "choice"


def verify_text(
    runner: Runner,
    sequence: TextSequence,
    tail: TextTail,
    claim: Claim,
    sampler: Sampler,
    rule: Rule,
    progress: Progress | None = None,
) -> Verification:
    """Audit the continuation of `sequence`, which holds the prompt alone and the stop rules."""
    prompt, tokens = tuple(sequence.tokens), claim.tokens
    room = len(tokens) if runner.context_length is None else runner.context_length - len(prompt)
    judge = Audit(prompt, tokens[:room], sampler, rule, sequence.noise_sequence, sequence.seed)
    findings: list[Finding] = []
    inputs = [*prompt, *judge.tokens[:-1]] if judge.tokens else []
    for first, scores in scores_along(runner, inputs, len(prompt) - 1):
        findings.extend(judge.findings(first, scores))
        if progress is not None:
            progress(first + len(scores), len(judge.tokens), "verifying")
    rivals = {one.index: (one.token, one.choice) for one in findings if one.verdict == "different"}
    reasons = routing_reasons(runner, judge, rivals)
    found = [
        replace(one, verdict="tie", reason=reasons[one.index]) if one.index in reasons else one for one in findings
    ]
    faults = ending_faults(sequence, tokens, claim.finish_reason)
    if claim.text is not None and not faults and _spell(tail, tokens) != claim.text:
        faults = ("the text is not what its tokens spell",)
    return Verification(len(judge.tokens), tuple(found), faults, rule)


def compare_texts(
    runner: Runner, prompt: Sequence[int], texts: tuple[Sequence[int], Sequence[int]], sampler: Sampler
) -> Comparison:
    """Two outputs for one prompt, under the target's own scores."""
    judge = Audit(prompt, texts[0], sampler, "choice", sampler.options.sequence, sampler.options.seed)

    def contest_behind(generated: Sequence[int]) -> Contest:
        prefix = [*prompt, *generated]
        return judge.contest(len(generated), next(scores_along(runner, prefix, len(prefix) - 1))[1])

    found = compare(*texts, contest_behind)
    index = found.first_difference
    if index is None or found.gap is None or found.verdict == "tie":
        return found
    reason = routing_reasons(runner, judge, {index: [text[index] for text in texts]}).get(index)
    return replace(found, verdict="tie" if reason else "different", reason=reason)


def routing_reasons(runner: Runner, judge: Audit, rivals: Mapping[int, Sequence[int]]) -> dict[int, str]:
    """By position: why its two rivals tie, where routing that flips in half precision says so; see routing.py."""
    room = math.inf if runner.context_length is None else runner.context_length - len(judge.prompt)
    rivals = {index: tokens for index, tokens in rivals.items() if index <= room}  # texts of others may be longer
    routers = runner.decoder.routers() if rivals and torch.finfo(runner.dtype).bits == 16 else {}
    asked = positions_before(rivals)
    readings = []
    for width in REPLAYED_WIDTHS if routers else ():
        # What follows is read along, as drafts are.
        tokens = [*judge.prompt, *judge.tokens[: max(rivals) + width]][: runner.context_length]
        noted, reached = dict[int, Routing](), dict[int, list[bool]]()
        for first, output in passes_along(runner, tokens, len(judge.prompt) - 1, width, tuple(routers)):
            noted |= Routing.of(routers, output.captured).noted(first, asked)
            for index in rivals.keys() & range(first, first + width):
                contest = judge.contest(index, output.scores[0, index - first, None])
                reached[index] = [judge.is_tie(contest, token) for token in rivals[index]]
        readings.append(Reading(noted, reached))
    reasons = {index: reason_for(index, readings, tuple(routers)) for index in rivals}
    return {index: reason for index, reason in reasons.items() if reason is not None}


def scores_along(runner: Runner, tokens: Sequence[int], first: int) -> Iterator[tuple[int, torch.Tensor]]:
    """(index, raw scores [n, vocabulary]) after `tokens[first + index]`, ...: each given all that stands before it."""
    for index, output in passes_along(runner, tokens, first, SCORED_CHUNK) if tokens else ():
        yield index, output.scores[0]


def passes_along(
    runner: Runner, tokens: Sequence[int], first: int, width: int, capture: Sequence[str] = ()
) -> Iterator[tuple[int, PassOutput]]:
    """The same in passes of `width` tokens."""
    cache = runner.new_cache(1, len(tokens))
    for begin, end in (*_spans(0, first, PREFILL_CHUNK), *_spans(first, len(tokens), width)):
        chunk = torch.tensor([tokens[begin:end]], device=runner.device)
        if begin < first:
            runner.forward(PassRequest(chunk, [begin], needs_scores=False), cache)
        else:
            yield begin - first, runner.forward(PassRequest(chunk, [begin], capture=capture), cache)


def _spans(begin: int, end: int, size: int) -> list[tuple[int, int]]:
    return [(start, min(start + size, end)) for start in range(begin, end, size)]


@dataclass(frozen=True)
class Audit:
    """Asks of each token whether the target chooses it after the tokens before it."""

    prompt: Sequence[int]
    tokens: Sequence[int]
    sampler: Sampler
    rule: Rule
    noise_sequence: int = 0
    seed: int = 0

    def findings(self, first: int, scores: torch.Tensor) -> Iterator[Finding]:
        """`scores` [n, vocabulary]: the target's raw ones for `tokens[first]`, ..."""
        for begin, end in _spans(0, len(scores), _ROWS):
            processed = self._processed(first + begin, scores[begin:end])
            for row in (~self._are_fine(first + begin, processed)).nonzero().flatten().tolist():
                raw = scores[begin + row : begin + row + 1]
                yield self._finding(first + begin + row, raw, int(processed[row].argmax()))

    def _processed(self, first: int, scores: torch.Tensor) -> torch.Tensor:
        if not self.sampler.has_prefix_rules:
            return scores
        prefixes = [self._prefix(first + row) for row in range(len(scores))]
        indices = torch.arange(first, first + len(scores), device=scores.device)
        return self.sampler.apply_prefix_rules(scores, prefixes, indices)

    def _are_fine(self, first: int, scores: torch.Tensor) -> torch.Tensor:
        """[n] whether each token needs no closer look."""
        tokens = torch.tensor(self.tokens[first : first + len(scores)], device=scores.device)
        if self.rule == "possible":
            return self.sampler.warp(scores).gather(1, tokens[:, None])[:, 0] > -torch.inf
        sites = [self._site(first + row) for row in range(len(scores))]
        return self.sampler.choose(scores, NoiseKey.of(sites, scores.device)) == tokens

    def _finding(self, index: int, scores: torch.Tensor, likeliest: int) -> Finding:
        token, contest = self.tokens[index], self.contest(index, scores)
        as_set = contest.variants[0]
        verdict: Literal["tie", "different"] = "tie" if self.is_tie(contest, token) else "different"
        if self.rule == "possible":
            return Finding(index, token, likeliest, math.inf, verdict)
        choice = int(as_set.argmax())
        return Finding(index, token, choice, float(as_set[choice] - as_set[token]), verdict)

    def contest(self, index: int, scores: torch.Tensor) -> Contest:
        """`scores` [1, vocabulary]: the target's raw ones for the position."""
        return contest_for(scores, self.sampler, self._site(index), self._prefix(index))

    def is_tie(self, contest: Contest, token: int) -> bool:
        if self.rule == "possible":
            return any(bool(variant[token] > -torch.inf) for variant in contest.variants)
        return contest.is_reachable(token)

    def _prefix(self, index: int) -> list[int]:
        return [*self.prompt, *self.tokens[:index]]

    def _site(self, index: int) -> Site:
        return Site(self.noise_sequence, index, 0, self.seed)


def ending_faults(sequence: TextSequence, tokens: Sequence[int], finish_reason: FinishReason | None) -> tuple[str, ...]:
    """Let the stop rules that `generate` uses run along the text; `sequence` holds the prompt alone."""
    for index, token in enumerate(tokens):
        sequence.tokens.append(token)
        ended_by = sequence.reason_to_stop(token)
        if ended_by is not None:
            if index + 1 < len(tokens):
                return (_goes_on(ended_by, index, token, len(tokens)),)
            break
    else:
        ended_by = None
    if finish_reason is None or finish_reason == (ended_by or "cancelled"):
        return ()
    if ended_by is not None:
        return (f"the text ends by {ended_by}, but its finish_reason is {finish_reason}",)
    missing = {
        "eos": "its last token is not an end-of-text token",
        "stop": "no stop string ends it",
        "length": f"it has {len(tokens)} tokens of {sequence.max_new_tokens}",
        "context": f"it has {len(tokens)} tokens where {sequence.max_new_tokens} fit",
    }
    return (f"the text ends too early: its finish_reason is {finish_reason}, but {missing[finish_reason]}",)


def _goes_on(ended_by: FinishReason, index: int, token: int, num_tokens: int) -> str:
    reason = {
        "eos": f"token {index} is the end-of-text token {token}",
        "stop": f"token {index} completes a stop string",
        "length": f"max_new_tokens allows {index + 1} tokens",
        "context": f"the model's context has room for {index + 1} tokens",
    }[ended_by]
    return f"the text goes on after its end: {reason}, but there are {num_tokens}"


def _spell(tail: TextTail, tokens: Sequence[int]) -> str:
    """The text of `tokens`; looking for stop strings, the tail may have read some of them."""
    for token in tokens[tail.num_tokens :]:
        tail.push(token)
    tail.flush()
    return tail.text
