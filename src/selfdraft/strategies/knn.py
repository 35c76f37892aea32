"""`knn`: a skip set for each domain; a prompt is drafted with the set of the domain that it is nearest to.

KNN-SSD (k nearest neighbours, self-speculative decoding; arXiv:2505.16162). Beforehand: hidden vectors of prompts of
some domains; the vectors of a domain nearest to the centres of K-means are its anchors, and a skip set is searched on
the prompts that stand for it in the same way. While generating: the prompt's own vector, which comes with the prefill,
and the anchor of largest cosine decide once what drafts the whole text.

What differs from the paper (`paper`: as its authors' code, which skips layer 0, too, where that was fastest; but for
the last token of a prompt, cosines in K-means, and which prompts are searched on: theirs are drawn):
- sets are searched with `prune`, which takes minutes, not by Bayesian optimisation (`search`: draft-verify), and drafts
  are its trees, not chains of up to 12 tokens that stop below a confidence of 0.8;
- where a domain's own sets do not surely serve its texts better than those of all, these draft (`search`: prune);
- anchors are prompts; the code has the centres themselves, and equation 2 those nearest to one centre (`central`);
- a prompt's vector is the mean over its tokens but the last; the code's over all, the text's is the last (`feature`);
- labels, where there are any, are the domains, as in the code; the text clusters the vectors of all;
- with `prune` a domain has several sets, of which the one drafts that promises most at the time; the paper has one;
- a prompt less similar to the nearest domain than its own prompts are to each other is a stranger, drafted with a set
  of all domains (`stranger`); and where plain decoding promises more, nothing is drafted (`always`);
- vectors are clustered by direction, without labels into as many domains as stand apart most clearly (`clusters`).

A fit keeps the domains that the profile has and the prompts have not, and then the general set, too: to have a new one,
fit prompts of all domains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import numpy as np
import torch

from ..errors import OptionError, ProfileError, unknown_name
from ..fitting import Kit
from ..options import setting
from ..profiles.searches import has_own
from ..protocols import Knowledge, PlanContext, Strategy
from ..registry import STRATEGIES, find
from ..types import OFF, Plan, StepRecord
from .anchors import (
    FEATURES,
    NO_THRESHOLD,
    POINT,
    REPRESENTATIVES,
    Anchors,
    Domain,
    condense,
    others,
    unpack,
    vector_of,
)
from .base import ConstantStrategy, PlainStrategy, damaged
from .domains import DAMAGE, GENERAL, differing, fit_domains
from .prune import Prune

_PAPER = {
    "search": "draft-verify",
    "feature": "mean",
    "representatives": "kmeans",
    "stranger": NO_THRESHOLD,
    "always": True,
}
_PAPERS_SEARCH = {"always": True, "first_layer": True, "timed_with": "confidence"}


@dataclass(frozen=True)
class Route:
    """Where a text was sent: to `strategy`, that of its nearest domain or the general one."""

    strategy: Strategy
    domain: str = GENERAL
    similarity: float | None = None
    nearest: str | None = None


class Knn(PlainStrategy):
    @dataclass(frozen=True)
    class Options:
        feature: str = setting("mean", "a prompt's vector: the mean over its tokens, or of the last one (mean, last)")
        search: str = setting("prune", "the strategy whose fit finds each domain's set")
        representatives: str = setting(
            "kmeans",
            "prompts that stand for a domain, by the centres of K-means or its own (kmeans, central); for the fit",
        )
        anchors: int = setting(10, "of each domain; for the fit", minimum=1)
        search_prompts: int = setting(
            0, "prompts to search each domain's set on; 0: 20, 8 under `paper`; for the fit", minimum=0
        )
        max_vectors: int = setting(1000, "prompts of each domain to look at, at most; for the fit", minimum=1)
        clusters: int = setting(
            0, "number of domains to find, whatever the labels; 0: go by them; for the fit", minimum=0
        )
        stranger: float | None = setting(
            None, "who is less similar to a domain is none of it; None: as calibrated", minimum=-1.0, maximum=1.0
        )
        always: bool = setting(False, "draft even where plain decoding promises more")
        paper: bool = setting(False, "as the authors' code, whatever search, feature, representatives, stranger say")
        seed: int = setting(0, "of the clusters", minimum=0)
        inner: Any = field(default=None, init=False, metadata={"help": "options of `search`, set by its own name"})

        RUNS: ClassVar[str] = "search"

        def __post_init__(self) -> None:
            for name, value in _PAPER.items() if self.paper else ():
                object.__setattr__(self, name, value)
            if not self.search_prompts:
                object.__setattr__(self, "search_prompts", 8 if self.paper else 20)
            if self.feature not in FEATURES:
                raise unknown_name("feature of knn", self.feature, FEATURES)
            if self.representatives not in REPRESENTATIVES:
                raise unknown_name("representatives of knn", self.representatives, REPRESENTATIVES)
            _check_search(self.search)

    can_fit = True
    pairs_with: ClassVar[Mapping[str, Any]] = Prune.pairs_with
    paper_pairs_with: ClassVar[Mapping[str, Any]] = {
        "lookahead": "confidence",
        "tree": "chain",
        "settings": {"confidence": {"threshold": 0.8, "max_tokens": 12}},
    }

    def __init__(self, options: Options, knowledge: Knowledge) -> None:
        command = f"{knowledge.command('calibrate')} --strategy knn --domain-field domain --prompts FILE"
        artefact = knowledge.artefact("knn", "the strategy 'knn'", command)
        domains = _read(artefact, options, command)
        self._names = [domain.name for domain in domains]
        self._anchors = Anchors(
            np.concatenate([domain.anchors for domain in domains]),
            np.repeat(np.arange(len(domains)), [len(domain.anchors) for domain in domains]),
        )
        self._thresholds = [domain.threshold if options.stranger is None else options.stranger for domain in domains]
        self._general = _build(artefact["general"], options, knowledge, command) or ConstantStrategy(OFF)
        own = (has_own(one.found) and _build(one.found, options, knowledge, command) for one in domains)
        self._domains = [strategy or self._general for strategy in own]
        self._condense = condense(options.feature)
        self._routes: dict[int, Route] = {}
        inner = (*self._domains, self._general)
        self.needs = tuple(dict.fromkeys(point for one in inner for point in one.needs))
        self._inner_needs = {*self.needs, *(point for one in inner for point in one.prefill_needs)}
        self.prefill_needs = tuple(dict.fromkeys((POINT, *sorted(self._inner_needs.difference(self.needs)))))
        self.known_plans = tuple(dict.fromkeys(plan for one in inner for plan in one.known_plans))

    def condense(self, captured: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """The vector's share, and what the search's strategy keeps."""
        inner = {point: states for point, states in captured.items() if point in self._inner_needs}
        return {**(self._general.condense(inner) if inner else {}), **self._condense(captured)}

    def begin(self, sequence_id: int, prefill: Mapping[str, torch.Tensor]) -> None:
        route = self._route(prefill)
        self._routes[sequence_id] = route
        route.strategy.begin(sequence_id, others(prefill))

    def _route(self, prefill: Mapping[str, torch.Tensor]) -> Route:
        """A prompt of one token has no prefill: nothing is known of it."""
        vector = vector_of(prefill)
        if vector is None:
            return Route(self._general)
        found = self._anchors.nearest(vector)
        name = self._names[found.domain]
        if found.similarity >= self._thresholds[found.domain]:
            return Route(self._domains[found.domain], name, found.similarity, name)
        return Route(self._general, GENERAL, found.similarity, name)

    def plan(self, sequence_id: int, context: PlanContext) -> Plan:
        return self._routes[sequence_id].strategy.plan(sequence_id, context)

    def observe(self, sequence_id: int, step: StepRecord) -> None:
        self._routes[sequence_id].strategy.observe(sequence_id, step)

    def meanwhile(self) -> None:
        for strategy in {route.strategy for route in self._routes.values()}:
            strategy.meanwhile()

    def report(self, sequence_id: int) -> Mapping[str, Any]:
        route = self._routes[sequence_id]
        own = {"domain": route.domain, "similarity": route.similarity, "nearest": route.nearest}
        return {**route.strategy.report(sequence_id), **own}

    def end(self, sequence_id: int) -> None:
        if route := self._routes.pop(sequence_id, None):
            route.strategy.end(sequence_id)

    @staticmethod
    def fit(kit: Kit, options: Any) -> dict[str, Any]:
        """The domains' anchors, and a search for each; goes on after the searches that an interrupted fit had kept."""
        kind = find("strategy", options.search)
        return fit_domains(kit, options, lambda inner: kind.fit(inner, _inner_options(kind, options)))

    @staticmethod
    def num_searches(options: Any, num_domains: int) -> int:
        """Each domain's, the general one where there are several, and reading the vectors."""
        count = options.clusters or num_domains
        return count + (count > 1) + 1


