"""Traces: what a drafter would draft after every prefix of a text that the target wrote, and whether it would be kept.

DISCO's features and labels (arXiv:2405.04304, appendix D): after each token of the target the draft proposes one. While
a draft agrees its prefix is the target's, so a trace tells of longer drafts too, up to the first that is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ..drafted import DraftStats
from ..drafters.model import Model, fit_vocabulary
from ..drafters.self import Self
from ..engine.accept import Coupled, Targets
from ..engine.engine import Engine
from ..engine.sampling import Sampler
from ..lookahead.base import PlainLookahead
from ..options import NoOptions
from ..passes import States
from ..progress import Progress, no_progress
from ..protocols import Probe, Runner
from ..registry import in_use
from ..strategies.base import ConstantStrategy
from ..types import Prompt, SkipSet, Verdict
from .writing import Text, Told, probe_text, rows_at_once, write

_SCORED_TOKENS = 64  # whose scores [tokens, vocabulary] are held at once


@dataclass(frozen=True)
class Trace:
    """Of one text: row i is about the token at position i of what the target generated. On the host."""

    domain: str
    top_probs: torch.Tensor  # [tokens, 10]
    entropies: torch.Tensor  # [tokens]
    confidences: torch.Tensor  # [tokens]
    match_lengths: torch.Tensor  # [tokens]
    is_drafted: torch.Tensor  # [tokens] bool: the drafter had something to propose
    is_kept: torch.Tensor  # [tokens] bool: and it was the target's token
    overlaps: torch.Tensor  # [tokens] 1 - total variation between draft and target
    has_scores: bool  # the drafter has a distribution

    def __len__(self) -> int:
        return len(self.is_kept)


Part = dict[str, torch.Tensor]  # some rows of a trace, by the names of its fields


def collect(
    engine: Engine,
    method: Mapping[str, Any],
    prompts: Sequence[Prompt],
    num_tokens: int,
    progress: Progress = no_progress,
    *,
    sampling: Mapping[str, Any] | None = None,
    has_time: Callable[[], bool] = lambda: True,
) -> list[Trace]:
    """A trace of at most `num_tokens` after each prompt; where time is up the remaining prompts are left out.

    `method` names strategy, drafter and their settings as a call of `Engine.generate` does; what else it names does
    not matter here. With `sampling` (temperature, seed, ...) the texts are sampled, else they are greedy.
    """
    drafted_by = {name: method[name] for name in ("strategy", "drafter", "settings") if name in method}
    drafts = None if sampling else _known_drafts(engine, drafted_by)
    if drafts is None:
        one_by_one = _OneByOne()
        method = in_use({**drafted_by, "lookahead": one_by_one.watch, "acceptance": one_by_one, "tree": "chain"})
        count, traced = 1, partial(_decode, engine, {**method, **(sampling or {})})
    else:
        count, traced = rows_at_once(engine), partial(_score, engine, *drafts)
    traces: list[Trace] = []
    while len(traces) < len(prompts) and (not traces or has_time()):
        first = len(traces)
        told = Told(progress, first * num_tokens, len(prompts) * num_tokens, "collecting drafts")
        end = first + min(count, first + 1)  # one, then twice as many each time: what it takes is known
        traces.extend(traced(prompts[first:end], num_tokens, told))
    return traces


def overlap(draft_scores: torch.Tensor, target_scores: torch.Tensor) -> torch.Tensor:
    """[rows] 1 - total variation between the distributions of raw scores [rows, vocabulary]."""
    return torch.minimum(draft_scores.float().softmax(-1), target_scores.float().softmax(-1)).sum(-1)


def _part(stats: DraftStats, is_kept: torch.Tensor, overlaps: torch.Tensor) -> Part:
    found = {
        "top_probs": stats.top_probs,
        "entropies": stats.entropy,
        "confidences": stats.confidence,
        "match_lengths": stats.match_length,
        "is_drafted": torch.ones_like(is_kept),
        "is_kept": is_kept,
        "overlaps": overlaps,
    }
    return {name: tensor.cpu() for name, tensor in found.items()}


def _trace(domain: str, parts: Sequence[Part], has_scores: bool) -> Trace:
    fields = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return Trace(domain, has_scores=has_scores, **fields)


class _Watch(PlainLookahead):
    """Stops after the first token of every round and keeps what it was shown of it, in tensors that stay."""

    Options = NoOptions
    max_tokens = 1

    def __init__(self) -> None:
        self._kept: dict[tuple[torch.device, int], dict[str, torch.Tensor]] = {}

    def wants_more(self, stats: DraftStats) -> torch.Tensor:
        kept = self._of(stats)
        kept["is_new"].fill_(True)
        kept["peak"].copy_(stats.confidence[:1])
        kept["match_length"].copy_(stats.match_length[:1])
        if stats.scores is not None:
            kept["scores"].copy_(stats.scores[:1])
        return torch.zeros_like(stats.depth, dtype=torch.bool)

    def _of(self, stats: DraftStats) -> dict[str, torch.Tensor]:
        device, width = stats.depth.device, 0 if stats.scores is None else stats.scores.shape[-1]
        if (device, width) not in self._kept:
            with torch.inference_mode(False):
                self._kept[device, width] = {
                    "is_new": torch.zeros(1, dtype=torch.bool, device=device),
                    "peak": torch.zeros(1, device=device),
                    "match_length": torch.zeros(1, dtype=torch.long, device=device),
                    "scores": torch.zeros(1, width, device=device),
                }
        return self._kept[device, width]

    def take(self) -> DraftStats | None:
        """What this round was about; asked once after each."""
        found = None
        for kept in self._kept.values():
            if bool(kept["is_new"]):
                scores, match_length, peak = (kept[name].clone() for name in ("scores", "match_length", "peak"))
                nothing, has_scores = torch.zeros_like(match_length), scores.shape[-1] > 0
                found = DraftStats(nothing + 1, nothing, match_length, nothing, scores if has_scores else None, peak)
            kept["is_new"].fill_(False)
        return found


class _OneByOne:
    """Accepts as `coupled` does, and of it a single token: the target decodes as if nothing had been drafted."""

    keeps_scores = False
    draft_salt = target_salt = 0
    candidates = staticmethod(Coupled.candidates)

    def __init__(self) -> None:
        self.watch = _Watch()
        self._parts: list[Part] = []
        self._has_scores = True

    def accept(self, targets: Targets, sampler: Sampler) -> list[Verdict]:
        verdicts = [verdict.cut(1) for verdict in Coupled.accept(targets, sampler)]
        self._parts.append(self._judged(targets, verdicts[0].tokens[0]))
        return verdicts

    def _judged(self, targets: Targets, token: int) -> Part:
        (draft,), stats = targets.drafts, self.watch.take()
        if stats is None or not draft.chain_length:
            return _NOTHING
        drafted, target_scores = draft.tokens[0], targets.scores[0, :1]
        is_kept = torch.tensor([drafted == token])
        if stats.scores is not None:
            return _part(stats, is_kept, overlap(stats.scores, target_scores))
        self._has_scores = False
        return _part(stats, is_kept, target_scores.float().softmax(-1)[:, drafted])

    def end(self, domain: str, num_tokens: int) -> Trace:
        parts, has_scores = self._parts[:num_tokens], self._has_scores
        self._parts, self._has_scores = [], True
        return _trace(domain, parts, has_scores)


_NOTHING: Part = {
    "top_probs": torch.zeros(1, DraftStats.NUM_TOP),
    **{name: torch.zeros(1) for name in ("entropies", "confidences", "overlaps")},
    "match_lengths": torch.zeros(1, dtype=torch.long),
    **{name: torch.zeros(1, dtype=torch.bool) for name in ("is_drafted", "is_kept")},
}


def _decode(
    engine: Engine, method: Mapping[str, Any], prompts: Sequence[Prompt], num_tokens: int, told: Told
) -> Iterator[Trace]:
    for prompt in prompts:
        # One token more than asked for: nothing is ever drafted for the last.
        for chunk in engine.stream(prompt.tokens, max_new_tokens=num_tokens + 1, **method):
            told.add(len(chunk.pieces))
        yield method["acceptance"].end(prompt.domain, num_tokens)


def _known_drafts(engine: Engine, drafted_by: Mapping[str, Any]) -> tuple[Runner, SkipSet] | None:
    """What drafts, and what it skips whenever it does, where that is so: then texts can be scored as a whole."""
    method = engine.method(**drafted_by, lookahead=_Watch())
    if not isinstance(method.strategy, ConstantStrategy):
        return None
    (plan,) = method.strategy.known_plans
    drafter = method.drafter_of(plan)
    if plan.max_draft_tokens == 0:
        return None
    if isinstance(drafter, Model):
        return drafter.runner, SkipSet()
    return (engine.runner, plan.skip) if isinstance(drafter, Self) and not drafter.options.vocabulary else None


def _score(
    engine: Engine, drafting: Runner, skip: SkipSet, prompts: Sequence[Prompt], num_tokens: int, told: Told
) -> Iterator[Trace]:
    for prompt, text in zip(prompts, write(engine, prompts, num_tokens, told), strict=True):
        yield _trace(prompt.domain, _scored(text, engine.runner, drafting, skip), has_scores=True)


@torch.inference_mode()
def _scored(text: Text, runner: Runner, drafting: Runner, skip: SkipSet) -> list[Part]:
    probe = probe_text(text, runner)
    known = replace(text, tokens=tuple(min(token, drafting.vocab_size - 1) for token in text.tokens))
    drafted = probe if drafting is runner else probe_text(known, drafting)
    draft, target = _through(drafted, skip.numbers), _through(probe, frozenset())
    generated = torch.tensor(text.tokens[text.num_prompt_tokens :], device=runner.device)
    parts = []
    for first in range(0, text.num_generated, _SCORED_TOKENS):
        some = slice(first, first + _SCORED_TOKENS)
        target_scores = probe.scores(States(target[:, some]))[0]
        draft_scores = fit_vocabulary(drafted.scores(States(draft[:, some]))[0], runner.vocab_size)
        nothing = torch.zeros(len(draft_scores), dtype=torch.long, device=runner.device)
        stats = DraftStats(nothing + 1, nothing + first, nothing, nothing, draft_scores)
        is_kept = draft_scores.argmax(-1) == generated[some]
        parts.append(_part(stats, is_kept, overlap(draft_scores, target_scores)))
    return parts


def _through(probe: Probe, skipped: frozenset[int]) -> torch.Tensor:
    """The stream [1, tokens, hidden] after the last sub-layer."""
    states = probe.begin()
    for number in range(probe.num_sublayers):
        states = (probe.skip if number in skipped else probe.run)(number, states)
    return states.hidden
