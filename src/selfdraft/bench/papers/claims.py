"""Claims about what units found, by three verbs over estimates: faster, larger, at_least.

Two arms of one unit took turns on the same prompts and are compared paired: the estimate is of their ratio, and its
interval resamples prompts with both together. A claim is confirmed or not where the interval is clear of the bound;
else, and where there are too few prompts, it is inconclusive. `unless` makes claims that say nothing (the option had
no effect, ...) inconclusive: it returns the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ...measure.estimate import Estimate, Quantity, estimate, length, ratio, ratio_of_ratios, speed, unpaired_ratio
from ...measure.estimate import acceptance as acceptance_of
from ...measure.records import OFF, Record
from .experiment import Claim, Found, Judgement

TOO_FEW = "too few prompts"
QUANTITIES: dict[str, Quantity] = {"M": length, "alpha": acceptance_of, "speed": speed}
"""What `larger` and `at_least` can be about."""
Units = Sequence[str] | None
Unless = Callable[[Found, str], str | None] | None
"""Of a unit: why the claim says nothing there; None: it does say something."""


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


# ------------------------------------------------------------------------------------------------------- three verbs


def faster(
    text: str, one: str, other: str = OFF, *, bound: float = 1.0, units: Units = None, unless: Unless = None
) -> Claim:
    """In each unit (or those named) that has both arms; `{task}` in the text is the unit's task.

    `bound`: of the ratio of the two speeds; 0.95: one is slower by less than 5 %.
    """

    def judge(found: Found, unit: str) -> Judgement | None:
        return is_faster(_told(text, found, unit), found, Side(unit, one), Side(unit, other), bound)

    return _in_each(judge, units, unless)


def larger(text: str, quantity: str, one: str, other: str, *, units: Units = None) -> Claim:
    """That a quantity ("M", "alpha") of one arm is above that of another."""

    def judge(found: Found, unit: str) -> Judgement | None:
        return is_larger(_told(text, found, unit), found, quantity, Side(unit, one), Side(unit, other))

    return _in_each(judge, units)


def at_least(text: str, quantity: str, arm: str, bound: float, *, units: Units = None) -> Claim:
    """That a quantity of an arm is above a number."""

    def judge(found: Found, unit: str) -> Judgement | None:
        side = Side(unit, arm)
        return is_above(_told(text, found, unit), estimate_of(found, quantity, side), bound, side.name)

    return _in_each(judge, units)


def judged_by(judge: Callable[[Found], Judgement | Iterable[Judgement | None] | None]) -> Claim:
    """Any other claim: a function of what was found; None: it was not measured."""

    def claim(found: Found) -> Iterator[Judgement]:
        made = judge(found)
        yield from (one for one in ([made] if isinstance(made, Judgement | None) else made) if one is not None)

    return claim


def _in_each(judge: Callable[[Found, str], Judgement | None], units: Units, unless: Unless = None) -> Claim:
    def claim(found: Found) -> Iterator[Judgement]:
        for unit in found.units if units is None else units:
            judgement = judge(found, unit)
            if judgement is not None:
                reason = unless(found, unit) if unless else None
                yield judgement if reason is None else replace(judgement, outcome=None, because=reason)

    return claim


def _told(text: str, found: Found, unit: str) -> str:
    return text.replace("{task}", found.label(unit)).replace("{unit}", unit)


# -------------------------------------------------------------------------------------------------- what they stand on


def is_faster(text: str, found: Found, one: Side, other: Side, bound: float = 1.0) -> Judgement | None:
    """None: one of them was not measured. In different units each is held against plain decoding of its own."""
    if other.arm == OFF and one.unit == other.unit:
        return is_above(text, speedup(found, one), bound, one.name, unit="x")
    known = {side: speedup(found, side) for side in (one, other)}
    return _compared(text, _ratio_of(found, one, other, speed), known, "x", bound)


def is_larger(text: str, found: Found, quantity: str | Quantity, one: Side, other: Side) -> Judgement | None:
    """`quantity`: one of QUANTITIES by its name, or any other."""
    known = {side: estimate_of(found, quantity, side) for side in (one, other)}
    return _compared(text, _ratio_of(found, one, other, _quantity(quantity)), known, "")


def is_above(text: str, found: Estimate | None, bound: float, label: str, *, unit: str = "") -> Judgement | None:
    """Of any estimate; None: there is none."""
    if found is None:
        return None
    because = f"{label} {shown(found, unit)}" + ("" if bound == 1.0 and unit else f", against {bound:g}{unit}")
    return _judgement(text, found.is_above(bound), found, because)


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
    return estimate(side.records(found), _quantity(quantity), _seed(found, side))


def _quantity(quantity: str | Quantity) -> Quantity:
    return QUANTITIES[quantity] if isinstance(quantity, str) else quantity


def shown(found: Estimate, unit: str = "") -> str:
    """`1.20x [1.15, 1.26]`."""
    return f"{found.value:.2f}{unit} [{found.low:.2f}, {found.high:.2f}]"


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


def _compared(
    text: str, found: Estimate | None, known: Mapping[Side, Estimate | None], unit: str, bound: float = 1.0
) -> Judgement | None:
    if found is None or None in known.values():
        return None
    is_one_arm = len({side.name for side in known}) == 1
    parts = [f"{side.unit if is_one_arm else side.name} {one.value:.2f}{unit}" for side, one in known.items() if one]
    because = f"{', '.join(parts)}; ratio {found}" + ("" if bound == 1.0 else f", against {bound:g}")
    return _judgement(text, found.is_above(bound), found, because)


def _judgement(text: str, outcome: bool | None, found: Estimate, because: str) -> Judgement:
    return Judgement(text, outcome, f"{TOO_FEW}: {because}" if found.is_of_few else because)
