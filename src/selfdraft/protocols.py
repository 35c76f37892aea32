"""The interfaces between the parts. A method of a paper is one class that fits one of these."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch

from .chains import DraftedChain, DraftTask
from .drafted import DraftStats
from .economics import LatencyFit
from .passes import PassOutput, PassRequest, States
from .types import Plan, Reuse, SkipSet, StepRecord


class Cache(Protocol):
    """Keys and values of a batch. Slots after a row's verified length are scratch; lengths are the caller's."""

    stores_apart: bool  # what rows have in common may take memory beside them

    @property
    def num_slots(self) -> int: ...

    @property
    def num_rows_allocated(self) -> int: ...

    @property
    def num_bytes(self) -> int: ...

    def resize(self, num_rows: int, num_slots: int, is_empty: bool = False) -> None:
        """Have this many rows of this many slots. What is stored stays, unless `is_empty`: then it makes room first."""

    def beginning(self, row: int, length: int, first: int = 0) -> Sequence[torch.Tensor]:
        """The slots of a row from `first` to `length`, as they are now and as long as the cache is not resized."""

    def begin(self, row: int, source: int | Sequence[torch.Tensor], length: int) -> None:
        """Let a row begin with the first `length` slots of another row, or of copies of what `beginning` returned."""

    def put(self, row: int, parts: Sequence[torch.Tensor], first: int) -> None:
        """Let a row that has begun go on with copies of what `beginning` returned, from slot `first` on."""

    def reserve(self, num_slots: int) -> None:
        """Make room for `num_slots` slots a row; what is stored stays."""

    def free_rows(self, rows: Sequence[int]) -> None:
        """Their texts have ended: the next ones begin there. Nothing moves."""

    def move(self, row: int, sources: Sequence[int], target: int) -> None:
        """Copy the slots `sources` of a row to the slots from `target` on: what a tree kept becomes a chain."""


class Runner(Protocol):
    """Runs passes of one model on one device. Skip is an argument of the pass, never a state."""

    saves_by_reuse: bool  # whether a pass that resumes from known states is cheaper than a whole one
    recorded_widths: Sequence[int]  # ascending; a recorded pass of another width takes the next one
    fallback_reason: str | None  # why a runner that could record does not
    decoder: Any  # the model in sub-layers, for whoever looks into it
    lock: Any  # a context: whoever runs passes holds it, for a round at most

    @property
    def num_layers(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def context_length(self) -> int | None: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def recorded_prompts(self) -> Sequence[int]:
        """Tokens, ascending, of a recorded pass of prompts, all rows together; other numbers take the next."""

    @property
    def is_recording(self) -> bool:
        """Whether passes are recorded and replayed."""

    @property
    def record_seconds(self) -> float:
        """What recording has taken so far."""

    @property
    def graph_keys(self) -> Sequence[Any]:
        """Of what is recorded now."""

    def recorded_slots(self, num_slots: int) -> Sequence[int]:
        """Sizes, ascending, of what recorded passes over up to `num_slots` slots read."""

    def another(self, model: Any) -> Runner:
        """One of the same kind for another model on this device; its work counts in `seconds` and `record_seconds`."""

    def refresh(self) -> None:
        """Attach again where the model was moved, cast, hooked or given new weights since."""

    @property
    def weights_version(self) -> Hashable | None:
        """Keys and values depend on the tokens alone as long as this stays; None: on more than that."""

    @property
    def free_bytes(self) -> int:
        """Memory of the device that caches could take."""

    @property
    def packed_bytes(self) -> int: ...

    @property
    def slot_bytes(self) -> int:
        """What a slot of a row takes in a cache."""

    def cache_slots(self, num_slots: int) -> int:
        """Slots of each row of a cache that needs this many."""

    def new_cache(self, num_rows: int, num_slots: int) -> Cache: ...

    def forward(self, request: PassRequest, cache: Any) -> PassOutput: ...

    def is_under_way(self, cache: Any, rows: Sequence[int], starts: Sequence[int]) -> bool:
        """Whether the pass of the next token of each row, at these places, was launched before it was asked for."""

    def draft(
        self, task: DraftTask, request: PassRequest, cache: Any, vocabulary: int | None = None
    ) -> DraftedChain | None:
        """Draft a whole chain after the last column of `request`, its first pass, whose tokens are on the host; with
        `vocabulary`, of that many of the first tokens only. None: go token by token."""

    def probe(self, cache: Any, tokens: Sequence[int], first: int = 0, row: int = 0) -> Probe:
        """Look at `tokens`, which stand from position `first` on in the text of that row of the cache."""

    def can_resume(self, point: str, capture: Sequence[str]) -> bool:
        """Whether a pass that starts after `point` still comes by all of `capture`."""

    def seconds(self, is_idle: bool = False) -> float:
        """A clock that has waited for the device; with `is_idle` also for what was launched before it is asked for."""


class Probe(Protocol):
    """What sub-networks make of known tokens beside the target's own keys and values; nothing of it is kept.

    Sub-layers by number: attention 0, MLP 0, attention 1, ...
    """

    num_sublayers: int
    num_tokens: int
    vocab_size: int

    @property
    def is_token(self) -> torch.Tensor:
        """[tokens]: in what is recorded, tokens may follow that only pad."""

    def record(self, work: Callable[..., tuple[torch.Tensor, ...]], *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """`work(probe, *inputs)`: whole numbers in, tensors out, which the next record overwrites. May be recorded."""

    def begin(self) -> States:
        """One row: the embedded tokens."""

    def run(self, number: int, states: States) -> States: ...

    def run_some(self, number: int, states: States, runs: torch.Tensor, keeps_others: bool = True) -> States:
        """`run` for the rows where `runs` [rows], `skip` for the others, or either if these are of no use."""

    def skip(self, number: int, states: States) -> States: ...

    def scores(self, states: States) -> torch.Tensor:
        """[rows, tokens, vocabulary] after the last sub-layer."""


class Lookahead(Protocol):
    """HOW FAR to draft. Asked after each drafted token; learns only in `observe`.

    A runner may record what `wants_more` does and replay it: what an object learns must live in tensors that it
    changes in place. Whatever else it goes by is fixed when it is made (the object itself is the recording's key).
    It is built of its options, `Knowledge` and `DraftedBy`. One that lets rounds go without a draft has, beside these,
    `pauses(sequence, index)`: whether that which begins with this token of row `sequence` does.
    """

    Options: ClassVar[type[Any]]
    reads_distribution: ClassVar[bool]  # whether it looks at `top_probs` or `entropy`

    @property
    def num_changes(self) -> int | None:
        """How often what `wants_more` goes by has changed, where that must count at once: a draft begun before it is
        dropped. None: no draft is begun before it is asked for.
        """

    @property
    def max_tokens(self) -> int | None:
        """How far it drafts at most."""

    def wants_more(self, stats: DraftStats) -> torch.Tensor:
        """[rows] bool. Tensors in, tensor out: no `.item()` and no branch on values."""

    def observe(self, step: StepRecord) -> None: ...

    def end(self, sequence_id: int) -> None: ...

    def forget(self) -> None:
        """Be as if no text had been seen. Tensors stay where they are: recorded drafts read them there."""


@dataclass(frozen=True)
class DraftedBy:
    """What makes the drafts that a lookahead judges, and how it is set."""

    strategy: str
    strategy_options: Any
    drafter: str
    drafter_options: Any


@dataclass(frozen=True)
class Knowledge:
    """What a method may know of the model before it sees a text. Asked for when needed: it may have to be found."""

    num_layers: int
    latency: Callable[[], LatencyFit]
    """As the profile has it, else measured now, in a few seconds."""
    artefact: Callable[..., Mapping[str, Any]]
    """What was learned by that name, values and arrays; a ProfileError with the command to run where nothing was. Told
    what needs it and the command, too, it says so; else it is a strategy of that name.
    """
    command: Callable[[str], str] = lambda verb: f"selfdraft {verb} MODEL"  # what a user runs to `calibrate`, or verb
    fingerprint: Callable[[], str] = lambda: ""  # of the model's config and weights
    known: Callable[[str], Mapping[str, Any]] = lambda name: {}
    """As `artefact`, empty where nothing was learned by that name."""
    learned: Callable[[str], Mapping[str, Any]] = lambda name: {}
    """What a strategy of that name kept when an earlier process ended."""
    shares: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0)  # of a pass's weights: an attention's, an MLP's
    is_recording: bool = False  # whether passes are recorded: then a few columns more cost hardly more


@dataclass(frozen=True)
class PlanContext:
    """What a strategy may know when it plans: where the text stands, and what sub-networks make of its last tokens."""

    num_context_tokens: int
    num_generated_tokens: int
    probe: Callable[..., Probe]  # (count, before=0) of the last tokens that stand before the last; only while planning
    tokens: Sequence[int] = ()  # the text, prompt included; it grows
    num_rows: int = 1  # texts that take part in the round


class Strategy(Protocol):
    """WHICH sub-layers draft. It proposes and observes; it never decodes. It is built of its options and `Knowledge`.

    What one that `can_fit` needs to know beforehand is found by `fit(kit, options)`; what one that `learns_online`
    learns while generating is told by `state()`. Either, values and tensors, can be kept in the profile.
    """

    Options: ClassVar[type[Any]]
    pairs_with: ClassVar[Mapping[str, Any]]  # what it is used with on the other axes, and their settings
    paper_pairs_with: ClassVar[Mapping[str, Any]]  # instead, where its option `paper` is set; empty: the same
    can_fit: ClassVar[bool]
    learns_online: ClassVar[bool]
    is_kept: bool  # whether `state()`, plain values, is kept beside the profile when the process ends
    practice: ClassVar[Mapping[str, Any]]  # options under which all of the time may go into learning
    max_rows: ClassVar[float]  # more texts than these are decoded plainly, and it is not asked
    known_plans: Sequence[Plan]  # that it will use, so that they can be recorded beforehand
    needs: tuple[str, ...]  # hidden states to capture during prefill and verification
    prefill_needs: tuple[str, ...]  # and those to capture during prefill alone

    def condense(self, captured: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """What to keep of the states [rows, tokens, hidden] of a part of the prefill: tensors [rows, tokens, ...]."""

    def begin(self, sequence_id: int, prefill: Mapping[str, torch.Tensor]) -> None: ...

    def plan(self, sequence_id: int, context: PlanContext) -> Plan: ...

    def observe(self, sequence_id: int, step: StepRecord) -> None:
        """Learn from a round. What is kept of `step.captured` must be cloned: the next pass overwrites it."""

    def meanwhile(self) -> None:
        """Asked while a pass runs: what need not be done at once."""

    def rehearse(self, context: PlanContext) -> None:
        """Score once what plans will score, on a text that means nothing, so that it can be recorded beforehand."""

    def report(self, sequence_id: int) -> Mapping[str, Any]:
        """What the caller may want to know of how the text was drafted; asked once, before `end`."""

    def end(self, sequence_id: int) -> None: ...

    @staticmethod
    def fit(kit: Any, options: Any) -> dict[str, Any]:
        """`kit`: a `fitting.Kit`."""

    def state(self) -> dict[str, Any]: ...

    @property
    def is_settled(self) -> bool:
        """Whether it has learned all that it will."""


@dataclass(frozen=True)
class Proposal:
    """What a drafter offers at one depth: a distribution to choose from, or the tokens themselves."""

    scores: torch.Tensor | None = None  # [rows, vocabulary]
    tokens: torch.Tensor | None = None  # [rows], PAD where a row has nothing to offer
    match_length: torch.Tensor | None = None  # [rows]
    confidence: torch.Tensor | None = None  # [rows] of the tokens; None: certain


Path = Sequence[int]
"""Tokens that may follow the committed text."""


@dataclass(frozen=True)
class DraftRows:
    """The rows that draft together in one round: same skip set, same drafter."""

    rows: tuple[int, ...]  # of the cache, ascending
    sequence_ids: tuple[int, ...]
    committed: tuple[Sequence[int], ...]  # prompt + output of each, the last token not yet in the cache
    skip: SkipSet = SkipSet()
    reuse: bool = False


class DraftSession(Protocol):
    """One round of one drafter: a chain token by token, and what else it has to offer."""

    @property
    def device(self) -> torch.device:
        """Where `propose` takes and leaves its tensors."""

    def propose(self, last_tokens: torch.Tensor) -> Proposal:
        """Continue after `last_tokens` [rows]; a row that stopped earlier is carried along and ignored."""

    def chain(self, task: DraftTask) -> DraftedChain | None:
        """The whole chain at once, as `propose` and `task.rule` give it token by token; None: not here."""

    def rehearse(self, task: DraftTask) -> None:
        """Run once whatever a `chain` in this place may run, so that it is recorded."""

    def branches(self, row: int) -> Sequence[Path]:
        """Other continuations of the committed text, to be verified beside the chain."""

    def reuse(self, row: int, num_tokens: int) -> Reuse | None:
        """The exact hidden states of a row's last committed token and the `num_tokens` drafted after it, if any."""


class Drafter(Protocol):
    """WHAT drafts."""

    Options: ClassVar[type[Any]]
    needs_choices: bool  # whether `observe` reads `step.choices`
    waits: bool  # for a plain pass of the model that is under way: until that is done it could not begin
    max_nodes: int  # drafted at most by one that brings branches; 0: it brings none
    slot_bytes: int  # what a slot of a row takes in a cache of its own, as long as the target's; 0: it has none

    @staticmethod
    def draft_model(options: Any) -> str:
        """What a drafter with these options calls a model of its own; nothing where it has none."""

    def open(self, runner: Runner, cache: Cache, rows: DraftRows) -> DraftSession: ...

    def held_bytes(self, ids: Collection[int]) -> int:
        """What its caches of these texts take now."""

    def observe(self, step: StepRecord) -> None:
        """A round that this drafter drafted has been verified."""

    def end(self, sequence_id: int) -> None: ...

    def forget(self) -> None:
        """Be as if no text had been seen."""


class Tree(Protocol):
    """WHAT ELSE is verified beside the chain: decided on the host, once the chain is there."""

    Options: ClassVar[type[Any]]
    max_candidates: int  # at one depth, the chain's own token included

    def max_nodes(self, num_rows: int, *, is_recorded: bool) -> int | None:
        """Of a row's draft, one of `num_rows` that are verified together; None: no limit. `is_recorded`: a verification
        of many tokens costs little more than of one."""

    def num_candidates(self, confidence: float) -> int:
        """How many of the draft's best tokens to verify at a depth, at least 1."""

    def branches(self, committed: Sequence[int]) -> Sequence[Path]:
        """Continuations of the text that stand beside whatever drafts."""


@dataclass(frozen=True)
class Host:
    """What a drafter may know of the engine it works for. Forks share it."""

    runner: Runner
    tokenizer: Any = None
    draft_runners: dict[Hashable, Runner] = field(default_factory=dict)
    """Of draft models that were loaded, by the options that name them."""
