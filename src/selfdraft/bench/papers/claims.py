"""Claims about what units found, by three verbs over estimates: faster, larger, above.

Two arms of one unit took turns on the same prompts and are compared paired: the estimate is of their ratio, and its
interval resamples prompts with both together. A claim is confirmed or not where the interval is clear of the bound;
else, and where there are too few prompts, it is inconclusive. `unless` makes claims that say nothing (the option had
no effect, ...) inconclusive: it returns the reason. Any function of what was found may be a claim as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...measure.estimate import (
    MANY_PROMPTS,
    Estimate,
    Quantity,
    estimate,
    length,
    ratio,
    ratio_of_ratios,
    speed,
    unpaired_ratio,
)
from ...measure.estimate import acceptance as acceptance_of
from ...measure.records import OFF, Record
from .experiment import Found, Judgement

TOO_FEW, SPEEDUP = "too few prompts", "speed-up"
QUANTITIES: dict[str, Quantity] = {"M": length, "alpha": acceptance_of, SPEEDUP: speed}
"""What claims can be about."""
Units = Sequence[str] | None
EachClaim = Callable[[Found], list[Judgement]]
EstimateOf = Callable[[Found, str], Estimate | None]
"""Of a unit."""


@dataclass(frozen=True)
class Side:
    """An arm in a unit, in one domain of it, or on those of its texts that `where` picks."""

    unit: str
    arm: str
    domain: str | None = None
    label: str | None = None
    where: Callable[[Record], bool] | None = None

    @property
    def name(self) -> str:
        return self.label or self.arm

    def records(self, found: Found) -> list[Record]:
        measured = found.measured(self.unit)
        records = measured.of(self.arm, self.domain) if measured else []
        return records if self.where is None else [record for record in records if self.where(record)]

    def plain(self, found: Found) -> list[Record]:
        """Of the same texts, and perhaps of more."""
        return replace(self, arm=OFF, where=None).records(found)

    def has_texts_of(self, other: Side) -> bool:
        return (self.unit, self.domain, self.where) == (other.unit, other.domain, other.where)


Unless = Callable[[Found, Side, Side], str | None]
"""Why a claim about two sides says nothing; None: it does say something."""

# ------------------------------------------------------------------------------------------------------- three verbs


def faster(
    text: str,
    one: str | Side,
    other: str | Side = OFF,
    bound: float = 1.0,
    units: Units = None,
    unless: Unless | None = None,
) -> EachClaim:
    """`bound`: of the ratio of the two speeds; 0.95: one is slower by less than 5 %."""
    return larger(text, SPEEDUP, one, other, bound=bound, units=units, unless=unless)


def larger(
    text: str,
    quantity: str,
    one: str | Side,
    other: str | Side,
    *,
    bound: float = 1.0,
    units: Units = None,
    unless: Unless | None = None,
) -> EachClaim:
    """That a quantity of one arm is above that of another, in each unit (or those named) that has both arms."""

    def judge(told: str, found: Found, unit: str) -> Judgement | None:
        first, second = (Side(unit, side) if isinstance(side, str) else side for side in (one, other))
        judgement = is_larger(told, found, quantity, first, second, bound)
        reason = unless(found, first, second) if unless and judgement else None
        return Judgement(told, None, reason) if reason else judgement

    return in_each(text, judge, units if isinstance(one, str) else [one.unit])


def above(text: str, value: EstimateOf, bound: float, label: str, *, units: Units = None, unit: str = "") -> EachClaim:
    """That an estimate of a unit is above a number; `unit`: of the number."""
    return in_each(text, lambda told, found, name: is_above(told, value(found, name), bound, label, unit=unit), units)


def at_least(text: str, quantity: str, arm: str, bound: float, *, units: Units = None) -> EachClaim:
    """That a quantity of an arm is above a number."""
    return above(text, lambda found, unit: estimate_of(found, quantity, Side(unit, arm)), bound, arm, units=units)


def below_formula(text: str, arm: str, *, units: Units = None) -> EachClaim:
    """That less is gained than by the paper's formula with c = 1 - r, of the same records."""

    def judge(told: str, found: Found, unit: str) -> Judgement | None:
        figures = found.figures(unit, arm)
        expected = figures.expected["by_ratio"] if figures else None
        return is_below(told, figures.speedup, round(expected, 2), arm, unit="x") if figures and expected else None

    return in_each(text, judge, units)


def denied(claim: EachClaim) -> EachClaim:
    """The contrary."""
    return lambda found: [one for judgement in claim(found) if (one := negated(judgement))]


