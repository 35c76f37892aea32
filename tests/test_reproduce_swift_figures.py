"""SWIFT's figures: each is measured end to end on a pico model, and its claims are judged by figures made by hand."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch

from pico import letter_tokenizer, pico
from selfdraft import Engine
from selfdraft.bench.prompts import BenchPrompt, encode
from selfdraft.bench.reproduce import report
from selfdraft.bench.reproduce.cells import Speed, faster, faster_than_plain
from selfdraft.bench.reproduce.journal import Line, ReproduceHead, UnitFile, read_units
from selfdraft.bench.reproduce.published import Paper, PublishedTable
from selfdraft.bench.reproduce.recipe import Experiment, Found, Recipe, Section
from selfdraft.bench.reproduce.report import as_text, shown
from selfdraft.bench.reproduce.run import Reproduction
from selfdraft.bench.reproduce.scale import QUICK, WHOLE, Scale
from selfdraft.bench.reproduce.swift.figures import FIGURES
from selfdraft.bench.reproduce.swift.figures_claims import Course, Share, is_above, is_more
from selfdraft.bench.reproduce.swift.figures_common import OURS, plain_texts, stored_label, swift, text_tokens
from selfdraft.bench.reproduce.swift.figures_cost import matchness_at, searches
from selfdraft.bench.reproduce.swift.figures_options import DRAFTED_ALIKE, GROUPS, NOT_REACHED, RATIOS, settings
from selfdraft.bench.reproduce.swift.figures_sparsity import TOPS, even_sets, top_hits
from selfdraft.bench.reproduce.swift.methods import SELF_SD, SWIFT
from selfdraft.bench.reproduce.swift.tables import TABLES
from selfdraft.bench.reproduce.workbench import Workbench
from selfdraft.calibrate.texts import probe_text
from selfdraft.types import SkipSet

pytestmark = pytest.mark.xdist_group("reproduce_swift_figures")

RECIPE = Recipe("swift", FIGURES)
BY_ID: Mapping[str, Experiment] = {experiment.id: experiment for experiment in FIGURES}
SMALL = Scale(prompts=1, learned_prompts=1, tokens=6, lesson_seconds=0.4, lesson_tokens=24, is_quick=True)
HEAD = ReproduceHead({"model": "pico", "scale": SMALL.to_json()}, {"device_name": "a CPU", "dtype": "float32"})
DOMAINS = {"summarise": 4, "math": 2, "story": 2, "translate": 2, "chat": 2}
PROMPTS = [
    BenchPrompt(f"{domain}-{number}", domain, f"{domain} {number} abcabc {domain}")
    for domain, count in DOMAINS.items()
    for number in range(count)
]


def workbench(folder: Path, scale: Scale = SMALL) -> Workbench:
    engine = Engine(pico("llama"), letter_tokenizer(), profile=None)
    return Workbench(engine, PROMPTS, scale, folder / "lessons")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All figures, measured once."""
    folder = tmp_path_factory.mktemp("swift")
    work = Reproduction(workbench(folder), UnitFile(folder / "result.jsonl", HEAD))
    work.run([RECIPE])
    assert not work.has_difference
    return folder


@pytest.fixture(scope="module")
def lines(folder: Path) -> Sequence[Line]:
    return read_units(folder / "result.jsonl")[1]


@pytest.fixture
def paper(monkeypatch: pytest.MonkeyPatch) -> Paper:
    """What the paper says of its figures, in a file of its own or among the tables."""
    published = files("selfdraft.bench.reproduce") / "published"
    kept = [published / name for name in ("swift-figures.json", "swift.json") if (published / name).is_file()]
    content = json.loads(kept[0].read_text(encoding="utf-8"))
    tables = {name: PublishedTable(**table) for name, table in content["tables"].items()}
    found = Paper(content["title"], content["arxiv"], tables)
    monkeypatch.setattr(report, "published", lambda name: found)
    return found


def found_of(lines: Sequence[Line], experiment: str, without: str | None = None) -> Found:
    own = [line for line in lines if line.experiment == experiment and line.unit != without]
    units = {line.unit: line.values for line in own if line.missing is None}
    return Found(units, {line.unit: line.missing for line in own if line.missing is not None}, SMALL.to_json())


# ----------------------------------------------------------------------------------------------------- end to end


