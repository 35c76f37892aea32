"""Measuring: a wrong output is seen, an interrupted run goes on, arms are compared paired, every method is there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from learned import profile
from pico import letter_tokenizer, pico
from selfdraft import Engine
from selfdraft.bench.methods import crossed, every_method
from selfdraft.bench.page.html import page
from selfdraft.bench.tables import as_markdown, as_text
from selfdraft.cli.main import main
from selfdraft.engine.accept import Coupled, Targets
from selfdraft.engine.sampling import Sampler
from selfdraft.errors import OptionError
from selfdraft.measure import run as module
from selfdraft.measure.estimate import (
    Estimate,
    acceptance,
    call_speed,
    estimate,
    ratio,
    speed,
    unpaired_ratio,
)
from selfdraft.measure.figures import Measured
from selfdraft.measure.records import Machine, Record, RecordFile
from selfdraft.measure.result import Result
from selfdraft.measure.run import Measurement, MeasurePlan
from selfdraft.progress import Budget
from selfdraft.prompts.arrange import digest, in_modes, is_context
from selfdraft.registry import AXES, BENCH_ONLY
from selfdraft.types import Prompt, Verdict

pytestmark = pytest.mark.xdist_group("bench")

NUM_TOKENS = 7
SKIP = {"fixed": {"skip": "a1,m2-3"}}
METHODS: dict[str, dict[str, Any]] = {
    "skip": {"strategy": "fixed", "settings": SKIP},
    "lookup": {"strategy": "fixed", "drafter": "lookup", "settings": SKIP},
}
PROMPTS = [
    Prompt("a", "code", "abcabcabc"),
    Prompt("b", "chat", "hello", ("and then?", "why?")),
    Prompt("c", "code", "xyzxyz"),
]
COUNTS = ("num_tokens", "num_rounds", "num_draft_steps", "num_accepted", "skips", "verdict", "num_prompt_tokens")


@pytest.fixture
def engine() -> Engine:
    return Engine(pico("llama"), letter_tokenizer(), profile=profile())


def plan_of(**changed: Any) -> MeasurePlan:
    return replace(MeasurePlan(PROMPTS, METHODS, max_new_tokens=NUM_TOKENS), **changed)


def counts(records: Sequence[Record]) -> list[tuple[Any, ...]]:
    return [(one.arm, one.prompt, one.number, *(getattr(one, name) for name in COUNTS)) for one in records]


class AcceptsAll:
    """Broken on purpose: what was drafted is kept, whatever the target says."""

    keeps_scores = False
    draft_salt = target_salt = 0
    candidates = Coupled.candidates

    @staticmethod
    def accept(targets: Targets, sampler: Sampler) -> list[Verdict]:
        good = Coupled.accept(targets, sampler)
        return [
            Verdict((*draft.tokens, verdict.tokens[-1]), tuple(range(len(draft.tokens)))) if draft.tokens else verdict
            for draft, verdict in zip(targets.drafts, good, strict=True)
        ]


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(AXES["acceptance"], "coupled", f"{__name__}:AcceptsAll")


# ------------------------------------------------------------------------------------------------ what is measured


def test_all_arms_take_turns_and_say_the_same(engine: Engine) -> None:
    bench = Measurement(engine, plan_of(peers=["eager"]))
    found = bench.run()
    assert [arm.name for arm in found.arms] == ["off", "skip", "lookup", "transformers eager"]
    assert len(found.plain) == 5
    assert found.prompts_of == {"code": 2, "chat": 3}
    for arm in found.arms[1:]:
        assert (arm.total.equal, arm.total.different) == (5, 0)
    skip = found.arms[1]
    assert skip.total.num_tokens == found.arms[0].total.num_tokens == 5 * NUM_TOKENS
    assert skip.skips == [{"skip": "a1,m2-3", "share": 1.0}]
    assert skip.total.expected["by_ratio"] is not None
    assert not found.is_different
    texts = found.plain
    assert [one.prompt for one in texts] == ["a", "b/1", "b/2", "b/3", "c"]
    assert texts[1].num_prompt_tokens + NUM_TOKENS < texts[2].num_prompt_tokens < texts[3].num_prompt_tokens, (
        "after the answers"
    )


def test_a_peer_that_fails_is_a_row_with_its_reason(engine: Engine) -> None:
    found = Measurement(engine, plan_of(peer_model=pico("llama", num_hidden_layers=1))).run()
    peer = found.arms[-1]
    assert (peer.name, peer.kind) == ("transformers draft model", "peer")
    assert peer.method == {"assistant_model": "assistant_model"}
    assert peer.error is not None or peer.total.equal == 5
    with pytest.raises(OptionError, match="peers are greedy"):
        Measurement(engine, plan_of(peers=["eager"], sampling={"temperature": 0.5}))


def test_peers_may_be_asked_less_often(engine: Engine, tmp_path: Path) -> None:
    plan, file = plan_of(peers=["eager"], peer_prompts=1), RecordFile(tmp_path / "result.jsonl")
    first = Measurement(engine, plan, file)
    first.run()
    asked = [record.prompt for record in first.records if record.arm == "transformers eager"]
    assert asked == ["a", "b/1", "b/2", "b/3"]
    again = Measurement(engine, plan, file)  # nothing is left to do
    assert again.run().document()["num_texts"] == 5
    assert counts(again.records) == counts(first.records)
    assert "peers were measured on 4 of the texts" in as_text(again.result())


def test_nobody_always_comes_first(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    run = mock.create_autospec(module.Ours.run, side_effect=module.Ours.run)
    monkeypatch.setattr(module.Ours, "run", run)
    texts = [Prompt(str(number), "code", "abc") for number in range(12)]
    for _ in range(2):
        Measurement(engine, plan_of(prompts=texts, max_new_tokens=2)).run()
    names = [call.args[0].name for call in run.call_args_list]
    found = [tuple(names[first : first + 3]) for first in range(0, len(names), 3)]
    assert all(sorted(order) == ["lookup", "off", "skip"] for order in found)
    assert len({order[0] for order in found}) == 3
    assert len(set(found)) > 3, "no arm always follows the same other one"
    assert found[:12] == found[12:], "the same order again"


def test_the_oracle_is_a_bound_and_drafts_nothing_in_vain(engine: Engine) -> None:
    methods = {name: {**METHODS["skip"], "lookahead": name} for name in ("oracle", "oracle-length")}
    _, arm, exact = Measurement(engine, plan_of(methods=methods)).run().arms
    assert (arm.kind, arm.total.equal) == (exact.kind, exact.total.equal) == ("bound", 5)
    assert exact.total.acceptance_rate == 1.0 > arm.total.acceptance_rate, "told its length it drafts what is kept"
    assert exact.total.mean_generated_length == arm.total.mean_generated_length
    usual = Measurement(engine, plan_of()).run().arms[1]
    assert arm.total.mean_generated_length >= usual.total.mean_generated_length


def test_what_cannot_run_says_why_and_the_others_run(engine: Engine) -> None:
    engine.remember(None)
    _, prune, skip, _ = Measurement(engine, plan_of(methods={"prune": {"strategy": "prune"}, **METHODS})).run().arms
    assert "selfdraft calibrate" in prune.error
    assert (prune.total, skip.total.num_prompts) == (None, 5)


@pytest.mark.usefixtures("broken")
def test_a_broken_acceptance_is_seen(engine: Engine) -> None:
    found = Measurement(engine, plan_of()).run()
    assert found.arms[1].total.different > 0
    assert found.arms[1].differences[0].first_difference is not None
    assert found.is_different


# ------------------------------------------------------------------------------------------------ interrupted


@pytest.mark.parametrize("number", [2, pytest.param(4, marks=pytest.mark.full)])
def test_resuming_gives_the_same_totals(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int
) -> None:
    """After Ctrl-C at the n-th text."""
    honest = module.Ours.run

    def run(arm: Any, text: Record, *arguments: Any) -> Any:
        if (text.number, arm.name) == (number, "lookup"):
            raise KeyboardInterrupt
        return honest(arm, text, *arguments)

    whole = Measurement(engine, plan_of(), RecordFile(tmp_path / "whole.jsonl"))
    whole.run()
    file = RecordFile(tmp_path / "result.jsonl")
    half = Measurement(engine, plan_of(), file)
    with monkeypatch.context() as patched:
        patched.setattr(module.Ours, "run", run)
        half.run()
    assert half.is_interrupted
    assert {record.number for record in half.records} == set(range(4 if number == 4 else 1)), "whole prompts alone"
    again = Measurement(engine, plan_of(), file)
    found = again.run()
    assert counts(again.records) == counts(whole.records)
    assert counts(file.read()[1]) == counts(whole.records)
    assert found.is_complete
    assert found.head.resumed_at == [4 if number == 4 else 1]
    assert again.records[: len(half.records)] == half.records, "measured once"


_LATER = [pytest.param(cut, marks=pytest.mark.full) for cut in ("in a conversation", "before one of ours")]


@pytest.mark.parametrize("cut", ["in a line", *_LATER])
def test_what_was_written_by_half_is_measured_again(engine: Engine, tmp_path: Path, cut: str) -> None:
    plan, file = plan_of(peers=["eager"]), tmp_path / "result.jsonl"
    whole = Measurement(engine, plan, RecordFile(file))
    whole.run()
    text = file.read_text()
    if cut == "in a line":
        file.write_text(text[:-40])
    else:
        num_lines = {"in a conversation": 1 + 4 * 2, "before one of ours": 1 + 4 * 5 - 1}[cut]
        file.write_text("".join(text.splitlines(keepends=True)[:num_lines]))
    again = Measurement(engine, plan, RecordFile(file))
    assert again.run().document()["num_texts"] == 5
    assert counts(again.records) == counts(whole.records) == counts(RecordFile(file).read()[1])


def test_another_question_does_not_go_on(engine: Engine, tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "result.jsonl")
    Measurement(engine, plan_of(), file).run()
    before = file.path.read_bytes()
    with pytest.raises(OptionError, match=rf"max_new_tokens: {NUM_TOKENS}, now 9.*--again"):
        Measurement(engine, plan_of(max_new_tokens=9), file).run()
    texts = [replace(PROMPTS[0], text="another text"), *PROMPTS[1:]]
    with pytest.raises(OptionError, match="prompts_digest"):
        Measurement(engine, plan_of(prompts=texts), file).run()
    engine.remember(None)
    with pytest.raises(OptionError, match="profile"):
        Measurement(engine, plan_of(), file).run()
    assert file.path.read_bytes() == before
    assert Measurement(engine, plan_of(max_new_tokens=9), file, is_new=True).run().head.question["max_new_tokens"] == 9


def test_rejection_sampling_promises_no_text(engine: Engine) -> None:
    methods = {"drawn": {**METHODS["skip"], "acceptance": "rejection"}, **METHODS}
    found = Measurement(engine, plan_of(methods=methods, sampling={"temperature": 1.0})).run()
    drawn, skip, _ = found.arms[1:]
    assert (drawn.total.equal, drawn.total.different, skip.total.equal) == (0, 0, 5)
    assert not found.is_different
    assert "promises the distribution" in as_text(found)
    greedy = Measurement(engine, plan_of(methods=methods)).run()
    assert greedy.arms[1].total.equal == 5


def test_turns_that_may_not_fit_are_left_out(engine: Engine) -> None:
    room = engine.context_length
    assert room is not None
    long = Prompt("long", "chat", "hello", ("x" * (room // 2), "y" * (room // 2)))
    found = Measurement(engine, plan_of(prompts=[long])).run()
    assert (len(found.plain), found.is_complete) == (2, True)
    assert "might not fit the model's context: 1" in as_text(found)


def test_plain_decoding_again_is_a_control_and_measuring_has_a_share(engine: Engine) -> None:
    found = Measurement(engine, plan_of(methods={"off, again": {"strategy": "off"}})).run()
    assert found.arms[1].kind == "control"
    assert "off, again: plain decoding once more" in as_text(found)
    assert "--strategy off --" not in as_text(found), "it is nothing to recommend"
    assert 0 < found.overhead()["measuring_share"] < 1
    assert 0 < found.overhead()["judge_share"] < 1
    if Path("/proc/self/clear_refs").exists():
        assert all(arm.total.peak_bytes > 2**20 for arm in found.arms)


def test_time_that_is_up_ends_it_after_a_prompt(engine: Engine, tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "result.jsonl")
    found = Measurement(engine, plan_of(), file, budget=Budget(0.0)).run()
    assert (len(found.plain), found.is_complete) == (1, False)
    assert Measurement(engine, plan_of(), file).run().is_complete


# ------------------------------------------------------------------------------------------------ which methods


def test_every_registered_method_is_there_by_itself() -> None:
    methods = every_method({"settings": {}})
    for axis in ("strategy", "lookahead", "drafter", "tree"):
        named = {method.get(axis) for method in methods.values()}
        assert named >= {name for name in (*AXES[axis], *BENCH_ONLY.get(axis, ())) if name != "off"}


def test_combinations() -> None:
    found = crossed({"strategy": ["off", "uniform", "swift"], "lookahead": ["all"]}, {"settings": {}})
    assert len(found) == 2 * len(AXES["lookahead"])
    assert found["swift, tpt"] == {"strategy": "swift", "lookahead": "tpt", "settings": {}}
    with pytest.raises(OptionError, match="unform"):
        crossed({"strategy": ["unform"]}, {})


# ------------------------------------------------------------------------------------------------ the command


@pytest.fixture
def few(tmp_path: Path) -> list[str]:
    """Options for short work."""
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"domain": "code", "prompt": "abcabc"}\n{"domain": "chat", "prompt": "hello"}\n')
    return ["--prompts", str(file), "--max-new-tokens", "8", "--peers", "none"]


def test_the_command(folder: str, few: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.jsonl"
    command = ["bench", folder, *few, "--strategies", "uniform", "prune", "--output", str(file)]
    assert main(command) == 0
    table = capsys.readouterr().out
    assert "uniform" in table
    assert "{" not in table, "the document is asked for, with --json or --output"
    assert main([*command, "--json"]) == 0
    printed = capsys.readouterr().out
    found = json.loads(printed)  # and nothing else
    assert {"device_name", "dtype", "torch", "transformers", "commit", "options", "seed"} <= set(found)
    assert str(tmp_path) not in printed
    assert len(file.read_text().split("\n")) == 1 + 2 * 2 + 1
    assert main(["report", str(file), "--markdown"]) == 0
    assert "| uniform |" in capsys.readouterr().out


@pytest.mark.full
def test_passes_soak_and_runs(folder: str, few: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.jsonl"
    options = ["--passes", "--soak", "2", "--runs", "2", "--output", str(file)]
    assert main(["bench", folder, *few, "--strategies", "uniform", *options]) == 0
    text = capsys.readouterr().out
    assert "memory floor" in text
    assert "memory over 2 generations" in text
    result = Result.read(file)
    assert {(record.run, record.number) for record in result.plain} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    off, uniform = result.arms
    assert off.total.bound == pytest.approx(1.0)
    assert uniform.total.bound is not None
    assert uniform.total.first_token_seconds > 0
    assert uniform.total.speedup.count == uniform.total.num_prompts == 2, "prompts, not texts"
    assert "first token ms" in as_markdown(result)


@pytest.mark.full
def test_modes(folder: str, few: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each prompt in each, compared with plain decoding in the same mode."""
    file, modes = tmp_path / "result.jsonl", {"greedy": "temperature=0", "warm": "temperature=2 top_p=0.9"}
    modes["drawn"] = "temperature=2 acceptance=rejection"
    flags = [part for name, text in modes.items() for part in ("--mode", f"{name}: {text}")]
    assert main(["bench", folder, *few, "--strategies", "uniform", *flags, "--soak", "2", "--output", str(file)]) == 0
    text = capsys.readouterr().out
    assert "rejection sampling promises the distribution" in text
    result = Result.read(file)
    assert result.prompts_of == {"greedy": 2, "warm": 2, "drawn": 2}
    uniform = result.arms[1]
    assert {mode: (found.equal, found.different) for mode, found in uniform.domains.items()} == {
        "greedy": (2, 0), "warm": (2, 0), "drawn": (0, 0)
    }  # fmt: skip
    rows = [line.split()[:2] for line in text.splitlines()]
    assert all([mode, arm] in rows for mode in modes for arm in ("off", "uniform"))
    assert "| warm | uniform |" in as_markdown(result)
    assert "<h2>By mode</h2>" in page([(result, {})])


