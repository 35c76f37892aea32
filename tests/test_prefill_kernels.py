"""Packed chunks of prompts against the same calculation in float64. On a GPU, or in Triton's interpreter."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from heads import FEATURES, heads_of, norms_of, prepared, scored
from needs_triton import DEVICE, HAS_GPU
from selfdraft.kernels import prefill
from selfdraft.kernels.features import Heads
from selfdraft.models.cache import LayerShape, SlotCache
from selfdraft.models.gpu.memory import Device, PromptBuffers
from selfdraft.passes import PassRequest

DTYPES = (torch.bfloat16, torch.float16) if HAS_GPU else (torch.float32,)
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
SHAPES = {
    "grouped": heads_of(6, 2, 32, 32**-0.5),
    "single": heads_of(2, 2, 64, 0.3),
    "window": heads_of(4, 2, 32, 0.25, window=9),
    "wide window": heads_of(2, 1, 32, 0.25, window=70),
}
LAYER, NUM_POSITIONS = 1, 512


class Packed:
    """Chunks (cache row, first slot, number of tokens) on a cache with something in it."""

    def __init__(self, heads: Heads, chunks: Sequence[tuple[int, int, int]], dtype: torch.dtype, padding: int) -> None:
        generator = torch.Generator().manual_seed(7)
        self.heads, self.chunks = heads, chunks
        num_tokens = sum(length for _, _, length in chunks)
        shape = LayerShape(heads.num_kv_heads, heads.dim, heads.dim)
        self.cache = SlotCache([shape] * 2, 5, NUM_POSITIONS, dtype=dtype, device=DEVICE)
        self.cache.storage.copy_(torch.randn(self.cache.storage.shape, generator=generator))
        size = (heads.num_heads + 2 * heads.num_kv_heads) * heads.dim
        self.qkv = torch.randn(num_tokens + padding, size, generator=generator).to(DEVICE, dtype)
        rows, starts, lengths = zip(*chunks, strict=True)
        queries = prefill.queries_of(num_tokens + padding)
        buffers = PromptBuffers(Device(torch.device(DEVICE)), num_tokens + padding, 1 + len(chunks), queries)
        buffers.send_request(PassRequest([[0] * length for length in lengths], starts, rows), self.cache)
        self.tensors = buffers.tensors

    def run(self) -> torch.Tensor:
        """[tokens, heads, dim]; keys and values are stored."""
        qkv, tensors = self.qkv.clone(), self.tensors
        places = (tensors[name] for name in ("header", "chunks", "slots"))
        prefill.rotate_and_store(qkv, *places, self.heads, LAYER)
        names = ("header", "segments", "slots", "blocks")
        mixed = prefill.attend(qkv, *(tensors[name] for name in names), self.heads, LAYER)
        return mixed[: sum(length for _, _, length in self.chunks)].unflatten(-1, (-1, self.heads.dim))

    def expected(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What `run` returns, and all that is stored after it."""
        heads, storage, found, first = self.heads, self.cache.storage.double().clone(), [], 0
        sizes = [heads.num_heads, heads.num_kv_heads, heads.num_kv_heads]
        for row, start, length in self.chunks:
            tokens = self.qkv[first : first + length].double().unflatten(-1, (-1, heads.dim))
            query, key, value = tokens.split(sizes, 1)
            slots = torch.arange(start + length, device=DEVICE)
            own, (keys, values) = slots[start:], storage[LAYER, :, row]
            query, key = prepared(query, heads, heads.query_norm, own), prepared(key, heads, heads.key_norm, own)
            keys[:, own], values[:, own] = key.transpose(0, 1), value.transpose(0, 1)
            ages = own[:, None] - slots
            mask = (ages >= 0) & (ages < (heads.window or NUM_POSITIONS))
            group = heads.num_heads // heads.num_kv_heads
            seen, mixed = (part[:, slots].repeat_interleave(group, 0) for part in (keys, values))
            scores = scored(torch.einsum("thd,hsd->hts", query, seen), heads)
            probs = scores.masked_fill(~mask, -torch.inf).softmax(-1)
            found.append(torch.einsum("hts,hsd->thd", probs, mixed))
            first += length
        return torch.cat(found), storage


def check(packed: Packed, dtype: torch.dtype) -> None:
    expected, stored = packed.expected()
    found = packed.run()
    for part, value in ((found, expected), (packed.cache.storage, stored)):
        assert float((part.double() - value).norm() / value.norm()) < TOLERANCE[dtype]
    is_changed = (stored != packed.cache.storage.double()).any(-1).any(-2)
    assert not is_changed[0].any(), "the other layer"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("seed", "splits"), [(0, 16), (1, 2), (2, 1)])
