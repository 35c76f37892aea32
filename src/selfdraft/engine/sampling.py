"""Scores to choices: processors, truncation, and noise that is a pure function of (seed, sequence, index, token).

The choice is `argmax(processed scores + gumbel noise)`, which draws exactly from the processed distribution. Because
the noise of a position does not depend on who asks, draft and target that agree on the scores agree on the draw, and
the same seed gives the same text with speculation on or off, alone or in a batch. Greedy is the case without noise.
"""

from __future__ import annotations

import reprlib
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from ..errors import OptionError
from ..lazy import Made
from ..models.gpu.memory import reads_are_free
from ..noise import gumbel, keys_of
from ..options import GenerateOptions, check_function
from ..passes import ChoiceKind, Choosing, NoiseKey, Salt, Site, Text

REFUSED_PROCESSORS = {
    "WatermarkLogitsProcessor": "it keeps state between calls",
    "SynthIDTextWatermarkLogitsProcessor": "it keeps state between calls",
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": "it runs the model itself",
    "ClassifierFreeGuidanceLogitsProcessor": "it needs a second row of scores",
    "AlternatingCodebooksLogitsProcessor": "it belongs to a codebook model",
    "WhisperNoSpeechDetection": "it runs the model itself",
    "DiaClassifierFreeGuidanceLogitsProcessor": "it needs a second row of scores",
    "DiaEOSChannelFilterLogitsProcessor": "it belongs to a codebook model",
    "DiaEOSDelayPatternLogitsProcessor": "it keeps state between calls",
    "HiggsAudioV2DelayPatternLogitsProcessor": "it keeps state between calls",
    "LinearTemperatureScheduleLogitsProcessor": "it belongs to a diffusion model",
}


Ranked = tuple[torch.Tensor, torch.Tensor]
"""(values, tokens), each [rows, up to the number asked for]; a value of -inf: impossible."""

SHORTLIST = 1024
"""Tokens that a choice on a CPU looks at closely, where the others cannot be chosen."""
NOISE_SPREAD = 26.1
"""More than the largest noise (22.9) is above the smallest (-3.2)."""


def check_processors(processors: Sequence[Callable[..., Any]]) -> None:
    for processor in processors:
        check_function("a processor", processor, 2, "a function (prefix, scores) -> scores")
        refused = next((kind.__name__ for kind in type(processor).__mro__ if kind.__name__ in REFUSED_PROCESSORS), None)
        if refused is not None:
            raise OptionError(
                f"{refused} cannot be used with speculation: {REFUSED_PROCESSORS[refused]}. Processors must be pure "
                "functions of (prefix, scores); leave it out or use model.generate without selfdraft"
            )


