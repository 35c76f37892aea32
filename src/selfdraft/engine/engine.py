"""Engine: a model that generates text, faster or plainly, always the same text."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, overload

import torch

from ..errors import OptionError, PromptError, unknown_name
from ..models.gpu.runner import make_runner
from ..models.load import loading
from ..options import GenerateOptions, Settings, make
from ..passes import PassRequest
from ..profiles.profile import Artefact, Profile
from ..profiles.store import Store
from ..progress import Progress
from ..protocols import DraftedBy, Host, Runner
from ..registry import AXES, check_settings, check_use, find, options_for, resolve, warn_of_idle
from ..types import FinishReason, Generation
from .audit import Claim, Verification, rule_for, verify_text
from .decode import decode
from .knowledge import EngineKnowledge, Given
from .method import Method, Parts
from .metrics import Comparison, compare, contest_for
from .prepare import prepare
from .sampling import Sampler, check_processors
from .state import DRAFT_SLOTS, PREFILL_CHUNK, RowRules, State, TextSequence, never_stops
from .stream import Stream
from .text import Batch, OnePrompt, Prompt, TextTail, check_prompt, encode_prompts

_METHOD_OPTIONS = (*AXES, "settings")
_LEARNING_AXES = ("strategy", "lookahead")
_SHARED_AXES = ("tree", "acceptance")
"""What forks share: recordings are found by the acceptance, and neither learns anything."""


class Engine:
    """Generates with one model.

    The keywords name the method: `strategy` (which sub-layers draft), `lookahead` (how far), `drafter` (what drafts),
    `tree` (what is verified beside it), `acceptance` (what is kept), and `settings` for their options:
    `{"uniform": {"ratio": 0.3}}`. Each can be given again in a call of `generate` or `stream`, together with any field
    of `GenerateOptions`. A lookahead or an acceptance of your own may be given as an object (`protocols.Lookahead`).

    On CUDA, passes are recorded as graphs on first use, or beforehand by `prepare`; `graphs=False` launches every
    operation by itself.

    What `selfdraft calibrate` learned about the model on this device (its profile) is read when a strategy asks for
    it; another one may be given as `profile`, None for none. `name` is what messages call the model.
    """

    def __init__(
        self,
        model: Any = None,
        tokenizer: Any = None,
        *,
        graphs: bool = True,
        profile: Given = "stored",
        name: str | None = None,
        **method: Any,
    ) -> None:
        if model is None:
            model, tokenizer = loading.load(None)
        elif isinstance(model, str | Path):
            raise OptionError(f"Engine takes a loaded model; for {str(model)!r} use Engine.from_pretrained")
        self.model, self.tokenizer = model, tokenizer
        self._defaults = check_method(method)
        warn_of_idle(self._defaults)
        self._parts: dict[Any, Any] = {}
        self._sequence_ids = itertools.count()
        self._runner = make_runner(model, graphs)
        self._knowledge = EngineKnowledge(model, self._runner, name, profile)
        self._method({})

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path | None = None,
        *,
        device: str | None = None,
        dtype: str | torch.dtype | None = None,
        graphs: bool = True,
        profile: Given = "stored",
        **method: Any,
    ) -> Engine:
        """Load a hub id, a local folder, a GGUF file or a name of the catalogue; nothing: the default model."""
        model, tokenizer = loading.load(name, device=device, dtype=dtype)
        return cls(model, tokenizer, graphs=graphs, profile=profile, name=None if name is None else str(name), **method)

    @property
    def runner(self) -> Runner:
        """What runs the model's passes; for measuring them one by one."""
        return self._runner

    @property
    def knowledge(self) -> EngineKnowledge:
        """What was learned about the model on its device."""
        return self._knowledge

    def fork(self, profile: Profile | Literal["same"] | None = "same") -> Engine:
        """An engine on the same model and runner that has seen no text; it goes by the same profile or another one.

        It costs nothing: weights and recordings are shared. What strategies, lookaheads and drafters learn is not.
        """
        fork = copy.copy(self)
        fork._parts = {key: part for key, part in self._parts.items() if key[0] in _SHARED_AXES}
        fork.remember(self._knowledge.profile if profile == "same" else profile)
        return fork

    def remember(self, profile: Profile | None) -> None:
        """Go by another profile from now on: strategies and lookaheads start again."""
        self._knowledge = EngineKnowledge(self.model, self._runner, self._knowledge.name, profile)
        self._parts = {key: part for key, part in self._parts.items() if key[0] not in _LEARNING_AXES}

    def forget(self) -> None:
        """Start again with the same profile: what strategies, lookaheads and drafters learned is forgotten.

        A lookahead stays the same object, for what was recorded with it is found by it.
        """
        self._parts = {key: part for key, part in self._parts.items() if key[0] != "strategy"}
        for key, part in self._parts.items():
            if key[0] in ("lookahead", "drafter"):
                part.forget()

    def save(self, **method: Any) -> Path:
        """Keep what the method's strategy learned while it generated in the model's profile; where that is.

        An engine that is built later goes on from there.
        """
        name = self.names(**method)["strategy"]
        strategy = self._method(method).strategy
        if not strategy.learns_online:
            raise OptionError(f"the strategy {name!r} learns nothing while it generates, so there is nothing to save")
        state = {**strategy.state(), "is_complete": strategy.is_settled, "trials": []}
        Store().update(self._knowledge.key, name, Artefact.of(state))
        return Store().path_of(self._knowledge.key)

    @property
    def device(self) -> torch.device:
        return self._runner.device

    @property
    def dtype(self) -> torch.dtype:
        return self._runner.dtype

    @property
    def context_length(self) -> int | None:
        return self._runner.context_length

    def prepare(self, num_tokens: int = 1024, **method: Any) -> None:
        """Record now what single texts of up to `num_tokens` tokens (prompt included) will use, so that none waits.

        `method` is named as in a call of `generate`. Recorded are its passes and, where the strategy knows its plans
        beforehand, its greedy drafts; batches and drafts that sample are recorded on first use. Where nothing is
        recorded (on a CPU, with `graphs=False`) it does nothing.
        """
        if num_tokens < 1:
            raise OptionError(f"num_tokens must be at least 1, got {num_tokens!r}")
        self._runner.refresh()
        prepare(self._runner, self._method(method), min(num_tokens, self.context_length or num_tokens))

    def names(self, **method: Any) -> dict[str, Any]:
        """What a call of `generate` with these options decodes with: a name for each axis, and settings."""
        return resolve(self._defaults, check_method(method))

    def method(self, **method: Any) -> Method:
        """The same as objects."""
        return self._method(method)

    @overload
    def generate(self, prompt: OnePrompt, **options: Any) -> Generation: ...

    @overload
    def generate(self, prompt: Batch, **options: Any) -> list[Generation]: ...

    def generate(self, prompt: Prompt, **options: Any) -> Generation | list[Generation]:
        """Continue one prompt (a `Generation`) or a list of them (a list of `Generation`s).

        Text is tokenised as is, messages go through the chat template, a list of ints is a tokenised prompt.
        """
        stream = self.stream(prompt, **options)
        stream.run()
        return stream.generations if stream.is_batch else stream.generation

    def stream(self, prompt: Prompt, **options: Any) -> Stream:
        """The same, piece by piece: iterate over `Chunk`s. Leaving the loop early cancels the rest."""
        method_options = {key: options.pop(key) for key in _METHOD_OPTIONS if key in options}
        settings = make(GenerateOptions, options, "generate")
        self._check_call(settings)
        check_use(check_method(method_options), self._defaults)
        method = self._method(method_options)
        prompts, is_batch = encode_prompts(prompt, self.tokenizer)
        return self._start(prompts, is_batch, method, settings)

    def stream_rows(
        self,
        prompts: Sequence[list[int]],
        rules: Sequence[RowRules],
        settings: GenerateOptions,
        method: Mapping[str, Any],
    ) -> Stream:
        """A batch of token lists, each with rules of its own instead of the engine's stop strings and eos tokens."""
        return self._start(prompts, True, self._method(method), settings, rules)

    def compare(
        self, prompt: OnePrompt, a: Generation | Sequence[int], b: Generation | Sequence[int], **options: Any
    ) -> Comparison:
        """Judge two outputs for one prompt under the target's own scores: `equal`, `tie` or `different`."""
        settings = make(GenerateOptions, {k: v for k, v in options.items() if k not in _METHOD_OPTIONS}, "generate")
        (prompt_tokens,), _ = encode_prompts(prompt, self.tokenizer)
        sampler = Sampler(settings, tuple(sorted(self.eos_tokens)))

        def contest_behind(generated: Sequence[int]) -> Any:
            prefix = [*prompt_tokens, *generated]
            return contest_for(self.scores_behind(prefix), sampler, settings.sequence, prefix, len(generated))

        tokens_a, tokens_b = (item.tokens if isinstance(item, Generation) else item for item in (a, b))
        return compare(tokens_a, tokens_b, contest_behind)

    def verify(
        self,
        prompt: OnePrompt,
        tokens: Generation | Sequence[int],
        *,
        finish_reason: FinishReason | None = None,
        text: str | None = None,
        progress: Progress | None = None,
        **options: Any,
    ) -> Verification:
        """Teacher-force an output of `generate(prompt, **options)`: is each token the target's own choice?

        A `Generation` brings its own `finish_reason` and `text`; where they are given, they are checked too.
        """
        claim = (
            Claim(tokens.tokens, tokens.finish_reason, tokens.text)
            if isinstance(tokens, Generation)
            else Claim(tokens, finish_reason, text)
        )
        method = {key: options.pop(key) for key in _METHOD_OPTIONS if key in options}
        names = self.names(**method)
        settings = make(GenerateOptions, options, "generate")
        rule = rule_for(names["acceptance"], settings)
        self._check_call(settings)
        prompts, is_batch = encode_prompts(prompt, self.tokenizer)
        if is_batch:
            raise PromptError("verify judges one text; pass its own prompt instead of a list of prompts")
        self._runner.refresh()
        check_prompt(prompts[0], self._runner.vocab_size, self._runner.context_length)
        check_prompt(claim.tokens, self._runner.vocab_size, None)
        sequence, tail = self._new_sequence(prompts[0], settings)
        sampler = Sampler(settings, tuple(sorted(self.eos_tokens)))
        return verify_text(self._runner, sequence, tail, claim, sampler, rule, progress)

    @property
    def eos_tokens(self) -> frozenset[int]:
        """Ids that end a text: the model's generation config, else the tokenizer's."""
        ids = getattr(getattr(self.model, "generation_config", None), "eos_token_id", None)
        if ids is None:
            ids = getattr(self.tokenizer, "eos_token_id", None)
        return frozenset([ids] if isinstance(ids, int) else ids or ())

    def _check_call(self, settings: GenerateOptions) -> None:
        check_processors(settings.processors)
        if settings.stop and self.tokenizer is None:
            raise OptionError("stop strings need a tokenizer; build the engine as Engine(model, tokenizer)")

    def _start(
        self,
        prompts: Sequence[list[int]],
        is_batch: bool,
        method: Method,
        settings: GenerateOptions,
        rules: Sequence[RowRules] | None = None,
    ) -> Stream:
        self._runner.refresh()
        sequences, tails = [], []
        for row, tokens in enumerate(prompts):
            check_prompt(tokens, self._runner.vocab_size, self._runner.context_length)
            sequence, tail = self._new_sequence(tokens, settings, row, rules[row] if rules else None)
            sequences.append(sequence)
            tails.append(tail)
        longest = max(len(sequence.tokens) + sequence.max_new_tokens for sequence in sequences)
        state = State(sequences, self._runner.new_cache(len(sequences), longest + DRAFT_SLOTS))
        sampler = Sampler(settings, tuple(sorted(self.eos_tokens)))
        rounds = partial(decode, self._runner, state, method, sampler)
        return Stream(sequences, tails, rounds, settings.cancel, is_batch)

    def _new_sequence(
        self, prompt: Sequence[int], settings: GenerateOptions, row: int = 0, rules: RowRules | None = None
    ) -> tuple[TextSequence, TextTail]:
        """A text that begins after `prompt`, its stop rules set, and how it reads."""
        tail = TextTail(self._decode_text, settings.stop)
        own = rules or RowRules(self.eos_tokens, tail.push if settings.stop else never_stops)
        room = (self._runner.context_length or len(prompt) + settings.max_new_tokens) - len(prompt)
        sequence = TextSequence(
            sequence_id=next(self._sequence_ids),
            tokens=list(prompt),
            max_new_tokens=min(settings.max_new_tokens, room),
            noise_sequence=settings.sequence + row,
            eos_tokens=own.eos_tokens,
            stops_behind=own.stops_behind,
            lead=own.lead,
        )
        return sequence, tail

    def _decode_text(self, tokens: Sequence[int]) -> str:
        if self.tokenizer is None:
            return ""
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def scores_behind(self, tokens: Sequence[int], num_last: int = 1) -> torch.Tensor:
        """The target's raw scores [num_last, vocab] after each of the last tokens of a text."""
        cache = self._runner.new_cache(1, len(tokens))
        first = len(tokens) - num_last
        parts = []
        for start in range(0, len(tokens), PREFILL_CHUNK):
            chunk = torch.tensor([tokens[start : start + PREFILL_CHUNK]], device=self.device)
            is_asked = start + chunk.shape[1] > first
            scores = self._runner.forward(PassRequest(chunk, [start], needs_scores=is_asked), cache).scores
            if is_asked:
                parts.append(scores[0, max(first - start, 0) :])
        return torch.cat(parts)

    def _method(self, overrides: Mapping[str, Any]) -> Method:
        names = self.names(**overrides)
        settings: Settings = names["settings"]
        host = Host(self._runner, self.tokenizer)
        return Method(
            strategy=self._part("strategy", names["strategy"], settings, self._knowledge.for_methods),
            lookahead=self._lookahead(names, settings),
            drafters=Parts(lambda name: self._part("drafter", name, settings, host), names["drafter"]),
            drafter=names["drafter"],
            trees=Parts(lambda name: self._part("tree", name, settings), names["tree"]),
            tree=names["tree"],
            accept=self._acceptance(names["acceptance"]),
        )

    def _lookahead(self, names: Mapping[str, Any], settings: Settings) -> Any:
        """What it learns about drafts is about those of one strategy and one drafter."""
        chosen = names["lookahead"]
        if not isinstance(chosen, str):
            return chosen
        drafts = (part for axis in ("strategy", "drafter") for part in (names[axis], _options(axis, names, settings)))
        drafted_by = DraftedBy(*drafts)
        return self._part("lookahead", chosen, settings, self._knowledge.for_methods, drafted_by, about=drafted_by)

    def _acceptance(self, name: Any) -> Any:
        """One object for all calls: what is recorded for it is found again."""
        if not isinstance(name, str):
            return name
        key = ("acceptance", name)
        if key not in self._parts:
            self._parts[key] = find(*key)()
        return self._parts[key]

    def _part(self, axis: str, name: str, settings: Settings, *arguments: Any, about: Hashable = None) -> Any:
        """A method's object, kept across calls: what it learns about the model stays."""
        options = options_for(axis, name, settings)
        key = (axis, name, options, about)
        if key not in self._parts:
            self._parts[key] = find(axis, name)(options, *arguments)
        return self._parts[key]


def _options(axis: str, names: Mapping[str, Any], settings: Settings) -> Any:
    return options_for(axis, names[axis], settings)


def check_method(
    method: Mapping[str, Any], owner: str = "Engine", call: str = "engine.generate(prompt"
) -> dict[str, Any]:
    """The options that name a method, without those left at None; `owner` and `call` are for the messages."""
    known = {item.name for item in dataclasses.fields(GenerateOptions)}
    for name in method:
        if name in known:
            raise OptionError(f"{name!r} belongs to a call: {call}, {name}={method[name]!r})")
        if name not in _METHOD_OPTIONS:
            raise unknown_name(f"option of {owner}", name, _METHOD_OPTIONS)
    check_settings(method.get("settings") or {})
    return {name: value for name, value in method.items() if value is not None}
