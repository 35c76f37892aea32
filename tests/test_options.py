"""What a caller may set: every name and value that does not exist is refused at the door, with what to type instead."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import selfdraft
from learned import knowledge
from selfdraft.errors import OptionError
from selfdraft.options import GenerateOptions, NoOptions, describe, make, parse_settings, setting
from selfdraft.registry import AXES, DEFAULTS, check_settings, find, options_for
from selfdraft.types import SkipSet

layers = st.frozensets(st.integers(0, 40))
SHARED = {
    *("__init__", "anchors", "base", "bayes", "domains", "elimination", "kmeans", "knapsack", "learned", "matching"),
    *("draft_switch", "oracle", "replanning", "swift_search", "timeline"),
}
"""What several methods use."""
METHOD_AXES = ("strategy", "lookahead", "drafter")

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


@pytest.mark.parametrize("part", ["3", "b3", "a", "a-1", "a1-", "a1-b2", "A3", "a3 m4", "a1.5", "am3"])
def test_an_unreadable_skip_set_is_refused(part):
    with pytest.raises(OptionError, match="separated by commas, layers counted from 0: a3,a5-7,m4") as caught:
        SkipSet.parse(f"a1,{part}")
    assert f"cannot read {part!r} in the skip set 'a1,{part}'" in str(caught.value)


def test_a_backward_range_is_refused():
    with pytest.raises(OptionError, match="'m7-5' in the skip set 'a1,m7-5' runs backwards; write m5-7"):
        SkipSet.parse("a1,m7-5")


@pytest.mark.parametrize(("text", "named"), [("a5", "attention layer 5"), ("m9,m7,a0", "MLP layer 7")])
def test_a_layer_outside_the_model_is_refused(text, named):
    SkipSet.parse("a0-4,m0-4").check(5)
    with pytest.raises(OptionError, match=f"names {named}, but the model has 5 layers: use 0 to 4"):
        SkipSet.parse(text).check(5)


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
    assert make(Sample, values, "sample") == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ratoi": 1}, "unknown option of sample 'ratoi'. Did you mean 'ratio'? Known: eager, free, limit, most, name"),
        ({"zzz": 1}, "unknown option of sample 'zzz'. Known: eager, "),
        ({"ratio": "much"}, "sample.ratio must be a number, got 'much'"),
        ({"ratio": None}, "sample.ratio must be a number, got None"),
        ({"ratio": True}, "sample.ratio must be a number, got True"),
        ({"ratio": 1.1}, "sample.ratio must be between 0 and 1, got 1.1"),
        ({"ratio": "-0.1"}, "sample.ratio must be between 0 and 1, got -0.1"),
        ({"ratio": "nan"}, "sample.ratio must be between 0 and 1, got nan"),
        ({"free": float("nan")}, "sample.free must be a number, got nan"),
        ({"tokens": "1.5"}, "sample.tokens must be a whole number, got '1.5'"),
        ({"tokens": 2.0}, "sample.tokens must be a whole number, got 2.0"),
        ({"tokens": 0}, "sample.tokens must be at least 1, got 0"),
        ({"tokens": -3}, "sample.tokens must be at least 1, got -3"),
        ({"most": 10}, "sample.most must be at most 9, got 10"),
        ({"name": 3}, "sample.name must be text, got 3"),
        ({"eager": "yes"}, "sample.eager must be true or false, got 'yes'"),
        ({"eager": 1}, "sample.eager must be true or false, got 1"),
    ],
    ids=str,
)
def test_bad_options_are_refused(values, message):
    with pytest.raises(OptionError) as caught:
        make(Sample, values, "sample")
    assert message in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_a_method_without_options_says_so():
    with pytest.raises(OptionError, match="off has no options, got ratio=1; leave it out"):
        make(NoOptions, {"ratio": 1}, "off")


def test_options_describe_themselves():
    assert describe(Sample)[:2] == [("ratio", 0.5, "a share"), ("tokens", 4, "a count")]


def test_settings_are_read_from_the_command_line():
    texts = ["uniform.ratio=0.3", " fixed.skip = a3,m4=5 ", "fixed.tokens=3", "uniform.ratio=0.4"]
    assert parse_settings(texts) == {"uniform": {"ratio": "0.4"}, "fixed": {"skip": "a3,m4=5", "tokens": "3"}}


@pytest.mark.parametrize("text", ["uniform.ratio", "ratio=0.3", "uniform=0.3", ".ratio=1", "uniform.=1", "=", ""])
def test_unreadable_settings_are_refused(text):
    with pytest.raises(OptionError) as caught:
        parse_settings([text])
    assert str(caught.value) == (
        f"cannot read --set {text!r}; write METHOD.OPTION=VALUE, for example uniform.ratio=0.3"
    )


# ---------------------------------------------------------------------------------------------- generate options


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_new_tokens": 0}, "generate.max_new_tokens must be at least 1, got 0"),
        ({"max_new_tokens": -5}, "generate.max_new_tokens must be at least 1, got -5"),
        ({"max_new_tokens": 5.0}, "generate.max_new_tokens must be a whole number, got 5.0"),
        ({"min_new_tokens": -1}, "generate.min_new_tokens must be at least 0, got -1"),
        ({"min_new_tokens": 9, "max_new_tokens": 8}, "min_new_tokens=9 is above max_new_tokens=8; lower one of them"),
        ({"temperature": -0.1}, "generate.temperature must be between 0 and 1000, got -0.1"),
        ({"temperature": float("nan")}, "generate.temperature must be between 0 and 1000, got nan"),
        ({"top_k": -1}, "generate.top_k must be at least 0, got -1"),
        ({"top_p": 1.5}, "generate.top_p must be between 0 and 1, got 1.5"),
        ({"min_p": "half"}, "generate.min_p must be a number, got 'half'"),
        ({"repetition_penalty": 0.0}, "generate.repetition_penalty must be between 0.001 and 1000, got 0.0"),
        ({"seed": -1}, "generate.seed must be between 0 and 18446744073709551615, got -1"),
        ({"sequence": -1}, "generate.sequence must be between 0 and 2147483648, got -1"),
        ({"stop": ["a", ""]}, "a stop string must be text that is not empty, got ''; leave it out"),
        ({"max_tokens": 3}, "unknown option of generate 'max_tokens'. Did you mean 'max_new_tokens'? Known: cancel, "),
    ],
    ids=str,
)
def test_bad_generate_options_are_refused(values, message):
    with pytest.raises(OptionError) as caught:
        make(GenerateOptions, values, "generate")
    assert message in str(caught.value)


def test_generate_options_are_normalised():
    assert make(GenerateOptions, {"stop": "end"}, "generate").stop == ("end",)
    assert make(GenerateOptions, {"stop": ["a", "b"], "processors": [print]}, "generate") == GenerateOptions(
        stop=("a", "b"), processors=(print,)
    )
    assert make(GenerateOptions, {"temperature": "0.5", "max_new_tokens": "3"}, "generate") == GenerateOptions(
        temperature=0.5, max_new_tokens=3
    )


# ------------------------------------------------------------------------------------------------------ registry


@pytest.mark.parametrize(
    ("axis", "folder"), [("strategy", "strategies"), ("lookahead", "lookahead"), ("drafter", "drafters")]
)
def test_the_table_is_the_folder(axis, folder):
    files = {path.stem for path in (Path(selfdraft.__file__).parent / folder).glob("*.py")} - SHARED
    modules = [target.partition(":")[0] for target in AXES[axis].values()]
    assert sorted(modules) == sorted(f"selfdraft.{folder}.{name}" for name in files)
    for name, module in zip(AXES[axis], modules, strict=True):
        assert module.rpartition(".")[2] == name.replace("-", "_"), "a method's file has its name"


@pytest.mark.parametrize("axis", AXES)
def test_every_registered_name_is_found_and_the_default_is_one(axis):
    assert all(callable(find(axis, name)) for name in AXES[axis])
    assert DEFAULTS[axis] in AXES[axis]


def test_the_defaults():
    assert dict(DEFAULTS) == {
        "strategy": "uniform",
        "lookahead": "confidence",
        "drafter": "self",
        "tree": "chain",
        "acceptance": "coupled",
    }


@pytest.mark.parametrize(
    ("axis", "name", "near"),
    [
        ("strategy", "unifrom", "uniform"),
        ("lookahead", "confidance", "confidence"),
        ("drafter", "lokup", "lookup"),
        ("acceptance", "couple", "coupled"),
        ("strategy", "zzz", None),
    ],
)
def test_an_unknown_name_is_refused(axis, name, near):
    with pytest.raises(OptionError) as caught:
        find(axis, name)
    hint = f" Did you mean {near!r}?" if near else ""
    assert str(caught.value) == f"unknown {axis} {name!r}.{hint} Known: {', '.join(sorted(AXES[axis]))}"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"unifrom": {"ratio": 1}}, "unknown method in the settings 'unifrom'. Did you mean 'uniform'? Known: "),
        ({"coupled": {"x": 1}}, "unknown method in the settings 'coupled'."),
        ({"uniform": {"ration": 1}}, "unknown option of uniform 'ration'. Did you mean 'ratio'? Known: ratio"),
        ({"fixed": {"tokns": 1}}, "unknown option of fixed 'tokns'. Did you mean 'tokens'? Known: skip, tokens"),
        ({"off": {"ratio": 1}}, "off has no options, got 'ratio'; leave it out"),
    ],
    ids=str,
)
def test_unknown_settings_are_refused(settings, message):
    with pytest.raises(OptionError) as caught:
        check_settings(settings)
    assert message in str(caught.value)


def test_settings_reach_every_method_of_that_name():
    settings = {"fixed": {"skip": "a1", "tokens": "3"}, "uniform": {"ratio": "0.5"}}
    check_settings(settings)
    assert options_for("strategy", "fixed", settings).skip == "a1"
    assert options_for("lookahead", "fixed", settings).tokens == 3
    assert options_for("strategy", "uniform", settings).ratio == 0.5
    assert options_for("drafter", "lookup", settings) == find("drafter", "lookup").Options()


@pytest.mark.parametrize(
    ("axis", "method", "values", "message"),
    [
        ("strategy", "uniform", {"ratio": -0.1}, "uniform.ratio must be between 0 and 1, got -0.1"),
        ("lookahead", "fixed", {"tokens": -1}, "fixed.tokens must be at least 1, got -1"),
        ("lookahead", "confidence", {"max_tokens": 0}, "confidence.max_tokens must be at least 1, got 0"),
        ("lookahead", "confidence", {"threshold": "nan"}, "confidence.threshold must be between 0 and 1, got nan"),
        ("drafter", "lookup", {"max_ngram": -2}, "lookup.max_ngram must be at least 1, got -2"),
    ],
)
def test_settings_out_of_range_are_refused(axis, method, values, message):
    with pytest.raises(OptionError) as caught:
        options_for(axis, method, {method: values})
    assert message in str(caught.value)


def test_the_fixed_strategy_needs_a_skip_set_of_the_model():
    fixed = find("strategy", "fixed")
    with pytest.raises(OptionError, match=r"needs a skip set.*--set fixed.skip=a3,a5-7,m4"):
        fixed(fixed.Options(), knowledge(5))
    with pytest.raises(OptionError, match="attention layer 5, but the model has 5 layers"):
        fixed(fixed.Options("a5"), knowledge(5))
