"""SWIFT's search on planted scores, and the clock that tells whether drafting pays. No model, no time."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import learned
from selfdraft.economics import LatencyFit, Line
from selfdraft.strategies.bayes import Point, Search
from selfdraft.strategies.draft_switch import GLANCE, LEAST_RETRY, MAX_RETRY, RETRY, TRIAL, DraftSwitch
from selfdraft.strategies.matching import Matched
from selfdraft.strategies.swift_ranked import GAIN, Kept, Ranked
from selfdraft.strategies.swift_search import SNAPSHOTS, Optimisation, Published, SwiftOptions, evenly, size_of

NUM_LAYERS = 12
UNIVERSE = set(range(2, 2 * NUM_LAYERS - 2))
IDLE = frozenset(range(3, 12))
"""As many sub-layers as ratio 0.45 skips."""
FIT = learned.latency(
    num_layers=NUM_LAYERS,
    attention=Line(0.0, 1e-3),
    plain=Line(0.0, 36.5e-3),
    verify=(Line(0.0, 36.5e-3), Line(0.0, 40e-3)),
)
"""An MLP takes twice the seconds of an attention, a verification little more than a plain pass."""


def planted(point: Point) -> float:
    return 1 - 0.1 * len(point - IDLE)


def scored(scores: Sequence[float], num_tokens: int = 64) -> Matched:
    """Of each set as many hits as the score says, evenly spread, and the log-probability of every token."""
    told = torch.tensor(scores)[:, None]
    hits = (torch.arange(1, num_tokens + 1) * told).floor() > (torch.arange(num_tokens) * told).floor()
    return Matched(hits, told.expand(-1, num_tokens))


def begun(paper: bool = False, fit: LatencyFit | None = None, **options: Any) -> Published | Ranked:
    usual = {"enough": 1.0, "patience": 10**6, "max_steps": 10**6, "candidates": 4}
    rules = SwiftOptions(paper=paper, **{**usual, **options}).rules(is_recorded=False)
    return Published(NUM_LAYERS, rules) if paper else Ranked(NUM_LAYERS, rules, fit or FIT)


def go_on(search: Optimisation, num_steps: int, score: Callable[[Point], float] = planted) -> list[list[Point]]:
    """Until it has made this number of steps, or is over: what it asked for, pass by pass."""
    asked = []
    while not search.is_over and search.step < num_steps:
        points = search.candidates()
        if not points:
            break
        asked.append(points)
        search.judge(points, scored([score(point) for point in points]), 32)
    return asked


def ranked(**options: Any) -> Ranked:
    """Ours after its first steps, with a set that is neither the best nor the worst."""
    search = begun(**options)
    assert isinstance(search, Ranked)
    while search.state()["last_review"] is None:
        points = search.candidates()
        search.judge(points, scored([0.6 - 0.001 * abs(len(point) - 9) for point in points]), 32)
    return search


both = pytest.mark.parametrize("paper", [True, False], ids=["paper", "ours"])


# ------------------------------------------------------------------------------------------------ what is asked for


@pytest.mark.parametrize(("num_layers", "ratio", "size"), [(40, 0.45, 34), (80, 0.5, 78), (28, 0.45, 23), (2, 0.9, 0)])
def test_sizes_are_those_of_the_authors_code(num_layers: int, ratio: float, size: int) -> None:
    """Their published sets of Llama-2 have 20 + 14 sub-layers for 13B, 41 + 37 for 70B."""
    assert size_of(num_layers, ratio) == len(evenly(num_layers, size)) == size
    options = SwiftOptions(paper=True, ratio=ratio).rules(is_recorded=True)
    assert len(Published(num_layers, options).skipped) == size


def test_the_papers_begins_evenly_and_keeps_its_size() -> None:
    search = begun(paper=True)
    assert search.skipped == evenly(NUM_LAYERS, 9)
    asked = go_on(search, 80)
    assert asked[0] == [evenly(NUM_LAYERS, 9)]
    candidates = [point for points in asked for point in points]
    assert len(candidates) == len(set(candidates)) == 80, "nothing twice, one in a step"
    assert all(len(point) == 9 for point in candidates)
    assert set().union(*candidates) <= UNIVERSE, "the first and the last layer run"


@pytest.mark.parametrize("interval", [25, 7])
def test_the_papers_is_bayesian_now_and_then(interval: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Point | None] = []
    suggest = Search.suggest

    def noted(self: Search, size: int | None) -> Point | None:
        calls.append(suggest(self, size))
        return calls[-1]

    monkeypatch.setattr(Search, "suggest", noted)
    search = begun(paper=True, interval=interval)
    asked = [points[0] for points in go_on(search, 100)]
    assert calls == asked[interval - 1 :: interval]
    assert len(calls) == 100 // interval


def test_ours_ranks_every_sub_layer_then_drops_some_then_changes_a_little() -> None:
    search = begun(candidates=8, ratio_step=0.1, max_ratio=0.45)
    asked = go_on(search, 30)
    assert [points[0] for points in asked[:3]] == [frozenset()] * 3, "beside the target"
    singles = [point for points in asked[:3] for point in points[1:]]
    assert sorted(map(sorted, singles)) == [[number] for number in sorted(UNIVERSE)]
    assert [len(points) for points in asked[:3]] == [9, 9, 5]
    assert [len(points[0]) for points in asked[3:8]] == [0, 2, 4, 6, 8], "two go in a step"
    assert all(points[0] <= IDLE for points in asked[3:8]), "those that lose least"
    assert all(point > points[0] for points in asked[3:8] for point in points[1:]), "beside the set so far"
    assert [len(point) for point in asked[8]] == [2, 4, 6, 8], "all that was kept on the way"
    sets = [point for points in asked[9:] for point in points]
    assert {len(point) for point in sets} == {len(search.skipped)}
    assert set().union(*sets) <= UNIVERSE
    distances = [len(points[0] - point) for points in asked[9:] for point in points[1:]]
    assert min(distances) >= 1
    assert sum(distances) / len(distances) < 2.5


def test_losses_are_weighed_by_the_seconds_they_save() -> None:
    """An MLP takes twice the seconds here: it may lose up to twice as much."""
    for lost, is_mlp_first in ((1.9, True), (3.0, False)):
        search = begun(candidates=20, min_ratio=0.1, max_ratio=0.1)
        go_on(search, 3, lambda point, lost=lost: 1 - sum(0.01 * (lost if n % 2 else 1.0) for n in point))
        assert {number % 2 == 1 for number in search.skipped} == {is_mlp_first}


def test_what_a_sub_layer_lost_before_still_counts_half() -> None:
    search = begun(candidates=20, max_ratio=0.2)
    go_on(search, 1, lambda point: 0.9 if point else 1.0)
    points = search.candidates()
    search.judge(points, scored([1.0, *([0.7] * (len(points) - 1))]), 32)
    assert list(search.state()["losses"].values()) == pytest.approx([0.2] * len(UNIVERSE), abs=1e-6)


@pytest.mark.parametrize("paper", [True, False], ids=["paper", "ours"])
def test_where_nothing_is_left_to_try_it_is_over(paper: bool) -> None:
    options = SwiftOptions(
        paper=paper, ratio=0.7, enough=1.0, candidates=3, min_ratio=0.7 if paper else 1.0, max_ratio=1
    )
    rules = options.rules(is_recorded=False)
    search = Published(5, rules) if paper else Ranked(5, rules, learned.latency())
    go_on(search, 1000, lambda point: 0.5)
    assert search.is_over
    assert search.candidates() == []
    if paper:
        assert len({point for point, _ in search._search.observations}) == 15, "four of six"
    else:
        assert len(search.skipped) == 6, "all of them, which cannot be changed"


def test_where_nothing_can_be_skipped_there_is_no_search() -> None:
    for num_layers, ratio in ((1, 0.9), (2, 0.45), (10, 0.0)):
        options = SwiftOptions(ratio=ratio, max_ratio=ratio).rules(is_recorded=False)
        for search in (Published(num_layers, options), Ranked(num_layers, options, learned.latency())):
            assert (search.skipped, search.phase, search.progress) == (frozenset(), "accelerate", 1.0)


# ------------------------------------------------------------------------------------------------ what is believed


def test_the_papers_rule_keeps_the_best_ever() -> None:
    search = begun(paper=True)
    asked, told = [], []
    for score in (0.25, 0.5, 0.5, 0.375, 0.625, 0.125, 0.59375):
        points = search.candidates()
        asked += points
        told.append(search.judge(points, scored([score])))
    assert (search.skipped, search.matchness) == (asked[4], 0.625)
    assert told == [0.25, 0.5, 0.5, 0.375, 0.625, 0.125, 0.59375]
    assert search.num_idle == 2


def halves(searched: Sequence[float], held_out: Sequence[Sequence[float]]) -> Matched:
    """Log-probabilities: those of the first half all alike."""
    second = torch.tensor(held_out)
    first = torch.tensor(searched)[:, None].expand(-1, second.shape[1])
    return Matched(torch.zeros(len(searched), 2 * second.shape[1], dtype=torch.bool), torch.cat((first, second), 1))


@pytest.mark.parametrize(
    ("searched", "held_out", "taken"),
    [
        ([-4, -1, -3], [[-2, -2], [-2.1, -2.1], [-1, -1]], 0),  # worse on tokens that it was not chosen by
        ([-4, -1, -3], [[-2, -2], [-1.9, -1.9], [-1, -1]], 1),
        ([-4, -1, -3], [[-2, -2], [-2, -2], [-1, -1]], 0),  # it must gain something
        ([-4, -3, -1], [[-2, -2], [-1, -1], [-1.5, -1.5]], 2),  # the one that the searched half says
        ([-4, -4, -4], [[-2, -2], [-1, -1], [-1, -1]], 0),
        ([-4, -1, -3], [[-2, -2], [-1.0, -2.8], [-1, -1]], 0),  # its gain is less than its error
    ],
)
def test_ours_believes_by_held_out_tokens(searched: list[float], held_out: list[list[float]], taken: int) -> None:
    search = ranked(candidates=2)
    points, idle, matchness, search.gain = search.candidates(), search.num_idle, search.matchness, 0.0
    search.judge(points, halves(searched, held_out), 0)
    assert search.skipped == points[taken]
    assert search.num_idle == (0 if taken else idle + 1)
    assert search.matchness == matchness, "no new token"
    assert search.gain == pytest.approx(held_out[taken][0] - held_out[0][0], abs=1e-6)


def test_a_lucky_window_is_forgotten() -> None:
    """By the paper it would be kept for ever."""
    search = ranked(max_ratio=0.45, min_ratio=0.45)
    before = search.matchness
    go_on(search, search.step + 4, lambda point: 1.0)
    assert search.matchness > before + 0.1
    go_on(search, search.step + 90, lambda point: 0.25)
    assert search.matchness == pytest.approx(0.25, abs=0.02)


def test_matchness_is_weighed_by_new_tokens() -> None:
    kept = Kept(IDLE, 0.3)
    for matchness, num_fresh in ((1.0, 30), (0.0, 10), (0.0, 0)):
        kept.look(matchness, num_fresh)
    assert (kept.matchness, kept.num_known) == (pytest.approx(0.75), 40)


@both
def test_the_planted_set_is_come_near_to(paper: bool) -> None:
    search = begun(paper)
    first = planted(search.skipped)
    go_on(search, 400)
    assert planted(search.skipped) >= (0.8 if paper else 1.0) > first
    assert paper or len(search.skipped) == 8, "nearly all of it, as more would lose more than it saves"


# ------------------------------------------------------------------------------------------------ its size


@pytest.mark.parametrize(("lost", "size"), [(0.0005, 12), (0.004, 4), (0.03, 2)])
def test_the_size_is_the_one_that_promises_most(lost: float, size: int) -> None:
    """Each sub-layer loses more than the one before it: nearly nothing, or much."""
    search = begun(candidates=20)
    go_on(search, 9, lambda point: 1 - lost * len(point) ** 2)
    assert len(search.skipped) == size
    assert search.gain == float("inf"), "it drafts at once"
    speeds = {kept.point: search.speed(kept) for kept in search.kept.values()}
    assert speeds[search.skipped] >= max(speeds.values()) / (1 + GAIN)


def test_the_more_drafts_succeed_the_more_is_skipped() -> None:
    """They stop where they are unsure, so they fail less often than matchness says."""
    search = begun(candidates=20)
    go_on(search, 9, lambda point: 1 - 0.004 * len(point) ** 2)
    sizes = []
    for search.failures in (1.0, 0.1, 3.0):
        search.choose()
        sizes.append(len(search.skipped))
    assert sizes == [4, 12, 4]


def test_the_size_follows_the_texts_up_and_down() -> None:
    search = begun(interval=5, candidates=20)
    sizes = []
    for slope in (0.06, 0.005, 0.2):
        go_on(search, search.step + 60, lambda point, slope=slope: 1 - slope * len(point))
        sizes.append(len(search.skipped))
    assert sizes[0] < sizes[1] > sizes[2]
    assert sizes[1] == max(search.sizes)


def test_another_size_must_promise_noticeably_more() -> None:
    for share, is_taken in ((1.02, False), (1.04, True)):
        search = ranked()
        before, other = search.kept[search._size], max(search.kept.values(), key=lambda kept: len(kept.point))
        enough = (share - 0.005) * search.speed(before)
        matches = (step / 1000 for step in range(1000))
        other.matchness = next(match for match in matches if search.speed(Kept(other.point, match)) > enough)
        search.choose()
        assert search.skipped == (other if is_taken else before).point


@pytest.mark.parametrize(("match", "is_hopeless"), [(0.9, False), (0.5, False), (0.0, True)])
def test_what_would_not_pay_even_if_it_missed_half_is_hopeless(match: float, is_hopeless: bool) -> None:
    for always in (False, True):
        search = begun(candidates=20, always=always)
        go_on(search, 20, lambda point: match if point else 1.0)
        assert search.is_hopeless == (is_hopeless and not always)


def test_there_is_hope_until_all_sizes_were_compared() -> None:
    search = begun(candidates=20)
    while search.is_growing:
        go_on(search, search.step + 1, lambda point: float(not point))
        assert not search.is_hopeless
    assert not search.can_pay, "but nothing drafts yet"
    go_on(search, search.step + 1, lambda point: float(not point))
    assert search.is_hopeless


@pytest.mark.parametrize("ratio", [0.17, 0.45, 0.5, 0.7])
def test_no_set_is_larger_than_allowed(ratio: float) -> None:
    search = begun(candidates=20, max_ratio=ratio, ratio_step=0.05)
    go_on(search, 60, lambda point: 1.0)
    assert {size: len(kept.point) for size, kept in search.kept.items()} == {size: size for size in search.sizes}
    assert max(search.sizes) <= ratio * len(UNIVERSE)


@pytest.mark.parametrize("whole", [1.0, 0.6])
def test_sub_layers_go_until_half_of_what_the_whole_model_meets_is_left(whole: float) -> None:
    """Of tokens that were drawn it does not meet all."""
    search = begun(candidates=20)
    go_on(search, 2, lambda point: whole * (1 - 0.05 * len(point)))
    while search.is_growing:
        go_on(search, search.step + 1, lambda point: whole * (1 - 0.05 * len(point)))
    assert max(search.kept) == 12 < max(search.sizes)


def test_after_a_rest_how_drafts_fared_is_forgotten() -> None:
    for again in (Ranked.look_again, Ranked.resume):
        search = ranked()
        search.failures = 5.0
        again(search)
        assert search.failures == 1.0


def test_where_no_size_is_allowed_a_kept_state_is_over_too() -> None:
    for options in ({"max_ratio": 0.01}, {"min_ratio": 0.6, "max_ratio": 0.5}):
        search = begun(**options)
        search.restore(json.loads(json.dumps(search.state())))
        assert (search.sizes, search.is_over) == ([], True)


# ------------------------------------------------------------------------------------------------ when it is over


@pytest.mark.parametrize(
    ("paper", "options", "score", "num_steps"),
    [
        (True, {"max_steps": 40}, 0.5, 40),
        (False, {"max_steps": 40}, 0.5, 40),
        (True, {"patience": 20}, 0.5, 20),
        (False, {"patience": 20}, 0.6, 33),  # after the ranking, 5 passes, and all sizes, 8
        (True, {"enough": 0.95}, 0.96, 1),  # content at once
        (False, {"enough": 0.95, "interval": 4}, 0.96875, 5 + 8 + 1 + 3 * 4),  # once it knows, and no size is better
    ],
    ids=str,
)
def test_it_ends_after_passes(paper: bool, options: dict[str, Any], score: float, num_steps: int) -> None:
    search = begun(paper, **options)
    go_on(search, 10**4, lambda point: score)
    assert (search.phase, search.step, search.progress) == ("accelerate", num_steps, 1.0)


def test_a_pass_is_a_step_whatever_it_scores() -> None:
    """1000 and 300 of the paper are looks: 32 candidates that share one are no 32 steps."""
    for candidates in (2, 32):
        search = begun(candidates=candidates, max_steps=1000, patience=300)
        go_on(search, 10**5, lambda point: 0.6)
        num_ranking, num_dropping = -(-len(UNIVERSE) // candidates), len(search.sizes) + 1
        assert search.step == num_ranking + num_dropping + 300


def test_enough_is_beyond_it_and_not_at_it() -> None:
    search = begun(paper=True, enough=0.96875)
    go_on(search, 100, lambda point: 0.96875)
    assert search.phase == "optimise"


# ------------------------------------------------------------------------------------------------ other turns


def test_the_papers_ratio_is_lowered_and_members_put_back_evenly() -> None:
    search = begun(paper=True, ratio=0.5, min_ratio=0.3, ratio_step=0.1)
    assert isinstance(search, Published)
    go_on(search, 8)
    members = sorted(search.skipped)
    assert len(members) == 10
    assert search.lower()
    assert search.ratio == pytest.approx(0.4)
    back = [members.index(number) for number in set(members) - search.skipped]
    assert sorted(back) == [2, 7], "evenly"
    assert (search.num_idle, search.matchness) == (0, None), "nobody has scored this set"
    assert [len(point) for point in go_on(search, search.step + 4)[-1]] == [len(search.skipped)]
    assert search.matchness is not None
    assert search.lower()
    assert search.ratio == pytest.approx(0.3)
    assert not search.lower(), "that is the least"
    assert (search.ratio, len(search.skipped)) == (pytest.approx(0.3), 6)


def test_what_is_lowered_to_nothing_is_over() -> None:
    search = Published(5, SwiftOptions(ratio=0.2, min_ratio=1e-9, ratio_step=0.2))
    assert search.skipped
    search._options = SwiftOptions(min_ratio=0.0, ratio_step=0.2)
    assert search.lower()
    assert (search.skipped, search.is_over) == (frozenset(), True)


def test_a_search_begins_again_with_the_set_that_it_has() -> None:
    search = begun(max_steps=40)
    assert isinstance(search, Ranked)
    go_on(search, 10**4)
    found, matchness = search.skipped, search.matchness
    search.resume()
    assert (search.skipped, search.phase, search.matchness, search.num_steps) == (found, "optimise", matchness, 0)
    others = UNIVERSE - IDLE
    asked = go_on(search, 10**4, lambda point: 1 - 0.1 * len(point - others))
    assert asked[0][0] == frozenset(), "every sub-layer is ranked again"
    assert search.step == 80, "as many steps again"
    assert search.skipped <= others, "those before are replaced"


@both
def test_the_sets_on_the_way_are_remembered(paper: bool) -> None:
    search = begun(paper)
    in_use = {0: search.skipped}
    while search.step < 512:
        points = search.candidates()
        search.judge(points, scored([planted(point) for point in points]), 32)
        in_use[search.step] = search.skipped
    assert search.snapshots == {step: in_use[step] for step in SNAPSHOTS}
    assert tuple(search.snapshots) == (0, 64, 128, 512)


@both
@pytest.mark.parametrize("num_before", [0, 4, 24, 60])
def test_a_state_goes_on_as_the_search_would_have(paper: bool, num_before: int) -> None:
    whole = begun(paper, interval=5)
    go_on(whole, num_before)
    if num_before == 60:
        whole.lower() if isinstance(whole, Published) else whole.resume()
        go_on(whole, 80)
    state = json.loads(json.dumps(whole.state()))
    resumed = begun(paper, interval=5)
    resumed.restore(state)
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


def test_a_trial_that_was_unlucky_is_repeated_soon() -> None:
    """Trials of kinds that are close take about a hundredth of the time, so there is no reason to wait."""
    switch = DraftSwitch()
    live(switch, 3 * TRIAL, 0.0102)
    assert not switch.is_drafting
    went = live(switch, 3 * LEAST_RETRY, 0.008)
    assert switch.is_drafting
    assert went.count(False) < 3 * LEAST_RETRY, "not after 1024 tokens"


def test_a_trial_that_begins_slowly_is_not_repeated_soon() -> None:
    """Its first round records what the others replay: that is what most of it costs."""
    switch = DraftSwitch()
    switch.observe(True, 2, 0.5)
    live(switch, 3 * TRIAL, 0.0102)
    assert not any(live(switch, RETRY - 4 * TRIAL, 0.0102))


def test_rounds_that_take_no_time_are_no_fault() -> None:
    switch, went = DraftSwitch(), set[bool]()
    for _ in range(20 * TRIAL):
        went.add(switch.is_drafting)
        switch.observe(switch.is_drafting, 1, 0.0)
    assert went == {True, False}


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


def test_sub_layers_too_quick_to_be_measured_still_have_a_price() -> None:
    """On a busy machine the fit may say that neither kind takes any time."""
    nothing = learned.latency(attention=Line(0.0, 0.0), mlp_seconds=0.0)
    search = Ranked(5, SwiftOptions(enough=1.0).rules(is_recorded=False), nothing)
    assert go_on(search, 12)
