"""`selfdraft bench`: a wrong output is seen, an interrupted run goes on, every method is there by being registered."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from learned import profile
from pico import letter_tokenizer, pico
from selfdraft import Engine
from selfdraft.bench.harness import run as module
from selfdraft.bench.harness.plan import BenchPlan
from selfdraft.bench.harness.records import Head, RecordFile, TextRecord, read_records
from selfdraft.bench.harness.run import MethodBench, is_different
from selfdraft.bench.harness.table import as_text
from selfdraft.bench.harness.ways import crossed, every_method
from selfdraft.bench.prompts import BenchPrompt
from selfdraft.cli.main import main
from selfdraft.engine.accept import Coupled, Targets
from selfdraft.engine.sampling import Sampler
from selfdraft.errors import OptionError
from selfdraft.registry import AXES, BENCH_ONLY
from selfdraft.types import Verdict

pytestmark = pytest.mark.xdist_group("bench")

SKIP = {"fixed": {"skip": "a1,m2-3"}}
METHODS: dict[str, dict[str, Any]] = {
    "skip": {"strategy": "fixed", "settings": SKIP},
    "lookup": {"strategy": "fixed", "drafter": "lookup", "settings": SKIP},
}
PROMPTS = [
    BenchPrompt("a", "code", "abcabcabc"),
    BenchPrompt("b", "chat", "hello", ("and then?", "why?")),
    BenchPrompt("c", "code", "xyzxyz"),
]
COUNTS = (
    "num_tokens",
    "num_rounds",
    "num_draft_steps",
    "num_accepted",
    "skips",
    "verdict",
    "prompt",
    "num_prompt_tokens",
)


@pytest.fixture
def engine() -> Engine:
    return Engine(pico("llama"), letter_tokenizer(), profile=profile())


def plan_of(**changed: Any) -> BenchPlan:
    return replace(BenchPlan(PROMPTS, METHODS, max_new_tokens=12), **changed)


def counts(records: Sequence[TextRecord]) -> list[tuple[Any, ...]]:
    return [(one.way, one.number, *(getattr(one, name) for name in COUNTS)) for one in records]


class AcceptsAll:
    """Broken on purpose: what was drafted is kept, whatever the target says."""

    keeps_scores = False
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
    monkeypatch.setitem(dict_of(AXES["acceptance"]), "coupled", f"{__name__}:AcceptsAll")


def dict_of(table: Any) -> dict[str, str]:
    assert isinstance(table, dict)
    return table


# ------------------------------------------------------------------------------------------------ what is measured


def test_all_ways_take_turns_and_say_the_same(engine: Engine) -> None:
    bench = MethodBench(engine, plan_of(peers=["eager"]))
    found = bench.run()
    assert [way["name"] for way in found["ways"]] == ["off", "skip", "lookup", "transformers eager"]
    assert found["num_texts"] == 5
    assert found["prompts_of"] == {"code": 2, "chat": 3}
    for way in found["ways"][1:]:
        assert (way["total"]["equal"], way["total"]["different"]) == (5, 0)
    skip = found["ways"][1]
    assert skip["total"]["num_tokens"] == found["ways"][0]["total"]["num_tokens"] == 5 * 12
    assert skip["skips"] == [{"skip": "a1,m2-3", "share": 1.0}]
    assert skip["total"]["expected"]["by_ratio"] is not None
    assert not is_different(found)


def test_a_peer_that_fails_is_a_row_with_its_reason(engine: Engine) -> None:
    found = MethodBench(engine, plan_of(peer_model=pico("llama", num_hidden_layers=1))).run()
    peer = found["ways"][-1]
    assert (peer["name"], peer["kind"]) == ("transformers draft model", "peer")
    assert peer["method"] == {"assistant_model": "assistant_model"}
    assert peer["error"] is not None or peer["total"]["equal"] == 5
    with pytest.raises(OptionError, match="peers are greedy"):
        MethodBench(engine, plan_of(peers=["eager"], temperature=0.5))


def test_peers_may_be_asked_less_often(engine: Engine, tmp_path: Path) -> None:
    plan, file = plan_of(peers=["eager"], peer_prompts=1), RecordFile(tmp_path / "result.jsonl")
    first = MethodBench(engine, plan, file)
    first.run()
    asked = [record.prompt for record in first.records if record.way == "transformers eager"]
    assert asked == ["a", "b/1", "b/2", "b/3"]
    again = MethodBench(engine, plan, file)  # nothing is left to do
    assert again.run()["num_texts"] == 5
    assert counts(again.records) == counts(first.records)
    assert "peers were measured on 4 of the texts" in as_text(again.document())


def test_a_conversation_goes_on_behind_the_plain_answers(engine: Engine) -> None:
    bench = MethodBench(engine, plan_of())
    bench.run()
    texts = [one for one in bench.records if one.way == "off"]
    assert [one.prompt for one in texts] == ["a", "b/1", "b/2", "b/3", "c"]
    assert texts[1].num_prompt_tokens + 12 < texts[2].num_prompt_tokens < texts[3].num_prompt_tokens


def test_nobody_always_comes_first(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    orders: dict[int, list[str]] = {}
    run = module.OurArm.run

    def watched(arm: Any, place: Any, *arguments: Any) -> Any:
        orders.setdefault(place.number, []).append(arm.name)
        return run(arm, place, *arguments)

    monkeypatch.setattr(module.OurArm, "run", watched)
    texts = [BenchPrompt(str(number), "code", "abc") for number in range(12)]
    for _ in range(2):  # the same order again
        orders.clear()
        MethodBench(engine, plan_of(prompts=texts, max_new_tokens=2)).run()
        found = [tuple(orders[number]) for number in range(12)]
        assert all(sorted(order) == ["lookup", "off", "skip"] for order in found)
        assert len({order[0] for order in found}) == 3
        assert len(set(found)) > 3, "no way always follows the same other one"


def test_the_oracle_is_a_bound_and_drafts_nothing_in_vain(engine: Engine) -> None:
    methods = {"oracle": {**METHODS["skip"], "lookahead": "oracle"}}
    way = MethodBench(engine, plan_of(methods=methods)).run()["ways"][1]
    assert way["kind"] == "bound"
    assert way["total"]["equal"] == 5
    rejected = way["total"]["mean_generated_length"]
    assert rejected >= MethodBench(engine, plan_of()).run()["ways"][1]["total"]["mean_generated_length"]


def test_what_cannot_run_says_why_and_the_others_run(engine: Engine) -> None:
    engine.remember(None)
    found = MethodBench(engine, plan_of(methods={"prune": {"strategy": "prune"}, **METHODS})).run()
    prune = found["ways"][1]
    assert "selfdraft calibrate" in prune["error"]
    assert "total" not in prune
    assert found["ways"][2]["total"]["num_prompts"] == 5


@pytest.mark.usefixtures("broken")
def test_a_broken_acceptance_is_seen(engine: Engine) -> None:
    found = MethodBench(engine, plan_of()).run()
    assert found["ways"][1]["total"]["different"] > 0
    assert found["ways"][1]["differences"][0]["first_difference"] is not None
    assert is_different(found)


# ------------------------------------------------------------------------------------------------ interrupted


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Ctrl-C at the n-th text."""

    def stop_at(number: int) -> None:
        run = module.OurArm.run

        def interrupted(arm: Any, place: Any, *arguments: Any) -> Any:
            if place.number == number and arm.name == "lookup":
                monkeypatch.setattr(module.OurArm, "run", run)
                raise KeyboardInterrupt
            return run(arm, place, *arguments)

        monkeypatch.setattr(module.OurArm, "run", interrupted)

    return stop_at


