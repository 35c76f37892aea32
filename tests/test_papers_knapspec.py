"""`selfdraft reproduce knapspec`: every experiment runs, tokens per time and claims are as one would say by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learned import latency
from papers import SMALL, check, judged, measured, run
from pico import letter_tokenizer, pico
from selfdraft import Engine
from selfdraft.bench.papers import knapspec, knapspec_states
from selfdraft.bench.papers.experiment import Found
from selfdraft.bench.papers.knapspec import RECIPE
from selfdraft.bench.papers.long_prompts import QUESTION, bare, long_questions
from selfdraft.bench.papers.page import Section
from selfdraft.bench.papers.workbench import Workbench
from selfdraft.economics import Line
from selfdraft.measure.estimate import correlation
from selfdraft.measure.figures import Measured
from selfdraft.measure.records import Record
from selfdraft.prompts.tokens import tokens_of
from selfdraft.types import Prompt, SkipSet

pytestmark = pytest.mark.xdist_group("papers_knapspec")

PROMPTS = [
    *(Prompt(f"m{n}", "math", f"{n}+{n}is,{n}*{n}is?") for n in range(5)),
    *(Prompt(f"s{n}", "summarise", f"article{n}:" + "therainfell" * (n + 3)) for n in range(4)),
]
EXPERIMENTS = {one.id: one for one in RECIPE.experiments}


def new_bench(folder: Path) -> Workbench:
    engine = Engine(pico("llama", max_position_embeddings=640), letter_tokenizer(), profile=None)
    return Workbench(engine, PROMPTS, replace(SMALL, tokens=10), folder)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Section]:
    """The whole recipe, measured once."""
    folder = tmp_path_factory.mktemp("knapspec")
    return run(RECIPE, new_bench(folder), folder / "units.jsonl")


@pytest.mark.full
def test_every_experiment_is_measured(shown: Mapping[str, Section]) -> None:
    assert list(shown) == ["main", "pruning", "decoupling", "correlation", "contexts", "lemma"]
    check(RECIPE, shown)
    assert shown["contexts"].found.missing == {"1024": "the model's context holds 640 tokens"}
    assert list(shown["main"].found.units) == ["T=0.0 gsm8k", "T=0.7 gsm8k", "T=0.0 cnn-dm"]
    assert shown["main"].tables[0].rows[0][:2] == ["GSM8K (math), T = 0.0", "AR"]
    assert [unit.removesuffix(" gsm8k") for unit in shown["correlation"].found.units] == [*knapspec_states.FAMILIES]
    (kept,) = shown["lemma"].judgements
    assert kept.outcome is not False


def test_what_the_knapsack_finds(tmp_path: Path) -> None:
    bench = knapspec_states.with_references(new_bench(tmp_path))
    task = bench.task("gsm8k")
    assert task is not None
    assert len(task.fitting) == 2
    texts = knapspec_states.References(bench, task.fitting)
    single, bound = ([SkipSet.parse(one.skip) for one in texts.networks(is_bound=kind)] for kind in (False, True))
    assert all(one.attention == one.mlp for one in bound)
    assert any(one.attention != one.mlp for one in single)
    assert not any({0, bench.latency.num_layers - 1} & (one.attention | one.mlp) for one in (*single, *bound))
    best = texts.best()
    assert best is not None
    assert best.tokens_per_time == max(one.tokens_per_time for one in texts.networks())


def test_a_long_question_comes_after_other_articles_each_time(tmp_path: Path) -> None:
    found = long_questions(new_bench(tmp_path).engine, PROMPTS[5:], 200, 2)
    assert len({prompt.text for prompt in found}) == len(found) == 2
    assert all(prompt.text.endswith(QUESTION) for prompt in found)


def test_an_article_is_what_prompts_do_not_share() -> None:
    texts = [
        "Summarise:\nFirst.\nEnd.\nSummary:\n",
        "Summarise:\nSecond.\nEnd.\n\nSummary:\n",
        "Summarise:\n3\nSummary:\n",
    ]
    asked = [Prompt(f"s{n}", "summarise", text) for n, text in enumerate(texts)]
    assert [prompt.text for prompt in bare(asked)] == ["First.\nEnd.", "Second.\nEnd.\n", "3"]
    assert bare(PROMPTS) == PROMPTS


@pytest.mark.parametrize("is_quick", [False, True])
def test_prompts_of_4k_and_16k_are_measured_as_a_main_table(tmp_path: Path, is_quick: bool) -> None:
    """The others with few prompts, once; a length that the model's context does not hold says so."""
    engine = Engine(pico("llama", max_position_embeddings=4200), letter_tokenizer(), profile=None)
    bench = Workbench(engine, PROMPTS, replace(SMALL, prompts=6, tokens=10, is_quick=is_quick), tmp_path)
    units = {unit.name: unit for unit in EXPERIMENTS["contexts"].units(bench)}
    missing = {} if is_quick else dict.fromkeys(("8192", "16384"), "the model's context holds 4200 tokens")
    assert {name: unit.missing for name, unit in units.items() if unit.missing} == missing
    with pytest.MonkeyPatch.context() as patch:
        asked: list[tuple[int, ...]] = []

        def compare(bench: Workbench, methods: Any, prompts: Any, **options: Any) -> dict[str, Any]:
            lengths = {len(tokens_of(prompt, engine)) for prompt in prompts}
            asked.append((len(prompts), bench.scale.runs, bench.scale.tokens, min(lengths), max(lengths)))
            return {}

        patch.setattr(Workbench, "compare", compare)
        patch.setattr(Workbench, "latency", latency())
        for name in ("256", "1024") if is_quick else ("1024", "4096"):
            measure = units[f"{name} others"].measure
            assert measure is not None
            assert measure()["articles"] == "4 of CNN/DM (summarise)"
    expected = [(4, 1, 10, 246), (4, 1, 10, 1014)] if is_quick else [(4, 1, 10, 1014), (8, 3, 256, 3840)]
    for (*scale, shortest, longest), (*wanted, length) in zip(asked, expected, strict=True):
        assert scale == wanted
        assert length - 2 <= shortest <= longest <= length


