"""KnapSpec's sub-networks after texts of the model: what they promise and reach (correlation), and lemma 4.1.

The lemma says why a close state drafts the same token. Let x be the state that the head reads, w_1, w_2, ... the head's
rows, i the target's choice, xi the margin by which its score leads. If x' is as long as x and

    cos(x, x') >= 1 - xi^2 / (2 |x|^2 max_j |w_i - w_j|^2)        (the premise)

then x' has the same choice (the conclusion). Any x' may be made as long as x: where the head has no bias, scores grow
by one factor and the choice stays, whatever a family does to its scores afterwards (dividing, softcapping). Everything
is computed in float64, of states and weights as the model has them; what rounding may still do is taken off the margin,
so that it can only spoil a premise, never a conclusion.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch

from ...calibrate.fit_session import ScoredTexts
from ...calibrate.writing import Text, probe_text
from ...economics import PassCosts, expected_tokens
from ...engine.engine import Engine
from ...errors import UnsupportedModelError
from ...measure.estimate import FEW_PROMPTS, Estimate, correlation
from ...models.checks import relative_error, tolerance_of
from ...models.decoder import Decoder
from ...prompts.tokens import encode
from ...protocols import Probe
from ...strategies.knapsack import solve
from ...strategies.knapspec import acceptances, items
from ...strategies.uniform import spread
from ...types import Prompt, SkipSet
from ..charts import Group, Panels, Scatter
from ..tables import Table
from .claims import TOO_FEW, Side, is_above, speedup
from .experiment import Experiment, Found, Judgement, Plot, Unit, Values, fewest_prompts
from .forms import Column, by_arm, kept
from .workbench import Task, Workbench, each, joined

MAX_DRAFTED, MIN_COSINE, SHARE = 10, 0.5, 0.5
"""The paper's: tokens of a draft, the cosine below which states are pruned, how much may be skipped, each at most."""

# ------------------------------------------------------------------------------------------------- the knapsack


@dataclass(frozen=True)
class Network:
    """A sub-network of the knapsack, and the draft length at which it promises most."""

    skip: str
    acceptance: float
    num_drafted: int
    tokens_per_time: float

    @classmethod
    def of(cls, skip: SkipSet, acceptance: float, costs: PassCosts) -> Network:
        speeds = costs.speeds(acceptance, skip, MAX_DRAFTED)[1:]
        return cls(str(skip), acceptance, int(speeds.argmax()) + 1, float(speeds.max()))


class References:
    """Texts that the model wrote after prompts which are not measured. The first one shows the knapsack what to skip,
    the others how often a sub-network is right; where there is only one, it does both.
    """

    def __init__(self, bench: Workbench, prompts: Sequence[Prompt], num_tokens: int | None = None) -> None:
        self._bench, self._prompts = bench, prompts
        self._num_tokens = num_tokens or max(48, bench.scale.tokens)

    @cached_property
    def first(self) -> Text:
        return self._bench.write(self._prompts[:1], self._num_tokens)[0]

    @cached_property
    def others(self) -> ScoredTexts:
        texts = self._bench.write(self._prompts[1:], self._num_tokens)
        return ScoredTexts(self._bench.engine.runner, texts or [self.first])

    @cached_property
    def _probe(self) -> Probe:
        """At the last tokens of the first text."""
        begin = max(self.first.num_prompt_tokens, len(self.first.tokens) - num_looked_at(self._bench))
        return probe_text(Text(self.first.tokens, begin), self._bench.engine.runner)

    @property
    def costs(self) -> PassCosts:
        return self._bench.latency.at(len(self.first.tokens))

    def networks(self, *, is_bound: bool = False, min_cosine: float = MIN_COSINE) -> list[Network]:
        """One for each weight that can be skipped, the lightest first."""
        num_layers, weights = self._bench.latency.num_layers, self.costs.paper_weights
        budget = int(SHARE * sum(weights) * num_layers)
        candidates, states = solve(self._probe, items(num_layers, weights, is_bound), budget, min_cosine)
        found = zip(candidates[1:], acceptances(self._probe, states)[1:], strict=True)
        return [Network.of(SkipSet.of_numbers(one.skipped), alpha, self.costs) for one, alpha in found]

    def best(self, **asked: Any) -> Network | None:
        return max(self.networks(**asked), key=lambda one: one.tokens_per_time, default=None)


