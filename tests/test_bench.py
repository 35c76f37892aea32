"""`selfdraft bench`: what is measured adds up, what was predicted follows from the costs, what differs is an error."""

from __future__ import annotations

import contextlib
import copy
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pico import NUM_LAYERS, letter_tokenizer, pico
from selfdraft import Engine
from selfdraft.bench import gpu, meter, plot, report, ways
from selfdraft.bench.circumstances import GraphWatch, graph_figures
from selfdraft.bench.costs import Costs, DraftKind, Round, round_of, weight_share
from selfdraft.bench.meter import PassMeter
from selfdraft.bench.prompts import OWN_PROMPTS, BenchPrompt, read_prompts
from selfdraft.bench.soak import Soak
from selfdraft.bench.totals import Total, figures
from selfdraft.cli.main import main
from selfdraft.engine.metrics import Comparison
from selfdraft.errors import OptionError
from selfdraft.models.eager import EagerRunner
from selfdraft.models.gpu.runner import GraphRunner
from selfdraft.passes import PassOutput, PassRequest
from selfdraft.protocols import DraftedChain, DraftTask
from selfdraft.types import Draft, Plan, SkipSet, StepRecord, Verdict
from tape import TapeRecorder

pytestmark = pytest.mark.xdist_group("bench")  # what they measure is measured once

PROMPTS = [("code", "abcabcabc"), ("code", "xyz"), ("math", "1+2=3"), ("code", "left out")]
SKIP = SkipSet.parse("a1,m2-3")
DRAFT, SHORT_DRAFT = DraftKind(SKIP), DraftKind(SKIP, 50)
SKIPPING = "strategy=fixed fixed.skip=a1,m2-3"
VARIANTS = [f"skip: {SKIPPING} tree=siblings", f"short: {SKIPPING} self.vocabulary=50", "lookup: drafter=lookup"]
FEW = ["--max-new-tokens", "12", "--context", "16"]


