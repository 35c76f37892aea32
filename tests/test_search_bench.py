"""benchmarks/search.py: its document is complete, prints again, may be cut short, and a wrong output is an error."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import itertools
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from learned import latency
from pico import letter_tokenizer, pico
from selfdraft import Engine
from selfdraft.bench.pace import Pace
from selfdraft.bench.prompts import BenchPrompt
from selfdraft.bench.search import learning
from selfdraft.bench.search.bench import Bench
from selfdraft.bench.search.learning import Lesson, School, num_steps
from selfdraft.bench.search.mixed import MixedStreams
from selfdraft.bench.search.prompts import Wanted, choose
from selfdraft.bench.search.report import as_markdown
from selfdraft.bench.search.routing import Routed
from selfdraft.bench.search.routing import figures as routing_figures
from selfdraft.bench.search.sets import DomainSet, overlaps, sets_of
from selfdraft.bench.search.swift import SwiftStream, thinned
from selfdraft.bench.search.turns import TextFigures, speedup, time_split
from selfdraft.bench.selection.turns import Arm
from selfdraft.bench.streams import change_share, mixed
from selfdraft.calibrate.kit import EngineKit
from selfdraft.errors import OptionError
from selfdraft.profiles.store import Store
from selfdraft.types import Generation, SkipSet

pytestmark = pytest.mark.xdist_group("search_bench")  # what they measure is measured once

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "search.py"
WORDS = {
    "code": ["abcabcabc", "xyzxyz", "defdef", "ghigh"],
    "math": ["1+2=3", "7*8=56", "9-3=6", "4/2=2"],
    "chat": ["hello", "goodbye", "thanks", "please"],
}
FEW = ["--domains", "code", "math", "--per-domain", "1", "--calibration", "2", "--stream-prompts", "2"]
SHORT = ["--max-new-tokens", "8", "--learned-tokens", "16", "--held-out-tokens", "4", "--fit-seconds", "2"]
QUICK = [*FEW, *SHORT, "--equal-seconds", "1", "--max-prompt-chars", "9", "--ratios", "0", "1"]
MIXED_WAYS = ["off", "ssd-f", "ssd-m", "swift", "prune", "knn", "prune, own pairing", "knn, own pairing"]
Run = tuple[str, dict[str, Any]]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("search_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True, scope="module")
def untimed() -> Iterator[None]:
    """Seconds at which drafting pays, and steps instead of seconds to learn in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learning, "measure", lambda *arguments: latency())
        patch.setattr(learning, "_clock", lambda seconds: partial(next, iter([True, True]), False))
        patch.setattr(EngineKit, "has_time", has_a_few_steps)
        patch.setattr(EngineKit, "tokens_per_second", lambda kit, method, *text: 1 + (method["strategy"] != "off"))
        yield


def has_a_few_steps(kit: EngineKit) -> bool:
    count = kit.__dict__.setdefault("count", itertools.count())
    kit.is_out_of_time = next(count) >= 5
    return not kit.is_out_of_time


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "pico-llama"
    pico("llama").save_pretrained(path)
    letter_tokenizer().save_pretrained(path)
    lines = [json.dumps({"domain": domain, "prompt": text}) for domain, texts in WORDS.items() for text in texts]
    lines.append(json.dumps({"domain": "code", "prompt": "much-too-long"}))
    (path / "prompts.jsonl").write_text("\n".join(lines))
    return path


