"""`calibrate --budget` is kept within a tenth, whatever passes take, and told in the words it was given in.

The clock is made up: a pass takes what the test says, everything else takes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pico import letter_tokenizer, pico
from selfdraft import Engine, OptionError
from selfdraft.calibrate.calibrate import CalibrateOptions, calibrate
from selfdraft.calibrate.lookahead import LookaheadOptions, train_lookahead, tune
from selfdraft.cli import budget as module
from selfdraft.cli.main import main
from selfdraft.measure.run import Measurement, MeasurePlan
from selfdraft.models.eager import EagerRunner
from selfdraft.models.probe import Probe
from selfdraft.progress import Budget, Steps
from selfdraft.types import Prompt

PROMPTS = [
    Prompt(
        f"{domain}{number}", domain, tokens=tuple(5 + 7 * place + number + length for length in range(20 + 9 * number))
    )
    for place, domain in enumerate(("code", "chat"))
    for number in range(4)
]
Clock = Callable[..., Callable[[], float]]


@pytest.fixture
def clock(home: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Seconds of a pass in, and the share of them that each of a few columns more takes; what time it is out."""
    now = [0.0]
    forward, run = EagerRunner.forward, Probe.run

    def begin(seconds: float, per_column: float = 0.05) -> Callable[[], float]:
        def timed_forward(runner: EagerRunner, request: Any, cache: Any) -> Any:
            num_sublayers = 2 * runner.num_layers
            kept = 1 - (len(request.skip.attention) + len(request.skip.mlp)) / num_sublayers
            columns = sum(map(len, request.tokens))
            now[0] += (
                seconds * (0.1 + 0.9 * kept) * (1 + per_column * min(columns - 1, 16) + 0.05 * max(0, columns - 17))
            )
            return forward(runner, request, cache)

        def timed_run(probe: Probe, number: int, states: Any) -> Any:
            now[0] += seconds / probe.num_sublayers * (1 + 0.05 * states.hidden.shape[0] * states.hidden.shape[1])
            return run(probe, number, states)

        monkeypatch.setattr(EagerRunner, "forward", timed_forward)
        monkeypatch.setattr(Probe, "run", timed_run)
        for name in ("time.perf_counter", "selfdraft.progress.perf_counter"):
            monkeypatch.setattr(name, lambda: now[0])
        return lambda: now[0]

    return begin


@pytest.fixture
def engine() -> Engine:
    return Engine(pico("llama"), letter_tokenizer(), name="pico", profile=None, strategy="off")


FULL = pytest.mark.full


@pytest.mark.parametrize(
    "strategies", [["prune"], ["swift"], ["knn", "prune"], ["knapspec"], ["draft-verify", "prune"]]
)
@pytest.mark.parametrize(
    ("budget", "seconds"), [(90, 0.5), pytest.param(90, 0.1, marks=FULL), pytest.param(20, 0.02, marks=FULL)]
)
def test_the_budget_is_kept(clock: Clock, engine: Engine, strategies: list[str], budget: float, seconds: float) -> None:
    now = clock(seconds)
    calibrate(engine, PROMPTS, strategies, CalibrateOptions(budget))
    assert now() <= 1.1 * budget


@pytest.mark.parametrize("strategy", ["prune", "asd"])
def test_the_budget_is_kept_where_reading_takes_most_of_it(clock: Clock, strategy: str) -> None:
    """Prompts are read to write after them, for the probes, and by `asd`; the shortest in any case."""
    now, said = clock(0.1), []
    engine = Engine(pico("llama", max_position_embeddings=640), name="pico", profile=None, strategy="off")
    long = [
        Prompt(f"long{n}", "long", tokens=tuple(5 + (7 * n + place) % 90 for place in range(400))) for n in range(8)
    ]
    calibrate(engine, [*long, *PROMPTS[:2]], [strategy], CalibrateOptions(30), say=said.append)
    assert now() <= 1.1 * 30
    assert not any("more than the budget" in text for text in said)
    begin = now()
    calibrate(engine, long, [strategy], CalibrateOptions(4), say=said.append)
    assert now() - begin > 4
    assert re.search(r"that took \d+ s more than the budget \(a prompt of 400 tokens takes 2.0 s to read", said[-1])


@pytest.mark.full
@pytest.mark.parametrize("per_column", [0.4, 1.0])
def test_the_budget_is_kept_where_wide_passes_are_slow(clock: Clock, engine: Engine, per_column: float) -> None:
    """As on two cores, where verifying 8 tokens takes four plain passes."""
    now = clock(0.1, per_column)
    for strategy in ("prune", "uniform"):
        begin = now()
        calibrate(engine, PROMPTS, [strategy], CalibrateOptions(60, 64))
        assert now() - begin <= 1.1 * 60
    begin, method = now(), {"strategy": "uniform", "settings": {"uniform": {"ratio": 0.4}}}
    tune(engine, method, "confidence", PROMPTS, LookaheadOptions(budget_seconds=90))
    assert now() - begin <= 1.1 * 90


@pytest.mark.parametrize(
    ("budget", "seconds"), [(90, 0.2), pytest.param(90, 0.05, marks=FULL), pytest.param(20, 0.02, marks=FULL)]
)
@pytest.mark.parametrize("lookahead", ["confidence", "disco"])
def test_the_budget_of_a_lookahead_is_kept(
    clock: Clock, engine: Engine, lookahead: str, budget: float, seconds: float
) -> None:
    now, options = clock(seconds), LookaheadOptions(budget_seconds=budget)
    method = {"strategy": "uniform", "settings": {"uniform": {"ratio": 0.4}}}
    if lookahead == "disco":
        train_lookahead(engine, method, PROMPTS, options)
    else:
        tune(engine, method, lookahead, PROMPTS, options)
    assert now() <= 1.1 * budget


