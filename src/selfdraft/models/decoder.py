"""Decoder: a Hugging Face causal model as embedding, a flat list of sub-layers, norm and head.

It walks the model's own modules through an explicit family row (families.py): no modelling code is copied, nothing
is patched, and which sub-layers run is an argument of the pass. Capture points name the residual stream: `embedding`,
`a3` and `m3` after attention and MLP 3 (also where they were skipped), `norm` after the final norm.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import torch
import torch.nn.functional as F

from ..errors import UnsupportedModelError, unknown_name
from ..kernels.features import Heads
from ..passes import PassOutput, Resume
from ..types import SkipSet
from .cache import KeyValues, LayerShape, SlotCache
from .checks import check_attention, check_ready, check_weights
from .cpu.compiled import Compiled, walk
from .cpu.products import Products
from .families import Branch, Family, family_of
from .gpu.memory import reads_are_free
from .joined import (
    JoinedAttention,
    JoinedBranch,
    JoinedHead,
    JoinedMLP,
    joined_around,
    joined_attention,
    joined_head,
    joined_mlp,
    joined_norm,
)
from .placement import Placement
from .rotary import MAX_POSITIONS, Rotaries, RotaryTable, no_rotary
from .self_test import proves, self_test
from .sublayer import Halfway, Pass, SubLayer, up_to_last_keys
from .watch import Watched

_MAX_SKIP_SETS = 1024


class Decoder:
    """Attached to one model; holds no state of any generation."""

    def __init__(
        self, model: Any, *, allow_joined: bool = True, kernels: Any = None, products: Products | None = None
    ) -> None:
        """On a CPU: `kernels`, a library of compiled ones for passes of a few tokens; `products`, where they are not.

        Without either all is `F.linear`.
        """
        self.model, self._kernels, self._products = model, kernels, products
        self.family: Family = family_of(model)
        self.config = model.config.get_text_config(decoder=True)
        self._parts = self.family.parts if allow_joined else None
        self.attach()

    def attach(self) -> None:
        """(Re)build the sub-layers from the model's modules and prove them against `model(...)`."""
        family = self.family
        check_attention(self._attention_kind)
        check_ready(self.model)
        check_weights(self.model)
        self._layers = list(self._part(family.layers))
        self._embed = self.model.get_input_embeddings()
        self._embedding_multiplier = family.embedding_multiplier(self.config)
        rotary = self._part(family.rotary) if family.rotary else None
        layer_types = set(self.config.layer_types) if family.has_rotary_by_layer_type else ()
        self._rotaries = Rotaries(rotary, layer_types, self.embedding)
        self._position_embedding = self._part(family.position_embedding) if family.position_embedding else None
        head, final_norm = self._part(family.head), self._part(family.final_norm)
        self.head = (joined_head(head) if self._parts else None) or head
        self.final_norm = (joined_norm(final_norm, self._parts.norm) if self._parts else None) or final_norm
        lengths = getattr(self.config, "max_position_embeddings", None), self._rotaries.constant_length  # slow to find
        self.context_length = min((int(length) for length in lengths if length is not None), default=None)
        self.sublayers = tuple(part for layer in range(len(self._layers)) for part in self._sublayers_of(layer))
        self._points = ("embedding", *(part.name for part in self.sublayers), "norm")
        attentions = (self._branch_module(layer, family.attention) for layer in self._layers)
        self.shapes = [_layer_shape(attention, self.config) for attention in attentions]
        self._active: dict[SkipSet, tuple[SubLayer, ...]] = {}
        self.compiled: Compiled | None = None
        if self._products is not None:
            self._products.prepare([])  # of weights that may be others now
        self.self_test_error = self_test(self)
        if self._is_compiled:
            self._compile()
        if self._products is not None:
            self._prepare_products(self._products)
        self.watched = Watched(self.model)
        self._attached_to = self._fingerprint()

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    @property
    def device(self) -> torch.device:
        return torch.device(self._embed.weight.device)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.model.dtype
        return dtype

    @property
    def _is_compiled(self) -> bool:
        return self._kernels is not None and self.dtype == torch.float32 and self.device.type == "cpu"

    @property
    def packed_bytes(self) -> int:
        """Of weights that are held a second time."""
        return 0 if self._products is None else self._products.packed_bytes

    @property
    def _attention_kind(self) -> str:
        return getattr(self.config, "_attn_implementation", "eager")

    @property
    def is_current(self) -> bool:
        """False after the model was moved, cast, hooked or given another attention: it is no longer what it was."""
        return self._attached_to == self._fingerprint()

    @property
    def embedding(self) -> torch.Tensor:
        weight: torch.Tensor = self._embed.weight
        return weight.detach()

    def last_point(self, point: str, known: Container[str]) -> str:
        """The last capture point up to `point` that is among `known`: a skipped sub-layer changes nothing."""
        before = self._points[: self._points.index(point) + 1]
        return next(name for name in reversed(before) if name in known)

    @property
    def embedding_scale(self) -> float:
        """What the embedding is multiplied by, as the model rounds it."""
        name = None if self.family.parts is None else self.family.parts.embedding_scale
        own = 1.0 if name is None else float(getattr(self._embed, name).to(self.embedding.dtype))
        return own * self._embedding_multiplier

    def routers(self) -> dict[str, Callable[[torch.Tensor], Any]]:
        """By capture point: what chooses the experts that are next, given the stream there."""
        branches = [self._branch_parts(layer, self.family.mlp) for layer in range(self.num_layers)]
        found = [(getattr(module, self.family.router or "", None), before) for module, before, _ in branches]
        return {f"a{layer}": torch.nn.Sequential(before, own) for layer, (own, before) in enumerate(found) if own}

    def new_cache(self, num_rows: int, num_slots: int) -> SlotCache:
        return SlotCache(self.shapes, num_rows, num_slots, dtype=self.dtype, device=self.device)

    def forward(
        self,
        tokens: torch.Tensor,
        placement: Placement,
        cache: SlotCache,
        *,
        skip: SkipSet = SkipSet(),  # noqa: B008 - frozen
        capture: Sequence[str] = (),
        needs_scores: bool = True,
        resume: Resume | None = None,
    ) -> PassOutput:
        """One pass of `tokens` [rows, width] through all sub-layers that are not skipped."""
        self.check_points(capture)
        if resume is None:
            return self.finish(self.begin(tokens, placement, cache, skip=skip), capture, needs_scores)
        assert not skip, "a pass that goes on after a draft is the whole model's"
        return self.finish(self._begin_after(resume, tokens, placement, cache), capture, needs_scores)

    def begin(
        self,
        tokens: torch.Tensor,
        placement: Placement,
        cache: SlotCache,
        *,
        skip: SkipSet = SkipSet(),  # noqa: B008 - frozen
        num_sublayers: int = 0,
    ) -> Halfway:
        """The embedded tokens after the first `num_sublayers` that are not skipped."""
        hidden, step = self.embed(tokens, placement, cache)
        sublayers, streams = self.active_sublayers(skip), {"embedding": hidden}
        for sublayer in sublayers[:num_sublayers]:
            hidden = streams[sublayer.name] = sublayer.run(hidden, step)
        return Halfway(hidden, step, sublayers[num_sublayers:], streams)

    def finish(self, halfway: Halfway, capture: Sequence[str] = (), needs_scores: bool = True) -> PassOutput:
        hidden = halfway.hidden
        captured: dict[str, torch.Tensor] = {}
        if capture:
            hidden, captured = self._run_capturing(halfway, capture)
        else:
            hidden = self._walk(halfway.rest if needs_scores else up_to_last_keys(halfway.rest), hidden, halfway.step)
        if "norm" in capture:
            captured["norm"] = self.final_norm(hidden)
        if not needs_scores:
            return PassOutput(hidden[:, :0], captured)
        scores, best = self._scores_and_best(hidden)
        return PassOutput(scores, captured, best=best)

    def scores(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, width, vocabulary] of the stream after the last sub-layer."""
        return self._scores_and_best(hidden)[0]

    def _scores_and_best(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """And the best tokens, where they are found on the way."""
        found = self.compiled.scores(hidden) if self.compiled is not None else None
        raw, best = (self._head(self.final_norm(hidden)), None) if found is None else found
        scores = self.scores_of(raw)
        return scores, best if scores is raw else None  # rounding may have made others as good

    def _head(self, normed: torch.Tensor) -> torch.Tensor:
        is_joined = isinstance(self.head, JoinedHead)
        scores: torch.Tensor = self.head(normed, self._products or F.linear) if is_joined else self.head(normed)
        return scores

    def _compile(self) -> None:
        """Let compiled kernels run what they know, if the model's scores stay what they are."""
        made = Compiled(self._kernels, self.sublayers, self.final_norm, self.head, self._rotaries)
        self.compiled = made if made.num_known or made.has_head else None
        for limits in ((0, 0), (made.max_tokens, made.least_numbers)):  # as many tokens are run, and as few
            made.max_tokens, made.least_numbers = limits
            if self.compiled is not None and not proves(self, "compiled kernels"):
                self.compiled = None

    def _prepare_products(self, products: Products) -> None:
        """Of what compiled kernels do not run; the head first, which gains most."""
        compiled = self.compiled
        has_head = isinstance(self.head, JoinedHead) and not (compiled is not None and compiled.has_head)
        left = [part.run for part in self.sublayers if compiled is None or not compiled.knows(part)]
        parts = [part for part in left if isinstance(part, JoinedAttention | JoinedMLP)]
        products.prepare([*[self.head.weight] * has_head, *(weight for part in parts for weight in part.weights)])
        if products.packed_bytes and not proves(self, "packed weights"):
            products.prepare([])

    def _walk(self, sublayers: Sequence[SubLayer], hidden: torch.Tensor, step: Pass) -> torch.Tensor:
        return (walk if self.compiled is None else self.compiled.walk)(sublayers, hidden, step)

    def scores_of(self, raw: torch.Tensor) -> torch.Tensor:
        """Of what the head gives."""
        return self.family.scores(self.config, raw)

    def can_resume(self, point: str, capture: Sequence[str]) -> bool:
        first = self._points.index(point)
        return all(self._points.index(wanted) > first for wanted in capture)

    def embed(self, tokens: torch.Tensor, placement: Placement, cache: KeyValues) -> tuple[torch.Tensor, Pass]:
        """The embedded tokens, and what their sub-layers share."""
        hidden = self._embed(tokens)
        if self._embedding_multiplier != 1:
            hidden = hidden * self._embedding_multiplier
        if self._position_embedding is not None:
            # Padding of a ragged pass may stand after the last position; what it yields is never read.
            last = self._position_embedding.weight.shape[0] - 1
            hidden = hidden + self._position_embedding(placement.positions.clamp(max=last))
        step = self._pass(hidden, placement, cache)
        if not reads_are_free(hidden):
            step.look_up()
        return hidden, step

    def _pass(self, hidden: torch.Tensor, placement: Placement, cache: KeyValues) -> Pass:
        find_rotary = partial(self._rotaries.of, hidden, placement.positions)
        return Pass(placement, cache, find_rotary, multiply=self._products or F.linear)

    def _begin_after(self, resume: Resume, tokens: torch.Tensor, placement: Placement, cache: SlotCache) -> Halfway:
        """The stream after the known point: only columns whose state is not known go through what is before it."""
        first = self._points.index(resume.point)
        rest, columns = placement.after(resume.num_known)
        hidden, step = self.embed(tokens.gather(1, columns), rest, cache)
        hidden = self._walk(self.sublayers[:first], hidden, step)
        joined = resume.hidden.scatter(1, columns[:, :, None].expand_as(hidden), hidden)
        step = self._pass(joined, placement, cache)
        return Halfway(joined, step, self.sublayers[first:], {resume.point: joined})

    def check_points(self, points: Sequence[str]) -> None:
        for point in points:
            if point not in self._points:
                raise unknown_name("capture point", point, self._points)

    def _run_capturing(self, halfway: Halfway, capture: Sequence[str]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """As a plain run; a skipped sub-layer's point shows the stream that passes it by."""
        rest, streams = {part.name: part for part in halfway.rest}, halfway.streams
        hidden = streams.get("embedding", halfway.hidden)
        captured = {"embedding": hidden} if "embedding" in capture else {}
        waiting: list[SubLayer] = []
        for point in self._points[1:-1]:
            waiting += [rest[point]] if point in rest else []
            hidden = streams.get(point, hidden)
            if point in capture:
                hidden, waiting = self._walk(waiting, hidden, halfway.step), []
                captured[point] = hidden
        return self._walk(waiting, hidden, halfway.step), captured

    def active_sublayers(self, skip: SkipSet) -> tuple[SubLayer, ...]:
        if skip not in self._active:
            if len(self._active) >= _MAX_SKIP_SETS:  # strategies may plan new ones for ever
                self._active.clear()
            skip.check(self.num_layers)
            names = {f"a{layer}" for layer in skip.attention} | {f"m{layer}" for layer in skip.mlp}
            self._active[skip] = tuple(part for part in self.sublayers if part.name not in names)
        return self._active[skip]

    def _sublayers_of(self, layer: int) -> tuple[SubLayer, SubLayer]:
        return (
            SubLayer(f"a{layer}", self._joined_attention(layer) or self._attention(layer)),
            SubLayer(f"m{layer}", self._joined_mlp(layer) or self._mlp(layer)),
        )

    def _joined_attention(self, layer: int) -> Any:
        parts, around = self._parts, self._around(layer, self.family.attention)
        if parts is None or around is None:
            return None
        module, layer_type = self._branch_module(self._layers[layer], self.family.attention), self._layer_type(layer)
        has_rotary, joins = parts.has_rotary(self.config, layer), not self._is_compiled
        table = RotaryTable(self._rotaries, self.context_length or MAX_POSITIONS, layer_type, parts.is_interleaved)
        make_heads = partial(
            Heads,
            rotary=table if has_rotary else no_rotary(int(module.head_dim), self.embedding),
            window=self.family.window(self.config, layer),
            softcap=parts.softcap(self.config),
        )
        return joined_attention(
            module, parts, around, make_heads, layer=layer, rotary_kind=layer_type, has_rotary=has_rotary, joins=joins
        )

    def _joined_mlp(self, layer: int) -> Any:
        parts, around = self._parts, self._around(layer, self.family.mlp)
        if parts is None or around is None:
            return None
        module = self._branch_module(self._layers[layer], self.family.mlp)
        return joined_mlp(module, parts, around, joins=not self._is_compiled)

    def _around(self, layer: int, branch: Branch) -> JoinedBranch | None:
        if self._parts is None:
            return None
        multiplier = self.family.residual_multiplier(self.config)
        return joined_around(self._layers[layer], branch, self._parts.norm, multiplier)

    def _layer_type(self, layer: int) -> str | None:
        return self.config.layer_types[layer] if self.family.has_rotary_by_layer_type else None

    def _attention(self, layer: int) -> Callable[[torch.Tensor, Pass], torch.Tensor]:
        module, before, after = self._branch_parts(layer, self.family.attention)
        is_parallel, cache_argument = self.family.is_parallel(self.config), self.family.cache_argument
        window, layer_type = self.family.window(self.config, layer), self._layer_type(layer)

        def run(hidden: torch.Tensor, step: Pass) -> torch.Tensor:
            if is_parallel:
                step.block_inputs[layer] = hidden
            keywords: dict[str, Any] = {cache_argument: step.view}
            if step.rotary:
                keywords["position_embeddings"] = step.rotary[layer_type]
            output = module(before(hidden), attention_mask=step.placement.mask(window, hidden.dtype), **keywords)[0]
            return torch.add(hidden, after(output))

        return run

    def _mlp(self, layer: int) -> Callable[[torch.Tensor, Pass], torch.Tensor]:
        module, before, after = self._branch_parts(layer, self.family.mlp)

        def run(hidden: torch.Tensor, step: Pass) -> torch.Tensor:
            output = module(before(step.block_inputs.pop(layer, hidden)))
            return torch.add(hidden, after(output[0] if isinstance(output, tuple) else output))

        return run

    def _branch_parts(self, layer: int, branch: Branch) -> tuple[Any, Any, Any]:
        block = self._layers[layer]
        before = getattr(block, branch.norm_before) if branch.norm_before else torch.nn.Identity()
        after = getattr(block, branch.norm_after) if branch.norm_after else torch.nn.Identity()
        return self._branch_module(block, branch), before, _scaled(after, self.family.residual_multiplier(self.config))

    def _branch_module(self, block: Any, branch: Branch) -> Any:
        return getattr(block, branch.module)

    def _part(self, path: str) -> Any:
        try:
            return attrgetter(path)(self.model)
        except AttributeError:
            raise UnsupportedModelError(
                f"{type(self.model).__name__} has no {path!r}, which the family row {self.family.name!r} expects. "
                "Pass the whole causal language model, or correct the row in selfdraft/models/families.py"
            ) from None

    def _fingerprint(self) -> list[Any]:
        """Copies of weights are no longer what they were as soon as any weight is written."""
        num_writes = self.watched.num_writes if self.packed_bytes else 0
        return [self._attention_kind, num_writes, *self.watched.fingerprint()]


def _scaled(function: Any, multiplier: float) -> Any:
    return function if multiplier == 1 else lambda hidden: function(hidden) * multiplier


def _layer_shape(attention: Any, config: Any) -> LayerShape:
    num_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(attention, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return LayerShape(int(num_heads), int(head_dim), int(head_dim))
