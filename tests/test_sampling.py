"""Sampling: the emitted text has exactly the target's processed distribution, and the noise is what it claims."""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from on_device import HAS_GPU
from pico import pico
from selfdraft import Engine, GenerateOptions, OptionError, SkipSet
from selfdraft.chains import Choice, Draw
from selfdraft.drafted import DraftStats
from selfdraft.engine import engine as engine_module
from selfdraft.engine.draft import GroupDraft, Rule
from selfdraft.engine.metrics import compare, contest_for
from selfdraft.engine.sampling import NOISE_SPREAD, Sampler, check_processors
from selfdraft.kernels import reject_reference
from selfdraft.kernels.top import reject
from selfdraft.models.gpu import plain
from selfdraft.models.gpu.runner import GraphRunner
from selfdraft.noise import _mix, gumbel, gumbel_at, keys_of, mixed
from selfdraft.passes import NoiseKey, PassRequest, Site
from selfdraft.registry import ACCEPTANCES, TREES
from selfdraft.types import PAD
from tape import TapeRecorder

TINY_VOCAB = 8
NUM_DRAWS = 2048
PROMPT = [1, 2, 3]
SKIP = "a0,m0,a4"


def flat(model: Any) -> Any:
    """The same model, less sure of itself: many texts are likely."""
    model = copy.deepcopy(model)
    model.lm_head.weight.data *= 0.3
    return model


def p_value(observed: Mapping[Any, int], expected: Mapping[Any, float], num_draws: int) -> float:
    """Pearson's chi-square; outcomes expected fewer than 5 times are pooled."""
    large = [key for key, share in expected.items() if share * num_draws >= 5]
    pairs = [(observed.get(key, 0), expected[key] * num_draws) for key in large]
    rest = num_draws - sum(count for count, _ in pairs), num_draws - sum(share for _, share in pairs)
    if rest[1] >= 1:
        pairs.append(rest)
    statistic = sum((count - share) ** 2 / share for count, share in pairs)
    return float(torch.special.gammaincc(torch.tensor((len(pairs) - 1) / 2.0), torch.tensor(statistic / 2.0)))


SETTINGS = {
    "fixed": {"skip": SKIP, "tokens": 2},
    "lookup": {"min_ngram": 1},
    "model": {"source": flat(pico("gpt2", vocab_size=TINY_VOCAB))},
    "siblings": {"table": "0.3:4,0.5:3,1:2", "lookup": 2},
}


def new_engine(device: str = "cpu") -> Engine:
    """A draft that is often wrong: `test_draft_and_target_disagree` says how often."""
    model = flat(pico("llama", vocab_size=TINY_VOCAB)).to(device)
    return Engine(model, strategy="fixed", lookahead="fixed", settings=SETTINGS)


tiny_engine = functools.cache(new_engine)


def recorded_engine() -> Engine:
    """A new one: what it has recorded stays as it was then."""
    with mock.patch.object(
        engine_module, "make_runner", lambda model, *_: GraphRunner(model, make_recorder=TapeRecorder)
    ):
        return new_engine()


ENGINES = {"eager": tiny_engine, "recorded": recorded_engine, "gpu": lambda: new_engine("cuda")}
on_both = pytest.mark.parametrize("engine", ["eager", pytest.param("recorded", marks=pytest.mark.full)])
needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="no GPU")
on_recordings = pytest.mark.parametrize("engine", ["recorded", pytest.param("gpu", marks=needs_gpu)])


def texts(options: Mapping[str, Any], num_tokens: int, engine: str = "eager", **method: Any) -> list[tuple[int, ...]]:
    """NUM_DRAWS independent texts: the rows of batches, each row its own sequence."""
    rows, made = 256, ENGINES[engine]()
    found: list[tuple[int, ...]] = []
    for first in range(0, NUM_DRAWS, rows):
        batch = made.generate([PROMPT] * rows, max_new_tokens=num_tokens, sequence=first, **options, **method)
        found.extend(generation.tokens for generation in batch)
    return found