def _check_search(name: str) -> None:
    kind = find("strategy", name)
    if name == "knn" or not kind.can_fit:
        fitted = [other for other in STRATEGIES if other != "knn" and find("strategy", other).can_fit]
        raise OptionError(f"knn.search={name!r} cannot search: it is fitted to no prompts; use {' or '.join(fitted)}")


def _inner_options(kind: Any, options: Knn.Options) -> Any:
    """As set by its own name (`--set prune.gain=0.1`); told to `always` draft it does, where it can."""
    inner = options.inner or kind.Options()
    told = _PAPERS_SEARCH if options.paper else {"always": True} if options.always else {}
    known = {item.name for item in fields(inner)}
    return replace(inner, **{name: value for name, value in told.items() if name in known})


def _read(artefact: Mapping[str, Any], options: Knn.Options, command: str) -> list[Domain]:
    try:
        domains, _ = unpack(artefact), [artefact[name] for name in ("feature", "search", "general")]
    except DAMAGE as error:
        raise damaged("domains of `knn`", error, command) from error
    for option, made, asked in differing(artefact, options):
        raise OptionError(
            f"knn.{option}={asked}, but the profile's domains were found with knn.{option}={made}. "
            f"Say --set knn.{option}={made}, or fit them again with: {command} --set knn.{option}={asked}"
        )
    return domains


def _build(found: Mapping[str, Any], options: Knn.Options, knowledge: Knowledge, command: str) -> Strategy | None:
    """The search's strategy, as if this were all that was found. None: that skips nothing yet."""
    kind = find("strategy", options.search)
    inner = replace(knowledge, artefact=lambda name, *told: found, known=lambda name: found)
    try:
        if "frontier" in found and not any(point["skip"] for point in found["frontier"]):
            return None
        built: Strategy = kind(_inner_options(kind, options), inner)
        return built
    except (*DAMAGE, ProfileError) as error:
        raise damaged("domains of `knn`", error, command) from error