@pytest.fixture(autouse=True, scope="module")
def hurried() -> Iterator[None]:
    """Timings are not judged here, so they need no care."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meter, "_BATCH_SECONDS", 0.001)
        patch.setattr(meter, "_BATCHES", 1)
        patch.setattr(meter, "SHORT_DRAFT", 2)
        patch.setattr(meter, "LONG_DRAFT", 3)
        patch.setattr(meter, "_CPU_COPY_BYTES", 2**16)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "pico-llama"
    pico("llama").save_pretrained(path)
    letter_tokenizer().save_pretrained(path)
    lines = [json.dumps({"domain": domain, "prompt": prompt}) for domain, prompt in PROMPTS]
    (path / "prompts.jsonl").write_text("\n".join(lines) + "\n\n")
    return path


def bench(folder: Path, *arguments: str) -> int:
    return main(["bench", "gpu", str(folder), "--prompts", str(folder / "prompts.jsonl"), *FEW, *arguments])


def last_line(output: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return document


def rows_of(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["label"]: row for row in document["rows"]}


Run = tuple[str, str, dict[str, Any]]


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """(standard output, standard error, document) of one whole run."""
    output, errors, file = io.StringIO(), io.StringIO(), tmp_path_factory.mktemp("out") / "result.json"
    peers = ["--peers", "eager", "static", "lookup", "--peer-tokens", "5"]
    variants = [word for text in VARIANTS for word in ("--variant", text)]
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        status = bench(folder, *variants, *peers, "--per-domain", "2", "--soak", "3", "--output", str(file))
    assert status == 0, errors.getvalue()
    document = json.loads(file.read_text())
    assert document == last_line(output.getvalue())
    assert [path.name for path in file.parent.iterdir()] == [file.name], "the temporary file is gone"
    return output.getvalue(), errors.getvalue(), document


class TestGpu:
    def test_a_table_comes_before_the_document(self, run: Run) -> None:
        output, errors, document = run
        table = output[: output.rindex("\n{")]
        assert all(row["label"] in table for row in document["rows"])
        for text in ("tokens/s", "against static", "first token ms", "bound", "overhead", "floor", "by weights"):
            assert text in table
        assert "3 prompts (code 2 prompts, 24 tokens; math 1 prompt, 12 tokens)" in table
        assert "memory over 3 generations of mixed length: used " in table
        assert "graphs -, -" in table
        assert "- while measuring" in table
        assert "s of it recording ahead of time" in table
        assert "3/3 prompts, about 0.0 minutes left" in errors

    def test_circumstances(self, run: Run, folder: Path) -> None:
        _, _, document = run
        for key in (
            "device",
            "device_name",
            "dtype",
            "torch",
            "transformers",
            "selfdraft",
            "date",
            "commit",
            "seconds",
        ):
            assert key in document
        assert document["model"] == "pico-llama"
        assert document["prompts"] == {"code": 2, "math": 1}
        assert document["options"]["prompts"] == ["prompts.jsonl"]
        assert str(folder) not in json.dumps(document), "where files lie is nobody's business"
        assert document["is_complete"]
        assert document["ready_seconds"] > document["prepare_seconds"] >= 0
        assert document["graphs"]["num_graphs"] is None

    def test_soak(self, run: Run) -> None:
        soak = run[2]["soak"]
        assert [sample["num_generations"] for sample in soak["samples"]] == [0, 1, 2, 3]
        first, last = soak["samples"][0], soak["samples"][-1]
        assert soak["growth"] == {name: last[name] - first[name] for name in ("used", "held")}
        assert soak["graphs"] == {"num_captures": None, "recorded": []}

    def test_totals_are_sums(self, run: Run) -> None:
        rows = rows_of(run[2])
        for row in rows.values():
            total, parts = row["total"], row["domains"].values()
            for name in ("num_prompts", "num_tokens", "call_seconds", "equal", "tie", "different"):
                assert total[name] == pytest.approx(sum(part[name] for part in parts))
            assert total["tokens_per_second"] == pytest.approx(total["num_tokens"] / total["call_seconds"])
        off, static = rows["selfdraft off"]["total"], rows["transformers static"]["total"]
        assert off["num_tokens"] == static["num_tokens"] == 36
        assert rows["transformers eager"]["total"]["num_tokens"] == 15, "--peer-tokens"
        assert off["speedup"] == pytest.approx(off["tokens_per_second"] / static["tokens_per_second"])
        for row in rows.values():
            assert row["total"]["equal"] == (0 if row["label"] == "selfdraft off" else 3)
            assert 0 < row["total"]["first_token_ms"] < 1000 * row["total"]["call_seconds"]

    def test_ours(self, run: Run) -> None:
        document = run[2]
        row = rows_of(document)["selfdraft skip"]["total"]
        assert 0 < row["acceptance_rate"] <= 1
        assert row["mean_generated_length"] > 1
        assert row["reached_share"] == pytest.approx(row["decode_speedup_over_off"] / row["predicted_speedup"])
        drafts = document["costs"]["drafts"]
        found = [(draft["skip"], draft["vocabulary"], draft["ways"]) for draft in drafts]
        assert found == [(str(SKIP), None, ["skip"]), (str(SKIP), 50, ["short"])]
        assert all(0 < draft["ratio_by_weights"] < 1 for draft in drafts)
        assert list(document["costs"]["width_ms"]) == ["1", "2", "4", "8", "16", "32"]

    def test_markdown(self, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "result.json"
        file.write_text(json.dumps(run[2]))
        assert main(["bench", "table", str(file)]) == 0
        text = capsys.readouterr().out
        assert "| selfdraft off | " in text
        tables = [part for part in text.split("\n\n") if part.startswith("|")]
        assert len(tables) == 4
        for table in tables:
            assert len({line.count("|") for line in table.splitlines()}) == 1


def test_time_limit_and_default_method(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(folder, "--seconds", "0", "--peers", "none", "--commit", "v1-3") == 0
    captured = capsys.readouterr()
    document = last_line(captured.out)
    assert document["prompts"] == {"code": 1}, "the first is always measured"
    assert document["commit"] == "v1-3"
    assert ", commit v1-3, " in captured.out
    assert not document["is_complete"]
    assert "time is up after 1 of 4 prompts" in captured.err
    assert [row["name"] for row in document["rows"]] == ["off", "uniform"]
    assert document["baseline"] is None
    assert "no peer ran" in captured.out
    assert "against off" in captured.out
    assert "against baseline" not in captured.out


def test_ctrl_c_reports_what_is_complete(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measure = gpu.GpuBench._measure

    def interrupted(self: gpu.GpuBench, *arguments: Any) -> None:
        if self.num_measured == 2:
            raise KeyboardInterrupt
        measure(self, *arguments)

    monkeypatch.setattr(gpu.GpuBench, "_measure", interrupted)
    file = tmp_path / "result.json"
    assert bench(folder, "--peers", "none", "--soak", "2", "--output", str(file)) == 130
    captured = capsys.readouterr()
    document = last_line(captured.out)
    assert document == json.loads(file.read_text())
    assert document["prompts"] == {"code": 1, "math": 1}
    assert "interrupted after 2 of 4 prompts" in captured.err
    assert document["soak"] is None


def test_an_output_that_differs_is_exit_code_1(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A way of ours that says something else than plain decoding, at token 3 of every text."""
    honest = ways._run_ours

    def broken(engine: Any, prompt: Any, num_tokens: int, method: Any) -> ways.Output:
        output = honest(engine, prompt, num_tokens, method)
        if method.get("strategy") == "off":
            return output
        tokens = list(output.tokens)
        tokens[3] = (tokens[3] + 1) % 100
        return ways.Output(tuple(tokens), output.call_seconds, output.generation)

    monkeypatch.setattr(ways, "_run_ours", broken)
    assert bench(folder, "--peers", "none", "--per-domain", "1") == 1
    output = capsys.readouterr().out
    row = rows_of(last_line(output))["selfdraft uniform"]
    assert row["total"]["different"] == 2
    assert {item["first_difference"] for item in row["differences"]} == {3}
    assert all(item["gap"] > 0 for item in row["differences"])
    assert "selfdraft uniform: 2 different, largest gap" in output
    assert "the first in prompts-1 (code) from token 3 on" in output