def processed(processor: Callable[..., Any], prefix: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """What the caller's processor makes of the scores [1, vocab]; what is not scores is refused with its name."""
    found = processor(prefix, scores)
    if isinstance(found, torch.Tensor) and found.shape == scores.shape:
        return found
    name = getattr(processor, "__name__", type(processor).__name__)
    got = f"a tensor {list(found.shape)}" if isinstance(found, torch.Tensor) else reprlib.repr(found)
    raise OptionError(
        f"the processor {name} must return scores {list(scores.shape)}, like those it was given, but returned {got}; "
        "end it with `return scores`"
    )


@dataclass(frozen=True)
class Sampler:
    """How the rows of one call choose tokens."""

    options: GenerateOptions
    eos_tokens: tuple[int, ...] = ()

    @property
    def is_greedy(self) -> bool:
        return self.options.temperature == 0.0

    @property
    def takes_best(self) -> bool:
        """Whether a choice is the largest raw score and nothing else."""
        return self.is_greedy and not self.has_prefix_rules

    @property
    def has_prefix_rules(self) -> bool:
        options = self.options
        return bool(self._bans_eos or options.logit_bias or self._has_penalties or options.processors)

    @property
    def _bans_eos(self) -> bool:
        return bool(self.options.min_new_tokens and self.eos_tokens)

    @property
    def _has_penalties(self) -> bool:
        options = self.options
        return options.repetition_penalty != 1.0 or bool(options.presence_penalty or options.frequency_penalty)

    @cached_property
    def kind(self) -> ChoiceKind | None:
        """Which steps a device takes to choose; None: the caller's processors run on the host."""
        options = self.options
        if options.processors:
            return None
        has_rules, is_drawn = self.has_prefix_rules, not self.is_greedy
        truncates = (options.top_k > 0, options.top_p < 1.0, options.min_p > 0.0) if is_drawn else (False,) * 3
        return ChoiceKind(is_drawn, 0, *truncates, has_rules)

    def choosing(
        self, sites: Sequence[Site], texts: Sequence[Text], salt: int = 0, num_logprobs: int | None = None
    ) -> Choosing | None:
        """What a device needs to choose for rows at these sites; None: the host chooses."""
        kind = self.kind
        if kind is None:
            return None
        ruled = Made(lambda: list(map(self._ruled, texts))) if kind.has_rules else texts
        kind = kind._replace(salt=salt if kind.is_drawn else 0, num_logprobs=num_logprobs)
        indices = Made(lambda: [site.position for site in sites])
        return Choosing(kind, Made(lambda: self.settings(sites)), indices, ruled)

    def _ruled(self, text: Text) -> Text:
        return text._replace(biases=self.options.logit_bias, eos_tokens=self.eos_tokens)

    def settings(self, sites: Sequence[Site]) -> list[list[int]]:
        """[row] in the order of `SETTINGS`."""
        return [[*keys_of(site.seed, site.sequence), site.round, *self._numbers] for site in sites]

    @cached_property
    def _numbers(self) -> list[int]:
        """The last of `SETTINGS`, the same for all rows."""
        options = self.options
        penalties = (options.repetition_penalty, options.presence_penalty, options.frequency_penalty)
        warping = [_bits(options.temperature), options.top_k, _bits(options.top_p), _bits(options.min_p)]
        return [*warping, *map(_bits, penalties), options.min_new_tokens, 0, 0]

    def apply_prefix_rules(
        self, scores: torch.Tensor, prefixes: Sequence[Sequence[int]], indices: torch.Tensor
    ) -> torch.Tensor:
        """What depends on the text so far: `prefixes[i]` (prompt included) stands before `scores[i]` [rows, vocab].

        The last `indices[i]` tokens of a prefix are generated. The order: end of text banned, bias, repetition,
        frequency and presence penalty, the caller's processors.
        """
        scores = scores.float().clone()
        if self._bans_eos:
            too_early = (indices < self.options.min_new_tokens)[:, None]
            eos = torch.tensor(self.eos_tokens, device=scores.device)
            scores[:, eos] = scores[:, eos].masked_fill(too_early, -torch.inf)
        if self.options.logit_bias:
            ids, biases = zip(*self.options.logit_bias, strict=True)
            scores[:, torch.tensor(ids, device=scores.device)] += torch.tensor(biases, device=scores.device)
        if self._has_penalties:
            scores = self._penalised(scores, prefixes, indices)
        for row, prefix in enumerate(prefixes if self.options.processors else ()):
            tokens, found = torch.tensor([list(prefix)], device=scores.device), scores[row : row + 1]
            for processor in self.options.processors:
                found = processed(processor, tokens, found)
            scores[row] = found[0]
        return scores

    def _penalised(
        self, scores: torch.Tensor, prefixes: Sequence[Sequence[int]], indices: torch.Tensor
    ) -> torch.Tensor:
        """All prefixes end at the right; what is missing on the left is a token that the prefix has anyway."""
        options, longest = self.options, max(map(len, prefixes))
        tokens = torch.tensor([[prefix[0]] * (longest - len(prefix)) + [*prefix] for prefix in prefixes])
        tokens = tokens.to(scores.device)
        if options.repetition_penalty != 1.0:
            seen = scores.gather(1, tokens)
            lowered = torch.where(seen < 0, seen * options.repetition_penalty, seen / options.repetition_penalty)
            scores = scores.scatter(1, tokens, lowered)
        if options.frequency_penalty or options.presence_penalty:
            is_generated = torch.arange(longest, device=scores.device) >= longest - indices[:, None]
            counts = torch.zeros_like(scores).scatter_add_(1, tokens, is_generated.float())
            scores = scores - options.frequency_penalty * counts - options.presence_penalty * (counts > 0)
        return scores

    def choose(self, scores: torch.Tensor, noise: NoiseKey) -> torch.Tensor:
        """[n, vocab] scores after the prefix rules -> [n] tokens."""
        if self.is_greedy:
            return scores.argmax(-1)
        return self.best(self.warp(scores), 1, noise)[1][:, 0]

    def best(self, warped: torch.Tensor, count: int, noise: NoiseKey, *salts: Salt) -> Ranked:
        """The winners of warped scores plus noise, best first.

        Noise is bounded, so a token far below the last of `count` cannot win: on a CPU only the others draw theirs.
        """
        vocab_size = warped.shape[-1]
        count = min(count, vocab_size)
        size = _num_contenders(warped, count) if reads_are_free(warped) else vocab_size
        if size > SHORTLIST:
            values, tokens = (warped.double() + gumbel(noise, vocab_size, *salts)).topk(count, dim=-1)
            return values, tokens
        scores, tokens = warped.topk(size, dim=-1)
        values, places = (scores.double() + gumbel(noise, tokens, *salts)).topk(count, dim=-1)
        return values, tokens.gather(1, places)

    def contest(self, scores: torch.Tensor, noise: NoiseKey, slack: float = 0.0) -> torch.Tensor:
        """What the choice is the argmax of. `slack` moves every truncation boundary outwards by that much."""
        if self.is_greedy:
            return scores
        return self.warp(scores, slack).double() + gumbel(noise, scores.shape[-1])

    def warp(self, scores: torch.Tensor, slack: float = 0.0) -> torch.Tensor:
        """Temperature, top-k, top-p, min-p, in this order; what is dropped becomes -inf."""
        options = self.options
        scores = scores.float() / options.temperature
        if 0 < options.top_k < scores.shape[-1]:
            kth = scores.topk(options.top_k, dim=-1).values[:, -1:]
            scores = scores.masked_fill(scores < kth - slack, -torch.inf)
        if options.top_p < 1.0:
            scores = _keep_nucleus(scores, options.top_p, slack)
        if options.min_p > 0.0:
            best = scores.amax(-1, keepdim=True)
            threshold = torch.full((), options.min_p, device=scores.device).log() - slack
            scores = scores.masked_fill(scores - best < threshold, -torch.inf)
        return scores


def as_far_as_it_chooses(options: GenerateOptions) -> GenerateOptions:
    """Without what does not tell which token is chosen: texts that differ in nothing else choose alike."""
    return replace(options, max_new_tokens=max(1, options.min_new_tokens), stop=(), cancel=None, sequence=0, seed=0)


def make_sampler(options: GenerateOptions, eos_tokens: Iterable[int], vocab_size: int) -> Sampler:
    """Raise for a bias of a token that the model does not have; an end that it does not have is never chosen."""
    outside = next((token for token, _ in options.logit_bias if token >= vocab_size), None)
    if outside is not None:
        raise OptionError(
            f"token id {outside} in logit_bias is outside the vocabulary; use ids from 0 to {vocab_size - 1}"
        )
    return Sampler(options, tuple(sorted(token for token in eos_tokens if 0 <= token < vocab_size)))


def _bits(number: float) -> int:
    """Those of a float64, as an int64."""
    bits: int = struct.unpack("<q", struct.pack("<d", number))[0]
    return bits


def _num_contenders(warped: torch.Tensor, count: int) -> int:
    """How many of each row's largest scores must draw noise to find its `count` winners."""
    last = warped.topk(count, dim=-1).values[:, -1:]
    can_win = (warped >= last - NOISE_SPREAD) & (warped > -torch.inf)
    return max(int(can_win.sum(-1).max()), count)


def _keep_nucleus(scores: torch.Tensor, top_p: float, slack: float) -> torch.Tensor:
    """Keep a token iff the tokens with larger scores hold less than `top_p` together; the best ones always stay.

    Tokens with the same score are kept or dropped together, so that the order of equal ones says nothing.
    """
    vocab_size = scores.shape[-1]
    size = min(SHORTLIST, vocab_size) if reads_are_free(scores) else vocab_size
    ordered, num_kept = _nucleus(scores, top_p + slack, size)
    if size < vocab_size and bool((num_kept == size).any()):  # it may go on after the shortlist
        ordered, num_kept = _nucleus(scores, top_p + slack, vocab_size)
    if slack >= 0:
        return scores.masked_fill(scores < ordered.gather(1, num_kept - 1) - slack, -torch.inf)
    first_dropped = torch.nn.functional.pad(ordered, (0, 1), value=-torch.inf).gather(1, num_kept)
    return scores.masked_fill(scores <= first_dropped - slack, -torch.inf)  # rounding may drop each of these


def _nucleus(scores: torch.Tensor, top_p: float, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `size` largest scores of each row, largest first, and how many of them reach `top_p` [rows, 1]."""
    ordered = scores.topk(size, dim=-1).values
    probs = (ordered - scores.logsumexp(-1, keepdim=True)).exp()
    num_kept = (probs.cumsum(-1) - probs < top_p).sum(-1, keepdim=True)
    return ordered, num_kept.clamp_(min=1)
