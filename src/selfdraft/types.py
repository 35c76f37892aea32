"""The values that flow through the engine. All frozen; none knows a model, a method or a device.

SkipSet     which sub-layers a draft leaves out          Plan        what one sequence drafts with this round
Draft       the tree of tokens one round proposed        Verdict     what the target kept of it
StepRecord  one round of one sequence                    Generation  what the caller gets back
FrontierPoint  a skip set and how well it drafts         TokenLogprobs  how likely an emitted token was
"""

from __future__ import annotations

import html
import re
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from .errors import OptionError
from .explanation import Explanation
from .explanation import explain as explained
from .lazy import Later

if TYPE_CHECKING:
    import torch

Source = Literal["draft", "target"]
FinishReason = Literal["eos", "stop", "length", "context", "cancelled"]

PAD = -1
"""Fills ragged drafts. Never a token id: 0 is an ordinary token in many vocabularies."""
ROOT = -1
"""The node a draft grows from: the last committed token."""

_COLORS: Mapping[str, str] = {"draft": "#1a9c3e", "target": "#0b8fa8"}
_SHORT = reprlib.Repr()
_SHORT.maxstring, _SHORT.maxlist = 60, 12
_LAST_LAYER = 9999
_PART = re.compile(r"([am])(\d{1,9})(?:-(\d{1,9}))?")