def test_a_peer_that_fails_is_a_row(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    honest = ways._run_peer

    def failing(engine: Any, prompt: Any, num_tokens: int, options: Any) -> ways.Output:
        if "cache_implementation" in options:
            raise RuntimeError("no compiler\nfound")
        return honest(engine, prompt, num_tokens, options)

    monkeypatch.setattr(ways, "_run_peer", failing)
    assert bench(folder, "--peers", "static", "eager", "--per-domain", "1") == 0
    output = capsys.readouterr().out
    document = last_line(output)
    row = rows_of(document)["transformers static"]
    assert row["error"] == "RuntimeError: no compiler found"
    assert "total" not in row
    assert "failed: RuntimeError: no compiler found" in output
    assert document["baseline"] == "eager"
    assert "against eager" in output
    assert "failed" in report.as_markdown(document)


BAD_CALLS = [
    (["--variant", "strategy=fixed"], "cannot read --variant 'strategy=fixed'; write NAME: AXIS=METHOD"),
    (["--variant", "a: stategy=fixed"], "Did you mean 'strategy'?"),
    (["--variant", "a: strategy=fixd"], "unknown strategy 'fixd'. Did you mean 'fixed'?"),
    (["--variant", "a: uniform.ration=1"], "unknown option of uniform 'ration'"),
    (["--variant", "a: tree=chain", "--variant", "a: tree=siblings"], "two rows cannot both be named 'a'"),
    (["--variant", "off: tree=chain"], "two rows cannot both be named 'off'"),
    (["--variant", "a: strategy=fixed fixed.skip=a9"], "names attention layer 9, but the model has 5 layers"),
    (["--peers", "eagre"], "unknown peer 'eagre'. Did you mean 'eager'?"),
    (["--prompts", "nowhere.jsonl"], "cannot read nowhere.jsonl"),
    (["--output", "no/such/folder/result.json"], "there is no folder"),
    (["--output", "."], "cannot write ."),
    (["--device", "gpu9"], "unknown or absent device 'gpu9'"),
    (["--strategy", "unifrom"], "Did you mean 'uniform'?"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_CALLS, ids=lambda value: str(value)[:40])
def test_bad_input_is_one_line_and_exit_code_2(
    folder: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(folder, *arguments) == 2
    captured = capsys.readouterr()
    errors = [line for line in captured.err.splitlines() if not line.startswith("warming up")]
    assert len(errors) == 1
    assert errors[0].startswith("selfdraft bench: error: ")
    assert message in errors[0]
    assert captured.out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-new-tokens", "0"], "must be a whole number of at least 1, got '0'"),
        (["--seconds", "soon"], "must be a number of seconds, got 'soon'"),
    ],
)
def test_bad_numbers(folder: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        bench(folder, *arguments)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no JSON document"),
        ("[1]", "is no document of `selfdraft bench gpu`"),
        ('{"benchmark": "gpu"}', "is damaged (KeyError: 'prompts')"),
    ],
)
def test_a_table_of_something_else(
    tmp_path: Path, content: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "result.json"
    file.write_text(content)
    assert main(["bench", "table", str(file)]) == 2
    assert message in capsys.readouterr().err


DAMAGES: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda document: document.pop("rows"), "KeyError"),
    (lambda document: document.update(rows=3), "TypeError"),
    (lambda document: document.update(prompts=[]), "AttributeError"),
    (lambda document: document.update(rows=[]), "ValueError"),
    (lambda document: document["costs"]["width_ms"].update({"1": 0}), "ZeroDivisionError"),
    (lambda document: next(iter(document["costs"]["drafts"])).update(ms="1"), "ValueError"),
]