# ------------------------------------------------------------------------------------------------ arithmetic


def test_tokens_per_time_by_hand() -> None:
    """After 100 tokens on average: attention and MLP 2 ms each, the rest 0.5 ms, a plain pass 20.5 ms."""
    record = Record("KnapSpec", "p", "math", 0, 90, 20, 1.0, num_rounds=10, num_draft_passes=15)
    record = replace(record, skipped_attention=30.0, skipped_mlp=15.0)
    assert knapspec.pass_seconds(record, latency()) == pytest.approx(0.205 + 15 * 20.5e-3 - 45 * 2e-3)
    plain = Record("off", "p", "math", 0, 90, 20, 1.0, num_rounds=20)
    assert knapspec.pass_seconds(plain, latency()) == pytest.approx(20 * 20.5e-3)


def test_predictions_by_hand() -> None:
    """Two tokens drafted without two of ten sub-layers, kept half the time: 1 + 0.5 + 0.25 tokens a round."""
    found = knapspec_states.predicted(SkipSet.of([1], [2]), 0.5, latency().at(100), 2)
    draft, plain, wide = 8 * 2e-3 + 0.5e-3, 20.5e-3, 20.5e-3 + 2 / 15 * 0.5e-3
    tokens = {"tpt": 2 * draft + plain, "by_width": 2 * draft + wide, "tpl": 2 * 4 + 5}
    assert found == pytest.approx({**{name: 1.75 / whole for name, whole in tokens.items()}, "match": 0.5})
    fit = latency(attention=Line(0.0, 2e-3), rest_seconds=0.0, plain=Line(0.0, 20e-3))
    same = knapspec_states.predicted(SkipSet.of([1, 2], [1]), 0.7, fit.at(100), 3)
    assert same["tpt"] * 4e-3 == pytest.approx(same["tpl"]), "where all sub-layers cost the same"


