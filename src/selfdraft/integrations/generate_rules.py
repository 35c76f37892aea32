"""What `model.generate` of transformers hands to a custom decoder, translated for the engine row by row.

Prompts lose their left padding, processors and stopping criteria go on seeing it: each is called with one row as
[1, n], padding included, which is what it would see inside `generate`. What cannot be done is refused by name.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.logits_process import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.stopping_criteria import ConfidenceCriteria, EosTokenCriteria, MaxLengthCriteria

from ..engine.sampling import processed
from ..engine.state import Limit, never_stops
from ..errors import OptionError, PromptError
from ..options import MAX_BIAS, MIN_TEMPERATURE

_READ_INPUTS = {"attention_mask", "position_ids", "past_key_values", "logits_to_keep", "use_cache"}
_OF_PENALTY = {"penalty", "prompt_ignore_length", "logits_indices", "cu_seq_lens_q"}
_WARPERS = (
    (TemperatureLogitsWarper, "temperature"),
    (TopKLogitsWarper, "top_k"),
    (TopPLogitsWarper, "top_p"),
    (MinPLogitsWarper, "min_p"),
)
"""What the sampler does itself, in its order."""


def check_call(model: Any, config: Any, model_inputs: Mapping[str, Any]) -> None:
    """Raise for a kind of generation or an input that cannot be decoded speculatively."""
    if model.config.is_encoder_decoder:
        raise OptionError(
            f"{type(model).__name__} is an encoder-decoder model; selfdraft decodes decoder-only models, "
            "leave custom_generate out"
        )
    mode = config.get_generation_mode()
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        raise OptionError(
            f"selfdraft decodes greedily or by sampling, the options ask for {mode.value!r}; take out what asks for it "
            "(num_beams, penalty_alpha, prompt_lookup_num_tokens, dola_layers, ...) or leave custom_generate out"
        )
    for name in ("output_attentions", "output_hidden_states"):
        if config.return_dict_in_generate and getattr(config, name):
            raise OptionError(f"{name}=True is not supported by selfdraft; leave it or custom_generate out")
    strangers = [name for name, value in model_inputs.items() if not _is_nothing(model, name, value)]
    if strangers:
        raise OptionError(
            f"selfdraft decodes from input_ids and attention_mask alone, got {', '.join(strangers)}; "
            "leave that or custom_generate out"
        )
    _check_cache(model_inputs.get("past_key_values"))


def _is_nothing(model: Any, name: str, value: Any) -> bool:
    """An input that is read, that is not there, or that says "text only" to a model that also takes images."""
    if name in _READ_INPUTS or value is None or (isinstance(value, Mapping) and not value):
        return True
    return name == "token_type_ids" and hasattr(model.config, "vision_config") and not bool(value.any())


def _check_cache(cache: Any) -> None:
    if cache is None:
        return
    num_cached = int(cache.get_seq_length())
    if num_cached > 0:
        raise OptionError(
            f"past_key_values holds {num_cached} tokens, but selfdraft keeps a cache of its own; "
            "pass the whole text as input_ids and no past_key_values"
        )
    if "quantized" in type(cache).__name__.lower():
        raise OptionError("a quantized cache changes the text; leave cache_implementation or custom_generate out")


@dataclass(frozen=True)
class Prompts:
    """The rows of a padded batch: what stands before each text, and the text."""

    paddings: Sequence[tuple[int, ...]]
    tokens: Sequence[list[int]]

    @property
    def longest(self) -> int:
        return max(map(len, self.tokens))

    @property
    def width(self) -> int:
        """Of the batch, padding included."""
        return len(self.paddings[0]) + len(self.tokens[0])

    @classmethod
    def read(cls, input_ids: torch.Tensor, attention_mask: torch.Tensor | None, positions: Any) -> Prompts:
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        is_text = attention_mask != 0
        if is_text.shape != input_ids.shape:
            raise PromptError(
                f"attention_mask has shape {list(is_text.shape)}, input_ids {list(input_ids.shape)}; "
                "they must agree, one number per token"
            )
        _check_left_padded(is_text)
        _check_positions(positions, is_text)
        starts = (~is_text).sum(-1).tolist()
        rows = input_ids.tolist()
        return cls(
            [tuple(row[:start]) for row, start in zip(rows, starts, strict=True)],
            [row[start:] for row, start in zip(rows, starts, strict=True)],
        )


def _check_left_padded(is_text: torch.Tensor) -> None:
    for row, flags in enumerate(is_text.tolist()):
        if not any(flags):
            raise PromptError(f"row {row} of the batch is all padding; every row needs at least one token")
        if not all(flags[flags.index(True) :]):
            raise PromptError(
                f"the attention_mask of row {row} has zeros after ones; pad on the left: "
                "tokenizer.padding_side = 'left'"
            )


def _check_positions(positions: torch.Tensor | None, is_text: torch.Tensor) -> None:
    if positions is None:
        return
    natural = is_text.long().cumsum(-1) - 1
    try:
        is_natural = bool((positions.to(is_text.device) == natural)[is_text].all())
    except (RuntimeError, IndexError):  # a shape that is not one number per token
        is_natural = False
    if not is_natural:
        raise OptionError("position_ids must count each row's tokens from 0; leave them out, they follow from the mask")


def split_warpers(processors: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """(processors to call, options of the sampler).

    Warpers at the end that the sampler has itself, in its order, become options: then a draft's confidence is taken
    before them. All else is called as it is.
    """
    options: dict[str, Any] = {"temperature": 1.0}
    end, last_rank = len(processors), len(_WARPERS)
    while end > 0:
        rank = _rank_of(processors[end - 1])
        if rank is None or rank >= last_rank:
            break
        end, last_rank = end - 1, rank
        name = _WARPERS[rank][1]
        options[name] = getattr(processors[end], name)
    return list(processors[:end]), options


def _rank_of(warper: Any) -> int | None:
    rank = next((rank for rank, (kind, _) in enumerate(_WARPERS) if type(warper) is kind), None)
    if rank == 0:
        return rank if MIN_TEMPERATURE <= warper.temperature <= 1e3 else None
    is_plain = rank is not None and warper.filter_value == -torch.inf and warper.min_tokens_to_keep == 1
    return rank if is_plain else None


def own_rules(
    processors: Sequence[Any], eos_tokens: frozenset[int], prompts: Prompts, max_new_tokens: int
) -> dict[str, Any] | None:
    """What the sampler does itself instead, as options; None where one of them has to be called.

    All or none: what is called comes last, and it counts the rows' leads as text. Banning an end commutes with the
    others; a bias must come before the repetition penalty, as in the sampler. That penalty sees what `seen_padding`
    says before a text.
    """
    options: dict[str, Any] = {}
    min_new_tokens = 0
    for processor in processors:
        if type(processor) in (MinLengthLogitsProcessor, MinNewTokensLengthLogitsProcessor):
            if frozenset(processor.eos_token_id.flatten().tolist()) != eos_tokens:
                return None
            min_new_tokens = max(min_new_tokens, _first_end(processor) - prompts.width)
        elif _is_own_bias(processor) and not options:
            options["logit_bias"] = tuple((token, bias) for (token,), bias in processor.sequence_bias.items())
        elif _is_own_penalty(processor, prompts.paddings) and "repetition_penalty" not in options:
            options["repetition_penalty"] = processor.penalty
        else:
            return None
    return {**options, "min_new_tokens": min(min_new_tokens, max_new_tokens)}


def _first_end(processor: Any) -> int:
    """The number of tokens, prompt and padding included, after which the text may end."""
    if type(processor) is MinLengthLogitsProcessor:
        return int(processor.min_length)
    return int(processor.prompt_length_to_skip + processor.min_new_tokens)


def _is_own_bias(processor: Any) -> bool:
    if type(processor) is not SequenceBiasLogitsProcessor:
        return False
    return all(len(tokens) == 1 and abs(bias) <= MAX_BIAS for tokens, bias in processor.sequence_bias.items())


def _is_own_penalty(processor: Any, paddings: Sequence[tuple[int, ...]]) -> bool:
    """One that counts the whole text, and padding or not; not one that can do more than those known here."""
    if type(processor) is not RepetitionPenaltyLogitsProcessor or not vars(processor).keys() <= _OF_PENALTY:
        return False
    if not 1e-3 <= processor.penalty <= 1e3:
        return False
    ignored = _ignored(processor, len(paddings))
    return len(ignored) == len(paddings) and all(map(operator.le, ignored, map(len, paddings)))


def _ignored(processor: Any, num_rows: int) -> list[int]:
    """Tokens at the start of each row that a repetition penalty leaves out; since transformers 5.23, padding is."""
    length = processor.prompt_ignore_length
    return length.tolist() if isinstance(length, torch.Tensor) else [length or 0] * num_rows


def seen_padding(processors: Sequence[Any], paddings: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Of each row, what its own repetition penalty counts before the text."""
    penalties = [one for one in processors if type(one) is RepetitionPenaltyLogitsProcessor]
    ignored = _ignored(penalties[0], len(paddings)) if penalties else [0] * len(paddings)
    return [padding[length:] for padding, length in zip(paddings, ignored, strict=True)]