@pytest.mark.parametrize(("damage", "error"), DAMAGES)
def test_a_table_of_a_damaged_document(
    run: Run, damage: Callable[[dict[str, Any]], object], error: str, tmp_path: Path, capsys: Any
) -> None:
    document = copy.deepcopy(run[2])
    damage(document)
    file = tmp_path / "result.json"
    file.write_text(json.dumps(document))
    assert main(["bench", "table", str(file)]) == 2
    captured = capsys.readouterr()
    assert f"result.json is damaged ({error}: " in captured.err
    assert "must be what `selfdraft bench gpu --output` wrote" in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("command", ["bench", "bench gpu", "bench table"])
def test_help_teaches_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([*command.split(), "--help"])
    output = capsys.readouterr().out
    assert "examples:" in output
    assert f"  selfdraft {command} " in output


class TestCosts:
    COSTS = Costs({1: 0.002, 2: 0.003, 8: 0.0042}, {DRAFT: 0.001})

    def test_interpolated_widths(self) -> None:
        seconds = [self.COSTS.verify_seconds(width) for width in (1, 2, 5, 8, 14)]
        assert seconds == pytest.approx([0.002, 0.003, 0.0036, 0.0042, 0.0054])

    def test_recorded_passes_are_priced_as_they_are_padded(self) -> None:
        costs = Costs(self.COSTS.width_seconds, is_recorded=True)
        seconds = [costs.verify_seconds(width) for width in (1, 2, 3, 5, 8, 14)]
        assert seconds == pytest.approx([0.002, 0.003, 0.0042, 0.0042, 0.0042, 0.0054])

    def test_the_bound(self) -> None:
        """Two rounds of 3 drafts and 5 tokens verified, one plain round: 9 tokens."""
        rounds = Counter({Round(DRAFT, 3, 5): 2, Round(DraftKind(), 0, 1): 1})
        seconds = 2 * (3 * 0.001 + 0.0036) + 0.002
        assert self.COSTS.predict_seconds(rounds) == pytest.approx(seconds)
        assert self.COSTS.predict_speedup(rounds, 9) == pytest.approx(9 * 0.002 / seconds)
        plain = Total(num_tokens=9, call_seconds=0.03, decode_seconds=9 * 0.0025)
        drafted = Total(num_tokens=9, call_seconds=0.03, decode_seconds=0.018, num_draft_steps=6, rounds=rounds)
        found = figures(drafted, None, plain, self.COSTS, 0.001)
        assert found["decode_speedup_over_off"] == pytest.approx(1.25)
        assert found["reached_share"] == pytest.approx(1.25 / (9 * 0.002 / seconds))
        assert found["round_overhead"] == pytest.approx((0.018 - seconds) / 0.018)
        assert found["floor_share"] == pytest.approx(0.5)
        assert found["speedup"] is None

    def test_rounds_of_records(self) -> None:
        tree = Draft((5, 6, 7), (-1, 0, -1), 2, num_draft_steps=2)
        step = StepRecord(0, Plan(SKIP), tree, Verdict((5, 9), (0,)))
        assert round_of(step, "self") == Round(DRAFT, 2, 4)
        assert round_of(step, "self", 50) == Round(SHORT_DRAFT, 2, 4)
        assert round_of(step, "lookup", 50) == Round(DraftKind(), 0, 4)
        assert round_of(StepRecord(0, Plan(SKIP), Draft(), Verdict((5,))), "model") == Round(DraftKind(), 0, 1)

    def test_another_models_drafts_are_not_predicted(self) -> None:
        step = StepRecord(0, Plan(), Draft.chain([1, 2]), Verdict((1, 2, 3), (0, 1)))
        assert self.COSTS.predict_seconds(Counter([round_of(step, "model")])) is None

    def test_share_of_the_weights(self) -> None:
        assert weight_share([(0.1, 0.2)] * 3, SkipSet.parse("a0,m1-2")) == pytest.approx(0.5)


class TapedRunner(GraphRunner):
    """Recorded passes on a CPU; notes what it is asked for."""

    def __init__(self) -> None:
        super().__init__(pico("llama"), make_recorder=TapeRecorder)
        self.plain_starts: list[int] = []
        self.drafts: list[tuple[int, SkipSet, int | None]] = []

    def forward(self, request: PassRequest, cache: Any) -> PassOutput:
        if request.run_ahead:
            self.plain_starts.append(*request.starts)
        return super().forward(request, cache)

    def draft(self, task: Any, request: PassRequest, cache: Any, vocabulary: int | None = None) -> DraftedChain | None:
        chain = super().draft(task, request, cache, vocabulary)
        assert chain is not None
        self.drafts.append((len(chain.candidates), request.skip, vocabulary))
        return chain