def num_looked_at(bench: Workbench) -> int:
    """Tokens that a plan looks at, at least."""
    return 16 if bench.scale.is_quick else 32


def with_references(bench: Workbench, count: int = 2) -> Workbench:
    """With at least `count` prompts of each task that are not measured."""
    return replace(bench, scale=replace(bench.scale, fit_prompts=max(count, bench.scale.fit_prompts)))


# --------------------------------------------------------------------------------------------------- correlation

FAMILIES = ("knapsack", "layers", "attentions", "MLPs", "bound knapsack")
NUM_DRAFTED, RATIOS, BUDGETS = 4, (0.12, 0.25, 0.4), (0.3, 0.6, 1.0)
"""Tokens in every round; of evenly spread layers, attentions or MLPs; of the largest weight that may be skipped."""
PREDICTORS = {"tpt": "TPT", "by_width": "TPT, verification by its width", "tpl": "TPL", "match": "match"}


def _family(family: str, bench: Workbench, task: Task) -> Values:
    bench = with_references(bench)
    task = bench.task(task.name) or task
    texts = References(bench, task.fitting)
    lengths = [len(encode(prompt, bench.engine)) for prompt in task.measured]
    costs = bench.latency.at(sum(lengths) / len(lengths) + bench.scale.tokens / 2)
    skips = {str(skip): skip for skip in _sets(family, texts, costs.fit.num_layers) if skip}
    predictions = {name: predicted(skip, texts.others.match(skip), costs) for name, skip in skips.items()}
    fixed = {"strategy": "fixed", "lookahead": "fixed", "tree": "chain"}
    methods = {name: {**fixed, "settings": {"fixed": {"skip": name, "tokens": NUM_DRAFTED}}} for name in skips}
    return {**bench.measure(task, methods), "predicted": predictions, "task": family}


def _sets(family: str, texts: References, num_layers: int) -> list[SkipSet]:
    if "knapsack" in family:
        networks = texts.networks(is_bound=family.startswith("bound"))
        return [SkipSet.parse(networks[round(one * (len(networks) - 1))].skip) for one in BUDGETS if networks]
    layers = [spread(num_layers, ratio) for ratio in RATIOS]
    return [SkipSet.of(one if family != "MLPs" else (), one if family != "attentions" else ()) for one in layers]


def predicted(skip: SkipSet, match: float, costs: PassCosts, num_drafted: int = NUM_DRAFTED) -> dict[str, float]:
    """What the paper's formulas say of drafting `num_drafted` tokens in each round, `match` of them right.

    `by_width`: tokens per time with a verification that costs what one of its width was measured to cost.
    """
    num_layers, tokens = costs.fit.num_layers, float(expected_tokens([match], num_drafted)[0, -1])
    return {
        "tpt": tokens / (num_drafted * costs.draft(skip) + costs.plain),
        "by_width": float(costs.speeds(match, skip, num_drafted)[-1]),
        "tpl": tokens / (num_drafted * (num_layers - len(skip) / 2) + num_layers),
        "match": match,
    }


def _points(found: Found, predictor: str, units: Iterable[str]) -> list[tuple[float, float]]:
    """(prediction, speed-up that was reached) of each set."""
    sets = [(unit, arm) for unit in units for arm in found.get(unit, "predicted")]
    known = [(found.get(unit, "predicted", arm, predictor), speedup(found, Side(unit, arm))) for unit, arm in sets]
    return [(value, one.value) for value, one in known if one]


def _r(found: Found, predictor: str, than: str | None = None) -> Estimate | None:
    """Of a predictor and the speed-up; or by how much it is above another's."""
    both = [_points(found, name, found.units) for name in (predictor, than or predictor)]
    values, others = ([value for value, _ in points] for points in both)
    return correlation(values, [speed for _, speed in both[0]], others if than else None)


def _correlations(found: Found) -> Table:
    known = {title: _r(found, name) for name, title in PREDICTORS.items()}
    rows = [[title, str(r), f"{r.value**2:.2f}", f"{r.count}"] for title, r in known.items() if r]
    return Table("correlation with measured throughput", ["predictor", "Pearson r", "R^2", "sets"], rows)


