"""`selfdraft report`: figures that can be checked by hand, the advice, the tables, the page and its charts."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfdraft.bench.advice import advice, document, method_options
from selfdraft.bench.page.charts import CHARTS, bins, domain_stretches
from selfdraft.bench.page.html import page
from selfdraft.bench.tables import WIDTH, as_markdown, as_text
from selfdraft.cli.main import main
from selfdraft.measure.records import Head, Record, RecordFile
from selfdraft.measure.result import Result

DOMAINS = ("chat", "code & co", "maths")
SPEEDS = {"prune": 1.6, "<script>alert(1)</script>": 1.4, "knn": 1.3, "swift": 1.1, "uniform": 0.8, "oracle": 1.9}
SKIPS = {"prune": "a1,m2-3", "knn": "a1,m2-3", "swift": "a2", "uniform": "m1"}
PEER = "transformers eager"
FAILED = {"name": "compiled", "kind": "peer", "method": {}, "error": "RuntimeError: no compiler at /usr/lib/cc/gcc"}


def an_arm(name: str, kind: str = "ours", **method: Any) -> dict[str, Any]:
    return {"name": name, "kind": kind, "method": method}


def a_head(arms: Sequence[Mapping[str, Any]], num_texts: int, **machine: Any) -> Head:
    question = {"model": "pico", "seed": 3, "num_texts": num_texts, "prompts": ["/home/me/own/prompts.jsonl"]}
    circumstances = {"device_name": "a CPU", "dtype": "float32", "date": "2026-01-02T03:04:05", "commit": "abc1234"}
    return Head(question, circumstances, {"num_layers": 4, "beta": 0.5, **machine}, arms)


def a_run() -> tuple[Head, list[Record]]:
    """3 domains of 4 prompts, long and short; a peer, a bound, an arm that cannot run, a frontier."""
    rng = np.random.default_rng(0)
    arms = [an_arm("off", strategy="off"), *(an_arm(name, strategy="prune") for name in SPEEDS if name != "oracle")]
    arms += [an_arm("oracle", "bound"), an_arm(PEER, "peer"), FAILED]
    records = []
    for number in range(12):
        domain, seconds = DOMAINS[number // 4], float(rng.uniform(8, 12))
        base = Record("off", f"p{number}", domain, number, 50 + 30 * number, 100, seconds + 1, seconds)
        records.append(replace(base, num_rounds=100, verify_seconds=seconds, turn_seconds=60.0))
        for name, speed in SPEEDS.items():
            own = seconds / (speed * float(rng.normal(1, 0.02)))
            records.append(_drafted(base, name, own))
        records.append(replace(base, arm=PEER, call_seconds=2 * seconds, decode_seconds=None, verdict="equal"))
    frontier = [{"skip": "a1", "match": 0.9, "cost": 0.8}, {"skip": "a1,m1", "match": 0.7, "cost": 0.6}]
    return a_head(arms, 12, frontier=frontier), records


def _drafted(base: Record, name: str, seconds: float) -> Record:
    base = replace(base, arm=name, call_seconds=seconds + 1, decode_seconds=seconds, verdict="equal")
    base = replace(base, num_rounds=40, num_draft_steps=80, num_accepted=60, num_draft_passes=80)
    base = replace(base, optimise_seconds=0.1 * seconds, draft_seconds=0.5 * seconds, verify_seconds=0.3 * seconds)
    skips = {SKIPS[name]: 60} if name in SKIPS else None
    return replace(base, skipped_attention=80.0, skipped_mlp=160.0, skips=skips)


def a_file(folder: Path, head: Head | None = None, records: Sequence[Record] = ()) -> Path:
    """Without a head: of the whole run."""
    file = RecordFile(folder / "result.jsonl")
    file.write(*((head, records) if head else a_run()))
    return file.path


def with_speed(speed: float, **changed: Any) -> Result:
    """Of one arm, `fixed`, that is this much faster on all texts."""
    plain = [Record("off", f"p{n}", DOMAINS[n % 2], n, 10, 100, 11.0, 10.0) for n in range(6)]
    own = [replace(text, arm="fixed", decode_seconds=10 / speed, verdict="equal", **changed) for text in plain]
    settings = {"fixed": {"skip": "a1 m2"}, "confidence": {"threshold": 0.8}}
    fixed = an_arm("fixed", strategy="fixed", lookahead="confidence", settings=settings)
    return Result(a_head([an_arm("off", strategy="off"), fixed], 6), [*plain, *own])


# ---------------------------------------------------------------------------------------------------------- figures


def test_figures_by_hand() -> None:
    plain = Record("off", "p", "chat", 0, 5, 10, 11.0, 10.0, num_rounds=10, verify_seconds=9.0)
    parts: dict[str, Any] = {"optimise_seconds": 0.25, "draft_seconds": 4.0, "verify_seconds": 0.5}
    counts: dict[str, Any] = {"num_rounds": 4, "num_draft_steps": 8, "num_accepted": 6, "num_draft_passes": 8}
    own = replace(plain, arm="skip", decode_seconds=5.0, **parts, **counts, skipped_attention=16.0, skipped_mlp=8.0)
    row = Result(a_head([an_arm("off"), an_arm("skip")], 1), [plain, own]).document()["arms"][1]["total"]
    assert row["speedup"] == {"value": 2.0, "low": 2.0, "high": 2.0, "count": 1}
    assert (row["acceptance_rate"], row["mean_generated_length"], row["cost"]) == (0.75, 2.5, 0.5)
    assert (row["skipped_attention"], row["skipped_mlp"]) == (0.5, 0.25)
    # 2.5 * 0.75 / (1.5 c + 0.75) with c = 0.5, 1 - 0.375, (0.75 + 0.5 * 0.5) / 1.5
    assert row["expected"] == pytest.approx({"measured": 1.25, "by_ratio": 1.875 / 1.6875, "by_parts": 1.875 / 1.75})
    assert row["split"] == pytest.approx({"optimise": 0.05, "draft": 0.8, "verify": 0.1, "other": 0.05})


# ----------------------------------------------------------------------------------------------------------- advice


def test_advice() -> None:
    """Never a bound or a peer; what is to be typed at the end."""
    said = advice(with_speed(1.5))
    assert said.startswith("The fastest here is fixed: 1.50x as fast as plain decoding (95 %: 1.50 to 1.50)")
    assert "from 1.50x on chat to 1.50x on code & co" in said
    options = "--strategy fixed --lookahead confidence --set 'fixed.skip=a1 m2' --set confidence.threshold=0.8."
    assert said.endswith(options)
    assert advice(Result(*a_run())).startswith("The fastest here is prune: ")
    slow = advice(with_speed(0.9))
    assert slow.startswith("Plain decoding is the fastest here")
    assert all(
        words in slow for words in ("the best, fixed: 0.90 [0.90, 0.90]", "--strategy off", "selfdraft calibrate")
    )


def with_control(low: float, high: float, spread: float = 0.0) -> Result:
    """`fixed` is 1.04x as fast, give or take `spread`; plain decoding against itself between `low` and `high`."""
    found = with_speed(1.04)
    arms = [*found.head.arms, an_arm("off, again", "control", strategy="off")]
    factors = np.linspace(-1, 1, 6)
    records = [
        replace(one, decode_seconds=10 / (1.04 + spread * factors[one.number])) if one.arm == "fixed" else one
        for one in found.all_of.records
    ]
    again = [
        replace(one, arm="off, again", decode_seconds=10 / speed, verdict="equal")
        for one, speed in zip(found.plain, np.linspace(low, high, 6), strict=True)
    ]
    return Result(replace(found.head, arms=arms), [*records, *again])


NOISY = "Inconclusive: the machine is noisy, rerun or use more prompts. "


@pytest.mark.parametrize(
    ("control", "spread", "begins"),
    [
        ((1.0, 1.0), 0.0, "The fastest here is fixed: 1.04x"),
        ((0.8, 1.2), 0.3, NOISY),  # its interval holds 1.0, and so wide is that of plain decoding
        ((1.08, 1.14), 0.0, NOISY),  # more than it gained
        ((0.88, 0.92), 0.0, NOISY),
        ((1.02, 1.03), 0.0, "The fastest here is fixed: 1.04x"),
        ((1.0, 1.0), 0.3, "Inconclusive: it depends on the prompt, use more of them, or your own. "),
    ],
)
def test_what_cannot_be_told_is_inconclusive(control: tuple[float, float], spread: float, begins: str) -> None:
    said = advice(with_control(*control, spread))
    assert said.startswith(begins)
    if "Inconclusive" in said:
        assert re.search(r"fixed is 1\.0\dx .* 6 prompts \(95 %: \d\.\d\d to \d\.\d\d\), from ", said)
        assert re.search(r"Plain decoding against itself gives [01]\.\d\d \[[01]\.\d\d, [01]\.\d\d\]\.", said)
        assert said.endswith("Nothing is lost with --strategy off.")


def test_too_few_prompts_are_inconclusive_without_blaming_the_machine() -> None:
    found = with_speed(1.5)
    said = advice(Result(found.head, [one for one in found.all_of.records if one.number < 2]))
    assert said.startswith("Inconclusive: too few prompts to tell, use at least 3. fixed is 1.50x")
    assert "with 2 prompts (95 %: 1.50 to 1.50)" in said


def test_a_gain_that_is_surely_small_is_not_inconclusive() -> None:
    slow = with_control(1.0, 1.0)
    seconds = [10.2, 9.9, 10.1, 10.0, 10.1, 9.95]
    records = [
        replace(one, decode_seconds=seconds[one.number]) if one.arm == "fixed" else one for one in slow.all_of.records
    ]
    assert advice(Result(slow.head, records)).startswith("Plain decoding is the fastest here: nothing is surely above")


def with_rival(speeds: Sequence[float]) -> Result:
    """`fixed` is 1.5x as fast, with noise that `rival` shares; `rival` is `speeds` times as fast as `fixed`."""
    found, noise = with_speed(1.5), (1.2, 0.8, 1.1, 0.9, 1.05, 0.95)
    ours = [one for one in found.all_of.records if one.arm == "fixed"]
    ours = [replace(one, decode_seconds=noise[one.number] * (one.decode_seconds or 0)) for one in ours]
    rivals = [replace(one, arm="rival", decode_seconds=(one.decode_seconds or 0) / speeds[one.number]) for one in ours]
    arms = [*found.head.arms, an_arm("rival", strategy="uniform")]
    return Result(replace(found.head, arms=arms), [*found.plain, *ours, *rivals])


def test_the_fastest_is_compared_paired_with_the_others() -> None:
    """Intervals of two methods may overlap, and one is surely faster: what makes a prompt slow is slow for both."""
    found = with_rival([0.97, 0.96, 0.98, 0.97, 0.96, 0.97])
    first, second = (arm.total.speedup for arm in found.measured if arm.total)
    assert first
    assert second
    assert second.high > first.low, "apart they say nothing"
    assert advice(found).startswith("The fastest here is fixed: ")
    said = advice(with_rival([0.97, 1.02, 0.98, 1.02, 0.97, 1.0]))
    assert said.startswith("fixed is 1.")
    assert said.endswith("fixed and rival are about as fast: which is faster is inconclusive.")
    assert "fastest" not in said


def test_a_peer_that_is_faster_is_said_to_be() -> None:
    peer: dict[str, Any] = {"call_seconds": 1.0, "decode_seconds": None}
    found = with_rival([1.0] * 6)
    records = [replace(one, **peer) if one.arm == "rival" else one for one in found.all_of.records]
    arms = [{**arm, "kind": "peer"} if arm["name"] == "rival" else arm for arm in found.head.arms]
    said = advice(Result(replace(found.head, arms=arms), records))
    assert "fastest" not in said
    assert said.endswith("Faster still, by whole calls: rival.")


@pytest.mark.parametrize(("control", "is_sure"), [((1.0, 1.0), True), ((1.08, 1.14), False)])
def test_all_that_is_shown_agrees_on_what_is_inconclusive(control: tuple[float, float], is_sure: bool) -> None:
    found = with_control(*control)
    told = document(found)
    verdicts = {arm["name"]: arm["verdict"] for arm in told["arms"]}
    assert verdicts == {"off": None, "off, again": None, "fixed": "faster" if is_sure else "inconclusive"}
    assert told["advice"] == advice(found)
    json.dumps(told)
    html = " ".join(page([(found, {})]).split())
    for text in (as_text(found), as_markdown(found), html):
        assert ("? 1.04x" in text) is not is_sure
        assert ("? inconclusive: " in text) is not is_sure
        assert (
            "Inconclusive: the machine is noisy, rerun or use more prompts." in " ".join(text.split())
        ) is not is_sure
    drawn: Any = CHARTS["speedup"](found).draw
    roles = {name: bar.role for name, bar in zip(drawn.panels[0].rows, drawn.panels[0].bars, strict=True)}
    assert roles["fixed"] == ("faster" if is_sure else "inconclusive")


def test_a_busy_machine_is_named_under_the_table() -> None:
    head, records = a_run()
    busy = "12 of 300 s: another process used the cores: python (98 %)"
    found = Result(replace(head, circumstances={**head.circumstances, "busy": busy}), records)
    for said in (as_text(found), as_markdown(found)):
        assert f"the machine was busy for {busy}" in " ".join(said.split())


def test_advice_says_first_what_differs_and_does_not_recommend_it() -> None:
    found = with_speed(1.5)
    fourth = {True: "different", False: "equal"}
    records = [replace(one, verdict=fourth[one.number == 4]) for one in found.all_of.records]
    said = advice(Result(found.head, records))
    assert said.startswith("WARNING: fixed DIFFERS from plain decoding in 1 of 6 texts (the first: p4, chat)")
    assert "Plain decoding is the fastest here" in said


def test_method_options_are_typed_as_the_commands_take_them() -> None:
    assert method_options({"tree": "siblings", "settings": {"swift": {"is_on": True}}}) == (
        "--tree siblings --set swift.is_on=true"
    )
    assert method_options({}) == ""


# ----------------------------------------------------------------------------------------------------------- tables


def test_the_terminal_table_is_narrow_and_tells_all() -> None:
    head, records = a_run()
    long = [{**arm, "name": arm["name"] * 9} if arm["name"] == "knn" else arm for arm in head.arms]
    texts = [replace(record, arm="knn" * 9) if record.arm == "knn" else record for record in records]
    said = as_text(Result(replace(head, arms=long), texts))
    assert max(map(len, said.splitlines())) <= WIDTH
    assert all(name in said for name in ("prune", "swift", "compiled could not run", "The fastest here is prune"))
    assert re.search(r"^prune +1\.[56]\dx \[1\.\d\d, 1\.\d\d\] ", said, re.M)


def test_markdown_has_every_arm_and_domain() -> None:
    said = as_markdown(Result(*a_run()))
    assert all(f"| {name} |" in said for name in ("off", "prune", "oracle", f"{PEER} *"))
    assert all(f" {domain} |" in said for domain in DOMAINS)
    assert len({line.count("|") for line in said.splitlines() if line.startswith("| prune")}) == 2  # two tables


def test_the_command_prints_the_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, found = a_file(tmp_path), Result(*a_run())
    assert report(file) == 0
    assert capsys.readouterr().out == as_text(found) + "\n"
    assert report(file, "--markdown", "--output", tmp_path / "table.md") == 0
    assert (tmp_path / "table.md").read_text(encoding="utf-8") == as_markdown(found) + "\n"


# ------------------------------------------------------------------------------------------------------------- page


def report(*arguments: object) -> int:
    return main(["report", *map(str, arguments)])


def page_of(*files: Path) -> str:
    """And its pictures, in `png` beside the first."""
    pytest.importorskip("matplotlib")
    folder = files[0].parent
    assert report(*files, "--html", folder / "page.html", "--png", folder / "png") == 0
    return (folder / "page.html").read_text(encoding="utf-8")


@pytest.mark.full
def test_the_page(tmp_path: Path) -> None:
    page = page_of(a_file(tmp_path))
    assert all(name in page for name in ("prune", "uniform", "oracle", PEER, "chat", "code &amp; co", "maths"))
    assert "http" not in page
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "no compiler at gcc" in page
    assert "/home" not in page
    names = ["speedup", "cost", "split", "skips", "length", "stream"]
    assert [file.stem for file in sorted((tmp_path / "png").iterdir())] == sorted(names)
    found = re.findall(
        r'<picture>\s*<source media="([^"]+)" srcset="([^"]+)">\s*<img id="(\w+)"[^>]* src="([^"]+)"', page
    )
    assert [(name, media) for media, _, name, _ in found] == [(name, "(prefers-color-scheme: dark)") for name in names]
    assert all(dark.startswith("data:image/") and light.startswith("data:image/") for _, dark, _, light in found)
    assert all(dark != light for _, dark, _, light in found)
    assert len(re.findall(r'<img [^>]*alt="[^"]{20,}"', page)) == len(names)


@pytest.mark.full
def test_a_chart_without_data_is_left_out_and_the_page_says_why(tmp_path: Path) -> None:
    head, records = a_run()
    file = a_file(tmp_path, head, [replace(record, num_prompt_tokens=100, skips=None) for record in records])
    page = page_of(file)
    assert "Not drawn: all prompts are of similar length, 100 to 100 tokens" in page
    assert "Not drawn: no method skipped anything" in page
    assert not {"length.png", "skips.png"} & {file.name for file in (tmp_path / "png").iterdir()}


@pytest.mark.full
def test_several_results_are_sections_of_one_page(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    assert page_of(a_file(tmp_path), a_file(tmp_path / "other")).count("<section ") == 2
    assert (tmp_path / "png" / "result-2-speedup.png").exists()


def test_a_run_that_has_only_begun_has_a_page(tmp_path: Path) -> None:
    assert "No text has been finished yet." in page_of(a_file(tmp_path, a_run()[0], []))


@pytest.mark.full
def test_a_run_that_goes_on_is_shown_up_to_its_last_whole_prompt(tmp_path: Path) -> None:
    file = a_file(tmp_path)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-1])[:-20])  # the last line is a peer's, which need not have finished
    assert "cut short: the first 11 texts only" in page_of(file)


def test_without_matplotlib_only_pictures_are_missing_and_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    file, html = a_file(tmp_path), tmp_path / "result.html"
    for arguments in ([], ["--markdown"], ["--html", html]):
        assert report(file, *arguments) == 0
    assert 'without pictures: these need matplotlib, pip install "selfdraft[plot]"' in capsys.readouterr().out
    page = html.read_text(encoding="utf-8")
    assert "prune" in page
    assert "pip install &quot;selfdraft[plot]&quot;" in page
    assert "<picture>" not in page
    assert report(file, "--html", tmp_path / "other.html", "--png", tmp_path / "png") == 2
    assert 'drawing pictures needs matplotlib. Install with: pip install "selfdraft[plot]"' in capsys.readouterr().err
    assert not (tmp_path / "other.html").exists()


@pytest.mark.parametrize(
    ("name", "instead"),
    [("page.html", "--html page.html"), ("My Page.HTM", "--html 'My Page.HTM'"), ("page.png", "--png FOLDER")],
)
def test_output_is_text_and_names_the_flag_for_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, instead: str
) -> None:
    file = a_file(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert report(file, "--output", name) == 2
    output = capsys.readouterr()
    assert output.err.endswith(f"; use {instead}\n")
    assert not output.out
    assert not Path(name).exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{\n", "it is a file of something else"),
        (b"\xff\xfe\n", "cannot read"),
        (b'{"selfdraft_bench": 99}\n', "it is of another version"),
        (b'{"selfdraft_bench": 1, "question": {}, "circumstances": {}, "machine": {}, "arms": []}\n', "is damaged"),
        (None, "cannot read"),
    ],
)
def test_a_foreign_file_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, said: str
) -> None:
    file = tmp_path / "foreign.jsonl"
    if content is not None:
        file.write_bytes(content)
    assert report(file, "--output", tmp_path / "page.md") == 2
    error = capsys.readouterr().err
    assert said in error
    assert re.search(r"must be what `selfdraft \w+ --output .*` wrote|name what `bench --output`", error)
    assert str(file) in error
    assert not (tmp_path / "page.md").exists()


def test_of_peers_calls_are_known_and_of_what_failed_nothing() -> None:
    rows = {row["name"]: row for row in Result(*a_run()).document()["arms"]}
    assert rows[PEER]["total"]["speedup"]["value"] is None
    assert rows[PEER]["total"]["call_speedup"]["value"] == pytest.approx(0.55, abs=0.01)  # 11 s against 20 s
    assert "total" not in rows["compiled"]


def test_a_run_that_went_on_says_so() -> None:
    head, records = a_run()
    assert "resumed after 11 texts" in " ".join(as_text(Result(replace(head, resumed_at=[11]), records)).split())


def test_long_contexts_are_no_part_of_the_total() -> None:
    plain = [Record("off", f"p{n}", "chat", n, 10, 100, 11.0, 10.0) for n in range(3)]
    plain.append(Record("off", "long", "context 4096", 3, 4096, 100, 11.0, 10.0))
    own = [replace(text, arm="a", decode_seconds=seconds) for text, seconds in zip(plain, (4, 5, 6, 1), strict=True)]
    arm = Result(a_head([an_arm("off"), an_arm("a")], 4), [*plain, *own]).document()["arms"][1]
    assert (arm["total"]["speedup"]["value"], arm["total"]["num_prompts"]) == (2.0, 3)
    assert arm["domains"]["context 4096"]["speedup"]["value"] == 10.0


def test_what_is_looked_up_has_a_cost() -> None:
    found = with_speed(2.0, num_rounds=50, num_draft_steps=80, num_accepted=50, draft_seconds=0.08)
    row = found.document()["arms"][1]["total"]
    assert row["cost"] == pytest.approx(0.01)
    assert row["expected"]["measured"] is not None


# ------------------------------------------------------------------------------------------------ parts of charts


def test_bins_of_lengths_hold_a_few_texts_each() -> None:
    assert bins([40] * 3) == [32, 41]
    lengths = [40, 41, 42, 70, 200, 300, 310, 320, 2000]
    edges = bins(lengths)
    counts = [sum(low <= length < high for length in lengths) for low, high in pairwise(edges)]
    assert sum(counts) == len(lengths)
    assert min(counts) >= 2


def test_bands_only_where_the_stream_goes_task_by_task() -> None:
    texts = Result(*a_run()).plain
    assert domain_stretches(texts) == [("chat", 1, 4), ("code & co", 5, 8), ("maths", 9, 12)]
    assert domain_stretches([texts[0], texts[5], texts[1]]) == []
