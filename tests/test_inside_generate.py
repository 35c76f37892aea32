"""`model.generate(custom_generate=selfdraft.decoder(...))` returns what `model.generate` returns."""

from __future__ import annotations

import copy
import functools
import gc
import importlib.metadata
import io
import pickle
import re
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    DynamicCache,
    GenerationConfig,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
    TextIteratorStreamer,
    TextStreamer,
    dynamic_module_utils,
)
from transformers.generation import logits_process, stopping_criteria
from transformers.generation.utils import GenerateDecoderOnlyOutput

import selfdraft
from cases import by_family
from pico import CONTEXT_LENGTH, letter_tokenizer, pico, pico_tokenizer
from selfdraft import Engine, OptionError, PromptError
from selfdraft.engine.sampling import REFUSED_PROCESSORS, check_processors
from selfdraft.integrations.generate_rules import Prompts, own_rules, seen_padding, split_warpers
from selfdraft.integrations.inside_generate import engine_of
from selfdraft.registry import in_use

Inputs = dict[str, Any]
PAD = 2  # an ordinary token that prompts hold too: processors must see padding where `generate` shows it
PROMPTS = ((3, 1, 4, 1, 5, 9, 2, 6), (7, 7, 2), (11, 5, 80, 2, 6))
EAGER = {"confidence": {"threshold": 0.2}}
DRAFTING: dict[str, Any] = {"strategy": "uniform", "settings": EAGER}
REPOSITORY = Path(__file__).parents[1]
LLAMA = pico("llama")


def padded(prompts: Sequence[Sequence[int]]) -> Inputs:
    width = max(map(len, prompts))
    return {
        "input_ids": torch.tensor([[PAD] * (width - len(prompt)) + list(prompt) for prompt in prompts]),
        "attention_mask": torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]),
    }


SINGLE, PADDED = padded(PROMPTS[:1]), padded(PROMPTS)
by_inputs = pytest.mark.parametrize("inputs", [SINGLE, PADDED], ids=["single", "padded"])


def drafted(inputs: Inputs = SINGLE, model: PreTrainedModel = LLAMA, **options: Any) -> Any:
    """With what draws, seeds or streams of `decoder` beside the options of `generate`."""
    ours = {name: options.pop(name) for name in ("strategy", "seed", "streamer") if name in options}
    decode = options.pop("custom_generate", None) or selfdraft.decoder(**in_use({**DRAFTING, **ours}))
    return model.generate(**inputs, **options, custom_generate=decode)


def both(inputs: Inputs = PADDED, model: PreTrainedModel = LLAMA, **options: Any) -> tuple[Any, Any]:
    """(plain, drafted); drafting must have had its effect, else nothing is shown."""
    options = {"max_new_tokens": 14, "do_sample": False, "pad_token_id": PAD, **options}
    decode = options.pop("custom_generate", None) or selfdraft.decoder(**DRAFTING)
    found = model.generate(**inputs, **options), drafted(inputs, model, **options, custom_generate=decode)
    assert sum(generation.stats.num_draft_steps for generation in decode.generations) > 0
    return found


def assert_same(inputs: Inputs = PADDED, model: PreTrainedModel = LLAMA, **options: Any) -> torch.Tensor:
    plain, found = both(inputs, model, **options)
    assert found.dtype == plain.dtype
    assert found.tolist() == plain.tolist()
    return found


@functools.cache
def plain_tokens(prompt: tuple[int, ...] = PROMPTS[0]) -> list[int]:
    """What the llama says greedily after a prompt."""
    return LLAMA.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)[0, len(prompt) :].tolist()


