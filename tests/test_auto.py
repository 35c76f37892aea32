"""`auto` in worlds that are only numbers, where the best is known: how much of it is reached, and how soon."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from selfdraft.drafters.lookup import Match, find_matches
from selfdraft.strategies.choosing.company import TRIAL, Choice, Company
from selfdraft.strategies.choosing.copies import FIRST, MAX_LENGTH, MAX_TOKENS, MIN_LENGTH, CopiedText, Copies
from selfdraft.strategies.choosing.costs import GUESS, Costs
from worlds import CHEAP, DEAR, Run, World

NOTHING_HOLDS = dict.fromkeys((1, 2, 4, 8), 0.02)
WORLDS = {
    "cheap columns": World(),
    "dear columns": World(DEAR),
    "dear columns, noisy clock": World(DEAR, noise=0.4),
    "nothing holds": World(DEAR, holds=NOTHING_HOLDS),
    "no match": World(matches=(1, 0, 0, 0, 0)),
    "a good draft": World(skips=(3.0, 2.0)),
    "a draft as fast as plain rounds": World(DEAR, skips=(2.0, 2.0)),
    "a bad draft": World(DEAR, skips=(2.0, 4.0)),
    "all at once": World(skips=(2.5, 2.0), noise=0.3),
}


@pytest.mark.parametrize("name", WORLDS)
def test_nearly_the_best_is_reached(name: str) -> None:
    """Of tokens per second, the first rounds and all trials included; four seeds."""
    world = WORLDS[name]
    reached = [Run(seed=seed).rounds(world, 1500) / world.best_rate() for seed in range(4)]
    print(f"{name}: {sum(reached) / 4:.3f} of the best on average, {min(reached):.3f} at least")
    assert sum(reached) / 4 > 0.94
    assert min(reached) > 0.93


@pytest.mark.parametrize("name", WORLDS)
def test_plain_decoding_is_never_faster_for_long(name: str) -> None:
    """After the first texts, each of a hundred rounds."""
    world, run = WORLDS[name], Run()
    run.rounds(world, 300)
    texts = [run.rounds(world, 100) * world.seconds(1) for _ in range(10)]
    assert sum(texts) / 10 > 0.98
    assert min(texts) > 0.9 - world.noise


GPU = {"costs": (1.0, *[1.35] * 10), "skips": (2.2, 1.65), "num_beside": 8, "runs_ahead": True, "noise": 0.03}
"""What rounds cost on an H200 (Qwen2.5-Coder-1.5B), in plain ones."""
LONG = {1: 0.1, 2: 0.3, 4: 0.6, 8: 0.93}


@pytest.mark.parametrize(
    ("matches", "best"), [((0.5, 0.4, 0.1, 0, 0), "skip"), ((0.1, 0, 0, 0, 0.9), "copy, off")], ids=["drafts", "copies"]
)
def test_where_rounds_run_ahead_one_kind_is_kept_to(matches: tuple[float, ...], best: str) -> None:
    """Beside everyone who does the same all the time, among them the fastest one."""
    world = World(**GPU, matches=matches, holds=LONG)
    rates = world.simple_rates()
    assert max(rates, key=lambda name: rates[name]) == best
    reached = [Run(seed=seed).rounds(world, 1500) / rates[best] for seed in range(4)]
    print(f"{best}: {sum(reached) / 4:.3f} of it on average, {min(reached):.3f} at least")
    assert sum(reached) / 4 > 0.94


@pytest.mark.parametrize("share", [0.3, 0.6, 0.8])
def test_a_worthless_draft_is_not_made_for_the_copies_beside_it(share: float) -> None:
    """What these bring is not the draft's merit, and a plain round that copies is cheaper."""
    world = World(**{**GPU, "skips": (1.05, 1.65)}, matches=(1 - share, 0, 0, share, 0), holds={**LONG, 4: 0.75})
    reached = [Run(seed=seed).rounds(world, 1500) / world.simple_rates()["copy, off"] for seed in range(4)]
    print(f"{share:.0%}: {sum(reached) / 4:.3f} of it on average, {min(reached):.3f} at least")
    assert sum(reached) / 4 > 0.97