def _is_best_predictor(found: Found) -> Iterator[Judgement | None]:
    for other, title in {"tpl": "TPL", "match": "match, the acceptance rate"}.items():
        claim, above = f"TPT is more highly correlated with throughput than {title}", _r(found, "tpt", other)
        made, num_prompts = is_above(claim, above, 0.0, "difference of r", of="sets"), fewest_prompts(found) or 0
        is_chance = num_prompts < FEW_PROMPTS  # speeds of few prompts, however many sets there are
        yield replace(made, outcome=None, because=f"{TOO_FEW}: {made.because}") if made and is_chance else made


def _correlation_chart(found: Found) -> Plot | None:
    def panel(name: str, title: str) -> Scatter:
        groups = [Group(found.label(unit), _points(found, name, [unit])) for unit in found.units]
        return Scatter(groups, title, "measured speed-up", "x", title=f"r = {_r(found, name) or '-'}")

    panels = Panels([panel(*one) for one in PREDICTORS.items()], share_y=True)
    return Plot(panels, "predicted against measured throughput", (12.0, 3.6)) if found.units else None


PREDICTED: Sequence[Column] = [(title, kept(".4g", "predicted", name)) for name, title in PREDICTORS.items()]
CORRELATION = Experiment(
    "correlation",
    joined(*(each(["gsm8k"], partial(_family, family), f"{family} ") for family in FAMILIES)),
    [_correlations, by_arm([*PREDICTED, "accepted", "speed-up"], first="sets", title="the sets")],
    [_is_best_predictor],
    chart=_correlation_chart,
)

# ---------------------------------------------------------------------------------------------------- the lemma

CHUNK_ROWS = 4096
"""Of the head, at a time in float64."""


@dataclass(frozen=True)
class Check:
    """What the lemma says about the states of some sub-networks, and what is so: each [sub-networks, tokens]."""

    cosines: torch.Tensor
    is_close: torch.Tensor  # the premise holds
    is_same: torch.Tensor  # the conclusion holds
    allowed: torch.Tensor  # [tokens] by how much the cosine may fall short of 1


def check(target: torch.Tensor, others: torch.Tensor, head: torch.Tensor) -> Check:
    """Of states [tokens, hidden] and [sub-networks, tokens, hidden] as the head [vocabulary, hidden] reads them."""
    target, others = target.double(), others.double()
    length = target.norm(dim=-1)
    others = others * (length / others.norm(dim=-1).clamp(min=torch.finfo(torch.float64).tiny))[..., None]
    # Of unit vectors: half the squared distance is what the cosine lacks, without the rounding of 1 - cosine.
    gaps = ((others - target) / length[:, None]).square().sum(-1) / 2
    (first, second), words = (found.T for found in _products(target, head).topk(2))
    chosen = head[words[0]].double()
    squares = torch.cat([rows.square().sum(-1) for rows in _parts(head)])
    widest = (squares - 2 * _products(chosen, head)).amax(-1) + chosen.square().sum(-1)  # its square
    rounding = 4 * head.shape[1] * torch.finfo(torch.float64).eps * length * squares.max().sqrt()
    margin = (first - second - rounding).clamp(min=0)
    allowed = margin.square() / (2 * length.square() * widest)
    return Check(1 - gaps, (gaps <= allowed) & (margin > 0), _choices(others, head) == words[0], allowed)


def _parts(head: torch.Tensor) -> Iterator[torch.Tensor]:
    return (head[start : start + CHUNK_ROWS].double() for start in range(0, len(head), CHUNK_ROWS))