Metered = tuple[TapedRunner, Costs]


@pytest.fixture(scope="module")
def metered() -> Metered:
    runner = TapedRunner()
    return runner, PassMeter(runner, 20).measure([DRAFT, SHORT_DRAFT])


class TestMeter:
    def test_plain_passes_run_ahead_and_every_batch_begins_at_the_context(self, metered: Metered) -> None:
        starts = metered[0].plain_starts
        num_batches = starts.count(20)
        assert num_batches == 3, "two to warm up, one to measure"
        assert metered[0].num_hits == len(starts) - num_batches, "all but the first of a batch were under way"
        assert max(starts) < 20 + meter.ROOM

    def test_one_bucket(self, metered: Metered) -> None:
        assert {key.end for key in metered[0].graphs.keys if key.kind != "advance"} == {256}

    def test_every_recorded_width_is_measured(self, metered: Metered) -> None:
        costs = metered[1]
        assert costs.is_recorded
        assert list(costs.width_seconds) == list(GraphRunner.recorded_widths)
        assert costs.verify_seconds(5) == costs.width_seconds[6]

    def test_drafts_run_as_recorded_drafts(self, metered: Metered) -> None:
        runner, costs = metered
        assert {(count, vocabulary) for count, _, vocabulary in runner.drafts} == {
            (count, vocabulary) for count in (meter.SHORT_DRAFT, meter.LONG_DRAFT) for vocabulary in (None, 50)
        }
        assert {skip for _, skip, _ in runner.drafts} == {SKIP}
        assert list(costs.draft_seconds) == [DRAFT, SHORT_DRAFT]

    def test_a_drafted_token_is_what_a_longer_draft_adds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A draft that takes 10 s and 2 s a token."""
        clock = [0.0]
        runner = TapedRunner()

        def draft(task: DraftTask, *arguments: Any, **options: Any) -> DraftedChain:
            clock[0] += 10 + 2 * task.caps[0]
            return DraftedChain([], [])

        monkeypatch.setattr(runner, "draft", draft)
        monkeypatch.setattr(runner, "seconds", lambda: clock[0])
        costs = Costs({1: 1.0})
        PassMeter(runner, 20).add_drafts(costs, [DRAFT])
        assert costs.draft_seconds[DRAFT] == pytest.approx(2)

    def test_a_text_that_leaves_no_room_is_shorter(self) -> None:
        def meter_at(context: int, length: int | None, has_buckets: bool = True) -> int:
            def buckets(num_slots: int) -> list[int]:
                return [size for size in (256, 512, 1024) if size // 2 < max(num_slots, 129)] if has_buckets else []

            return PassMeter(
                cast(Any, SimpleNamespace(recorded_slots=buckets, is_recording=has_buckets, context_length=length)),
                context,
            ).context

        assert [meter_at(context, None) for context in (320, 448, 449, 511, 512)] == [320, 448, 448, 448, 512]
        assert meter_at(500, None, has_buckets=False) == 500
        assert meter_at(320, 256) == 192

    def test_the_cache_is_given_back(self, metered: Metered) -> None:
        """What was recorded for it is found again by the next text of its size."""
        runner = metered[0]
        num_captures = runner.graphs.num_captures
        cache = runner.new_cache(1, 100)
        runner.forward(PassRequest([[1, 2]], [20]), cache)
        assert runner.graphs.num_captures == num_captures


def test_graphs_are_read_where_a_runner_has_them(metered: Metered) -> None:
    runner, _ = metered
    found = graph_figures(runner)
    assert found == {**runner.graphs.figures(), "fallback_reason": None}
    assert min(found["num_graphs"], found["num_bytes"], found["num_captures"], runner.capture_seconds) > 0
    eager = graph_figures(EagerRunner(pico("llama")))
    assert eager == dict.fromkeys(found)


def test_what_is_recorded_while_measuring_is_listed(metered: Metered) -> None:
    runner, _ = metered
    watch, cache = GraphWatch(runner), runner.new_cache(1, 300)
    with watch.watching():
        runner.forward(PassRequest([[1, 2, 3]], [20]), cache)
    assert watch.figures() == {"num_captures": 1, "recorded": [{**NEW_GRAPH, "end": 256}]}, "a cache of another size"
    with watch.watching():
        runner.forward(PassRequest([[1, 2, 3]], [20]), cache)
    with watch.watching():
        runner.forward(PassRequest([[1, 2, 3]], [280]), cache)
    assert watch.figures() == {"num_captures": 2, "recorded": [{**NEW_GRAPH, "end": end} for end in (256, 512)]}
    assert report._recorded(watch.figures()) == "2 (pass 1x4 up to 256, pass 1x4 up to 512)"


NEW_GRAPH = {"kind": "pass", "rows": 1, "width": 4, "skip": ""}


class Watched:
    """A small benchmark, and the calls it makes: (way, tokens of the prompt, new tokens)."""

    def __init__(self, lengths: tuple[int, ...], patch: pytest.MonkeyPatch, **plan: Any) -> None:
        prompts = [BenchPrompt(str(number), "code", "a" * length) for number, length in enumerate(lengths)]
        variants = {"uniform": {}, "lookup": {"drafter": "lookup"}}
        self.calls: list[tuple[str, int, int]] = []
        self.first_tokens: list[int] = []
        self.bench = gpu.GpuBench(
            pico("llama"), letter_tokenizer(), gpu.GpuPlan(prompts, variants, [], 8, context=8, **plan)
        )
        honest = ways._run_ours
        first_token = ways._our_first_token

        def run_ours(engine: Any, prompt: Any, num_tokens: int, method: Any) -> ways.Output:
            name = next(way.name for way in self.bench.ways if way.options is method)
            self.calls.append((name, len(prompt), num_tokens))
            return honest(engine, prompt, num_tokens, method)

        def time_first(engine: Any, prompt: Any, num_tokens: int, method: Any) -> float:
            self.first_tokens.append(len(prompt))
            return first_token(engine, prompt, num_tokens, method)

        patch.setattr(ways, "_run_ours", run_ours)
        patch.setattr(ways, "_our_first_token", time_first)


def test_ways_take_turns_in_being_first(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched((3, 4, 5, 6), monkeypatch)
    monkeypatch.setattr(watched.bench, "document", dict)
    watched.bench._measure_prompts()
    orders = ["off uniform lookup", "uniform lookup off", "lookup off uniform", "off uniform lookup"]
    assert [name for name, _, _ in watched.calls] == " ".join(orders).split()
    assert [length for _, length, _ in watched.calls] == [3] * 3 + [4] * 3 + [5] * 3 + [6] * 3


def test_every_padded_prompt_length_is_met_before_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched((65, 66, 130, 9, 60), monkeypatch)
    watched.bench._warm_up()
    assert watched.first_tokens == [60] * 3 + [66] * 3 + [130] * 3


def test_a_soak_meets_every_length_with_every_way_first(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched((3, 4), monkeypatch, soak=2)
    monkeypatch.setattr(Soak, "_sample", lambda self, count: watched.calls.append(("sample", 0, count)))
    watched.bench._soak()
    names, lengths = ("off", "uniform", "lookup"), (8, 1, 4, 1, 2)
    calls = [(name, count) for name, _, count in watched.calls]
    assert calls[:15] == [(name, length) for name in names for length in lengths]
    assert calls[15:] == [("sample", 0), ("off", 8), ("sample", 1), ("off", 1), ("sample", 2)]


def test_a_peer_that_always_differs_is_not_comparable(run: Run) -> None:
    warning = "WARNING: transformers eager says something else on every prompt: its figures are not comparable"
    document = copy.deepcopy(run[2])
    total = rows_of(document)["transformers eager"]["total"]
    total.update(equal=1, different=2)
    assert warning not in report.as_text(document)
    total.update(equal=0, different=3)
    assert warning in report.as_text(document)
    assert f"* {warning}" in report.as_markdown(document)


class TestPrompts:
    def test_our_own(self) -> None:
        prompts = read_prompts([("prompts.jsonl", OWN_PROMPTS.read_text(encoding="utf-8"))])
        counts = Counter(prompt.domain for prompt in prompts)
        assert set(counts) == {"code", "math", "chat"}
        assert min(counts.values()) >= 4
        assert len({prompt.id for prompt in prompts}) == len(prompts)
        assert [prompt.domain for prompt in prompts[:4]] == ["code", "math", "chat", "code"]

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("oops", "line 2 of a.jsonl is no JSON"),
            ("[]", "line 2 of a.jsonl must be an object like"),
            ('{"prompt": "x"}', "line 2 of a.jsonl has no 'domain' that is text"),
            ('{"domain": "x", "prompt": " "}', "line 2 of a.jsonl has no 'prompt' that is text"),
        ],
    )
    def test_bad_lines(self, line: str, message: str) -> None:
        with pytest.raises(OptionError, match=message):
            read_prompts([("a.jsonl", f'{{"domain": "a", "prompt": "b"}}\n{line}\n')])

    def test_none(self) -> None:
        with pytest.raises(OptionError, match="there are no prompts"):
            read_prompts([("a.jsonl", "\n")])


def test_a_variant_builds_on_the_commands_method() -> None:
    base = {"tree": "siblings", "settings": {"uniform": {"ratio": "0.1"}}}
    variants = ways.parse_variants(["a: strategy=uniform uniform.ratio=0.5", "b: tree=chain lookup.max_ngram=2"], base)
    assert variants["a"] == {"tree": "siblings", "strategy": "uniform", "settings": {"uniform": {"ratio": "0.5"}}}
    assert variants["b"]["settings"] == {"uniform": {"ratio": "0.1"}, "lookup": {"max_ngram": "2"}}
    assert base["settings"] == {"uniform": {"ratio": "0.1"}}


def test_a_tie_is_no_difference() -> None:
    total = Total(num_tokens=1, call_seconds=1.0, verdicts=Counter([Comparison("tie", 3, 1e-3).verdict]))
    found = figures(total, None, Total(), TestCosts.COSTS, 1.0)
    assert (found["equal"], found["tie"], found["different"]) == (0, 1, 0)


# ------------------------------------------------------------------------------------------------------ the plot

SPEEDS = {
    "selfdraft off": (510.0, 505.0, 498.0),
    "selfdraft skip, chain": (640.0, 601.0, 540.0),
    "selfdraft skip, tree": (713.0, 655.0, 590.0),
    "transformers eager": (13.1, 13.0, 12.9),
    "transformers static": (201.0, 200.0, 199.0),
    "transformers early exit": (9.0, 9.5, 8.2),
    "transformers prompt lookup": (21.0, 26.0, 14.0),
}
DOMAINS = ("code", "math", "chat")


def plausible() -> dict[str, Any]:
    """Made-up figures of a plausible size, as far as a plot reads them."""
    rows = [
        {
            "name": "static" if "static" in label else label,
            "label": label,
            "kind": label.replace("transformers", "peer").replace("selfdraft", "ours").split()[0],
            "error": None,
            "domains": {domain: {"tokens_per_second": speed} for domain, speed in zip(DOMAINS, speeds, strict=True)},
            "total": {"tokens_per_second": sum(speeds) / 3},
        }
        for label, speeds in SPEEDS.items()
    ]
    place = {"model": "pico", "dtype": "bfloat16", "device_name": "a GPU"}
    failed = {"name": "x", "label": "transformers x", "kind": "peer", "error": "RuntimeError"}
    return {**place, "prompts": dict.fromkeys(DOMAINS, 4), "baseline": "static", "rows": [*rows, failed]}


def test_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot.draw(plausible(), tmp_path / "speed.png")
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")


def test_a_plot_of_many_rows_is_no_wider_than_a_page(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    document = plausible()
    document["rows"] = [{**row, "label": f"{row['label']} {number}"} for row in document["rows"] for number in range(9)]
    plot.draw(document, tmp_path / "speed.png")
    header = (tmp_path / "speed.png").read_bytes()[:24]
    assert int.from_bytes(header[16:20], "big") == 150 * plot.MAX_INCHES


def test_a_plot_that_fails_costs_no_figures(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def draw(*arguments: Any) -> None:
        raise RuntimeError("no fonts")

    done = SimpleNamespace(run=lambda: run[2], is_interrupted=False)
    monkeypatch.setattr("selfdraft.cli.bench.GpuBench", lambda *arguments, **named: done)
    monkeypatch.setattr(plot, "require_matplotlib", lambda: None)
    monkeypatch.setattr(plot, "draw", draw)
    file = str(tmp_path / "speed.png")
    assert bench(folder, "--plot", file) == 1
    captured = capsys.readouterr()
    assert last_line(captured.out)["rows"] == run[2]["rows"]
    assert f"selfdraft bench: error: cannot draw {file}: RuntimeError: no fonts" in captured.err


def test_a_plot_without_matplotlib(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    assert bench(folder, "--plot", "speed.png") == 2
    assert "needs matplotlib. Install with: pip install matplotlib" in capsys.readouterr().err


class TestFirstToken:
    """The same call, left behind its first round."""

    PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)

    @pytest.mark.parametrize("name", ways.PEERS)
    def test_of_a_peer(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        honest, calls = ways._run_peer, []

        def watched(engine: Any, prompt: Any, num_tokens: int, options: Any) -> ways.Output:
            output = honest(engine, prompt, num_tokens, options)
            calls.append((num_tokens, len(output.tokens)))
            return output

        monkeypatch.setattr(ways, "_run_peer", watched)
        (way,) = ways.peer_ways([name], NUM_LAYERS, 24, None)
        output = way.measure(Engine(copy.deepcopy(pico("llama"))), self.PROMPT)
        assert output is not None, way.error
        (_, num_tokens), (room, num_first) = calls
        assert (num_tokens, room) == (24, 24)
        assert 1 <= num_first <= (1 if name in ("eager", "static") else 21), "one round"
        assert output.first_token_seconds > 0

    def test_of_ours(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With its draft: it comes before the first token."""
        engine, generations = Engine(pico("llama")), []
        generate = engine.generate

        def watched(*arguments: Any, **options: Any) -> Any:
            generations.append(generate(*arguments, **options))
            return generations[-1]

        monkeypatch.setattr(engine, "generate", watched)
        for way in ways.our_ways({"skip": {"strategy": "fixed", "settings": {"fixed": {"skip": "a1"}}}}, 24):
            output = way.measure(engine, list(self.PROMPT))
            whole, first = generations[-2:]
            assert output is not None
            assert len(whole.tokens) == 24
            assert len(first.steps) == 1
            assert bool(first.steps[0].draft.tokens) == (way.name == "skip")
            assert output.first_token_seconds > 0


