"""`selfdraft bench lookahead`: prompts are kept apart, rules begin anew, the oracle is a bound, what differs shows."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import math
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from pico import NUM_LAYERS, letter_tokenizer, pico
from selfdraft import Engine
from selfdraft.bench.lookahead import lengths, report, run, turns
from selfdraft.bench.lookahead.f1 import Judged, judge
from selfdraft.bench.lookahead.oracle import Oracle
from selfdraft.bench.lookahead.plot import draw
from selfdraft.bench.lookahead.rows import MAKERS, ROWS, check_rows
from selfdraft.bench.lookahead.sums import Gain, Sums, gains
from selfdraft.bench.prompts import BenchPrompt, split_in_three
from selfdraft.calibrate.replay import RoundSeconds
from selfdraft.calibrate.traces import Trace
from selfdraft.calibrate.training import classifier_f1, static_f1, train
from selfdraft.cli import bench_lookahead
from selfdraft.cli.main import build_parser, main
from selfdraft.engine import engine as engine_module
from selfdraft.engine.accept import Coupled
from selfdraft.errors import OptionError
from selfdraft.fitting import CalibrationPrompt
from selfdraft.lookahead.adaptive import Adaptive
from selfdraft.lookahead.base import PlainLookahead
from selfdraft.lookahead.confidence import Confidence
from selfdraft.lookahead.disco import Disco
from selfdraft.lookahead.fixed import Fixed
from selfdraft.lookahead.heuristic import Heuristic
from selfdraft.lookahead.roc import Roc
from selfdraft.lookahead.tpt import Tpt
from selfdraft.models.gpu.runner import GraphRunner
from selfdraft.types import Generation, Verdict
from tape import TapeRecorder

pytestmark = pytest.mark.xdist_group("lookahead_bench")  # what they measure is measured once

TEXTS = {
    "code": ["abcabcabc", "xyzxyz", "abcabcabc", "f(x)=x", "for(;;)", "if(a)b"],
    "math": ["1+2=3", "7*8=56", "9-4=5", " 7*8=56", "x^2+1", "2*3=6"],
}
NUM_TOKENS = 20
FEW = ["--per-domain", "1", "--train", "2", "--validation", "1", "--max-new-tokens", "20", "--train-tokens", "20"]
METHOD: dict[str, Any] = {"strategy": "uniform", "tree": "chain", "settings": {"uniform": {"ratio": 0.4}}}
SETTINGS = ["--strategy", "uniform", "--set", "uniform.ratio=0.4"]
PROMPTS = [CalibrationPrompt("one", "code", (3, 1, 4, 1, 5)), CalibrationPrompt("two", "math", (2, 7, 1, 8))]
SECONDS = RoundSeconds(1e-3, lambda num_drafted: 2e-3)
Run = tuple[str, str, dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "pico-llama"
    pico("llama").save_pretrained(path)
    letter_tokenizer().save_pretrained(path)
    rows = [{"domain": domain, "prompt": text} for domain, texts in TEXTS.items() for text in texts]
    (path / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return path


def command(folder: Path, *arguments: str) -> list[str]:
    prompts = ["--prompts", str(folder / "prompts.jsonl")]
    return ["bench", "lookahead", str(folder), *prompts, *FEW, *SETTINGS, *arguments]


def bench(folder: Path, *arguments: str) -> int:
    return main(command(folder, *arguments))


def last_line(output: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return document


@pytest.fixture(scope="module")
def whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """(standard output, standard error, document) of one whole run."""
    output, errors, file = io.StringIO(), io.StringIO(), tmp_path_factory.mktemp("out") / "result.json"
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        status = bench(folder, "--output", str(file), "--commit", "v1")
    assert status == 0, errors.getvalue()
    document = json.loads(file.read_text())
    assert document == last_line(output.getvalue())
    return output.getvalue(), errors.getvalue(), document


class TestDocument:
    def test_all_rows_at_all_temperatures(self, whole: Run) -> None:
        document = whole[2]
        assert document["is_complete"]
        assert document["prompts"] == {"code": 1, "math": 1}
        assert [found["temperature"] for found in document["temperatures"]] == [0, 1]
        for found in document["temperatures"]:
            assert [row["name"] for row in found["rows"]] == list(ROWS)
            plain = found["rows"][0]["total"]
            for row in found["rows"]:
                total, parts = row["total"], row["domains"].values()
                assert total["num_tokens"] == plain["num_tokens"] == 2 * NUM_TOKENS
                assert total["equal"] + total["tie"] == (0 if row["name"] == "plain" else 2)
                assert total["different"] == 0
                for name in ("num_prompts", "num_tokens", "decode_seconds", "num_rounds", "equal"):
                    assert total[name] == pytest.approx(sum(part[name] for part in parts))
                assert total["speedup"] == pytest.approx(plain["ms_per_token"] / total["ms_per_token"])

    def test_the_oracle_is_a_bound(self, whole: Run) -> None:
        for found in whole[2]["temperatures"]:
            for domain in TEXTS:
                rounds = {row["name"]: row["domains"][domain]["num_rounds"] for row in found["rows"]}
                assert rounds["oracle"] == min(rounds.values())
                assert rounds["oracle"] < rounds["plain"]
                assert rounds["oracle"] == found["oracle"][domain]["num_rounds"]
            (row,) = (row["total"] for row in found["rows"] if row["name"] == "oracle")
            num_refused = (1 - row["acceptance_rate"]) * row["drafted_per_round"] * row["num_rounds"]
            assert num_refused <= row["num_rounds"] + 1e-6, "at most the last token of a round"

    def test_what_was_learned(self, whole: Run) -> None:
        learning = whole[2]["learning"]
        assert set(learning["domains"]) == {"code", "math"}
        for lesson in learning["domains"].values():
            assert lesson["num_train_tokens"] == 2 * NUM_TOKENS
            assert lesson["num_validation_tokens"] == NUM_TOKENS
            assert 0 < lesson["match"] <= 1
            assert set(lesson["best"]) == {"fixed", "perplexity", "disco"}
        assert learning["draft_ms"] > 0
        rules = {rule["name"]: rule for rule in whole[2]["rules"]}
        tokens = learning["domains"]["code"]["best"]["fixed"]["tokens"]
        assert rules["static-opt"]["settings"]["code"] == f"{tokens} token{'s' * (tokens > 1)}"
        assert rules["disco-transfer"]["settings"]["math"].startswith("of code, threshold ")
        own, other = rules["disco"]["settings"]["code"], rules["disco-transfer"]["settings"]["math"]
        assert other == f"of code, {own}"
        for name, rule in rules.items():
            is_judged = name not in ("plain", "oracle")
            assert set(rule["f1"]) == ({"code", "math"} if is_judged else set())
            assert all(0 <= value <= 1 for value in rule["f1"].values())

    def test_circumstances(self, whole: Run, folder: Path) -> None:
        document = whole[2]
        assert {"device_name", "dtype", "threads", "torch", "transformers", "selfdraft", "date"} <= set(document)
        assert (document["model"], document["commit"]) == ("pico-llama", "v1")
        assert document["method"]["acceptance"] == "coupled"
        assert document["splits"] == {name: {"code": n, "math": n} for name, n in zip(SPLITS, (2, 1, 1), strict=True)}
        assert document["options"]["prompts"] == ["prompts.jsonl"]
        assert str(folder) not in json.dumps(document), "where files lie is nobody's business"

    def test_tables_come_before_the_document(self, whole: Run) -> None:
        output, errors, _ = whole
        text = output[: output.rindex("\n{")]
        for part in ("Temperature 0", "Temperature 1", "How far the oracle drafts", "average of the domains", "F1"):
            assert part in text
        assert text.count("| disco-transfer |") == 2 * 3, "all and each domain, at both temperatures"
        assert "2/2 prompts, about 0.0 minutes left" in errors
        for table in (part for part in text.split("\n\n") if part.startswith("|")):
            assert len({line.count("|") for line in table.splitlines()}) == 1

    def test_the_table_prints_again(self, whole: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "result.json"
        file.write_text(json.dumps(whole[2]))
        assert main(["bench", "table", str(file)]) == 0
        assert capsys.readouterr().out == whole[0][: whole[0].rindex('{"selfdraft"')]

    def test_a_damaged_document(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "result.json"
        file.write_text('{"benchmark": "lookahead"}')
        assert main(["bench", "table", str(file)]) == 2
        assert "it must be what `selfdraft bench lookahead --output` wrote" in capsys.readouterr().err

    def test_plot(self, whole: Run, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        draw(whole[2], tmp_path / "lookahead.png")
        assert (tmp_path / "lookahead.png").read_bytes().startswith(b"\x89PNG")


SPLITS = ("train", "validation", "test")


# ------------------------------------------------------------------------------------------------ the command


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["bench", "lookahead", "--help"])
    text = capsys.readouterr().out
    assert all(name in text for name in (*ROWS, "--train-tokens", "--validation", "--rows", "disco.threshold"))
    assert "--lookahead" not in text
    assert "--acceptance" not in text


def test_time_limit_and_few_rows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(folder, "--seconds", "0", "--rows", "tpt", "static-5", "--temperature", "0.7") == 0
    captured = capsys.readouterr()
    document = last_line(captured.out)
    assert document["prompts"] == {"code": 1}, "the first is always measured"
    assert not document["is_complete"]
    assert "cut short" in captured.out
    (found,) = document["temperatures"]
    assert [row["name"] for row in found["rows"]] == ["plain", "static-5", "tpt"]
    assert found["oracle_all"] is None
    assert found["gains"] == []


def test_an_interrupted_run_keeps_what_is_complete(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measure = turns.Turns.measure

    def interrupted(self: turns.Turns, prompt: CalibrationPrompt) -> Any:
        if self.num_measured == 1 and self.temperature == 1:
            raise KeyboardInterrupt
        return measure(self, prompt)

    monkeypatch.setattr(turns.Turns, "measure", interrupted)
    file = tmp_path / "result.json"
    assert bench(folder, "--rows", "disco", "oracle", "--output", str(file)) == 130
    captured = capsys.readouterr()
    document = json.loads(file.read_text())
    assert document == last_line(captured.out)
    assert document["prompts"] == {"code": 1}
    assert "interrupted after 1 of 2 prompts" in captured.err
    for found in document["temperatures"]:
        assert {row["total"]["num_prompts"] for row in found["rows"]} == {1}, "at all temperatures or at none"


def test_an_output_that_differs_is_exit_code_1(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An acceptance that believes every draft."""
    honest = Coupled.accept

    def gullible(targets: Any, sampler: Any) -> list[Verdict]:
        verdicts = honest(targets, sampler)
        return [
            Verdict((*draft.tokens, verdict.tokens[-1]), tuple(range(len(draft.tokens))))
            for draft, verdict in zip(targets.drafts, verdicts, strict=True)
        ]

    monkeypatch.setattr(Coupled, "accept", staticmethod(gullible))
    assert bench(folder, "--rows", "static-5", "--temperature", "0", "--seconds", "0") == 1
    output = capsys.readouterr().out
    document = last_line(output)
    assert run.has_difference(document)
    (row,) = (row for row in document["temperatures"][0]["rows"] if row["name"] == "static-5")
    assert row["total"]["different"] == 1
    assert "static-5, temperature 0: different in prompts-1 (code) from token " in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--train", "4"], "there are 5 prompts of the domain 'code', but 1 and 5 others are asked for"),
        (["--rows", "dicso"], "unknown row 'dicso'. Did you mean 'disco'?"),
        (["--strategy", "off"], "the strategy 'off' drafts nothing"),
        (["--output", "no/such/folder/result.json"], "there is no folder"),
        (["--drafter", "model"], "the drafter 'model' needs a draft model"),
    ],
)
def test_mistakes_are_said(
    folder: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(folder, *arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("value", ["-1", "warm"])
def test_temperatures_that_are_none(folder: Path, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        bench(folder, "--temperature", value)
    assert "--temperature" in capsys.readouterr().err


def test_one_domain_has_no_other_to_learn_from() -> None:
    assert check_rows(None, 1) == [name for name in ROWS if name != "disco-transfer"]
    assert check_rows(["oracle", "disco"], 2) == ["plain", "disco", "oracle"]
    with pytest.raises(OptionError, match="needs prompts of at least two domains"):
        check_rows(["disco-transfer"], 1)


def test_every_lookahead_has_a_row() -> None:
    from selfdraft.registry import LOOKAHEADS

    assert set(LOOKAHEADS) - {"fixed"} <= set(MAKERS)


# ------------------------------------------------------------------------------------------------ kept apart


def test_no_text_is_in_two_parts(folder: Path) -> None:
    options: Namespace = build_parser().parse_args(command(folder))
    plan = bench_lookahead.make_plan(options)
    parts = [[prompt.text.strip() for prompt in part] for part in (plan.test, plan.train, plan.validation)]
    texts = [text for part in parts for text in part]
    assert len(texts) == len(set(texts)) == 2 * (1 + 2 + 1)
    assert parts[0] == ["abcabcabc", "1+2=3"], "the first of each domain"
    assert parts[2] == ["if(a)b", "2*3=6"], "the last ones"


def test_too_few_prompts() -> None:
    prompts = [BenchPrompt(str(number), "code", f"text {number % 4}") for number in range(8)]
    test, training, validation = split_in_three(prompts, 2, 1, 1)
    assert [prompt.id for prompt in (*test, *training, *validation)] == ["0", "1", "2", "3"]
    with pytest.raises(OptionError, match="there are 4 prompts of the domain 'code'"):
        split_in_three(prompts, 2, 2, 1)


# ------------------------------------------------------------------------------------------------ fresh states


def learning_rules() -> dict[str, dict[str, PlainLookahead]]:
    kinds: dict[str, type[Any]] = {"heuristic": Heuristic, "adaptive": Adaptive, "roc": Roc, "tpt": Tpt}
    return {name: {domain: kind(kind.Options()) for domain in TEXTS} for name, kind in kinds.items()}


def learned(lookahead: Any) -> Any:
    """What a rule knows, as plain values."""
    names = {Heuristic: ["_first", "_lengths"], Adaptive: ["threshold", "_share"], Roc: ["threshold", "_num_seen"]}
    values = [getattr(lookahead, name) for name in names.get(type(lookahead), ["bar", "_table", "_num_rounds"])]
    return [getattr(value, "values", value) for value in values]


def same(one: Any, other: Any) -> bool:
    return str(one) == str(other)


def test_what_warming_up_taught_is_forgotten() -> None:
    rules, fresh = learning_rules(), learning_rules()
    ways = turns.Turns(Engine(pico("llama")), METHOD, rules, max_new_tokens=40, temperature=0.0, seed=0)
    for arm in ways.arms[1:]:
        for domain in TEXTS:
            arm.run(domain, [3, 1, 4, 1, 5], max_new_tokens=40)
            assert not same(learned(rules[arm.name][domain]), learned(fresh[arm.name][domain])), arm.name
    ways.warm_up([3, 1, 4, 1, 5, 9], {domain: [5, 9] for domain in TEXTS})
    for name, by_domain in rules.items():
        for domain, lookahead in by_domain.items():
            assert same(learned(lookahead), learned(fresh[name][domain])), name
    engines = {id(arm.engine.method(**METHOD).strategy) for arm in ways.arms}
    assert len(engines) == len(ways.arms), "what a strategy learns is its own as well"


def test_a_domain_learns_of_its_own_texts_alone() -> None:
    rules, fresh = learning_rules(), learning_rules()
    ways = turns.Turns(Engine(pico("llama")), METHOD, rules, max_new_tokens=40, temperature=0.0, seed=0)
    ways.measure(PROMPTS[0])
    for name, by_domain in rules.items():
        assert not same(learned(by_domain["code"]), learned(fresh[name]["code"]))
        assert same(learned(by_domain["math"]), learned(fresh[name]["math"]))


# ------------------------------------------------------------------------------------------------ the oracle


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_oracle_keeps_all_but_the_last_token(temperature: float) -> None:
    known: dict[str, PlainLookahead] = {"static-5": Fixed(Fixed.Options()), "oracle": Oracle([[]], room=40)}
    rules = {name: dict.fromkeys(TEXTS, lookahead) for name, lookahead in known.items()}
    ways = turns.Turns(Engine(pico("llama")), METHOD, rules, max_new_tokens=40, temperature=temperature, seed=3)
    for prompt in PROMPTS:
        outputs = {output.arm.name: output for output in ways.measure(prompt)}
        assert list(outputs)[-1] == "oracle"
        generation: Generation = outputs["oracle"].generation
        assert generation.stats.num_rounds <= outputs["static-5"].generation.stats.num_rounds
        assert outputs["oracle"].comparison is not None
        assert outputs["oracle"].comparison.verdict == "equal"
        for step in generation.steps:
            assert step.verdict.num_accepted >= step.draft.chain_length - 1
        ways.count(prompt, list(outputs.values()))
    kept = ways.oracle_lengths["code"][0]
    assert sum(kept) + len(kept) == 40


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """As on a GPU: passes and drafts are recorded, and bound to their tensors."""
    monkeypatch.setattr(engine_module, "make_runner", lambda model, *_: GraphRunner(model, make_recorder=TapeRecorder))
    return Engine(pico("llama"))


@pytest.mark.parametrize("temperature", [0.0, pytest.param(1.0, marks=pytest.mark.full)])
def test_nothing_is_recorded_while_measuring(recorded: Engine, temperature: float) -> None:
    oracle: PlainLookahead = Oracle([[]], room=24)
    rules = {**learning_rules(), "oracle": dict.fromkeys(TEXTS, oracle)}
    ways = turns.Turns(recorded, METHOD, rules, max_new_tokens=24, temperature=temperature, seed=0)
    ways.warm_up([3, 1, 4, 1, 5, 9], {prompt.domain: [len(prompt.tokens)] for prompt in PROMPTS})
    num_captures = recorded.runner.graphs.num_captures
    assert num_captures > 0
    for prompt in PROMPTS:
        ways.count(prompt, ways.measure(prompt))
    assert recorded.runner.graphs.num_captures == num_captures
    rows = {row["name"]: row["total"] for row in ways.rows()}
    assert {name: row["equal"] for name, row in rows.items() if name != "plain"} == dict.fromkeys(rules, 2)
    assert rows["oracle"]["num_rounds"] == min(row["num_rounds"] for row in rows.values())
    assert all(row["capture_seconds"] == 0 for row in rows.values())


def test_an_oracle_is_told_anew_in_place() -> None:
    oracle = Oracle([[5, 6, 7]], room=8)
    table = oracle._on(torch.device("cpu"))
    oracle.tell([[1, 2]])
    assert oracle._on(torch.device("cpu")) is table
    assert table.tolist() == [[1, 2, *[-1] * 7]]


# ------------------------------------------------------------------------------------------------ figures


def trace(kept: str, confidences: list[float] | None = None) -> Trace:
    """`kept`: + or - for each token."""
    count, generator = len(kept), torch.Generator().manual_seed(len(kept))
    top = torch.rand(count, 10, generator=generator).sort(descending=True).values
    return Trace(
        domain="code",
        top_probs=top,
        entropies=torch.rand(count, generator=generator),
        confidences=torch.tensor(confidences) if confidences else top[:, 0],
        match_lengths=torch.zeros(count, dtype=torch.long),
        is_drafted=torch.ones(count, dtype=torch.bool),
        is_kept=torch.tensor([mark == "+" for mark in kept]),
        overlaps=torch.rand(count, generator=generator),
        has_scores=True,
    )


class TestF1:
    TRACES = (trace("++-+++++--+"), trace("+-+++-"))

    @pytest.mark.parametrize("tokens", [1, 2, 5])
    def test_of_a_rule_that_counts(self, tokens: int) -> None:
        found = judge(self.TRACES, Fixed(Fixed.Options(tokens=tokens)), SECONDS, counts=True)
        assert found.f1 == pytest.approx(static_f1(self.TRACES, tokens))

    def test_of_a_classifier(self) -> None:
        classifier = train(self.TRACES)
        disco = Disco.of(classifier, Disco.Options(max_tokens=2))
        assert judge(self.TRACES, disco, SECONDS, counts=False).f1 == pytest.approx(
            classifier_f1(classifier, self.TRACES)
        )
        assert disco.max_tokens == 2

    def test_of_a_rule_that_looks(self) -> None:
        one = trace("++-+", [0.9, 0.3, 0.9, 0.9])
        found = judge([one], Confidence(Confidence.Options(threshold=0.5, max_tokens=1)), SECONDS, counts=False)
        assert found.predicted.tolist() == [True, False, True, True]
        assert found.f1 == pytest.approx(2 * 2 / (3 + 3))

    def test_what_learns_has_learned_of_earlier_texts(self) -> None:
        heuristic = Heuristic(Heuristic.Options(start=1))
        found = judge([trace("++++"), trace("++++")], heuristic, SECONDS, counts=True)
        assert found.predicted.tolist() == [True, False, False, False, *[True] * 4]

    def test_together(self) -> None:
        parts = [judge([one], Fixed(Fixed.Options(tokens=2)), SECONDS, counts=True) for one in self.TRACES]
        assert Judged.join(parts).f1 == pytest.approx(static_f1(self.TRACES, 2))


class TestLengths:
    def test_figures(self) -> None:
        found = lengths.figures([[7, 3, 13, 21, 8], [0]])
        assert found["num_rounds"] == 6
        assert found["mean"] == pytest.approx(52 / 6)
        assert found["std"] == pytest.approx(6.85, abs=0.01)
        assert len(found["histogram"]) == 22
        assert sum(found["histogram"]) == 6
        assert found["histogram"][13] == 1

    def test_course(self) -> None:
        """The paper's own example: rounds 0 to 4 stand at 0, 0.25, 0.5, 0.75 and 1."""
        found = dict(enumerate(lengths.course([[7, 3, 13, 21, 8]])))
        assert {place: mean for place, mean in found.items() if mean} == {0: 7, 5: 3, 10: 13, 15: 21, 19: 8}
        assert lengths.course([[4], [6]])[0] == 5

    def test_of_nothing(self) -> None:
        found = lengths.figures([])
        assert (found["mean"], found["std"], found["histogram"]) == (None, None, [])


class TestGains:
    @staticmethod
    def sums(*ms: float) -> Sums:
        return Sums(num_tokens=10 * len(ms), decode_seconds=sum(ms) / 100, ms_per_token=list(ms))

    def test_of_one_domain(self) -> None:
        gain = Gain.of(self.sums(8, 6), self.sums(10, 10))
        assert gain is not None
        assert gain.percent == pytest.approx(30)
        assert gain.error == pytest.approx(10)
        assert Gain.of(self.sums(8), self.sums(10)) == Gain(pytest.approx(20), None)
        assert Gain.of(Sums(), self.sums(10)) is None

    def test_average_of_the_domains(self) -> None:
        rules = {
            "disco": {"code": self.sums(9), "math": self.sums(5)},
            "static-opt": {"code": self.sums(10), "math": self.sums(10)},
        }
        (found,) = gains(rules, ("disco", "tpt"), ("static-opt", "heuristic"))
        assert (found["rule"], found["over"]) == ("disco", "static-opt")
        assert found["average"]["percent"] == pytest.approx(30)
        assert Gain.mean([Gain(1, 3), Gain(2, 4)]).error == pytest.approx(math.hypot(3, 4) / 2)


# ------------------------------------------------------------------------------------------------ a draft model


@pytest.fixture(scope="module")
def script() -> ModuleType:
    file = Path(__file__).parents[1] / "benchmarks" / "draft_pair.py"
    spec = importlib.util.spec_from_file_location("draft_pair", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_draft_model_of_whole_layers(
    script: ModuleType, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draft = tmp_path / "draft"
    assert script.main([str(folder), "--layers", f"0-1,{NUM_LAYERS - 1}", "--output", str(draft)]) == 0
    assert "layers 0, 1, 4; " in capsys.readouterr().out
    drafting = ["--drafter", "model", "--set", f"model.source={draft}"]
    few = ["--rows", "static-5", "disco", "oracle", "--seconds", "0", "--temperature", "0"]
    assert bench(folder, *drafting, *few) == 0
    document = last_line(capsys.readouterr().out)
    rows = {row["name"]: row["total"] for row in document["temperatures"][0]["rows"]}
    assert rows["oracle"]["num_rounds"] <= rows["static-5"]["num_rounds"]
    assert rows["disco"]["equal"] == 1
    assert document["method"]["settings"]["model"] == {"source": "draft"}
    assert str(tmp_path) not in json.dumps(document)


def test_layers_that_are_none(script: ModuleType, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main([str(folder), "--layers", "0-9", "--output", "nowhere"]) == 2
    assert "the model has 5 layers" in capsys.readouterr().err


RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


@pytest.mark.parametrize("file", sorted(RESULTS.glob("lookahead-*.json")), ids=lambda file: file.stem)
def test_the_docs_show_what_was_measured(file: Path) -> None:
    """Every row of a table in docs/lookahead.md is one that a document of the benchmark prints."""
    documents = [json.loads(found.read_text(encoding="utf-8")) for found in RESULTS.glob("lookahead-*.json")]
    printed = {line for document in documents for line in report.as_markdown(document).splitlines()}
    docs = (RESULTS.parents[1] / "docs" / "lookahead.md").read_text(encoding="utf-8")
    shown = [line for line in docs.splitlines() if line.startswith("| ") and (" equal |" in line or "±" in line)]
    assert file.name in docs
    assert len(shown) > 20
    assert [line for line in shown if line not in printed] == []
