"""Engine: a model that generates text, faster or plainly, always the same text."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack, overload
from weakref import WeakValueDictionary, finalize

import torch

from ..models.checks import unwrapped
from ..models.gpu.runner import make_runner
from ..models.load import catalogue, loading
from ..options import GenerateOptions, check_value
from ..profiles import learned
from ..profiles.profile import Profile
from ..progress import Progress
from ..protocols import Host, Runner
from ..registry import AXES, check_use, resolve, warn_of_idle
from ..types import FinishReason, Generation
from . import door
from .audit import Verification, compare_texts, read_claim, rule_for, scores_along, verify_text
from .beginnings import Beginnings
from .keywords import (
    Call,
    CallOptions,
    MethodOptions,
    PretrainedOptions,
    check_method,
    keywords_of,
    read_call,
    read_pretrained,
    with_seed,
)
from .knowledge import EngineKnowledge, Given
from .live import LiveText
from .method import Cohort, Cohorts, Method
from .metrics import Comparison
from .parts import BuiltParts
from .prepare import prepare
from .requests import Requests
from .room import FIRST_ROWS, Room
from .sampling import as_far_as_it_chooses
from .session import Rows, Session
from .state import RowRules
from .stream import Stream
from .text import Batch, Encoded, OnePrompt, Prompt, encode_prompt, encode_prompts, read_tokens
from .worth import Worth

Generations = Generation | list[Generation]


class Engine:
    """Generates with one model.

    The keywords name the method: `strategy` (which sub-layers draft), `lookahead` (how far), `drafter` (what drafts),
    `tree` (what is verified beside it), `acceptance` (what is kept), and `settings` for their options:
    `{"uniform": {"ratio": 0.3}}`. Each can be given again in a call of `generate` or `stream`, together with any field
    of `GenerateOptions`. A lookahead or an acceptance of your own may be given as an object (`protocols.Lookahead`).
    `help(engine.generate)` lists all keywords. Where no strategy is named, `auto` chooses before every round.
    On CUDA, passes are recorded as graphs on first use, or beforehand by `prepare`; on a CPU, those of a few tokens run
    by compiled kernels, or by torch's products, of which some need weights a second time (`packed_weights`: bytes;
    True: as the weights, at most a quarter of what is free). `graphs=False` launches every operation by itself.
    Batches do not draft where plain rounds are found to be quicker, unless `economics=False`. Where their texts do not
    depend on it, they draft with the skip set of most rows, unless `shared_skip=False`. What a prompt has in common
    with earlier texts is not read again; `prefix_cache` bounds the memory that this takes, in bytes (True: a tenth of
    what is free, at most 4 GiB; False: none).

    What `selfdraft calibrate` learned about the model on this device (its profile) is read when it is needed; another
    one may be given as `profile`, None for none. `name` is what messages call the model.
    """

    @keywords_of(MethodOptions)
    def __init__(
        self,
        model: Any = None,
        tokenizer: Any = None,
        *,
        graphs: bool = True,
        profile: Given = "stored",
        name: str | None = None,
        economics: bool = True,
        shared_skip: bool = True,
        prefix_cache: bool | int = True,
        packed_weights: bool | int = True,
        **method: Unpack[MethodOptions],
    ) -> None:
        """A loaded model and its tokenizer; without a tokenizer prompts are token ids. Nothing: the default model."""
        self._defaults = check_method(method)
        warn_of_idle(self._defaults)
        door.check_flags(graphs=graphs, economics=economics, shared_skip=shared_skip)
        if model is None and tokenizer is None:
            model, tokenizer = loading.load(None)
        door.check_loaded(model, tokenizer)
        model = unwrapped(model)
        self.model, self.tokenizer, self._shared_skip = model, tokenizer, shared_skip
        self._worth = Worth() if economics else None
        self._runner = make_runner(model, graphs, door.read_packed_weights(packed_weights))
        self._requests = Requests(model, self._runner, tokenizer)
        self._parts = BuiltParts(Host(self._runner, tokenizer), EngineKnowledge(model, self._runner, name, profile))
        self._worker = ThreadPoolExecutor(1, "selfdraft")  # starts its thread when a stream is read by `async for`
        self._beginnings = Beginnings(self._runner, door.read_prefix_cache(prefix_cache))
        self._method({})
        if self.knowledge.keeps:
            finalize(self, learned.keep_all, self._parts.kept, self.knowledge.key)

    def __repr__(self) -> str:
        config, names = self.model.config, self.names()
        name = self.knowledge.name or getattr(config, "name_or_path", None) or type(self.model).__name__
        dtype = str(self.dtype).removeprefix("torch.")
        method = ", ".join(f"{axis}={names[axis]!r}" for axis in AXES)
        settings = f", settings={names['settings']!r}" if names["settings"] else ""
        return f"Engine({str(name)!r}, {self._runner.num_layers} layers, {dtype}, {self.device}, {method}{settings})"

    @classmethod
    @keywords_of(PretrainedOptions)
    def from_pretrained(
        cls,
        name: str | Path | None = None,
        *,
        device: str | None = None,
        dtype: str | torch.dtype | None = None,
        graphs: bool = True,
        profile: Given = "stored",
        economics: bool = True,
        shared_skip: bool = True,
        prefix_cache: bool | int = True,
        packed_weights: bool | int = True,
        **options: Unpack[PretrainedOptions],
    ) -> Engine:
        """Load a hub id, a folder (without a tokenizer: for token ids), a GGUF file or a name of the catalogue."""
        method, load = read_pretrained(options)
        door.check_source(name)
        model, tokenizer = loading.load(name, device=device, dtype=dtype, **load)
        own: dict[str, Any] = {"graphs": graphs, "profile": profile, "name": str(name or catalogue.DEFAULT_MODEL)}
        own |= {"prefix_cache": prefix_cache, "packed_weights": packed_weights}
        return cls(model, tokenizer, economics=economics, shared_skip=shared_skip, **own, **method)

    @property
    def runner(self) -> Runner:
        """What runs the model's passes; for measuring them one by one."""
        return self._runner

    @property
    def knowledge(self) -> EngineKnowledge:
        """What was learned about the model on its device."""
        return self._parts.knowledge

    def fork(
        self,
        profile: Profile | Literal["same"] | None = "same",
        method: Mapping[str, Any] | None = None,
        prefix_cache: bool = True,
    ) -> Engine:
        """An engine on the same model and runner that has seen no text; it goes by the same profile or another one.

        It costs nothing: weights and recordings are shared. What strategies, lookaheads and drafters learn is not.
        `method`: instead of the one that this engine was built with. `prefix_cache=False`: every prompt is read whole.
        """
        fork = copy.copy(self)
        fork._worth, fork._beginnings = self._worth and Worth(), self._beginnings.another(prefix_cache)
        fork._defaults = self._defaults if method is None else check_method(method)
        fork._parts = self._parts.fork(
            self._knowing(self.knowledge.profile if isinstance(profile, str) and profile == "same" else profile)
        )
        return fork

    def remember(self, profile: Profile | None) -> None:
        """Go by another profile from now on: strategies and lookaheads start again."""
        self._parts = self._parts.remember(self._knowing(profile))

    def _knowing(self, profile: Profile | None) -> EngineKnowledge:
        return EngineKnowledge(self.model, self._runner, self.knowledge.name, profile)

    def forget(self) -> None:
        """Start again with the same profile: what strategies, lookaheads and drafters learned is forgotten."""
        self._parts.forget()
        self._beginnings.clear()
        self._worth = self._worth and Worth()

    @keywords_of(MethodOptions)
    def save(self, **method: Unpack[MethodOptions]) -> Path:
        """Keep what the method's strategy learned while it generated; where that is. Later engines go on from there.

        `auto` keeps it beside the profile, and by itself when the process ends; others keep it in the profile.
        """
        return self._parts.save(self.names(**method)["strategy"], self._method(method).strategy)

    @property
    def device(self) -> torch.device:
        return self._runner.device

    @property
    def dtype(self) -> torch.dtype:
        return self._runner.dtype

    @property
    def context_length(self) -> int | None:
        return self._runner.context_length

    @keywords_of(MethodOptions)
    def prepare(self, num_tokens: int = 1024, **method: Unpack[MethodOptions]) -> None:
        """Record now what single texts of up to `num_tokens` tokens (prompt included) will use, so that none waits.

        `method` is named as in a call of `generate`. Recorded are its passes and, where the strategy knows its plans
        beforehand, its greedy drafts; batches and drafts that sample are recorded on first use. Where nothing is
        recorded (on a CPU, with `graphs=False`) it does nothing.
        """
        check_value("num_tokens", num_tokens, int, minimum=1)
        self._refresh()
        with self._runner.lock:
            prepare(self._runner, self._method(method), min(num_tokens, self.context_length or num_tokens))

    @keywords_of(MethodOptions)
    def names(self, **method: Unpack[MethodOptions]) -> dict[str, Any]:
        """What a call of `generate` with these options decodes with: a name for each axis, and settings."""
        return resolve(*self._choices(method))

    @keywords_of(MethodOptions)
    def method(self, **method: Unpack[MethodOptions]) -> Method:
        """The same as objects."""
        return self._method(method)

    def _method(self, overrides: Mapping[str, Any]) -> Method:
        return self._parts.method(resolve(*self._choices(overrides)))

    def _choices(self, overrides: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
        """What a method is made of, the last one counts: the engine's own, the call's."""
        return self._defaults, check_method(overrides)

    @overload
    def generate(self, prompt: OnePrompt, **options: Unpack[CallOptions]) -> Generation: ...

    @overload
    def generate(self, prompt: Batch, *, n: int = 1, **options: Unpack[CallOptions]) -> list[Generation]: ...

    @overload
    def generate(self, prompt: Prompt, *, n: int = 1, **options: Unpack[CallOptions]) -> Generations: ...

    @keywords_of(CallOptions)
    def generate(self, prompt: Prompt, *, n: int = 1, **options: Unpack[CallOptions]) -> Generations:
        """Continue one prompt (a `Generation`) or a list of them (a list of `Generation`s).

        `n` texts of each prompt, which is read once: a list, of several prompts one after the other. Text i of the list
        is that of a single call with `sequence=i`.

        Text is tokenised as is, messages go through the chat template (an assistant's message at the end is continued),
        and ids are a list of ints, a tensor or an array ([n] or [1, n] is one prompt, [rows, n] are several), or what
        the tokenizer returns, its padding removed.
        """
        stream = self.stream(prompt, n=n, **options)
        stream.run()
        told = door.warned_if_silent
        return stream.generations if stream.is_batch else told(stream.generation, prompt, self.tokenizer)

    @keywords_of(CallOptions)
    def stream(self, prompt: Prompt, *, n: int = 1, **options: Unpack[CallOptions]) -> Stream:
        """The same, piece by piece: iterate over `Chunk`s with `for` or `async for`. Leaving early cancels the rest."""
        call, method = self._read(options, n)
        prompts, is_batch = encode_prompts(prompt, self.tokenizer, call.chat)
        return self._start(prompts, is_batch or n > 1, method, call.settings, n)

    def _read(self, options: Mapping[str, Any], n: int) -> tuple[Call, Method]:
        call = read_call(options)
        door.check_n(n, call.settings)
        self._requests.check(call.settings)
        method = self._method(call.method)
        check_use(call.method, *self._choices(call.method)[:-1])
        return call, method

    def session(
        self, max_rows: int | None = None, cache_bytes: int | None = None, max_stall_seconds: float | None = None
    ) -> Session:
        """Texts that join and leave between rounds, each with its own options.

        At most `max_rows` (None: 256) are decoded at a time, in a cache of `cache_bytes` (None: by what is free).
        The others wait. Prompts are read in parts, each in `max_stall_seconds` (None: one and a half rounds):

            with engine.session() as session:
                number = session.add("Once upon a time", max_new_tokens=50)
                while session.num_open:
                    for event in session.step():
                        print(event.id, event.text, event.finish_reason)
        """
        door.check_room(max_rows, cache_bytes, max_stall_seconds)
        room = Room(self._runner, self._beginnings, max_rows, cache_bytes, max_rows or FIRST_ROWS)
        rows = Rows(room, self._worth, max_stall_seconds)
        return Session(rows, partial(self._read_request, WeakValueDictionary()))

    def _read_request(
        self, cohorts: Cohorts, prompt: Any, emitted: Sequence[int], n: int, options: Mapping[str, Any]
    ) -> tuple[list[LiveText], Cohort]:
        """The texts of a session's request, and the cohort that they belong to: `cohorts` are those so far."""
        call, method = self._read(options, n)
        tokens = encode_prompt(prompt, self.tokenizer, call.chat, "a request is one prompt")
        self._refresh()
        texts = self._requests.texts([tokens], call.settings, n, emitted=read_tokens(emitted))
        sampler = self._requests.sampler(as_far_as_it_chooses(call.settings))
        cohort = cohorts.setdefault((method.parts, sampler), Cohort(method, sampler, self._shared_skip))
        return texts, cohort

    def stream_rows(
        self,
        prompts: Sequence[list[int]],
        rules: Sequence[RowRules],
        settings: GenerateOptions,
        method: Mapping[str, Any],
    ) -> Stream:
        """A batch of token lists, each with rules of its own instead of the engine's stop strings and eos tokens."""
        return self._start(prompts, True, self._method(method), settings, rules=rules)

    @keywords_of(CallOptions)
    def compare(
        self,
        prompt: OnePrompt | Encoded,
        a: Generation | Sequence[int],
        b: Generation | Sequence[int],
        **options: Unpack[CallOptions],
    ) -> Comparison:
        """Judge two outputs for one prompt under the target's own scores: `equal`, `tie` or `different`."""
        call = read_call(with_seed(options, a, b))
        prompt_tokens = encode_prompt(prompt, self.tokenizer, call.chat, "compare judges two outputs of one prompt")
        tokens_a, tokens_b = (item.tokens if isinstance(item, Generation) else read_tokens(item) for item in (a, b))
        self._refresh()
        self._requests.check_tokens(prompt_tokens, tokens_a, tokens_b)
        sampler = self._requests.sampler(call.settings)
        with self._runner.lock:
            return compare_texts(self._runner, prompt_tokens, (tokens_a, tokens_b), sampler)

    @keywords_of(CallOptions)
    def verify(
        self,
        prompt: OnePrompt | Encoded,
        tokens: Generation | Sequence[int],
        *,
        finish_reason: FinishReason | None = None,
        text: str | None = None,
        progress: Progress | None = None,
        **options: Unpack[CallOptions],
    ) -> Verification:
        """Teacher-force an output of `generate(prompt, **options)`: is each token the target's own choice?

        A `Generation` brings its own `finish_reason`, `text` and `seed`; where they are given, they are checked too.
        """
        claim = read_claim(tokens, finish_reason, text, progress)
        call = read_call(with_seed(options, tokens))
        rule = rule_for(self.names(**call.method)["acceptance"], call.settings)
        self._requests.check(call.settings)
        prompt_tokens = encode_prompt(prompt, self.tokenizer, call.chat, "verify judges one text")
        self._refresh()
        self._requests.check_tokens(prompt_tokens, claim.tokens)
        made = self._requests.texts([prompt_tokens], call.settings)[0]
        sampler = self._requests.sampler(call.settings)
        with self._runner.lock:
            return verify_text(self._runner, made.sequence, made.tail, claim, sampler, rule, progress)

    @property
    def eos_tokens(self) -> frozenset[int]:
        """Ids that end a text: the model's generation config, else the tokenizer's."""
        return self._requests.eos_tokens

    def _start(
        self,
        prompts: Sequence[list[int]],
        is_batch: bool,
        method: Method,
        settings: GenerateOptions,
        n: int = 1,
        rules: Sequence[RowRules] | None = None,
    ) -> Stream:
        self._refresh()
        texts = self._requests.texts(prompts, settings, n, rules)
        rows = Rows(Room(self._runner, self._beginnings, first_rows=len(texts)), self._worth, math.inf, is_open=False)
        cohort = Cohort(method, self._requests.sampler(settings, rules), self._shared_skip)
        rows.put(texts, cohort)
        return Stream(texts, rows, is_batch, self._worker)

    def _refresh(self) -> None:
        with self._runner.lock:
            self._runner.refresh()
            self._beginnings.refresh()

    def scores_behind(self, tokens: Sequence[int], num_last: int = 1) -> torch.Tensor:
        """The target's raw scores [num_last, vocab] after each of the last tokens of a text."""
        with self._runner.lock:  # the next pass may write over what the last one left
            return torch.cat([one.clone() for _, one in scores_along(self._runner, tokens, len(tokens) - num_last)])