def test_a_peer_that_fails_leaves_the_model_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    model = copy.deepcopy(pico("llama"))
    engine = Engine(model)

    def generate(*arguments: Any, **options: Any) -> Any:
        model.config.num_hidden_layers = 1
        raise RuntimeError("half-way")

    monkeypatch.setattr(model, "generate", generate)
    with pytest.raises(RuntimeError, match="half-way"):
        ways._run_peer(engine, [1, 2, 3], 4, {})
    assert model.config.num_hidden_layers == NUM_LAYERS


REPOSITORY = Path(__file__).parents[1]


@pytest.mark.parametrize("page", ["README.md", "docs/gpu.md"])
def test_the_tables_shown_are_those_of_the_result(page: str) -> None:
    document = json.loads((REPOSITORY / "benchmarks/results/gpu-h200.json").read_text(encoding="utf-8"))
    lines = (REPOSITORY / page).read_text(encoding="utf-8").splitlines()
    shown = [
        line for line in lines if line.startswith(("| selfdraft ", "| transformers ", "| against one ", "| a4-5,"))
    ]
    assert len(shown) >= len([row for row in document["rows"] if row["kind"] == "ours"])
    assert set(shown) <= set(report.as_markdown(document).splitlines())


def test_a_soak_mixes_all_ways_with_all_lengths() -> None:
    met: list[tuple[str, int]] = []
    fakes = [
        SimpleNamespace(run=lambda engine, prompt, length, name=name: met.append((name, length))) for name in "ABCDE"
    ]
    soak = Soak(Engine(pico("llama")), cast("Any", fakes), [[1, 2]], 64)
    soak.run(25, lambda text: None)
    assert len(met) == 50
    assert len(set(met)) == 25
    assert set(met[25:]) == set(met)