class RowProcessors:
    """The processors of a call, each bound to its row.

    As a processor of the engine it is called with a row's lead and text, where the lead is `lead(row, padding)`: the
    row's number, by which it finds the row's own processors, and what stands before the text in the caller's batch.
    """

    def __init__(self, processors: Sequence[Any], num_rows: int, device: torch.device) -> None:
        self._rows = [[_bind(processor, row, num_rows) for processor in processors] for row in range(num_rows)]
        self._device = device

    @staticmethod
    def lead(row: int, padding: tuple[int, ...]) -> tuple[int, ...]:
        return (row, *padding)

    def __call__(self, prefix: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return self.apply(int(prefix[0, 0]), prefix[:, 1:], scores)

    def apply(self, row: int, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """On the device of the caller's input, where `generate` applies them too."""
        home = scores.device
        ids, scores = ids.to(self._device), scores.to(self._device)
        for processor in self._rows[row]:
            scores = processed(processor, ids, scores)
        return scores.to(home)


def _bind(processor: Any, row: int, num_rows: int) -> Any:
    """Processors that look up their row by its place in the batch get that row alone."""
    if isinstance(processor, PrefixConstrainedLogitsProcessor):
        allowed = processor._prefix_allowed_tokens_fn
        return PrefixConstrainedLogitsProcessor(lambda _, ids: allowed(row, ids), 1)
    if isinstance(processor, EncoderRepetitionPenaltyLogitsProcessor):
        prompt = row * len(processor.encoder_input_ids) // num_rows  # several rows of one prompt stand side by side
        bound = copy.copy(processor)
        bound.encoder_input_ids = processor.encoder_input_ids[prompt : prompt + 1]
        return bound
    if isinstance(processor, EncoderNoRepeatNGramLogitsProcessor):
        prompt = row * processor.batch_size // num_rows
        bound = copy.copy(processor)
        bound.batch_size, bound.generated_ngrams = 1, [processor.generated_ngrams[prompt]]
        return bound
    if isinstance(processor, RepetitionPenaltyLogitsProcessor):
        length = processor.prompt_ignore_length
        if isinstance(length, torch.Tensor) and len(length) == num_rows:
            bound = copy.copy(processor)
            bound.prompt_ignore_length = length[row : row + 1]
            return bound
    return processor


class StopRules:
    """When the rows end: eos tokens and length natively, all other criteria asked after every emitted token.

    Without an eos token `generate` lets a row that a criterion has ended run on until all rows have ended: there is
    no padding then. `cut` is the length at which all rows end in that case.
    """

    def __init__(self, criteria: Sequence[Any], input_ids: torch.Tensor, room: int | None) -> None:
        num_rows, self._width = input_ids.shape
        self.eos_tokens = frozenset(token for one in criteria if _is_eos(one) for token in one.eos_token_id.tolist())
        lengths = [one.max_length - self._width for one in criteria if type(one) is MaxLengthCriteria]
        if not lengths:
            raise OptionError("nothing limits the length of the text; pass max_new_tokens")
        self.ends_at: Limit = "context" if room is not None and room < min(lengths) else "length"
        limit = min(lengths if room is None else [*lengths, room])
        self.max_new_tokens = max(limit, 1)  # `generate` emits one token whatever the limit
        self._criteria = [one for one in criteria if not _is_eos(one) and type(one) is not MaxLengthCriteria]
        if any(isinstance(one, ConfidenceCriteria) for one in self._criteria):
            raise OptionError("ConfidenceCriteria is for assistant models; leave it or custom_generate out")
        self._runs_on = num_rows > 1 and not any(hasattr(one, "eos_token_id") for one in criteria)
        self._ids = torch.zeros(num_rows, self._width + self.max_new_tokens, dtype=torch.long, device=input_ids.device)
        self._ids[:, : self._width] = input_ids
        self._num_new = [0] * num_rows
        self._ends: list[int | None] = [None] * num_rows

    def for_row(self, row: int) -> Callable[[int], bool]:
        return partial(self._stops_behind, row) if self._criteria else never_stops

    @property
    def cut(self) -> int | None:
        ends = [end for end in self._ends if end is not None]
        return max(ends) if self._runs_on and len(ends) == len(self._ends) else None

    def _stops_behind(self, row: int, token: int) -> bool:
        self._ids[row, self._width + self._num_new[row]] = token
        self._num_new[row] += 1
        if self._ends[row] is None and self._is_hit(row):
            self._ends[row] = self._num_new[row]
        if not self._runs_on:
            return self._ends[row] is not None
        return self.cut is not None and self._num_new[row] >= self.cut

    def _is_hit(self, row: int) -> bool:
        ids = self._ids[row : row + 1, : self._width + self._num_new[row]]
        answers = [criterion(ids, None) for criterion in self._criteria]  # all of them: some count their calls
        return any(bool(torch.as_tensor(answer).any()) for answer in answers)


def _is_eos(criterion: Any) -> bool:
    return type(criterion) is EosTokenCriteria
