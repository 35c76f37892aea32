"""Choosing on the device: the same tokens as the engine's own sampler, whatever the settings of each row."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from on_device import DEVICE, HAS_GPU, VOCAB, by_path, even_columns
from selfdraft import GenerateOptions
from selfdraft.engine.sampling import Sampler
from selfdraft.kernels import choose_reference, top
from selfdraft.noise import gumbel
from selfdraft.passes import WORD_EOS, WORD_PROMPT, ChoiceKind, Columns, Drawn, NoiseKey, Site

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def chooser(path: str) -> Any:
    if path == "torch":
        return choose_reference
    from selfdraft.kernels import choose

    return choose


def random_scores(num: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return (torch.randn(num, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3).to(DEVICE, dtype)


def columns_of(samplers: Sequence[Sampler], sites: Sequence[Site], **more: Any) -> Columns:
    """Three columns a row: a chain of two, and a sibling of the second."""
    rows = [sampler.choosing([site], ()) for sampler, site in zip(samplers, sites, strict=True)]
    settings = torch.tensor([row.settings[0] for row in rows], device=DEVICE)
    square = torch.tensor([[0, 1, 1]] * len(rows), device=DEVICE)
    sees = torch.tensor([[1, 3, 5]] * len(rows), device=DEVICE)
    indices = torch.tensor([site.position for site in sites], device=DEVICE)
    cache_rows = torch.arange(len(rows), device=DEVICE)
    return even_columns(settings, indices, square, torch.zeros_like(square), sees, cache_rows, **more)


def drawn_by(path: str, scores: torch.Tensor, samplers: Sequence[Sampler], count: int, salt: int = 0) -> Drawn:
    kinds = [sampler.kind for sampler in samplers]
    truncates = (any(parts) for parts in zip(*(kind[2:5] for kind in kinds), strict=True))
    kind = ChoiceKind(True, salt, *truncates)
    return chooser(path).draw(scores, columns_of(samplers, SITES[: len(samplers)]), kind, count)


SITES = [Site(4, 9, 2, 2**40 + 7), Site(0, 0, 0, 5)]
WARPINGS: list[dict[str, Any]] = [
    dict(zip(("temperature", "top_k", "top_p", "min_p"), values, strict=True))
    for values in itertools.product((0.8, 1.7), (0, 1, 40, 5000), (1.0, 0.9, 0.0), (0.0, 0.05))
]


@by_path
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_draws_as_the_sampler_does(path, dtype):
    """Rows of one pass with settings of their own; a few at random, as the interpreter is slow."""
    cases = WARPINGS if path == "torch" or HAS_GPU else WARPINGS[:: 11 if dtype == torch.float32 else 17]
    for number, options in enumerate(cases):
        scores = random_scores(6, dtype, number)
        samplers = [Sampler(GenerateOptions(**options)), Sampler(GenerateOptions(temperature=0.9))]
        found = drawn_by(path, scores, samplers, 3)
        for column in range(6):
            sampler, place = samplers[column // 3], NoiseKey.of([SITES[column // 3]], DEVICE).ahead(column % 3 > 0)
            values, tokens = sampler.best(sampler.warp(scores[column : column + 1]), 3, place)
            is_real = values[0] > -torch.inf
            assert torch.equal(found.tokens[column][is_real], tokens[0][is_real])
            assert torch.allclose(found.values[column], values[0], rtol=1e-12, atol=1e-5)
        peak = scores.float().softmax(-1).amax(-1)
        assert torch.allclose(found.peak, peak, rtol=1e-4)


@by_path
def test_noise_goes_by_the_round_where_it_is_salted(path):
    scores = torch.zeros(6, VOCAB, device=DEVICE)
    samplers = [Sampler(GenerateOptions(temperature=1.0))] * 2
    found = drawn_by(path, scores, samplers, 1, salt=3)
    for row, site in enumerate(SITES):
        place = NoiseKey.of([site], DEVICE)
        noise = gumbel(place, VOCAB, place.rounds, 3)
        assert found.tokens[row * 3, 0] == noise.argmax()
        value = float(noise.max())
        assert abs(float(found.values[row * 3, 0]) - value) <= 2 * abs(value) * torch.finfo(torch.float64).eps


@by_path
def test_a_row_without_temperature_takes_its_best(path):
    scores = random_scores(6, torch.bfloat16)
    samplers = [Sampler(GenerateOptions(temperature=0.7)), Sampler(GenerateOptions())]
    assert torch.equal(drawn_by(path, scores, samplers, 1).tokens[3:, 0], scores[3:].float().argmax(-1))


@by_path
@pytest.mark.parametrize("options", [{"top_k": 3}, {"top_p": 0.5}, {"top_k": 2, "top_p": 0.99}], ids=str)
def test_what_ties_with_the_last_is_kept(path, options):
    """Scores in half precision tie often; which of them stay does not depend on any order."""
    scores = torch.full((3, VOCAB), -8.0, device=DEVICE, dtype=torch.bfloat16)
    scores[:, [5, 900, 2050]] = 2.0
    sampler = Sampler(GenerateOptions(temperature=1.0, **options))
    drawn = drawn_by(path, scores, [sampler], 4)
    assert all(set(row.tolist()) == {5, 900, 2050} for row in drawn.tokens[:, :3])
    assert (drawn.values[:, 3] == -torch.inf).all()


@pytest.mark.skipif(find_spec("triton") is None, reason="no Triton")
def test_where_the_list_is_too_long_all_scores_are_looked_at(monkeypatch):
    from selfdraft.kernels import truncate

    scores = random_scores(3, torch.bfloat16)
    for options in ({"top_k": 300}, {"top_p": 0.97}, {"top_k": 300, "top_p": 0.9}):
        samplers, found = [Sampler(GenerateOptions(temperature=1.5, **options))], []
        for room in (truncate._MAX_LISTED, 64):
            monkeypatch.setattr(truncate, "_MAX_LISTED", room)
            found.append(truncate.truncation(scores, columns_of(samplers, SITES[:1]), samplers[0].kind).least)
        assert torch.equal(*found)


@pytest.mark.skipif(find_spec("triton") is None, reason="no Triton")
@pytest.mark.parametrize(
    "options", [{"top_p": 0.9}, {"top_k": 1000, "top_p": 0.9}, {"top_k": 50, "top_p": 0.97}], ids=str
)
def test_truncation_keeps_what_it_should(options):
    """To the last token, also where the list leaves out what counts towards the whole."""
    from selfdraft.kernels import truncate

    sampler = Sampler(GenerateOptions(temperature=0.7, **options))
    for scale in (1, 3, 6):
        scores = random_scores(3, torch.float32, scale) * scale / 3
        columns = columns_of([sampler], SITES[:1])
        least = truncate.truncation(scores, columns, sampler.kind).least
        bits = scores.view(torch.int32)
        order = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long() + 2**31
        expected = choose_reference.warped(scores, columns, sampler.kind) > -torch.inf
        assert torch.equal(order >= least[:, None], expected)


@pytest.mark.skipif(find_spec("triton") is None, reason="no Triton")
def test_rough_noise_is_near_enough():
    """To a tenth of what a draw allows for, also at the ends and where its formula changes."""
    import triton
    import triton.language as tl

    from selfdraft.kernels import choose

    @triton.jit
    def rough(bits_ptr, out_ptr, rough_gumbel: tl.constexpr, size: tl.constexpr):
        place = tl.arange(0, size)
        tl.store(out_ptr + place, rough_gumbel(tl.load(bits_ptr + place).to(tl.uint32)))

    bits = torch.randint(0, 2**32, (4096,), generator=torch.Generator().manual_seed(1))
    for place, number in enumerate((0, 2**31, 2**32 - 2**28, 2**32 - 128)):
        bits[place * 512 : place * 512 + 256] = (torch.arange(256) + number - 128).clamp(0, 2**32 - 1)
    found = torch.empty(4096, device=DEVICE)
    rough[(1,)](bits.to(DEVICE), found, choose._rough_gumbel, 4096)
    expected = -(-((bits.double() + 0.5) / 2**32).log()).log()
    assert (found.cpu() - expected).abs().max() < 1e-4


@by_path
def test_banned_by_a_large_number(path):
    """A draw looks closely at few tokens where all scores of a block are equal and far from the best."""
    scores = torch.full((3, VOCAB), -1e9, device=DEVICE)
    scores[:2, 2090] = 3.0
    drawn = drawn_by(path, scores, [Sampler(GenerateOptions(temperature=0.9))], 2)
    expected = drawn_by("torch", scores, [Sampler(GenerateOptions(temperature=0.9))], 2)
    assert torch.equal(drawn.tokens, expected.tokens)


@by_path
@pytest.mark.parametrize("has_biases", [False, True], ids=["", "biases"])
@pytest.mark.parametrize("is_masked", [False, True], ids=["", "mask"])
def test_rules_are_the_samplers(path, has_biases, is_masked):
    """Words of two texts, each with tokens of its own path; at index 0 the pass's first token is the prompt's last."""
    bias = {5: 2.0, 17: -3.5} if has_biases else {}
    options = {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.25, "min_new_tokens": 10}
    sampler = Sampler(GenerateOptions(**options, logit_bias=bias, max_new_tokens=20), eos_tokens=(11, 12))
    prompts, generated = [[1, 2, 3, 9], [7, 5]], [[17, 17, 5, 2, 4, 4, 4, 8, 20], []]
    words = torch.zeros(4, VOCAB, dtype=torch.int32, device=DEVICE)  # of other texts, too
    biases = torch.zeros(4, VOCAB, device=DEVICE)
    cache_rows = torch.tensor([1, 3], device=DEVICE)
    for row, prompt, text in zip((1, 3), prompts, generated, strict=True):
        words[row, prompt] = WORD_PROMPT
        words[row, [11, 12]] |= WORD_EOS
        for token in text[:-1]:
            words[row, token] += 1
        for token, value in bias.items():
            biases[row, token] = value
    allowed = torch.randint(-(2**31), 2**31, (2, 3, 66), generator=torch.Generator().manual_seed(3), dtype=torch.int32)
    path_tokens = torch.tensor([[20, 4, 30], [5, 6, 7]], device=DEVICE)
    more = {"words": words, "biases": biases if has_biases else None, "allowed": allowed.to(DEVICE)}
    columns = columns_of([sampler] * 2, [Site(0, 9, 0), Site(1, 0, 0)], **more)
    columns = replace(columns, path=path_tokens, rows=cache_rows)
    scores = random_scores(6, torch.float32)
    found = chooser(path).processed(scores, columns, ChoiceKind(has_rules=True, is_masked=is_masked))
    token = torch.arange(VOCAB)
    for column in range(6):
        row, own = column // 3, [[], [1], [2]][column % 3]
        prefix = [*prompts[row], *generated[row], *(int(path_tokens[row, place]) for place in own)]
        index = torch.tensor([len(prefix) - len(prompts[row])], device=DEVICE)
        expected = sampler.apply_prefix_rules(scores[column : column + 1], [prefix], index)[0]
        if is_masked:
            is_allowed = (allowed[row, column % 3][token // 32] >> (token % 32) & 1) == 1
            expected = expected.masked_fill(~is_allowed.to(DEVICE), -torch.inf)
        assert torch.allclose(found[column], expected, rtol=1e-6, atol=1e-6)


@by_path
def test_packed_lines_choose_as_their_columns_do(path):
    """Rows of several sizes, and a line that only pads."""
    options = {"temperature": 0.9, "top_k": 40, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.2}
    samplers = [Sampler(GenerateOptions(**options, seed=3)), Sampler(GenerateOptions(temperature=1.4))]
    words = torch.randint(0, 3, (2, VOCAB), generator=torch.Generator().manual_seed(4)).int().to(DEVICE)
    allowed = torch.randint(-(2**31), 2**31, (2, 3, 66), generator=torch.Generator().manual_seed(3), dtype=torch.int32)
    columns = columns_of(samplers, SITES, words=words, allowed=allowed.to(DEVICE))
    columns = replace(columns, path=torch.tensor([[20, 4, 30], [5, 6, 7]], device=DEVICE))
    kind, scores = (
        ChoiceKind(True, 3, True, True, True, has_rules=True, is_masked=True),
        random_scores(6, torch.float32),
    )
    first, places = (torch.tensor(numbers, device=DEVICE) for numbers in ([0, 2, 5], [0, 1, 3, 4, 5, 2]))
    packed = replace(columns, first=first, places=places)
    whole, lines = (chooser(path).processed(*each, kind) for each in ((scores, columns), (scores[places], packed)))
    assert torch.equal(lines, whole[places])
    drawn = [chooser(path).draw(*each, kind, 2) for each in ((whole, columns), (lines, packed))]
    for expected, found in zip(*drawn, strict=True):
        assert torch.equal(found, expected[places])


@by_path
def test_what_is_impossible_is_never_chosen(path):
    scores = torch.full((3, VOCAB), -torch.inf, device=DEVICE)
    scores[0, 2099] = -50.0
    scores[1, [3, 4]] = torch.tensor([torch.nan, 1.0], device=DEVICE)
    scores[2, 8] = 0.0
    if path == "torch":
        scores = scores.nan_to_num(nan=-torch.inf, neginf=-torch.inf)
    for options in ({}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.5}):
        drawn = drawn_by(path, scores, [Sampler(GenerateOptions(temperature=1.0, **options))], 2)
        assert drawn.tokens[:, 0].tolist() == [2099, 4, 8]
        assert (drawn.values[:, 1] == -torch.inf).all()


@by_path
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [0, 1, 20])
def test_log_probabilities(path: str, dtype: torch.dtype, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of tokens from the likeliest to the least likely, by the raw scores, among them a distribution of one token."""
    monkeypatch.setattr(top, "runs_triton", lambda _: path == "triton")
    scores = random_scores(5, dtype)
    scores[4, 9] = 60.0
    order = scores.argsort(-1, descending=True)
    tokens = torch.stack([order[row, place] for row, place in enumerate((0, 3, 100, VOCAB - 1, 1))])
    expected = scores.double().log_softmax(-1)
    own, values, best = top.logprobs(scores, tokens, count).split((1, count, count), -1)
    torch.testing.assert_close(own, expected.gather(1, tokens[:, None]), atol=4e-6, rtol=1e-6)
    torch.testing.assert_close(values, expected.topk(count).values, atol=4e-6, rtol=1e-6)
    torch.testing.assert_close(values, expected.gather(1, best.long()), atol=4e-6, rtol=1e-6)
    assert count == 0 or own[0] == values[0, 0]
    assert all(len(set(row)) == count for row in best.tolist())


def test_log_probabilities_of_a_small_vocabulary() -> None:
    assert top.logprobs(torch.zeros(1, 3), torch.tensor([2]), 20).shape == (1, 7)