def test_a_budget_too_small_to_keep_is_refused(clock: Clock, engine: Engine) -> None:
    now = clock(2.0)
    with pytest.raises(OptionError, match=r"90 s are too few: a pass takes 2 s here, .* at least 3\d\d s"):
        calibrate(engine, PROMPTS, ["prune"], CalibrateOptions(90))
    assert now() < 30
    with pytest.raises(OptionError, match=r"too short .* at least \d{3}s"):
        tune(engine, {"strategy": "uniform"}, "confidence", PROMPTS, LookaheadOptions(budget_seconds=90))
    assert now() < 60


@pytest.mark.full
def test_texts_that_time_cuts_are_used_and_not_kept(clock: Clock, engine: Engine) -> None:
    """A larger budget writes them again, and fits again to whole ones."""
    clock(0.5)
    short = calibrate(engine, PROMPTS, ["prune"], CalibrateOptions(90, 4096)).artefacts["prune"].values
    assert not short["is_complete"]
    assert 0 < short["num_tokens"] < 2048
    whole = calibrate(engine, PROMPTS, ["prune"], CalibrateOptions(1e6, 4096, 0)).artefacts["prune"].values
    assert whole["is_complete"]
    assert whole["num_tokens"] > short["num_tokens"]


def test_a_step_is_begun_only_if_it_will_be_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("selfdraft.progress.perf_counter", lambda: now[0])
    steps, taken = Steps(Budget(100), 0.5), []
    for seconds in (10, 15, 20, 20):
        if not steps.has_time():
            break
        taken.append(seconds)
        now[0] += seconds
    assert taken == [10, 15, 20], "45 of 50 are spent, and 20 more would be too many"


@pytest.mark.full
def test_trials_of_one_strategy_leave_time_for_the_next(clock: Clock, engine: Engine) -> None:
    clock(0.1)
    said: list[str] = []
    profile = calibrate(engine, PROMPTS, ["uniform", "knapspec"], CalibrateOptions(150), say=said.append)
    assert all(profile.artefacts[name].values["trials"] for name in ("uniform", "knapspec"))
    assert not any("no time is left" in text for text in said)


@pytest.mark.parametrize("strategy", ["prune", pytest.param("uniform", marks=pytest.mark.full)])
def test_what_is_predicted_is_of_what_is_measured(clock: Clock, engine: Engine, strategy: str) -> None:
    """The same texts, lookahead, tree and baseline: where nothing but passes takes time, both are equal."""
    clock(0.1)
    settings: dict[str, Any] = {"prune": {"always": True}} if strategy == "prune" else {}
    trials = calibrate(engine, PROMPTS, [strategy], CalibrateOptions(120, 32, 1, settings=settings)).artefacts[strategy]
    assert any(trial["skip"] for trial in trials.values["trials"])
    for trial in trials.values["trials"]:
        assert trial["predicted"] == pytest.approx(trial["measured"], rel=0.05)


def test_no_prompt_is_begun_that_would_end_too_late(clock: Clock, engine: Engine) -> None:
    now = clock(0.1)
    plan = MeasurePlan(PROMPTS, {"uniform": {"strategy": "uniform"}}, max_new_tokens=16)
    found = Measurement(engine, plan, budget=Budget(30)).run()
    assert 1 < len(found.plain) < len(PROMPTS)
    assert now() <= 30


@pytest.mark.usefixtures("untimed")
@pytest.mark.parametrize(
    ("given", "words"), [("90s", "90s"), ("90", "90s"), ("10m", "10m"), ("1.5h", "1.5h"), (" 120 S", "120 S")]
)
def test_the_budget_is_told_as_given(
    folder: str, prompts: str, clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    given: str, words: str,
) -> None:  # fmt: skip
    clock(0.001)
    monkeypatch.setattr(
        "selfdraft.strategies.prune.Prune.fit", staticmethod(lambda kit, options: {"is_complete": False})
    )
    few = ["--tokens", "8", "--trial-prompts", "0"]
    assert main(["calibrate", folder, "--prompts", prompts, *few, "--budget", given]) == 0
    output = capsys.readouterr()
    assert f"prune: the budget of {words} ended the fit" in output.out
    assert f" s of the budget of {words}\n" in output.err


@pytest.mark.usefixtures("untimed")
def test_loading_is_part_of_the_budget(
    folder: str, prompts: str, clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = clock(0.001)
    late, load = [0.0], module.load_engine

    def slow(*values: Any, **options: Any) -> Any:
        late[0] += 60
        return load(*values, **options)

    monkeypatch.setattr(module, "load_engine", slow)
    monkeypatch.setattr("selfdraft.progress.perf_counter", lambda: now() + late[0])
    command = ["calibrate", folder, "--prompts", prompts, "--tokens", "8", "--trial-prompts", "0"]
    assert main([*command, "--budget", "100s"]) == 0
    assert "for at most 32 s" in capsys.readouterr().err, "four fifths of what loading left"
    assert main([*command, "--budget", "50s"]) == 2
    assert "loading the model took 60 s, and --budget 50s was given" in capsys.readouterr().err