def test_correlations() -> None:
    def value(one: list[float], other: list[float]) -> float | None:
        found = correlation(one, other)
        return found.value if found else None

    assert value([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(0.8)
    assert value([1, 2, 3, 4], [8, 6, 4, 2]) == pytest.approx(-1)
    assert value([0.1] * 4, [1, 3, 2, 4]) is None
    assert value([1, 2, 3], [1, 2, 3]) is None
    noise = np.random.default_rng(1).normal(size=12)
    good = np.arange(12.0)
    better, worse = correlation(good, good, noise), correlation(noise, good, good)
    close = correlation(good - 0.4 * noise, good, good + 0.4 * noise)
    assert [one and one.is_above(0.0) for one in (better, worse, close)] == [True, False, None]


def test_which_predictor_is_better() -> None:
    def about(num_prompts: int) -> list[bool | None]:
        good = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]
        sets = {f"a{n}": {"tpt": speed, "by_width": speed, "tpl": -speed, "match": 0.5} for n, speed in enumerate(good)}
        speeds = {"off": 1.0, **dict(zip(sets, good, strict=True))}
        values = {"measured": measured(speeds, num_prompts), "predicted": sets}
        found = Found({"knapsack gsm8k": values})
        assert EXPERIMENTS["correlation"].tables[0](found).rows[0] == ["TPT", "1.00 [1.00, 1.00]", "1.00", "6"]
        return [one.outcome for one in EXPERIMENTS["correlation"].judge(found)]

    assert about(3) == [True], "match is the same everywhere: nothing to compare"
    assert about(2) == [None], "too few prompts"


# ------------------------------------------------------------------------------------------------ claims


def unit(speeds: Mapping[str, float], accepted: int = 90, **more: Any) -> dict[str, Any]:
    """KnapSpec drafted 100 tokens with half of the sub-layers, in half as many rounds."""
    found = measured(speeds)
    drafted = {"num_rounds": 50, "num_draft_steps": 100, "num_accepted": accepted, "num_draft_passes": 100}
    drafted |= {"skipped_attention": 250, "skipped_mlp": 250}
    records = [replace(one, **drafted) if one.arm == "KnapSpec" and accepted else one for one in found.records]
    return {"measured": Measured(records, found.machine), "latency": latency().to_json(), "task": "GSM8K", **more}


def outcomes(experiment: str, units: Mapping[str, Any]) -> dict[str, bool | None]:
    return {one.claim: one.outcome for one in judged(RECIPE, experiment, units)}


def test_claims_about_the_main_table() -> None:
    def about(own: float, sampled: float, accepted: int = 90) -> dict[str, bool | None]:
        others = {"off": 1.0, "SWIFT": 0.9, "CLaSp": 1.1}
        speeds = {"T=0.0 gsm8k": own, "T=0.7 gsm8k": sampled}
        return outcomes("main", {name: unit({**others, "KnapSpec": speed}, accepted) for name, speed in speeds.items()})

    stays = "KnapSpec's speed-up stays when sampling, within 5 %, on GSM8K"
    assert set(about(1.3, 1.3).values()) == {True, False}, "it drafts too dearly for the most tokens per time"
    assert about(1.3, 1.3)["KnapSpec has the most tokens per time on GSM8K"] is False
    pairs = {(1.3, 1.3): True, (1.3, 1.25): True, (1.3, 1.1): False, (0.8, 0.8): None}
    assert {speeds: about(*speeds)[stays] for speeds in pairs} == pairs
    assert about(0.8, 1.0)["KnapSpec is faster than plain decoding on GSM8K"] is None
    found = Found({"T=0.0 gsm8k": unit({"off": 1.0, "SWIFT": 0.9, "CLaSp": 1.1, "KnapSpec": 0.9}, 0)})
    assert all(one.because.endswith("it chose not to draft") for one in EXPERIMENTS["main"].judge(found))


def test_claims_about_plans() -> None:
    def about(seconds: float, promised: list[float], plain: float = 0.02) -> list[bool | None]:
        plans = [{"off": plain, "pruned": seconds, "not pruned": 0.5}] * 4
        kept = {"plans": plans, "promised": [{"pruned": promised, "not pruned": [18.0, 20.0]}] * 4}
        return list(outcomes("pruning", {"plan gsm8k": kept}).values())

    assert about(0.4, [20.0]) == [True, True, False], "saves time, is not missed, takes more than ten passes"
    assert about(0.6, [19.0], 0.1) == [False, False, True]
    assert about(0.4, [18.0, 20.0]) == [None, True, False], "nothing was pruned"


def test_claims_about_long_texts_and_single_sub_layers() -> None:
    others = {"off": 1.0, "SWIFT": 0.8, "CLaSp": 1.0}
    units = {
        "512 others": unit(others),
        "512 KnapSpec": unit({"off": 1.0, "KnapSpec": 1.2}),
        "256 others": unit(others),
    }
    found = outcomes("contexts", units)
    assert found["KnapSpec is faster than SWIFT after 512 tokens"] is True
    assert found["SWIFT, which knows nothing of lengths, is slower than plain decoding after the longest texts"] is True
    assert "KnapSpec is faster than SWIFT after 256 tokens" not in found
    planned = {name: unit({"off": 1.0, "decoupled": 1.2, "bound": 1.0}) for name in ("best set gsm8k", "planned gsm8k")}
    assert list(outcomes("decoupling", planned).values()) == [True, None], "as planned neither drafts"
