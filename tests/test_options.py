"""What a caller may set: every name and value that does not exist is refused at the door, with what to type instead."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import selfdraft
from learned import knowledge
from pico import pico
from selfdraft.errors import OptionError
from selfdraft.options import GenerateOptions, NoOptions, describe, make, parse_settings, setting
from selfdraft.registry import (
    AXES,
    BENCH_ONLY,
    DEFAULTS,
    check_settings,
    find,
    in_use,
    options_for,
    read_settings,
    resolve,
    unused_settings,
)
from selfdraft.types import SkipSet

layers = st.frozensets(st.integers(0, 40))
SHARED = {
    *("__init__", "anchors", "base", "bayes", "domains", "elimination", "kmeans", "knapsack", "learned", "matching"),
    *("draft_switch", "failures", "kept_sets", "replanning", "swift_ranked", "swift_search", "timeline"),
}
"""What several methods use."""

# ----------------------------------------------------------------------------------------------------- skip sets


@given(layers, layers)
def test_a_skip_set_survives_being_written(attention, mlp):
    skip = SkipSet(attention, mlp)
    assert SkipSet.parse(str(skip)) == skip
    assert len(skip) == len(attention) + len(mlp)


@pytest.mark.parametrize(
    ("text", "attention", "mlp", "canonical"),
    [
        ("a3,a5-7,m4", {3, 5, 6, 7}, {4}, "a3,a5-7,m4"),
        (" m1 , a0,, ", {0}, {1}, "a0,m1"),
        ("a2,a1,a3,a2-3", {1, 2, 3}, set(), "a1-3"),
        ("m4-4", set(), {4}, "m4"),
        ("a1-2,a4", {1, 2, 4}, set(), "a1-2,a4"),
        ("", set(), set(), ""),
    ],
)
def test_reading_and_writing_skip_sets(text, attention, mlp, canonical):
    skip = SkipSet.parse(text)
    assert skip == SkipSet.of(attention, mlp)
    assert str(skip) == canonical


UNREADABLE = "separated by commas, layers counted from 0: a3,a5-7,m4"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((part, UNREADABLE) for part in ("3", "b3", "a", "a-1", "a1-", "a1-b2", "A3", "a3 m4", "a1.5", "am3")),
        ("m7-5", "'m7-5' in the skip set 'a1,m7-5' runs backwards; write m5-7"),
        ("a5", "names attention layer 5, but the model has 5 layers: use 0 to 4"),
        ("m9,m7,a0", "names MLP layer 7, but the model has 5 layers"),
    ],
)
def test_a_wrong_skip_set_is_refused(text, message):
    SkipSet.parse("a0-4,m0-4").check(5)
    with pytest.raises(OptionError, match=message) as caught:
        SkipSet.parse(f"a1,{text}").check(5)
    assert message != UNREADABLE or f"cannot read {text!r} in the skip set 'a1,{text}'" in str(caught.value)


def test_a_negative_layer_is_refused():
    with pytest.raises(OptionError, match="attention layer -1"):
        SkipSet.of([-1]).check(5)


# ------------------------------------------------------------------------------------------------------- options


@dataclass(frozen=True)
class Sample:
    ratio: float = setting(0.5, "a share", minimum=0.0, maximum=1.0)
    tokens: int = setting(4, "a count", minimum=1)
    most: int = setting(4, "a bounded count", maximum=9)
    free: float = setting(0.0, "any number")
    name: str = setting("x", "a text")
    eager: bool = setting(False, "a switch")
    limit: int | None = setting(None, "a count or nothing")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, Sample()),
        ({"ratio": "0.25", "tokens": "7"}, Sample(ratio=0.25, tokens=7)),
        ({"ratio": 1, "name": "3"}, Sample(ratio=1, name="3")),
        ({"eager": "True"}, Sample(eager=True)),
        ({"eager": "false"}, Sample()),
        ({"limit": "3"}, Sample(limit=3)),
        ({"free": "-1e3"}, Sample(free=-1000.0)),
    ],
    ids=str,
)
def test_options_are_made_from_values_and_text(values, expected):
    assert make(Sample, values, "sample", reads_text=True) == expected


@pytest.mark.parametrize("values", [{"ratio": "0.25"}, {"tokens": "7"}, {"eager": "true"}, {"limit": "3"}], ids=str)
def test_text_is_not_a_number_in_python(values):
    with pytest.raises(OptionError, match=f"got '{next(iter(values.values()))}'"):
        make(Sample, values, "sample")


def test_numbers_of_numpy_are_numbers():
    made = make(Sample, {"tokens": np.int64(7), "ratio": np.float32(0.5), "limit": np.uint8(3)}, "sample")
    assert made == Sample(tokens=7, ratio=0.5, limit=3)
    assert {type(value) for value in (made.tokens, made.ratio, made.limit)} == {int, float}
    with pytest.raises(OptionError, match=r"must be a whole number, got 1\.5"):
        make(Sample, {"tokens": np.float64(1.5)}, "sample")


BAD_OPTIONS = [
    (Sample, {"ratoi": 1}, "unknown option of it 'ratoi'. Did you mean 'ratio'? Known: eager, free, limit, most, name"),
    (Sample, {"zzz": 1}, "unknown option of it 'zzz'. Known: eager, "),
    (Sample, {"ratio": "much"}, "it.ratio must be a number, got 'much'"),
    (Sample, {"ratio": None}, "it.ratio must be a number, got None"),
    (Sample, {"ratio": True}, "it.ratio must be a number, got True"),
    (Sample, {"ratio": 1.1}, "it.ratio must be between 0 and 1, got 1.1"),
    (Sample, {"ratio": "-0.1"}, "it.ratio must be between 0 and 1, got -0.1"),
    (Sample, {"ratio": "nan"}, "it.ratio must be between 0 and 1, got nan"),
    (Sample, {"free": float("nan")}, "it.free must be a number, got nan"),
    (Sample, {"tokens": "1.5"}, "it.tokens must be a whole number, got '1.5'"),
    (Sample, {"tokens": 2.0}, "it.tokens must be a whole number, got 2.0"),
    (Sample, {"tokens": 0}, "it.tokens must be at least 1, got 0"),
    (Sample, {"tokens": -3}, "it.tokens must be at least 1, got -3"),
    (Sample, {"most": 10}, "it.most must be at most 9, got 10"),
    (Sample, {"name": 3}, "it.name must be text, got 3"),
    (Sample, {"eager": "yes"}, "it.eager must be true or false, got 'yes'"),
    (Sample, {"eager": 1}, "it.eager must be true or false, got 1"),
    (NoOptions, {"ratio": 1}, "it has no options, got ratio=1; leave it out"),
    (GenerateOptions, {"max_new_tokens": 0}, "generate.max_new_tokens must be at least 1, got 0"),
    (GenerateOptions, {"min_new_tokens": -1}, "generate.min_new_tokens must be at least 0, got -1"),
    (GenerateOptions, {"min_new_tokens": 9, "max_new_tokens": 8}, "9 is above max_new_tokens=8; lower one of them"),
    (GenerateOptions, {"temperature": -0.1}, "generate.temperature must be between 0 and 1000, got -0.1"),
    (GenerateOptions, {"top_k": -1}, "generate.top_k must be at least 0, got -1"),
    (GenerateOptions, {"top_p": 1.5}, "generate.top_p must be between 0 and 1, got 1.5"),
    (GenerateOptions, {"min_p": 1.5}, "generate.min_p must be between 0 and 1, got 1.5"),
    (GenerateOptions, {"repetition_penalty": 0.0}, "repetition_penalty must be between 0.001 and 1000, got 0.0"),
    (GenerateOptions, {"presence_penalty": 2.1}, "generate.presence_penalty must be between -2 and 2, got 2.1"),
    (GenerateOptions, {"frequency_penalty": "-3"}, "generate.frequency_penalty must be between -2 and 2, got -3.0"),
    (GenerateOptions, {"logprobs": 21}, "generate.logprobs must be between 0 and 20, got 21"),
    (GenerateOptions, {"logit_bias": "5"}, "must be a dict {ID: BIAS}, on the command line ID:BIAS,ID:BIAS, got '5'"),
    (GenerateOptions, {"logit_bias": "5:x"}, "generate.logit_bias must be a dict {ID: BIAS}, "),
    (GenerateOptions, {"logit_bias": 5}, "generate.logit_bias must be a dict {ID: BIAS}, "),
    (GenerateOptions, {"logit_bias": {-1: 2.0}}, "a token id in generate.logit_bias must be at least 0, got -1"),
    (GenerateOptions, {"logit_bias": {1.5: 2.0}}, "a token id in generate.logit_bias must be a whole number, got 1.5"),
    (GenerateOptions, {"logit_bias": {5: "2"}}, "generate.logit_bias of token 5 must be a number, got '2'"),
    (GenerateOptions, {"logit_bias": "5:inf"}, "logit_bias of token 5 must be between -10000 and 10000, got inf"),
    (GenerateOptions, {"logit_bias": "5:1,5:2"}, "generate.logit_bias has token 5 more than once; leave one out"),
    (GenerateOptions, {"seed": -1}, "generate.seed must be between 0 and 18446744073709551615, got -1"),
    (GenerateOptions, {"sequence": -1}, "generate.sequence must be between 0 and 2147483648, got -1"),
    (GenerateOptions, {"stop": ["a", ""]}, "a stop string must be text that is not empty, got ''; leave it out"),
    (GenerateOptions, {"max_tokens": 3}, "'max_tokens'. Did you mean 'max_new_tokens'? Known: cancel, "),
]


@pytest.mark.parametrize(("kind", "values", "message"), BAD_OPTIONS, ids=str)
def test_bad_options_are_refused(kind, values, message):
    with pytest.raises(OptionError) as caught:
        make(kind, values, "generate" if kind is GenerateOptions else "it", reads_text=True)
    assert message in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_options_describe_themselves():
    assert describe(Sample)[:2] == [("ratio", 0.5, "a share"), ("tokens", 4, "a count")]


def test_settings_are_read_from_the_command_line():
    texts = ["uniform.ratio=0.3", " fixed.skip = a3,m4=5 ", "fixed.tokens=3", "uniform.ratio=0.4"]
    assert parse_settings(texts) == {"uniform": {"ratio": "0.4"}, "fixed": {"skip": "a3,m4=5", "tokens": "3"}}
    assert read_settings(texts) == {"uniform": {"ratio": 0.4}, "fixed": {"skip": "a3,m4=5", "tokens": 3}}
    assert read_settings(["none.such=1", "uniform.such=1"]) == {"none": {"such": "1"}, "uniform": {"such": "1"}}
    with pytest.raises(OptionError, match=r"uniform\.ratio must be a number, got 'x'"):
        read_settings(["uniform.ratio=x"])


@pytest.mark.parametrize("text", ["uniform.ratio", "ratio=0.3", "uniform=0.3", ".ratio=1", "uniform.=1", "=", ""])
def test_unreadable_settings_are_refused(text):
    with pytest.raises(OptionError) as caught:
        parse_settings([text])
    expected = f"cannot read --set {text!r}; write METHOD.OPTION=VALUE, for example uniform.ratio=0.3"
    assert str(caught.value) == expected


def test_generate_options_are_normalised():
    assert make(GenerateOptions, {"stop": "end"}, "generate") == GenerateOptions(stop=("end",))
    made = make(GenerateOptions, {"stop": ["a", "b"], "processors": [print], "temperature": 0.5}, "generate")
    assert made == GenerateOptions(stop=("a", "b"), processors=(print,), temperature=0.5)


@pytest.mark.parametrize("given", [{7: 2, 5: -1.5}, [(5, -1.5), (7, 2.0)], [[7, 2], [5, -1.5]], "7:2,5:-1.5"], ids=str)
def test_a_bias_is_a_value_whatever_its_form(given):
    made = make(GenerateOptions, {"logit_bias": given}, "generate", reads_text=True)
    assert made.logit_bias == ((5, -1.5), (7, 2.0))
    assert hash(made) == hash(GenerateOptions(logit_bias={np.int64(5): np.float64(-1.5), 7: 2.0}))


def test_a_bias_outside_the_vocabulary_names_its_token():
    engine, wrong = selfdraft.Engine(pico("llama")), {"logit_bias": {5: 1.0, 4321: 1.0}}
    message = r"token id 4321 in logit_bias is outside the vocabulary; use ids from 0 to \d+"
    for call in (engine.generate, engine.stream):
        with pytest.raises(OptionError, match=message):
            call([3], **wrong)
    with pytest.raises(OptionError, match=message):
        engine.verify([3], [4], **wrong)
    with pytest.raises(OptionError, match=message):
        engine.compare([3], [4], [5], **wrong)


# ------------------------------------------------------------------------------------------------------ registry


@pytest.mark.parametrize(
    ("axis", "folder"), [("strategy", "strategies"), ("lookahead", "lookahead"), ("drafter", "drafters")]
)
def test_the_table_is_the_folder(axis, folder):
    files = {path.stem for path in (Path(selfdraft.__file__).parent / folder).glob("*.py")} - SHARED
    table = {**AXES[axis], **BENCH_ONLY.get(axis, {})}
    modules = [target.partition(":")[0] for target in table.values()]
    assert sorted(modules) == sorted(f"selfdraft.{folder}.{name}" for name in files)
    for name, module in zip(table, modules, strict=True):
        assert module.rpartition(".")[2] == name.replace("-", "_"), "a method's file has its name"


def test_every_registered_name_is_found_and_the_defaults():
    assert all(callable(find(axis, name)) for axis, table in AXES.items() for name in table)
    names = {"lookahead": "confidence", "drafter": "self", "tree": "chain", "acceptance": "coupled"}
    assert dict(DEFAULTS) == {"strategy": "auto", **names}


@pytest.mark.parametrize(
    ("chosen", "strategy"),
    [
        ({}, "auto"),
        ({"acceptance": "rejection"}, "auto"),
        ({"drafter": "lookup"}, "auto"),
        ({"lookahead": "fixed"}, "auto"),
        ({"strategy": "uniform", "tree": "siblings"}, "uniform"),
        ({"drafter": "lookup", "strategy": "off"}, "off"),
    ],
)
def test_who_names_no_strategy_leaves_it_open(chosen, strategy):
    assert resolve(chosen)["strategy"] == strategy
    assert resolve({}, chosen)["strategy"] == resolve(chosen, {})["strategy"] == strategy


@pytest.mark.parametrize(("axis", "name"), [(axis, name) for axis, table in BENCH_ONLY.items() for name in table])
def test_what_only_benchmarks_show_is_refused_with_the_reason(axis, name):
    with pytest.raises(OptionError, match=f"the {axis} '{name}' cannot generate: .*`selfdraft bench --preset"):
        find(axis, name)


def test_settings_reach_every_method_of_that_name():
    settings = {"fixed": {"skip": "a1", "tokens": 3}, "uniform": {"ratio": 0.5}}
    check_settings(settings)
    assert options_for("strategy", "fixed", settings).skip == "a1"
    assert options_for("lookahead", "fixed", settings).tokens == 3
    assert options_for("strategy", "uniform", settings).ratio == 0.5
    assert options_for("drafter", "lookup", settings) == find("drafter", "lookup").Options()


def test_the_fixed_strategy_needs_a_skip_set_of_the_model():
    fixed = find("strategy", "fixed")
    with pytest.raises(OptionError, match=r"needs a skip set.*--set fixed.skip=a3,a5-7,m4"):
        fixed(fixed.Options(), knowledge(5))
    with pytest.raises(OptionError, match="attention layer 5, but the model has 5 layers"):
        fixed(fixed.Options("a5"), knowledge(5))


# ------------------------------------------------------------------------------------------------ what is in use


@pytest.mark.parametrize(
    ("method", "unused"),
    [
        ({"settings": {"uniform": {"ratio": 0.3}}}, ["uniform.ratio"]),  # nothing that drafts is chosen
        ({"strategy": "uniform", "settings": {"uniform": {"ratio": 0.3}, "confidence": {"threshold": 0.5}}}, []),
        ({"settings": {"swift": {"window": 3}, "lookup": {"min_ngram": 1}}}, ["swift.window", "lookup.min_ngram"]),
        ({"drafter": "lookup", "settings": {"lookup": {"min_ngram": 1}}}, []),
        ({"strategy": "prune", "settings": {"siblings": {"lookup": 1}}}, []),  # its pairing
        ({"strategy": "prune", "tree": "chain", "settings": {"siblings": {"lookup": 1}}}, ["siblings.lookup"]),
        ({"strategy": "knn", "settings": {"prune": {"gain": 0.1}}}, []),  # what it runs
        ({"strategy": "knn", "settings": {"draft-verify": {"seed": 1}}}, ["draft-verify.seed"]),
        ({"strategy": "knn", "settings": {"knn": {"search": "draft-verify"}, "draft-verify": {"seed": 1}}}, []),
        ({"strategy": "fixed", "settings": {"fixed": {"skip": "a1", "tokens": 3}}}, ["fixed.tokens"]),
        ({"lookahead": "fixed", "settings": {"fixed": {"skip": "a1", "tokens": 3}}}, ["fixed.skip"]),
        ({"strategy": "off", "settings": {"confidence": {"threshold": 0.5}}}, ["confidence.threshold"]),
        ({"lookahead": object(), "settings": {"confidence": {"threshold": 0.5}}}, ["confidence.threshold"]),
    ],
)
def test_settings_that_nothing_reads(method, unused):
    assert [".".join(pair) for pair in unused_settings(method)] == unused
    kept = [f"{name}.{option}" for name, values in in_use(method)["settings"].items() for option in values]
    given = [f"{name}.{option}" for name, values in method["settings"].items() for option in values]
    assert kept == [name for name in given if name not in unused]


@pytest.mark.parametrize(
    ("method", "kept"),
    [
        ({"strategy": "off", "drafter": "lookup", "tree": "siblings", "acceptance": "rejection"}, ["acceptance"]),
        ({"strategy": "uniform", "drafter": "lookup"}, ["drafter"]),
        ({"drafter": "lookup"}, ["drafter"]),
    ],
)
def test_axes_that_off_does_not_use(method, kept):
    found = in_use(method)
    assert [axis for axis in AXES if axis in found and axis != "strategy"] == kept
    assert found.get("strategy") == method.get("strategy")


def test_what_a_call_leaves_open_is_as_the_engine_has_it():
    settings = {"prune": {"gain": 0.1}}
    assert unused_settings({"settings": settings})
    assert not unused_settings({"settings": settings}, {"strategy": "knn", "settings": {"swift": {"window": 3}}})


def test_knn_searches_with_the_settings_of_its_search():
    own = options_for("strategy", "knn", {"prune": {"gain": 0.1}})
    assert own.inner == find("strategy", "prune").Options(gain=0.1)
    assert own != options_for("strategy", "knn", {})
    assert "inner" not in {name for name, *_ in describe(type(own))}
    with pytest.raises(OptionError, match="unknown option of knn 'inner'"):
        check_settings({"knn": {"inner": "a"}})


def test_a_call_refuses_what_it_does_not_read():
    engine = selfdraft.Engine(pico("llama"), settings={"swift": {"window": 3}})  # for a call that chooses it
    message = r"swift.window is set, but nothing chosen reads it; add --strategy swift \(in Python: strategy='swift'\)"
    with pytest.raises(OptionError, match=message):
        engine.generate([3], max_new_tokens=1, settings={"swift": {"window": 3}})
    with pytest.raises(OptionError, match=message):
        selfdraft.decoder(settings={"swift": {"window": 3}})


def test_off_with_what_drafts_warns():
    engine = selfdraft.Engine(pico("llama"), drafter="lookup")
    with pytest.warns(UserWarning, match="strategy='off' decodes plainly: drafter='lookup' is not used"):
        selfdraft.Engine(pico("llama"), strategy="off", drafter="lookup")
    with pytest.warns(UserWarning, match="strategy='off' decodes plainly: drafter='lookup' is not used"):
        selfdraft.Engine(pico("llama"), strategy="off").generate([3], max_new_tokens=1, drafter="lookup")
    with pytest.warns(UserWarning, match="lookahead='fixed', tree='siblings' is not used"):
        engine.generate([3], max_new_tokens=1, strategy="off", lookahead="fixed", tree="siblings")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.generate([3], max_new_tokens=1, strategy="off")


@pytest.mark.parametrize("axis", AXES)
def test_a_name_of_another_axis_is_answered_with_its_flag(axis):
    other = "drafter" if axis != "drafter" else "strategy"
    name = "lookup" if axis != "drafter" else "prune"
    with pytest.raises(OptionError, match=rf"'{name}' is a {other}, not .*{axis}; use --{other} {name} \(in Python: "):
        find(axis, name)