def run_script(script: ModuleType, folder: Path, *arguments: str) -> tuple[int, str]:
    """(exit code, standard output)."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        status = script.main([str(folder), "--prompts", str(folder / "prompts.jsonl"), *QUICK, *arguments])
    return status, output.getvalue()


@pytest.fixture(scope="module")
def run(script: ModuleType, folder: Path) -> Run:
    """(standard output, document) of one whole run."""
    file = folder / "result.json"
    status, output = run_script(script, folder, "--output", str(file), "--profile-folder", str(folder / "profiles"))
    assert status == 0
    return output, json.loads(file.read_text())


def names(part: dict[str, Any]) -> list[str]:
    return [row["name"] for row in part["ways"]]


# ----------------------------------------------------------------------------------------------------- a whole run


def test_the_stream_of_swift(run: Run) -> None:
    output, document = run
    found = document["swift"]
    assert document["is_complete"]
    assert found["is_complete"]
    assert names(found) == ["off", "swift", "swift paper", "uniform 0.45"]
    assert (found["domain"], found["num_prompts"]) == ("code", 2)
    for row in found["ways"]:
        assert row["total"]["num_tokens"] == 16
        assert row["interval"]["low"] <= row["interval"]["speedup"] <= row["interval"]["high"]
        assert (row["first"]["num_prompts"], row["last"]["num_prompts"]) == (2, 1)
        assert sum(row["split"].values()) == pytest.approx(1)
        assert row["total"]["equal"] == (0 if row["name"] == "off" else 2)
    uniform = found["ways"][-1]["method"]
    assert (uniform["strategy"], uniform["tree"]) == ("uniform", "siblings")
    assert uniform["settings"]["uniform"] == {"ratio": 0.45}
    assert set(found["states"]) == set(found["timeline"]) == {"swift", "swift paper"}
    assert all(len(course) == 2 for course in found["timeline"].values())
    assert {"phase", "step", "ratio", "matchness", "skip", "snapshots", "steps"} <= set(found["states"]["swift"])
    assert set(found["held_out"]["match"]) == {"swift", "swift paper", "uniform 0.45"}
    assert all(0 <= match <= 1 for match in found["held_out"]["match"].values())
    assert "| swift paper |" in output


def test_the_domains_of_knn(run: Run) -> None:
    output, document = run
    found = document["knn"]
    assert set(found["lessons"]) == {"prune", "ssd-f", "ssd-m", "knn"}
    assert found["routing"]["own"]["num_prompts"] == 2
    assert found["routing"]["others"]["num_prompts"] == 1
    assert set(found["routing"]["others"]["confusion"]) == {"chat"}
    assert set(found["sets"]) == {"code", "math"} == set(found["overlaps"]["code"])
    matrix = found["matrix"]
    assert names(matrix) == ["off", "set of code", "set of math"]
    for row in (*matrix["speedup"].values(), *matrix["match"].values()):
        assert set(row) == {"code", "math"}
    assert all(cell["num_prompts"] == 1 for row in matrix["speedup"].values() for cell in row.values())
    assert [one["ratio"] for one in found["mixed"]] == [0, 1]
    for one in found["mixed"]:
        assert names(one) == MIXED_WAYS
        assert one["num_prompts"] == 2
        assert all(row["total"]["num_prompts"] == 2 for row in one["ways"])
    assert all(title in output for title in ("### Routing", "### The set of each", "on task Y", "### Mixed streams"))


def test_the_table_at_equal_time(run: Run) -> None:
    output, document = run
    found = document["equal"]
    assert found["seconds"] == 1
    assert set(found["lessons"]) == {"prune", "draft-verify", "swift", "knn"}
    assert all(facts["num_steps"] > 0 for facts in found["lessons"].values())
    rows = ["uniform 0.25", "asd", "clasp", "knapspec", "prune", "draft-verify", "swift", "knn"]
    assert list(found["tables"]["A"]) == list(found["tables"]["B"]) == rows
    assert found["tables"]["B"]["swift"] == "swift, own pairing"
    methods = {row["name"]: row["method"] for row in found["ways"]}
    assert methods["swift"]["tree"] == methods["knn"]["tree"] == "chain"
    assert "At equal calibration time: 1 s each" in output


def test_what_was_practised_is_measured_with(run: Run, folder: Path) -> None:
    steps = run[1]["equal"]["lessons"]["swift"]["num_steps"]
    (file,) = (folder / "profiles" / "equal").rglob("profile.json")
    assert json.loads(file.read_text())["artefacts"]["swift"]["values"]["step"] == steps


def test_circumstances(run: Run) -> None:
    document = run[1]
    assert {"device_name", "dtype", "threads", "torch", "transformers", "selfdraft", "commit", "date"} <= set(document)
    assert document["prompts"]["left_out"] == {"code": 1}
    assert document["prompts"]["kept_apart"] == {"code": 2, "math": 2}
    assert document["options"]["prompts"] == ["prompts.jsonl"]
    assert document["options"]["profile_folder"] == "profiles"
    assert "longer than 9 characters and left out: code 1" in run[0]


def test_the_tables_print_again(script: ModuleType, folder: Path, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--table", str(folder / "result.json")]) == 0
    assert capsys.readouterr().out == run[0]


def test_pictures(script: ModuleType, folder: Path, run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with contextlib.redirect_stdout(io.StringIO()):
        assert script.main(["--table", str(folder / "result.json"), "--plot-folder", str(tmp_path)]) == 0
    assert len(list(tmp_path.glob("*.png"))) == 4


# --------------------------------------------------------------------------------------- cut short, wrong, mistaken


def test_time_may_be_up(script: ModuleType, folder: Path, run: Run, tmp_path: Path) -> None:
    """The first prompt of the first part is measured in any case; what was learned is read again."""
    file = tmp_path / "second.json"
    known = ["--output", str(file), "--profile-folder", str(folder / "profiles")]
    status, output = run_script(script, folder, "--part", "knn", "equal", "--seconds", "0", *known)
    document = json.loads(file.read_text())
    assert status == 0
    assert not document["is_complete"]
    assert document["swift"] is None
    assert document["equal"] is None
    assert all(facts["is_known"] for facts in document["knn"]["lessons"].values())
    assert document["knn"]["sets"] == run[1]["knn"]["sets"]
    assert document["knn"]["matrix"]["num_prompts"] == 1
    assert document["knn"]["mixed"] == []
    assert "cut short" in output


def test_a_wrong_output_is_an_error(
    script: ModuleType, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_arm = Arm.run

    def run_wrongly(arm: Arm, *call: Any) -> Generation:
        found = run_arm(arm, *call)
        return replace(found, tokens=(*found.tokens[:-1], 0)) if arm.name == "swift paper" else found

    monkeypatch.setattr(Arm, "run", run_wrongly)
    status, output = run_script(script, folder, "--part", "swift", "--seconds", "0")
    assert status == 1
    assert "swift paper: different in " in output
    assert "1 different" in output


def test_a_part_that_fails_does_not_cost_the_others(
    script: ModuleType, folder: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(SwiftStream, "run", fail)
    monkeypatch.setattr(MixedStreams, "run", lambda *arguments: None)
    file = tmp_path / "failed.json"
    known = ["--output", str(file), "--profile-folder", str(folder / "profiles")]
    status, output = run_script(script, folder, "--part", "swift", "knn", *known)
    assert status == 2
    assert "the part swift failed: RuntimeError: out of luck" in output
    assert json.loads(file.read_text())["knn"]["matrix"]["is_complete"]


def test_what_learned_nothing_is_left_out(tmp_path: Path) -> None:
    said: list[str] = []
    engine = Engine(pico("llama"), letter_tokenizer(), profile=None)
    school = School(engine, Store(tmp_path), said.append)
    school.take_latency(latency())
    prompts = [BenchPrompt("one", "code", "abc")]
    school.learn(Lesson("prune", {"strategy": "prune", "settings": {"prune": {"gain": -1}}}, prompts, 1.0, 8))
    assert school.facts["prune"].error is not None
    bench = Bench(engine, school, 8, 8, 8, 0, said.append, lambda: None)
    turns = bench.turns(school.profile, {"prune": {"strategy": "prune"}, "uniform": {"strategy": "uniform"}})
    assert [arm.name for arm in turns.arms] == ["off", "uniform"]
    assert "prune is left out" in said[-1]


def test_time_is_shared() -> None:
    whole = Pace(time.perf_counter(), 100.0, lambda text: None)
    assert whole.share(0.25).seconds == pytest.approx(25, abs=0.1)
    assert Pace(whole.began, None, whole.say).share(0.5).seconds is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--per-domain", "9"], "there are 4 prompts of the domain 'code', but 9 and 2 others are asked for"),
        (["--domains", "code", "maths"], "maths"),
        (["--domains", "code"], "name at least two domains"),
        (["--stream-domain", "poems"], "poems"),
        (["--max-prompt-chars", "1"], "raise --max-prompt-chars"),
    ],
)
def test_mistakes_are_said(
    script: ModuleType, folder: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _ = run_script(script, folder, *arguments)
    assert status == 2
    assert message in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------- streams, prompts


def tasks(num_tasks: int, each: int) -> dict[str, list[str]]:
    return {f"task{task}": [f"{task}-{number}" for number in range(each)] for task in range(num_tasks)}


def test_a_stream_changes_as_often_as_asked() -> None:
    """Equation 8, where no task is used up: to each of the others alike."""
    stream = mixed(tasks(5, 4000), 0.3, 8000, seed=3)
    route = [task for task, _ in stream]
    assert change_share(route) == pytest.approx(0.3, abs=0.02)
    changes = Counter(pair for pair in itertools.pairwise(route) if pair[0] != pair[1])
    assert len(changes) == 20
    assert min(changes.values()) > 0.6 * max(changes.values())


def test_streams_from_task_by_task_to_never_twice() -> None:
    known = tasks(3, 4)
    still = [task for task, _ in mixed(known, 0.0, 12, seed=1)]
    assert len(dict.fromkeys(still)) == 3
    assert change_share(still) == pytest.approx(2 / 11), "each task until it is used up"
    restless = [task for task, _ in mixed(tasks(3, 100), 1.0, 60, seed=1)]
    assert change_share(restless) == 1
    assert change_share(restless[:1]) is None


@pytest.mark.parametrize("ratio", [0.0, 0.3, 0.7, 1.0])
def test_no_prompt_twice(ratio: float) -> None:
    known = tasks(4, 6)
    stream = mixed(known, ratio, 99, seed=5)
    assert sorted(prompt for _, prompt in stream) == sorted(prompt for group in known.values() for prompt in group)
    assert all(prompt in known[task] for task, prompt in stream)
    assert stream[0] == ("task0", "0-0"), "the task that `draft-verify` knows first"
    assert stream == mixed(known, ratio, 99, seed=5)


def test_what_is_measured_was_not_learned_from() -> None:
    prompts = [BenchPrompt(f"{name}{number}", name, f"{name} {number}") for name in "abc" for number in range(6)]
    prompts.append(BenchPrompt("again", "a", "a 0"))
    wanted = Wanted(domains="ab", per_domain=2, calibration=3, stream_prompts=3, stream_domain="b")
    found = choose(prompts, wanted)
    assert [prompt.domain for prompt in found.mixed_kept_apart] == list("ababab")
    assert len({prompt.id for prompt in found.mixed_kept_apart}) == 6
    assert [prompt.domain for prompt in found.stream] == list("bbb")
    assert {prompt.id for prompt in found.stream}.isdisjoint(one.id for one in found.stream_kept_apart)
    assert choose(prompts, wanted) == found != choose(prompts, replace(wanted, seed=1)), "shuffled, but not anyhow"
    assert {prompt.id for prompt in found.mixed_kept_apart}.isdisjoint(one.id for one in found.mixed_measured)
    assert list(found.others) == ["c"]
    late = [BenchPrompt("long", "z", "much too long"), *prompts, BenchPrompt("z1", "z", "short")]
    short = Wanted(per_domain=1, calibration=3, max_prompt_chars=5, has_stream=False, domains="ab")
    assert choose(late, short).left_out == {"z": 1}
    assert next(iter(choose(late, short).others)) == "z", "in the order of the files, whatever is left out"
    with pytest.raises(OptionError, match="6 prompts of the domain 'b'"):
        choose(prompts, Wanted(domains="ab", per_domain=2, calibration=3, stream_prompts=4, stream_domain="b"))


# ------------------------------------------------------------------------------------------------------ the figures


def text(seconds: float, num_tokens: int = 10, **changed: Any) -> TextFigures:
    return replace(TextFigures("a", num_tokens, seconds, 0, 0, 0, 0, 0, 0, 1, None), **changed)


def test_an_interval_tells_how_prompts_differ() -> None:
    plain = [text(1.0) for _ in range(20)]
    same = speedup([text(0.5) for _ in range(20)], plain, seed=0)
    assert (same["low"], same["speedup"], same["high"]) == pytest.approx((2, 2, 2))
    spread = speedup([text(0.4 + 0.01 * number) for number in range(20)], plain, seed=0)
    assert spread["low"] < spread["speedup"] == pytest.approx(20 / sum(0.4 + 0.01 * n for n in range(20)))
    assert spread["speedup"] < spread["high"]
    assert speedup([], [], seed=0)["speedup"] is None


def test_where_the_time_goes() -> None:
    found = time_split([text(1.0, optimise=0.1, draft=0.4, verify=0.3), text(1.0, optimise=0.3, draft=0.2, verify=0.5)])
    assert found == pytest.approx({"optimise": 0.2, "draft": 0.3, "verify": 0.4, "other": 0.1})


def test_steps_are_thinned() -> None:
    steps = [{"step": step, "is_best": step in (3, 777)} for step in range(1, 1001)]
    found = [step["step"] for step in thinned(steps)]
    assert len(found) <= 400
    assert {1, 3, 777, 1000} <= set(found)
    assert found == sorted(set(found))
    assert thinned(steps[:5]) == steps[:5]


def test_how_much_was_tried() -> None:
    frontier = {"frontier": [{"skip": ""}, {"skip": "a1"}, {"skip": "a1,m1"}]}
    assert num_steps(frontier) == 2
    assert num_steps({"sets": {"first": {"num_tried": 5}}}) == 5
    assert num_steps({"domains": [{"found": frontier}, {"found": frontier}], "general": frontier}) == 6
    assert num_steps({"step": 7}) == 7
    assert num_steps(None) is None


def test_the_set_of_a_domain() -> None:
    points = [
        {"skip": "", "lost": 0.0, "match": 1.0},
        {"skip": "a1", "lost": 0.1, "match": 0.9},
        {"skip": "a1-3,m1-3", "lost": 0.2, "match": 0.88},
    ]
    domains = [{"name": "code", "num_vectors": 4, "found": {"frontier": points}}]
    domains += [{"name": "math", "num_vectors": 4, "found": {"frontier": points[:2]}}]
    one, two = sets_of({"search": "prune", "domains": domains}, latency())
    assert (str(one.skip), one.match, one.is_planned) == ("a1-3,m1-3", 0.88, True)
    assert str(two.skip) == "a1"
    dear = sets_of({"search": "prune", "domains": domains}, latency(mlp_seconds=0.0, rest_seconds=1.0))
    assert [bool(found.skip) for found in dear] == [True, True], "what promises most, though plain decoding is faster"
    assert not any(found.is_planned for found in dear)


def test_overlaps() -> None:
    sets = [DomainSet(name, SkipSet.parse(skip), None, True) for name, skip in (("a", "a1-2,m1"), ("b", "a2,m1-2"))]
    assert overlaps(sets) == {"a": {"a": 1.0, "b": 0.5}, "b": {"b": 1.0, "a": 0.5}}


def test_routes_are_counted() -> None:
    found = [
        Routed("code", "code", 0.9, 9.0),
        Routed("code", "math", 0.7, 0.1),
        Routed("math", "math", 0.8, 0.3),
        Routed("chat", "general", None, 0.2),
    ]
    figures = routing_figures(found, ["code", "math"])
    assert figures["own"]["accuracy"] == pytest.approx(2 / 3)
    assert figures["own"]["similarity"] == {"mean": pytest.approx(0.8), "lowest": 0.7}
    assert figures["own"]["confusion"] == {"code": {"code": 1, "math": 1}, "math": {"math": 1}}
    assert figures["others"]["general"] == 1
    assert figures["seconds"] == {"mean": pytest.approx(0.2), "median": 0.2, "max": 0.3}


# ------------------------------------------------------------------------------------------------------ the docs


def test_the_docs_show_what_was_measured() -> None:
    """Every row of a table of measurements in docs/search.md is one that a document of the benchmark prints."""
    repository = SCRIPT.parents[1]
    docs = (repository / "docs" / "search.md").read_text(encoding="utf-8").partition("## Measured")[2]
    files = sorted((repository / "benchmarks" / "results").glob("search-*.json"))
    printed = {
        line for file in files for line in as_markdown(json.loads(file.read_text(encoding="utf-8"))).splitlines()
    }
    shown = [line for line in docs.splitlines() if line.startswith("| ")]
    assert all(file.name in docs for file in files)
    assert len(shown) > 20
    assert [line for line in shown if line not in printed] == []
