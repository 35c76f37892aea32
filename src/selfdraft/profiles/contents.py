"""What a profile says in figures: seconds of passes, and what each skip set costs, promises, and gave when tried."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..economics import LatencyFit, PassCosts, speed_table
from ..errors import ProfileError
from ..types import FrontierPoint, SkipSet
from .profile import Profile
from .store import calibrate_command

DAMAGE = (LookupError, TypeError, ValueError, AttributeError, ZeroDivisionError)
"""What reading something damaged raises. An OptionError is a ValueError."""


@dataclass(frozen=True)
class KnownSet:
    """A skip set after a text of some length. Seconds are counted in those of plain decoding."""

    skip: SkipSet
    cost: float  # of a drafted token
    match: float | None = None  # share of the target's choices it met; None: not known
    num_drafted: int | None = None  # tokens, where most is gained
    predicted: float | None = None  # speed-up with that many
    measured: float | None = None  # speed-up when it was tried
    tried_as: str = "fixed"  # by this strategy; others than `fixed` may have used other sets, too

    @classmethod
    def at(cls, costs: PassCosts, skip: SkipSet, match: float | None = None) -> KnownSet:
        cost = costs.draft(skip) / costs.plain
        if match is None:
            return cls(skip, cost)
        speeds = costs.speeds(match, skip)
        best = int(speeds[1:].argmax()) + 1
        return cls(skip, cost, match, best, float(speeds[best] / speeds[0]))


@dataclass(frozen=True)
class KnownSets:
    """All that a profile has. `chosen` is what the strategy `prune` begins a text of this length with."""

    costs: PassCosts
    frontier: Sequence[KnownSet] = ()
    tried: Sequence[KnownSet] = ()  # also those on the frontier
    chosen: SkipSet = SkipSet()  # empty: plain decoding

    def find(self, skip: SkipSet) -> KnownSet:
        """What is known of it; of a set that is not in the profile: its cost."""
        skip.check(self.costs.fit.num_layers)
        known = {one.skip: one for one in (*self.tried, *self.frontier)}
        return known.get(skip) or KnownSet.at(self.costs, skip)


def read_sets(profile: Profile, num_layers: int, num_context: int) -> KnownSets:
    """Raises ProfileError where there is no latency, or where something cannot be read."""
    fit = fit_of(profile, num_layers)
    costs = fit.at(num_context)
    with reading("skip sets", calibrate_command(profile.key)):
        tried = _tried(profile, costs)
        kept = profile.artefacts["prune"].values["frontier"] if "prune" in profile.artefacts else ()
        points = [point for point in map(FrontierPoint.from_json, kept) if point.skip]
        for skip in (*tried, *(point.skip for point in points)):
            skip.check(num_layers)
        frontier = [tried.get(point.skip) or KnownSet.at(costs, point.skip, point.match) for point in points]
    return KnownSets(costs, frontier, list(tried.values()), choice(points, fit, num_context))


def fit_of(profile: Profile, num_layers: int) -> LatencyFit:
    """Of a model with `num_layers`. Raises ProfileError where there is none that can be read."""
    command = calibrate_command(profile.key)
    if profile.latency is None:
        name = profile.key.name
        raise ProfileError(f"the profile of {name} says nothing about seconds yet. Measure them with: {command}")
    with reading("latency", command):
        return LatencyFit.from_json(profile.latency, num_layers)


def _tried(profile: Profile, costs: PassCosts) -> dict[SkipSet, KnownSet]:
    """What was tried, by the set it mostly skipped; of several trials the one that did nothing else."""
    found: dict[SkipSet, KnownSet] = {}
    for _, artefact in sorted(profile.artefacts.items()):
        for trial in artefact.values.get("trials", ()):
            skip, strategy = SkipSet.parse(trial["skip"]), str(trial.get("strategy", "fixed"))
            if skip and (skip not in found or strategy == "fixed"):
                known = KnownSet.at(costs, skip, float(trial["match"]))
                found[skip] = replace(known, measured=float(trial["measured"]), tried_as=strategy)
    return found


def has_trials(profile: Profile) -> bool:
    return any(artefact.values.get("trials") for artefact in profile.artefacts.values())


def fastest_method(profile: Profile) -> dict[str, Any]:
    """Of the strategies that were tried and were surely faster than plain decoding; empty: there is none.

    Fixed sets that were tried beside a strategy are what it chooses from: they say how good its choice is.
    """
    with reading("trials", calibrate_command(profile.key)):
        own = [(name, trial) for name, one in profile.artefacts.items() for trial in one.values.get("trials", ())]
        faster = [trial for name, trial in own if trial.get("is_faster") and trial["strategy"] == name]
        return dict(max(faster, key=lambda trial: float(trial["measured"]))["method"]) if faster else {}


def most_promising(points: Sequence[FrontierPoint], costs: PassCosts) -> FrontierPoint | None:
    """Of those that skip something, whatever plain decoding promises; None: there is none."""
    drafting = [point for point in points if point.skip]
    if not drafting:
        return None
    speeds = speed_table([point.match for point in drafting], costs.rounds([point.skip for point in drafting]))
    return drafting[int(speeds[:, 1:].max(1).argmax())]


def choice(points: Sequence[FrontierPoint], fit: LatencyFit, num_context: int) -> SkipSet:
    """As `prune` chooses before it has seen how its drafts fare; empty: it decodes plainly."""
    drafting = [point for point in points if point.skip]
    if not drafting:
        return SkipSet()
    costs = fit.about(num_context)
    speeds = {point.skip: float(costs.hoped(point.skip, [point.match])[0]) for point in drafting}
    best = max(speeds, key=lambda skip: speeds[skip])
    return best if speeds[best] > 1 / costs.plain else SkipSet()


@contextlib.contextmanager
def reading(what: str, command: str) -> Iterator[None]:
    """Whatever damage does is a ProfileError that names the command."""
    try:
        yield
    except DAMAGE as error:
        raise ProfileError(
            f"the profile's {what} cannot be read ({type(error).__name__}: {error}). Make them again with: {command}"
        ) from error
