"""`selfdraft.learn` and `selfdraft.measure_methods`: from Python what `calibrate` and `bench` do."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

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


@pytest.mark.full
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


@pytest.mark.parametrize("budget", ["10m", 0, -1, True, float("nan"), float("inf")])
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
        (["uniform"], {"runs": 0}, "runs must be at least 1, got 0"),
        (["uniform"], {"max_new_tokens": 0}, "max_new_tokens"),
        (["uniform"], {"temperature": -1.0}, "temperature"),
        (None, {}, r"methods must be names like \['lookup'\] or keywords of Engine .*, got None"),
        ({"a": None}, {}, r"a method must be a dict like \{'drafter': 'lookup'\}, got None"),
        ({"a": {5: 5}}, {}, "unknown option of Engine '5'"),
        ({"a": {"lookahead": []}}, {}, r"lookahead must be a name .*, got \[\]"),
        ({"a": {"lookahead": "oracle", "drafer": "self"}}, {}, "Did you mean 'drafter'"),
        ({5: {}}, {}, "the name of a method must be text, got 5"),
        ([["lookup"]], {}, r"the name of a method must be text, got \['lookup'\]"),
        (["rejection"], {}, "'rejection' is an acceptance, which drafts nothing by itself; pass methods={'mine': {'dr"),
        (["uniform"], {"runs": True}, "runs must be a whole number, got True"),
        (["uniform"], {"max_new_tokens": "8"}, "max_new_tokens must be a whole number, got '8'"),
        (["uniform"], {"progress": 5}, r"progress must be a function \(done, total, what\), got 5"),
        (["uniform"], {"progress": lambda: None}, "progress must be .*; it is called with 3 arguments"),
        (["uniform"], {"max_tokens": 8}, "option of measure_methods 'max_tokens'. Did you mean 'max_new_tokens'"),
    ],
)
def test_wrong_methods_are_refused_before_anything_is_measured(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, methods: Any, options: Any, message: str
) -> None:
    monkeypatch.setattr("selfdraft.measuring.run_whole", None)
    with pytest.raises(SelfdraftError, match=message):
        measure_methods(engine, TEXTS, methods, **options)


@pytest.mark.parametrize("methods", ["lookup", {"lookup": "lookup"}, {"lookup": {"drafter": "lookup"}}, ("lookup",)])
def test_a_method_by_its_name(engine: Engine, methods: Any) -> None:
    figures = measure_methods(engine, TEXTS[:1], methods, max_new_tokens=np.int64(4), seed=None, temperature=0.9)
    assert list(figures) == ["off", "lookup"]
    assert figures["lookup"].different == 0, "all drew with one seed"


@pytest.mark.parametrize("wrap", [torch.tensor, np.array, list, lambda rows: {"input_ids": rows}])
def test_token_ids_in_every_form(engine: Engine, wrap: Any) -> None:
    rows = wrap([[1, 2, 3], [4, 5, 6]])
    assert measure_methods(engine, rows, ["lookup"], max_new_tokens=4)["off"].num_prompts == 2


NO_LEARNING: list[tuple[dict[str, Any], str]] = [
    ({"strategies": None}, r"strategies must be a list of names like \['prune'\], got None"),
    ({"strategies": []}, r"strategies must be .*, got \[\]"),
    ({"strategies": [5]}, "unknown strategy '5'"),
    ({"num_tokens": "x"}, "num_tokens must be a whole number, got 'x'"),
    ({"num_tokens": -1}, "num_tokens must be at least 1, got -1"),
    ({"num_trial_prompts": -1}, "num_trial_prompts must be at least 0, got -1"),
    ({"again": 5}, "again must be true or false, got 5"),
    ({"settings": 0}, "settings must be a dict of dicts"),
    ({"settings": {"prune": {"x": 1}}}, "unknown option of prune 'x'|prune has no options"),
    ({"progress": 5}, "progress must be a function .*, got 5"),
    ({"say": 5}, r"say must be a function \(text\), got 5"),
    ({"stratgies": ["prune"]}, "option of learn 'stratgies'. Did you mean 'strategies'"),
    ({"budget": 1e-6}, r"^0 s are too few: a pass takes .* s here.* Give a budget of at least [1-9]\d* s$"),
]


@pytest.mark.parametrize(("options", "message"), NO_LEARNING, ids=lambda value: str(value)[:40])
def test_wrong_options_of_learn(engine: Engine, options: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        learn(engine, **{"prompts": TEXTS, **options})


@pytest.mark.parametrize("junk", [None, 5, "gpt2", pico("llama"), Engine], ids=lambda value: str(value)[:20])
def test_both_need_an_engine(junk: Any) -> None:
    with pytest.raises(OptionError, match=r"learn needs an engine, got .*; pass an Engine\(model, tokenizer\)"):
        learn(junk)
    with pytest.raises(OptionError, match="measure_methods needs an engine"):
        measure_methods(junk, TEXTS, ["lookup"])


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (None, "pass a list of prompts: .*, got None"),
        (5, "pass a list of prompts: .*, got 5"),
        (iter(TEXTS), "pass a list of prompts"),
        (b"abc", "pass a list of prompts"),
        ([], r"pass a list of prompts: .*, got \[\]"),
        ([["a", "b"]], "prompt-1 is one text; pass its own prompt instead of a list of 2 prompts"),
        ([1, 2], "a prompt must be text, a list of token ids or a list of messages, got 1"),
        ([{"role": "user", "content": "a"}], "a message belongs in a list of messages"),
        (torch.ones(2, 2), "must hold whole numbers"),
        ({"text": ["a"]}, "a prompt must be text"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Iterator) else str(value)[:30],
)
def test_what_prompts_are_not(engine: Engine, prompts: Any, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        measure_methods(engine, prompts, ["lookup"])
    if prompts is not None:
        with pytest.raises(PromptError, match=message if not hasattr(prompts, "__next__") else "pass a list"):
            learn(engine, prompts=prompts)


@pytest.mark.full
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
