"""The classifier of `disco`: what it is trained on, what it learns, what is kept of it, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import learned
from cases import SETTINGS
from pico import letter_tokenizer, pico
from selfdraft import Engine, OptionError, ProfileError
from selfdraft.calibrate import lookahead as module
from selfdraft.calibrate import traces as traces_module
from selfdraft.calibrate.lookahead import LookaheadOptions, train_lookahead
from selfdraft.calibrate.traces import Trace, collect, overlap
from selfdraft.calibrate.training import Examples, classifier_hits, f1, hits, oracle_depths, static_hits, train
from selfdraft.calibrate.writing import Text
from selfdraft.cli.main import main
from selfdraft.cli.profile_text import as_text
from selfdraft.drafted import DraftStats
from selfdraft.drafters.lookup import find_matches
from selfdraft.engine import engine as engine_module
from selfdraft.lookahead.disco import Disco, artefact_name
from selfdraft.models.gpu.runner import GraphRunner
from selfdraft.profiles.profile import Artefact
from selfdraft.profiles.store import Store
from selfdraft.registry import DRAFTERS
from selfdraft.types import Prompt
from tape import TapeRecorder

pytestmark = pytest.mark.usefixtures("home", "untimed")

PROMPTS = [
    Prompt("a1", "a", tokens=(5, 6, 7, 8)),
    Prompt("b1", "b", tokens=(20, 30, 40)),
    Prompt("a2", "a", tokens=(2, 7, 1, 8, 2, 8, 1, 8, 2, 8)),
    Prompt("b2", "b", tokens=(9, 9, 3)),
]
UNIFORM = {"strategy": "uniform", "settings": {"uniform": {"ratio": 0.4}}}
COMMAND = ["calibrate", "--lookahead", "disco"]
QUICK = LookaheadOptions(num_tokens=6, max_tokens=3)


def new_engine(family: str = "llama", **options: Any) -> Engine:
    return Engine(pico(family), letter_tokenizer(), settings=SETTINGS, profile=learned.profile(), **options)


def token_by_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way that every drafter goes."""
    monkeypatch.setattr(traces_module, "_known_drafts", lambda *values: None)