@pytest.mark.parametrize("number", [2, 4])
def test_resuming_gives_the_same_totals(
    engine: Engine, stopping: Callable[[int], None], tmp_path: Path, number: int
) -> None:
    whole = MethodBench(engine, plan_of(), RecordFile(tmp_path / "whole.jsonl"))
    whole.run()
    stopping(number)
    file = RecordFile(tmp_path / "result.jsonl")
    half = MethodBench(engine, plan_of(), file)
    half.run()
    assert half.is_interrupted
    assert {record.number for record in half.records} == set(range(4 if number == 4 else 1)), "whole prompts alone"
    again = MethodBench(engine, plan_of(), file)
    found = again.run()
    assert counts(again.records) == counts(whole.records)
    assert counts(read_records(file.path)[1]) == counts(whole.records)
    assert found["is_complete"]
    assert found["resumed_at"] == [4 if number == 4 else 1]
    assert again.records[: len(half.records)] == half.records, "measured once"


@pytest.mark.parametrize("cut", ["in a conversation", "before one of ours"])
def test_what_was_written_by_half_is_measured_again(engine: Engine, tmp_path: Path, cut: str) -> None:
    plan, file = plan_of(peers=["eager"]), tmp_path / "result.jsonl"
    whole = MethodBench(engine, plan, RecordFile(file))
    whole.run()
    lines = file.read_text().splitlines()
    num_lines = {"in a conversation": 1 + 4 * 2, "before one of ours": 1 + 4 * 5 - 1}[cut]
    file.write_text("\n".join(lines[:num_lines]) + "\n")
    again = MethodBench(engine, plan, RecordFile(file))
    assert again.run()["num_texts"] == 5
    assert counts(again.records) == counts(whole.records)


def test_a_profile_or_another_text_is_another_question(engine: Engine, tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "result.jsonl")
    MethodBench(engine, plan_of(), file).run()
    texts = [replace(PROMPTS[0], text="another text"), *PROMPTS[1:]]
    with pytest.raises(OptionError, match="prompts_digest"):
        MethodBench(engine, plan_of(prompts=texts), file).run()
    engine.remember(None)
    with pytest.raises(OptionError, match="profile"):
        MethodBench(engine, plan_of(), file).run()


