"""Each kernel against the same calculation in float64. On a GPU; without one where Triton's interpreter can be had."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from heads import FEATURES, heads_of, prepared, scored
from needs_triton import DEVICE, HAS_GPU
from on_device import even_columns
from selfdraft.chains import Choice, DraftTask
from selfdraft.drafted import DraftStats, Outline
from selfdraft.engine.accept import Coupled, _follow
from selfdraft.engine.draft import Rule
from selfdraft.engine.sampling import Sampler
from selfdraft.engine.verify import tree_mask
from selfdraft.kernels import accept as accept_kernels
from selfdraft.kernels import attention, launch, prefill, top
from selfdraft.kernels import gated as gated_module
from selfdraft.kernels import linear as linear_module
from selfdraft.kernels.attention import Place, attend
from selfdraft.kernels.attention_rows import attend_rows, span_of
from selfdraft.kernels.embed import embed
from selfdraft.kernels.features import Heads, Norm
from selfdraft.kernels.feed import feed as feed_at_once
from selfdraft.kernels.gated import gated, gated_tile
from selfdraft.kernels.launch import Tile
from selfdraft.kernels.linear import linear, linear_parts, multiply, split_tile, whole_tile
from selfdraft.kernels.norm import add_norm, norm_heads
from selfdraft.kernels.rank import rank, rank_and_outline
from selfdraft.kernels.stop_rules import by_classifier
from selfdraft.lookahead import disco, tpt
from selfdraft.models.cache import LayerShape, SlotCache
from selfdraft.models.gpu import accept as accept_reference
from selfdraft.models.gpu import plain
from selfdraft.models.gpu.draft import DEPTH, DraftOutputs, feed
from selfdraft.models.gpu.memory import Device, DraftBuffers, PassBuffers
from selfdraft.options import GenerateOptions
from selfdraft.passes import SETTINGS, ChoiceKind, Choosing, Columns, PassRequest, Site
from selfdraft.types import PAD, ROOT, Draft

DTYPES = (torch.bfloat16, torch.float16) if HAS_GPU else (torch.float32,)
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    assert not found.isnan().any()
    return float((found.double() - expected).norm() / expected.norm())


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(DEVICE, dtype)


ACTIVATIONS = {"silu": F.silu, "gelu_tanh": partial(F.gelu, approximate="tanh"), "gelu": F.gelu}


@by_dtype
@pytest.mark.parametrize("num_tokens", [1, 5, 16, 17, 33])
@pytest.mark.parametrize(("num_rows", "size"), [(96, 64), (40, 144)])
def test_gated(dtype, num_tokens, num_rows, size):
    x, weight = random(num_tokens, size, dtype=dtype), random(2 * num_rows, size, dtype=dtype, seed=1)
    bias = random(2 * num_rows, dtype=dtype, seed=2)
    for expected, found in (
        (x.double() @ weight.double().T, gated(x, weight)),
        (x.double() @ weight.double().T + bias.double(), gated(x, weight, bias)),
    ):
        gate, up = expected.chunk(2, -1)
        assert error(found, torch.nn.functional.silu(gate) * up) < TOLERANCE[dtype]


@by_dtype
@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_activations(dtype, kind, has_bias):
    """Of gated and of plain products, and of what the vendor's products leave."""
    x, weight = 2 * random(3, 48, dtype=dtype), random(2 * 40, 48, dtype=dtype, seed=1) / 4
    bias = random(2 * 40, dtype=dtype, seed=2) if has_bias else None
    inner = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    gate, up = inner.chunk(2, -1)
    assert error(gated(x, weight, bias, kind), ACTIVATIONS[kind](gate) * up) < TOLERANCE[dtype]
    assert error(linear(x, weight, bias, activation=kind), ACTIVATIONS[kind](inner)) < TOLERANCE[dtype]
    assert error(prefill.gate(inner.to(dtype), kind), ACTIVATIONS[kind](gate) * up) < 2 * TOLERANCE[dtype]


def norms_of(size: int, dtype: torch.dtype) -> dict[str, Norm | None]:
    weight, bias = random(size, dtype=dtype, seed=2), random(size, dtype=dtype, seed=3)
    return {
        "llama": Norm(weight, 1e-3),
        "olmo": Norm(weight, 1e-3, rounds_first=False),
        "gemma": Norm(weight, 1e-3, offset=1.0, rounds_first=False),
        "layer norm": Norm(weight, 1e-3, bias, is_centred=True, rounds_first=False),
        "none": None,
    }


NORMS = tuple(norms_of(1, torch.float32))
ROUNDED = (torch.float32, torch.float16, *((torch.bfloat16,) if HAS_GPU else ()))  # the interpreter cuts bfloat16 off
by_rounding = pytest.mark.parametrize("dtype", ROUNDED, ids=str)


def normed(x: torch.Tensor, norm: Norm | None) -> torch.Tensor:
    """Rounded where transformers rounds."""
    if norm is None:
        return x
    wide = x.float() - (x.float().mean(-1, keepdim=True) if norm.is_centred else 0)
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + norm.eps)
    wide = (wide.to(x.dtype) if norm.rounds_first else wide) * (norm.weight.float() + norm.offset)
    return (wide if norm.bias is None else wide + norm.bias).to(x.dtype)


def assert_rounded(found: torch.Tensor, expected: torch.Tensor) -> None:
    """As it: sums of another order may tip single numbers over, by what a number is rounded."""
    assert found.dtype == expected.dtype
    if found.dtype == torch.float32:
        assert error(found, expected) < 1e-6
    else:
        assert (found == expected).float().mean() > 0.97
        assert error(found, expected) < TOLERANCE[found.dtype]