class TestGreedy:
    @by_inputs
    @by_family
    def test_equal_to_generate(self, family: str, inputs: Inputs) -> None:
        decode = selfdraft.decoder(**DRAFTING)
        assert_same(inputs, pico(family), max_new_tokens=12, custom_generate=decode)
        assert sum(generation.stats.num_accepted for generation in decode.generations) > 0

    def test_text_only_inputs_of_a_model_that_takes_images(self) -> None:
        assert_same({**PADDED, "token_type_ids": torch.zeros_like(PADDED["input_ids"])}, pico("gemma3"))

    def test_without_a_mask_the_padding_is_found_as_generate_finds_it(self) -> None:
        assert_same({"input_ids": torch.tensor([[90, 90, 3, 1], [5, 6, 7, 8]])}, pad_token_id=90)
        assert_same({"input_ids": torch.tensor([[3, 1, 4], [5, 6, 7]])})

    @pytest.mark.parametrize("method", [{"strategy": "uniform", "drafter": "lookup"}, {"strategy": "fixed"}])
    def test_every_method_may_draft(self, method: dict[str, str]) -> None:
        settings = {"fixed": {"skip": "a1-2,m2", "tokens": 3}, "lookup": {"min_ngram": 1}}
        assert_same(custom_generate=selfdraft.decoder(**in_use({"settings": settings, **method})))

    @pytest.mark.parametrize("is_list", [True, False])
    def test_rows_end_at_eos_each_at_its_time(self, is_list: bool) -> None:
        """The pad token is eos where none is named."""
        ends = [plain_tokens()[5], plain_tokens(PROMPTS[1])[9]]
        for pad in (PAD, None):
            found = assert_same(eos_token_id=ends if is_list else ends[0], pad_token_id=pad)
            assert (found[0, -3:] == (ends[0] if pad is None else pad)).all()

    @by_inputs
    def test_lengths(self, inputs: Inputs) -> None:
        eos = plain_tokens()[3]
        assert_same(inputs, max_new_tokens=None, max_length=21)
        assert_same(inputs, eos_token_id=eos, min_new_tokens=12)
        assert_same(inputs, eos_token_id=eos, max_new_tokens=None, max_length=24, min_length=20)
        assert assert_same(inputs, max_new_tokens=2).shape[1] == inputs["input_ids"].shape[1] + 2

    def test_the_generation_config_holds(self) -> None:
        model = copy.deepcopy(LLAMA)
        model.generation_config.repetition_penalty = 1.5
        model.generation_config.eos_token_id = plain_tokens()[5]
        assert assert_same(model=model).tolist() != assert_same(model=model, repetition_penalty=1.0).tolist()

    def test_the_text_ends_at_the_context_with_a_warning(self) -> None:
        inputs = padded([[5] * (CONTEXT_LENGTH - 6), [7, 8]])
        with pytest.warns(UserWarning, match="ends after 6 new tokens, at the model's context length"):
            found = drafted(inputs, pico("gpt2"), max_new_tokens=9)
        assert found.tolist() == pico("gpt2").generate(**inputs, max_new_tokens=6, do_sample=False).tolist()


def only_evens_in_row_one(row: int, ids: torch.Tensor) -> list[int]:
    assert ids.dim() == 1
    return list(range(0, 100, 2)) if row == 1 else list(range(row, 110))


PROCESSED: dict[str, dict[str, Any]] = {
    "own": {"repetition_penalty": 1.4, "sequence_bias": [[[30], 2.0], [[52], -8.0]], "min_length": 12},
    "repetition": {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2, "bad_words_ids": [[30], [27, 55]]},
    "encoder": {"encoder_repetition_penalty": 1.5, "encoder_no_repeat_ngram_size": 2},
    "forced": {"forced_eos_token_id": 9, "suppress_tokens": [30], "begin_suppress_tokens": [52, 16]},
    "bias": {"sequence_bias": [[[30], -8.0], [[27, 72], -9.0]], "remove_invalid_values": True},
    "decay": {"exponential_decay_length_penalty": (5, 1.2), "eos_token_id": [50], "renormalize_logits": True},
    "allowed": {"prefix_allowed_tokens_fn": only_evens_in_row_one},
}