def test_rejection_sampling_promises_no_text(engine: Engine) -> None:
    methods = {"drawn": {**METHODS["skip"], "acceptance": "rejection"}, **METHODS}
    found = MethodBench(engine, plan_of(methods=methods, temperature=1.0)).run()
    drawn, skip, _ = found["ways"][1:]
    assert (drawn["total"]["equal"], drawn["total"]["different"], skip["total"]["equal"]) == (0, 0, 5)
    assert not is_different(found)
    assert "promises the distribution" in as_text(found)
    greedy = MethodBench(engine, plan_of(methods=methods)).run()
    assert greedy["ways"][1]["total"]["equal"] == 5


def test_turns_that_may_not_fit_are_left_out(engine: Engine) -> None:
    room = engine.context_length
    assert room is not None
    long = BenchPrompt("long", "chat", "hello", ("x" * (room // 2), "y" * (room // 2)))
    found = MethodBench(engine, plan_of(prompts=[long])).run()
    assert (found["num_texts"], found["is_complete"]) == (2, True)
    assert "might not fit the model's context: 1" in as_text(found)


def test_a_call_has_a_peak_and_the_harness_a_share(engine: Engine) -> None:
    found = MethodBench(engine, plan_of()).run()
    assert 0 < found["harness_share"] < 1
    assert 0 < found["judge_share"] < 1
    if Path("/proc/self/clear_refs").exists():
        assert all(way["total"]["peak_bytes"] > 2**20 for way in found["ways"])


def test_plain_decoding_again_is_a_control(engine: Engine) -> None:
    found = MethodBench(engine, plan_of(methods={"off, again": {"strategy": "off"}})).run()
    assert found["ways"][1]["kind"] == "control"
    assert "off, again: plain decoding once more" in as_text(found)
    assert "--strategy off --" not in as_text(found), "it is nothing to recommend"


def test_a_torn_line_is_measured_again(engine: Engine, tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "result.jsonl")
    MethodBench(engine, plan_of(), file).run()
    whole = file.path.read_text()
    file.path.write_text(whole[:-40])
    again = MethodBench(engine, plan_of(), file)
    again.run()
    assert [record.number for record in again.records] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3
    assert counts(read_records(file.path)[1]) == counts(again.records)


def test_time_that_is_up_ends_it_behind_a_prompt(engine: Engine, tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "result.jsonl")
    found = MethodBench(engine, plan_of(seconds=0.0), file).run()
    assert (found["num_texts"], found["is_complete"]) == (1, False)
    assert MethodBench(engine, plan_of(), file).run()["is_complete"]


def test_another_question_does_not_go_on(engine: Engine, tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "result.jsonl")
    MethodBench(engine, plan_of(), file).run()
    before = file.path.read_bytes()
    with pytest.raises(OptionError, match=r"max_new_tokens: 12, now 9.*--again"):
        MethodBench(engine, plan_of(max_new_tokens=9), file).run()
    assert file.path.read_bytes() == before
    assert MethodBench(engine, plan_of(max_new_tokens=9), file, is_new=True).run()["max_new_tokens"] == 9


# ------------------------------------------------------------------------------------------------ which ways


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "pico-llama"
    pico("llama").save_pretrained(path)
    letter_tokenizer().save_pretrained(path)
    return path


@pytest.fixture
def few(tmp_path: Path) -> list[str]:
    """Options for short work."""
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"domain": "code", "prompt": "abcabc"}\n{"domain": "chat", "prompt": "hello"}\n')
    return ["--prompts", str(file), "--max-new-tokens", "8", "--peers", "none"]


def test_the_command(folder: Path, few: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.jsonl"
    command = ["bench", str(folder), *few, "--strategies", "uniform", "prune", "--output", str(file)]
    assert main(command) == 0
    printed = capsys.readouterr().out.rstrip("\n").split("\n")
    found = json.loads(printed[-1])
    assert {"device_name", "dtype", "torch", "transformers", "commit", "options", "seed"} <= set(found)
    assert str(tmp_path) not in printed[-1]
    assert "uniform" in "\n".join(printed[:-1])
    assert len(file.read_text().split("\n")) == 1 + 2 * 2 + 1
    assert main(["bench", "table", str(file)]) == 0
    assert "| uniform |" in capsys.readouterr().out


@pytest.mark.usefixtures("broken")
def test_a_difference_is_the_exit_code(folder: Path, few: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(folder), *few, "--strategies", "uniform", "--set", "uniform.ratio=0.6"]) == 1
    assert "different" in capsys.readouterr().out


def test_a_head_survives_its_file(tmp_path: Path) -> None:
    head = Head({"seed": 0, "num_texts": 0}, {"device": "cpu"}, {"num_layers": 2, "beta": 1.0}, [])
    file = RecordFile(tmp_path / "result.jsonl")
    assert file.begin(head) == (head, [])
    assert read_records(file.path) == (head, [])
