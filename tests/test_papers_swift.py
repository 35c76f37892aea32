"""SWIFT's recipe: all of it on a pico model, and its own claims on records made by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import learned
from papers import HEAD, SMALL, check, judged, new_bench, run
from selfdraft.bench.papers import swift, swift_methods
from selfdraft.bench.papers.claims import Side
from selfdraft.bench.papers.experiment import Found, Judgement
from selfdraft.bench.papers.page import Section, as_text
from selfdraft.bench.papers.swift import RECIPE
from selfdraft.bench.papers.swift_methods import drafted_alike, self_sd_fit, swift_fit, to_search_on
from selfdraft.bench.papers.workbench import WHOLE, Workbench
from selfdraft.calibrate.fit_session import EngineKit
from selfdraft.measure.figures import Measured
from selfdraft.measure.records import OFF, Machine, Record
from selfdraft.registry import AXES, resolve
from selfdraft.strategies.swift_search import Published, SwiftOptions
from selfdraft.types import SkipSet

pytestmark = pytest.mark.xdist_group("papers_swift")

COUNTS = {"summarise": 4, "math": 2, "story": 2, "translate": 2, "chat": 2, "code": 2}
TEXTS = {domain: [f"{domain}{n}abcabc{domain}" for n in range(count)] for domain, count in COUNTS.items()}
CNN = "cnn-dm"
SMALLEST = ("table-2", "table-4", "table-8", "table-10", "figure-6", "figure-7", "figure-12")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    """Fits end by their steps, not by the clock; SWIFT's search comes to its own end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("selfdraft.calibrate.fit_once.measure", lambda *_: learned.latency())
        patch.setattr(EngineKit, "has_time", lambda kit, *expected: len(kit.done) < 4)
        yield new_bench(tmp_path_factory.mktemp("fits"), TEXTS, replace(SMALL, fit_seconds=600.0))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("swift") / "result.jsonl"


@pytest.fixture(scope="module")
def sections(bench: Workbench, file: Path) -> dict[str, Section]:
    """Some of the recipe, measured once."""
    return run(RECIPE, bench, file, SMALLEST)


def record(arm: str, number: int, seconds: float, **values: Any) -> Record:
    """Ten tokens in five rounds."""
    usual: dict[str, Any] = {"num_rounds": 5, "num_draft_steps": 10, "num_accepted": 9, "skips": {arm: 10}, **values}
    domain = usual.pop("domain", "a")
    return Record(arm, f"p{number}", domain, number, 5, 10, seconds, decode_seconds=seconds, **usual)


def claims(experiment: str, units: Mapping[str, Mapping[str, Any]]) -> dict[str, Judgement]:
    return {one.claim: one for one in judged(RECIPE, experiment, units)}


def unit(records: Sequence[Record], **values: Any) -> dict[str, Any]:
    return {"measured": Measured(records, Machine(5, 1.0)), **values}