def test_all_figures_from_end_to_end(lines: Sequence[Line], paper: Paper) -> None:
    sections = {one.experiment.id: one for one in shown([RECIPE], lines, HEAD)}
    assert list(sections) == list(BY_ID)
    for name, one in sections.items():
        assert one.section.ours[0].rows, name
        assert one.section.efforts, name
        text = as_text(one, HEAD)
        assert f"swift {name}" in text
        if name in paper.tables:
            assert paper.tables[name].source in text
    missing = {(line.experiment, line.unit): line.missing for line in lines if line.missing is not None}
    assert list(missing) == [("figure-7", "nq")]
    assert "there are no prompts of NQ" in missing["figure-7", "nq"]


def test_what_the_units_hold(lines: Sequence[Line]) -> None:
    found = {(line.experiment, line.unit): line.values for line in lines}
    stream = found["figure-6", "stream cnn-dm"]["texts"]
    assert {name: len(rows) for name, rows in stream.items()} == {"off": 3, SWIFT: 3}
    assert stream[SWIFT][0]["num_tokens"] == text_tokens(SMALL) == 32
    assert found["figure-6", "search cnn-dm"]["num_steps"] > 0
    shift = found["figure-7", "stream"]
    assert [row["domain"] for row in shift["texts"][SELF_SD]] == ["cnn-dm", "gsm8k", "alpaca", "wmt"]
    assert found["figure-7", "stream"]["search"]["skip"]  # Self-SD drafts, whatever it is worth
    assert [unit for experiment, unit in found if experiment == "figure-8b"] == [
        "0.3, 0.45, 0.6 cnn-dm",
        "0.1, 0.2, 0.4, 0.5 cnn-dm",
    ]
    assert list(found["figure-11", "cnn-dm"]["searches"]) == ["Self-SD 0", "Self-SD 1"]
    strips = found["figure-12", "cnn-dm"]
    assert strips["num_layers"] == 5
    assert strips["sets"][0]["step"] == 0
    assert strips["sets"][-1]["step"] == found["figure-6", "search cnn-dm"]["num_steps"]  # the same search


def test_nothing_is_measured_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (folder / "result.jsonl").read_text()
    for name in ("compare_texts", "learn", "apart"):
        monkeypatch.setattr(Workbench, name, lambda *_, **__: pytest.fail("it was there"))
    monkeypatch.setattr(Engine, "generate", lambda *_, **__: pytest.fail("it was there"))
    Reproduction(workbench(folder), UnitFile(folder / "result.jsonl", HEAD)).run([RECIPE])
    assert (folder / "result.jsonl").read_text() == before


def test_tables_and_figures_share_their_lessons(folder: Path) -> None:
    """What SWIFT and Self-SD learned for figures is there for tables 8 and 12."""
    bench, said = workbench(folder), list[str]()
    bench.say = said.append
    for name in ("table-8", "table-12"):
        unit = next(iter(next(table for table in TABLES if table.id == name).units(bench)))
        assert unit.measure is not None
        unit.measure()
    assert not [text for text in said if "learns" in text]


@pytest.mark.parametrize("name", BY_ID)
def test_figures_with_units_missing(lines: Sequence[Line], name: str) -> None:
    units = [line.unit for line in lines if line.experiment == name]
    assert units
    for unit in units:
        assert isinstance(BY_ID[name].show(found_of(lines, name, without=unit)), Section)
    nothing = BY_ID[name].show(Found({}, scale=SMALL.to_json()))
    assert not any(table.rows for table in nothing.ours)
    assert not nothing.trends
    assert nothing.plot is None


