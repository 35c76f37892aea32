"""The skip sets of a profile in figures: what each costs, what it promises, how fast it was when it was tried."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..calibrate.trials import MAX_DRAFTED
from ..errors import ProfileError
from ..models.payoff import Array, expected_tokens, speed_table
from ..profiles.profile import Profile
from ..profiles.store import calibrate_command
from ..protocols import Knowledge, PlanContext, Probe
from ..strategies.prune import Prune
from ..types import FrontierPoint, LatencyFit, SkipSet

FITTED = "prune"
"""The strategy whose part of a profile is a frontier."""
DAMAGE = (LookupError, TypeError, ValueError, AttributeError, ZeroDivisionError)
"""What reading something damaged raises. An OptionError is a ValueError."""


@dataclass(frozen=True)
class KnownSet:
    """A skip set behind a text of some length. Seconds are counted in those of plain decoding."""

    skip: SkipSet
    cost: float  # of a drafted token
    match: float | None = None  # share of the target's choices it met; None: not looked at
    num_drafted: int | None = None  # tokens, where most is gained
    predicted: float | None = None  # speed-up with so many
    measured: float | None = None  # speed-up when it was tried
    tried_as: str = "fixed"  # by this strategy; others than `fixed` may have used other sets, too


@dataclass(frozen=True)
class Learned:
    """What a profile says at one length of text. `chosen` is what the strategy `prune` would draft with there."""

    fit: LatencyFit
    num_layers: int
    num_context: int
    frontier: Sequence[KnownSet] = ()
    tried: Sequence[KnownSet] = ()  # also those on the frontier
    chosen: SkipSet = SkipSet()  # empty: plain decoding

    def find(self, skip: SkipSet) -> KnownSet:
        """What is known of it; of a set that is not in the profile: its cost."""
        skip.check(self.num_layers)
        known = {one.skip: one for one in (*self.tried, *self.frontier)}
        return known.get(skip) or known_set(skip, None, self.fit, self.num_layers, self.num_context)

    def speed_ups(self, matches: Array, costs: Array) -> Array:
        """[matches, costs]: of drafting at the best length, as `predicted`."""
        lengths = np.arange(1, MAX_DRAFTED + 1)
        plain = self.fit.plain_seconds(self.num_context)
        verifying = [self.fit.verify_seconds(int(length) + 1, self.num_context) / plain for length in lengths]
        seconds = costs[:, None] * lengths + np.array(verifying)
        found: Array = (expected_tokens(matches, MAX_DRAFTED)[:, None, 1:] / seconds).max(-1)
        return found


def read(profile: Profile, num_layers: int, num_context: int) -> Learned:
    """Raises ProfileError where there is no latency, or where something cannot be read."""
    fit = fit_of(profile)
    with reading("skip sets", calibrate_command(profile.key)):
        trials, points = _trials(profile), _frontier(profile)
        matches = {point.skip: point.match for point in points}
        for skip in (*trials, *matches):
            skip.check(num_layers)

        def known(skip: SkipSet) -> KnownSet:
            trial = trials.get(skip)
            one = known_set(skip, trial.match if trial else matches[skip], fit, num_layers, num_context)
            return one if trial is None else replace(one, measured=trial.measured, tried_as=trial.strategy)

        frontier = [known(point.skip) for point in points]
        tried = [known(skip) for skip in trials]
    chosen = choose(profile.artefacts[FITTED].values, fit, num_layers, num_context) if frontier else SkipSet()
    return Learned(fit, num_layers, num_context, frontier, tried, chosen)


def fit_of(profile: Profile) -> LatencyFit:
    """Raises ProfileError where there is none that can be read."""
    command = calibrate_command(profile.key)
    if profile.latency is None:
        raise ProfileError(
            f"the profile of {profile.key.name} says nothing about seconds yet. Measure them with: {command}"
        )
    with reading("latency", command):
        return LatencyFit.from_json(profile.latency)


def _frontier(profile: Profile) -> list[FrontierPoint]:
    """The points that skip something."""
    if FITTED not in profile.artefacts:
        return []
    points = map(FrontierPoint.from_json, profile.artefacts[FITTED].values["frontier"])
    return [point for point in points if point.skip]


@dataclass(frozen=True)
class _Trial:
    strategy: str
    match: float
    measured: float


def _trials(profile: Profile) -> dict[SkipSet, _Trial]:
    """What was tried, by the set it mostly skipped; of several trials the one that did nothing else."""
    found: dict[SkipSet, _Trial] = {}
    for _, artefact in sorted(profile.artefacts.items()):
        for trial in artefact.values.get("trials", ()):
            skip = SkipSet.parse(trial["skip"])
            strategy = trial.get("strategy", "fixed")
            if skip and (skip not in found or strategy == "fixed"):
                found[skip] = _Trial(strategy, float(trial["match"]), float(trial["measured"]))
    return found


def known_set(skip: SkipSet, match: float | None, fit: LatencyFit, num_layers: int, num_context: int) -> KnownSet:
    cost = fit.draft_seconds(skip, num_context, num_layers) / fit.plain_seconds(num_context)
    if match is None:
        return KnownSet(skip, cost)
    speeds = speed_table([match], MAX_DRAFTED, fit, [skip], num_context, num_layers)[0]
    best = int(speeds[1:].argmax()) + 1
    return KnownSet(skip, cost, match, best, float(speeds[best] / speeds[0]))


def choose(found: Mapping[str, Any], fit: LatencyFit, num_layers: int, num_context: int) -> SkipSet:
    """Of a frontier with a skip set: by the strategy `prune` itself, before it has seen how its drafts of a text fare.

    Empty: it decodes plainly.
    """
    strategy = Prune(Prune.Options(), Knowledge(num_layers, lambda: fit, lambda name: found))
    strategy.begin(0, {})
    return strategy.plan(0, PlanContext(num_context, 0, _no_look)).skip


def _no_look(num_tokens: int) -> Probe:
    raise AssertionError("prune goes by the profile alone")


@contextlib.contextmanager
def reading(what: str, command: str) -> Iterator[None]:
    """Whatever damage does is a ProfileError that names the command."""
    try:
        yield
    except DAMAGE as error:
        raise ProfileError(
            f"the profile's {what} cannot be read ({type(error).__name__}: {error}). Make them anew with: {command}"
        ) from error
