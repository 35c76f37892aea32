"""Tuning: replay against its specification, known best settings, what rounds take, and the command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import learned
from cases import SETTINGS
from pico import letter_tokenizer, pico
from replay import replay
from selfdraft import Engine, OptionError
from selfdraft.calibrate.lookahead import LookaheadOptions, tune
from selfdraft.calibrate.traces import collect
from selfdraft.calibrate.tuning import (
    TUNABLE,
    Candidate,
    Replay,
    RoundSeconds,
    Sweep,
    fit_rounds,
    lengths_to_measure,
    measure_rounds,
    next_place,
    predicted,
    rank,
    shortlist,
)
from selfdraft.cli.main import main
from selfdraft.lookahead.confidence import Confidence
from selfdraft.lookahead.disco import Disco
from selfdraft.lookahead.fixed import Fixed
from selfdraft.lookahead.perplexity import Perplexity
from selfdraft.measure.records import Head, Record
from selfdraft.measure.result import Result
from selfdraft.measure.run import MeasurePlan
from selfdraft.types import Draft, Plan, Prompt, StepRecord, Verdict
from test_train_lookahead import made_trace

pytestmark = pytest.mark.usefixtures("home", "untimed")

PROMPTS = [Prompt(str(number), "a", tokens=(number + 1, 7, number + 3)) for number in range(3)]
UNIFORM = {"strategy": "uniform", "settings": {"uniform": {"ratio": 0.4}}}
QUICK = LookaheadOptions(num_tokens=12, max_tokens=4)
SECONDS = RoundSeconds(0.3, lambda count: 1.0 + 0.01 * count)


def random_traces(seed: int, has_scores: bool = True) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    traces = []
    for length in (1, 40, 7, 90):
        confidences = torch.rand(length, generator=generator) ** 0.3
        is_drafted = torch.rand(length, generator=generator) < 0.9
        is_kept = (torch.rand(length, generator=generator) < confidences) & is_drafted
        traces.append(made_trace(is_kept, confidences, is_drafted=is_drafted, has_scores=has_scores))
    return traces


class TestReplay:
    @pytest.mark.parametrize(("seed", "has_scores"), [(0, True), (1, True), (2, False)])
    def test_it_says_what_the_lookahead_itself_would_have_done(self, seed: int, has_scores: bool) -> None:
        """Token by token, and for all beginnings at once."""
        traces, classifier = random_traces(seed, has_scores), learned.classifier()
        known = Replay(traces, SECONDS)
        asked: list[tuple[Candidate, Any]] = [
            (Candidate("fixed", {"tokens": tokens}), Fixed(Fixed.Options(tokens))) for tokens in (1, 3, 15)
        ]
        for threshold, maximum in ((0.3, 15), (0.8, 12), (0.99, 2)):
            options = {"threshold": threshold, "max_tokens": maximum}
            asked.append((Candidate("confidence", options), Confidence(Confidence.Options(**options))))
            judged = Candidate("disco", options, classifier=classifier)
            asked.append((judged, Disco.of(classifier, Disco.Options(**options))))
        for threshold, maximum in ((1.05, 15), (1.3, 12), (3.0, 4)):
            options = {"threshold": threshold, "max_tokens": maximum}
            asked.append((Candidate("perplexity", options), Perplexity(Perplexity.Options(**options))))
        speeds = set()
        for candidate, lookahead in asked:
            expected = replay(traces, lookahead, SECONDS).tokens_per_second
            assert predicted(candidate, known).predicted == pytest.approx(expected), candidate
            speeds.add(round(expected, 6))
        assert len(speeds) > 6, "they do differ"

    @pytest.mark.parametrize(("drafter", "tokens"), [("self", 1), ("lookup", 1), ("lookup", 4), ("model", 4)])
    def test_its_rounds_are_those_of_decoding(self, drafter: str, tokens: int) -> None:
        """Of `self` only rounds of one token: after more, it reads the keys and values of its own passes."""
        settings = {**SETTINGS, "fixed": {"tokens": tokens}}
        method = {"strategy": "uniform", "lookahead": "fixed", "drafter": drafter}
        engine = Engine(pico("llama"), profile=None, settings=settings, **method)
        prompt = Prompt("", "", tokens=(2, 7, 1, 8, 2, 8, 1, 8, 2, 8))
        found = replay(collect(engine, {}, [prompt], 30), Fixed(Fixed.Options(tokens)), SECONDS)
        steps = engine.generate(prompt.tokens, max_new_tokens=30).steps
        assert [one.emitted for one in found.rounds] == [len(step.verdict.tokens) for step in steps]
        if drafter != "lookup":  # a wrong match may end with the text it was found in
            whole = [step for step, one in zip(steps, found.rounds, strict=True) if one.position < 30 - tokens]
            assert all(step.draft.chain_length == tokens for step in whole)
            assert all(one.drafted == tokens for one in found.rounds[: len(whole)])

    def test_next_place(self) -> None:
        assert next_place(np.array([False, True, False, False, True, False])).tolist() == [1, 1, 4, 4, 4, 6]

    def test_the_grid_is_ranked(self) -> None:
        known = Replay(random_traces(0), SECONDS, max_tokens=6)
        for lookahead in (*TUNABLE, "disco"):
            found = rank(lookahead, known, learned.classifier() if lookahead == "disco" else None)
            speeds = [candidate.predicted for candidate in found]
            assert speeds == sorted(speeds, reverse=True)
            assert predicted(found[0], known).predicted == pytest.approx(speeds[0])


class TestKnownBest:
    """Texts in which every round could keep three tokens; of the fourth the draft is unsure."""

    TRACES = [made_trace(torch.tensor([1, 1, 1, 0] * 25).bool(), torch.tensor([0.95, 0.9, 0.92, 0.5] * 25))] * 3

    @pytest.mark.parametrize(("draft_seconds", "tokens"), [(0.01, 3), (0.3, 3), (2.0, 1)])
    def test_a_fixed_length(self, draft_seconds: float, tokens: int) -> None:
        """Where a drafted token takes longer than the target's own, one is still the least that `fixed` drafts."""
        best = rank("fixed", Replay(self.TRACES, RoundSeconds(draft_seconds, lambda count: 1.0)))[0]
        assert best.options == {"tokens": tokens}

    def test_a_long_verification_is_known_to_be_dear(self) -> None:
        steps = RoundSeconds(0.01, lambda count: 1.0 if count < 2 else 3.0)
        assert rank("fixed", Replay(self.TRACES, steps))[0].options == {"tokens": 1}

    @pytest.mark.parametrize("lookahead", ["confidence", "perplexity", "disco"])
    def test_a_threshold(self, lookahead: str) -> None:
        """Rounds of three and of one by turns: whoever looks at the confidence stops in time, a fixed length cannot."""
        kept = torch.tensor([1, 1, 1, 0, 1, 0] * 20).bool()
        traces = [made_trace(kept, torch.where(kept, 0.9, 0.2))]
        known = Replay(traces, RoundSeconds(0.4, lambda count: 1.0))
        best = rank(lookahead, known, learned.classifier() if lookahead == "disco" else None)[0]
        assert best.predicted > rank("fixed", known)[0].predicted
        perfect = 6 / (2 * 1.0 + (3 + 2) * 0.4)  # the most it drafts is 3, and after an unsure token it stops
        assert best.predicted == pytest.approx(perfect)
        if lookahead == "confidence":
            assert 0.2 < best.options["threshold"] <= 0.9

    def test_the_shortlist_holds_what_differs(self) -> None:
        same = [Candidate("confidence", {"threshold": bar, "max_tokens": 4}, 2.0) for bar in (0.3, 0.4, 0.5)]
        others = [Candidate("confidence", {"threshold": bar, "max_tokens": 4}, 1.0 - bar) for bar in (0.6, 0.7, 0.8)]
        assert shortlist([*same, *others], 3) == [same[0], others[0], others[1]]