def test_where_rounds_run_ahead_kinds_change_with_the_text() -> None:
    """It repeats for 80 tokens, then writes as many new ones, each nearly as fast as if there were nothing else."""
    new, repeats = (World(**GPU, matches=matches, holds=LONG) for matches in ((1, 0, 0, 0, 0), (0, 0, 0, 0, 1)))
    run = Run()
    run.rounds(new, 300)
    first = len(run.done)
    parts = [run.tokens(world, 80) for _ in range(20) for world in (new, repeats)]
    rounds = new.expected(Choice("skip"), 0), repeats.expected(Choice("copy", MAX_TOKENS), 8)
    best = sum(20 * 80 * seconds / tokens for tokens, seconds in rounds)
    print(f"{best / sum(parts):.3f} of the best; rounds: {len(run.done) - first}")
    assert best / sum(parts) > 0.9


def test_a_sudden_shift_is_followed() -> None:
    """Within 30 rounds: copies that no longer hold are left, those that hold again are taken."""
    good, bad = World(DEAR, matches=(0, 0, 0, 0, 1)), World(DEAR, matches=(0, 0, 0, 0, 1), holds=NOTHING_HOLDS)
    run = Run()
    run.rounds(good, 500)
    assert run.share("copy", 100) > 0.95
    run.rounds(bad, 30)
    assert run.rounds(bad, 100) > 0.97 * bad.best_rate()
    run.rounds(good, 30)
    assert run.rounds(good, 100) > 0.88 * good.best_rate()
    assert run.rounds(good, 100) > 0.95 * good.best_rate()


def test_a_draft_that_becomes_bad_is_left() -> None:
    good, bad = World(DEAR, skips=(4.0, 2.0)), World(DEAR, skips=(1.1, 2.0))
    run = Run()
    run.rounds(good, 500)
    assert run.share("skip", 100) > 0.8
    run.rounds(bad, 30)
    assert run.share("skip", 10) < 0.5
    run.rounds(bad, 100)
    assert run.share("skip", 100) < 0.15


def test_a_draft_that_becomes_good_is_found_again() -> None:
    """Trials lose little, so they are rare: after a thousand tokens, or a few."""
    bad, good = World(DEAR, skips=(1.1, 2.0)), World(DEAR, skips=(4.0, 2.0))
    run = Run()
    run.rounds(bad, 1000)
    assert run.share("skip", 1000) < 0.03
    run.rounds(good, 4000)
    assert run.share("skip", 100) > 0.8


@pytest.mark.parametrize("grows", [3.0, 1 / 3])
def test_a_drift_of_all_costs_fools_nobody(grows: float) -> None:
    """The text grows, or another program comes and goes: what is faster stays what it is."""
    for world, kind in ((World(matches=(0, 0, 0, 0, 1)), "copy"), (World(DEAR, holds=NOTHING_HOLDS), "off")):
        drifting = World(world.costs, world.matches, world.holds, scale=lambda number: grows ** (number / 2000))
        run = Run()
        run.rounds(drifting, 2000)
        assert run.share(kind, 1500) > 0.97


def test_one_slow_round_changes_little() -> None:
    costs = Costs(GUESS)
    for _ in range(50):
        costs.observe(1, 0.01)
    costs.observe(1, 10.0)
    assert costs.seconds(1) == pytest.approx(0.01, rel=0.1)