def assert_alike(found: Trace, expected: Trace) -> None:
    assert found.domain == expected.domain
    assert found.has_scores == expected.has_scores
    for name in ("is_drafted", "is_kept", "match_lengths"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert_close(found, expected)


def assert_close(found: Trace, expected: Trace) -> None:
    for name in ("top_probs", "entropies", "confidences", "overlaps"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-4, atol=1e-4, msg=name)


class TestTraces:
    @pytest.mark.parametrize(
        ("family", "method"),
        [
            ("llama", UNIFORM),
            ("llama", {"drafter": "model", "settings": {"model": {"source": "", "without": "2"}}}),
            pytest.param("gemma2", {"strategy": "fixed"}, marks=pytest.mark.full),
            ("gpt2", {"strategy": "early-exit"}),
            ("gpt_neox", {"strategy": "fixed", "settings": {"fixed": {"skip": "m1,a2"}}}),
        ],
    )
    def test_both_ways_agree(self, family: str, method: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        engine = new_engine(family)
        at_once = collect(engine, method, PROMPTS[1:], 16)
        token_by_token(monkeypatch)
        for found, expected in zip(collect(engine, method, PROMPTS[1:], 16), at_once, strict=True):
            assert_alike(found, expected)
        drafted = torch.cat([trace.is_kept for trace in at_once])
        assert 0 < drafted.sum() < len(drafted) == 16 * 3

    def test_recorded_drafts_show_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        expected = collect(new_engine(), UNIFORM, PROMPTS[:2], 12)
        token_by_token(monkeypatch)
        runner = partial(GraphRunner, make_recorder=TapeRecorder)
        with mock.patch.object(engine_module, "make_runner", lambda model, *_: runner(model)):
            recorded = new_engine()
        for found, one in zip(collect(recorded, UNIFORM, PROMPTS[:2], 12), expected, strict=True):
            assert_alike(found, one)

    def test_temperature_changes_the_text_not_what_is_seen(self) -> None:
        """After the same prefix the draft shows the same, however its token is drawn."""
        engine, sampling = new_engine(), {"temperature": 0.9, "seed": 3}
        (found,) = collect(engine, UNIFORM, PROMPTS[:1], 20, sampling=sampling)
        prompt = PROMPTS[0].tokens
        text = engine.generate(prompt, max_new_tokens=21, strategy="off", **sampling).tokens[:20]
        assert text != engine.generate(prompt, max_new_tokens=20, strategy="off").tokens
        drafts = traces_module._known_drafts(engine, UNIFORM)
        assert drafts is not None
        parts = traces_module._scored(Text((*prompt, *text), len(prompt)), engine.runner, *drafts)
        expected = traces_module._trace("a", parts, has_scores=True)
        assert_close(found, expected)
        assert 0 < found.is_kept.sum() < 20

    def test_the_separate_model_after_every_prefix(self) -> None:
        engine, small = new_engine(), Engine(SETTINGS["model"]["source"], strategy="off")
        (found,) = collect(engine, {"drafter": "model"}, PROMPTS[:1], 16)
        text = [*PROMPTS[0].tokens, *engine.generate(PROMPTS[0].tokens, max_new_tokens=16, strategy="off").tokens]
        for index, kept in enumerate(found.is_kept.tolist()):
            prefix, token = text[: 4 + index], text[4 + index]
            draft, target = small.scores_behind(prefix), engine.scores_behind(prefix)
            assert (int(draft.argmax()) == token) == kept
            assert found.confidences[index] == pytest.approx(float(draft.softmax(-1).max()), abs=1e-4)
            assert found.overlaps[index] == pytest.approx(float(overlap(draft, target)), abs=1e-4)
            variation = 0.5 * (draft.softmax(-1) - target.softmax(-1)).abs().sum()
            assert found.overlaps[index] == pytest.approx(1 - float(variation), abs=1e-4)

    def test_lookup_shows_its_first_token(self) -> None:
        engine, prompt = new_engine(), PROMPTS[2].tokens
        (found,) = collect(engine, {"drafter": "lookup"}, PROMPTS[2:3], 30)
        text = [*prompt, *engine.generate(prompt, max_new_tokens=30, strategy="off").tokens]
        assert not found.has_scores
        assert found.is_drafted.any()
        for index in range(30):
            prefix, token = text[: len(prompt) + index], text[len(prompt) + index]
            (match, *_) = find_matches(prefix, 8, 1, 12) or [None]
            assert bool(found.is_drafted[index]) == (match is not None)
            if match is not None:
                assert bool(found.is_kept[index]) == (match.tokens[0] == token)
                assert found.match_lengths[index] == match.length
                chance = float(engine.scores_behind(prefix).softmax(-1)[0, match.tokens[0]])
                assert found.overlaps[index] == pytest.approx(chance, abs=1e-4)

    @pytest.mark.parametrize("drafter", DRAFTERS)
    @pytest.mark.parametrize("strategy", ["prune", "knapspec"])
    def test_every_draft_has_traces(self, strategy: str, drafter: str) -> None:
        (found,) = collect(new_engine(), {"strategy": strategy, "drafter": drafter}, PROMPTS[2:3], 20)
        assert len(found) == 20
        assert found.is_drafted.any() or drafter == "ngram-pool", "its pool may be empty"
        assert not (found.is_kept & ~found.is_drafted).any()
        assert ((found.overlaps >= 0) & (found.overlaps <= 1 + 1e-5)).all()

    def test_a_text_that_ends(self) -> None:
        engine = new_engine()
        generated = engine.generate(PROMPTS[0].tokens, max_new_tokens=20, strategy="off").tokens
        with mock.patch.object(engine.model.generation_config, "eos_token_id", generated[8]):
            length = generated.index(generated[8]) + 1
            (at_once,) = collect(engine, UNIFORM, PROMPTS[:1], 20)
            (one_by_one,) = collect(engine, {"drafter": "model"}, PROMPTS[:1], 20)
        assert len(at_once) == len(one_by_one) == length
        assert one_by_one.is_drafted.all()

    def test_time_and_progress(self) -> None:
        told, has_time = mock.Mock(), mock.Mock(side_effect=[True, False])
        found = collect(new_engine(), {"drafter": "lookup"}, PROMPTS, 5, told, has_time=has_time)
        assert [trace.domain for trace in found] == ["a", "b"]
        done = [call.args[:2] for call in told.call_args_list]
        assert done[-1] == (11, 20)
        assert done == sorted(done)


# ------------------------------------------------------------------------------------------------ training


def made_trace(is_kept: torch.Tensor, confidences: torch.Tensor, domain: str = "a", **changed: Any) -> Trace:
    """All that is known of a token is how sure the draft was of it."""
    count = len(is_kept)
    values: dict[str, Any] = {
        "top_probs": torch.nn.functional.pad(confidences[:, None], (0, DraftStats.NUM_TOP - 1)),
        "entropies": -torch.xlogy(confidences, confidences),
        "confidences": confidences,
        "match_lengths": torch.zeros(count, dtype=torch.long),
        "is_drafted": torch.ones(count, dtype=torch.bool),
        "is_kept": is_kept,
        "overlaps": confidences,
        "has_scores": True,
    }
    return Trace(domain, **{**values, **changed})


def planted(seed: int, count: int = 300) -> Trace:
    """Tokens of middling confidence are kept, the others are not: no threshold on it would do."""
    generator = torch.Generator().manual_seed(seed)
    confidences = torch.rand(count, generator=generator)
    return made_trace((confidences > 0.3) & (confidences < 0.8), confidences)


class TestTraining:
    def test_what_decides_is_learned(self) -> None:
        training, validation = [planted(seed) for seed in range(6)], [planted(seed) for seed in range(6, 9)]
        classifier = train(training, validation)
        static = max(f1(static_hits(trace, length) for trace in validation) for length in range(1, 13))
        assert f1(classifier_hits(classifier, trace) for trace in validation) > 0.95 > 0.8 > static

    @pytest.mark.full
    def test_position_can_decide(self) -> None:
        """Late tokens are kept, early ones are not; beyond the trained positions it is as at the last of them."""
        places = torch.arange(100)
        trace = made_trace(places >= 50, torch.full((100,), 0.5))
        classifier = train([trace] * 4, [trace])
        assert classifier.last_position == 99
        assert f1([classifier_hits(classifier, trace)]) > 0.97
        longer = made_trace(torch.arange(300) >= 50, torch.full((300,), 0.5))
        assert f1([classifier_hits(classifier, longer)]) > 0.97

    @pytest.mark.full
    def test_soft_labels_are_chances(self) -> None:
        generator = torch.Generator().manual_seed(0)
        confidences = torch.rand(2000, generator=generator)
        overlaps = 0.2 + 0.6 * confidences
        trace = made_trace(torch.rand(2000, generator=generator) < overlaps, confidences, overlaps=overlaps)
        rows = Examples.of([trace], "tv", 1999.0)
        soft = train([trace], [trace], "tv").logits(rows.rows).sigmoid()
        assert float((soft - overlaps).abs().mean()) < 0.02
        hard = train([trace], [trace], "match").logits(rows.rows).sigmoid()
        assert 0.02 < float((hard - overlaps).abs().mean()) < 0.1, "the same, from coins that were tossed"

    def test_the_same_seed_gives_the_same_classifier(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("selfdraft.calibrate.training._MAX_EPOCHS", 30)
        once, again, other = (train([planted(0)], [planted(1)], seed=seed) for seed in (0, 0, 1))
        for name, array in once.arrays().items():
            assert torch.equal(array, again.arrays()[name])
        assert not torch.equal(once.hidden_weight, other.hidden_weight)

    def test_it_takes_features_as_they_come(self) -> None:
        """Standardising is inside; what never varied in training (here nine probabilities) decides nothing."""
        classifier = train([planted(0)], [planted(1)])
        assert not classifier.hidden_weight[:, 1:10].any()
        assert classifier.hidden_weight[:, 0].abs().max() > 0
        rows = Examples.of([planted(2)], "match", classifier.last_position)
        predicted = classifier.logits(rows.rows) >= 0
        assert (predicted == rows.is_kept).float().mean() > 0.95

    def test_training_stops_where_validation_is_best(self) -> None:
        """Labels that are pure noise: the best that can be said is their share."""
        coins, others, *sure = torch.rand(4, 60, generator=torch.Generator().manual_seed(1))
        training, validation = made_trace(coins < 0.7, sure[0]), made_trace(others < 0.7, sure[1])
        classifier = train([training], [validation])
        chances = classifier.logits(Examples.of([validation], "match", 59.0).rows).sigmoid()
        assert float(chances.std()) < 0.15

    def test_inside_inference_mode(self) -> None:
        with torch.inference_mode():
            classifier = train([planted(0)], [planted(0)])
        assert f1([classifier_hits(classifier, planted(1))]) > 0.9

    def test_tokens_that_were_not_drafted_do_not_count(self) -> None:
        is_drafted = torch.tensor([True, False, True])
        trace = made_trace(torch.tensor([True, False, False]), torch.tensor([0.9, 0.0, 0.4]), is_drafted=is_drafted)
        examples = Examples.of([trace, trace], "match", 2.0)
        assert examples.rows[:, 0].tolist() == pytest.approx([0.9, 0.4] * 2)
        assert examples.rows[:, -1].tolist() == [0.0, 2.0] * 2
        assert examples.labels.tolist() == [1.0, 0.0] * 2


class TestF1:
    def test_by_hand(self) -> None:
        predicted, kept = (torch.tensor(flags, dtype=torch.bool) for flags in ([1, 1, 1, 0, 0], [1, 1, 0, 1, 0]))
        assert hits(predicted, kept) == (4, 6)
        assert f1([(4, 6)]) == pytest.approx(2 / 3)  # precision 2/3, recall 2/3
        assert f1([(4, 6), (6, 6)]) == pytest.approx(10 / 12), "of several texts all over all"
        assert f1([hits(torch.zeros(3), torch.ones(3))]) == 0
        assert f1([hits(torch.zeros(3), torch.zeros(3))]) == f1([]) == 0
        assert f1([hits(torch.ones(3), torch.ones(3))]) == 1

    def test_rounds_end_with_the_first_refused_token(self) -> None:
        kept = torch.tensor([1, 1, 0, 0, 1, 0, 1, 1]).bool()
        is_drafted = torch.tensor([1, 1, 1, 1, 1, 0, 1, 1]).bool()
        trace = made_trace(kept, torch.ones(8), is_drafted=is_drafted)
        assert oracle_depths(trace).tolist() == [1, 2, 3, 1, 1, 2, 1, 2]

    def test_the_static_rule_by_hand(self) -> None:
        """Rounds of two kept and one refused token: with 2 the rule is right, with 3 it keeps one too many."""
        trace = made_trace(torch.tensor([1, 1, 0] * 4).bool(), torch.ones(12))
        assert f1([static_hits(trace, 2)]) == 1
        assert f1(2 * [static_hits(trace, 3)]) == pytest.approx(2 * 8 / (12 + 8))
        assert f1([static_hits(trace, 1)]) == pytest.approx(2 * 4 / (4 + 8))


# ------------------------------------------------------------------------------------------------ all of it


class TestTrainLookahead:
    def test_what_is_kept(self, home: Path) -> None:
        engine = Engine(pico("llama"), letter_tokenizer(), name="pico", profile=None)
        found = train_lookahead(engine, UNIFORM, PROMPTS, QUICK)
        kept = Store().load(engine.knowledge.key).artefacts[artefact_name("self")]
        method = {"drafter": "self", "strategy": "uniform", "settings": '{"uniform": {"ratio": 0.4}}'}
        told = {**method, "label": "match", "domains": ["a", "b"], "num_tokens": 12, "num_validation_tokens": 12}
        assert {name: kept.values[name] for name in told} == told
        assert set(kept.values["seconds_per_token"]) == {"plain", "static", "disco"}
        assert all(0 <= kept.values[name] <= 1 for name in ("f1", "f1_static"))
        assert found.counts.num_tokens == found.counts.num_drafted == 24

        lookahead = engine.method(lookahead="disco", **UNIFORM).lookahead
        assert isinstance(lookahead, Disco)
        assert torch.equal(lookahead.classifier.hidden_weight, found.classifier.hidden_weight)
        best = found.fastest("disco").candidate
        assert {name: kept.values[name] for name in ("threshold", "max_tokens")} == dict(best.options)
        drafted = engine.generate([5, 6, 7], max_new_tokens=20, lookahead="disco", **UNIFORM)
        assert drafted.tokens == engine.generate([5, 6, 7], max_new_tokens=20, strategy="off").tokens
        assert drafted.stats.num_draft_steps > 0

    def test_each_drafter_has_its_own(self) -> None:
        engine = Engine(pico("llama"), letter_tokenizer(), name="pico", profile=None, settings=SETTINGS)
        for drafter in ("self", "ngram-pool"):
            train_lookahead(engine, {"drafter": drafter}, PROMPTS, QUICK)
        assert sorted(engine.knowledge.profile.artefacts) == ["disco-ngram-pool", "disco-self"]

    def test_training_and_validation_never_share_a_text(self, monkeypatch: pytest.MonkeyPatch) -> None:
        collected = mock.Mock(wraps=module.collect)
        monkeypatch.setattr(module, "collect", collected)
        again = Prompt("again", "b", tokens=PROMPTS[0].tokens)
        train_lookahead(new_engine(), UNIFORM, [*PROMPTS, again], QUICK)
        seen = [call.args[2] for call in collected.call_args_list]
        validation, training = ({prompt.tokens for prompt in some} for some in seen)
        assert [prompt.id for prompt in seen[0]] == ["a2", "b2"]
        assert validation.isdisjoint(training)
        assert sum(map(len, seen)) == len(PROMPTS)

    @pytest.mark.full
    def test_the_budget_leaves_prompts_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        said: list[str] = []
        monkeypatch.setattr(module.LookaheadFit, "_affordable", lambda work, prompt: 6)
        many = [Prompt(str(n), "a", tokens=(n + 1, n + 2)) for n in range(9)]
        short = LookaheadOptions(num_tokens=6, max_tokens=3, budget_seconds=1e-9)
        found = train_lookahead(new_engine(), {"drafter": "model"}, many, short, say=said.append)
        assert any("time is up after 1 of 2 prompts" in line for line in said)
        assert found.facts["num_tokens"] == found.facts["num_validation_tokens"] == 6
        assert all(row.total.num_prompts == 1 for row in found.rows)

    @pytest.mark.parametrize("where", ["train", "run_whole"])
    def test_an_interruption_leaves_the_profile_as_it_was(self, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = Engine(pico("llama"), letter_tokenizer(), name="pico", profile=None)
        Store().update(engine.knowledge.key, "disco-self", learned.disco("self"))
        path = Store().path_of(engine.knowledge.key)
        before = path.read_bytes()
        monkeypatch.setattr(module, where, mock.Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train_lookahead(engine, UNIFORM, PROMPTS, QUICK)
        assert path.read_bytes() == before
        assert Store().load(engine.knowledge.key) is not None

    def test_a_damaged_profile_is_made_again_and_named(self) -> None:
        engine = Engine(pico("llama"), letter_tokenizer(), name="pico", profile=None)
        Store().update(engine.knowledge.key, "disco-self", learned.disco("self"))
        path = Store().path_of(engine.knowledge.key)
        (arrays,) = path.with_suffix("").glob("*")
        arrays.write_bytes(b"damaged")
        said: list[str] = []
        train_lookahead(engine, UNIFORM, PROMPTS, QUICK, say=said.append)
        assert any(f"the profile {path} could not be used" in line for line in said)
        assert engine.method(lookahead="disco", **UNIFORM)

    def test_nothing_to_train_with(self) -> None:
        for prompts in ([], PROMPTS[:2], [PROMPTS[0], PROMPTS[0]]):
            with pytest.raises(OptionError, match="at least two different prompts of one domain"):
                train_lookahead(new_engine(), UNIFORM, prompts, QUICK)
        with pytest.raises(OptionError, match="'self' with the strategy 'off' drafted nothing in these texts"):
            train_lookahead(new_engine(), {"strategy": "off"}, PROMPTS, QUICK)


# ------------------------------------------------------------------------------------------------ what is refused


def use(profile_part: Artefact | None, **method: Any) -> Any:
    """A lookahead `disco` for a model with this in its profile."""
    parts = {} if profile_part is None else {artefact_name(method.get("drafter", "self")): profile_part}
    known = replace(learned.profile(), artefacts=parts)
    return Engine(pico("llama"), name="pico model", profile=known).method(lookahead="disco", **method).lookahead


TRAIN = r"selfdraft calibrate 'pico model' --lookahead disco --strategy uniform --drafter self"


def without(name: str) -> Artefact:
    content = learned.disco("self").content
    del content[name]
    return Artefact.of(content)


def with_array(**arrays: torch.Tensor) -> Artefact:
    return Artefact.of({**learned.disco("self").content, **arrays})


class TestRefusals:
    @pytest.mark.parametrize(
        ("part", "message"),
        [
            (None, "the lookahead 'disco' with the drafter 'self' needs to know the model"),
            (learned.disco("self", fingerprint="another"), "was trained for another model (another). Train one with: "),
            (without("threshold"), "KeyError: 'threshold'"),
            (without("output_bias"), "KeyError: 'output_bias'"),
            (without("drafter"), "KeyError: 'drafter'"),
            (with_array(hidden_weight=torch.zeros(3, 7)), "its arrays have the shapes"),
            (with_array(hidden_bias=torch.zeros(())), "TypeError"),
            (with_array(output_weight=torch.full((3,), torch.nan)), "values that are not numbers"),
            (learned.disco("self", threshold=2.0), "its threshold 2.0 or its maximum 6 is out of range"),
            (learned.disco("self", threshold="high"), "TypeError"),
            (learned.disco("self", max_tokens=0), "its maximum 0 is out of range"),
            (learned.disco("self", max_tokens=2.5), "its maximum 2.5 is out of range"),
            (learned.disco("lookup"), "was trained for the drafter 'lookup', not for 'self'"),
        ],
    )
    def test_what_cannot_be_used_names_the_command(self, part: Artefact | None, message: str) -> None:
        with pytest.raises(ProfileError) as raised:
            use(part)
        assert message in str(raised.value)
        assert str(raised.value).endswith(TRAIN)

    def test_another_draft_model_is_another_drafter(self) -> None:
        small = pico("llama", num_hidden_layers=2)
        part = learned.disco("model", source="some/model")
        settings = {"model": {"source": small}}
        assert use(part, drafter="model", settings=settings), "a loaded model has no name: nothing is known"
        with mock.patch.object(small.config, "_name_or_path", "other/model"), pytest.raises(ProfileError) as raised:
            use(part, drafter="model", settings=settings)
        assert "for the drafter 'model' (some/model), not for 'model' (other/model)" in str(raised.value)

    def test_the_command_names_the_settings(self) -> None:
        settings = {"fixed": {"skip": "a1,m2"}, "lookup": {"max_ngram": 4, "min_ngram": 2}}
        with pytest.raises(ProfileError) as raised:
            use(None, strategy="fixed", drafter="lookup", settings=settings)
        command = "selfdraft calibrate 'pico model' --lookahead disco --strategy fixed --drafter lookup "
        assert str(raised.value).endswith(f"Run: {command}--set fixed.skip=a1,m2 --set lookup.max_ngram=4")

    @pytest.mark.parametrize(
        ("changed", "trained_with"),
        [
            ({"strategy": "clasp"}, "clasp Uniform.Options(ratio=0.25)"),
            ({"strategy_options": "Uniform.Options(ratio=0.5)"}, "uniform Uniform.Options(ratio=0.5)"),
        ],
    )
    def test_other_drafts_are_a_warning(
        self, changed: dict[str, str], trained_with: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert use(learned.disco("self", **changed))
        assert f"disco was trained with {trained_with}, not with uniform Uniform.Options(ratio=0.25)" in caplog.text
        assert TRAIN.replace("'", "") in caplog.text.replace("'", "")


# ------------------------------------------------------------------------------------------------ the command


class TestCommand:
    @pytest.mark.full
    def test_train_show_use(self, folder: str, prompts: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        method = ["--set", "uniform.ratio=0.4"]
        command = [*COMMAND, folder, "--prompts", prompts, "--tokens", "10", "--label", "tv", *method]
        assert main(command) == 0
        output = capsys.readouterr()
        text = output.out
        assert main([*command, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert (document["model"], document["strategy"], document["drafter"]) == (folder, "uniform", "self")
        assert (document["label"], document["num_tokens"], document["num_validation_tokens"]) == ("tv", 40, 20)
        assert [row["lookahead"] for row in document["rows"][:2]] == [None, "disco"]
        assert all(row["measured_ms"] > 0 for row in document["rows"])
        for part in ("F1", "threshold", "plain decoding", "fixed tokens=", "disco threshold=", "code, chat", str(home)):
            assert part in text
        assert f'selfdraft generate --model {folder} --set uniform.ratio=0.4 --lookahead disco "' in text
        assert "letting the target continue 4 prompts" in output.err

        asked = ["--model", folder, "--max-new-tokens", "20", "--json", "abc"]
        assert main(["generate", *asked, *method, "--lookahead", "disco"]) == 0
        drafted = json.loads(capsys.readouterr().out)
        assert drafted["stats"]["num_draft_steps"] > 0
        assert main(["generate", *asked, "--strategy", "off"]) == 0
        assert json.loads(capsys.readouterr().out)["tokens"] == drafted["tokens"]

        assert main(["profile", "show", folder]) == 0
        shown = capsys.readouterr().out
        assert "disco-self: 40 tokens (code, chat), label tv, strategy uniform, trained " in shown
        assert f"F1 {document['f1']:.3f} (best fixed length {document['f1_static']:.3f}), threshold" in shown
        assert main(["profile", "list"]) == 0
        assert "disco-self" in capsys.readouterr().out

    def test_interrupted(
        self, folder: str, prompts: str, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "run_whole", mock.Mock(side_effect=KeyboardInterrupt))
        assert main([*COMMAND, folder, "--prompts", prompts, "--tokens", "8"]) == 130
        assert "nothing was kept" in capsys.readouterr().err
        assert not list(home.rglob("*.json"))
        assert not list(home.rglob("*.tmp"))


def test_a_classifier_that_cannot_be_read_does_not_hide_the_others() -> None:
    parts = {"disco-self": Artefact({"num_tokens": 3}), "disco-lookup": learned.disco("lookup")}
    text = as_text(replace(learned.profile(), latency=None, artefacts=parts), 5)
    assert "disco-self: cannot be read (KeyError: 'domains')" in text
    assert "disco-lookup: 512 tokens (chat), label match, strategy uniform, trained 2026-01-01" in text
    assert "F1 0.900 (best fixed length 0.800), threshold 0.5, at most 6 tokens" in text