# ------------------------------------------------------------------------------------------------ what rounds take


def step(num_drafted: int, draft_seconds: float, verify_seconds: float, planning: float = 0.0) -> StepRecord:
    draft = Draft.chain(range(num_drafted))
    return StepRecord(0, Plan(), draft, Verdict((1,)), draft_seconds, verify_seconds, planning)


class TestRounds:
    def test_medians_by_length(self) -> None:
        """A drafted token takes 2, the first one of a round 1 more; verification grows; one round was held up."""
        drafted = [step(count, 1 + 2 * count, 10 + count, 0.5) for count in (1, 2, 4, 8) for _ in range(5)]
        found = fit_rounds([*drafted, step(4, 900, 900)], [step(0, 0, 7)] * 3, is_recorded=False)
        assert found.draft == pytest.approx(2)
        assert found.verify(0) == 7
        assert found.of(4) == pytest.approx(1 + 8 + 14 + 0.5)
        assert found.of(6) == pytest.approx(1 + 12 + 16 + 0.5), "between two of them"
        assert found.of(12) == pytest.approx(1 + 24 + 22 + 0.5), "the line goes on"

    def test_recorded_passes_come_in_widths(self) -> None:
        drafted = [step(count, count, seconds) for count, seconds in ((1, 5), (3, 6), (7, 9))]
        found = fit_rounds(drafted, [step(0, 0, 4)], is_recorded=True)
        assert [found.verify(count) for count in (0, 1, 2, 3, 4, 7)] == pytest.approx([4, 5, 6, 6, 9, 9])

    def test_drafts_that_take_no_time(self) -> None:
        found = fit_rounds([step(2, 0.0, 5.0)], [step(0, 0.0, 4.0)], is_recorded=False)
        assert (found.draft, found.of(0), found.of(2), found.of(9)) == (0.0, 4.0, 5.0, 5.0)
        assert fit_rounds([], [step(0, 0.0, 4.0)], is_recorded=False).of(3) == 4.0

    def test_more_is_never_found_to_take_less(self) -> None:
        found = fit_rounds([step(1, 5.0, 5.0), step(4, 4.0, 5.0)], [step(0, 0.0, 4.0)], is_recorded=False)
        assert found.draft == pytest.approx((5 + 1) / 2)

    def test_a_sweep_drafts_every_length_in_turn(self) -> None:
        engine = Engine(pico("llama"), profile=None, **{**UNIFORM, "settings": {"uniform": {"ratio": 0.0}}})
        found = engine.generate([3, 1, 4], max_new_tokens=30, lookahead=Sweep((1, 2, 4)))
        assert [one.draft.chain_length for one in found.steps[:6]] == [1, 2, 4, 1, 2, 4]

    def test_lengths_to_measure(self) -> None:
        eager = Engine(pico("llama"), profile=None).runner
        assert lengths_to_measure(eager, 15) == [1, 2, 4, 8, 15]
        assert lengths_to_measure(eager, 3) == [1, 2, 3]
        recorded: Any = mock.Mock(recorded_widths=(1, 2, 4, 8, 16, 32), recorded_slots=lambda count: (64,))
        assert lengths_to_measure(recorded, 12) == [1, 3, 7, 12]

    @pytest.mark.parametrize("drafter", ["self", "lookup", "ngram-pool"])
    def test_on_a_model(self, drafter: str) -> None:
        engine = Engine(pico("llama"), profile=None, **UNIFORM)
        found = measure_rounds(engine, {"drafter": drafter}, PROMPTS[:1], 24, 4)
        assert found.draft >= 0
        assert all(found.of(count) > 0 for count in range(5))


