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
from transformers.generation import logits_process
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)
from transformers.generation.stopping_criteria import (
    ConfidenceCriteria,
    EosTokenCriteria,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StoppingCriteria,
    StopStringCriteria,
)
from transformers.generation.utils import GenerateDecoderOnlyOutput

import selfdraft
from pico import CONTEXT_LENGTH, FAMILIES, letter_tokenizer, pico, pico_tokenizer
from selfdraft import Engine, OptionError, PromptError
from selfdraft.engine.generate_rules import _check_cache, split_warpers
from selfdraft.engine.inside_generate import engine_of
from selfdraft.engine.sampling import REFUSED_PROCESSORS, check_processors

PAD = 2  # an ordinary token that prompts hold too: processors must see padding where `generate` shows it
PROMPTS = ([3, 1, 4, 1, 5, 9, 2, 6], [7, 7, 2], [11, 5, 80, 2, 6])
EAGER = {"confidence": {"threshold": 0.2}}
REPOSITORY = Path(__file__).parents[1]


def padded(prompts: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
    width = max(map(len, prompts))
    return {
        "input_ids": torch.tensor([[PAD] * (width - len(prompt)) + list(prompt) for prompt in prompts]),
        "attention_mask": torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]),
    }


INPUTS = {"single": padded(PROMPTS[:1]), "padded": padded(PROMPTS)}


def both(model: PreTrainedModel, inputs: dict[str, torch.Tensor], **options: Any) -> tuple[Any, Any]:
    """(plain, drafted); drafting must have had its effect, else nothing is shown."""
    options = {"max_new_tokens": 18, "do_sample": False, "pad_token_id": PAD, **options}
    decode = options.pop("custom_generate", None) or selfdraft.decoder(settings=EAGER)
    plain = model.generate(**inputs, **options)
    drafted = model.generate(**inputs, **options, custom_generate=decode)
    assert sum(generation.stats.num_draft_steps for generation in decode.generations) > 0
    return plain, drafted


def assert_same(model: PreTrainedModel, inputs: dict[str, torch.Tensor], **options: Any) -> torch.Tensor:
    plain, drafted = both(model, inputs, **options)
    assert drafted.dtype == plain.dtype
    assert drafted.tolist() == plain.tolist()
    return drafted


@functools.cache
def _greedy(prompt: tuple[int, ...]) -> list[int]:
    ids = torch.tensor([prompt])
    return pico("llama").generate(ids, max_new_tokens=24, do_sample=False)[0, len(prompt) :].tolist()


def plain_tokens(prompt: Sequence[int], count: int = 24) -> list[int]:
    """What the llama says greedily behind a prompt."""
    return _greedy(tuple(prompt))[:count]


by_inputs = pytest.mark.parametrize("inputs", INPUTS.values(), ids=INPUTS)


