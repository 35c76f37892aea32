"""SWIFT's search on planted scores, and the clock that tells whether drafting pays. No model, no time."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from selfdraft.strategies.bayes import Point, Search
from selfdraft.strategies.draft_switch import GLANCE, MAX_RETRY, RETRY, TRIAL, DraftSwitch
from selfdraft.strategies.swift_search import SNAPSHOTS, Optimisation, SwiftOptions, uniform

NUM_LAYERS = 12
UNIVERSE = set(range(2, 2 * NUM_LAYERS - 2))
IDLE = frozenset(range(3, 13))
"""As many sub-layers as ratio 0.45 skips."""
ENOUGH_TOKENS = 384


def planted(point: Point) -> float:
    return len(point & IDLE) / len(IDLE)


def begun(paper: bool = False, **options: Any) -> Optimisation:
    usual = {"enough": 1.0, "patience": 10**6, "max_steps": 10**6, "candidates": 0 if paper else 4}
    return Optimisation(NUM_LAYERS, SwiftOptions(paper=paper, **{**usual, **options}).rules)


def go_on(search: Optimisation, num_steps: int, score: Callable[[Point], float] = planted) -> list[list[Point]]:
    """Until it has made this number of steps, or is over: what it asked for, pass by pass."""
    asked = []
    while not search.is_over and search.step < num_steps:
        points = search.candidates()
        if not points:
            break
        asked.append(points)
        scores = [score(point) for point in points]
        search.judge(points, scores, scores if search._options.held_out else [], 32)
    return asked


both = pytest.mark.parametrize("paper", [True, False], ids=["paper", "ours"])


# ------------------------------------------------------------------------------------------------ what is asked for


@both
def test_it_begins_uniform_and_keeps_its_size(paper: bool) -> None:
    search = begun(paper)
    assert search.skipped == uniform(NUM_LAYERS, 0.45)
    assert len(search.skipped) == 10
    asked = go_on(search, 80)
    assert asked[0][0] == uniform(NUM_LAYERS, 0.45)
    candidates = [point for points in asked for point in (points if paper else points[1:])]
    assert len(candidates) == len(set(candidates)) == 80, "nothing twice"
    assert all(len(point) == 10 for point in candidates)
    assert set().union(*candidates) <= UNIVERSE, "the first and the last layer run"
    assert {len(points) for points in asked} == ({1} if paper else {5})


@both
@pytest.mark.parametrize("interval", [25, 7])
def test_every_so_many_steps_are_bayesian(paper: bool, interval: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Point | None] = []
    suggest = Search.suggest

    def noted(self: Search, size: int | None) -> Point | None:
        calls.append(suggest(self, size))
        return calls[-1]

    monkeypatch.setattr(Search, "suggest", noted)
    search = begun(paper, interval=interval)
    go_on(search, 100)
    asked = [point for point, _ in search._search.observations]
    assert calls == asked[interval - 1 :: interval]
    assert len(calls) == 100 // interval


def test_ours_looks_near_the_set_in_use() -> None:
    """The paper's candidates are random: of ten members some four differ."""
    distances = {}
    for paper in (True, False):
        search = begun(paper, interval=10**6)
        first = search.skipped
        asked = go_on(search, 80, lambda point, first=first: float(point == first))
        found = [len(first - point) for points in asked for point in points if point != first]
        distances[paper] = sum(found) / len(found)
    assert distances[False] < 2.5 < 3.5 < distances[True]


@both
def test_where_every_set_was_scored_it_is_over(paper: bool) -> None:
    search = Optimisation(5, SwiftOptions(paper=paper, enough=1.0, candidates=3).rules)
    go_on(search, 1000, lambda point: 0.5)
    assert search.is_over
    assert search.candidates() == []
    assert len({point for point, _ in search._search.observations}) == 15, "four of six"


def test_where_nothing_can_be_skipped_there_is_no_search() -> None:
    for num_layers, ratio in ((1, 0.9), (2, 0.45), (10, 0.0)):
        search = Optimisation(num_layers, SwiftOptions(ratio=ratio))
        assert (search.skipped, search.phase, search.progress) == (frozenset(), "accelerate", 1.0)