def in_each(text: str, judge: Callable[[str, Found, str], Judgement | None], units: Units = None) -> EachClaim:
    """`{task}` in the text is the task of the unit, `{unit}` its name: from the word before it on, it says where."""
    what = text.partition("{")[0].rstrip().rpartition(" ")[0] if "{" in text else text

    def claim(found: Found) -> list[Judgement]:
        names = found.units if units is None else units
        told = [text.replace("{task}", found.label(unit)).replace("{unit}", unit) for unit in names]
        made = [judge(one, found, unit) for one, unit in zip(told, names, strict=True)]
        return [replace(one, where=one.claim.removeprefix(what)) for one in made if one]

    return claim


# -------------------------------------------------------------------------------------------------- what they stand on


def is_faster(text: str, found: Found, one: Side, other: Side, bound: float = 1.0) -> Judgement | None:
    """None: one of them was not measured. In different units each is held against plain decoding of its own."""
    return is_larger(text, found, SPEEDUP, one, other, bound)


def is_larger(
    text: str, found: Found, quantity: str | Quantity, one: Side, other: Side, bound: float = 1.0
) -> Judgement | None:
    """`quantity`: one of QUANTITIES by its name, or any other."""
    unit = "x" if quantity == SPEEDUP else ""
    known = {side: estimate_of(found, quantity, side) for side in (one, other)}
    if unit and other.arm == OFF and one.unit == other.unit:
        return is_above(text, known[one], bound, one.name, unit=unit)
    compared = _ratio_of(found, one, other, QUANTITIES[quantity] if isinstance(quantity, str) else quantity)
    if compared is None or None in known.values():
        return None
    is_one_arm = len({side.name for side in known}) == 1
    parts = [
        f"{side.unit if is_one_arm else side.name} {value.value:.2f}{unit}" for side, value in known.items() if value
    ]
    because = f"{', '.join(parts)}; ratio {compared}" + ("" if bound == 1.0 else f", against {bound:g}")
    return _judgement(text, compared, bound, because)


def is_above(
    text: str, found: Estimate | None, bound: float, label: str, *, unit: str = "", of: str = "prompts"
) -> Judgement | None:
    """Of any estimate; None: there is none. `of`: what was resampled."""
    if found is None:
        return None
    value = f"{label} {found.value:.2f}{unit} [{found.low:.2f}, {found.high:.2f}]"
    against = "" if bound == 1.0 and unit else f", against {bound:g}{unit}"
    return _judgement(text, found, bound, value + against, of)


def is_below(text: str, found: Estimate | None, bound: float, label: str, *, unit: str = "") -> Judgement | None:
    return negated(is_above(text, found, bound, label, unit=unit))


def negated(judgement: Judgement | None) -> Judgement | None:
    return judgement and replace(judgement, outcome=None if judgement.outcome is None else not judgement.outcome)


def speedup(found: Found, side: Side) -> Estimate | None:
    if side.where is not None:
        return ratio(side.records(found), side.plain(found), speed, _seed(found, side))
    figures = found.figures(side.unit, side.arm, side.domain)
    return figures.shown_speedup if figures else None


def estimate_of(found: Found, quantity: str | Quantity, side: Side) -> Estimate | None:
    if quantity == SPEEDUP:
        return speedup(found, side)
    wanted = QUANTITIES[quantity] if isinstance(quantity, str) else quantity
    return estimate(side.records(found), wanted, _seed(found, side))


def _ratio_of(found: Found, one: Side, other: Side, quantity: Quantity) -> Estimate | None:
    """Paired where both ran on the same texts; else speeds are each against plain decoding of their own texts."""
    ones, others = one.records(found), other.records(found)
    seed = _seed(found, one)
    if one.has_texts_of(other):
        return ratio(ones, others, quantity, seed)
    if quantity is not speed:
        return unpaired_ratio(ones, others, quantity, seed)
    return ratio_of_ratios((ones, one.plain(found)), (others, other.plain(found)), quantity, seed)


def _seed(found: Found, side: Side) -> int:
    measured = found.measured(side.unit)
    return measured.seed if measured else 0


def _judgement(text: str, found: Estimate, bound: float, because: str, of: str = "prompts") -> Judgement:
    outcome, needed = found.is_above(bound), found.prompts_to_tell(bound)
    if found.is_of_few:
        return Judgement(text, outcome, f"{TOO_FEW}: {because}")
    told = f"{needed:,} {of} would not tell" if needed == MANY_PROMPTS else f"about {needed:,} {of} would tell"
    return Judgement(text, outcome, because if outcome is not None else f"{because}; {told}")