@by_rounding
@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("size", [64, 144])
def test_add_norm(dtype, kind, size):
    """Every norm after every other: of nothing, of a branch, and of one in parts."""
    norms, stream = norms_of(size, dtype), random(5, size, dtype=dtype)
    total, found = add_norm(stream, None, norms[kind], norms["gemma"], 0.3)
    assert torch.equal(total, stream)
    assert_rounded(found, normed(stream, norms[kind]))
    parts = 3 * random(3, 5, size, dtype=torch.float32, seed=1)
    branch = (parts[0] + parts[1] + parts[2]).to(dtype)
    for (after, multiplier), one in itertools.product(
        zip(NORMS, (1.0, 0.22, 1.0, 1.0, 0.3), strict=True), (branch, parts)
    ):
        added = normed(branch, norms[after])
        added = added if multiplier == 1 else added * multiplier
        total, found = add_norm(stream, one, norms[kind], norms[after], multiplier)
        assert_rounded(total, stream + added)
        assert_rounded(found, normed(total, norms[kind]))


@by_rounding
@pytest.mark.parametrize("kind", NORMS[:3])
def test_heads_are_normed_together(dtype, kind):
    """Queries by one norm, keys by another; values stay."""
    qkv, (queries, keys) = random(5, 6 * 32, dtype=dtype), (norms_of(size, dtype)[kind] for size in (96, 64))
    expected = [normed(qkv[:, :96], queries), normed(qkv[:, 96:160], keys), qkv[:, 160:].clone()]
    norm_heads(qkv, queries, keys)
    for found, part in zip(qkv.split([96, 64, 32], -1), expected, strict=True):
        assert_rounded(found, part)


@by_rounding
@pytest.mark.parametrize("scale", [1.0, 11.3125])
def test_embed(dtype, scale):
    table, tokens = random(20, 48, dtype=dtype), torch.tensor([3, 19, 0, 7, 7], device=DEVICE)
    places = torch.tensor([4, 1, 0], device=DEVICE)
    assert torch.equal(embed(table, tokens, places, scale), table[tokens[places]] * scale)


@by_dtype
@pytest.mark.parametrize("num_tokens", [1, 5, 16, 17, 33, 64])
@pytest.mark.parametrize(("num_rows", "size"), [(16, 16), (40, 144), (7, 400)], ids=str)
def test_linear(dtype, num_tokens, num_rows, size):
    x, weight = random(num_tokens, size, dtype=dtype), random(num_rows, size, dtype=dtype, seed=1)
    bias = random(num_rows, dtype=dtype, seed=2)
    expected = x.double() @ weight.double().T
    for more, found in ((0, linear(x, weight)), (bias.double(), linear(x, weight, bias))):
        assert found.shape == expected.shape
        assert found.dtype == dtype
        assert error(found, expected + more) < TOLERANCE[dtype]
    for more, parts in ((0, linear_parts(x, weight)), (bias.double(), linear_parts(x, weight, bias))):
        assert parts.dtype == torch.float32
        assert len(parts) == -(-size // split_tile(num_rows).part(size))
        assert error(parts.double().sum(0), expected + more) < 1e-5


TILES = [
    Tile(64, 128, 4, 4, 4),
    Tile(64, 128, 4, 4),
    Tile(64, 64, 4, 5, 2),
    Tile(128, 128, 8, 3),
    Tile(128, 128, 8, 4, 10),
    Tile(64, 128, 4, 3, 3),
]


@by_dtype
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: f"{tile.rows}x{tile.columns}/{tile.num_splits}")
@pytest.mark.parametrize("num_tokens", [3, 37])
def test_each_part_of_a_product(dtype, tile, num_tokens):
    """Also where neither rows nor columns are whole tiles, and the last split has fewer columns."""
    num_rows, size = 70, 1296
    x, weight = random(num_tokens, size, dtype=dtype), random(num_rows, size, dtype=dtype, seed=1)
    parts = multiply(x, weight, None, tile, torch.float32)
    step = tile.part(size)
    assert step * (len(parts) - 1) < size <= step * len(parts)
    for i, part in enumerate(parts):
        columns = slice(i * step, (i + 1) * step)
        assert error(part, x[:, columns].double() @ weight[:, columns].double().T) < 1e-5


