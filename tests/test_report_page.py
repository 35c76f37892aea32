"""`selfdraft report`: figures that can be checked by hand, the advice, the tables, the page and its charts."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfdraft.bench.harness.advice import advice, method_options
from selfdraft.bench.harness.figures import document
from selfdraft.bench.harness.records import Head, RecordFile, TextRecord, read_records
from selfdraft.bench.harness.table import WIDTH, as_markdown, as_text
from selfdraft.bench.page.charts import bins, domain_stretches
from selfdraft.bench.page.result import Result
from selfdraft.cli.main import main
from selfdraft.errors import OptionError

DOMAINS = ("chat", "code & co", "maths")
SPEEDS = {"prune": 1.6, "<script>alert(1)</script>": 1.4, "knn": 1.3, "swift": 1.1, "uniform": 0.8, "oracle": 1.9}
SKIPS = {"prune": "a1,m2-3", "knn": "a1,m2-3", "swift": "a2", "uniform": "m1"}
PEER = "transformers eager"
FAILED = {"name": "compiled", "kind": "peer", "method": {}, "error": "RuntimeError: no compiler at /usr/lib/cc/gcc"}


def a_way(name: str, kind: str = "ours", **method: Any) -> dict[str, Any]:
    return {"name": name, "kind": kind, "method": method}


def a_head(ways: Sequence[Mapping[str, Any]], num_texts: int, **machine: Any) -> Head:
    question = {"model": "pico", "seed": 3, "num_texts": num_texts, "prompts": ["/home/me/own/prompts.jsonl"]}
    circumstances = {"device_name": "a CPU", "dtype": "float32", "date": "2026-01-02T03:04:05", "commit": "abc1234"}
    return Head(question, circumstances, {"num_layers": 4, "beta": 0.5, **machine}, ways)


def a_result() -> tuple[Head, list[TextRecord]]:
    """3 domains of 4 prompts, long and short; a peer, a bound, a way that cannot run, a frontier."""
    rng = np.random.default_rng(0)
    ways = [a_way("off", strategy="off"), *(a_way(name, strategy="prune") for name in SPEEDS if name != "oracle")]
    ways += [a_way("oracle", "bound"), a_way(PEER, "peer"), FAILED]
    records = []
    for number in range(12):
        domain, seconds = DOMAINS[number // 4], float(rng.uniform(8, 12))
        base = TextRecord("off", f"p{number}", domain, number, 50 + 30 * number, 100, seconds + 1, seconds)
        records.append(replace(base, num_rounds=100, verify_seconds=seconds, turn_seconds=60.0))
        for name, speed in SPEEDS.items():
            own = seconds / (speed * float(rng.normal(1, 0.02)))
            records.append(_drafted(base, name, own))
        records.append(replace(base, way=PEER, call_seconds=2 * seconds, decode_seconds=None, verdict="equal"))
    frontier = [{"skip": "a1", "match": 0.9, "cost": 0.8}, {"skip": "a1,m1", "match": 0.7, "cost": 0.6}]
    return a_head(ways, 12, frontier=frontier), records


def _drafted(base: TextRecord, name: str, seconds: float) -> TextRecord:
    skips = {SKIPS[name]: 60} if name in SKIPS else None
    counts: dict[str, Any] = {"num_rounds": 40, "num_draft_steps": 80, "num_accepted": 60, "num_draft_passes": 80}
    parts: dict[str, Any] = {
        "optimise_seconds": 0.1 * seconds,
        "draft_seconds": 0.5 * seconds,
        "verify_seconds": 0.3 * seconds,
    }
    own: dict[str, Any] = {"way": name, "call_seconds": seconds + 1, "decode_seconds": seconds, "skips": skips}
    return replace(base, **own, **counts, **parts, skipped_attention=80.0, skipped_mlp=160.0, verdict="equal")


def a_file(folder: Path, name: str = "result.jsonl") -> Path:
    head, records = a_result()
    file = RecordFile(folder / name)
    file.begin(head)
    file.add(records)
    return file.path


def with_speed(speed: float, **changed: Any) -> dict[str, Any]:
    """The document of one way, `fixed`, that is so much faster on all texts."""
    plain = [TextRecord("off", f"p{n}", DOMAINS[n % 2], n, 10, 100, 11.0, 10.0) for n in range(6)]
    own = [replace(text, way="fixed", decode_seconds=10 / speed, verdict="equal", **changed) for text in plain]
    settings = {"fixed": {"skip": "a1 m2"}, "confidence": {"threshold": 0.8}}
    way = a_way("fixed", strategy="fixed", lookahead="confidence", settings=settings)
    return document(a_head([a_way("off", strategy="off"), way], 6), [*plain, *own])


# ---------------------------------------------------------------------------------------------------------- figures


def test_figures_by_hand() -> None:
    plain = TextRecord("off", "p", "chat", 0, 5, 10, 11.0, 10.0, num_rounds=10, verify_seconds=9.0)
    parts: dict[str, Any] = {"optimise_seconds": 0.25, "draft_seconds": 4.0, "verify_seconds": 0.5}
    counts: dict[str, Any] = {"num_rounds": 4, "num_draft_steps": 8, "num_accepted": 6, "num_draft_passes": 8}
    own = replace(plain, way="skip", decode_seconds=5.0, **parts, **counts, skipped_attention=16.0, skipped_mlp=8.0)
    row = document(a_head([a_way("off"), a_way("skip")], 1), [plain, own])["ways"][1]["total"]
    assert row["speedup"] == {"value": 2.0, "low": 2.0, "high": 2.0}
    assert (row["acceptance_rate"], row["mean_generated_length"], row["cost_measured"]) == (0.75, 2.5, 0.5)
    assert (row["skipped_attention"], row["skipped_mlp"]) == (0.5, 0.25)
    # 2.5 * 0.75 / (1.5 c + 0.75) with c = 0.5, 1 - 0.375, (0.75 + 0.5 * 0.5) / 1.5
    assert row["expected"] == pytest.approx({"measured": 1.25, "by_ratio": 1.875 / 1.6875, "by_parts": 1.875 / 1.75})
    assert row["split"] == pytest.approx({"optimise": 0.05, "draft": 0.8, "verify": 0.1, "other": 0.05})


def test_intervals_hold_their_value_and_are_the_same_again() -> None:
    rows = [{row["name"]: row for row in document(*a_result())["ways"]} for _ in range(2)]
    assert rows[0] == rows[1]
    for name in SPEEDS:
        found = rows[0][name]["total"]["speedup"]
        assert found["low"] < found["value"] < found["high"]
    assert rows[0][PEER]["total"]["speedup"]["value"] is None
    assert rows[0][PEER]["total"]["call_speedup"]["value"] == pytest.approx(0.55, abs=0.01)  # 11 s against 20 s
    assert "total" not in rows[0]["compiled"]


# ----------------------------------------------------------------------------------------------------------- advice


def test_advice_names_the_fastest_and_how_to_get_it() -> None:
    said = advice(with_speed(1.5))
    assert said.startswith("The fastest here is fixed: 1.50x as fast as plain decoding (95 %: 1.50 to 1.50)")
    assert "from 1.50x on chat to 1.50x on code & co" in said
    assert said.endswith(
        "--strategy fixed --lookahead confidence --set 'fixed.skip=a1 m2' --set confidence.threshold=0.8."
    )


def test_advice_never_names_a_bound_or_a_peer() -> None:
    assert advice(document(*a_result())).startswith("The fastest here is prune: ")


def test_advice_where_nothing_is_faster() -> None:
    said = advice(with_speed(0.9))
    assert said.startswith("Plain decoding is the fastest here")
    assert "the best, fixed: 0.90x" in said
    assert "--strategy off" in said
    assert "selfdraft calibrate" in said


def test_advice_says_first_what_differs_and_does_not_recommend_it() -> None:
    different = with_speed(1.5)
    head, records = a_head(different["ways"][:2], 6), []
    for number in range(6):
        plain = TextRecord("off", f"p{number}", "chat", number, 10, 100, 11.0, 10.0)
        verdict = "different" if number == 4 else "equal"
        records += [plain, replace(plain, way="fixed", decode_seconds=5.0, verdict=verdict)]
    ways = [{key: way[key] for key in ("name", "kind", "method")} for way in head.ways]
    said = advice(document(replace(head, ways=ways), records))
    assert said.startswith("WARNING: fixed DIFFERS from plain decoding in 1 of 6 texts (the first: p4, chat)")
    assert "Plain decoding is the fastest here" in said


def test_method_options_are_typed_as_the_commands_take_them() -> None:
    assert method_options({"tree": "siblings", "settings": {"swift": {"is_on": True}}}) == (
        "--tree siblings --set swift.is_on=true"
    )
    assert method_options({}) == ""


# ----------------------------------------------------------------------------------------------------------- tables


def test_the_terminal_table_is_narrow_and_tells_all() -> None:
    head, records = a_result()
    long = [{**way, "name": way["name"] * 9} if way["name"] == "knn" else way for way in head.ways]
    texts = [replace(record, way="knn" * 9) if record.way == "knn" else record for record in records]
    said = as_text(document(replace(head, ways=long), texts))
    assert max(map(len, said.splitlines())) <= WIDTH
    assert all(name in said for name in ("prune", "swift", "compiled could not run", "The fastest here is prune"))
    assert re.search(r"^prune +1\.[56]\dx \[1\.\d\d, 1\.\d\d\] ", said, re.M)


def test_markdown_has_every_way_and_domain() -> None:
    said = as_markdown(document(*a_result()))
    assert all(f"| {name} |" in said for name in ("off", "prune", "oracle", f"{PEER} *"))
    assert all(f" {domain} |" in said for domain in DOMAINS)
    assert len({line.count("|") for line in said.splitlines() if line.startswith("| prune")}) == 2  # two tables


# ------------------------------------------------------------------------------------------------------------- page


def report(*arguments: object) -> int:
    return main(["report", *map(str, arguments)])


def test_the_page(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    output, pictures = tmp_path / "page.html", tmp_path / "png"
    assert report(a_file(tmp_path), "--output", output, "--png", pictures) == 0
    page = output.read_text(encoding="utf-8")
    assert all(name in page for name in ("prune", "uniform", "oracle", PEER, "chat", "code &amp; co", "maths"))
    assert "http" not in page
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "no compiler at gcc" in page
    assert "/home" not in page
    names = ["speedup", "cost", "split", "skips", "length", "stream"]
    assert [file.stem for file in sorted(pictures.iterdir())] == sorted(names)
    found = re.findall(
        r'<picture>\s*<source media="([^"]+)" srcset="([^"]+)">\s*<img id="(\w+)"[^>]* src="([^"]+)"', page
    )
    assert [(name, media) for media, _, name, _ in found] == [(name, "(prefers-color-scheme: dark)") for name in names]
    assert all(dark.startswith("data:image/") and light.startswith("data:image/") for _, dark, _, light in found)
    assert all(dark != light for _, dark, _, light in found)
    assert len(re.findall(r'<img [^>]*alt="[^"]{20,}"', page)) == len(names)


def test_a_chart_without_data_is_left_out_and_the_page_says_why(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    head, records = a_result()
    file = RecordFile(tmp_path / "short.jsonl")
    file.begin(head)
    file.add(replace(record, num_prompt_tokens=100, skips=None) for record in records)
    assert report(file.path, "--png", tmp_path) == 0
    page = (tmp_path / "short.html").read_text(encoding="utf-8")
    assert "Not drawn: all prompts are of similar length, 100 to 100 tokens" in page
    assert "Not drawn: no method skipped anything" in page
    assert not (tmp_path / "length.png").exists()
    assert not (tmp_path / "skips.png").exists()


def test_several_results_are_sections_of_one_page(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "other").mkdir()
    files = a_file(tmp_path), a_file(tmp_path / "other")
    assert report(*files, "--output", tmp_path / "page.html", "--png", tmp_path / "png") == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("<section ") == 2
    assert (tmp_path / "png" / "result-2-speedup.png").exists()


def test_a_run_that_has_only_begun_has_a_page(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    RecordFile(tmp_path / "begun.jsonl").begin(a_result()[0])
    assert report(tmp_path / "begun.jsonl") == 0
    assert "No text has been finished yet." in (tmp_path / "begun.html").read_text(encoding="utf-8")


def test_a_run_that_goes_on_is_shown_up_to_its_last_whole_prompt(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = a_file(tmp_path)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-1])[:-20])  # the last line is a peer's, which need not have finished
    assert report(file) == 0
    assert "cut short: the first 11 texts only" in (tmp_path / "result.html").read_text(encoding="utf-8")


def test_without_matplotlib_the_command_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert report(a_file(tmp_path)) == 2
    assert "drawing a report needs matplotlib. Install with: pip install matplotlib" in capsys.readouterr().err
    assert not (tmp_path / "result.html").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"no json\n", "cannot read"),
        (b"\xff\xfe\n", "cannot read"),
        (b'{"selfdraft_bench": 99}\n', "it is of another version"),
        (b'{"selfdraft_bench": 1, "question": {}, "circumstances": {}, "machine": {}, "ways": []}\n', "is damaged"),
        (None, "cannot read"),
    ],
)
def test_a_foreign_file_is_refused_by_name(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: bytes | None,
    said: str,
) -> None:
    monkeypatch.setattr("selfdraft.cli.report.require_matplotlib", lambda *words: None)
    file = tmp_path / "foreign.jsonl"
    if content is not None:
        file.write_bytes(content)
    assert report(file, "--output", tmp_path / "page.html") == 2
    error = capsys.readouterr().err
    assert said in error
    assert f"it must be what `selfdraft bench --output {file}` wrote" in error
    assert not (tmp_path / "page.html").exists()


def test_an_output_that_cannot_be_written_is_refused_before_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("selfdraft.cli.report.require_matplotlib", lambda *words: None)
    missing = tmp_path / "result.jsonl"  # not even read
    assert report(missing, "--output", tmp_path / "nowhere" / "page.html") == 2
    assert "there is no folder" in capsys.readouterr().err
    assert report(missing, "--output", missing) == 2
    assert "is a result itself" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------- records


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    file = a_file(tmp_path)
    whole = read_records(file)[1]
    file.write_bytes(file.read_bytes()[:-20])
    assert read_records(file)[1] == whole[:-1]


def test_a_run_goes_on_behind_the_last_complete_prompt(tmp_path: Path) -> None:
    head, records = a_result()
    file = RecordFile(tmp_path / "result.jsonl")
    assert file.begin(head) == (head, [])
    file.add(records[:-3])
    resumed, kept = RecordFile(file.path).begin(head)
    assert kept == [record for record in records if record.number < 11]
    assert read_records(file.path) == (resumed, kept)
    assert resumed.resumed_at == [11]
    assert "resumed behind 11 texts" in as_text(document(resumed, kept))


def test_a_page_shows_texts_that_peers_were_not_asked() -> None:
    head, records = a_result()
    asked = [record for record in records if record.way != PEER or record.number < 3]
    found = Result.of(head, asked).document
    assert (found["num_texts"], found["is_complete"]) == (12, True)
    assert {row["name"]: row for row in found["ways"]}[PEER]["total"]["num_prompts"] == 3


def test_turns_of_a_conversation_are_one_prompt_and_long_contexts_are_no_part_of_the_total() -> None:
    plain = [TextRecord("off", f"p{n}", "chat", n, 10, 100, 11.0, 10.0, turn=n) for n in range(3)]
    plain.append(TextRecord("off", "long", "context 4096", 3, 4096, 100, 11.0, 10.0))
    own = [replace(text, way="a", decode_seconds=seconds) for text, seconds in zip(plain, (4, 5, 6, 1), strict=True)]
    way = document(a_head([a_way("off"), a_way("a")], 4), [*plain, *own])["ways"][1]
    assert way["total"]["speedup"] == {"value": 2.0, "low": 2.0, "high": 2.0}, "nothing to resample"
    assert way["total"]["num_prompts"] == 3
    assert way["domains"]["context 4096"]["speedup"]["value"] == 10.0


def test_what_is_looked_up_has_a_cost() -> None:
    row = with_speed(2.0, num_rounds=50, num_draft_steps=80, num_accepted=50, draft_seconds=0.08)["ways"][1]["total"]
    assert row["cost_measured"] == pytest.approx(0.01)
    assert row["expected"]["measured"] is not None


def test_another_question_is_refused_unless_the_file_is_to_be_replaced(tmp_path: Path) -> None:
    head, records = a_result()
    file = RecordFile(a_file(tmp_path))
    other = replace(head, question={**head.question, "seed": 4})
    with pytest.raises(OptionError, match=r"holds the result of another run \(seed: 3, now 4\).*--again"):
        file.begin(other)
    assert len(read_records(file.path)[1]) == len(records)
    assert file.begin(other, is_new=True) == (other, [])
    assert read_records(file.path) == (other, [])


# ------------------------------------------------------------------------------------------------ parts of charts


def test_bins_of_lengths_hold_a_few_texts_each() -> None:
    assert bins([40] * 3) == [32, 41]
    lengths = [40, 41, 42, 70, 200, 300, 310, 320, 2000]
    edges = bins(lengths)
    counts = [sum(low <= length < high for length in lengths) for low, high in pairwise(edges)]
    assert sum(counts) == len(lengths)
    assert min(counts) >= 2


def test_bands_only_where_the_stream_goes_task_by_task() -> None:
    texts = Result.of(*a_result()).plain_texts
    assert domain_stretches(texts) == [("chat", 1, 4), ("code & co", 5, 8), ("maths", 9, 12)]
    assert domain_stretches([texts[0], texts[5], texts[1]]) == []