@pytest.mark.parametrize(("there", "here"), [(CHEAP, DEAR), (DEAR, CHEAP)])
def test_what_another_machine_kept_is_corrected(there: tuple[float, ...], here: tuple[float, ...]) -> None:
    """Columns that were cheap there are dear here, or the other way round; seconds are others anyway."""
    learned = Run()
    learned.rounds(World(there, scale=lambda number: 100.0), 1000)
    run = Run()
    run.company.restore(learned.company.state())
    run.copies.restore(learned.copies.state())
    reached = run.rounds(World(here), 1000) / World(here).best_rate()
    assert reached > 0.93


def test_who_starts_warm_is_fast_at_once() -> None:
    world = World()
    first = Run()
    steady = (first.rounds(world, 500), first.rounds(world, 1000))[1]
    second = Run(seed=1)
    second.company.restore(first.company.state())
    second.copies.restore(first.copies.state())
    assert second.rounds(world, 100) > 0.9 * steady


def test_without_a_clock_the_same_is_chosen_each_time() -> None:
    """By what is known of seconds: those that rounds really take change nothing."""
    learned = Run()
    learned.rounds(World(skips=(3.0, 2.0)), 500)
    chosen = []
    for noise in (0.0, 0.9):
        company = Company(GUESS, clock=False)
        company.restore(learned.company.state())
        run = Run(company)
        run.rounds(World(skips=(3.0, 2.0), noise=noise), 300)
        chosen.append([(choice.kind, choice.num_drafted) for choice, _, _ in run.done])
    assert chosen[0] == chosen[1]
    assert {kind for kind, _ in chosen[0]} >= {"copy", "skip"}


def test_trials_of_a_draft_end_early_and_lose_little() -> None:
    run = Run(seed=3)
    world = World(DEAR, matches=(1, 0, 0, 0, 0), skips=(1.0, 10.0), noise=0.0)
    run.rounds(world, 100)
    assert 0 < sum(choice.kind == "skip" for choice, _, _ in run.done) < TRIAL
    assert run.rounds(world, 900) > 0.98


# ------------------------------------------------------------------------------------------------ copies


def test_copies_are_judged_by_what_was_decoded_anyway() -> None:
    """Nobody drafts here: the text alone tells what copies would have been worth."""
    text = CopiedText(copies := Copies())
    before = copies.by_depth(8)[-1]
    tokens = list(range(20))
    for token in [*range(20), *range(20)]:
        text.look(tokens)
        tokens.append(token)
    assert copies.by_depth(8)[-1] > max(before, 0.9)
    assert text.chances(text.look(tokens))[11] > 0.5


def test_a_text_whose_copies_fail_is_told_from_others() -> None:
    copies = Copies()
    for _ in range(300):
        copies.learn(4, 0, True)
    bad, good = CopiedText(copies), CopiedText(copies)
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    for other in range(20, 32):  # after 1 2 3 4 another token comes each time
        tokens += [1, 2, 3, 4]
        bad.look(tokens)
        tokens.append(other)
    tokens += [1, 2, 3, 4]
    found = bad.look(tokens)
    assert bad.chances(found)[0] < 0.6 < good.chances(found)[0]


@pytest.mark.parametrize("length", range(1, len(FIRST) + 1))
def test_chances_fall_with_depth(length: int) -> None:
    chances = CopiedText(Copies()).chances(Match(list(range(12)), length))
    assert len(chances) == 12
    assert all(0 < later < earlier <= 1 for earlier, later in itertools.pairwise(chances))


@pytest.mark.parametrize("seed", range(5))
def test_what_is_judged_is_what_the_drafter_finds(seed: int) -> None:
    """Read token by token here, from the start there."""
    rng, text = np.random.default_rng(seed), CopiedText(Copies())
    tokens = rng.integers(0, 4, 5).tolist()
    for token in rng.integers(0, 4, 400).tolist():
        found = find_matches(tokens, MAX_LENGTH, MIN_LENGTH, MAX_TOKENS)
        match = text.look(tokens)
        assert (list(match.tokens), match.length) == ((found[0].tokens, found[0].length) if found else ([], 0))
        tokens.append(token)