def test_tiles_of_known_models():
    """Measured shapes; and of no matrix too many parts, or a program without columns."""
    assert split_tile(2048) == Tile(64, 128, 4, 6, 4)
    assert split_tile(1536) == Tile(64, 128, 4, 6, 5)
    assert [split_tile(size).num_splits for size in (4096, 4608, 5120, 8192)] == [2, 3, 3, 1]
    assert [-(-size // split_tile(1536).part(size)) for size in (1536, 8960)] == [4, 5]
    assert [whole_tile(151936, count) for count in (32, 33)] == [Tile(64, 128, 4, 4), Tile(128, 128, 8, 3)]
    assert [gated_tile(size, 1).num_stages for size in (3072, 14336, 17920, 40000)] == [6, 5, 4, 4]
    assert [gated_tile(8960, count) for count in (32, 33)] == [Tile(64, 64, 4, 5), Tile(128, 64, 8, 4)]
    assert gated_tile(4864, 64).rows == 64, "38 programs of 128 rows would be too few"
    for num_rows in (8, 576, 1536, 4096, 20000):
        for size in (16, 576, 1536, 14336, 1 << 17):
            tile = split_tile(num_rows)
            assert 1 <= -(-size // tile.part(size)) <= tile.num_splits <= 16
            assert tile.part(size) % tile.columns == 0


@pytest.mark.skipif(HAS_GPU, reason="what a device without it does")
def test_nothing_starts_early_in_the_interpreter():
    assert not launch.overlaps(DEVICE)
    assert launch.options(DEVICE) == {"PDL": False}


@by_dtype
@pytest.mark.parametrize("num_parts", [1, 3, 10])
def test_add_norm_of_parts(dtype, num_parts):
    """As the branch that they add up to in order, rounded: bit by bit."""
    stream, weight = random(5, 144, dtype=dtype), random(144, dtype=dtype, seed=2)
    parts = random(num_parts, 5, 144, dtype=torch.float32, seed=1)
    branch = parts[0].clone()
    for part in parts[1:]:
        branch += part
    norm = Norm(weight, 1e-6)
    for found, expected in zip(add_norm(stream, parts, norm), add_norm(stream, branch.to(dtype), norm), strict=True):
        assert found.dtype == dtype
        assert torch.equal(found, expected)


@by_dtype
@pytest.mark.parametrize("product", [gated, linear, linear_parts])
@pytest.mark.parametrize("size", [256, 528])
def test_a_token_does_not_know_its_neighbours(dtype, product, size):
    """Bit by bit: one token alone is the same token among two to sixty-four, in tiles of each size."""
    x, weight = random(64, size, dtype=dtype), random(80, size, dtype=dtype, seed=1)
    known = (0, 7, 15, 39, 63)
    alone = torch.cat([product(x[i : i + 1], weight) for i in known], dim=-2)
    for width in (2, 16, 32, 40, 63, 64):
        picks = [i for i in known if i < width]
        assert torch.equal(product(x[:width], weight)[..., picks, :], alone[..., : len(picks), :])


class Layers:
    """A cache with something in it, and a reference that knows no kernels."""

    def __init__(
        self, heads: Heads, starts: list[int], width: int, dtype: torch.dtype, cache_rows: Sequence[int] = ()
    ) -> None:
        self.heads, self.starts, self.width = heads, starts, width
        rows, kv, num_slots = len(starts), heads.num_kv_heads, max(320, max(starts) + width)
        self.cache_rows = cache_rows or range(1, 1 + rows)
        self.cache = random(2, 2, self.cache_rows[-1] + 1, kv, num_slots, heads.dim, dtype=dtype, seed=9)
        total = (heads.num_heads + 2 * kv) * heads.dim
        self.qkv = random(rows * width, total, dtype=dtype, seed=10)

    def place(self, depths: torch.Tensor, sees: torch.Tensor) -> Place:
        rows = self.cache_rows
        header = [self.cache.data_ptr(), self.cache.shape[4], self.cache.shape[2], 0, len(rows), 0, 0, 0, *rows]
        first = [self.width * row for row in range(len(rows) + 1)]
        numbers = (header, [[0] * 4] * len(rows), self.starts, first, [*range(first[-1])])
        ints = (torch.tensor(values, device=DEVICE) for values in numbers)
        end = max(self.starts) + self.width
        return Place(*ints, depths.to(DEVICE), sees.to(DEVICE), self.cache.dtype, end)

    def expected(self, depths: torch.Tensor, sees: torch.Tensor, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Attention of every token, and the cache of the layer after the pass."""
        heads, out = self.heads, []
        cache = self.cache[layer].double().clone()
        sizes = [heads.num_heads * heads.dim, *[heads.num_kv_heads * heads.dim] * 2]
        for row, start in enumerate(self.starts):
            tokens = self.qkv[row * self.width : (row + 1) * self.width].double()
            query, key, value = (part.unflatten(-1, (-1, heads.dim)) for part in tokens.split(sizes, -1))
            positions = [start + int(depth) for depth in depths[row]]
            query = prepared(query, heads, heads.query_norm, torch.tensor(positions, device=DEVICE))
            key = prepared(key, heads, heads.key_norm, torch.tensor(positions, device=DEVICE))
            keys, values = cache[:, self.cache_rows[row]]
            for t in range(self.width):
                keys[:, start + t], values[:, start + t] = key[t], value[t]
            slot_positions = [*range(start), *positions]
            for t, position in enumerate(positions):
                visible = list(range(start)) + [start + c for c in range(self.width) if sees[row, t] >> c & 1]
                if heads.window:
                    visible = [slot for slot in visible if slot_positions[slot] > position - heads.window]
                group = heads.num_heads // heads.num_kv_heads
                seen = keys[:, visible].repeat_interleave(group, 0)
                scores = scored(torch.einsum("hd,hsd->hs", query[t], seen), heads)
                mixed = torch.einsum("hs,hsd->hd", scores.softmax(-1), values[:, visible].repeat_interleave(group, 0))
                out.append(mixed.flatten())
        return torch.stack(out), cache


def chain(rows: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    depths = torch.arange(width).repeat(rows, 1)
    return depths, (1 << (depths + 1)) - 1


def tree(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A chain of 3 after the root with a sibling at each depth."""
    return torch.tensor([[0, 1, 2, 3, 1, 2]]).repeat(rows, 1), torch.tensor([[1, 3, 7, 15, 17, 35]]).repeat(rows, 1)


SHAPES = {
    "grouped": heads_of(6, 2, 32, 1 / math.sqrt(32)),
    "single": heads_of(2, 2, 32, 0.3),
    "window": heads_of(4, 2, 64, 0.25, window=9),
}


@by_dtype
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("starts", "width"), [([0], 1), ([70], 1), ([63, 5], 5), ([130, 0, 64], 6)], ids=str)
@pytest.mark.parametrize("kind", ["chain", "tree"])
def test_attention(dtype, shape, starts, width, kind):
    if kind == "tree":
        width = 6
    layers = Layers(SHAPES[shape], starts, width, dtype)
    depths, sees = chain(len(starts), width) if kind == "chain" else tree(len(starts))
    expected, cache = layers.expected(depths, sees, layer=1)
    untouched = layers.cache[0].clone()
    found = attend(layers.qkv, layers.place(depths, sees), layers.heads, layer=1)
    assert error(found, expected) < TOLERANCE[dtype]
    assert error(layers.cache[1], cache) < TOLERANCE[dtype]
    assert torch.equal(layers.cache[0], untouched)


@by_dtype
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("num_padding", [0, 1])
def test_attention_of_many_rows(dtype, shape, num_padding):
    """Rows shorter and longer than what is read at once, and than a program's span; the last one may only pad."""
    span = span_of(8)
    starts = [0, 1, 127, 128, span - 1, span, 2 * span + 130, 5]
    layers = Layers(SHAPES[shape], starts, 1, dtype)
    depths, sees = chain(len(starts), 1)
    expected, cache = layers.expected(depths, sees, layer=1)
    untouched, last = layers.cache[0].clone(), layers.cache[1, :, -1].clone()
    place = layers.place(depths, sees)
    place.header[4] -= num_padding
    found = attend_rows(layers.qkv, place, layers.heads, layer=1)
    for same in (layers.qkv, torch.stack([layers.qkv.float() / 2] * 2)):  # again, and in parts
        assert torch.equal(found, attend_rows(same, place, layers.heads, layer=1))
    end = len(starts) - num_padding
    assert error(found[:end], expected[:end]) < TOLERANCE[dtype]
    assert error(layers.cache[1, :, : 1 + end], cache[:, : 1 + end]) < TOLERANCE[dtype]
    assert torch.equal(layers.cache[0], untouched)
    if num_padding:
        assert not found[-1].any()
        assert torch.equal(layers.cache[1, :, -1], last)


@by_dtype
@pytest.mark.parametrize("kind", ["tree", "many rows", "parts"])
@pytest.mark.parametrize("feature", FEATURES)
def test_features_of_attention(dtype, feature, kind):
    heads, starts = FEATURES[feature], [63] if kind == "tree" else [3, 130]
    inputs = tree(1) if kind == "tree" else chain(2, 1)
    layers = Layers(heads, starts, inputs[0].shape[1], dtype)
    expected, cache = layers.expected(*inputs, layer=1)
    qkv = torch.stack([layers.qkv.float() / 2] * 2) if kind == "parts" else layers.qkv
    run = attend if kind == "tree" else attend_rows
    assert error(run(qkv, layers.place(*inputs), heads, layer=1), expected) < TOLERANCE[dtype]
    assert error(layers.cache[1], cache) < TOLERANCE[dtype]


@by_dtype
@pytest.mark.parametrize("kind", ["chain", "tree"])
def test_rows_with_one_between_them_are_single_rows(dtype, kind):
    """Bit by bit, and what stands between them stays."""
    heads, starts, rows = SHAPES["grouped"], [63, 5], [0, 2]
    together = Layers(heads, starts, 6, dtype, rows)
    before, alone = together.cache.clone(), together.cache.clone()
    depths, sees = chain(2, 6) if kind == "chain" else tree(2)
    found = attend(together.qkv, together.place(depths, sees), heads, layer=1).view(2, 6, -1)
    for number, (start, row) in enumerate(zip(starts, rows, strict=True)):
        single = Layers(heads, [start], 6, dtype, [row])
        single.cache, single.qkv = alone, together.qkv[number * 6 : number * 6 + 6].contiguous()
        expected = attend(single.qkv, single.place(depths[:1], sees[:1]), heads, layer=1)
        assert torch.equal(found[number], expected)
    assert torch.equal(together.cache, alone)
    assert torch.equal(together.cache[:, :, 1], before[:, :, 1])
    assert not torch.equal(together.cache, before)


@by_dtype
@pytest.mark.parametrize("max_bytes", [1 << 28, 1], ids=["together", "one by one"])
def test_rows_of_several_sizes_are_single_rows(dtype, max_bytes, monkeypatch):
    """Bit by bit, whatever pads them: a chain, a tree, one token, a row that only pads."""
    monkeypatch.setattr(attention, "MAX_PARTIAL_BYTES", max_bytes)
    heads, starts, widths = SHAPES["grouped"], [63, 5, 31], [4, 6, 1]
    packed = Layers(heads, [*starts, 0], 6, dtype)
    alone = packed.cache.clone()
    (depths, sees), trees = chain(4, 6), tree(1)
    depths[1], sees[1] = trees[0][0], trees[1][0]
    places = [6 * row + column for row, width in enumerate(widths) for column in range(width)]
    first = [0, *itertools.accumulate(widths), sum(widths)]
    tables = (torch.tensor(numbers, device=DEVICE) for numbers in (first, [*places, 4, 19]))
    place = replace(packed.place(depths, sees), **dict(zip(("first", "places"), tables, strict=True)))
    found = attend(packed.qkv[: len(places) + 2], place, heads, layer=1)
    assert not found[len(places) :].any(), "what pads is a number"
    for row, (start, width) in enumerate(zip(starts, widths, strict=True)):
        single = Layers(heads, [start], width, dtype, [1 + row])
        single.cache, single.qkv = alone, packed.qkv[first[row] : first[row + 1]].contiguous()
        own = single.place(depths[row : row + 1, :width], sees[row : row + 1, :width])
        assert torch.equal(found[first[row] : first[row + 1]], attend(single.qkv, own, heads, layer=1)), row
    assert torch.equal(packed.cache, alone)


def apart(layers: Layers, place: Place, lengths: Sequence[int]) -> list[torch.Tensor]:
    """Let rows begin with segments of some more slots; their own slots up to there hold no numbers."""
    segments = []
    for number, (row, length) in enumerate(zip(layers.cache_rows, lengths, strict=True)):
        if length:
            segments.append(layers.cache[:, :, row, :, : length + 3 * number].clone())
            layers.cache[:, :, row, :, :length] = torch.nan
            numbers = [segments[-1].data_ptr(), length + 3 * number, length]
            place.segments[number, :3] = torch.tensor(numbers, device=DEVICE)
    return segments


@by_dtype
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["tree", "many rows"])
def test_a_common_beginning_is_read_where_it_is_stored(dtype, shape, kind):
    """Bit by bit as if it were copied: of several rows, each its own or none, right before a border and after it."""
    heads, starts, lengths = SHAPES[shape], [128, 257, 5, 255], [128, 256, 0, 128]
    width, run = (1, attend_rows) if kind == "many rows" else (6, attend)
    starts, lengths = (starts, lengths) if width == 1 or HAS_GPU else (starts[1:3], lengths[1:3])
    copied, shared = (Layers(heads, starts, width, dtype) for _ in range(2))
    inputs = tree(len(starts)) if kind == "tree" else chain(len(starts), width)
    expected = run(copied.qkv, copied.place(*inputs), heads, layer=1)
    place = shared.place(*inputs)
    segments = apart(shared, place, lengths)
    before = [segment.clone() for segment in segments]
    assert torch.equal(run(shared.qkv, place, heads, layer=1), expected)
    for row, length in zip(shared.cache_rows, lengths, strict=True):
        assert torch.equal(shared.cache[:, :, row, :, length:], copied.cache[:, :, row, :, length:])
        assert shared.cache[:, :, row, :, :length].isnan().all()
    assert all(map(torch.equal, segments, before))


@by_dtype
def test_more_rows_a_program_change_no_bit(dtype, monkeypatch):
    """As large matrices have above 32 tokens."""
    x, weight = random(40, 528, dtype=dtype), random(160, 528, dtype=dtype, seed=1)
    products = [(linear, linear_module, "whole_tile"), (gated, gated_module, "gated_tile")]
    few = [product(x, weight) for product, _, _ in products]
    for product, module, name in products:
        large = getattr(module, name)(1 << 14, 40)
        assert large.rows == 128
        monkeypatch.setattr(module, name, lambda num_rows, num_tokens, large=large: large)
        assert torch.equal(product(x, weight), few.pop(0))


@by_dtype
@pytest.mark.parametrize("heads", [heads_of(6, 2, 32, 0.2), heads_of(12, 2, 128, 0.1)], ids=["small", "large"])
def test_attention_does_not_depend_on_the_width(dtype, heads):
    """Slots that are old to one token are new to another: they are read together, or by each token alone."""
    wide = Layers(heads, [100], 12, dtype)
    depths, sees = chain(1, 12)
    expected = attend(wide.qkv, wide.place(depths, sees), heads, layer=0)
    narrow = Layers(heads, [100], 12, dtype)
    for t in range(12):
        layers = Layers(heads, [100 + t], 1, dtype)
        layers.cache, layers.qkv = narrow.cache, wide.qkv[t : t + 1].contiguous()
        assert torch.equal(attend(layers.qkv, layers.place(*chain(1, 1)), heads, layer=0), expected[t : t + 1])
    assert torch.equal(narrow.cache[0], wide.cache[0])


@by_dtype
@pytest.mark.parametrize("start", [30, 100])
@pytest.mark.parametrize("heads", [heads_of(6, 2, 32, 0.2), heads_of(12, 2, 128, 0.1)], ids=["small", "large"])
def test_a_path_of_a_tree_is_a_chain(dtype, start, heads):
    """Bit by bit: a token does not know of the siblings on its way."""
    whole = Layers(heads, [start], 6, dtype)
    found = attend(whole.qkv, whole.place(*tree(1)), heads, layer=0)
    for path in ([0, 1, 2, 3], [0, 4], [0, 1, 5]):
        layers = Layers(heads, [start], len(path), dtype)
        layers.qkv = whole.qkv[path].contiguous()
        assert torch.equal(attend(layers.qkv, layers.place(*chain(1, len(path))), heads, layer=0), found[path])


@by_dtype
@pytest.mark.parametrize("size", [50, 4096, 9000])
@pytest.mark.parametrize("count", [1, 4])
def test_rank(dtype, size, count):
    scores = random(3, size, dtype=dtype) * 3
    scores[1, 10:20] = scores[1].max() + 1  # ties: the lowest token first
    values, tokens, confidence = rank(scores, count)
    order = scores.double().sort(dim=-1, descending=True, stable=True).indices[:, :count]
    assert torch.equal(tokens, order)
    assert torch.equal(values, scores.gather(1, order).float())
    assert torch.allclose(confidence.double(), scores.double().softmax(-1).amax(-1), rtol=1e-5)


def test_rank_of_a_slice_and_of_no_numbers():
    scores = random(3, 50, dtype=DTYPES[0])
    assert torch.equal(rank(scores[:, :20], 1)[1], scores[:, :20].max(-1, keepdim=True).indices)
    scores[1] = torch.nan
    scores[2, 7] = torch.nan
    assert rank(scores, 2)[1].max() < 50
    assert 7 not in rank(scores, 2)[1][2]


def check_outline(scores: torch.Tensor, count: int) -> None:
    """Against float64, and `rank` beside it: the outline must not change what is ranked."""
    ranked, outline = rank_and_outline(scores, count)
    for found, expected in zip(ranked, rank(scores, count), strict=True):
        assert torch.equal(found, expected)
    probs = scores.double().softmax(-1)
    best = probs.topk(min(10, scores.shape[-1]), dim=-1).values
    assert outline.top_probs.shape == (len(scores), 10)
    assert torch.allclose(outline.top_probs[:, : best.shape[-1]].double(), best, rtol=1e-5, atol=1e-30)
    assert not outline.top_probs[:, best.shape[-1] :].any()
    assert torch.allclose(outline.entropy.double(), torch.special.entr(probs).sum(-1), rtol=1e-5, atol=1e-6)
    in_torch = Outline.of(scores)
    assert torch.allclose(outline.top_probs, in_torch.top_probs, rtol=1e-4, atol=1e-30)
    assert torch.allclose(outline.entropy, in_torch.entropy, rtol=1e-4, atol=1e-6)


@by_dtype
@pytest.mark.parametrize(("size", "count"), [(1, 1), (3, 3), (7, 4), (10, 1), (50, 12), (4096, 1), (9000, 4)], ids=str)
def test_outline(dtype, size, count):
    scores = random(3, size, dtype=dtype) * 3
    scores[0, size // 2 :] = scores[0].max() + 1  # ties
    check_outline(scores, count)


@by_dtype
def test_outline_of_a_large_vocabulary(dtype):
    check_outline(random(2, 151936, dtype=dtype) * 4, 1)


@by_dtype
def test_outline_of_what_is_impossible(dtype):
    """Few tokens left, a block without any, a single one: 0 log 0 is 0."""
    scores = random(4, 9000, dtype=dtype)
    scores[0, 5:] = -torch.inf
    scores[1, 4096:8192] = -torch.inf
    scores[2] = -torch.inf
    scores[2, 8999] = 3.0
    scores[3, ::2] = torch.finfo(dtype).min
    check_outline(scores, 2)
    outline = rank_and_outline(scores, 1)[1]
    assert outline.top_probs[2].tolist() == [1.0] + [0.0] * 9
    assert outline.entropy[2] == 0.0


@pytest.fixture
def in_kernels(monkeypatch):
    """Lookaheads decide in kernels, interpreted where there is no GPU; a function that switches back to torch."""

    def use(does: bool) -> None:
        for module in (tpt, disco, top):
            monkeypatch.setattr(module, "runs_triton", lambda device: does)

    use(True)
    return use


def columns_of(sampler: Sampler, indices: list[int]) -> Columns:
    """One column a row, of text 0, 1, ... at these places; nothing is known of the texts."""
    choosing = sampler.choosing([Site(row, index, 0) for row, index in enumerate(indices)], ())
    settings, places = torch.tensor(choosing.settings, device=DEVICE), torch.tensor(indices, device=DEVICE)
    nothing = torch.zeros_like(places)[:, None]
    return even_columns(settings, places, nothing, nothing, nothing + 1, nothing[:, 0])


def drafted(num_rows: int, depth: int, seed: int) -> DraftStats:
    scores = random(num_rows, 60, dtype=torch.float32, seed=seed) * 4
    rows = torch.arange(num_rows, device=DEVICE)
    depths = depth + rows % 3  # rows need not stand at one depth
    return DraftStats(depths, rows * 7 + seed, torch.zeros_like(rows), rows, scores)


@pytest.mark.parametrize("num_rows", [1, 3, 8])
def test_tpt_decides_as_in_torch(in_kernels, num_rows):
    """Two rounds over all depths: the product is kept, and begins again at depth 1."""
    both = [tpt.Tpt(tpt.Tpt.Options(max_tokens=6)) for _ in range(2)]
    decided = []
    for step, depth in enumerate([*range(1, 8), *range(1, 8)]):
        stats = drafted(num_rows, depth, step)
        in_kernels(True)
        found = both[0].wants_more(stats)
        in_kernels(False)
        expected = both[1].wants_more(stats)
        products = [one._all_kept.of(stats.confidence) for one in both]
        assert found.dtype == torch.bool
        assert torch.equal(found, expected)
        assert torch.equal(*products)
        decided.extend(found.tolist())
    assert 0 < sum(decided) < len(decided)


def test_tpt_at_the_edges(in_kernels):
    """A confidence at an edge belongs above it; one that is no number, as in torch, to the last class."""
    values = torch.tensor([0.0, *tpt.EDGES, 1.0, torch.nan])
    confidence = torch.cat([values, torch.nextafter(values, torch.zeros(1))]).to(DEVICE)
    rows = torch.arange(len(confidence), device=DEVICE)
    stats = DraftStats(torch.ones_like(rows), rows, rows, rows, torch.zeros(len(rows), 1, device=DEVICE), confidence)
    products = []
    for does in (True, False):
        in_kernels(does)
        way = tpt.Tpt(tpt.Tpt.Options())
        way.wants_more(stats)
        products.append(way._all_kept.of(confidence))
    assert torch.equal(*products)


def classifier(num_hidden: int, threshold: float = 0.5) -> disco.Classifier:
    arrays = [
        random(*shape, dtype=torch.float32, seed=number).cpu()
        for number, shape in enumerate(((num_hidden, disco.NUM_FEATURES), (num_hidden,), (num_hidden,), ()))
    ]
    return disco.Classifier(*arrays, last_position=40.0, threshold=threshold, max_tokens=6)


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("num_hidden", [1, 20, 64, 100])
def test_disco_decides_as_in_torch(in_kernels, num_rows, num_hidden):
    judge = disco.Disco.of(classifier(num_hidden))
    decided = []
    for depth in range(1, 8):
        stats = drafted(num_rows, depth, depth * 5)
        logits = judge.logits(stats)
        for logit in logits.double():  # at both sides of every logit, so near that a wrong one shows
            for bar in (logit - 1e-3, logit + 1e-3):
                judge._bar = float(bar)
                in_kernels(True)
                found = judge.wants_more(stats)
                in_kernels(False)
                assert torch.equal(found, judge.wants_more(stats))
                decided.extend(found.tolist())
    assert 0 < sum(decided) < len(decided)


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", ["tpt", "disco"])
def test_a_choice_is_the_same_in_torch(in_kernels, name, count, options):
    """The whole path from scores to candidates, confidence and decision."""
    both = [tpt.Tpt(tpt.Tpt.Options()) if name == "tpt" else disco.Disco.of(classifier(20)) for _ in range(2)]
    for depth in (1, 2, 3):
        stats, choices = drafted(3, depth, depth), []
        for does, lookahead in zip((True, False), both, strict=True):
            in_kernels(does)
            sampler = Sampler(GenerateOptions(**options))
            rule = Rule(lookahead, SimpleNamespace(max_candidates=count), Coupled(), sampler.kind)
            columns = columns_of(sampler, stats.index.tolist())
            draw = partial(lambda columns, kind, scores, n: top.draw(scores, columns, kind, n), columns, sampler.kind)
            choices.append(rule(stats, draw))
        assert torch.equal(choices[0].candidates, choices[1].candidates)
        assert torch.equal(choices[0].wants_more, choices[1].wants_more)
        assert torch.allclose(choices[0].confidence, choices[1].confidence, rtol=1e-5)


@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_disco_that_always_or_never_goes_on(in_kernels, threshold):
    judge = disco.Disco.of(classifier(8, threshold))
    assert judge.wants_more(drafted(2, 1, 0)).tolist() == [threshold == 0.0] * 2


def test_disco_does_not_go_on_behind_what_is_no_number():
    network = [part.to(DEVICE) for part in classifier(8).arrays().values()]
    row, probs = torch.ones(1, dtype=torch.int64, device=DEVICE), torch.zeros(1, 10, device=DEVICE)
    entropy = torch.full((1,), torch.nan, device=DEVICE)
    assert not by_classifier(probs, entropy, row, row, network, 40.0, -torch.inf, 6)


@pytest.mark.parametrize("num_rows", [1, 3])
def test_advance_is_the_torch_version(num_rows, monkeypatch):
    """Twice in a row; the last row of four only pads."""
    states = [PassBuffers(Device(DEVICE), 4, 1) for _ in range(2)]
    for buffers in states:
        buffers.data.copy_(torch.arange(len(buffers.data)))
        buffers.header[4] = num_rows
    for turn in range(2):
        choices = torch.tensor([[7], [8], [9], [5]], device=DEVICE) + turn
        for buffers, in_kernel in zip(states, (True, False), strict=True):
            monkeypatch.setattr(plain, "runs_triton", lambda device, found=in_kernel: found)
            plain.advance(choices, buffers)
        assert torch.equal(states[0].data, states[1].data)
    assert states[0].tokens[:, 0].tolist() == [8, 9, 10, 6][:num_rows] + [0] * (4 - num_rows)
    assert states[0].header[4] == num_rows


@pytest.mark.parametrize("num_rows", [1, 3])
def test_feed_is_the_torch_version(num_rows):
    """Three tokens in a row: rows that stop, have nothing to offer, or reach their cap."""
    generator = torch.Generator().manual_seed(0)
    device, count = Device(DEVICE), 3
    states = []
    for _ in range(2):
        buffers, outputs = DraftBuffers(device, num_rows), DraftOutputs(device, num_rows, count, None)
        for name, values in {"caps": 3, "active": 1, "depth": 1, "indices": 5, "starts": 9, "tokens": 4}.items():
            buffers.tensors[name].fill_(values)
        buffers.tensors["caps"][-1] = 2
        states.append((buffers, outputs))
    noted = states[0][1]
    noted.drafted, noted.progress = noted.drafted.to(DEVICE), noted.progress.to(DEVICE)
    for _ in range(3):
        candidates = torch.randint(-1, 9, (num_rows, count), generator=generator).to(DEVICE)
        confidence = torch.rand(num_rows, generator=generator).to(DEVICE)
        wants_more = (torch.rand(num_rows, generator=generator) < 0.8).to(DEVICE)
        (expected, noted), (found, also_noted) = states
        feed(Choice(candidates, confidence, wants_more), expected, noted)
        feed_at_once(
            candidates, confidence, wants_more, also_noted.drafted, also_noted.progress, found.tensors, PAD, DEPTH
        )
        also_noted.settle()
        assert torch.equal(found.data, expected.data)
        assert torch.equal(also_noted.drafted, noted.drafted.cpu())
        assert torch.equal(also_noted.progress, noted.progress.cpu())


def random_tree(generator, size):
    """Few tokens, 0 among them, and siblings that differ."""
    tokens, parents, known = [], [], set()
    for _ in range(3 * size):
        parent, token = (
            int(torch.randint(low, high, (), generator=generator)) for low, high in ((ROOT, len(tokens)), (0, 3))
        )
        if len(tokens) < size and (parent, token) not in known:
            known.add((parent, token))
            tokens.append(token)
            parents.append(parent)
    return Draft(tuple(tokens), tuple(parents), 0)


def verification(drafts, starts, width, cache, cache_rows):
    """The inputs of the pass that verifies these drafts, in which every row has chosen 7 tokens before."""
    rows, is_tree = len(drafts), not all(draft.is_chain for draft in drafts)
    settings = [[row, 5, 2, *[0] * (len(SETTINGS) - 3)] for row in range(rows)]
    choosing = Choosing(ChoiceKind(), settings, [7] * rows).over(drafts)
    tokens = [[1, *draft.tokens, *[0] * (width - 1 - len(draft.tokens))] for draft in drafts]
    tree = tree_mask(drafts, width) if is_tree else None
    return PassRequest(tokens, starts, cache_rows, tree=tree, choosing=choosing)


def draft_buffers(device, request, tokens, starts, caps, rooms, round_, cache):
    """The numbers of a draft after these tokens."""
    emitted = [start - before for start, before in zip(starts, request.starts, strict=True)]
    indices = [7 + count for count in emitted]
    settings = [[*row[:2], round_, *row[3:-2], 0, 0] for row in request.choosing.settings]
    sites, ids = [Site(row, index, round_) for row, index in enumerate(indices)], list(range(len(tokens)))
    task = DraftTask(None, caps, sites, ids, Choosing(ChoiceKind(), settings, indices), rooms)
    buffers = DraftBuffers(device, 4)
    buffers.send_task(task, PassRequest([[token] for token in tokens], starts, request.rows), cache)
    return buffers


@pytest.mark.parametrize("size", [0, 1, 5, 15, 40])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("is_chain", [False, True])
def test_what_is_kept_is_found_moved_and_fed_as_the_host_does_it(size, seed, is_chain):
    """Chains of several lengths and trees, also where what only pads looks like what was chosen."""
    generator, device = torch.Generator().manual_seed(seed), Device(DEVICE)
    cache_rows = ([1, 2, 3], [0, 2, 4])[seed % 2]
    drafts = [random_tree(generator, max(size - row, 0)) for row in range(3)]
    if is_chain:
        drafts = [Draft.chain(draft.tokens) for draft in drafts]
    cache = SlotCache([LayerShape(2, 24, 24)] * 3, 5, 128, dtype=torch.float32, device=DEVICE)
    cache.storage.normal_(generator=None if HAS_GPU else generator)
    starts, width = [9, 30, 2], 1 + max(len(draft.tokens) for draft in drafts)
    request = verification(drafts, starts, width, cache, cache_rows)
    verified = PassBuffers(device, 4, width + 2)
    verified.send_request(request, cache)
    choices = torch.randint(0, 2 if is_chain else 3, (4, width + 2), generator=generator)
    verdicts = [_follow(draft, row) for draft, row in zip(drafts, choices.tolist(), strict=False)]
    caps, rooms = [4, 9, 60], [50, 9, 61]

    after = [start + len(verdict.tokens) for start, verdict in zip(starts, verdicts, strict=True)]
    left = [room - len(verdict.tokens) for room, verdict in zip(rooms, verdicts, strict=True)]
    more = ([min(pair) for pair in zip(caps, left, strict=True)], left, 3, cache)
    expected = draft_buffers(device, request, [verdict.tokens[-1] for verdict in verdicts], after, *more).data.clone()
    moved = cache.storage.clone()
    for row, start, verdict in zip(cache_rows, starts, verdicts, strict=True):
        cache.move(row, [start + 1 + node for node in verdict.nodes], start + 1)
    moved_by_host = cache.storage.clone()
    for is_kernel, is_tested in itertools.product((False, True), repeat=2):
        cache.storage.copy_(moved)
        buffers = draft_buffers(device, request, [1, 1, 1], starts, caps, rooms, 2, cache)
        for name in ("starts", "indices", "depth"):  # a draft has run
            buffers.tensors[name].add_(5)
        found = torch.zeros(4, width + 3, dtype=torch.long, device=DEVICE)
        for row, verdict in enumerate(verdicts if is_tested else ()):
            numbers = [len(verdict.nodes), *(node + 1 for node in verdict.nodes)]
            found[row] = torch.tensor([*numbers, *[0] * (width + 2 - len(numbers)), verdict.tokens[-1]])
        chosen = None if is_tested else choices.to(DEVICE)
        if is_kernel:
            accept_kernels.accept(verified.tensors, chosen, found, buffers.tensors)
            accept_kernels.compact(verified.tensors, found, cache.storage)
        else:
            accept_reference.accept(verified, chosen, found, buffers)
            accept_reference.compact(verified, found, cache, cache_rows)
        assert found[:3, 0].tolist() == [len(verdict.nodes) for verdict in verdicts]
        assert found[:3, -1].tolist() == [verdict.tokens[-1] for verdict in verdicts]
        expected[5] = buffers.data[5]  # the first row's start is for prompts alone
        assert torch.equal(buffers.data, expected)
        assert torch.equal(cache.storage, moved_by_host)
    sees = [None] * 3 if request.tree is None else request.tree.sees
    for row, verdict in enumerate(verdicts):
        walked = accept_reference.follow(request.tokens[row], sees[row], len(drafts[row].tokens), choices[row].tolist())
        assert walked == (len(verdict.tokens), verdict.tokens[-1])
