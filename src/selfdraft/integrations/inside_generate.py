"""selfdraft inside transformers: `model.generate(**inputs, custom_generate=selfdraft.decoder(...))`.

transformers prepares everything (prompt, options, processors, stopping criteria) and calls the decoder in place of its
own loop; the decoder returns what the loop would have returned. An engine is made at a model's first call and lives as
long as the model, so what a strategy learns stays, whichever decoder asks.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import torch
from transformers.generation.stopping_criteria import StopStringCriteria
from transformers.generation.utils import GenerateDecoderOnlyOutput

from ..engine.door import check_tokenizer
from ..engine.engine import Engine
from ..engine.keywords import MethodOptions, check_method, keywords_of
from ..engine.parts import check_part
from ..engine.sampling import check_processors
from ..engine.state import RowRules
from ..engine.stream import Stream
from ..errors import OptionError
from ..options import GenerateOptions, make
from ..registry import AXES, check_use
from ..types import Generation
from .generate_rules import Prompts, RowProcessors, StopRules, check_call, own_rules, seen_padding, split_warpers

_HOME = "_selfdraft_engine"


@keywords_of(MethodOptions)
def decoder(
    *call: Any, streamer: Any = None, tokenizer: Any = None, seed: int | None = None, **method: Unpack[MethodOptions]
) -> GenerateDecoder:
    """A decoder for `model.generate(..., custom_generate=decoder(...))`.

    `method` names strategy, lookahead, drafter, tree, acceptance and settings, as for `Engine`. transformers does not
    pass its `streamer=` and `tokenizer=` (needed for `stop_strings=`) on to a custom decoder, so they are given here.
    Sampling draws its seed from torch's global generator unless `seed` is given.
    """
    if call:
        raise OptionError("decoder takes keywords only, and is called before it is passed: custom_generate=decoder()")
    return GenerateDecoder(streamer, tokenizer, seed, method)


class GenerateDecoder:
    """What `decoder` returns. `generations` holds the results of its last call, one per row, with their `stats`."""

    def __init__(self, streamer: Any, tokenizer: Any, seed: int | None, method: Mapping[str, Any]) -> None:
        self._method = check_method(method, "decoder", "model.generate(**inputs")
        for axis in AXES:
            if axis in self._method:
                check_part(axis, self._method[axis])
        check_use(self._method)
        if seed is not None:
            seed = make(GenerateOptions, {"seed": seed}, "decoder").seed
        check_tokenizer(tokenizer)
        if streamer is not None and not all(callable(getattr(streamer, name, None)) for name in ("put", "end")):
            raise OptionError(
                f"streamer must have put and end, as transformers.TextStreamer(tokenizer) has, got {streamer!r}"
            )
        self._streamer, self._tokenizer, self._seed = streamer, tokenizer, seed
        self.generations: list[Generation] = []

    @torch.no_grad()
    def __call__(
        self,
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: Sequence[Any],
        stopping_criteria: Sequence[Any],
        generation_config: Any,
        stop_strings: str | list[str] | None = None,
        **model_kwargs: Any,
    ) -> Any:
        """Called by transformers. Naming `stop_strings` here keeps it from being refused for want of a tokenizer."""
        check_call(model, generation_config, model_kwargs)
        check_processors(logits_processor)
        prompts = Prompts.read(input_ids, model_kwargs.get("attention_mask"), model_kwargs.get("position_ids"))
        self._check_streamer(len(prompts.tokens))
        engine = engine_of(model)
        room = None if engine.context_length is None else engine.context_length - prompts.longest
        stops = StopRules([*stopping_criteria, *self._stop_string_criteria(stop_strings)], input_ids, room)

        options = self._options(logits_processor, generation_config, stops, prompts, input_ids.device)
        rows = [
            RowRules(stops.eos_tokens, stops.for_row(row), lead, stops.ends_at)
            for row, lead in enumerate(_leads(engine, options, logits_processor, prompts))
        ]
        stream = engine.stream_rows(prompts.tokens, rows, options, self._method)
        self._run(stream, input_ids)
        self.generations = stream.generations
        _warn_of_context(self.generations)

        new_tokens = [list(generation.tokens[: stops.cut]) for generation in self.generations]
        sequences = torch.cat((input_ids, _padded(new_tokens, generation_config).to(input_ids.device)), dim=1)
        if not generation_config.return_dict_in_generate:
            return sequences
        scores, logits = _replay(engine, prompts, input_ids.shape[1], sequences, logits_processor, generation_config)
        return GenerateDecoderOnlyOutput(sequences=sequences, scores=scores, logits=logits)

    def _check_streamer(self, num_rows: int) -> None:
        if self._streamer is not None and num_rows > 1:
            raise OptionError(f"a streamer shows one text, but the batch has {num_rows} rows; pass one prompt")

    def _stop_string_criteria(self, stop_strings: str | list[str] | None) -> list[Any]:
        if stop_strings is None:
            return []
        if self._tokenizer is None:
            raise OptionError(
                "stop_strings need the tokenizer, which transformers does not pass on: "
                "use custom_generate=selfdraft.decoder(tokenizer=tokenizer)"
            )
        return [StopStringCriteria(tokenizer=self._tokenizer, stop_strings=stop_strings)]

    def _options(
        self, processors: Sequence[Any], config: Any, stops: StopRules, prompts: Prompts, device: torch.device
    ) -> GenerateOptions:
        options: dict[str, Any] = {"max_new_tokens": stops.max_new_tokens}
        if config.do_sample:
            processors, warping = split_warpers(processors)
            options |= {**warping, "seed": int(torch.randint(2**63 - 1, (1,))) if self._seed is None else self._seed}
        rules = own_rules(processors, stops.eos_tokens, prompts, stops.max_new_tokens)
        if rules is None:
            rules = {"processors": (RowProcessors(processors, len(prompts.tokens), device),)}
        return GenerateOptions(**options, **rules)

    def _run(self, stream: Stream, input_ids: torch.Tensor) -> None:
        if self._streamer is None:
            stream.run()
            return
        self._streamer.put(input_ids.cpu())
        with stream:
            for chunk in stream:
                for piece in chunk.pieces:
                    self._streamer.put(torch.tensor([piece.token]))
        self._streamer.end()


def _leads(
    engine: Engine, options: GenerateOptions, processors: Sequence[Any], prompts: Prompts
) -> list[tuple[int, ...]]:
    """What rules see before each text: of its padding what they see in `generate`, where the model has such a token."""
    if options.processors:
        return [RowProcessors.lead(row, padding) for row, padding in enumerate(prompts.paddings)]
    vocabulary = range(engine.runner.vocab_size)
    seen = seen_padding(processors, prompts.paddings)
    return [tuple(token for token in padding if token in vocabulary) for padding in seen]


class _Kept:
    """An engine as an attribute of its model. Copies and pickles of the model come without it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def __deepcopy__(self, memo: Any) -> None:
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(None), ())