def test_peers_know_no_modes_and_long_prompts_stay_apart(
    folder: str, few: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", folder, *few, "--mode", "penalised: repetition_penalty=1.1", "--peers", "eager"]) == 2
    assert "peers are greedy; leave out --temperature and --mode" in " ".join(capsys.readouterr().err.split())
    long, short = Prompt("a", "context 64", "text"), Prompt("b", "code", "text")
    modes: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0.0}, "warm": {"temperature": 1.0}}
    found = [prompt.domain for prompt in in_modes([long, short], modes)]
    assert found == ["context 64, greedy", "context 64, warm", "greedy", "warm"]
    assert [is_context(domain) for domain in found] == [True, True, False, False]
    assert digest([short]) != digest(in_modes([short], {"code": {"temperature": 1.0}}))


@pytest.mark.usefixtures("broken")
def test_a_difference_is_the_exit_code(folder: str, few: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", folder, *few, "--strategies", "uniform", "--set", "uniform.ratio=0.6"]) == 1
    assert "DIFFERS from plain decoding" in " ".join(capsys.readouterr().out.split())


# ------------------------------------------------------------------------------------------------ estimates


def record(arm: str, number: int, num_tokens: int, seconds: float, **values: Any) -> Record:
    return Record(arm, str(number), "code", number, 5, num_tokens, seconds, decode_seconds=seconds, **values)


def test_speeds_are_total_tokens_over_total_seconds() -> None:
    ours = [record("a", 0, 10, 1.0), record("a", 1, 30, 1.0)]
    plain = [record("off", 0, 10, 2.0), record("off", 1, 30, 4.0)]
    found = ratio(ours, plain, speed, seed=0)
    assert found.value == pytest.approx((40 / 2) / (40 / 6))
    assert (found.low, found.high) == pytest.approx((2.0, 4.0))
    assert found.count == 2
    assert ratio([], [], speed, 0) is None
    assert ratio(ours, [replace(one, decode_seconds=None) for one in plain], speed, 0) is None
    assert ratio(ours, plain, call_speed, 0).value == found.value


def test_pairing_finds_what_separate_intervals_hide() -> None:
    """Prompts differ by a factor of ten, one arm is always 5 % faster: only the paired ratio shows it."""
    seconds = [0.1 * 10 ** (number / 8) for number in range(9)]
    plain = [record("off", number, 10, 1.0) for number in range(9)]
    slow = [record("slow", number, 10, one) for number, one in enumerate(seconds)]
    fast = [record("fast", number, 10, one / 1.05) for number, one in enumerate(seconds)]
    apart = [ratio(one, plain, speed, 0) for one in (slow, fast)]
    assert apart[0].high > apart[1].low
    assert ratio(fast, slow, speed, 0).is_above(1.0) is True
    assert ratio(slow, fast, speed, 0).is_above(1.0) is False
    assert unpaired_ratio(fast, slow, speed, 0).is_above(1.0) is None


def test_an_interval_holds_the_spread_of_runs() -> None:
    """The same speed on every prompt, but the machine was slower in the second of three runs."""
    texts = [(run, number) for run in range(3) for number in range(4)]
    plain = [record("off", number, 10, 1.0, run=run) for run, number in texts]
    ours = [record("a", number, 10, (1.0, 1.4, 1.0)[run], run=run) for run, number in texts]
    found = ratio(ours, plain, speed, 0)
    assert found.count == 4
    assert found.low < 0.85 < found.value < 0.95 < found.high
    once = ratio([one for one in ours if one.run == 0], plain, speed, 0)
    assert once.low == once.high == pytest.approx(1.0)


def test_the_turns_of_a_conversation_are_one_prompt() -> None:
    ours = [record("a", number, 10, 1.0, turn=number) for number in range(3)]
    plain = [record("off", number, 10, 2.0, turn=number) for number in range(3)]
    assert ratio(ours, plain, speed, 0) == Estimate(2.0, 2.0, 2.0, 1)


def test_what_says_nothing_is_inconclusive() -> None:
    found = [(1.2, 1.1, 1.3, 2), (1.2, 0.9, 1.3, 9), (1.2, 1.1, 1.3, 3), (0.8, 0.7, 0.9, 3)]
    assert [Estimate(*one).is_above(1.0) for one in found] == [None, None, True, False]
    none = [record("a", number, 10, 1.0) for number in range(3)]
    assert estimate(none, acceptance, 0) is None, "nothing was drafted"


def test_records_survive_as_json() -> None:
    records = [record("off", 0, 10, 1.0), record("a", 0, 10, 0.5, skips={"a1": 3}, verdict="equal")]
    found = Measured(records, Machine(4, 0.5), seed=3)
    again = Measured.from_json(json.loads(json.dumps(found.to_json())))
    assert again.records == found.records
    assert (again.machine, again.seed) == (found.machine, found.seed)
    assert again.figures("a").to_dict() == found.figures("a").to_dict()
    assert again.figures("b") is None
    old = {**records[0].to_json(), "way": "off"}
    del old["arm"]
    assert Record.from_json(old) == records[0], "as files said it before"