class TestGreedy:
    @by_inputs
    @pytest.mark.parametrize("family", FAMILIES)
    def test_equal_to_generate(self, family: str, inputs: dict[str, torch.Tensor]) -> None:
        decode = selfdraft.decoder(settings=EAGER)
        assert_same(pico(family), inputs, custom_generate=decode)
        assert sum(generation.stats.num_accepted for generation in decode.generations) > 0

    def test_text_only_inputs_of_a_model_that_takes_images(self) -> None:
        inputs = {**INPUTS["padded"], "token_type_ids": torch.zeros_like(INPUTS["padded"]["input_ids"])}
        assert_same(pico("gemma3"), inputs, custom_generate=selfdraft.decoder(settings=EAGER))

    def test_without_a_mask_the_padding_is_found_as_generate_finds_it(self) -> None:
        assert_same(pico("llama"), {"input_ids": torch.tensor([[90, 90, 3, 1], [5, 6, 7, 8]])}, pad_token_id=90)
        assert_same(pico("llama"), {"input_ids": torch.tensor([[3, 1, 4], [5, 6, 7]])})

    @pytest.mark.parametrize("method", [{"drafter": "lookup"}, {"strategy": "fixed", "lookahead": "fixed"}])
    def test_every_method_may_draft(self, method: dict[str, str]) -> None:
        settings = {"fixed": {"skip": "a1-2,m2", "tokens": 3}, "lookup": {"min_ngram": 1}}
        assert_same(pico("llama"), INPUTS["padded"], custom_generate=selfdraft.decoder(settings=settings, **method))

    @pytest.mark.parametrize("is_list", [True, False])
    def test_rows_end_at_eos_each_at_its_time(self, is_list: bool) -> None:
        ends = [plain_tokens(PROMPTS[0])[5], plain_tokens(PROMPTS[1])[9]]
        found = assert_same(pico("llama"), INPUTS["padded"], eos_token_id=ends if is_list else ends[0])
        assert (found[0, -3:] == PAD).all()

    def test_pad_is_eos_where_none_is_named(self) -> None:
        eos = plain_tokens(PROMPTS[0])[5]
        assert_same(pico("llama"), INPUTS["padded"], eos_token_id=eos, pad_token_id=None)

    @by_inputs
    def test_lengths(self, inputs: dict[str, torch.Tensor]) -> None:
        eos = plain_tokens(PROMPTS[0])[3]
        assert_same(pico("llama"), inputs, max_new_tokens=None, max_length=21)
        assert_same(pico("llama"), inputs, eos_token_id=eos, min_new_tokens=12)
        assert_same(pico("llama"), inputs, eos_token_id=eos, max_new_tokens=None, max_length=30, min_length=20)
        assert assert_same(pico("llama"), inputs, max_new_tokens=2).shape[1] == inputs["input_ids"].shape[1] + 2

    def test_the_generation_config_holds(self) -> None:
        model = copy.deepcopy(pico("llama"))
        model.generation_config.repetition_penalty = 1.5
        model.generation_config.eos_token_id = plain_tokens(PROMPTS[0])[5]
        found = assert_same(model, INPUTS["padded"])
        assert found.tolist() != assert_same(model, INPUTS["padded"], repetition_penalty=1.0).tolist()

    def test_the_text_ends_at_the_context_with_a_warning(self) -> None:
        inputs = padded([[5] * (CONTEXT_LENGTH - 6), [7, 8]])
        decode = selfdraft.decoder(settings=EAGER)
        with pytest.warns(UserWarning, match="ends after 6 new tokens, at the model's context length"):
            found = pico("gpt2").generate(**inputs, max_new_tokens=9, do_sample=False, custom_generate=decode)
        assert found.tolist() == pico("gpt2").generate(**inputs, max_new_tokens=6, do_sample=False).tolist()


PROCESSED: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2, "bad_words_ids": [[30], [27, 55]]},
    "encoder": {"encoder_repetition_penalty": 1.5, "encoder_no_repeat_ngram_size": 2},
    "forced": {"forced_eos_token_id": 9, "suppress_tokens": [30], "begin_suppress_tokens": [52, 16]},
    "bias": {"sequence_bias": [[[30], -8.0], [[27, 72], -9.0]], "remove_invalid_values": True},
    "decay": {"exponential_decay_length_penalty": (5, 1.2), "eos_token_id": [50], "renormalize_logits": True},
}


def only_evens_in_row_one(row: int, ids: torch.Tensor) -> list[int]:
    assert ids.dim() == 1
    return list(range(0, 100, 2)) if row == 1 else list(range(row, 110))