def test_chunks_of_texts_share_a_pass(
    dtype: torch.dtype, shape: str, seed: int, splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any length, after nothing or something, in any rows; what pads them is stored nowhere."""
    monkeypatch.setattr(prefill, "_MAX_SPLITS", splits)
    rng = random.Random(seed)
    rows = sorted(rng.sample(range(5), rng.randrange(1, 5)))
    chunks = [(row, rng.choice((0, 0, 1, 63, 64, 130)), rng.choice((1, 2, 5, 9, 66))) for row in rows]
    check(Packed(SHAPES[shape], chunks, dtype, padding=rng.choice((0, 3))), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("feature", FEATURES)
def test_features_of_attention(dtype: torch.dtype, feature: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill, "_MAX_SPLITS", 2)
    check(Packed(FEATURES[feature], [(1, 0, 5), (3, 60, 9)], dtype, padding=1), dtype)


@pytest.mark.parametrize("is_gemma", [False, True])
def test_norms_of_heads_round_where_the_models_do(is_gemma: bool) -> None:
    """In half precision, Llama's before and after the weight, Gemma's at the end: almost every bit."""
    heads = replace(FEATURES["no rotary"], **norms_of(32, is_gemma=is_gemma))
    packed = Packed(heads, [(0, 0, 64)], torch.float16, padding=0)
    keys = packed.qkv.unflatten(-1, (-1, heads.dim))[:, 2:4].float()
    packed.run()
    scaled = keys * torch.rsqrt(keys.square().mean(-1, keepdim=True) + heads.key_norm.eps)
    weight = heads.key_norm.weight
    rounded_twice, rounded_once = scaled.half().float() * weight, scaled * (1 + weight)
    expected = (rounded_once if is_gemma else rounded_twice).half()
    is_same = packed.cache.storage[LAYER, 0, 0, :, :64].transpose(0, 1) == expected
    assert is_same.float().mean() > 0.999


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_long_chunk_of_larger_blocks(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill, "queries_of", lambda num_tokens: 128)
    check(Packed(SHAPES["grouped"], [(1, 0, 3), (3, 200, 150)], dtype, padding=1), dtype)


def test_a_text_does_not_know_its_neighbours() -> None:
    """Bit by bit."""
    heads, chunks = SHAPES["grouped"], [(0, 70, 3), (2, 150, 7), (4, 1, 2)]
    together = Packed(heads, chunks, DTYPES[0], padding=4)
    alone = Packed(heads, chunks[1:2], DTYPES[0], padding=0)
    alone.qkv, alone.cache.storage[:] = together.qkv[3:10].clone(), together.cache.storage
    assert torch.equal(together.run()[3:10], alone.run())
    assert torch.equal(together.cache.storage[:, :, 2], alone.cache.storage[:, :, 2])


@pytest.mark.parametrize(
    ("num_tokens", "num_heads", "splits"), [(64, 12, 16), (128, 12, 8), (256, 12, 4), (512, 12, 2), (1024, 12, 1)]
)
def test_few_tokens_have_programs_enough(num_tokens: int, num_heads: int, splits: int) -> None:
    assert prefill.splits_of(num_tokens, num_heads) == splits
    assert prefill.splits_of(num_tokens, 4 * num_heads) == max(1, splits // 4)
    assert prefill.splits_of(4096, num_heads) == 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_common_beginning_is_read_where_it_is_stored(dtype: torch.dtype, shape: str) -> None:
    """Bit by bit as if it were copied: two rows share one, one has another, one has none."""
    chunks, lengths = [(0, 128, 3), (1, 300, 5), (3, 200, 66), (4, 70, 2)], [128, 256, 128, 0]
    copied, shared = (Packed(SHAPES[shape], chunks, dtype, padding=1) for _ in range(2))
    storage = shared.cache.storage
    segments = [storage[:, :, row, :, :length].clone() for row, length in ((0, 150), (1, 256))]
    for one in (copied, shared):
        one.cache.storage[:, :, 3, :, :128] = segments[0][..., :128, :]
    for number, (segment, length) in enumerate(zip((0, 1, 0, 0), lengths, strict=True)):
        storage[:, :, chunks[number][0], :, :length] = torch.nan
        part = segments[segment]
        shared.tensors["segments"][number, :3] = torch.tensor([part.data_ptr(), part.shape[-2], length])
    assert torch.equal(shared.run(), copied.run())
    for (row, *_), length in zip(chunks, lengths, strict=True):
        assert torch.equal(storage[:, :, row, :, length:], copied.cache.storage[:, :, row, :, length:])
        assert storage[:, :, row, :, :length].isnan().all()