@dataclass(frozen=True)
class SkipSet:
    """Sub-layers to leave out, zero-based. As text: `a3,a5-7,m4` skips attention 3, 5, 6, 7 and MLP 4."""

    attention: frozenset[int] = frozenset()
    mlp: frozenset[int] = frozenset()

    @classmethod
    def of(cls, attention: Iterable[int] = (), mlp: Iterable[int] = ()) -> SkipSet:
        return cls(frozenset(attention), frozenset(mlp))

    @classmethod
    def of_numbers(cls, numbers: Iterable[int]) -> SkipSet:
        """Of sub-layers in the order they run: attention 0, MLP 0, attention 1, ..."""
        numbers = tuple(numbers)
        return cls.of((n // 2 for n in numbers if n % 2 == 0), (n // 2 for n in numbers if n % 2))

    @property
    def numbers(self) -> frozenset[int]:
        return frozenset([*(2 * layer for layer in self.attention), *(2 * layer + 1 for layer in self.mlp)])

    @classmethod
    def parse(cls, text: str) -> SkipSet:
        skipped: dict[str, set[int]] = {"a": set(), "m": set()}
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            match = _PART.fullmatch(part)
            if match is None:
                raise OptionError(
                    f"cannot read {part!r} in the skip set {text!r}. Write attention as a3 or a5-7, "
                    "MLP as m4 or m8-10, separated by commas, layers counted from 0: a3,a5-7,m4"
                )
            kind, first, last = match[1], int(match[2]), int(match[3] or match[2])
            if last > _LAST_LAYER:
                raise OptionError(
                    f"{part!r} in the skip set {text!r} is beyond every model's last layer; layers count from 0"
                )
            if last < first:
                raise OptionError(f"{part!r} in the skip set {text!r} runs backwards; write {kind}{last}-{first}")
            skipped[kind].update(range(first, last + 1))
        return cls.of(skipped["a"], skipped["m"])

    def __str__(self) -> str:
        return ",".join((*_runs("a", self.attention), *_runs("m", self.mlp)))

    def __len__(self) -> int:
        return len(self.attention) + len(self.mlp)

    def check(self, num_layers: int) -> None:
        """Raise where a layer does not exist."""
        for kind, layers in (("attention", self.attention), ("MLP", self.mlp)):
            outside = sorted(layer for layer in layers if not 0 <= layer < num_layers)
            if outside:
                raise OptionError(
                    f"the skip set names {kind} layer {outside[0]}, but the model has {num_layers} layers: "
                    f"use 0 to {num_layers - 1}"
                )


def _runs(kind: str, layers: frozenset[int]) -> list[str]:
    """`{3, 5, 6, 7}` -> `["a3", "a5-7"]`."""
    runs: list[list[int]] = []
    for layer in sorted(layers):
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return [f"{kind}{first}" if first == last else f"{kind}{first}-{last}" for first, last in runs]


@dataclass(frozen=True)
class Prompt:
    """A prompt of a file or a set. `later`: what the user says in later turns; `tokens`: of the first one, if known.

    `options`: of `generate`, where it is decoded in a mode of its own; `reference`: an answer to it, if it has one.
    """

    id: str
    domain: str
    text: str = ""
    later: tuple[str, ...] = ()
    tokens: tuple[int, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    reference: str = ""


@dataclass(frozen=True)
class Plan:
    """What a strategy wants for the next round of one sequence.

    `drafter`, `tree` and `max_draft_tokens` are None where the strategy leaves them to the caller and the lookahead.
    With `reuse`, verification of the drafted tokens starts where the draft stopped being exact: after the last layer
    below the first skipped sub-layer. `paths` are drafts that the strategy has found itself, so that no drafter is
    asked: the first is the chain, the others stand beside it.
    """

    skip: SkipSet = SkipSet()
    drafter: str | None = None
    max_draft_tokens: int | None = None
    tree: str | None = None
    reuse: bool = False
    paths: tuple[tuple[int, ...], ...] = ()


OFF = Plan(max_draft_tokens=0)
"""Decode this round plainly."""


@dataclass(frozen=True)
class Reuse:
    """Hidden states [num_tokens, hidden] after the capture point `point` that are already the target's own.

    They belong to the last committed token and the first tokens of the chain.
    """

    point: str
    hidden: torch.Tensor


@dataclass(frozen=True)
class Draft:
    """The tokens one round proposes, as a tree on the committed text: node i continues node `parents[i]`.

    The chain comes first: nodes 0, 1, ... each continue the one before. Then its siblings by depth in the order they
    were drawn, then branches that come from no distribution. A parent always stands before its children.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    chain_length: int = 0
    confidences: tuple[float, ...] = ()  # of the chain: how sure the draft was of its best token at each depth
    num_draft_steps: int = 0
    num_drawn: int = 0  # nodes 0 to num_drawn - 1 were drawn from `scores` (before temperature), the others guessed
    scores: torch.Tensor | None = field(default=None, compare=False, repr=False)  # [chain_length, vocabulary or less]
    reuse: Reuse | None = field(default=None, compare=False, repr=False)

    @classmethod
    def chain(cls, tokens: Iterable[int]) -> Draft:
        tokens = tuple(tokens)
        return cls(tokens, tuple(range(ROOT, len(tokens) - 1)), len(tokens), num_draft_steps=len(tokens))

    @property
    def is_chain(self) -> bool:
        return len(self.tokens) == self.chain_length

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Of each node: how many tokens after the committed text it is, from 1."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return tuple(depths)

    @cached_property
    def _children(self) -> dict[int, list[int]]:
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(self.parents):
            children.setdefault(parent, []).append(node)
        return children

    def children(self, node: int) -> list[int]:
        """In the order in which they are tried: the chain's next, its siblings, other branches."""
        return self._children.get(node, [])

    @cached_property
    def _nodes(self) -> dict[tuple[int, int], int]:
        """By parent and token; the first where they share both."""
        nodes = reversed(range(len(self.tokens)))
        return {(self.parents[node], self.tokens[node]): node for node in nodes}

    def child(self, node: int, token: int) -> int | None:
        """The child of `node` that holds `token`."""
        return self._nodes.get((node, token))

    def find(self, path: Iterable[int]) -> int | None:
        """The node at the end of `path`, a run of tokens after the committed text."""
        node = ROOT
        for token in path:
            child = self.child(node, token)
            if child is None:
                return None
            node = child
        return node


NO_DRAFT = Draft()


@dataclass(frozen=True)
class Verdict:
    """What a round emits: the tokens of the accepted `nodes`, a path down the draft, then one of the target's own."""

    tokens: tuple[int, ...]
    nodes: tuple[int, ...] = ()

    @property
    def num_accepted(self) -> int:
        return len(self.nodes)

    @property
    def columns(self) -> list[int]:
        """Of the verification pass: those after which the tokens stand."""
        return [0, *(node + 1 for node in self.nodes)][: len(self.tokens)]

    def cut(self, num_tokens: int) -> Verdict:
        """The first `num_tokens` of it: a stop rule struck there."""
        return Verdict(self.tokens[:num_tokens], self.nodes[:num_tokens])


@dataclass(frozen=True)
class TokenLogprobs:
    """Of one emitted token: its log-probability, and the likeliest tokens at its position, likeliest first.

    They are those of the model's own scores, before any penalty, bias, temperature or truncation.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class StepRecord:
    """One round of one sequence: one target pass and what it emitted."""

    sequence_id: int
    plan: Plan
    draft: Draft
    verdict: Verdict
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    optimise_seconds: float = 0.0  # planning, observing, recording
    record_seconds: float = 0.0  # of these: recording what runs
    captured: Mapping[str, torch.Tensor] = field(default_factory=dict, compare=False, repr=False)
    choices: tuple[int, ...] = field(default=(), repr=False)  # the target's best token after the text and each node
    logprobs: tuple[TokenLogprobs, ...] = field(default=(), repr=False)  # of the emitted tokens, where asked for

    @property
    def chain_outcomes(self) -> tuple[bool, ...]:
        """Of the chain's tokens that the target came to judge, from the first on: whether it kept them."""
        is_refused = self._num_chain_kept < self.draft.chain_length and not self.was_cut
        return (True,) * self._num_chain_kept + (False,) * is_refused

    @property
    def was_cut(self) -> bool:
        """A stop rule struck inside the chain: nobody knows what would have become of the rest."""
        is_cut = len(self.verdict.tokens) == len(self.verdict.nodes) == self._num_chain_kept
        return is_cut and self._num_chain_kept < self.draft.chain_length

    @property
    def _num_chain_kept(self) -> int:
        return sum(node < self.draft.chain_length for node in self.verdict.nodes)


@dataclass(frozen=True)
class Stats:
    """Counters of one generation; engine/metrics.py defines and computes each."""

    num_tokens: int
    num_rounds: int
    num_target_passes: int
    num_draft_steps: int
    num_accepted: int
    acceptance_rate: float
    mean_generated_length: float
    cached_prompt_tokens: int
    prefill_seconds: float
    decode_seconds: float
    optimise_seconds: float
    record_seconds: float
    draft_seconds: float
    verify_seconds: float
    tokens_per_second: float
    packed_bytes: int = 0


@dataclass(frozen=True)
class Generation:
    """One finished sequence. `sources[i]` says whether token i was drafted and accepted or the target's own.

    `report`: what the strategy has to say of it, for example where `knn` sent it. `seed` makes the text again, also
    where it was drawn (`seed=None`). `pieces[i]` is the text that token i adds; `logprobs[i]` says how likely it was,
    where the call asks for that. `print` shows the text, a notebook the text in colours.
    """

    text: str
    tokens: tuple[int, ...]
    sources: tuple[Source, ...]
    num_prompt_tokens: int
    finish_reason: FinishReason
    stats: Stats
    steps: Later[tuple[StepRecord, ...]] = Later(())
    report: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    pieces: Later[tuple[str, ...]] = Later(())
    logprobs: tuple[TokenLogprobs, ...] | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy: what is made later is made now."""
        return {name: getattr(self, name) for name in vars(self)}

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        shown = _SHORT.repr(self.text or list(self.tokens))
        speed = f"{self.stats.tokens_per_second:.1f} tokens/s"
        return f"Generation({shown}, {len(self.tokens)} tokens, ended by {self.finish_reason}, {speed})"

    def explain(self) -> Explanation:
        """What its rounds did, what was expected of them, and why: values, and as text a few lines."""
        return explained(self)

    def to_dict(self) -> dict[str, Any]:
        """All of it but the rounds, for `json.dumps`."""
        lists = {name: list(getattr(self, name)) for name in ("tokens", "sources", "pieces")}
        values = {name: getattr(self, name) for name in ("text", "num_prompt_tokens", "finish_reason", "seed")}
        logprobs = None if self.logprobs is None else [asdict(one) for one in self.logprobs]
        return {**values, **lists, "logprobs": logprobs, "stats": asdict(self.stats), "report": dict(self.report)}

    def _repr_html_(self) -> str:
        """In a notebook: drafted tokens green, the target's own cyan, as on the command line; then figures."""
        texts = self.pieces if self.text else [f"{token} " for token in self.tokens]
        rows = zip(self.tokens, texts, self.sources, strict=False)
        spans = "".join(_colored(source, text, f"token {token}, {source}") for token, text, source in rows if text)
        stats = self.stats
        counts = {"draft": (stats.num_accepted, "drafted"), "target": (stats.num_tokens - stats.num_accepted, "own")}
        figures = (
            f"{stats.num_tokens} tokens in {stats.num_target_passes} passes, {stats.tokens_per_second:.1f} tokens/s: "
            f"{' + '.join(_colored(source, f'{number} {word}') for source, (number, word) in counts.items())}; "
            f"ended by {self.finish_reason}"
        )
        return f'<pre style="white-space:pre-wrap">{spans}</pre><small>{figures}</small>'


def _colored(source: str, text: str, title: str = "") -> str:
    tip = f' title="{title}"' if title else ""
    return f'<span style="color:{_COLORS[source]}"{tip}>{html.escape(text)}</span>'


@dataclass(frozen=True)
class FrontierPoint:
    """A skip set and what became of the target's choices under it: log-probability lost, and the share still met."""

    skip: SkipSet
    lost: float
    match: float

    def to_json(self) -> dict[str, Any]:
        return {"skip": str(self.skip), "lost": self.lost, "match": self.match}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> FrontierPoint:
        """LookupError, TypeError, ValueError, OptionError: it is damaged."""
        if not isinstance(document["skip"], str):
            raise TypeError("a skip set must be text")
        found = cls(SkipSet.parse(document["skip"]), float(document["lost"]), float(document["match"]))
        if not 0 <= found.match <= 1:
            raise ValueError(f"match {found.match} is not a share")
        return found