def engine_of(model: Any) -> Engine:
    """The model's engine, made at the first call.

    It hangs on the model itself: an engine holds its model, so kept anywhere else it would keep the model alive.
    """
    kept = model.__dict__.get(_HOME)
    if kept is None or kept.engine.model is not model:
        kept = model.__dict__[_HOME] = _Kept(Engine(model, prefix_cache=False))
    engine: Engine = kept.engine
    return engine


def _padded(rows: Sequence[list[int]], config: Any) -> torch.Tensor:
    """[rows, longest]; shorter rows are filled up with the pad token on the right."""
    longest = max(map(len, rows))
    if all(len(row) == longest for row in rows):
        return torch.tensor(rows)
    pad = config._pad_token_tensor
    if pad is None:
        raise OptionError("the rows end at different lengths, but there is no pad token; pass pad_token_id")
    return torch.tensor([row + [int(pad)] * (longest - len(row)) for row in rows])


def _replay(
    engine: Engine, prompts: Prompts, width: int, sequences: torch.Tensor, processors: Sequence[Any], config: Any
) -> tuple[tuple[torch.Tensor, ...] | None, tuple[torch.Tensor, ...] | None]:
    """(scores, logits) where asked for, one [rows, vocab] per step: one pass over each finished row.

    Rows that ended early go on through their padding, as in `generate`.
    """
    if not config.output_scores and not config.output_logits:
        return None, None
    num_steps = sequences.shape[1] - width
    bound = RowProcessors(processors, len(sequences), sequences.device)
    logits, scores = [], []
    for row, padding in enumerate(prompts.paddings):
        text = sequences[row, len(padding) : -1].tolist()
        raw = engine.scores_behind(text, num_steps).to(sequences.device, torch.float32, copy=True)
        ids = sequences[row : row + 1]
        logits.append(raw)
        if config.output_scores:
            steps = [bound.apply(row, ids[:, : width + i], raw[i : i + 1].clone()) for i in range(num_steps)]
            scores.append(torch.cat(steps))
    return _by_step(scores if config.output_scores else None), _by_step(logits if config.output_logits else None)


def _by_step(rows: list[torch.Tensor] | None) -> tuple[torch.Tensor, ...] | None:
    return None if rows is None else tuple(torch.stack(rows, dim=1))


def _warn_of_context(generations: Sequence[Generation]) -> None:
    longest = max((len(one.tokens) for one in generations if one.finish_reason == "context"), default=None)
    if longest is not None:
        warnings.warn(
            f"the text ends after {longest} new tokens, at the model's context length, before the length asked for",
            stacklevel=2,
        )