# ------------------------------------------------------------------------------------------------ tune


@pytest.fixture
def engine() -> Engine:
    return Engine(pico("llama"), letter_tokenizer(), name="pico", profile=None)


def clocked(monkeypatch: pytest.MonkeyPatch, seconds: Sequence[float]) -> list[MeasurePlan]:
    """Plain decoding and each setting take these; what was asked for."""
    plans: list[MeasurePlan] = []

    def run_whole(engine: Engine, plan: MeasurePlan, *values: Any) -> Result:
        plans.append(plan)
        names = ["off", *plan.methods]
        records = [Record(name, "p", "a", 0, 3, 10, taken, taken) for name, taken in zip(names, seconds, strict=False)]
        head = Head({"seed": 0}, {}, {"num_layers": 5, "beta": 1.0}, [{"name": name} for name in names])
        return Result(head, records)

    monkeypatch.setattr("selfdraft.calibrate.lookahead.run_whole", run_whole)
    return plans


class TestTune:
    @pytest.mark.parametrize(
        "lookahead", [TUNABLE[0], *(pytest.param(name, marks=pytest.mark.full) for name in TUNABLE[1:])]
    )
    def test_a_table_of_settings(self, engine: Engine, lookahead: str) -> None:
        told = mock.Mock()
        found = tune(engine, UNIFORM, lookahead, PROMPTS, QUICK, progress=told)
        plain, usual, *others = found.rows
        assert (plain.candidate, usual.is_usual) == (None, True)
        assert 1 <= len(others) <= 3
        assert all(row.candidate is not None and row.candidate.lookahead == lookahead for row in others)
        assert all(row.total.num_prompts == 3 and row.total.num_tokens == 36 for row in found.rows)
        assert (found.counts.num_tokens, found.counts.num_drafted) == (36, 36)
        assert 0 < found.counts.kept_share < 1
        assert {call.args[2] for call in told.call_args_list} == {
            "collecting drafts to tune with",
            "timing rounds",
            "methods warmed up",
            "texts measured",
        }
        best = found.fastest(lookahead).candidate
        text = engine.generate([5, 6], max_new_tokens=20, **best.method(UNIFORM)).tokens
        assert text == engine.generate([5, 6], max_new_tokens=20, strategy="off").tokens

    def test_the_fastest_measured_wins(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        plans = clocked(monkeypatch, [4.0, 3.0, 5.0, 2.0, 3.5])
        found = tune(engine, UNIFORM, "confidence", PROMPTS, QUICK)
        asked = list(plans[0].methods.values())
        assert asked[0]["settings"]["confidence"] == vars(Confidence.Options()), "the usual one"
        best = found.fastest("confidence")
        assert best is found.rows[3]
        assert asked[2]["settings"]["confidence"] == dict(best.candidate.options)
        assert asked[2]["settings"]["uniform"] == {"ratio": 0.4}

    def test_predicted_is_what_was_measured(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where time ends the trials after one of three prompts, replay is of that prompt alone."""
        replays: list[int] = []
        honest = Replay.of_first
        monkeypatch.setattr(Replay, "of_first", lambda own, count: replays.append(count) or honest(own, count))
        clocked(monkeypatch, [4.0, 3.0, 5.0, 2.0, 3.5])
        found = tune(engine, UNIFORM, "confidence", PROMPTS, QUICK)
        assert (replays, found.plain.total.num_prompts) == ([1], 1)
        assert found.counts.num_tokens == 36, "all three were traced, to choose by"

    def test_a_strategy_of_the_same_name_keeps_its_options(self, engine: Engine) -> None:
        method = {"strategy": "fixed", "settings": {"fixed": {"skip": "a1,m2"}}}
        found = tune(engine, method, "fixed", PROMPTS[:1], QUICK)
        best = found.fastest("fixed").candidate
        assert best.flags == f"--lookahead fixed --set fixed.tokens={best.options['tokens']}"
        assert best.method(method)["settings"]["fixed"] == {"skip": "a1,m2", **best.options}

    def test_no_text_counts_twice(self, engine: Engine) -> None:
        again = Prompt("again", "b", tokens=PROMPTS[0].tokens)
        assert tune(engine, UNIFORM, "fixed", [PROMPTS[0], again], QUICK).rows[0].total.num_prompts == 1

    @pytest.mark.parametrize(
        ("lookahead", "prompts", "message"),
        [
            ("confidenc", PROMPTS, "unknown lookahead to tune 'confidenc'. Did you mean 'confidence'?"),
            ("tpt", PROMPTS, "Known: confidence, fixed, perplexity"),
            ("fixed", [], "tuning needs prompts"),
        ],
    )
    def test_what_cannot_be_tuned(self, engine: Engine, lookahead: str, prompts: list[Prompt], message: str) -> None:
        with pytest.raises(OptionError) as raised:
            tune(engine, UNIFORM, lookahead, prompts)
        assert message in str(raised.value)


# ------------------------------------------------------------------------------------------------ the command


class TestCommand:
    @pytest.mark.full
    def test_a_table_and_what_to_type(self, folder: str, prompts: str, capsys: pytest.CaptureFixture[str]) -> None:
        """Or one JSON document instead."""
        asked = ["--prompts", prompts, "--tokens", "12", "--set", "uniform.ratio=0.4"]
        assert main(["calibrate", "--lookahead", "perplexity", folder, *asked]) == 0
        text = capsys.readouterr().out
        assert "plain decoding" in text
        assert "perplexity threshold=1.3 max_tokens=12 (usual)" in text
        assert sum(line.startswith("*") for line in text.splitlines()) == 1
        assert f"selfdraft generate --model {folder} --set uniform.ratio=0.4 --lookahead perplexity --set perp" in text
        assert main(["calibrate", "--lookahead", "perplexity", folder, *asked, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["best"]["lookahead"] == "perplexity"
        assert document["flags"].startswith("--lookahead perplexity --set perplexity.threshold=")
        assert (document["rows"][0]["lookahead"], document["num_tokens"]) == (None, 6 * 12)
        arguments = document["flags"].split()
        assert main(["generate", "--model", folder, "--max-new-tokens", "4", "abc", *arguments]) == 0

    def test_slower_than_plain_is_said(
        self, folder: str, prompts: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clocked(monkeypatch, [1.0, 2.0, 3.0, 4.0, 5.0])
        assert main(["calibrate", "--lookahead", "confidence", folder, "--prompts", prompts, "--tokens", "8"]) == 0
        assert "plain decoding is faster than all of them here" in capsys.readouterr().out
