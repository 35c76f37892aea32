"""Engine: what a caller can ask for and gets back."""

from __future__ import annotations

import copy
import itertools
import threading
from typing import Any
from unittest import mock

import pytest
import torch

from cases import SETTINGS
from learned import profile
from pico import CONTEXT_LENGTH, VOCAB_SIZE, letter_tokenizer, pico
from selfdraft import Engine, GenerateOptions, OptionError, PromptError, SkipSet
from selfdraft.engine.state import TextSequence
from selfdraft.registry import STRATEGIES

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(pico("llama"), letter_tokenizer(), strategy="uniform", settings={"confidence": {"threshold": 0.4}})


def with_eos(token: int) -> Engine:
    model = copy.deepcopy(pico("llama"))
    model.generation_config.eos_token_id = [VOCAB_SIZE - 1, token]
    return Engine(model, letter_tokenizer(), strategy="uniform", settings={"confidence": {"threshold": 0.1}})


class TestResult:
    def test_fields_belong_together(self, engine: Engine) -> None:
        found = engine.generate(PROMPT, max_new_tokens=30)
        stats = found.stats
        assert len(found.tokens) == len(found.sources) == stats.num_tokens == 30
        assert found.num_prompt_tokens == len(PROMPT)
        assert found.text == "".join(chr(33 + token) for token in found.tokens)
        assert found.sources.count("draft") == stats.num_accepted > 0
        assert stats.num_rounds == stats.num_target_passes == len(found.steps)
        assert stats.num_draft_steps == sum(len(step.draft.tokens) for step in found.steps)
        assert stats.acceptance_rate == stats.num_accepted / stats.num_draft_steps
        assert stats.mean_generated_length == 30 / len(found.steps)
        assert stats.tokens_per_second == 30 / stats.decode_seconds
        spent = stats.draft_seconds + stats.verify_seconds + stats.optimise_seconds
        assert 0 < spent <= stats.decode_seconds
        assert stats.prefill_seconds > 0

    def test_steps_retell_the_text(self, engine: Engine) -> None:
        found = engine.generate(PROMPT, max_new_tokens=30)
        emitted = tuple(itertools.chain.from_iterable(step.verdict.tokens for step in found.steps))
        assert emitted == found.tokens
        for step in found.steps:
            kept = step.verdict.num_accepted
            assert step.verdict.tokens[:kept] == step.draft.tokens[:kept]

    def test_off_never_drafts(self, engine: Engine) -> None:
        found = engine.generate(PROMPT, max_new_tokens=9, strategy="off")
        assert (found.stats.num_draft_steps, found.stats.acceptance_rate, found.stats.num_rounds) == (0, 0.0, 9)
        assert set(found.sources) == {"target"}


class TestLogprobs:
    @pytest.mark.parametrize("method", [{"strategy": "off"}, {"strategy": "uniform", "tree": "siblings"}], ids=str)
    def test_they_are_of_the_raw_scores_of_what_was_emitted(self, engine: Engine, method: dict[str, Any]) -> None:
        """Cut at a stop, in a batch, under rules and temperature: one for each token, in order."""
        rules = {"temperature": 0.9, "top_k": 20, "repetition_penalty": 1.2, "logit_bias": {30: 1.0}, "seed": 3}
        prompts = [PROMPT, [5, 6], [9]]
        stop = engine.generate(PROMPT, max_new_tokens=20, **rules, **method).text[11:13]
        found = engine.generate(prompts, max_new_tokens=20, stop=stop, logprobs=4, **rules, **method)
        assert found[0].finish_reason == "stop"
        for prompt, generation in zip(prompts, found, strict=True):
            raw = engine.scores_behind([*prompt, *generation.tokens[:-1]], len(generation.tokens)).log_softmax(-1)
            assert generation.logprobs is not None
            assert tuple(one.token for one in generation.logprobs) == generation.tokens
            assert [one for step in generation.steps for one in step.logprobs] == list(generation.logprobs)
            for place, one in enumerate(generation.logprobs):
                expected = raw[place].topk(4)
                assert one.logprob == pytest.approx(float(raw[place, one.token]), abs=1e-4)
                assert [token for token, _ in one.top] == expected.indices.tolist()
                assert [value for _, value in one.top] == pytest.approx(expected.values.tolist(), abs=1e-4)

    def test_a_stream_has_them_and_asking_changes_no_text(self, engine: Engine) -> None:
        stream = engine.stream(PROMPT, max_new_tokens=9, logprobs=0)
        pieces = [piece for chunk in stream for piece in chunk.pieces]
        assert tuple(piece.logprobs for piece in pieces) == stream.generation.logprobs
        assert all(piece.logprobs and piece.logprobs.top == () for piece in pieces)
        plain = engine.generate(PROMPT, max_new_tokens=9)
        assert (plain.logprobs, plain.tokens) == (None, stream.generation.tokens)
        assert stream.generation.to_dict()["logprobs"][0]["token"] == plain.tokens[0]