class TestProcessors:
    @pytest.mark.parametrize("options", PROCESSED.values(), ids=PROCESSED)
    def test_of_transformers_see_the_padded_text(self, options: dict[str, Any]) -> None:
        found = assert_same(pico("llama"), INPUTS["padded"], **options)
        assert found.tolist() != pico("llama").generate(**INPUTS["padded"], max_new_tokens=24).tolist()

    def test_allowed_tokens_know_their_row(self) -> None:
        found = assert_same(pico("llama"), INPUTS["padded"], prefix_allowed_tokens_fn=only_evens_in_row_one)
        assert (found[1, 8:] % 2 == 0).all()

    def test_of_the_caller(self) -> None:
        widths = set()

        def parity(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            """A pure function of the prefix, padding included."""
            widths.add(ids.shape[1])
            return scores.masked_fill(torch.arange(scores.shape[-1]) % 2 == ids.sum(-1, keepdim=True) % 2, -torch.inf)

        assert_same(pico("llama"), INPUTS["padded"], logits_processor=[parity, RepetitionPenaltyLogitsProcessor(1.3)])
        assert widths == set(range(8, 26))

    def test_several_rows_of_one_prompt_share_its_encoder_rules(self) -> None:
        model = pico("llama")
        options = {
            "encoder_no_repeat_ngram_size": 1,
            "max_new_tokens": 12,
            "do_sample": True,
            "num_return_sequences": 2,
        }
        found = model.generate(**INPUTS["padded"], **options, custom_generate=selfdraft.decoder())
        for row, tokens in enumerate(found[:, 8:].tolist()):
            assert not set(tokens) & set(INPUTS["padded"]["input_ids"][row // 2].tolist())


class EndsBehind(StoppingCriteria):
    """Ends a row behind one token; answers as transformers documents it."""

    def __init__(self, token: int) -> None:
        self.token = token
        self.seen: list[list[int]] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.seen.append(input_ids[0].tolist())
        return input_ids[:, -1] == self.token


class TestStopping:
    def test_criteria_are_asked_token_by_token(self) -> None:
        criterion = EndsBehind(plain_tokens(PROMPTS[0])[9])
        decode = selfdraft.decoder(settings=EAGER)
        found = pico("llama").generate(
            **INPUTS["single"], max_new_tokens=24, stopping_criteria=[criterion], custom_generate=decode
        )
        assert [len(ids) for ids in criterion.seen] == list(range(9, found.shape[1] + 1))
        assert criterion.seen[-1] == found[0].tolist()
        assert decode.generations[0].finish_reason == "stop"

    @by_inputs
    @pytest.mark.parametrize("eos", [None, 111])
    def test_criteria_of_the_caller(self, inputs: dict[str, torch.Tensor], eos: int | None) -> None:
        """Without an eos token `generate` lets ended rows run on until all have ended."""
        hits = [EndsBehind(plain_tokens(prompt)[place]) for prompt, place in zip(PROMPTS, (4, 9, 14), strict=True)]
        for criteria in (hits[:1], hits):
            found = assert_same(pico("llama"), inputs, stopping_criteria=criteria, eos_token_id=eos)
        assert found.shape[1] < 8 + 18

    def test_a_criterion_may_answer_with_a_bool(self) -> None:
        found = pico("llama").generate(
            **INPUTS["single"],
            stopping_criteria=[lambda ids, scores: ids.shape[1] >= 13],
            custom_generate=selfdraft.decoder(settings=EAGER),
        )
        assert found.shape == (1, 13)

    def test_length_and_eos_criteria_of_the_caller(self) -> None:
        eos = plain_tokens(PROMPTS[0])[5]
        assert_same(pico("llama"), INPUTS["padded"], stopping_criteria=[MaxLengthCriteria(17), EosTokenCriteria([eos])])
        found = pico("llama").generate(
            **INPUTS["single"], stopping_criteria=[MaxLengthCriteria(3)], custom_generate=selfdraft.decoder()
        )
        assert found.shape == (1, 9), "one token is always emitted"

    def test_time(self) -> None:
        found = pico("llama").generate(
            **INPUTS["padded"], max_new_tokens=100, max_time=1e-9, custom_generate=selfdraft.decoder(), pad_token_id=PAD
        )
        assert found.shape == (3, 9)
        late = [MaxTimeCriteria(1e6)]
        assert_same(pico("llama"), INPUTS["padded"], stopping_criteria=late)

    @by_inputs
    def test_stop_strings(self, inputs: dict[str, torch.Tensor]) -> None:
        tokenizer, model = letter_tokenizer(), pico("llama")
        stop = tokenizer.decode(plain_tokens(PROMPTS[0])[6:9])
        options = {**inputs, "max_new_tokens": 24, "eos_token_id": 111, "pad_token_id": PAD}
        plain = model.generate(**options, stop_strings=[stop, "never"], tokenizer=tokenizer)
        assert plain[0, 17:].tolist() == [PAD] * (plain.shape[1] - 17)
        bound = selfdraft.decoder(tokenizer=tokenizer, settings=EAGER)
        found = model.generate(**options, stop_strings=[stop, "never"], tokenizer=tokenizer, custom_generate=bound)
        assert found.tolist() == plain.tolist()
        criteria = [StopStringCriteria(tokenizer, [stop])]
        assert_same(model, inputs, stopping_criteria=criteria, eos_token_id=111)


SAMPLED = {"do_sample": True, "max_new_tokens": 12, "top_k": 12, "top_p": 0.9, "temperature": 1.3, "min_p": 0.02}


class TestSampling:
    def test_torch_seeds_it_and_rows_differ(self) -> None:
        def sample(seed: int, **options: Any) -> list[list[int]]:
            torch.manual_seed(seed)
            options = {**INPUTS["padded"], **SAMPLED, "num_return_sequences": 3, **options}
            return pico("llama").generate(**options, custom_generate=selfdraft.decoder(settings=EAGER)).tolist()

        found = sample(1)
        assert [row[:8] for row in found] == INPUTS["padded"]["input_ids"].repeat_interleave(3, 0).tolist()
        assert len({tuple(row) for row in found}) == 9
        assert sample(1) == found != sample(2)

    def test_a_seed_of_its_own(self) -> None:
        def sample(**options: Any) -> list[list[int]]:
            decode = selfdraft.decoder(**options)
            return pico("llama").generate(**INPUTS["padded"], **SAMPLED, custom_generate=decode).tolist()

        assert sample(seed=5) == sample(seed=5, strategy="off") != sample(seed=6)
        state = torch.get_rng_state()
        sample(seed=5)
        assert torch.equal(state, torch.get_rng_state())

    def test_what_is_drawn_is_what_the_engine_draws(self) -> None:
        """Warpers at the end become options of the sampler: the text is that of the same seed in the engine."""
        decode = selfdraft.decoder(seed=7)
        found = pico("llama").generate(**INPUTS["single"], **SAMPLED, custom_generate=decode)
        options = {name: value for name, value in SAMPLED.items() if name != "do_sample"}
        assert found[0, 8:].tolist() == list(Engine(pico("llama")).generate(PROMPTS[0], seed=7, **options).tokens)

    @pytest.mark.parametrize("more", [{}, {"typical_p": 0.9}, {"epsilon_cutoff": 0.01, "repetition_penalty": 1.2}])
    def test_nothing_impossible_is_drawn(self, more: dict[str, Any]) -> None:
        options = {**SAMPLED, **more, "output_scores": True, "return_dict_in_generate": True}
        decode = selfdraft.decoder(seed=3, settings=EAGER)
        found = pico("llama").generate(**INPUTS["padded"], **options, num_return_sequences=4, custom_generate=decode)
        allowed = torch.stack(found.scores, dim=1).gather(2, found.sequences[:, 8:, None])
        assert torch.isfinite(allowed).all()
        assert all((torch.isfinite(scores).sum(-1) <= 12).all() for scores in found.scores)

    def test_frequencies_are_those_of_the_processed_scores(self) -> None:
        count, options = 3000, {**SAMPLED, "max_new_tokens": 1}
        decode = selfdraft.decoder(seed=11, strategy="off")
        found = pico("llama").generate(
            **INPUTS["single"], **options, num_return_sequences=count, custom_generate=decode
        )
        plain = pico("llama").generate(**INPUTS["single"], **options, output_scores=True, return_dict_in_generate=True)
        expected = plain.scores[0][0].softmax(-1)
        drawn = torch.bincount(found[:, -1], minlength=len(expected)) / count
        assert (drawn - expected).abs().max() < 4 * 0.5 / count**0.5
        assert (drawn[expected == 0] == 0).all()

    def test_which_warpers_become_options(self) -> None:
        heat, top_k, top_p, min_p = (
            TemperatureLogitsWarper(0.7),
            TopKLogitsWarper(9),
            TopPLogitsWarper(0.8),
            MinPLogitsWarper(0.1),
        )
        penalty, typical = RepetitionPenaltyLogitsProcessor(1.2), TypicalLogitsWarper(0.9)
        every = {"temperature": 0.7, "top_k": 9, "top_p": 0.8, "min_p": 0.1}
        assert split_warpers([penalty, heat, top_k, top_p, min_p]) == ([penalty], every)
        assert split_warpers([heat, top_k, typical]) == ([heat, top_k, typical], {"temperature": 1.0})
        assert split_warpers([top_k, heat]) == ([top_k], {"temperature": 0.7})
        kept = TopPLogitsWarper(0.8, min_tokens_to_keep=2)
        assert split_warpers([heat, kept]) == ([heat, kept], {"temperature": 1.0})
        cold = TemperatureLogitsWarper(1e-6)
        assert split_warpers([cold]) == ([cold], {"temperature": 1.0})


class TestOutput:
    @by_inputs
    def test_scores_and_logits(self, inputs: dict[str, torch.Tensor]) -> None:
        plain, drafted = both(
            pico("llama"),
            inputs,
            eos_token_id=plain_tokens(PROMPTS[0])[5],
            max_new_tokens=12,
            repetition_penalty=1.2,
            min_new_tokens=3,
            return_dict_in_generate=True,
            output_scores=True,
            output_logits=True,
        )
        assert type(drafted) is type(plain) is GenerateDecoderOnlyOutput
        assert drafted.sequences.tolist() == plain.sequences.tolist()
        assert drafted.past_key_values is None
        for name in ("scores", "logits"):
            assert len(drafted[name]) == len(plain[name])
            for ours, theirs in zip(drafted[name], plain[name], strict=True):
                torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)

    def test_only_what_is_asked_for(self) -> None:
        options = {"max_new_tokens": 3, "return_dict_in_generate": True, "custom_generate": selfdraft.decoder()}
        found = pico("llama").generate(**INPUTS["single"], **options)
        assert list(found) == ["sequences"]
        assert list(pico("llama").generate(**INPUTS["single"], **options, output_logits=True)) == [
            "sequences",
            "logits",
        ]


class TestStreamer:
    def test_text_streamer(self, capsys: pytest.CaptureFixture[str]) -> None:
        model, tokenizer = pico("llama"), letter_tokenizer()
        model.generate(**INPUTS["single"], max_new_tokens=20, streamer=TextStreamer(tokenizer))
        plain = capsys.readouterr().out
        model.generate(
            **INPUTS["single"],
            max_new_tokens=20,
            custom_generate=selfdraft.decoder(streamer=TextStreamer(tokenizer), settings=EAGER),
        )
        assert capsys.readouterr().out == plain
        assert len(plain) == 8 + 20 + 1

    def test_iterator_in_another_thread(self) -> None:
        streamer = TextIteratorStreamer(letter_tokenizer(), skip_prompt=True, timeout=60)
        decode = selfdraft.decoder(streamer=streamer, settings=EAGER)
        options = {**INPUTS["single"], "max_new_tokens": 20, "custom_generate": decode}
        thread = threading.Thread(target=pico("llama").generate, kwargs=options)
        thread.start()
        text = "".join(streamer)
        thread.join()
        assert text == letter_tokenizer().decode(plain_tokens(PROMPTS[0], 20))

    def test_tokens_come_one_by_one_as_from_generate(self) -> None:
        class Recorder:
            def __init__(self) -> None:
                self.values: list[Any] = []

            def put(self, value: torch.Tensor) -> None:
                self.values.append((value.shape, value.tolist()))

            def end(self) -> None:
                self.values.append("end")

        ours, theirs = Recorder(), Recorder()
        eos = plain_tokens(PROMPTS[0])[9]
        pico("llama").generate(**INPUTS["single"], max_new_tokens=20, eos_token_id=eos, streamer=theirs)
        decode = selfdraft.decoder(streamer=ours, settings=EAGER)
        pico("llama").generate(**INPUTS["single"], max_new_tokens=20, eos_token_id=eos, custom_generate=decode)
        assert ours.values == theirs.values


class TestEngines:
    def test_one_decoder_for_two_models_and_many_calls(self) -> None:
        decode = selfdraft.decoder(settings=EAGER)
        for _ in range(2):
            for family in ("llama", "gpt2"):
                assert_same(pico(family), INPUTS["padded"], custom_generate=decode)

    def test_a_model_keeps_its_engine_and_its_learned_parts(self) -> None:
        model = copy.deepcopy(pico("llama"))
        for _ in range(2):
            model.generate(**INPUTS["single"], max_new_tokens=2, custom_generate=selfdraft.decoder(strategy="uniform"))
        engine = engine_of(model)
        assert engine is engine_of(model)
        assert sum(key[:2] == ("strategy", "uniform") for key in engine._parts) == 1
        other = copy.deepcopy(model)
        assert engine_of(other) is not engine
        assert engine_of(copy.copy(model)).model is not model
        assert engine_of(model) is engine

    def test_nothing_keeps_a_model_alive(self) -> None:
        model = copy.deepcopy(pico("llama"))
        decode = selfdraft.decoder()
        model.generate(**INPUTS["single"], max_new_tokens=2, custom_generate=decode)
        gone = weakref.ref(model)
        del model
        gc.collect()
        assert gone() is None

    def test_a_model_can_still_be_saved(self, tmp_path: Path) -> None:
        model = copy.deepcopy(pico("llama"))
        model.generate(**INPUTS["single"], max_new_tokens=2, custom_generate=selfdraft.decoder())
        restored = pickle.loads(pickle.dumps(model))
        assert restored._selfdraft_engine is None
        torch.save(model, io.BytesIO())
        model.save_pretrained(tmp_path)
        assert "_selfdraft_engine" not in (tmp_path / "config.json").read_text()


# ------------------------------------------------------------------------------------------------------- the folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The repository as a hub repository; its code is copied to an empty module cache."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(tmp_path)
    try:
        importlib.metadata.version("selfdraft")
    except importlib.metadata.PackageNotFoundError:  # on the path, but not installed
        metadata = tmp_path / "selfdraft-0.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text("Metadata-Version: 2.1\nName: selfdraft\nVersion: 0\n", encoding="utf-8")
    return str(REPOSITORY)


class TestFolder:
    def test_equal_to_generate(self, folder: str) -> None:
        model, tokenizer = pico("llama"), letter_tokenizer()
        options = {
            **INPUTS["padded"],
            "max_new_tokens": 20,
            "do_sample": False,
            "pad_token_id": PAD,
            "eos_token_id": 111,
        }
        stop = tokenizer.decode(plain_tokens(PROMPTS[0])[6:9])
        own = {"custom_generate": folder, "trust_remote_code": True, "strategy": "uniform", "settings": EAGER}
        plain = model.generate(**options, stop_strings=stop, tokenizer=tokenizer)
        assert model.generate(**options, **own, stop_strings=stop, tokenizer=tokenizer).tolist() == plain.tolist()
        assert model.generate(**options, **own, generation_config=GenerationConfig(min_new_tokens=4)).shape == (3, 28)
        drawn = {**options, **own, "do_sample": True, "seed": 3}
        assert model.generate(**drawn).tolist() == model.generate(**drawn).tolist()

    def test_streamer(self, folder: str, capsys: pytest.CaptureFixture[str]) -> None:
        streamer = TextStreamer(letter_tokenizer(), skip_prompt=True)
        options = {"max_new_tokens": 9, "custom_generate": folder, "trust_remote_code": True, "streamer": streamer}
        pico("llama").generate(**INPUTS["single"], **options)
        assert capsys.readouterr().out.strip() == letter_tokenizer().decode(plain_tokens(PROMPTS[0], 9))

    def test_a_model_repository_with_the_folder_generates_with_it(self, folder: str, tmp_path: Path) -> None:
        target = tmp_path / "model"
        pico("llama").save_pretrained(target)
        (target / "custom_generate").symlink_to(REPOSITORY / "custom_generate")
        model = type(pico("llama")).from_pretrained(target, trust_remote_code=True)
        plain = pico("llama").generate(**INPUTS["single"], max_new_tokens=9)
        assert model.generate(**INPUTS["single"], max_new_tokens=9, strategy="uniform").tolist() == plain.tolist()
        assert engine_of(model) is model._selfdraft_engine.engine

    def test_its_errors(self, folder: str) -> None:
        options = {**INPUTS["single"], "custom_generate": folder, "trust_remote_code": True}
        with pytest.raises(OptionError, match=r"unknown strategy 'unifrom'. Did you mean 'uniform'"):
            pico("llama").generate(**options, strategy="unifrom")
        with pytest.raises(OptionError, match="drafts with the model itself; leave assistant_model out"):
            pico("llama").generate(**options, assistant_model=pico("llama"))


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
    (
        {"guidance_scale": 1.5},
        r"UnbatchedClassifierFreeGuidanceLogitsProcessor cannot be used .* runs the model itself",
    ),
    ({"watermarking_config": {"bias": 2.0}}, r"WatermarkLogitsProcessor cannot be used with speculation"),
    ({"stop_strings": "x"}, r"stop_strings need the tokenizer, .*selfdraft.decoder\(tokenizer=tokenizer\)"),
    ({"stop_strings": "x", "tokenizer": letter_tokenizer()}, r"which transformers does not pass on"),
    ({"stopping_criteria": [ConfidenceCriteria(0.5)]}, r"ConfidenceCriteria is for assistant models"),
    (
        {"position_ids": torch.tensor([[5, 6, 7, 8, 9, 10, 11, 12]])},
        r"position_ids must count each row's tokens from 0",
    ),
    ({"past_key_values": filled_cache()}, r"past_key_values holds 3 tokens, .* pass the whole text as input_ids"),
    ({"inputs_embeds": torch.zeros(1, 8, 32)}, r"from input_ids and attention_mask alone, got inputs_embeds; leave"),
]


@pytest.mark.parametrize(("options", "message"), BAD_CALLS, ids=lambda value: str(value)[:40])
def test_what_cannot_be_done_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        pico("llama").generate(**{**INPUTS["single"], **options}, custom_generate=selfdraft.decoder())


def test_inputs_the_engine_cannot_read_are_refused() -> None:
    inputs = {**INPUTS["single"], "token_type_ids": torch.zeros(1, 8, dtype=torch.long)}
    with pytest.raises(OptionError, match="got token_type_ids"):
        pico("gpt2").generate(**inputs, custom_generate=selfdraft.decoder())
    found = pico("llama").generate(
        **INPUTS["single"], past_key_values=DynamicCache(), max_new_tokens=3, custom_generate=selfdraft.decoder()
    )
    assert found[0, 8:].tolist() == plain_tokens(PROMPTS[0], 3)


BAD_MASKS = [
    ([[1, 1, 1, 0], [1, 1, 1, 1]], r"attention_mask of row 0 has zeros after ones; pad on the left: .*padding_side"),
    ([[1, 1, 1, 1], [0, 1, 0, 1]], r"attention_mask of row 1 has zeros after ones"),
    ([[1, 1, 1, 1], [0, 0, 0, 0]], r"row 1 of the batch is all padding; every row needs at least one token"),
]


@pytest.mark.parametrize(("mask", "message"), BAD_MASKS)
def test_padding_stands_on_the_left(mask: list[list[int]], message: str) -> None:
    ids = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    with pytest.raises(PromptError, match=message):
        pico("llama").generate(ids, attention_mask=torch.tensor(mask), custom_generate=selfdraft.decoder())


def test_a_mask_of_another_shape() -> None:
    decode = selfdraft.decoder()
    config = GenerationConfig()
    with pytest.raises(PromptError, match=r"attention_mask has shape \[1, 3\], input_ids \[1, 2\]; they must agree"):
        decode(pico("llama"), torch.tensor([[1, 2]]), [], [], config, attention_mask=torch.ones(1, 3))


def test_a_streamer_shows_one_text() -> None:
    decode = selfdraft.decoder(streamer=TextStreamer(letter_tokenizer()))
    with pytest.raises(OptionError, match="a streamer shows one text, but the batch has 3 rows; pass one prompt"):
        pico("llama").generate(**INPUTS["padded"], custom_generate=decode)


def test_encoder_decoder_models_are_refused() -> None:
    model = T5ForConditionalGeneration(
        T5Config(vocab_size=20, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0)
    )
    with pytest.raises(OptionError, match="T5ForConditionalGeneration is an encoder-decoder model"):
        model.generate(torch.tensor([[1, 2]]), custom_generate=selfdraft.decoder())


def test_a_quantized_cache_is_refused() -> None:
    class QuantizedCache(DynamicCache):
        pass

    with pytest.raises(OptionError, match="a quantized cache changes the text"):
        _check_cache(QuantizedCache())


def test_rows_of_different_length_need_a_pad_token() -> None:
    hit = plain_tokens(PROMPTS[0])[4]
    criterion = EndsBehind(hit)
    criterion.eos_token_id = hit  # type: ignore[attr-defined]  # so that `generate` pads
    with pytest.raises(
        OptionError, match="rows end at different lengths, but there is no pad token; pass pad_token_id"
    ):
        pico("llama").generate(**INPUTS["padded"], stopping_criteria=[criterion], custom_generate=selfdraft.decoder())


def test_stateful_processors_of_transformers_are_refused_by_name() -> None:
    """Those the library makes and those derived from them."""
    for name in set(REFUSED_PROCESSORS) & set(vars(logits_process)):
        kind = type(f"My{name}", (getattr(logits_process, name),), {})
        with pytest.raises(OptionError, match=f"{name} cannot be used with speculation"):
            check_processors([kind.__new__(kind)])


def test_the_docs_run(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every Python block of the page, one after the other."""
    tokenizer = pico_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    model = pico("llama", vocab_size=len(tokenizer))
    names: dict[str, Any] = {"model": model, "tokenizer": tokenizer}
    page = (REPOSITORY / "docs" / "transformers.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        code = block.replace("path/to/selfdraft", folder).replace("max_new_tokens=64", "max_new_tokens=8")
        exec(code, names)
    assert capsys.readouterr().out