class TestProcessors:
    @pytest.mark.parametrize("options", PROCESSED.values(), ids=PROCESSED)
    def test_of_transformers_see_the_padded_text(self, options: dict[str, Any]) -> None:
        found = assert_same(**options)
        assert found.tolist() != LLAMA.generate(**PADDED, max_new_tokens=14).tolist()

    @pytest.mark.parametrize("more", [{}, {"no_repeat_ngram_size": 9}], ids=["own", "called"])
    def test_whether_padding_is_penalised(self, more: dict[str, Any]) -> None:
        """As by the transformers in use: not since 5.23. Row 1 is padded with what it would say first."""
        likely = plain_tokens(PROMPTS[1])[0]
        ids = torch.where(PADDED["attention_mask"] == 1, PADDED["input_ids"], likely)
        assert ids.tolist() != PADDED["input_ids"].tolist()
        assert_same({**PADDED, "input_ids": ids}, repetition_penalty=30.0, **more)

    def test_of_the_caller(self) -> None:
        widths = set()

        def parity(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            """A pure function of the prefix, padding included."""
            widths.add(ids.shape[1])
            return scores.masked_fill(torch.arange(scores.shape[-1]) % 2 == ids.sum(-1, keepdim=True) % 2, -torch.inf)

        assert_same(logits_processor=[parity, logits_process.RepetitionPenaltyLogitsProcessor(1.3)])
        assert widths == set(range(8, 22))

    def test_several_rows_of_one_prompt_share_its_encoder_rules(self) -> None:
        options = {"encoder_no_repeat_ngram_size": 1, "do_sample": True, "num_return_sequences": 2}
        found = drafted(PADDED, max_new_tokens=12, **options)
        for row, tokens in enumerate(found[:, 8:].tolist()):
            assert not set(tokens) & set(PADDED["input_ids"][row // 2].tolist())


class EndsAfter(stopping_criteria.StoppingCriteria):
    """Ends a row after one token; answers as transformers documents it."""

    def __init__(self, token: int) -> None:
        self.token = token
        self.seen: list[list[int]] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.seen.append(input_ids[0].tolist())
        return input_ids[:, -1] == self.token


class TestStopping:
    def test_criteria_are_asked_token_by_token(self) -> None:
        criterion = EndsAfter(plain_tokens()[9])
        decode = selfdraft.decoder(**DRAFTING)
        found = drafted(max_new_tokens=24, stopping_criteria=[criterion], custom_generate=decode)
        assert [len(ids) for ids in criterion.seen] == list(range(9, found.shape[1] + 1))
        assert criterion.seen[-1] == found[0].tolist()
        assert decode.generations[0].finish_reason == "stop"

    @by_inputs
    @pytest.mark.parametrize("eos", [None, 111])
    def test_criteria_of_the_caller(self, inputs: Inputs, eos: int | None) -> None:
        """Without an eos token `generate` lets ended rows run on until all have ended."""
        hits = [EndsAfter(plain_tokens(prompt)[place]) for prompt, place in zip(PROMPTS, (4, 9, 14), strict=True)]
        for criteria in (hits[:1], hits):
            found = assert_same(inputs, stopping_criteria=criteria, eos_token_id=eos, max_new_tokens=18)
        assert found.shape[1] < 8 + 18

    def test_lengths_of_the_caller(self) -> None:
        """By transformers' criteria, or by one that answers with a bool."""
        assert_same(
            stopping_criteria=[
                stopping_criteria.MaxLengthCriteria(17),
                stopping_criteria.EosTokenCriteria([plain_tokens()[5]]),
            ]
        )
        assert drafted(stopping_criteria=[lambda ids, scores: ids.shape[1] >= 13]).shape == (1, 13)
        assert drafted(stopping_criteria=[stopping_criteria.MaxLengthCriteria(3)]).shape == (1, 9), (
            "one token is always emitted"
        )

    def test_time(self) -> None:
        assert drafted(PADDED, max_new_tokens=100, max_time=1e-9, pad_token_id=PAD).shape == (3, 9)
        assert_same(stopping_criteria=[stopping_criteria.MaxTimeCriteria(1e6)])

    @by_inputs
    def test_stop_strings(self, inputs: Inputs) -> None:
        tokenizer = letter_tokenizer()
        stop = tokenizer.decode(plain_tokens()[6:9])
        bound = selfdraft.decoder(tokenizer=tokenizer, **DRAFTING)
        options = {"stop_strings": [stop, "never"], "tokenizer": tokenizer, "eos_token_id": 111}
        found = assert_same(inputs, **options, custom_generate=bound)
        assert found[0, 17:].tolist() == [PAD] * (found.shape[1] - 17)
        assert_same(
            inputs, stopping_criteria=[stopping_criteria.StopStringCriteria(tokenizer, [stop])], eos_token_id=111
        )


SAMPLED = {"do_sample": True, "max_new_tokens": 12, "top_k": 12, "top_p": 0.9, "temperature": 1.3, "min_p": 0.02}


class TestSampling:
    def test_torch_seeds_it_and_rows_differ(self) -> None:
        def sample(seed: int) -> list[list[int]]:
            torch.manual_seed(seed)
            return drafted(PADDED, **SAMPLED, num_return_sequences=3).tolist()

        found = sample(1)
        assert [row[:8] for row in found] == PADDED["input_ids"].repeat_interleave(3, 0).tolist()
        assert len({tuple(row) for row in found}) == 9
        assert sample(1) == found != sample(2)

    def test_a_seed_of_its_own(self) -> None:
        state = torch.get_rng_state()
        found, plain, other = (
            drafted(PADDED, **SAMPLED, **options).tolist()
            for options in ({"seed": 5}, {"seed": 5, "strategy": "off"}, {"seed": 6})
        )
        assert found == plain != other
        assert torch.equal(state, torch.get_rng_state())

    def test_what_is_drawn_is_what_the_engine_draws(self) -> None:
        """Warpers at the end become options of the sampler: the text is that of the same seed in the engine."""
        options = {name: value for name, value in SAMPLED.items() if name != "do_sample"}
        expected = Engine(LLAMA).generate(PROMPTS[0], seed=7, **options).tokens
        assert drafted(**SAMPLED, seed=7)[0, 8:].tolist() == list(expected)

    @pytest.mark.parametrize("more", [{}, {"typical_p": 0.9}, {"epsilon_cutoff": 0.01, "repetition_penalty": 1.2}])
    def test_nothing_impossible_is_drawn(self, more: dict[str, Any]) -> None:
        options = {**SAMPLED, **more, "output_scores": True, "return_dict_in_generate": True}
        found = drafted(PADDED, **options, num_return_sequences=4, seed=3)
        allowed = torch.stack(found.scores, dim=1).gather(2, found.sequences[:, 8:, None])
        assert torch.isfinite(allowed).all()
        assert all((torch.isfinite(scores).sum(-1) <= 12).all() for scores in found.scores)

    def test_frequencies_are_those_of_the_processed_scores(self) -> None:
        count, options = 3000, {**SAMPLED, "max_new_tokens": 1}
        found = drafted(**options, num_return_sequences=count, seed=11, strategy="off")
        plain = LLAMA.generate(**SINGLE, **options, output_scores=True, return_dict_in_generate=True)
        expected = plain.scores[0][0].softmax(-1)
        drawn = torch.bincount(found[:, -1], minlength=len(expected)) / count
        assert (drawn - expected).abs().max() < 4 * 0.5 / count**0.5
        assert (drawn[expected == 0] == 0).all()

    def test_which_warpers_become_options(self) -> None:
        heat, cold = logits_process.TemperatureLogitsWarper(0.7), logits_process.TemperatureLogitsWarper(1e-6)
        top_k, top_p, min_p = (
            logits_process.TopKLogitsWarper(9),
            logits_process.TopPLogitsWarper(0.8),
            logits_process.MinPLogitsWarper(0.1),
        )
        penalty, typical = logits_process.RepetitionPenaltyLogitsProcessor(1.2), logits_process.TypicalLogitsWarper(0.9)
        kept = logits_process.TopPLogitsWarper(0.8, min_tokens_to_keep=2)
        every = {"temperature": 0.7, "top_k": 9, "top_p": 0.8, "min_p": 0.1}
        for given, processors, options in (
            ([penalty, heat, top_k, top_p, min_p], [penalty], every),
            ([heat, top_k, typical], [heat, top_k, typical], {"temperature": 1.0}),
            ([top_k, heat], [top_k], {"temperature": 0.7}),
            ([heat, kept], [heat, kept], {"temperature": 1.0}),
            ([cold], [cold], {"temperature": 1.0}),
        ):
            assert split_warpers(given) == (processors, options)


def test_which_processors_become_rules() -> None:
    """All or none, in the sampler's order; an end may be banned anywhere. A row has 8 tokens, 30 may follow."""
    penalty, bias = (
        logits_process.RepetitionPenaltyLogitsProcessor(1.2),
        logits_process.SequenceBiasLogitsProcessor([[[30], 2.0], [[7], -1.0]]),
    )
    longer, more = (
        logits_process.MinLengthLogitsProcessor(12, [5, 6]),
        logits_process.MinNewTokensLengthLogitsProcessor(8, 50, torch.tensor([6, 5])),
    )
    ours = {"logit_bias": ((30, 2.0), (7, -1.0)), "repetition_penalty": 1.2}
    for given, options in (
        ([], {"min_new_tokens": 0}),
        ([longer, bias, penalty], {**ours, "min_new_tokens": 4}),
        ([bias, more, penalty, longer], {**ours, "min_new_tokens": 30}),
        ([penalty, bias], None),
        ([penalty, penalty], None),
        ([logits_process.RepetitionPenaltyLogitsProcessor(1.2, prompt_ignore_length=3)], None),
        ([logits_process.SequenceBiasLogitsProcessor([[[30, 31], 2.0]])], None),
        ([logits_process.NoBadWordsLogitsProcessor([[30]])], None),
        ([logits_process.MinLengthLogitsProcessor(12, [5])], None),
        ([penalty, logits_process.NoRepeatNGramLogitsProcessor(2)], None),
    ):
        assert own_rules(given, frozenset((5, 6)), Prompts([(), (0, 0)], [[1] * 8, [1] * 6]), 30) == options


def test_the_padding_a_penalty_ignores() -> None:
    """As transformers 5.23 says it, row by row; before, an int or nothing."""
    paddings = [(), (3, 4), (5,)]
    prompts = Prompts(paddings, [[1] * 8, [1] * 6, [1] * 7])
    for ignored, seen in (
        (None, paddings),
        (0, paddings),
        (torch.tensor([0, 2, 1]), [(), (), ()]),
        (torch.tensor([0, 1, 0]), [(), (4,), (5,)]),
        (torch.tensor([1, 2, 1]), None),
        (torch.tensor([0, 2]), None),
    ):
        penalty = logits_process.RepetitionPenaltyLogitsProcessor(1.2)
        penalty.prompt_ignore_length = ignored
        is_own = own_rules([penalty], frozenset(), prompts, 30) is not None
        assert is_own == (seen is not None)
        if seen is not None:
            assert seen_padding([penalty], paddings) == seen


class TestOutput:
    @by_inputs
    def test_scores_and_logits(self, inputs: Inputs) -> None:
        rules = {"eos_token_id": plain_tokens()[5], "repetition_penalty": 1.2, "min_new_tokens": 3}
        asked = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
        plain, found = both(inputs, max_new_tokens=12, **rules, **asked)
        assert type(found) is type(plain) is GenerateDecoderOnlyOutput
        assert found.sequences.tolist() == plain.sequences.tolist()
        assert found.past_key_values is None
        for name in ("scores", "logits"):
            for ours, theirs in zip(found[name], plain[name], strict=True):
                torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)

    def test_only_what_is_asked_for(self) -> None:
        options = {"max_new_tokens": 3, "return_dict_in_generate": True}
        assert list(drafted(**options)) == ["sequences"]
        assert list(drafted(**options, output_logits=True)) == ["sequences", "logits"]


class Recorder:
    """A streamer that keeps what it is given."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def put(self, value: torch.Tensor) -> None:
        self.values.append((value.shape, value.tolist()))

    def end(self) -> None:
        self.values.append("end")


class TestStreamer:
    def test_iterator_in_another_thread(self) -> None:
        streamer = TextIteratorStreamer(letter_tokenizer(), skip_prompt=True, timeout=60)
        thread = threading.Thread(target=drafted, kwargs={"max_new_tokens": 20, "streamer": streamer})
        thread.start()
        text = "".join(streamer)
        thread.join()
        assert text == letter_tokenizer().decode(plain_tokens()[:20])

    def test_tokens_come_one_by_one_as_from_generate(self) -> None:
        ours, theirs = Recorder(), Recorder()
        options = {"max_new_tokens": 20, "eos_token_id": plain_tokens()[9]}
        LLAMA.generate(**SINGLE, **options, streamer=theirs)
        drafted(**options, streamer=ours)
        assert ours.values == theirs.values

    def test_it_shows_one_text(self) -> None:
        with pytest.raises(OptionError, match="a streamer shows one text, but the batch has 3 rows; pass one prompt"):
            drafted(PADDED, streamer=Recorder())


class TestEngines:
    def test_one_decoder_for_two_models_and_many_calls(self) -> None:
        decode = selfdraft.decoder(**DRAFTING)
        for family in ("llama", "gpt2", "llama"):
            assert_same(model=pico(family), max_new_tokens=8, custom_generate=decode)

    def test_a_model_keeps_its_engine_and_its_learned_parts(self) -> None:
        model = copy.deepcopy(LLAMA)
        for _ in range(2):
            drafted(model=model, max_new_tokens=2, strategy="uniform")
        engine = engine_of(model)
        assert engine is engine_of(model)
        assert sum(key[:2] == ("strategy", "uniform") for key in engine._parts.built) == 1
        other = copy.deepcopy(model)
        assert engine_of(other) is not engine
        assert engine_of(copy.copy(model)).model is not model
        assert engine_of(model) is engine

    def test_nothing_keeps_a_model_alive(self) -> None:
        model = copy.deepcopy(LLAMA)
        decode = selfdraft.decoder()
        drafted(model=model, max_new_tokens=2, custom_generate=decode)
        gone = weakref.ref(model)
        del model
        gc.collect()
        assert gone() is None

    def test_a_model_can_still_be_saved(self, tmp_path: Path) -> None:
        model = copy.deepcopy(LLAMA)
        drafted(model=model, max_new_tokens=2)
        restored = pickle.loads(pickle.dumps(model))
        assert restored._selfdraft_engine is None
        torch.save(model, io.BytesIO())
        model.save_pretrained(tmp_path)
        assert "_selfdraft_engine" not in (tmp_path / "config.json").read_text()


# ------------------------------------------------------------------------------------------------------- the folder


@pytest.fixture
def by_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The repository as a hub repository; its code is copied to an empty module cache."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(tmp_path)
    try:
        importlib.metadata.version("selfdraft")
    except importlib.metadata.PackageNotFoundError:  # on the path, but not installed
        metadata = tmp_path / "selfdraft-0.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text("Metadata-Version: 2.1\nName: selfdraft\nVersion: 0\n", encoding="utf-8")
    return {"custom_generate": str(REPOSITORY), "trust_remote_code": True}


class TestFolder:
    def test_equal_to_generate(self, by_folder: dict[str, Any]) -> None:
        tokenizer = letter_tokenizer()
        options = {**PADDED, "max_new_tokens": 12, "do_sample": False, "pad_token_id": PAD, "eos_token_id": 111}
        stop = {"stop_strings": tokenizer.decode(plain_tokens()[6:9]), "tokenizer": tokenizer}
        own = {**by_folder, "strategy": "uniform", "settings": EAGER}
        assert LLAMA.generate(**options, **own, **stop).tolist() == LLAMA.generate(**options, **stop).tolist()
        assert LLAMA.generate(**options, **own, generation_config=GenerationConfig(min_new_tokens=4)).shape == (3, 20)
        drawn = {**options, **own, "do_sample": True, "seed": 3}
        assert LLAMA.generate(**drawn).tolist() == LLAMA.generate(**drawn).tolist()

    def test_streamer(self, by_folder: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
        streamer = TextStreamer(letter_tokenizer(), skip_prompt=True)
        LLAMA.generate(**SINGLE, **by_folder, max_new_tokens=9, streamer=streamer)
        assert capsys.readouterr().out.strip() == letter_tokenizer().decode(plain_tokens()[:9])

    def test_a_model_repository_with_the_folder_generates_with_it(
        self, by_folder: dict[str, Any], tmp_path: Path
    ) -> None:
        target = tmp_path / "model"
        LLAMA.save_pretrained(target)
        (target / "custom_generate").symlink_to(REPOSITORY / "custom_generate")
        model = type(LLAMA).from_pretrained(target, trust_remote_code=True)
        found = model.generate(**SINGLE, max_new_tokens=9, strategy="uniform")
        assert found[0, 8:].tolist() == plain_tokens()[:9]
        assert engine_of(model) is model._selfdraft_engine.engine

    def test_its_errors(self, by_folder: dict[str, Any]) -> None:
        with pytest.raises(OptionError, match="drafts with the model itself; leave assistant_model out"):
            LLAMA.generate(**SINGLE, **by_folder, assistant_model=LLAMA)


def test_the_docs_run(by_folder: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Every Python block of the page, one after the other."""
    tokenizer = pico_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    names: dict[str, Any] = {"model": pico("llama", vocab_size=len(tokenizer)), "tokenizer": tokenizer}
    page = (REPOSITORY / "docs" / "transformers.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        code = block.replace("path/to/selfdraft", str(REPOSITORY)).replace("max_new_tokens=64", "max_new_tokens=8")
        exec(code, names)
    assert capsys.readouterr().out


# ---------------------------------------------------------------------------------------------------------- errors

BAD_DECODERS = [
    ({"stratgy": "off"}, r"unknown option of decoder 'stratgy'. Did you mean 'strategy'\?"),
    ({"strategy": "unifrom"}, r"unknown strategy 'unifrom'. Did you mean 'uniform'\?"),
    ({"settings": {"uniform": {"ration": 1}}}, r"unknown option of uniform 'ration'. Did you mean 'ratio'\?"),
    ({"temperature": 1}, r"'temperature' belongs to a call: model.generate\(\*\*inputs, temperature=1\)"),
    ({"seed": -1}, r"generate.seed must be between 0 and 18446744073709551615, got -1"),
]


@pytest.mark.parametrize(("options", "message"), BAD_DECODERS, ids=lambda value: str(value)[:40])
def test_bad_decoders(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        selfdraft.decoder(**options)


class QuantizedCache(DynamicCache):
    pass


def filled_cache() -> DynamicCache:
    cache = DynamicCache()
    cache.update(torch.zeros(1, 2, 3, 8), torch.zeros(1, 2, 3, 8), 0)
    return cache


BAD_CALLS: list[tuple[dict[str, Any], str]] = [
    ({"num_beams": 2}, r"greedily or by sampling, the options ask for 'beam_search'; take out what asks for it"),
    ({"num_beams": 2, "do_sample": True}, r"ask for 'beam_sample'"),
    ({"prompt_lookup_num_tokens": 3}, r"ask for 'assisted_generation'"),
    ({"penalty_alpha": 0.6, "top_k": 4}, r"ask for 'contrastive_search'"),
    ({"return_dict_in_generate": True, "output_attentions": True}, r"output_attentions=True is not supported"),
    ({"return_dict_in_generate": True, "output_hidden_states": True}, r"output_hidden_states=True is not supported"),
    ({"guidance_scale": 1.5}, r"UnbatchedClassifierFreeGuidanceLogitsProcessor .* runs the model itself"),
    ({"watermarking_config": {"bias": 2.0}}, r"WatermarkLogitsProcessor cannot be used with speculation"),
    ({"stop_strings": "x"}, r"stop_strings need the tokenizer, .*selfdraft.decoder\(tokenizer=tokenizer\)"),
    ({"stop_strings": "x", "tokenizer": letter_tokenizer()}, r"which transformers does not pass on"),
    ({"stopping_criteria": [stopping_criteria.ConfidenceCriteria(0.5)]}, r"ConfidenceCriteria is for assistant models"),
    ({"position_ids": torch.arange(5, 13)[None]}, r"position_ids must count each row's tokens from 0"),
    ({"past_key_values": filled_cache()}, r"past_key_values holds 3 tokens, .* pass the whole text as input_ids"),
    ({"past_key_values": QuantizedCache()}, "a quantized cache changes the text"),
    ({"inputs_embeds": torch.zeros(1, 8, 32)}, r"from input_ids and attention_mask alone, got inputs_embeds; leave"),
]


@pytest.mark.parametrize(("options", "message"), BAD_CALLS, ids=lambda value: str(value)[:40])
def test_what_cannot_be_done_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        drafted({**SINGLE, **options})


def test_what_the_engine_cannot_read_is_refused() -> None:
    with pytest.raises(OptionError, match="got token_type_ids"):
        drafted({**SINGLE, "token_type_ids": torch.zeros(1, 8, dtype=torch.long)}, pico("gpt2"))
    empty = drafted(past_key_values=DynamicCache(), max_new_tokens=3)
    assert empty[0, 8:].tolist() == plain_tokens()[:3]
    config = T5Config(vocab_size=20, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0)
    with pytest.raises(OptionError, match="T5ForConditionalGeneration is an encoder-decoder model"):
        drafted({"inputs": torch.tensor([[1, 2]])}, T5ForConditionalGeneration(config))


BAD_MASKS = [
    ([[1, 1, 1, 0], [1, 1, 1, 1]], r"attention_mask of row 0 has zeros after ones; pad on the left: .*padding_side"),
    ([[1, 1, 1, 1], [0, 1, 0, 1]], r"attention_mask of row 1 has zeros after ones"),
    ([[1, 1, 1, 1], [0, 0, 0, 0]], r"row 1 of the batch is all padding; every row needs at least one token"),
    ([[1, 1, 1]], r"attention_mask has shape \[1, 3\], input_ids \[2, 4\]; they must agree"),
]


@pytest.mark.parametrize(("mask", "message"), BAD_MASKS)
def test_padding_stands_on_the_left(mask: list[list[int]], message: str) -> None:
    ids = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    with pytest.raises(PromptError, match=message):
        selfdraft.decoder()(LLAMA, ids, [], [], GenerationConfig(), attention_mask=torch.tensor(mask))


def test_rows_of_different_length_need_a_pad_token() -> None:
    hit = plain_tokens()[4]
    criterion = EndsAfter(hit)
    criterion.eos_token_id = hit  # type: ignore[attr-defined]  # so that `generate` pads
    with pytest.raises(OptionError, match="at different lengths, but there is no pad token; pass pad_token_id"):
        drafted(PADDED, stopping_criteria=[criterion])


def test_stateful_processors_of_transformers_are_refused_by_name() -> None:
    """Those the library makes and those derived from them."""
    for name in set(REFUSED_PROCESSORS) & set(vars(logits_process)):
        kind = type(f"My{name}", (getattr(logits_process, name),), {})
        with pytest.raises(OptionError, match=f"{name} cannot be used with speculation"):
            check_processors([kind.__new__(kind)])