class TestStopping:
    def test_the_last_round_never_drafts_past_the_limit(self, engine: Engine) -> None:
        for limit in range(1, 12):
            found = engine.generate(PROMPT, max_new_tokens=limit, lookahead="fixed")
            assert len(found.tokens) == limit
            assert found.finish_reason == "length"
            assert found.stats.num_draft_steps <= sum(range(limit))

    def test_eos_inside_an_accepted_draft_discards_the_rest(self) -> None:
        plain = Engine(pico("llama")).generate(PROMPT, max_new_tokens=40, strategy="off").tokens
        engine = with_eos(plain[5])
        for token in set(plain[5:15]):
            engine.model.generation_config.eos_token_id = [VOCAB_SIZE - 1, token]
            found = engine.generate(PROMPT, max_new_tokens=40)
            assert found.tokens == plain[: plain.index(token) + 1]
            assert found.finish_reason == "eos"
            assert sum(len(step.verdict.tokens) for step in found.steps) == len(found.tokens)

    @pytest.mark.parametrize("strategy", ["off", "uniform"])
    def test_min_new_tokens_forbids_eos(self, strategy: str) -> None:
        plain = Engine(pico("llama")).generate(PROMPT, max_new_tokens=40, strategy="off").tokens
        eos = plain[4]
        engine = with_eos(eos)
        assert len(engine.generate(PROMPT, max_new_tokens=40, strategy=strategy).tokens) == plain.index(eos) + 1
        found = engine.generate(PROMPT, max_new_tokens=40, min_new_tokens=20, strategy=strategy)
        expected = engine.model.generate(
            torch.tensor([PROMPT]), max_new_tokens=40, min_new_tokens=20, do_sample=False, pad_token_id=0
        )
        assert list(found.tokens) == expected[0, len(PROMPT) :].tolist()
        assert len(found.tokens) >= 20

    @pytest.mark.parametrize("strategy", ["off", "uniform"])
    def test_a_stop_string_ends_the_text_before_it(self, engine: Engine, strategy: str) -> None:
        text = engine.generate(PROMPT, max_new_tokens=40, strategy="off").text
        stop, shown = text[17:20], ""
        stream = engine.stream(PROMPT, max_new_tokens=40, strategy=strategy, stop=[stop, "never"])
        for chunk in stream:
            shown += chunk.text
            assert text.startswith(shown), "what may become a stop string is held back"
        found = stream.generation
        assert found.text == shown == text[: text.index(stop)]
        assert found.finish_reason == "stop"
        assert len(found.tokens) == text.index(stop) + len(stop)

    def test_rows_stop_each_at_their_own_time(self) -> None:
        plain = [
            Engine(pico("llama")).generate([token], max_new_tokens=30, strategy="off").tokens for token in range(6)
        ]
        eos = plain[0][7]
        found = with_eos(eos).generate([[token] for token in range(6)], max_new_tokens=30)
        for generation, expected in zip(found, plain, strict=True):
            assert generation.tokens == expected[: expected.index(eos) + 1 if eos in expected else None]
        assert len({len(generation.tokens) for generation in found}) > 1

    @pytest.mark.parametrize("family", ["llama", "gpt2"])
    def test_the_context_is_used_to_its_end_and_no_further(self, family: str) -> None:
        engine = Engine(pico(family), strategy="uniform", settings={"confidence": {"threshold": 0.0}})
        prompts = [list(range(20)), [5] * (CONTEXT_LENGTH - 4)]
        found = engine.generate(prompts, max_new_tokens=40)
        assert [len(generation.tokens) for generation in found] == [40, 4]
        for row, prompt in enumerate(prompts):
            plain = engine.generate(prompt, max_new_tokens=40, strategy="off", sequence=row)
            assert plain.tokens == found[row].tokens
            assert plain.finish_reason == found[row].finish_reason == ("length", "context")[row]