# ------------------------------------------------------------------------------------------------ what is believed


def test_the_papers_rule_keeps_the_best_ever() -> None:
    search = begun(paper=True)
    scores = iter([0.3, 0.5, 0.5, 0.4, 0.6, 0.1, 0.59])
    asked, news = [], []
    for score in scores:
        points = search.candidates()
        asked += points
        news.append(search.judge(points, [score]))
    assert (search.skipped, search.matchness) == (asked[4], 0.6)
    assert news == [False, True, False, False, True, False, False], "the first is the set in use already"
    assert search.num_idle == 2


@pytest.mark.parametrize(
    ("searched", "held_out", "taken", "matchness"),
    [
        ([0.4, 0.9, 0.5], [0.6, 0.59, 0.9], 0, 0.6),  # worse on tokens that it was not chosen by
        ([0.4, 0.9, 0.5], [0.6, 0.6, 0.9], 1, 0.6),
        ([0.4, 0.5, 0.9], [0.6, 0.9, 0.7], 2, 0.6),  # the one that the searched half says, not the held-out one
        ([0.4, 0.4, 0.4], [0.6, 0.9, 0.9], 0, 0.6),
        ([0.4, 0.9, 0.9], [0.6, 0.7, 0.8], 2, 0.6),
    ],
)
def test_ours_believes_by_held_out_tokens(
    searched: list[float], held_out: list[float], taken: int, matchness: float
) -> None:
    search = begun(candidates=2)
    points = search.candidates()
    assert search.judge(points, searched, held_out, 32) == (taken > 0)
    assert search.skipped == points[taken]
    assert search.matchness == pytest.approx(matchness)
    assert search.num_idle == (0 if taken else 2)


def test_a_lucky_window_is_forgotten() -> None:
    """By the paper it would be kept for ever."""
    search = begun()
    go_on(search, 4, lambda point: 1.0)
    assert search.matchness == 1.0
    go_on(search, 200, lambda point: 0.25)
    assert search.matchness == pytest.approx(0.25, abs=0.02)


def test_matchness_is_weighed_by_new_tokens() -> None:
    search = begun()
    search.look(1.0, 30)
    search.look(0.0, 10)
    assert search.matchness == pytest.approx(0.75)
    search.look(0.0, 0)
    assert search.matchness == pytest.approx(0.75)


def test_scores_are_told_beside_the_set_in_use() -> None:
    """On tokens that are harder for all, a candidate is not worse for it."""
    search = begun(candidates=1)
    search.judge(search.candidates(), [0.8, 0.7], [0.8, 0.8], 32)
    search.judge(search.candidates(), [0.2, 0.1], [0.8, 0.8], 32)
    assert [score for _, score in search._search.observations] == pytest.approx([0.7, 0.7])


@both
def test_the_planted_set_is_come_near_to(paper: bool) -> None:
    search = begun(paper)
    first = planted(search.skipped)
    go_on(search, 400)
    assert planted(search.skipped) >= (0.8 if paper else 1.0) > first


# ------------------------------------------------------------------------------------------------ when it is over