def test_no_peers_and_one_of_them() -> None:
    with pytest.raises(OptionError, match="none stands alone"):
        ways.check_peers(["none", "eager"])


def test_a_result_that_cannot_be_kept_is_printed(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(file: str, text: str) -> None:
        raise OSError(28, "No space left on device")

    def done(model: Any, tokenizer: Any, plan: Any, began: float, say: Any, save: Any, name: str) -> Any:
        save(run[2])
        return SimpleNamespace(run=lambda: run[2], is_interrupted=False)

    monkeypatch.setattr("selfdraft.cli.bench.GpuBench", done)
    monkeypatch.setattr("selfdraft.cli.bench_common.write_file", full)
    file = str(tmp_path / "result.json")
    assert bench(folder, "--output", file) == 1
    captured = capsys.readouterr()
    assert last_line(captured.out)["rows"] == run[2]["rows"]
    assert f"cannot write {file}: [Errno 28] No space left on device" in captured.err


def test_a_peer_with_fewer_tokens_says_so() -> None:
    document = {"options": {"max_new_tokens": 256}}
    assert (
        report.label(document, {"label": "transformers eager", "max_new_tokens": 8}) == "transformers eager (8 tokens)"
    )
    assert report.label(document, {"label": "selfdraft off", "max_new_tokens": 256}) == "selfdraft off"
