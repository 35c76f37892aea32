"""Tables of the SWIFT paper: each is measured on a pico model, and judged by figures made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pico import letter_tokenizer, pico
from selfdraft import Engine
from selfdraft.bench.harness.arms import OurArm
from selfdraft.bench.prompts import BenchPrompt
from selfdraft.bench.reproduce.journal import ReproduceHead, UnitFile
from selfdraft.bench.reproduce.published import published
from selfdraft.bench.reproduce.recipe import Found, Section
from selfdraft.bench.reproduce.report import Shown, as_text, shown
from selfdraft.bench.reproduce.run import Reproduction
from selfdraft.bench.reproduce.scale import Scale
from selfdraft.bench.reproduce.swift import RECIPE, analyses, lessons, methods, tables
from selfdraft.bench.reproduce.swift import shown as helpers
from selfdraft.bench.reproduce.workbench import Workbench
from selfdraft.registry import AXES, resolve

pytestmark = pytest.mark.xdist_group("reproduce_swift_tables")

SMALL = Scale(prompts=1, learned_prompts=1, tokens=12, lesson_seconds=0.6, lesson_tokens=8, is_quick=True)
HEAD = ReproduceHead({"model": "pico", "scale": SMALL.to_json()}, {"device_name": "a CPU", "dtype": "float32"})
IDS = ("table-2", "table-3", "table-4", "table-8", "table-9", "table-10", "table-12")
TEXTS = {"summarise": "abcabcabc", "math": "1+2=3;4+5=", "story": "onceuponatime", "code": "def(x):return(x)"}
PROMPTS = [
    BenchPrompt(f"{domain}-{number}", domain, text * number) for domain, text in TEXTS.items() for number in (1, 2)
]
CNN = "cnn-dm"


def bench_in(folder: Path, scale: Scale = SMALL) -> Workbench:
    return Workbench(Engine(pico("llama"), letter_tokenizer(), profile=None), PROMPTS, scale, folder)


@pytest.fixture
def bench(tmp_path: Path) -> Workbench:
    return bench_in(tmp_path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("swift")


@pytest.fixture(scope="module")
def work(folder: Path) -> Reproduction:
    """The tables, measured once for all tests that read them."""
    found = Reproduction(bench_in(folder / "lessons"), UnitFile(folder / "result.jsonl", HEAD))
    found.run([RECIPE], IDS)
    return found


@pytest.fixture(scope="module")
def sections(work: Reproduction) -> dict[str, Shown]:
    lines = list(work.file.lines.values())
    return {one.experiment.id: one for one in shown([RECIPE], lines, HEAD)}


def show(experiment: str, units: Mapping[str, Mapping[str, Any]]) -> Section:
    found = Found(units, {}, SMALL.to_json())
    return next(one for one in RECIPE.experiments if one.id == experiment).show(found)


def way(speed: tuple[float, float, float], **figures: Any) -> dict[str, Any]:
    """What a unit found of a way, on prompts enough to tell."""
    speedup = dict(zip(("value", "low", "high"), speed, strict=True))
    return {"total": {"speedup": speedup, "num_prompts": 8, **figures}}


def held(section: Section) -> dict[str, bool | None]:
    return {trend.claim: trend.holds for trend in section.trends}


# ---------------------------------------------------------------------------------------------------- from end to end


def test_all_tables_are_measured_and_shown_beside_the_published_ones(
    work: Reproduction, sections: dict[str, Shown]
) -> None:
    assert tuple(sections) == IDS
    assert not work.has_difference
    for name, one in sections.items():
        table = one.section.ours[0]
        assert table.rows, name
        assert all(len(row) == len(table.header) for row in table.rows), name
        text = as_text(one, HEAD)
        assert published("swift").tables[name].source in text
        assert "prompts a task 1 of the paper's" in text


def test_rows_are_the_papers(sections: dict[str, Shown]) -> None:
    def first(name: str) -> list[str]:
        return [row[0] for row in sections[name].section.ours[0].rows]

    assert first("table-2") == ["Vanilla", "Parallel", "Lookahead", "SWIFT"]
    assert first("table-4") == ["SWIFT"]
    assert first("table-8") == [row[0] for row in published("swift").tables["table-8"].rows]
    assert first("table-9") == ["16", "32", "64", "128"]
    assert first("table-10") == ["LayerSkip, untrained", "Self-SD", "Self-SD w/ dynamic ver.", "SWIFT"]
    assert first("table-12") == [row[0] for row in published("swift").tables["table-12"].rows]
    code = [(row[0], row[1]) for row in sections["table-3"].section.ours[0].rows]
    greedy, sampled = "HumanEval (code), pass@1", "HumanEval (code), pass@10"
    assert code == [
        *((greedy, name) for name in ("Vanilla", "SWIFT")),
        *((sampled, name) for name in ("Vanilla", "SWIFT", "SWIFT, coupled")),
    ]


def test_accuracy_is_not_to_be_had(sections: dict[str, Shown]) -> None:
    assert "not to be had, accuracy: the prompts come without tests" in as_text(sections["table-3"], HEAD)
    assert all(row[4] == "-" for row in sections["table-3"].section.ours[0].rows)


def test_what_was_measured_is_not_measured_again(
    work: Reproduction, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = UnitFile(folder / "result.jsonl", HEAD)
    assert len(kept.lines) == len(work.file.lines) == 3 + 3 + 1 + 4 + 1 + 2, "table 4 is of table 2's runs"
    monkeypatch.setattr(Workbench, "compare", lambda *_, **__: pytest.fail("it was there"))
    monkeypatch.setattr(lessons, "_kept", lambda *_: pytest.fail("nothing is to be learned"))
    Reproduction(work.bench, kept).run([RECIPE], IDS)
    assert kept.lines == work.file.lines


def test_tables_can_be_shown_with_anything_missing(work: Reproduction, sections: dict[str, Shown]) -> None:
    for name, one in sections.items():
        empty = show(name, {})
        assert not any(table.rows for table in empty.ours)
        assert not any(trend.holds is not None for trend in empty.trends)
        for left_out in one.found.units:
            show(name, {unit: values for unit, values in one.found.units.items() if unit != left_out})
        for unit, values in one.found.units.items():
            for part in values:
                rest = {key: value for key, value in values.items() if key != part}
                show(name, {**one.found.units, unit: rest})
                show(name, {**one.found.units, unit: {**rest, part: {"error": "it cannot run"}}})


def test_prompts_that_are_not_there_are_named(tmp_path: Path) -> None:
    bench = replace(bench_in(tmp_path), prompts=PROMPTS[:2])
    units = {unit.name: unit.missing for unit in tables.plug_and_play_units(bench)}
    assert units["cnn-dm"] is None
    assert "no prompts of GSM8K" in str(units["gsm8k"])


# ------------------------------------------------------------------------------------------------- what was published


def test_the_published_tables_are_whole() -> None:
    found = published("swift").tables
    assert set(found) >= set(IDS)
    assert [len(found[name].rows) for name in IDS] == [12, 8, 6, 4, 4, 4, 5]
    for table in found.values():
        assert all(len(row) == len(table.columns) for row in table.rows)


def test_the_published_expectations_follow_from_the_published_figures() -> None:
    """By equation 6: a digit that was copied wrongly would not fit."""
    for row in published("swift").tables["table-4"].rows:
        cost = 0.5 if "70B" in str(row[0]) else 0.55
        for length, alpha, expected in (row[2:5], row[5:8], row[8:11]):
            if alpha is not None:
                value = float(length) * float(alpha) / ((float(length) - 1) * cost + float(alpha))
                assert f"{value:.2f}x" == expected


def test_the_published_overall_speeds_follow_from_tokens_per_second() -> None:
    rows = published("swift").tables["table-2"].rows
    plain = {row[0]: row[8] for row in rows if row[1] == "Vanilla"}
    for row in rows:
        assert float(str(row[9]).rstrip("x")) == pytest.approx(float(row[8]) / float(plain[row[0]]), abs=0.011)


# ------------------------------------------------------------------------------------------------------- the ways


def test_each_part_is_left_out_alone() -> None:
    found = {name: resolve(method) for name, method in methods.parts().items()}
    whole = found.pop("SWIFT")
    differs = {name: [axis for axis in AXES if one[axis] != whole[axis]] for name, one in found.items()}
    assert differs == {
        "w/o early-stopping": ["lookahead"],
        "w/o dynamic ver.": ["tree"],
        "w/o optimization": ["strategy"],
    }
    assert found["w/o early-stopping"]["settings"]["fixed"] == {"tokens": 25}
    assert found["w/o optimization"]["settings"]["siblings"] == whole["settings"]["siblings"]
    assert found["w/o optimization"]["settings"]["confidence"] == {"threshold": 0.8, "max_tokens": 25}


def test_swift_is_measured_behind_its_search(tmp_path: Path) -> None:
    """With the set it ended with, and without a step more."""
    assert bench_in(tmp_path).latency  # measured in a short time
    bench = bench_in(tmp_path, replace(SMALL, lesson_seconds=60.0, tokens=40))
    (unit,) = analyses.ablation_units(bench)
    assert unit.measure is not None
    values = unit.measure()
    lesson = values["lesson"]
    assert (lesson["is_over"], lesson["num_steps"]) == (True, 15), "as many sets of 4 out of 6 sub-layers"
    assert lesson["num_tokens"] < 100, "there is no use in more text"
    assert lesson["skip"] != "a1,a3,m1,m3"
    assert lesson["optimise_seconds"] > 0
    for name in ("SWIFT", "w/o early-stopping", "w/o dynamic ver."):
        assert [one["skip"] for one in values[name]["skips"]] == [lesson["skip"]], name
    assert [one["skip"] for one in values["w/o optimization"]["skips"]] == ["a1,a3,m1,m3"]


def test_jacobi_and_lookahead_draft_with_guesses(work: Reproduction) -> None:
    values = work.file.lines["swift", "table-2", CNN].values
    for name in ("Parallel", "Lookahead"):
        assert values[name]["skips"] == []
        assert values[name]["total"]["mean_generated_length"] >= 1
    assert values["Parallel"]["total"]["acceptance_rate"] is not None


def test_early_exit_leaves_out_four_fifths() -> None:
    assert methods.early_exit(30)["settings"]["early-exit"] == {"layers": 6}
    assert methods.early_exit(2)["settings"]["early-exit"] == {"layers": 1}


def test_sampling_is_the_papers(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, run = [], OurArm.run

    def spy(arm: OurArm, place: Any, prompt: Any, call: Mapping[str, Any]) -> Any:
        calls.append((arm.described["method"]["acceptance"], call["temperature"], call.get("top_p")))
        return run(arm, place, prompt, call)

    monkeypatch.setattr(OurArm, "run", spy)
    for unit in tables.code_units(bench):
        if unit.measure is not None:
            unit.measure()
    assert set(calls) == {("coupled", 0.0, None), ("coupled", 0.6, 0.95), ("rejection", 0.6, 0.95)}


# ------------------------------------------------------------------------------------------------------ the lessons


def test_a_lesson_is_learned_once(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    task = bench.tasks.find(CNN)
    assert task is not None
    first = lessons.swift_lesson(bench, task)
    with monkeypatch.context() as patch:
        patch.setattr(lessons, "_practise", lambda *_: pytest.fail("it is known"))
        again = lessons.swift_lesson(bench_in(bench.folder), task)
        assert (again.facts, again.values) == (first.facts, first.values)
        with pytest.raises(pytest.fail.Exception):
            lessons.swift_lesson(bench, task, window=16)
        with pytest.raises(pytest.fail.Exception):
            lessons.swift_lesson(bench_in(bench.folder, replace(SMALL, lesson_seconds=0.2)), task)


def test_self_sd_drafts_even_where_plain_decoding_was_faster(bench: Workbench) -> None:
    task = bench.tasks.find(CNN)
    assert task is not None
    found = lessons.self_sd_lesson(bench, task, seconds=1e-3, num_prompts=1, num_tokens=4)
    assert found["skip"]
    assert found["num_steps"] >= 1
    assert found["plain"] > 0


def test_self_sd_without_time_is_said(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = {"skip": None, "num_steps": 0, "seconds": 1.0, "tokens_per_second": None, "plain": 9.0}
    monkeypatch.setattr(analyses, "self_sd_lesson", lambda *_, **__: nothing)
    (unit,) = analyses.layer_skipping_units(bench)
    assert unit.measure is not None
    section = show("table-10", {CNN: unit.measure()})
    assert [row[0] for row in section.ours[0].rows] == ["LayerSkip, untrained", "SWIFT"]
    assert any("before Self-SD had tried a set" in note for note in section.notes)


# ------------------------------------------------------------------------------------------------- what is concluded


def test_claims_about_plug_and_play() -> None:
    units = {
        CNN: {
            "off": way((1.0, 1.0, 1.0), tokens_per_second=10.0, mean_generated_length=1.0),
            "Parallel": way((0.9, 0.85, 0.95), tokens_per_second=9.0, mean_generated_length=1.1),
            "Lookahead": way((1.2, 1.1, 1.3), tokens_per_second=12.0, mean_generated_length=1.5),
            "SWIFT": way((1.5, 1.4, 1.6), tokens_per_second=15.0, mean_generated_length=4.0, acceptance_rate=0.99),
        },
        "gsm8k": {
            "off": way((1.0, 1.0, 1.0), tokens_per_second=20.0, mean_generated_length=1.0),
            "Parallel": way((1.2, 1.1, 1.3), tokens_per_second=24.0, mean_generated_length=1.1),
            "Lookahead": way((1.0, 0.9, 1.1), tokens_per_second=20.0, mean_generated_length=1.5),
            "SWIFT": way((0.5, 0.4, 0.6), tokens_per_second=10.0, mean_generated_length=1.2, acceptance_rate=0.5),
        },
    }
    section = show("table-2", units)
    claims = held(section)
    assert claims["SWIFT is faster than plain decoding on CNN/DM"] is True
    assert claims["SWIFT is faster than plain decoding on GSM8K"] is False
    assert claims["SWIFT is faster than Lookahead on GSM8K"] is False
    assert claims["SWIFT's M is above Lookahead's on CNN/DM"] is True
    assert claims["SWIFT's M is above Lookahead's on GSM8K"] is False
    assert claims["Lookahead is faster than plain decoding on GSM8K"] is None
    assert claims["Parallel is no faster than plain decoding on CNN/DM"] is True
    assert claims["Parallel is no faster than plain decoding on GSM8K"] is False
    assert not any("TinyStories" in claim for claim in claims)
    swift = section.ours[0].rows[-1]
    assert swift == ["SWIFT", "4.00", "1.50x†", "1.20", "0.50x", "-", "-", "12.50", "0.83x"]


def expecting(value: float, speed: tuple[float, float, float], alpha: float) -> dict[str, Any]:
    figures = {"expected": {"by_ratio": value, "measured": None}, "acceptance_rate": alpha}
    return {"SWIFT": way(speed, skipped_attention=0.4, skipped_mlp=0.5, **figures)}


def test_expected_and_measured_speeds() -> None:
    units = {
        CNN: expecting(1.5, (1.2, 1.1, 1.3), 0.95),
        "gsm8k": expecting(1.2, (1.4, 1.3, 1.5), 0.5),
        "tinystories": expecting(1.5, (1.4, 1.3, 1.6), 0.9),
    }
    section = show("table-4", units)
    claims = held(section)
    assert [claims[f"less is gained than expected on {task}"] for task in ("CNN/DM", "GSM8K", "TinyStories")] == [
        True,
        False,
        None,
    ]
    accepted = "more than 90 % of the drafted tokens are accepted on"
    assert [claims[f"{accepted} {task}"] for task in ("CNN/DM", "GSM8K", "TinyStories")] == [True, False, None]
    units[CNN]["SWIFT"]["total"]["num_prompts"] = units["gsm8k"]["SWIFT"]["total"]["num_prompts"] = 1
    alone = show("table-4", units)
    assert not any(held(alone).values())
    assert [trend.because.split(":")[0] for trend in alone.trends[:4]] == ["too few prompts"] * 4
    assert section.ours[0].rows[0][-1] == "1.40x"
    assert section.ours[1].rows[0] == ["CNN/DM", "0.45", "-", "1.50x", "-", "1.20x"]


def test_claims_about_parts() -> None:
    swift = way((1.5, 1.4, 1.6), mean_generated_length=5.0, acceptance_rate=0.9)
    units = {
        CNN: {
            "SWIFT": swift,
            "w/o early-stopping": way((0.9, 0.8, 1.0), mean_generated_length=9.0, acceptance_rate=0.4),
            "w/o dynamic ver.": way((1.55, 1.45, 1.65), mean_generated_length=4.0),
            "w/o optimization": way((1.8, 1.7, 1.9), skipped_attention=0.4, skipped_mlp=0.5),
        }
    }
    claims = held(show("table-8", units))
    assert claims["stopping early makes it faster"] is True
    assert claims["siblings make it faster"] is None
    assert claims["siblings make M larger"] is True
    assert claims["the search makes it faster than evenly spaced layers"] is False
    units[CNN]["SWIFT"]["skips"] = units[CNN]["w/o optimization"]["skips"] = [{"skip": "a1", "share": 1.0}]
    assert held(show("table-8", units))["the search makes it faster than evenly spaced layers"] is None
    assert claims["without early stopping M grows"] is True
    assert claims["stopping early, more drafts are accepted"] is True
    assert not any("SWIFT skips" in note for note in show("table-8", units).notes)
    swift["total"].update(skipped_attention=0.4, skipped_mlp=0.4)
    assert any("SWIFT skips 0.40 of the sub-layers" in note for note in show("table-8", units).notes)


def window(size: int, speed: tuple[float, float, float], steps: int, seconds: float) -> dict[str, Any]:
    lesson = {"num_steps": steps, "optimise_seconds": seconds, "num_tokens": 100, "skip": f"a{size}", "is_over": False}
    return {f"window {size}": way(speed), "lesson": lesson}


def test_claims_about_windows() -> None:
    units = {
        f"32 {CNN}": window(32, (1.5, 1.4, 1.6), 100, 1.0),
        f"16 {CNN}": window(16, (1.2, 1.1, 1.3), 100, 0.5),
        f"64 {CNN}": window(64, (1.45, 1.3, 1.6), 50, 1.0),
        f"128 {CNN}": {"lesson": window(128, (1.8, 1.7, 1.9), 0, 0.0)["lesson"]},
    }
    section = show("table-9", units)
    claims = held(section)
    assert claims["a window of 32 is faster than one of 16"] is True
    assert claims["a window of 32 is faster than one of 64"] is None
    assert "a window of 32 is faster than one of 128" not in claims, "there was no step"
    assert claims["a step takes longer with a larger window"] is True
    assert [row[4:] for row in section.ours[0].rows] == [
        ["5.00", "5.00", "100"],
        ["10.00", "10.00", "100"],
        ["20.00", "10.00", "50"],
        ["-", "-", "0"],
    ]
    faster = {**units, f"128 {CNN}": window(128, (1.8, 1.7, 1.9), 50, 2.0)}
    assert held(show("table-9", faster))["a window of 32 is faster than one of 128"] is False
    reversed_steps = {**units, f"64 {CNN}": window(64, (1.45, 1.3, 1.6), 100, 0.1)}
    assert held(show("table-9", reversed_steps))["a step takes longer with a larger window"] is False
    alone = held(show("table-9", {f"32 {CNN}": units[f"32 {CNN}"]}))
    assert "a step takes longer with a larger window" not in alone


def test_windows_are_not_told_apart_by_a_few_steps() -> None:
    claim, longer = "a window of 32 is faster than one of 16", "a step takes longer with a larger window"
    usual, other = window(32, (1.5, 1.4, 1.6), 100, 1.0), window(16, (1.2, 1.1, 1.3), 10, 0.05)
    units = {f"32 {CNN}": usual, f"16 {CNN}": other}
    section = show("table-9", units)
    assert (held(section)[claim], held(section)[longer]) == (None, None)
    assert section.trends[0].because == "too few steps: 10 with window 16"
    other["lesson"]["is_over"] = True
    assert held(show("table-9", units))[claim] is True, "it needed no more"
    other["lesson"]["skip"] = usual["lesson"]["skip"]
    assert held(show("table-9", units))[claim] is None, "both draft with the same set"


def test_a_window_without_a_step_is_not_measured(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    idle = lessons.Learned("swift", {"num_steps": 0, "optimise_seconds": 0.0, "num_tokens": 9}, {})
    monkeypatch.setattr(analyses, "swift_lesson", lambda *_, **__: idle)
    monkeypatch.setattr(Workbench, "compare", lambda *_, **__: pytest.fail("there is nothing to see"))
    found = {unit.name: unit.measure() for unit in analyses.window_units(bench) if unit.measure}
    assert [row[0] for row in show("table-9", found).ours[0].rows] == ["16", "32", "64", "128"]
    assert not show("table-9", found).trends


def test_claims_about_self_sd_at_similar_times() -> None:
    lesson = {"num_steps": 60, "num_bayesian": 2, "optimise_seconds": 3.0}
    search = {"skip": "a1", "num_steps": 4, "seconds": 12.0, "tokens_per_second": 8.0, "plain": 10.0}
    first = {
        "SWIFT": way((1.5, 1.4, 1.6), skipped_attention=0.4, skipped_mlp=0.5),
        "Self-SD": way((0.9, 0.8, 1.0), skipped_attention=0.1, skipped_mlp=0.0),
        "Self-SD w/ dynamic ver.": way((1.6, 1.5, 1.7)),
        "lesson": lesson,
        "search": search,
    }
    section = show("table-12", {f"Self-SD {CNN}": first})
    claims = held(section)
    assert claims == {"SWIFT is faster than Self-SD": True, "SWIFT is faster than Self-SD w/ dynamic ver.": None}
    rows = section.ours[0].rows
    assert rows[0] == ["Self-SD", "-", "4", "12.0", "0.05", "-", "-", "0.90x"]
    assert rows[-1][:5] == ["SWIFT", "58", "2", "3.0", "0.45"]
    assert any("no set that Self-SD tried was faster than plain decoding (10.0 tokens/s)" in n for n in section.notes)


def test_a_lesson_says_how_much_was_done() -> None:
    first = {"off": way((1, 1, 1), num_prompts=3), "asked": {"tokens": 64}, "lesson": {"num_steps": 40}}
    second = {"off": way((1, 1, 1), num_prompts=2), "asked": {"tokens": 128}, "lesson": {"num_steps": 50}}
    found = Found({CNN: first, "gsm8k": second}, {}, {"tokens": 256})
    done = [(one.ours, one.paper) for one in helpers.efforts(found, [CNN])]
    assert done == [(3, 1000), (64, 512), (40, 575)]
    done = [(one.ours, one.paper) for one in helpers.efforts(found, [CNN, "gsm8k"], tokens=128, steps=None)]
    assert done == [(2, 1000), (128, 128), (45, None)]