class TestStreaming:
    def test_chunks_add_up_to_the_generation(self, engine: Engine) -> None:
        stream = engine.stream(PROMPT, max_new_tokens=30)
        rounds = [chunk.pieces for chunk in stream]
        pieces = list(itertools.chain.from_iterable(rounds))
        assert 0 < len(rounds[0]) < len(pieces), "they arrive as they are decoded"
        expected = engine.generate(PROMPT, max_new_tokens=30)
        assert "".join(piece.text for piece in pieces) == expected.text == stream.generation.text
        assert tuple(piece.token for piece in pieces) == expected.tokens
        assert tuple(piece.source for piece in pieces) == expected.sources

    def test_every_token_of_an_interrupted_text_has_its_source(self, engine: Engine) -> None:
        stream, answers = engine.stream(PROMPT, max_new_tokens=30), [*[None] * 11, KeyboardInterrupt]
        with mock.patch.object(TextSequence, "reason_to_stop", side_effect=answers), pytest.raises(KeyboardInterrupt):
            list(stream)
        assert len(stream.generation.tokens) == len(stream.generation.sources) == 12

    def test_a_batch_streams_by_row(self, engine: Engine) -> None:
        prompts = [PROMPT, [7, 7]]
        texts = ["", ""]
        for chunk in engine.stream(prompts, max_new_tokens=20):
            texts[chunk.row] += chunk.text
        assert texts == [generation.text for generation in engine.generate(prompts, max_new_tokens=20)]

    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_abandoning_a_stream_leaves_the_next_call_exact(self, strategy: str) -> None:
        engine = Engine(pico("llama"), strategy=strategy, settings=SETTINGS, profile=profile())
        expected = engine.generate(PROMPT, max_new_tokens=20).tokens
        for num_chunks in (0, 1, 4):
            stream = engine.stream([PROMPT, [1, 2]], max_new_tokens=20)
            for _ in itertools.islice(stream, num_chunks):
                pass
            stream.close()
            assert engine.generate(PROMPT, max_new_tokens=20).tokens == expected

    def test_a_closed_stream_keeps_what_it_has(self, engine: Engine) -> None:
        with engine.stream(PROMPT, max_new_tokens=30) as stream:
            next(iter(stream))
        found = stream.generation
        assert found.finish_reason == "cancelled"
        assert found.tokens == engine.generate(PROMPT, max_new_tokens=30).tokens[: len(found.tokens)]
        assert 0 < len(found.tokens) < 30
        assert list(stream) == []

    def test_an_exception_in_the_callers_processor_leaves_the_engine_usable(self, engine: Engine) -> None:
        def breaks(prefix: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            if prefix.shape[1] > 12:
                raise RuntimeError("mine")
            return scores

        expected = engine.generate(PROMPT, max_new_tokens=20).tokens
        with pytest.raises(RuntimeError, match="mine"):
            engine.generate(PROMPT, max_new_tokens=20, processors=[breaks])
        assert engine.generate(PROMPT, max_new_tokens=20).tokens == expected

    def test_cancelling_by_callback_and_from_another_thread(self, engine: Engine) -> None:
        asked = itertools.count()
        found = engine.generate(PROMPT, max_new_tokens=100, strategy="off", cancel=lambda: next(asked) >= 5)
        assert (found.finish_reason, len(found.tokens)) == ("cancelled", 5)
        stream = engine.stream(PROMPT, max_new_tokens=200, strategy="off")
        chunks = iter(stream)
        next(chunks)
        thread = threading.Thread(target=stream.cancel)
        thread.start()
        thread.join()
        assert len(list(chunks)) <= 1
        assert stream.generation.finish_reason == "cancelled"


class TestIndependence:
    def test_two_engines_interleave_on_one_model(self) -> None:
        model = pico("llama")
        engines = [
            Engine(model, strategy="fixed", settings={"fixed": {"skip": skip}}) for skip in ("a0-3,m1", "m0-4", "a2")
        ]
        expected = [engine.generate(PROMPT, max_new_tokens=24) for engine in engines]
        streams = [engine.stream(PROMPT, max_new_tokens=24) for engine in engines]
        for _ in itertools.zip_longest(*streams):
            pass
        plain = Engine(model).generate(PROMPT, max_new_tokens=24, strategy="off").tokens
        for stream, alone in zip(streams, expected, strict=True):
            assert stream.generation.tokens == alone.tokens == plain
            assert stream.generation.stats.num_accepted == alone.stats.num_accepted, "drafts were disturbed"
        assert len({generation.stats.num_accepted for generation in expected}) > 1

    def test_the_model_itself_is_not_changed(self) -> None:
        model = copy.deepcopy(pico("qwen2"))
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        tokens = torch.tensor([PROMPT])
        expected = model(tokens).logits
        Engine(model, strategy="uniform").generate(PROMPT, max_new_tokens=20)
        assert torch.equal(model(tokens).logits, expected)
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())

    def test_a_model_that_was_cast_is_attached_anew(self) -> None:
        model = copy.deepcopy(pico("llama"))
        engine = Engine(model, strategy="uniform")
        engine.generate(PROMPT, max_new_tokens=5)
        slot_bytes = engine.runner.slot_bytes
        model.double()
        assert engine.dtype == torch.float64
        found = engine.generate(PROMPT, max_new_tokens=30)
        assert engine.runner.slot_bytes == 2 * slot_bytes
        expected = model.generate(torch.tensor([PROMPT]), max_new_tokens=30, do_sample=False)
        assert list(found.tokens) == expected[0, len(PROMPT) :].tolist()