@pytest.mark.parametrize("name", BY_ID)
def test_figures_are_drawn(lines: Sequence[Line], name: str) -> None:
    figures = pytest.importorskip("matplotlib.figure")
    plot = BY_ID[name].show(found_of(lines, name)).plot
    assert plot is not None
    figure = figures.Figure(figsize=plot.size, layout="constrained")
    plot.draw(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    assert buffer.getvalue().startswith(b"\x89PNG")


def test_at_the_whole_scale(tmp_path: Path) -> None:
    """Sets come from `prune`, and our own form of SWIFT takes part in the stream."""
    bench = workbench(tmp_path, replace(SMALL, is_quick=False))
    bench.prompts = [prompt for prompt in PROMPTS if prompt.domain in ("summarise", "math")]
    file = UnitFile(None, HEAD)
    Reproduction(bench, file).run([RECIPE], ["figure-2b", "figure-7"])
    values = {(line.experiment, line.unit): line.values for line in file.lines.values()}
    assert set(values["figure-7", "stream"]) >= {"off", SELF_SD, SWIFT, OURS}
    assert values["figure-7", "stream"]["lesson"]["num_steps"] is not None
    (kept,) = (tmp_path / "lessons").glob("prune-gsm8k")
    assert kept.is_dir()
    assert SkipSet.parse(values["figure-2b", "gsm8k"]["skip"])


def test_quick_texts_are_long_enough_to_be_searched_on() -> None:
    assert text_tokens(QUICK) == 32
    assert text_tokens(WHOLE) == WHOLE.tokens
    assert swift(QUICK)["settings"]["swift"] == {"paper": True, "window": 16}
    assert swift(WHOLE, ratio=0.3)["settings"]["swift"] == {"paper": True, "window": 32, "ratio": 0.3}
    usual, fewer, seldom = settings(WHOLE).values()
    assert (usual, fewer, seldom) == (
        {"max_steps": 1000, "interval": 25},
        {"max_steps": 500, "interval": 25},
        {"max_steps": 1000, "interval": 50},
    )
    assert searches(QUICK) == [3.0, 12.0]
    assert searches(WHOLE) == [15.0, 60.0, 180.0]


def test_published_figures(paper: Paper) -> None:
    assert paper.arxiv == "2410.06916"
    figures = {name: table for name, table in paper.tables.items() if name.startswith("figure")}
    assert {"figure-2a", "figure-2b", "figure-6", "figure-7", "figure-11"} <= set(figures)
    for table in figures.values():
        assert table.source.startswith("figure")
        assert all(len(row) == len(table.columns) for row in table.rows)


# --------------------------------------------------------------------------------------------------- by teacher forcing


class Scored:
    """A probe whose scores are known; sub-layers add nothing."""

    num_sublayers = 2

    def __init__(self, scores: torch.Tensor) -> None:
        self._scores = scores

    def begin(self) -> None: ...

    def run(self, number: int, states: None) -> None: ...

    skip = run

    def scores(self, states: None) -> torch.Tensor:
        return self._scores[None]


def test_tokens_among_the_best() -> None:
    probe: Any = Scored(torch.tensor([[4.0, 3.0, 2.0, 1.0]]).repeat(4, 1))
    assert top_hits(probe, SkipSet(), [0, 1, 2, 3], (1, 2, 10)) == [1, 2, 4]


def test_the_whole_model_meets_all_of_its_own_tokens(tmp_path: Path) -> None:
    bench = workbench(tmp_path)
    (text,) = plain_texts(bench, PROMPTS[:1])
    wanted = text.tokens[text.num_prompt_tokens :]
    assert text.tokens[: text.num_prompt_tokens] == tuple(encode(PROMPTS[0], bench.engine))
    probe = probe_text(text, bench.engine.runner)
    assert top_hits(probe, SkipSet(), wanted, TOPS) == [64, 64, 64]
    hits = top_hits(probe, SkipSet.of([0, 1, 2, 3], [0, 1, 2, 3]), wanted, TOPS)
    assert hits[0] < 64
    assert hits == sorted(hits)


def test_even_sets() -> None:
    found = even_sets(30)
    assert {ratio: len(skip) for ratio, skip in found.items()} == {0.1: 6, 0.2: 12, 0.3: 18, 0.4: 24, 0.5: 30, 0.6: 36}
    assert 0.1 not in even_sets(4)


# --------------------------------------------------------------------------------------------------------------- claims


def a_speed(value: float, spread: float = 0.05, num_prompts: int = 4) -> Speed:
    return Speed("a way", value, value - spread, value + spread, num_prompts)


def test_claims_about_speeds() -> None:
    assert faster("", a_speed(1.5), a_speed(1.2)).holds is True
    assert faster("", a_speed(1.2), a_speed(1.5)).holds is False
    assert faster("", a_speed(1.22), a_speed(1.2)).holds is None
    assert faster("", a_speed(1.5), None).holds is None
    assert faster("", a_speed(1.5, num_prompts=2), a_speed(1.2)).holds is None
    assert [faster_than_plain("", a_speed(value)).holds for value in (1.2, 1.02, 0.8)] == [True, None, False]
    assert faster_than_plain("", a_speed(1.2, num_prompts=2)).holds is None


def test_claims_about_shares() -> None:
    found = [is_above("", Share(hits, 100), 0.9).holds for hits in (99, 92, 50)]
    assert found == [True, None, False]
    assert is_above("", Share(5, 5), 0.9).holds is None
    assert is_more("", Share(90, 100), Share(50, 100)).holds is True
    assert is_more("", Share(50, 100), Share(90, 100)).holds is False
    assert is_more("", Share(50, 100), Share(52, 100)).holds is None


def a_text(seconds: float, domain: str = "cnn-dm", accepted: int = 9, optimise: float = 0.0) -> dict[str, Any]:
    """Ten tokens."""
    return {
        "domain": domain,
        "num_tokens": 10,
        "decode_seconds": seconds,
        "optimise_seconds": optimise,
        "draft_seconds": 0.5 * seconds,
        "verify_seconds": 0.3 * seconds,
        "num_draft_steps": 10,
        "num_accepted": accepted,
    }


def test_the_course_of_a_stream() -> None:
    own = [a_text(2.0, optimise=0.4), a_text(0.5, "gsm8k", accepted=4)]
    course = Course("x", own, [a_text(1.0), a_text(1.0, "gsm8k")])
    assert course.single == pytest.approx([0.5, 2.0])
    assert course.running == pytest.approx([0.5, 0.8])
    assert course.is_searching == [True, False]
    assert course.acceptance == Share(13, 20)
    assert course.split == pytest.approx({"optimise": 20.0, "draft": 62.5, "verify": 37.5, "other": 5.0})
    speed = course.of_tasks(["gsm8k"]).speed
    assert speed is not None
    assert (speed.value, speed.num_prompts) == (pytest.approx(2.0), 1)
    assert course.between(0, 1).own == own[:1]
    assert course.of_tasks(["none"]).speed is None


def stream_of(**ways: Sequence[dict[str, Any]]) -> dict[str, Any]:
    (first, *_) = ways.values()
    texts = {"off": [a_text(1.0, row["domain"]) for row in first], **ways}
    return {"texts": texts}


def held(section: Section, *words: str) -> bool | None:
    """Of the one claim that has these words."""
    (trend,) = [trend for trend in section.trends if all(word in trend.claim for word in words)]
    return trend.holds


def show(name: str, units: Mapping[str, Any]) -> Section:
    return BY_ID[name].show(Found(units, scale=SMALL.to_json()))


def figures(value: float, num_prompts: int = 4) -> dict[str, Any]:
    known = {"value": value, "low": value - 0.02, "high": value + 0.02}
    return {"speedup": known, "num_prompts": num_prompts, "acceptance_rate": 0.8, "mean_generated_length": 3.0}


# ------------------------------------------------------------------------------------------------- figure by figure


def test_sparsity() -> None:
    def unit(hits: Sequence[int]) -> dict[str, Any]:
        return {"points": [{"ratio": 0.5, "num_skipped": 30, "hits": hits}], "num_tokens": 100, "num_sublayers": 60}

    def speeds(top_k: float, top_1: float, rates: tuple[float, float], num_prompts: int = 4) -> dict[str, Any]:
        ways = [("top-k", top_k, rates[0]), ("top-1", top_1, rates[1])]
        return {way: {"total": {**figures(value, num_prompts), "acceptance_rate": rate}} for way, value, rate in ways}

    shares = {"acceptance cnn-dm": unit([60, 90, 99]), "acceptance gsm8k": unit([70, 95, 99])}
    good = show("figure-2a", {**shares, "speed 0.5": speeds(1.2, 1.0, (0.95, 0.76))})
    assert good.ours[0].rows == [["30 of 60", "0.76", "0.95", "1.00x", "1.20x", "0.65", "0.93", "0.99"]]
    assert [trend.holds for trend in good.trends] == [True, True, True, True]
    assert good.trends[1].because.endswith("; +25%")
    poor = show("figure-2a", {"speed 0.5": speeds(0.8, 0.9, (0.5, 0.4)), "speed 0.3": speeds(1.0, 1.0, (0.7, 0.4))})
    assert [trend.holds for trend in poor.trends] == [False, True, False, False]
    assert "over 2 shares skipped +50%" in poor.trends[1].because
    few = show("figure-2a", {"speed 0.5": speeds(1.2, 1.0, (0.95, 0.7), num_prompts=2)})
    assert [trend.holds for trend in few.trends] == [None, None, None, None]
    assert show("figure-2a", shares).trends == []  # teacher forcing is not what the paper claims


def test_sets_of_other_tasks() -> None:
    def unit(skip: str, story: float, reasoning: float) -> dict[str, Any]:
        domains = {"tinystories": figures(story), "gsm8k": figures(reasoning)}
        return {"set": {"domains": domains}, "skip": skip, "match": 0.7, "num_sublayers": 10}

    found = show("figure-2b", {"tinystories": unit("a1-2", 1.5, 1.0), "gsm8k": unit("a2-3", 1.3, 1.01)})
    assert found.ours[0].rows == [["TinyStories", "1.50x", "1.00x"], ["GSM8K", "1.30x", "1.01x"]]
    assert found.ours[1].rows[0][-2:] == ["1.00", "0.33"]
    assert held(found, "worth less") is True
    assert held(found, "on TinyStories its own") is True
    assert held(found, "on GSM8K its own") is None
    turned = show("figure-2b", {"tinystories": unit("a1", 1.0, 1.5), "gsm8k": unit("a2", 1.3, 1.2)})
    assert held(turned, "worth less") is False
    assert held(turned, "on TinyStories its own") is False
    same = show("figure-2b", {"tinystories": unit("a1", 1.5, 1.0), "gsm8k": unit("a1", 1.3, 1.2)})
    assert [trend.claim for trend in same.trends] == ["the set of stories is worth less on calculations"]


def test_tasks_have_the_labels_they_were_measured_with() -> None:
    others = {
        "figure-7": {"stream": {"labels": {"wmt": "WMT DE-EN (translate)"}}},
        "table-2": {"cnn-dm": {"task": "CNN/DM (summarise)"}},
    }
    found = Found({"gsm8k": {"label": "GSM8K (math)"}}, others=others)
    assert [stored_label(found, name) for name in ("gsm8k", "wmt", "cnn-dm", "tinystories")] == [
        "GSM8K (math)",
        "WMT DE-EN (translate)",
        "CNN/DM (summarise)",
        "TinyStories",
    ]


def test_the_timeline() -> None:
    searching = [a_text(seconds, optimise=0.5) for seconds in (2.0, 2.1, 2.0)]
    rows = [*searching, a_text(0.5, optimise=0.001), a_text(0.55), a_text(0.5)]
    search = {
        "first": 0.4,
        "texts": [0.7, 0.96],
        "steps": [[1, 0.4]],
        "num_steps": 40,
        "phase": "accelerate",
        "ratios": [0.45, 0.4],
    }
    found = show("figure-6", {"stream cnn-dm": stream_of(**{SWIFT: rows}), "search cnn-dm": search})
    assert held(found, "behind its search") is True
    assert held(found, "less than 1 %") is True  # the same search, had the stream a thousand texts
    assert any("from 0.45 to 0.4" in note for note in found.notes)
    assert held(found, "more time than verifying") is True
    assert any("from 0.40 to 0.96" in note and "cannot fall" in note for note in found.notes)
    assert not any("rises" in trend.claim for trend in found.trends)
    assert held(found, "beyond 0.95") is True
    assert [row[1] for row in found.ours[1].rows] == ["0.50x", "0.48x", "0.50x", "2.00x", "1.82x", "2.00x"]
    assert found.ours[1].rows[-1][2] == "0.78x"  # six texts in 7.65 seconds
    unsure = {**search, "texts": [0.4], "phase": "optimise"}
    begun = show("figure-6", {"stream cnn-dm": stream_of(**{SWIFT: searching}), "search cnn-dm": unsure})
    assert held(begun, "less than 1 %") is None
    assert held(begun, "beyond 0.95") is None
    costly = [{**a_text(0.5, optimise=20.0), "decode_seconds": 20.5}] * 3 + [a_text(0.5)] * 3
    assert held(show("figure-6", {"stream cnn-dm": stream_of(**{SWIFT: costly})}), "less than 1 %") is False
    ended = show("figure-6", {"search cnn-dm": {**unsure, "phase": "accelerate"}})
    assert held(ended, "beyond 0.95") is False


def test_a_stream_that_changes_its_task() -> None:
    def unit(own: float, others: float, accepted: int) -> dict[str, Any]:
        tasks = ["cnn-dm"] * 3 + ["gsm8k"] * 3
        known = [
            a_text(own if task == "cnn-dm" else others, task, 9 if task == "cnn-dm" else accepted) for task in tasks
        ]
        steady = [{**a_text(0.7, task), "num_draft_steps": 100, "num_accepted": 99} for task in tasks]
        labels = {"cnn-dm": "CNN/DM", "gsm8k": "GSM8K"}
        search = {"skip": "a1", "num_steps": 9, "plain": 10.0, "tokens_per_second": 10.0 / own}
        return {**stream_of(**{SELF_SD: known, SWIFT: steady}), "labels": labels, "search": search}

    paper = show("figure-7", {"stream": unit(0.75, 0.95, 2)})
    assert [trend.holds for trend in paper.trends] == [True, True, True, True, True]
    assert paper.ours[0].rows[0] == [SELF_SD, "1.33x", "1.05x", "1.18x"]
    assert paper.ours[1].rows[0] == [SELF_SD, "0.90", "0.20", "0.55"]
    turned = show("figure-7", {"stream": unit(1.25, 0.5, 9)})
    assert held(turned, "loses speed") is False
    assert held(turned, "accepted more often on its own") is None
    assert held(turned, "once the task has changed") is False
    assert any("the best of them drafts here (8.0" in note for note in turned.notes)
    assert not any("the best of them drafts" in note for note in paper.notes)


def test_options_of_the_search() -> None:
    names = ("S, interval", "half of S", "twice the interval")
    usual = [a_text(2.0, optimise=0.4)] * 3 + [a_text(0.5)] * 3
    fewer = [a_text(1.5, optimise=0.2)] * 3 + [a_text(0.7)] * 3
    seldom = [a_text(1.8, optimise=0.2, accepted=8)] * 3 + [a_text(0.5)] * 3
    unit = {**stream_of(**dict(zip(names, (usual, fewer, seldom), strict=True))), "settings": settings(QUICK)}
    found = show("figure-8a", {"stream cnn-dm": unit})
    assert [trend.holds for trend in found.trends] == [True, True, True, True]
    assert found.ours[0].rows[0] == ["S, interval", "16, 4", "0.50x", "2.00x", "0.80x", "20.00"]
    assert found.efforts[-1].what == "S asked for"


def test_an_option_that_changed_nothing_is_not_judged() -> None:
    names = ("S, interval", "half of S", "twice the interval")

    def section(*ways: Sequence[dict[str, Any]], **more: Any) -> Section:
        known = {**stream_of(**dict(zip(names, ways, strict=True))), "settings": settings(QUICK)}
        return show("figure-8a", {"stream cnn-dm": {**known, **more}})

    usual, quick = ([a_text(seconds, optimise=0.4)] * 6 for seconds in (2.0, 1.5))
    alike = section(usual, quick, quick)  # the clock differs, the drafts do not, and the search goes on to the end
    assert [trend.holds for trend in alike.trends] == [None, None, None, None]
    assert [trend.because for trend in alike.trends[:3]] == [NOT_REACHED, NOT_REACHED, DRAFTED_ALIKE]
    cheaper = section(usual, usual, [a_text(2.0, optimise=0.2)] * 6)
    assert held(cheaper, "optimisation cheaper") is True  # suggestions take time, whatever drafts
    over = [*quick[:3], *([a_text(0.7)] * 3)]
    assert held(section(usual, over, usual), "half of S") is True  # it ended the search, though drafts are the same
    sets = {name: {"skips": [{"skip": f"a{place}", "share": 1.0}]} for place, name in enumerate(names)}
    assert held(section(usual, quick, quick, **sets), "half of S") is True  # other sets, as many accepted

    def notes(num_tokens: int) -> Sequence[str]:
        total = {"num_tokens": num_tokens, "mean_generated_length": 2.0}
        return section(usual, usual, usual, **{names[0]: {"total": total}}).notes

    assert any("had 7 rounds: no S was reached" in note for note in notes(14))
    assert not any("rounds" in note for note in notes(16))


def test_ratios() -> None:
    def section(*values: float, num_texts: int = 3) -> Section:
        """Of the first ratios; scoring takes a second that is left out."""
        found: dict[str, Any] = {}
        speeds = dict(zip(RATIOS, values, strict=False))
        for group in GROUPS:
            ways = {
                f"ratio {ratio}": [a_text(1 / speeds[ratio] + 1, optimise=1.0)] * num_texts
                for ratio in group
                if ratio in speeds
            }
            if ways:
                found[f"{', '.join(map(str, group))} cnn-dm"] = stream_of(**ways)
        return show("figure-8b", found)

    assert section(1.0, 2.0).ours[0].rows[1][:3] == ["0.20", "2.00x", "0.67x"]
    assert section(1.1, 1.4, 1.2).trends[0].holds is True
    assert section(1.4, 1.2, 1.1).trends[0].holds is False
    assert section(1.1, 1.2, 1.4).trends[0].holds is False
    assert section(1.1, 1.1, 1.1).trends[0].holds is None
    assert section(1.1, 1.4, 1.2, num_texts=2).trends[0].holds is None
    assert section(1.1, 1.4).trends == []


def test_seconds_of_optimisation() -> None:
    def unit(fast: float, longest: float, shortest: float, shorter_set: str = "a2") -> dict[str, Any]:
        search = {"num_steps": 7, "plain": 10.0, "tokens_per_second": 12.0}
        return {
            SWIFT: {"total": figures(fast)},
            "Self-SD 0": {"total": figures(shortest)},
            "Self-SD 1": {"total": figures(longest)},
            "searches": {
                "Self-SD 0": {**search, "seconds": 3.5, "skip": shorter_set},
                "Self-SD 1": {**search, "seconds": 12.0, "skip": "a1"},
            },
            "lesson": {"num_steps": 40, "optimise_seconds": 3.0},
        }

    def held_of(*speeds: float, shorter_set: str = "a2") -> list[bool | None]:
        return [trend.holds for trend in show("figure-11", {"cnn-dm": unit(*speeds, shorter_set)}).trends]

    rows = show("figure-11", {"cnn-dm": unit(1.5, 1.2, 1.0)}).ours[0].rows
    assert [row[:4] for row in rows] == [
        [SWIFT, "40", "3.0", "1.50x"],
        [SELF_SD, "7", "3.5", "1.00x"],
        [SELF_SD, "7", "12.0", "1.20x"],
    ]
    assert held_of(1.5, 1.2, 1.0) == [True, True]
    assert held_of(1.0, 1.2, 1.3) == [False, False]
    assert held_of(1.2, 1.2, 1.21) == [None, None]
    assert held_of(1.5, 1.2, 1.0, shorter_set="a1") == [True, None]


def test_strips() -> None:
    def unit(gained: int, lost: int, last: str = "a1,a3", num_prompts: int = 3) -> dict[str, Any]:
        sets = [
            {"step": 0, "skip": "a1,m1", "matchness": 0.5, "hits": 50},
            {"step": 20, "skip": last, "matchness": 0.8, "hits": 50 + gained - lost},
        ]
        counts = {"num_layers": 5, "num_tokens": 100, "num_prompts": num_prompts}
        return {**counts, "sets": sets, "gained": gained, "lost": lost}

    better = show("figure-12", {"cnn-dm": unit(20, 2)})
    assert better.ours[0].rows[1] == ["20", "2", "0", "1", "0.80", "0.68"]
    assert better.trends[0].holds is True
    assert show("figure-12", {"cnn-dm": unit(2, 20)}).trends[0].holds is False
    assert show("figure-12", {"cnn-dm": unit(5, 4)}).trends[0].holds is None
    assert show("figure-12", {"cnn-dm": unit(20, 2, num_prompts=1)}).trends[0].holds is None
    smaller = show("figure-12", {"cnn-dm": unit(20, 2, last="a1")}).trends[0]
    assert smaller.holds is None
    assert "1 sub-layers instead of 2" in smaller.because


def test_matchness_at_a_step() -> None:
    steps = [{"step": 1, "best": 0.4}, {"step": 2, "best": 0.6}, {"step": 3, "best": 0.6}]
    assert [matchness_at(steps, step) for step in (0, 1, 2, 64)] == [0.4, 0.4, 0.6, 0.6]
    assert matchness_at([], 0) is None