@torch.inference_mode()
def exact_distribution(options: GenerateOptions, num_tokens: int) -> dict[tuple[int, ...], float]:
    """Probability of every text of `num_tokens` tokens, from `model(...)` and an independent softmax."""
    model, sampler = tiny_engine().model, Sampler(options)
    shares: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(num_tokens):
        prefixes = list(shares)
        scores = model(torch.tensor([[*PROMPT, *prefix] for prefix in prefixes])).logits[:, -1]
        probs = sampler.warp(scores).double().softmax(-1)
        shares = {
            (*prefix, token): shares[prefix] * float(row[token])
            for prefix, row in zip(prefixes, probs, strict=True)
            for token in range(TINY_VOCAB)
            if row[token] > 0
        }
    return shares


OPTIONS = [{"temperature": 1.0}, {"temperature": 0.6, "top_p": 0.9}]
METHODS = {
    "chain": {},
    "tree": {"tree": "siblings"},
    "small tree": {"tree": "siblings", "settings": {"siblings": {"table": "0.3:4,0.5:3,1:2", "max_nodes": 4}}},
    "lookup": {"drafter": "lookup", "tree": "siblings"},
    "ngram-pool": {"drafter": "ngram-pool"},
    "model": {"drafter": "model", "tree": "siblings"},
}
TRIED = [("coupled", "tree"), *(("rejection", method) for method in METHODS)]


def share_of_texts(options: Mapping[str, Any], seed: int = 11, **method: Any) -> float:
    """p-value of the texts' distribution. Three tokens: accepted and refused drafts and bonus tokens all count."""
    expected = exact_distribution(GenerateOptions(**options), 3)
    found = texts({**options, "seed": seed}, 3, **method)
    assert len(set(found)) > 20, "too few different texts to say anything"
    if not set(found) <= set(expected):
        return 0.0  # a text the target cannot produce
    return p_value(Counter(found), expected, NUM_DRAWS)


@pytest.mark.parametrize(
    ("options", "acceptance", "name"),
    [
        (options, *tried)
        for options in OPTIONS
        for tried in TRIED
        if options is OPTIONS[1] or tried[1] in ("chain", "tree")
    ],
    ids=str,
)
def test_texts_have_the_targets_distribution(options: dict[str, Any], acceptance: str, name: str) -> None:
    assert share_of_texts(options, acceptance=acceptance, **METHODS[name]) > 1e-3


@on_recordings
@pytest.mark.parametrize("name", [pytest.param("chain", marks=pytest.mark.full), "tree"])
def test_recorded_texts_have_the_targets_distribution(name: str, engine: str) -> None:
    assert share_of_texts(OPTIONS[1], acceptance="rejection", engine=engine, **METHODS[name]) > 1e-3


@needs_gpu
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_texts_chosen_by_kernels_have_the_targets_distribution(options: dict[str, Any]) -> None:
    assert share_of_texts(options, engine="gpu", **METHODS["tree"]) > 1e-3


@torch.inference_mode()
def test_draft_and_target_disagree() -> None:
    """Total variation between both distributions after the prompt and its continuations, on average."""
    runner, inputs = tiny_engine()._runner, torch.tensor([[*PROMPT, token] for token in range(TINY_VOCAB)])
    requests = [PassRequest(inputs, [0] * TINY_VOCAB, skip=SkipSet.parse(skip)) for skip in ("", SKIP)]
    passes = [runner.forward(request, runner.new_cache(TINY_VOCAB, 8)) for request in requests]
    target_probs, draft_probs = (one.scores.softmax(-1) for one in passes)
    assert 0.5 * (target_probs - draft_probs)[:, 2:].abs().sum(-1).mean() > 0.3


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("temperature", [0.02, 0.005])
def test_near_greedy_rejection_says_nothing_impossible(temperature: float, tree: str) -> None:
    """Probabilities of what is left after the first draw are far below what a float can hold."""
    engine = Engine(pico("llama"), settings={"uniform": {"ratio": 0.6}, "siblings": {"table": "1:4"}})
    options = {"temperature": temperature, "acceptance": "rejection", "tree": tree, "max_new_tokens": 60}
    for generation in engine.generate([PROMPT, [7]], **options):
        tokens = [*([7] if generation.num_prompt_tokens == 1 else PROMPT), *generation.tokens]
        scores = engine.model(torch.tensor([tokens])).logits[0, generation.num_prompt_tokens - 1 : -1].double()
        probs = (scores / temperature).softmax(-1).gather(1, torch.tensor(generation.tokens)[:, None])
        assert probs.min() > 1e-6


