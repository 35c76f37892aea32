"""`draft-verify`: what its search finds on planted speeds, what it keeps, and how it goes on. No pass is timed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

import learned
from pico import NUM_LAYERS, pico
from selfdraft import Engine, OptionError, SkipSet
from selfdraft.calibrate.calibrate import CalibrateOptions, calibrate
from selfdraft.protocols import Knowledge
from selfdraft.strategies.draft_verify import DraftVerify, prompts_of
from selfdraft.strategies.uniform import spread
from selfdraft.types import OFF, Plan, Prompt
from test_calibrate import PROMPTS

IN_TURN = [Prompt(f"{domain}{n}", domain, tokens=(n,)) for n in range(4) for domain in ("chat", "code", "maths")]
IDLE = SkipSet.parse("a3-6,m4,m7-9").numbers
PLAIN_SPEED = 100.0


def pays(skip: SkipSet) -> float:
    """The idle sub-layers cost seconds and nothing else; all others are missed."""
    idle, needed = len(skip.numbers & IDLE), len(skip.numbers - IDLE)
    return 90 + 5 * idle - 7 * needed


def never_pays(skip: SkipSet) -> float:
    return 50 + pays(skip) / 1000


class PlantedKit:
    """Ten layers, speeds by the skip set; what is asked for is noted down."""

    latency = learned.latency(num_layers=10)
    prompts = IN_TURN

    def __init__(self, speed: Callable[[SkipSet], float] = pays, known: Any = None, num_steps: int = 10**6) -> None:
        """Time is up after `num_steps`."""
        self._speed, self.known, self._num_steps = speed, known or {}, num_steps
        self.done: list[Mapping[str, Any]] = []
        self.asked: list[tuple[Mapping[str, Any], list[str], int]] = []
        self.shares: list[float] = []

    def tokens_per_second(self, method: Mapping[str, Any], prompts: Sequence[Prompt], num_tokens: int) -> float:
        self.asked.append((method, [prompt.id for prompt in prompts], num_tokens))
        if method == {"strategy": "off"}:
            return PLAIN_SPEED
        return self._speed(SkipSet.parse(method["settings"]["fixed"]["skip"]))

    def keep(self, found: Mapping[str, Any]) -> None:
        self.done.append(json.loads(json.dumps(found)))
        self._num_steps -= 1

    def has_time(self) -> bool:
        return self._num_steps > 0

    def progress(self, share: float) -> None:
        self.shares.append(share)


def fit(kit: Any, **options: Any) -> dict[str, Any]:
    """`kit`: a PlantedKit, which has what this fit asks for."""
    return DraftVerify.fit(kit, DraftVerify.Options(**options))


# ------------------------------------------------------------------------------------------------ the fit


def test_it_finds_what_pays() -> None:
    kit = PlantedKit()
    found = fit(kit, iterations=60)["sets"]["mixed"]
    layers = spread(10, 0.5)
    first = SkipSet.of(layers, layers)
    assert [step["skip"] for step in kit.done[:2]] == ["", str(first)]
    assert found["tokens_per_second"] == pays(SkipSet.parse(found["skip"])) > max(pays(first), PLAIN_SPEED)
    assert (found["plain"], found["num_tried"], found["is_complete"]) == (PLAIN_SPEED, 60, True)
    assert len(kit.done) == len({step["skip"] for step in kit.done}) == 61, "plain decoding, then every set once"
    assert kit.shares == [number / 60 for number in range(1, 61)]


def test_how_it_measures() -> None:
    kit = PlantedKit()
    fit(kit, iterations=20, num_tokens=7)
    warm_up, plain, *others = kit.asked
    assert warm_up == ({"strategy": "off"}, ["chat0"], 7)
    assert plain[0] == {"strategy": "off"}
    for method, ids, num_tokens in others:
        skip = SkipSet.parse(method["settings"]["fixed"]["skip"])
        assert method == {
            "strategy": "fixed",
            "settings": {"fixed": {"skip": str(skip)}},
            "lookahead": "adaptive",
            "tree": "chain",
        }
        assert (ids, num_tokens) == (plain[1], 7)
        assert skip.numbers
        assert skip.numbers.isdisjoint({0, 1}), "layer 0 stays"


@pytest.mark.parametrize(
    ("calibrate_on", "count", "ids"),
    [
        ("mixed", 5, ["chat0", "code0", "maths0", "chat1", "code1"]),
        ("first", 3, ["chat0", "chat1", "chat2"]),
        ("first", 8, ["chat0", "chat1", "chat2", "chat3"]),
    ],
)
def test_the_prompts(calibrate_on: str, count: int, ids: list[str]) -> None:
    assert [prompt.id for prompt in prompts_of(IN_TURN, calibrate_on, count)] == ids
    kit = PlantedKit()
    fit(kit, calibrate_on=calibrate_on, num_prompts=count, iterations=2)
    assert all(asked == ids for _, asked, _ in kit.asked[1:])


def test_the_other_set_is_kept() -> None:
    found = fit(PlantedKit(), iterations=3)
    both = fit(PlantedKit(known=found), iterations=4, calibrate_on="first")
    assert both["sets"]["mixed"] == found["sets"]["mixed"]
    assert both["sets"]["first"]["num_tried"] == 4
    assert list(fit(PlantedKit(known={"sets": "damaged"}), iterations=2)["sets"]) == ["mixed"]


@pytest.mark.parametrize("num_before", [0, 1, 2, 9, 25])
def test_an_interrupted_fit_goes_on_as_it_would_have(num_before: int) -> None:
    whole = PlantedKit()
    expected = fit(whole, iterations=30, seed=5)
    resumed = PlantedKit()
    resumed.done = list(whole.done[:num_before])
    assert fit(resumed, iterations=30, seed=5) == expected
    assert resumed.done == whole.done
    assert len(resumed.asked) == len(whole.asked) - num_before - (num_before > 0)


def test_time_ends_it() -> None:
    kit = PlantedKit(num_steps=6)
    found = fit(kit)["sets"]["mixed"]
    assert (found["num_tried"], found["is_complete"]) == (5, False)
    nothing_tried = fit(PlantedKit(num_steps=1))["sets"]["mixed"]
    assert (nothing_tried["skip"], nothing_tried["num_tried"], nothing_tried["is_complete"]) == ("", 0, False)


@pytest.mark.parametrize(("num_layers", "num_sets"), [(1, 0), (2, 3), (3, 15)])
def test_small_models_are_searched_whole(num_layers: int, num_sets: int) -> None:
    kit = PlantedKit()
    kit.latency = learned.latency(num_layers=num_layers)
    found = fit(kit)["sets"]["mixed"]
    assert (found["num_tried"], found["is_complete"]) == (num_sets, True)


# ------------------------------------------------------------------------------------------------ the strategy


def test_the_set_is_the_plan() -> None:
    sets = {**learned.SETS, "first": {"skip": "m3"}}
    knowledge = Knowledge(NUM_LAYERS, learned.latency, lambda name, *told: {"sets": sets})
    for calibrate_on, skip in [("mixed", "a1-2,m2"), ("first", "m3")]:
        strategy = DraftVerify(DraftVerify.Options(calibrate_on), knowledge)
        assert strategy.known_plans == (Plan(SkipSet.parse(skip)),)


def test_where_plain_decoding_was_fastest_nothing_is_drafted() -> None:
    found = fit(PlantedKit(never_pays), iterations=10)
    assert found["sets"]["mixed"]["skip"] == ""
    assert found["sets"]["mixed"]["tokens_per_second"] == PLAIN_SPEED
    knowledge = Knowledge(10, learned.latency, lambda name, *told: found)
    assert DraftVerify(DraftVerify.Options(), knowledge).known_plans == (OFF,)


def test_what_to_calibrate_on_is_checked() -> None:
    with pytest.raises(OptionError) as caught:
        Engine(pico("llama"), settings={"draft-verify": {"calibrate_on": "frist"}})
    expected = "unknown value of draft-verify.calibrate_on 'frist'. Did you mean 'first'? Known: first, mixed"
    assert str(caught.value) == expected


@pytest.mark.usefixtures("home", "untimed")
def test_calibration_keeps_both_sets() -> None:
    engine = Engine(pico("llama"), name="pico", profile=None, strategy="off")
    for calibrate_on in ("mixed", "first"):
        own = {"calibrate_on": calibrate_on, "iterations": 3, "num_tokens": 4}
        options = CalibrateOptions(600, 8, 0, settings={"draft-verify": own})
        profile = calibrate(engine, PROMPTS, ["draft-verify"], options)
    values = profile.artefacts["draft-verify"].values
    assert values["is_complete"]
    assert list(values["sets"]) == ["mixed", "first"]
    for found in values["sets"].values():
        assert (found["num_tried"], found["is_complete"]) == (3, True)
        assert found["tokens_per_second"] >= found["plain"] > 0
    plain = engine.generate([5, 6, 7], max_new_tokens=12)
    assert engine.generate([5, 6, 7], max_new_tokens=12, strategy="draft-verify").tokens == plain.tokens