def _products(states: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    return torch.cat([states @ rows.T for rows in _parts(head)], -1)


def _choices(states: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    """[..., hidden] -> [...]; never all scores at once, as there are many states."""
    found = [(states @ rows.T).max(-1) for rows in _parts(head)]
    part = torch.stack([values for values, _ in found]).argmax(0)
    words = torch.stack([places for _, places in found]).gather(0, part[None])[0]
    return part * CHUNK_ROWS + words


@torch.inference_mode()
def examine(engine: Engine, text: Text) -> tuple[list[int], Check]:
    """Sub-networks (sub-layers that each skips, at most half of all) where each token after the prompt was chosen."""
    decoder, num_layers = Decoder(engine.model), engine.runner.num_layers
    if num_layers < 3:
        raise UnsupportedModelError(f"the model has {num_layers} layers, and the first and the last are never skipped")
    candidates, states = solve(probe_text(text, engine.runner), items(num_layers, (1, 1)), num_layers, min_cosine=-1.0)
    normed = decoder.final_norm(states.hidden)
    head = _head_weight(decoder, normed[:1, :1])
    if normed.device.type == "mps":  # it has no float64
        normed = normed.cpu()
    return [one.weight for one in candidates[1:]], check(normed[0], normed[1:], head.to(normed.device))


def _head_weight(decoder: Decoder, normed: torch.Tensor) -> torch.Tensor:
    """[vocabulary, hidden], where the scores are the state times that and nothing else."""
    head = decoder.head
    weight = getattr(head, "weight", None)
    if isinstance(weight, torch.Tensor) and weight.is_floating_point() and getattr(head, "bias", None) is None:
        expected = torch.nn.functional.linear(normed, weight)
        if relative_error(head(normed), expected) <= tolerance_of(normed.dtype):
            return weight.detach()
    raise UnsupportedModelError(
        f"the scores of {type(decoder.model).__name__} are not its head's weight times the state (a bias, an adapter, "
        "quantised weights?), and the lemma says nothing about such a head. Take a model whose head has a weight alone"
    )


# ------------------------------------------------------------------------------------------------ its experiment

STATES = "states"
NUM_TEXTS, NUM_TOKENS, STEPS = 6, 16, 10
"""Prompts that the model continues, tokens that it writes after each, rows of the table for 100 % of the sub-layers."""


def _examined(bench: Workbench) -> Values:
    texts = bench.write(bench.prompts[:NUM_TEXTS], NUM_TOKENS)
    return summary([examine(bench.engine, text) for text in texts], 2 * bench.engine.runner.num_layers)


def summary(texts: Sequence[tuple[list[int], Check]], num_sublayers: int) -> dict[str, Any]:
    """Rows by the share skipped, that of all last; `needed`: the cosine that the premise asks of the middle token."""
    facts = [torch.stack((one.cosines, one.is_close, one.is_same, one.is_close & ~one.is_same), -1) for _, one in texts]
    steps = [[-(-STEPS * weight // num_sublayers) for weight in weights] for weights, _ in texts]
    rows = [["all", *_row(facts)]]
    for step in sorted({one for own in steps for one in own}, reverse=True):
        parts = [found[[one == step for one in own]] for found, own in zip(facts, steps, strict=True)]
        rows.insert(0, [f"up to {step / STEPS:.0%}", *_row(parts)])
    allowed = torch.cat([one.allowed for _, one in texts])
    return {"rows": rows, "needed": float(1 - allowed.median()), "num_tokens": len(allowed)}


def _row(texts: Sequence[torch.Tensor]) -> list[Any]:
    """Sub-networks, pairs, mean cosine, pairs whose premise holds, with the same choice, violations."""
    cosines, *counted = torch.cat([found.flatten(0, 1) for found in texts]).cpu().unbind(-1)
    return [sum(map(len, texts)), len(cosines), float(cosines.mean()), *(int(one.sum()) for one in counted)]


def _table(found: Found) -> Table:
    columns = ["skipped", "sub-networks", "pairs", "mean cosine", "premise holds", "same choice", "violations"]
    rows = [
        [name, f"{count}", f"{pairs}", f"{cosine:.4f}", f"{close / pairs:.2%}", f"{same / pairs:.1%}", f"{violations}"]
        for name, count, pairs, cosine, close, same, violations in found.get(STATES, "rows") or ()
    ]
    return Table("", columns, rows)


def _is_kept(found: Found) -> Judgement | None:
    if STATES not in found.units:
        return None
    *_, pairs, _, close, _, violations = found.get(STATES, "rows")[-1]
    because = f"{violations} violations in {close} of {pairs} pairs in which the premise holds"
    because += f"; it asks for a cosine of {found.get(STATES, 'needed'):.6f} at the median token"
    if violations:
        because += ". The lemma is proven, so this is a bug of selfdraft: please report it"
    claim = "a state that is close enough, by the premise, makes the target's choice"
    return Judgement(claim, not violations if close else None, because)


LEMMA = Experiment("lemma", lambda bench: [Unit(STATES, lambda: _examined(bench))], [_table], [_is_kept])