@pytest.mark.parametrize("seed", [0, 7, 2**32 + 3, 2**64 - 1])
def test_what_is_mixed_beforehand_gives_the_same_noise(seed: int) -> None:
    indices = torch.arange(3) * 5
    places = NoiseKey.of([Site(row, 5 * row, 0, seed) for row in range(3)], torch.device("cpu"))
    keys = torch.tensor([keys_of(seed, sequence) for sequence in range(3)]).unbind(1)
    first, second = (mixed(key, indices, 2) for key in keys)
    assert torch.equal(gumbel_at((first, second), 50), gumbel(places, 50, 2))


@pytest.mark.full
class TestPlantedDefects:
    """Mistakes that published code makes: the distribution test sees each of them."""

    @on_both
    def test_bonus_token_without_temperature(self, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
        def last_word(self: Any) -> torch.Tensor:
            is_bonus = self.num_kept == self._columns.settings[:, -2]  # all nodes of a chain
            # As if drawn at temperature 1 instead of 0.6.
            self.left = torch.where(is_bonus[:, None], self.left**0.6, self.left)
            return original(self)

        original = reject_reference._Walks.last_word
        monkeypatch.setattr(reject_reference._Walks, "last_word", last_word)
        assert share_of_texts({"temperature": 0.6}, acceptance="rejection", engine=engine) < 1e-9

    @on_both
    def test_the_last_word_drawn_from_all_of_the_target(self, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
        """And not from what the refused token left of it."""
        monkeypatch.setattr(reject_reference, "normalised", lambda probs, otherwise: otherwise)
        assert share_of_texts({"temperature": 1.0}, acceptance="rejection", engine=engine) < 1e-9

    @pytest.mark.full
    @on_recordings
    def test_a_draft_tested_by_another_distribution(self, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
        """Not by the one that it was drawn from."""

        def flattened(scores: torch.Tensor, drawn_from: torch.Tensor, *more: Any) -> torch.Tensor:
            return reject(scores, drawn_from * -1.0, *more)

        monkeypatch.setattr(plain, "reject", flattened)
        assert share_of_texts({"temperature": 0.6}, acceptance="rejection", engine=engine) < 1e-9

    @pytest.mark.parametrize("acceptance", ACCEPTANCES)
    def test_a_pad_counted_as_a_token(self, monkeypatch: pytest.MonkeyPatch, acceptance: str) -> None:
        """Coupled acceptance does not care what is offered; rejection must know that it was drawn."""

        def levels(self: GroupDraft, *arguments: Any) -> list[list[int]]:
            return [[*level, *[0] * (6 - len(level))] for level in original(self, *arguments)]

        original = GroupDraft._levels
        monkeypatch.setattr(GroupDraft, "_levels", levels)
        settings = {"siblings": {"table": "0.01:6,1:1"}}  # room for six, one is wanted: five pads
        p = share_of_texts({"temperature": 1.0}, acceptance=acceptance, tree="siblings", settings=settings)
        assert p > 1e-3 if acceptance == "coupled" else p < 1e-9

    @pytest.mark.parametrize(
        "engine",
        ["eager", pytest.param("recorded", marks=pytest.mark.full), pytest.param("gpu", marks=needs_gpu)],
    )
    def test_a_drafted_token_withdrawn_for_its_own_probability(
        self, monkeypatch: pytest.MonkeyPatch, engine: str
    ) -> None:
        def choose(self: Rule, stats: DraftStats, draw: Draw) -> Choice:
            choice = original(self, stats, draw)
            assert stats.scores is not None
            own = stats.scores.softmax(-1).gather(1, choice.candidates)
            return replace(choice, candidates=torch.where(own < 0.25, PAD, choice.candidates))

        original = Rule.__call__
        monkeypatch.setattr(Rule, "__call__", choose)
        assert share_of_texts({"temperature": 1.0}, acceptance="rejection", engine=engine) < 1e-9


def test_the_distribution_test_sees_an_ignored_temperature() -> None:
    """Texts drawn at temperature 1 are not taken for texts at 0.6."""
    expected = exact_distribution(GenerateOptions(temperature=0.6), 3)
    found = texts({"temperature": 1.0, "seed": 11}, 3)
    assert p_value(Counter(found), expected, NUM_DRAWS) < 1e-9


def noise(seed: int = 0, sequences: Sequence[int] = (0,), indices: Sequence[int] = (0,), vocab: int = 4096) -> Any:
    return noise_of([Site(sequence, index, 0, seed) for sequence, index in zip(sequences, indices, strict=True)], vocab)


def noise_of(sites: list[Site], vocab: int) -> torch.Tensor:
    return gumbel(NoiseKey.of(sites, torch.device("cpu")), vocab)


def uniforms(values: torch.Tensor) -> torch.Tensor:
    return torch.exp(-torch.exp(-values)).flatten()


@pytest.mark.parametrize(
    "values",
    [
        noise(vocab=65536),
        noise(seed=1, sequences=range(64), indices=[0] * 64, vocab=1024),
        noise(seed=2**63, sequences=[3] * 4096, indices=range(4096), vocab=16),
        noise_of([Site(0, 0, 0, seed) for seed in range(4096)], 16),
    ],
    ids=["tokens", "sequences", "indices", "seeds"],
)
def test_noise_is_uniform_and_uncorrelated(values: torch.Tensor) -> None:
    draws = uniforms(values)
    counts = Counter((draws * 64).long().tolist())
    assert p_value(counts, dict.fromkeys(range(64), 1 / 64), len(draws)) > 1e-3
    pairs = Counter(zip((draws[:-1] * 16).long().tolist(), (draws[1:] * 16).long().tolist(), strict=True))
    cells = dict.fromkeys(itertools.product(range(16), repeat=2), 1 / 256)
    assert p_value(pairs, cells, len(draws) - 1) > 1e-3


def test_noise_depends_on_every_argument_and_on_nothing_else() -> None:
    base = noise(5, [2], [3])
    assert torch.equal(base, noise(5, [2, 9], [3, 1])[:1])
    for other in (noise(6, [2], [3]), noise(5 + 2**32, [2], [3]), noise(5, [3], [2]), noise(5, [2], [4])):
        assert not torch.isclose(base, other).any(-1).all()
    assert torch.isfinite(base).all()


def test_the_integer_hash_never_changes() -> None:
    """Texts made with a seed must stay reproducible across versions and devices."""
    assert _mix(torch.tensor([0, 1, 2, 0xFFFFFFFF])).tolist() == [0, 1753845952, 3507691905, 1734902346]
    assert [round(value, 6) for value in noise(7, [1], [2], 4)[0].tolist()] == [0.170499, 1.749803, 1.549813, 0.852229]


@pytest.mark.parametrize("options", [{}, {"top_k": 50}, {"top_p": 0.9}, {"min_p": 0.1}], ids=str)
@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize("scale", [1.0, 6.0, 60.0])
def test_winners_of_a_shortlist_are_winners_of_the_whole(options: dict[str, Any], count: int, scale: float) -> None:
    """Also where the best token leaves the others next to nothing, and these must be drawn among all of them."""
    scores = scale * torch.randn(16, 5000, generator=torch.Generator().manual_seed(count))
    scores[:8, 7] += 100.0
    sampler, rows = Sampler(GenerateOptions(temperature=1.0, **options)), torch.arange(16)
    places = NoiseKey(rows, rows, rows, rows)
    values, tokens = sampler.best(sampler.warp(scores), count, places)
    expected = sampler.contest(scores, places).topk(count)
    possible = expected.values > -torch.inf
    assert torch.equal(values, expected.values)
    assert torch.equal(tokens[possible], expected.indices[possible])


def test_no_noise_is_outside_its_bounds() -> None:
    extremes = [-math.log(-math.log(bits)) for bits in (0.5 / 2**32, (2**32 - 0.5) / 2**32)]
    assert extremes[1] - extremes[0] < NOISE_SPREAD


WARPERS = [
    ({"temperature": 0.7}, [TemperatureLogitsWarper(0.7)]),
    ({"temperature": 1.0, "top_k": 5}, [TopKLogitsWarper(5)]),
    ({"temperature": 1.3, "top_p": 0.6}, [TemperatureLogitsWarper(1.3), TopPLogitsWarper(0.6)]),
    ({"temperature": 1.0, "min_p": 0.2}, [MinPLogitsWarper(0.2)]),
    (
        {"temperature": 0.9, "top_k": 12, "top_p": 0.8, "min_p": 0.1},
        [TemperatureLogitsWarper(0.9), TopKLogitsWarper(12), TopPLogitsWarper(0.8), MinPLogitsWarper(0.1)],
    ),
]


@pytest.mark.parametrize(("options", "warpers"), WARPERS, ids=lambda value: str(value)[:60])
def test_truncation_equals_transformers(options: dict[str, Any], warpers: list[Any]) -> None:
    scores = torch.randn(32, 200, generator=torch.Generator().manual_seed(0)) * 3
    expected = LogitsProcessorList(warpers)(torch.zeros(32, 1, dtype=torch.long), scores)
    assert torch.allclose(Sampler(GenerateOptions(**options)).warp(scores), expected)


PREFIXES = ([4, 9, 4, 30], [7], [30, 31, 9, 9, 9, 31, 2])
NUM_GENERATED = (2, 0, 5)


def ruled(scores: torch.Tensor, eos: tuple[int, ...] = (), **options: Any) -> torch.Tensor:
    sampler = Sampler(GenerateOptions(**options), eos)
    assert sampler.has_prefix_rules
    return sampler.apply_prefix_rules(scores, PREFIXES, torch.tensor(NUM_GENERATED))


def test_repetition_penalty_and_bias_equal_transformers() -> None:
    """In rows of different lengths: what fills up the shorter ones is not seen."""
    scores = torch.randn(3, 50, generator=torch.Generator().manual_seed(1))
    bias, penalty = SequenceBiasLogitsProcessor([[[4], -1.5], [[31], 2.0]]), RepetitionPenaltyLogitsProcessor(1.7)
    for row, prefix in enumerate(PREFIXES):
        expected = LogitsProcessorList([bias, penalty])(torch.tensor([prefix]), scores[row : row + 1])[0]
        found = ruled(scores, repetition_penalty=1.7, logit_bias={31: 2.0, 4: -1.5})[row]
        assert torch.equal(found, expected)


@pytest.mark.parametrize(
    "options",
    [
        {"presence_penalty": 1.5},
        {"frequency_penalty": -0.75},
        {
            "frequency_penalty": 0.5,
            "presence_penalty": 0.25,
            "repetition_penalty": 1.25,
            "logit_bias": {9: 1.0, 4: 4.0},
        },
        {"min_new_tokens": 3, "logit_bias": {31: 100.0}, "presence_penalty": -2.0},
    ],
    ids=str,
)
def test_rules_of_the_prefix_token_by_token(options: dict[str, Any]) -> None:
    """As they are defined, one token at a time: presence and frequency count what was generated, not the prompt."""
    scores, eos = torch.randn(3, 50, generator=torch.Generator().manual_seed(2)).bfloat16(), (31, 9)
    made = GenerateOptions(**options)
    found = ruled(scores, eos, **options).tolist()
    for row, (prefix, num_generated) in enumerate(zip(PREFIXES, NUM_GENERATED, strict=True)):
        generated = prefix[len(prefix) - num_generated :]
        for token, score in enumerate(scores[row].tolist()):
            if token in eos and num_generated < made.min_new_tokens:
                score = -math.inf
            score += dict(made.logit_bias).get(token, 0.0)
            if token in prefix:
                score = score * made.repetition_penalty if score < 0 else score / made.repetition_penalty
            score -= made.frequency_penalty * generated.count(token) + made.presence_penalty * (token in generated)
            assert found[row][token] == pytest.approx(score, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("size", [12, 5000], ids=["all", "shortlist"])
def test_top_p_keeps_or_drops_equal_scores_together(size: int) -> None:
    """Kept is a token iff those with larger scores hold less than top-p; also where the equal ones go on and on."""
    scores = torch.full((2, size), -40.0)
    scores[0, [3, 5, 7, 9, 11]] = torch.tensor([0.4, 0.2, 0.2, 0.2, 1e-9]).log()
    scores[1, 1:] = 0.0  # one group, larger than any shortlist
    scores = scores[:, torch.randperm(size, generator=torch.Generator().manual_seed(3))]
    for top_p, num_kept in ((0.3, 1), (0.5, 4), (0.7, 4), (0.99, 4)):
        kept = Sampler(GenerateOptions(temperature=1.0, top_p=top_p)).warp(scores) > -torch.inf
        assert kept.sum(-1).tolist() == [num_kept, size - 1]
        assert all(scores[row][kept[row]].min() > scores[row][~kept[row]].max() for row in range(2))


def test_the_best_token_survives_every_truncation() -> None:
    scores = torch.randn(4, 20)
    for options in ({"top_p": 0.0}, {"top_k": 1}, {"min_p": 1.0}):
        kept = Sampler(GenerateOptions(temperature=1.0, **options)).warp(scores)
        assert torch.equal(torch.isfinite(kept).nonzero()[:, 1], scores.argmax(-1))


def test_stateful_processors_are_refused_by_name() -> None:
    class WatermarkLogitsProcessor:
        def __call__(self, prefix: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            return scores

    with pytest.raises(OptionError, match=r"WatermarkLogitsProcessor cannot be used .* keeps state .* leave it out"):
        check_processors([WatermarkLogitsProcessor()])
    with pytest.raises(OptionError, match=r"must be a function .* got 3"):
        check_processors([3])  # type: ignore[list-item]


class TestCompare:
    """`equal`, `tie` and `different`, on scores made for the purpose."""

    @staticmethod
    def judge(scores: list[float], a: int, b: int, **options: Any) -> str:
        sampler, said = Sampler(GenerateOptions(**options)), torch.tensor([scores])
        site = Site(0, 1, 0, sampler.options.seed)
        return compare([7, a], [7, b], lambda prefix: contest_for(said, sampler, site, prefix)).verdict

    @pytest.mark.parametrize(("text", "expected"), [([1, 2, 3], ("equal", None)), ([1, 2], ("different", 2))])
    def test_equal_and_shorter_need_no_scores(self, text: list[int], expected: tuple[str, int | None]) -> None:
        found = compare([1, 2, 3], text, lambda prefix: pytest.fail("asked"))
        assert (found.verdict, found.first_difference) == expected

    @pytest.mark.parametrize(
        ("scores", "tokens", "verdict"),
        [
            ([1.0, 2.0, 2.0 - 1e-7], (1, 2), "tie"),
            ([1.0, 2.0, 2.0 - 1e-3], (1, 2), "different"),
            ([1.0, 2.0, 2.0, 1.0], (0, 3), "different"),  # not near the best
        ],
    )
    def test_a_gap_within_rounding_is_a_tie(self, scores: list[float], tokens: tuple[int, int], verdict: str) -> None:
        assert self.judge(scores, *tokens) == verdict

    @pytest.mark.parametrize(("top_p", "verdict"), [(0.5, "tie"), (0.6, "different")])
    def test_a_truncation_boundary_that_rounding_can_move_is_a_tie(self, top_p: float, verdict: str) -> None:
        """Two tokens of equal probability: whether the second is kept at top-p 0.5 hangs on the last bit."""
        options = {"temperature": 1.0, "top_p": top_p}
        sampler = Sampler(GenerateOptions(**options, seed=1))
        found = self.judge([2.0, 2.0, -60.0], 0, 1, **options, seed=1)
        if top_p == 0.6:
            place = NoiseKey.of([Site(0, 1, 0, 1)], torch.device("cpu"))
            noisy = sampler.contest(torch.tensor([[2.0, 2.0, -60.0]]), place)[0]
            assert abs(noisy[0] - noisy[1]) > 1e-3
        assert found == verdict

    def test_what_truncation_drops_is_no_tie(self) -> None:
        assert self.judge([5.0, 1.0, 0.0], 0, 1, temperature=1.0, top_k=1) == "different"
        assert self.judge([5.0, 5.0, 0.0], 0, 1, temperature=1.0, top_k=1) == "tie"

    def test_the_rules_of_the_prefix_decide(self) -> None:
        """The text so far is [7], of which all was generated: there token 7 loses 1.5, token 2 wins 3."""
        scores = [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.5]
        assert self.judge(scores, 1, 7) == "different"
        assert self.judge(scores, 1, 7, presence_penalty=0.5, frequency_penalty=1.0) == "tie"
        assert self.judge(scores, 1, 2, logit_bias={2: 1.0, 7: -9.0}) == "tie"

    def test_a_large_bias_rounds_coarsely(self) -> None:
        assert self.judge([1.0, 1.0 + 1e-3, 0.0], 0, 1, logit_bias={0: 9999.0, 1: 9999.0}) == "tie"
        assert self.judge([1.0, 1.0 + 1e-3, 0.0], 0, 1) == "different"