@pytest.mark.parametrize(
    ("paper", "options", "score", "num_steps"),
    [
        (True, {"max_steps": 40}, 0.5, 40),
        (False, {"max_steps": 40}, 0.5, 40),
        (True, {"patience": 20}, 0.5, 20),
        (False, {"patience": 20}, 0.5, 20),
        (True, {"enough": 0.95}, 0.96, 1),  # content at once
        (False, {"enough": 0.95}, 0.96, 4 * ENOUGH_TOKENS // 32),  # once it knows
    ],
    ids=str,
)
def test_it_ends(paper: bool, options: dict[str, Any], score: float, num_steps: int) -> None:
    search = begun(paper, **options)
    go_on(search, 10**4, lambda point: score)
    assert (search.phase, search.step, search.progress) == ("accelerate", num_steps, 1.0)


def test_enough_is_beyond_it_and_not_at_it() -> None:
    search = begun(paper=True, enough=0.96)
    go_on(search, 100, lambda point: 0.96)
    assert search.phase == "optimise"


# ------------------------------------------------------------------------------------------------ other turns


@both
def test_the_ratio_is_lowered_and_members_put_back_evenly(paper: bool) -> None:
    search = begun(paper, ratio=0.5, min_ratio=0.3, ratio_step=0.1)
    go_on(search, 8)
    members = sorted(search.skipped)
    assert len(members) == 12
    assert search.lower()
    assert search.ratio == pytest.approx(0.4)
    back = [members.index(number) for number in set(members) - search.skipped]
    assert sorted(back) == [3, 9], "evenly"
    assert (search.num_idle, search.matchness) == (0, None), "nobody has scored this set"
    assert [len(point) for point in go_on(search, search.step + 4)[-1]] == [len(search.skipped)] * (1 if paper else 5)
    assert search.matchness is not None
    assert search.lower()
    assert search.ratio == pytest.approx(0.3)
    assert not search.lower(), "that is the least"
    assert (search.ratio, len(search.skipped)) == (pytest.approx(0.3), 8)


def test_what_is_lowered_to_nothing_is_over() -> None:
    search = Optimisation(5, SwiftOptions(ratio=0.2, min_ratio=0.0, ratio_step=0.2))
    assert search.lower()
    assert (search.skipped, search.is_over) == (frozenset(), True)


def test_a_search_begins_anew_with_the_set_that_it_has() -> None:
    search = begun(max_steps=40)
    go_on(search, 10**4)
    found, before = search.skipped, {point for point, _ in search._search.observations}
    search.resume()
    assert (search.skipped, search.phase, search.matchness, search.num_steps) == (found, "optimise", None, 0)
    assert not search._search.observations
    go_on(search, 10**4, lambda point: 0.3)
    assert search.step == 80, "as many steps again"
    assert search.matchness == pytest.approx(0.3)
    assert {point for point, _ in search._search.observations} != before


def test_the_sets_on_the_way_are_remembered() -> None:
    for paper in (True, False):
        search, in_use = begun(paper), {0: uniform(NUM_LAYERS, 0.45)}
        while search.step < 512:
            points = search.candidates()
            scores = [planted(point) for point in points]
            search.judge(points, scores, scores if not paper else (), 32)
            in_use[search.step] = search.skipped
        assert search.snapshots == {step: in_use[step] for step in SNAPSHOTS}
        assert tuple(search.snapshots) == (0, 64, 128, 512)


@both
@pytest.mark.parametrize("num_before", [0, 4, 24, 60])
def test_a_state_goes_on_as_the_search_would_have(paper: bool, num_before: int) -> None:
    whole = begun(paper, interval=5)
    go_on(whole, num_before)
    if num_before == 60:
        whole.lower()
        whole.resume()
        go_on(whole, 80)
    state = json.loads(json.dumps(whole.state()))
    resumed = Optimisation.of_state(NUM_LAYERS, whole._options, state)
    assert json.loads(json.dumps(resumed.state())) == state
    assert go_on(resumed, whole.step + 60) == go_on(whole, whole.step + 60)
    assert resumed.state() == whole.state()


# ------------------------------------------------------------------------------------------------ the clock


def live(switch: DraftSwitch, num_tokens: int, drafting: float, plain: float = 0.01) -> list[bool]:
    """Rounds as it likes them, of two tokens where it drafts; seconds a token with drafts and without."""
    went = []
    while num_tokens > 0:
        went.append(switch.is_drafting)
        switch.observe(went[-1], 1 + went[-1], 2 * drafting if went[-1] else plain)
        num_tokens -= 1 + went[-1]
    return went


@pytest.mark.parametrize(("drafting", "is_faster"), [(0.02, False), (0.011, False), (0.009, True), (0.002, True)])
def test_the_faster_way_is_gone(drafting: float, is_faster: bool) -> None:
    switch = DraftSwitch()
    went = live(switch, 4 * TRIAL, drafting)
    assert went[: TRIAL // 2] == [True] * (TRIAL // 2), "drafting is tried first"
    num_plain = GLANCE if drafting < 0.005 else TRIAL
    assert went[TRIAL // 2 : TRIAL // 2 + num_plain] == [False] * num_plain, "then plain decoding"
    assert set(went[TRIAL // 2 + TRIAL :]) == {is_faster}


def changes(went: list[bool]) -> list[int]:
    """How many tokens each stretch has that is not the usual way."""
    places, last, num_tokens = [], went[0], 0
    for is_drafting in went:
        if is_drafting != last:
            places.append(num_tokens)
        last, num_tokens = is_drafting, num_tokens + 1 + is_drafting
    return places


@pytest.mark.parametrize("drafting", [0.02, 0.005])
def test_the_slower_way_is_tried_again_later_and_later(drafting: float) -> None:
    switch = DraftSwitch()
    live(switch, 3 * TRIAL, drafting)
    places = changes(live(switch, 2 * MAX_RETRY + 2 * RETRY, drafting))
    starts, ends = places[::2], places[1::2]
    assert all(end - start <= 2 * TRIAL for start, end in zip(starts, ends, strict=False))
    gaps = [after - before for before, after in itertools.pairwise(starts)]
    expected = [2 * RETRY, 4 * RETRY, 8 * RETRY, MAX_RETRY]
    assert starts[0] == pytest.approx(RETRY, abs=2 * TRIAL)
    assert gaps[:4] == pytest.approx(expected, abs=2 * TRIAL)


@pytest.mark.parametrize(("drafting", "num_tokens"), [(0.05, GLANCE), (0.012, TRIAL)])
def test_a_hopeless_trial_ends_early(drafting: float, num_tokens: int) -> None:
    """Its first round is not counted: it may have recorded what the others replay."""
    switch = DraftSwitch()
    live(switch, 3 * TRIAL, drafting)
    start, end, *_ = changes(live(switch, RETRY + 4 * TRIAL, drafting))
    assert end - start == pytest.approx(num_tokens, abs=4)
    assert not switch.is_drafting


def test_one_slow_round_is_no_reason_to_give_up() -> None:
    """Another cache bucket: what the first round recorded is recorded once more."""
    switch = DraftSwitch()
    live(switch, 3 * TRIAL, 0.02)
    switch.renew()
    for number in range(6):
        assert switch.is_drafting
        switch.observe(True, 2, 0.08 if number == 2 else 0.018)
    assert switch.is_drafting


@pytest.mark.parametrize(("before", "after"), [(0.02, 0.008), (0.008, 0.02)])
def test_a_way_that_became_faster_is_found_at_the_first_trial(before: float, after: float) -> None:
    switch = DraftSwitch()
    live(switch, 3 * TRIAL, before)
    assert switch.is_drafting == (before < 0.01)
    live(switch, RETRY + 6 * TRIAL, after)
    assert switch.is_drafting == (after < 0.01)
    live(switch, RETRY // 2, after)
    assert switch.is_drafting == (after < 0.01)


def test_the_first_round_behind_a_change_is_not_counted() -> None:
    """It records what the others replay: by its seconds drafting would never pay."""
    switch = DraftSwitch()
    for _ in range(2):
        switch.observe(True, 2, 60.0)
        live(switch, TRIAL, 0.005)
        while not switch.is_drafting:
            switch.observe(False, 1, 60.0 if switch._last else 0.01)
        live(switch, TRIAL, 0.005)
        assert switch.is_drafting
        assert (switch._drafting.pace, switch._plain.pace) == (pytest.approx(0.005), pytest.approx(0.01))
        switch.renew()


def test_other_drafts_are_tried_again() -> None:
    switch = DraftSwitch()
    live(switch, 8 * TRIAL, 0.02)
    assert not switch.is_drafting
    for _ in range(2):
        switch.renew()
        assert switch.is_drafting
        switch.observe(True, 2, 60.0)  # their first round is not counted either
        assert all(live(switch, 3 * TRIAL, 0.005)), "plain decoding is known from before"