# What test_options.py refuses is refused by a call too: here how it gets there, and what only a call can tell.
BAD_CALLS = [
    ({"settings": {"lookup": {"min_ngram": 5, "max_ngram": 2}}}, r"lookup.min_ngram=5 is above lookup.max_ngram=2"),
    ({"strategy": "unifrom"}, r"unknown strategy 'unifrom'. Did you mean 'uniform'\? Known: asd, auto, clasp, "),
    ({"acceptance": "couple"}, r"unknown acceptance 'couple'. Did you mean 'coupled'\?"),
    ({"settings": {"uniform": {"ratio": 2}}}, r"uniform.ratio must be between 0 and 1, got 2"),
    ({"max_tokens": 5}, r"unknown option of generate 'max_tokens'. Did you mean 'max_new_tokens'\?"),
    ({"stop": [5]}, r"a stop string must be text that is not empty, got 5"),
    ({"stop": 5}, r"generate.stop must be a list, got 5"),
    ({"processors": 5}, r"generate.processors must be a list, got 5"),
    ({"cancel": True}, r"generate.cancel must be an event or a function that returns True to stop, got True"),
    ({"temperature": 1e-39}, r"generate.temperature=1e-39 is too small to divide by; use 0 for greedy"),
    ({"temperature": float("inf")}, r"generate.temperature must be between 0 and 1000, got inf"),
    ({"seed": 2**64}, r"generate.seed must be between 0 and 18446744073709551615, got 18446744073709551616"),
    ({"settings": {"uniform": 0.3}}, r"settings must be a dict of dicts like \{'uniform': \{'ratio': 0.3\}\}, got"),
    ({"strategy": ["off"]}, r"unknown strategy \"\['off'\]\""),
    ({"strategy": "fixed", "settings": {"fixed": {"skip": "a0-999999999"}}}, r"'a0-999999999' .* beyond .* last layer"),
    ({"strategy": "fixed"}, r"'fixed' needs a skip set: .*--set fixed.skip=a3,a5-7,m4"),
]


@pytest.mark.parametrize(("options", "message"), BAD_CALLS, ids=lambda value: str(value)[:50])
def test_bad_options_say_what_and_what_to_do(engine: Engine, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        engine.generate(PROMPT, **options)


def test_errors_at_the_door_of_the_engine() -> None:
    with pytest.raises(OptionError, match=r"unknown option of Engine 'stratgy'. Did you mean 'strategy'\?"):
        Engine(pico("llama"), stratgy="off")
    with pytest.raises(OptionError, match=r"'temperature' belongs to a call: engine.generate\(prompt, temperature=1\)"):
        Engine(pico("llama"), temperature=1)
    with pytest.raises(OptionError, match=r"use Engine\.from_pretrained"):
        Engine("gpt2")
    with pytest.raises(PromptError, match="no tokenizer; pass token ids"):
        Engine(pico("llama")).generate("text")
    with pytest.raises(PromptError, match=f"token id {VOCAB_SIZE} is outside the vocabulary"):
        Engine(pico("llama")).generate([VOCAB_SIZE])
    with pytest.raises(PromptError, match=f"the model's context holds {CONTEXT_LENGTH}; shorten"):
        Engine(pico("llama")).generate([1] * CONTEXT_LENGTH)
    with pytest.raises(OptionError, match="stop strings need a tokenizer"):
        Engine(pico("llama")).generate(PROMPT, stop="x")


def test_settings_of_a_call_replace_those_of_the_engine(engine: Engine) -> None:
    skip = engine.generate(PROMPT, max_new_tokens=5, settings={"uniform": {"ratio": 0.2}}).steps[0].plan.skip
    assert skip == SkipSet.of([2], [2])
    assert GenerateOptions().max_new_tokens == 256


class TestDefault:
    """The method where no strategy is named."""

    def test_it_chooses_and_what_is_named_counts(self) -> None:
        engine = Engine(pico("llama"), profile=profile())
        assert engine.names()["strategy"] == engine.names(drafter="lookup")["strategy"] == "auto"
        assert engine.names(strategy="off")["strategy"] == "off"
        assert engine.names(drafter="lookup")["settings"]["auto"] == {"drafter": "lookup"}
        own = engine.names(lookahead=engine.method(lookahead="fixed").lookahead)
        assert own["settings"]["auto"] == {"lookahead": "Fixed"}

    def test_a_damaged_profile_is_told_and_not_used(self) -> None:
        damaged = profile(prune={"frontier": "?"}, knn={"domains": "?"})
        with pytest.warns(UserWarning, match="drafting does without sets of 'prune', for the profile's frontier"):
            engine = Engine(pico("llama"), profile=damaged)
        found = engine.generate(PROMPT, max_new_tokens=20)
        assert found.tokens == engine.generate(PROMPT, max_new_tokens=20, strategy="off").tokens