def stream(**arms: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Arms with these seconds (and other values) on each text; plain decoding takes a second."""
    texts = [record(arm, n, **text) for arm, rows in arms.items() for n, text in enumerate(rows)]
    length = len(next(iter(arms.values())))
    return unit([*(record(OFF, n, 1.0) for n in range(length)), *texts])


# ----------------------------------------------------------------------------------------------------- end to end


@pytest.mark.full
def test_some_experiments(sections: dict[str, Section], bench: Workbench, file: Path) -> None:
    assert {*sections} == {*SMALLEST}
    check(RECIPE, sections)
    assert "there are no prompts of NQ" in sections["figure-7"].found.missing["nq"]
    before = file.read_text()
    run(RECIPE, bench, file, SMALLEST)
    assert file.read_text() == before, "nothing is measured again"


@pytest.mark.full
def test_all_experiments(bench: Workbench, file: Path) -> None:
    found = run(RECIPE, bench, file)
    assert list(found) == [one.id for one in RECIPE.experiments]
    check(RECIPE, found)
    assert "not to be had, accuracy: the prompts come without tests" in as_text(found["table-3"], HEAD)


def test_one_candidate_or_several(bench: Workbench, tmp_path: Path) -> None:
    found = run(RECIPE, bench, tmp_path / "result.jsonl", ["figure-2a"])["figure-2a"].found
    for measured in filter(None, map(found.measured, found.units)):
        assert {one.arm for one in measured.records} == {"top-1", "top-k", OFF}


@pytest.mark.full
def test_swift_is_measured_after_its_search(sections: dict[str, Section]) -> None:
    found = sections["table-8"].found
    measured, search = found.measured(CNN), found.get(CNN, "search")
    assert measured
    for arm in ("SWIFT", "w/o early-stopping", "w/o dynamic ver."):
        assert {skip for one in measured.of(arm) for skip in one.skips or {}} == {search["skip"]}, arm
    assert (search["num_steps"], search["is_over"]) == (15, True), "as many sets of 4 out of 6 sub-layers"
    assert search["optimise_seconds"] > 0
    assert sections["figure-12"].found.get(CNN, "sets")[-1]["step"] == 15, "the same search"


@pytest.mark.full
def test_searches_are_kept(bench: Workbench, sections: dict[str, Section], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfdraft.calibrate.fit_once._fit", lambda *_: pytest.fail("it is known"))
    bench = bench.for_experiment(swift.RECIPE, swift.TABLE_8)
    task = bench.task(CNN)
    assert task is not None
    assert swift_fit(bench, task).values["step"] == 15
    assert self_sd_fit(bench, CNN, task.fitting)["skip"], "Self-SD drafts, whatever plain decoding is worth"
    with pytest.raises(pytest.fail.Exception):
        swift_fit(bench, task, window=8)


def test_all_tables_search_on_the_same_prompts_and_measure_others(tmp_path: Path) -> None:
    bench = new_bench(tmp_path, {"summarise": ["a" * n for n in range(1, 61)]}, replace(WHOLE, asked=("tokens",)))
    searched = set()
    for experiment in (swift.TABLE_2, swift.TABLE_8):
        own = bench.for_experiment(swift.RECIPE, experiment)
        task = own.task(CNN)
        assert task is not None
        prompts = to_search_on(own, task)
        assert not {prompt.id for prompt in task.measured} & {prompt.id for prompt in prompts}
        searched.add(tuple(prompt.id for prompt in prompts))
    assert [len(ids) for ids in searched] == [30], "half of them: as many as there may be"


# ---------------------------------------------------------------------------------------------------------- methods


def test_each_part_is_left_out_alone() -> None:
    found = {name: resolve(method) for name, method in swift.parts(30).items()}
    whole = found.pop("SWIFT")
    differs = {name: [axis for axis in AXES if one[axis] != whole[axis]] for name, one in found.items()}
    assert list(differs.values()) == [["lookahead"], ["tree"], ["strategy"]]
    assert found["w/o early-stopping"]["settings"]["fixed"] == {"tokens": 25}
    assert found["w/o optimization"]["settings"]["confidence"] == {"threshold": 0.8, "max_tokens": 25}
    start = SkipSet.parse(found["w/o optimization"]["settings"]["fixed"]["skip"])
    assert start.numbers == Published(30, SwiftOptions(paper=True)).skipped, "what its search begins with"
    sampled = resolve(swift.SAMPLED["SWIFT, sampled"])
    assert (sampled["acceptance"], sampled["settings"]["siblings"]) == ("rejection", {"table": "swift"})
    assert whole["settings"]["siblings"] == {"table": "swift-code"}
    assert swift.early_exit(30)["settings"]["early-exit"] == {"layers": 6}
    assert swift_methods.options_of(False)["half of S"] == {"max_steps": 500, "interval": 25}


# ----------------------------------------------------------------------------------------------------------- claims


def test_the_same_drafts_are_not_judged() -> None:
    alike = [record(arm, n, 1.0 + (arm == "b"), skips={"a1": 3}) for n in range(4) for arm in ("a", "b")]
    found = Found({"u": unit(alike)})
    assert drafted_alike(found, Side("u", "a"), Side("u", "b"))
    assert not drafted_alike(found, Side("u", "a"), Side("u", "missing"))
    claim = "the search makes it faster than evenly spaced layers"
    for skips, outcome in (("a1", None), ("a2", True)):
        parts = {"SWIFT": 0.5, "w/o optimization": 0.8, OFF: 1.0}
        records = [
            record(arm, n, seconds, skips={"a1" if arm == "SWIFT" else skips: 3})
            for arm, seconds in parts.items()
            for n in range(4)
        ]
        assert claims("table-8", {CNN: unit(records)})[claim].outcome is outcome


def test_windows_are_compared_after_enough_steps() -> None:
    def window(size: int, seconds: float, num_steps: int) -> dict[str, Any]:
        rows = [record(f"window {size}", n, seconds) for n in range(4)] + [record(OFF, n, 1.0) for n in range(4)]
        return unit(rows, search={"num_steps": num_steps, "is_over": False})

    usual = {f"32 {CNN}": window(32, 0.5, 100)}
    claim = "a window of 32 is faster than one of 16"
    assert claims("table-9", {**usual, f"16 {CNN}": window(16, 0.8, 100)})[claim].outcome is True
    few = claims("table-9", {**usual, f"16 {CNN}": window(16, 0.8, 10)})[claim]
    assert (few.outcome, few.because) == (None, "too few steps: 10 with window 16")


def test_claims_along_a_stream() -> None:
    searching, after = [{"seconds": 2.0, "optimise_seconds": 1.0}] * 3, [{"seconds": 0.5, "draft_seconds": 0.3}] * 3
    found = claims("figure-6", {f"stream {CNN}": stream(SWIFT=[*searching, *after])})
    assert found["SWIFT is faster after its search than while it searches"].outcome is True
    assert found["SWIFT is faster than plain decoding over the whole stream"].outcome is None
    share = "optimisation takes less than 1 % of the time over 1000 texts"
    assert found[share].outcome is True
    assert claims("figure-6", {f"stream {CNN}": stream(SWIFT=searching)})[share].because == "the search was not over"
    slow = [{"seconds": 50.0, "optimise_seconds": 49.5}] * 3
    assert claims("figure-6", {f"stream {CNN}": stream(SWIFT=[*slow, *after])})[share].outcome is False


def test_options_without_effect_are_not_judged() -> None:
    def along(**arms: Sequence[Mapping[str, Any]]) -> list[tuple[bool | None, str]]:
        names = {"usual": "S, interval", "fewer": "half of S", "seldom": "twice the interval"}
        found = claims("figure-8a", {f"stream {CNN}": stream(**{names[arm]: rows for arm, rows in arms.items()})})
        return [(one.outcome, one.because) for one in found.values()]

    def rows(first: float, last: float, skip: str, optimise: float = 0.5) -> list[dict[str, Any]]:
        texts = [{"seconds": first, "optimise_seconds": optimise}] * 3 + [{"seconds": last}] * 3
        return [{**text, "skips": {skip: 3}} for text in texts]

    found = along(usual=rows(2, 0.5, "a1"), fewer=rows(1.5, 0.8, "a2"), seldom=rows(1.8, 0.5, "a3", 0.2))
    assert [outcome for outcome, _ in found] == [True, True, True, True]
    searching = [{"seconds": 2.0, "optimise_seconds": 1.0, "skips": {"a1": 3}}] * 6
    found = along(usual=searching, fewer=searching, seldom=searching)
    assert [why for _, why in found[:3]] == [swift_methods.NOT_REACHED] * 2 + [swift_methods.DRAFTED_ALIKE]


@pytest.mark.parametrize(("speeds", "outcome"), [((1, 2, 1), True), ((3, 2, 1), False), ((1, 1.001, 1), True)])
def test_an_optimum_lies_inside(speeds: Sequence[float], outcome: bool) -> None:
    arms = {"ratio 0.3": speeds[0], "ratio 0.45": speeds[1], "ratio 0.6": speeds[2], OFF: 1}
    records = [record(arm, n, 1 / speed) for arm, speed in arms.items() for n in range(4)]
    assert claims("figure-8b", {CNN: unit(records)})["speed-up rises with the ratio, then falls"].outcome is outcome


def test_a_smaller_set_is_not_a_better_one() -> None:
    claim = "the search ends with a better set than it began with"

    def of(last: str, *matches: tuple[float, float]) -> Judgement:
        sets = [{"step": step, "skip": skip, "matchness": 0.5} for step, skip in ((0, "a1,m1"), (9, last))]
        return claims("figure-12", {CNN: {"num_layers": 5, "sets": sets, "matches": list(map(list, matches))}})[claim]

    assert of("a1,a3", (0.5, 0.7), (0.4, 0.7), (0.5, 0.6)).outcome is True
    assert of("a1,a3", (0.5, 0.4), (0.4, 0.3), (0.5, 0.3)).outcome is False
    assert of("a1,a3", (0.5, 0.7), (0.4, 0.1), (0.5, 0.6)).outcome is None
    assert of("a1", (0.5, 0.7), (0.4, 0.7), (0.5, 0.6)).because == "it skips 1 sub-layers instead of 2"
