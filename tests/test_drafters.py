"""What each drafter hands over, by itself: states of an early exit, a second model's cache, n-grams of a window."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest
import torch

from pico import NUM_LAYERS, VARIANTS, VOCAB_SIZE, letter_tokenizer, pico, pico_tokenizer
from selfdraft import Engine, OptionError
from selfdraft.drafters.model import DraftBatch, Model, left_out
from selfdraft.drafters.ngram_pool import Guesses, NgramPool
from selfdraft.engine.draft import grow
from selfdraft.models.decoder import SubLayer
from selfdraft.models.eager import EagerRunner
from selfdraft.models.load.cut import cut
from selfdraft.passes import PassRequest
from selfdraft.protocols import DraftRows, Host
from selfdraft.types import Draft, Plan, SkipSet, StepRecord, Verdict

PROMPTS = ([3, 1, 4, 1, 5, 9, 2, 6], [7], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5])


class TestEarlyExit:
    """The first layers draft, and verification does not compute them again."""

    @staticmethod
    def count_passes(engine: Engine, prompts: list[list[int]], **options: Any) -> tuple[Counter[str], Any]:
        """How many tokens went through each sub-layer after the prefill."""
        passes: Counter[str] = Counter()
        runner = engine._runner

        def counted(sublayer: SubLayer) -> SubLayer:
            def run(hidden: torch.Tensor, step: Any) -> torch.Tensor:
                passes[sublayer.name] += hidden.shape[0] * hidden.shape[1]
                return sublayer.run(hidden, step)

            return SubLayer(sublayer.name, run)

        decoder = runner.decoder
        plain = decoder.sublayers
        decoder.sublayers, decoder._active = tuple(counted(part) for part in plain), {}
        try:
            found = engine.generate(prompts, **options)
        finally:
            decoder.sublayers, decoder._active = plain, {}
        last = f"m{NUM_LAYERS - 1}"  # leaves no keys: prompts do without it
        for prompt in prompts:
            passes.subtract({name: len(prompt) - 1 for name in passes if name != last})
        return passes, found

    @pytest.mark.parametrize("tree", ["chain", "siblings"])
    @pytest.mark.parametrize("layers", [1, 3])
    def test_no_draft_work_is_computed_twice(self, tree: str, layers: int) -> None:
        """Every verified token goes through every sub-layer once: in its draft pass or in the verification."""
        settings = {"early-exit": {"layers": layers}}
        engine = Engine(pico("llama"), strategy="early-exit", settings=settings, graphs=False)  # sub-layers are counted
        options: dict[str, Any] = {"max_new_tokens": 60, "tree": tree}
        passes, (found,) = self.count_passes(engine, [PROMPTS[0]], **options)
        columns = sum(1 + len(step.draft.tokens) for step in found.steps)
        assert passes == {f"{kind}{layer}": columns for kind in "am" for layer in range(NUM_LAYERS)}
        assert sum(step.draft.num_draft_steps for step in found.steps) > 20
        assert found.tokens == engine.generate(PROMPTS[0], strategy="off", max_new_tokens=60).tokens

    def test_a_row_without_a_draft_does_not_make_the_others_work_twice(self) -> None:
        """In every round with a draft, every drafted row brings its states and they are used."""
        engine = Engine(pico("llama"), strategy="early-exit", settings={"early-exit": {"layers": 3}})
        with mock.patch.object(EagerRunner, "forward", autospec=True, side_effect=EagerRunner.forward) as forward:
            found = engine.generate(list(PROMPTS), max_new_tokens=40, tree="siblings")
        requests = [call.args[1] for call in forward.call_args_list]
        resumed = [request.resume.num_known for request in requests if request.resume is not None]
        num_drafted = sum(bool(step.draft.tokens) for generation in found for step in generation.steps)
        assert sum(known > 0 for row in resumed for known in row) == num_drafted
        assert any(0 in known for known in resumed), "every row drafted in every round"
        for row, generation in enumerate(found):
            assert generation.tokens == engine.generate(PROMPTS[row], strategy="off", max_new_tokens=40).tokens

    @pytest.mark.parametrize(("layers", "num_layers"), [(5, 5), (9, 5), (0, 1), (1, 1)])
    def test_too_many_layers(self, layers: int, num_layers: int) -> None:
        model = pico("llama", num_hidden_layers=num_layers)
        with pytest.raises(OptionError, match=r"use 1 to 4|at least 2 layers, this one has 1"):
            Engine(model, strategy="early-exit", settings={"early-exit": {"layers": layers}})


class TestModel:
    @staticmethod
    def engine(*target: Any, **source: Any) -> Engine:
        draft = source or {"source": pico("llama", num_hidden_layers=2)}
        return Engine(*(target or [pico("llama")]), strategy="uniform", drafter="model", settings={"model": draft})

    @staticmethod
    def drafter() -> Model:
        return Model(Model.Options(source=pico("llama", num_hidden_layers=2)), Host(EagerRunner(pico("llama"))))

    @staticmethod
    def opened(drafter: Model, *ids: int) -> Any:
        rows = DraftRows(tuple(range(len(ids))), ids, tuple(PROMPTS[index] for index in ids))
        return drafter.open(drafter._runner, drafter._runner.new_cache(1, 1), rows)

    def test_a_model_drafts_for_itself_perfectly(self) -> None:
        """So the cache of the draft model follows the text through every round, alone and in a ragged batch."""
        engine = self.engine(source=copy.deepcopy(pico("llama")))
        for options in ({}, {"temperature": 0.9, "seed": 3}, {"tree": "siblings"}):
            for generation in engine.generate(list(PROMPTS), max_new_tokens=40, lookahead="fixed", **options):
                assert generation.stats.acceptance_rate == 1.0

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_one_cut_from_the_target(self, variant: str) -> None:
        """It says what the target says without these layers, shares its weights, and leaves it as it was."""
        target = pico(variant)
        runner, skip = EagerRunner(target), SkipSet.parse("a1,a3,m1,m3")
        if runner.num_layers < 4:
            pytest.skip("too few layers")
        draft = cut(target, left_out("1, 3"))
        request = PassRequest([list(PROMPTS[0])], [0], skip=skip)
        expected = runner.forward(request, runner.new_cache(1, 32)).scores
        own = EagerRunner(draft)
        found = own.forward(request._replace(skip=SkipSet()), own.new_cache(1, 32)).scores
        assert (own.num_layers, runner.num_layers) == (runner.num_layers - 2, len(runner.decoder._layers))
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
        assert {weight.data_ptr() for weight in draft.parameters()} <= {one.data_ptr() for one in target.parameters()}

    def test_the_option_that_cuts(self) -> None:
        engine = self.engine(without="1,3")
        found = engine.generate(PROMPTS[0], max_new_tokens=24)
        assert found.tokens == engine.generate(PROMPTS[0], strategy="off", max_new_tokens=24).tokens
        assert found.stats.num_accepted > 0
        assert Model.draft_model(Model.Options(without="1,3")) == "without 1,3"
        for options, message in (
            ({"without": "9"}, "the model has 5 layers, 0 to 4"),
            ({"without": "x"}, "must be layers like 4,7-11"),
            ({"without": "3-1"}, "must be layers like 4,7-11"),
            ({"without": "1", "source": "a"}, "leave it out, or model.source"),
        ):
            with pytest.raises(OptionError, match=message):
                self.engine(**options)

    def test_only_what_is_new_is_fed(self) -> None:
        with mock.patch.object(DraftBatch, "_forward", autospec=True, side_effect=DraftBatch._forward) as forward:
            generation = self.engine().generate(PROMPTS[0], max_new_tokens=40)
        fed = [call.args[2].shape[1] for call in forward.call_args_list]
        assert generation.stats.num_accepted > 0
        assert max(fed) <= 8
        assert sum(fed) <= generation.stats.num_draft_steps + generation.stats.num_rounds + len(PROMPTS[0])

    def test_rows_that_part_and_meet_again(self) -> None:
        """Another order or another company than before: the rows begin a new cache, the text does not change."""
        drafter = self.drafter()

        def propose(*ids: int) -> torch.Tensor:
            scores = self.opened(drafter, *ids).propose(torch.tensor([PROMPTS[index][-1] for index in ids])).scores
            assert scores is not None
            return scores

        alone = [propose(index) for index in range(3)]
        for ids in ((0, 1, 2), (2, 0), (0, 2), (1,), (0, 1, 2), (0, 2), (1, 2)):
            torch.testing.assert_close(propose(*ids), torch.cat([alone[index] for index in ids]), rtol=1e-4, atol=1e-4)

    def test_a_row_that_does_not_draft_stays_as_long_as_its_text(self) -> None:
        drafter = self.drafter()
        self.opened(drafter, 0, 1)
        for _ in range(5):
            session = self.opened(drafter, 0)
            for _ in range(4):
                session.propose(torch.tensor([5]))
        self.opened(drafter, 0)
        (batch,) = drafter._batches
        assert len(batch.cached[1]) <= len(PROMPTS[1])
        for sequence_id in range(3):
            drafter.end(sequence_id)
        assert (drafter._batches, drafter._ended) == ([], set())

    def test_vocabularies_padded_differently(self) -> None:
        model, tokenizer = pico("llama", num_hidden_layers=2, vocab_size=VOCAB_SIZE + 16), letter_tokenizer()
        for target, draft in ((pico("llama"), model), (model, pico("llama"))):
            engine = self.engine(target, tokenizer, source=draft, tokenizer=letter_tokenizer())
            found = engine.generate(PROMPTS[0], max_new_tokens=20, temperature=0.8, tree="siblings")
            plain = engine.generate(PROMPTS[0], max_new_tokens=20, temperature=0.8, strategy="off")
            assert found.tokens == plain.tokens

    @pytest.mark.parametrize(
        ("source", "message"),
        [
            ({"source": ""}, r"needs a draft model: pass settings=.*--set model.source=NAME"),
            ({"source": pico("llama", vocab_size=6)}, r"LlamaForCausalLM cannot draft.*has 6 tokens, the target's 112"),
            ({"source": pico("llama", vocab_size=6)}, r"if only their padding differs, pass both tokenizers"),
            ({"source": None}, r"model.source must be a name, a path or a loaded model, got None"),
            ({"source": [1]}, r"model.source must be a name, a path or a loaded model, got \[1\]"),
            ({"source": pico("llama"), "tokenizer": "abc"}, r"model.tokenizer must be a tokenizer, got 'abc'"),
        ],
    )
    def test_no_or_another_model(self, source: dict[str, Any], message: str) -> None:
        with pytest.raises(OptionError, match=message):
            self.engine(**source)

    def test_another_tokenizer(self) -> None:
        with pytest.raises(OptionError, match=r"its tokenizer has \d+ tokens that are not the \d+ of .*same family"):
            self.engine(pico("llama"), letter_tokenizer(), source=pico("llama"), tokenizer=pico_tokenizer())


class TestNgramPool:
    @staticmethod
    def step(draft: Draft, choices: Sequence[int], verdict: Verdict) -> StepRecord:
        return StepRecord(0, Plan(), draft, verdict, choices=tuple(choices))

    def test_jacobi_guesses_are_what_the_target_said(self) -> None:
        guesses = Guesses(NgramPool.Options(window=0, tokens=4), [50, 51])
        draft = Draft.chain([1, 2, 3, 4])
        # After the text it says 1, after 1 it says 9, after 2, 3 and 4 (in a text that is wrong by then) 21, 31, 41.
        guesses.learn(self.step(draft, [1, 9, 21, 31, 41], Verdict((1, 9), (0,))))
        assert guesses.candidates(9)[0][:3] == [21, 31, 41]
        assert len(guesses.candidates(9)[0]) == 4

    def test_the_window_moves_with_the_text_and_fills_the_pool(self) -> None:
        guesses = Guesses(NgramPool.Options(window=3, ngram=3, guesses=2), [50])
        guesses.levels = [[1, 2, 3], [11, 12, 13]]
        paths = guesses.paths()
        assert paths == [[1, 11], [1, 2, 12], [1, 2, 3, 13]]
        draft = grow([], paths, max_depth=10)
        said = {draft.find(path): 100 + index for index, path in enumerate(paths)}
        choices = [0, *(said.get(node, 0) for node in range(len(draft.tokens)))]
        guesses.learn(self.step(draft, choices, Verdict((7,))))
        assert guesses.pool == {1: [[11, 100]], 2: [[12, 101]], 3: [[13, 102]]}
        assert guesses.levels == [[11, 12, 13], [100, 101, 102]]
        draft = grow([], guesses.paths(), max_depth=10)
        guesses.learn(self.step(draft, [0] * 99, Verdict((7, 8), (0,))))
        assert guesses.levels[0][:2] == [101, 102], "two tokens were emitted: all stand one column nearer"

    def test_a_text_that_repeats_itself_is_guessed(self) -> None:
        engine = Engine(pico("llama"), strategy="uniform", drafter="ngram-pool", lookahead="fixed")
        found = engine.generate(PROMPTS[0], max_new_tokens=150)
        assert found.stats.num_accepted > 10
        assert found.tokens == engine.generate(PROMPTS[0], max_new_tokens=150, strategy="off").tokens


@pytest.mark.parametrize(("name", "state"), [("model", "_batches"), ("ngram-pool", "_texts")])
def test_nothing_is_kept_of_texts_that_ended(name: str, state: str) -> None:
    engine = Engine(pico("llama"), drafter=name, settings={"model": {"source": pico("llama", num_hidden_layers=2)}})
    streams = [engine.stream(list(PROMPTS), max_new_tokens=20) for _ in range(2)]
    for _ in itertools.zip_longest(*streams):
        pass
    stream = engine.stream(PROMPTS[0], max_new_tokens=20)
    next(iter(stream))
    stream.close()
    (drafter,) = (part for part in engine._parts.built.values() if isinstance(part, Model | NgramPool))
    assert not getattr(drafter, state)


def test_reuse_is_left_out_where_a_strategy_wants_states_from_below() -> None:
    runner = EagerRunner(pico("llama"))
    assert runner.can_resume("m1", ("m2", "norm"))
    assert not runner.can_resume("m1", ("m1",))
    assert not runner.can_resume("m1", ("embedding", "norm"))
