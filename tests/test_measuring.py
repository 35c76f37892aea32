"""`selfdraft.learn` and `selfdraft.measure_methods`: from Python what `calibrate` and `bench` do."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import selfdraft
from pico import letter_tokenizer, pico
from selfdraft import Engine, learn, measure_methods
from selfdraft.errors import OptionError, ProfileError, PromptError, SelfdraftError
from selfdraft.measure.figures import Figures
from selfdraft.profiles.profile import Profile
from selfdraft.profiles.store import Store
from selfdraft.types import Prompt

TEXTS = ["abcabc", "the-rain-in-spain", "0123456789", "defdef"]
SETTINGS = {"uniform": {"ratio": 0.3}}


@pytest.fixture
def engine(home: Path, untimed: None) -> Engine:
    """Built with a method of its own, which neither function may measure in place of what it is asked."""
    return Engine(copy.deepcopy(pico("llama")), letter_tokenizer(), drafter="lookup", strategy="uniform")


def test_learn_is_what_calibrate_does(engine: Engine) -> None:
    told: list[tuple[int, int | None, str]] = []
    said: list[str] = []
    profile = learn(
        engine, budget=60, prompts=TEXTS, num_tokens=96, progress=lambda *at: told.append(at), say=said.append
    )
    assert isinstance(profile, Profile)
    stored = Store().load(engine.knowledge.key)
    assert stored is not None
    assert stored.artefacts["prune"].values["frontier"] == profile.artefacts["prune"].values["frontier"]
    assert profile.artefacts["prune"].values["is_complete"]
    assert "letting the model continue 3 prompts" in said
    assert {"texts measured", "methods warmed up"} <= {what for *_, what in told}


def test_the_engine_goes_by_what_was_learned_and_keeps_its_method(engine: Engine) -> None:
    with pytest.raises(ProfileError, match="selfdraft calibrate"):
        engine.generate("abc", strategy="prune", drafter="self", max_new_tokens=4)
    profile = learn(engine, 60, prompts=TEXTS, num_tokens=96, num_trial_prompts=0)
    assert engine.knowledge.profile == profile
    assert engine.names()["drafter"] == "lookup"
    plain = engine.generate("abc", strategy="off", max_new_tokens=16)
    assert engine.generate("abc", strategy="prune", drafter="self", max_new_tokens=16).tokens == plain.tokens


def test_learning_again_finds_what_is_known(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"prompts": TEXTS, "num_tokens": 96, "num_trial_prompts": 0}
    first = learn(engine, 60, **options)
    said: list[str] = []
    second = learn(engine, 60, **options, say=said.append)
    assert "measuring what passes take" not in said
    assert second.latency == first.latency
    assert second.artefacts["prune"].values["frontier"] == first.artefacts["prune"].values["frontier"]


def test_learn_reads_our_prompts_and_settings(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def stand_in(bare: Engine, prompts: Any, strategies: Any, options: Any, **others: Any) -> Profile:
        asked.update(names=bare.names(), domains={prompt.domain for prompt in prompts}, options=options)
        return learned

    learned = learn(engine, 60, strategies=["uniform"], prompts=TEXTS[:1], num_trial_prompts=0)
    monkeypatch.setattr("selfdraft.measuring.encoded", lambda prompt, engine: prompt)  # they are long for a pico model
    monkeypatch.setattr("selfdraft.measuring.calibrate", stand_in)
    learn(engine, 30, settings=SETTINGS, again=True)
    assert asked["domains"] == {"code", "math", "chat"}
    assert asked["names"]["drafter"] == "self"
    assert (asked["options"].budget_seconds, asked["options"].settings, asked["options"].again) == (30, SETTINGS, True)


@pytest.mark.parametrize("budget", ["10m", 0, -1, True, float("nan")])
def test_a_budget_is_seconds(engine: Engine, budget: Any) -> None:
    with pytest.raises(OptionError, match=r"budget is a number of seconds above 0.*budget=600"):
        learn(engine, budget)
    with pytest.raises(OptionError, match="budget is a number of seconds above 0"):
        measure_methods(engine, TEXTS, ["uniform"], budget=budget)


def test_what_cannot_be_learned(engine: Engine) -> None:
    with pytest.raises(OptionError, match="nothing to learn for the strategy 'off'"):
        learn(engine, strategies=["off"])
    with pytest.raises(OptionError, match="unknown strategy 'pruned'"):
        learn(engine, strategies=["pruned"])
    with pytest.raises(PromptError, match="pass a list of prompts"):
        learn(engine, prompts="one text")


# ------------------------------------------------------------------------------------------------------- methods


def test_figures_by_name(engine: Engine) -> None:
    methods = {"mine": {"strategy": "uniform", "settings": SETTINGS}, "copied": {"drafter": "lookup"}}
    figures = measure_methods(engine, TEXTS, methods, max_new_tokens=12)
    assert list(figures) == ["off", "mine", "copied"]
    assert all(isinstance(one, Figures) for one in figures.values())
    assert {one.num_prompts for one in figures.values()} == {4}
    assert (figures["mine"].equal, figures["mine"].different) == (4, 0)
    assert figures["off"].speedup.value == 1.0
    assert figures["mine"].skip_ratio == 0.4  # of five layers
    assert figures["copied"].skip_ratio is None


def test_figures_are_short_to_read_and_whole_as_a_dict(engine: Engine) -> None:
    found = measure_methods(engine, TEXTS, ["lookup"], max_new_tokens=12)["lookup"]
    assert isinstance(found, selfdraft.Figures)
    number = r"\d+\.\d+"
    shown = (
        rf"Figures\(4 prompts, {number} tokens/s, speed-up {number} \[{number}, {number}\], texts: 4 equal, 0 ties, "
    )
    assert re.fullmatch(shown + r"0 different\)", repr(found))
    kept = json.loads(json.dumps(found.to_dict()))
    assert (kept["num_tokens"], kept["speedup"]["value"]) == (48, found.speedup.value)


def test_methods_by_their_names_and_progress(engine: Engine) -> None:
    told: list[str] = []
    figures = measure_methods(
        engine,
        TEXTS[:2],
        ["uniform", "lookup", "heuristic", "siblings"],
        max_new_tokens=8,
        temperature=0.7,
        seed=3,
        progress=lambda done, total, what: told.append(what),
    )
    assert list(figures) == ["off", "uniform", "lookup", "heuristic", "siblings"]
    assert sum(one.different for one in figures.values()) == 0
    assert told[-1] == "texts measured"


def test_prompts_of_every_kind(engine: Engine) -> None:
    prompts = [Prompt("mine", "chat", "abc"), "abc", [1, 2, 3]]
    assert measure_methods(engine, prompts, ["lookup"], max_new_tokens=4)["lookup"].num_prompts == 3
    bare = Engine(pico("llama"), profile=None)
    assert measure_methods(bare, [[1, 2, 3]], ["lookup"], max_new_tokens=4)["lookup"].num_prompts == 1


@pytest.mark.parametrize(
    ("methods", "options", "message"),
    [
        (["lookupp"], {}, "unknown method 'lookupp'. Did you mean 'lookup'"),
        ([], {}, r"name methods to measure beside 'off', which always is; got \[\]"),
        ({"off": {"strategy": "off"}}, {}, "which always is"),
        (["prune"], {}, "selfdraft calibrate"),
        ({"mine": {"stratgy": "uniform"}}, {}, "stratgy"),
        (["uniform"], {"runs": 0}, "runs must be a whole number of at least 1, got 0"),
        (["uniform"], {"max_new_tokens": 0}, "max_new_tokens"),
        (["uniform"], {"temperature": -1.0}, "temperature"),
    ],
)
def test_wrong_methods_are_refused_before_anything_is_measured(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, methods: Any, options: Any, message: str
) -> None:
    monkeypatch.setattr("selfdraft.measuring.run_whole", None)
    with pytest.raises(SelfdraftError, match=message):
        measure_methods(engine, TEXTS, methods, **options)


def test_both_are_imported_when_asked_for() -> None:
    """An engine, a decoder and a profile come without what learns and measures."""
    code = (
        "import sys, selfdraft; selfdraft.Engine, selfdraft.decoder, selfdraft.Profile\n"
        "heavy = ('selfdraft.measuring', 'selfdraft.calibrate.calibrate', 'selfdraft.measure.run')\n"
        "print([name in sys.modules for name in heavy])\n"
        "selfdraft.learn\n"
        "print([name in sys.modules for name in heavy])\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout.splitlines() == [str([False] * 3), str([True] * 3)]
    assert {"learn", "measure_methods", "Figures", "Profile"} <= set(selfdraft.__all__)
