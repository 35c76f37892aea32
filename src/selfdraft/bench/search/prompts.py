"""Which prompts are measured and which are learned from: some of each domain, never the same.

Files may hold one source behind the other, so each domain is shuffled first: else its beginning and its end differ.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import OptionError, unknown_name
from ..prompts import BenchPrompt, split

NUM_DOMAINS = 5


@dataclass(frozen=True)
class Wanted:
    """`domains`: for `knn`, none named: the first five; `stream_domain`: None: the first of these."""

    domains: Sequence[str] = ()
    per_domain: int = 8
    calibration: int = 24
    stream_domain: str | None = None
    stream_prompts: int = 100
    max_prompt_chars: int | None = None
    seed: int = 0
    has_stream: bool = True
    has_domains: bool = True


@dataclass(frozen=True)
class Prompts:
    """By domain. `others`: prompts of domains that nothing was learned from; `left_out`: how many were too long."""

    stream_domain: str
    stream: Sequence[BenchPrompt]
    stream_kept_apart: Sequence[BenchPrompt]
    measured: Mapping[str, Sequence[BenchPrompt]]
    kept_apart: Mapping[str, Sequence[BenchPrompt]]
    others: Mapping[str, Sequence[BenchPrompt]]
    left_out: Mapping[str, int]

    @property
    def mixed_kept_apart(self) -> list[BenchPrompt]:
        """In turn from each domain."""
        return _in_turn(self.kept_apart.values())

    @property
    def mixed_measured(self) -> list[BenchPrompt]:
        return _in_turn(self.measured.values())

    def figures(self) -> dict[str, Any]:
        return {
            "stream": {"domain": self.stream_domain, "num_prompts": len(self.stream)},
            "measured": _counts(self.measured),
            "kept_apart": _counts(self.kept_apart),
            "others": _counts(self.others),
            "left_out": dict(self.left_out),
        }


def choose(prompts: Iterable[BenchPrompt], wanted: Wanted) -> Prompts:
    """No text twice. An OptionError where a domain has too few."""
    by_domain, left_out = _sort(prompts, wanted.max_prompt_chars)
    for found in by_domain.values():
        random.Random(wanted.seed).shuffle(found)
    domains = list(wanted.domains) or list(by_domain)[:NUM_DOMAINS]
    streamed = wanted.stream_domain or domains[0]
    for name in (*domains, streamed):
        if name not in by_domain:
            raise unknown_name("domain", name, list(by_domain))
    if len(set(domains)) < len(domains) or (wanted.has_domains and len(domains) < 2):
        raise OptionError(f"--domains {' '.join(domains)}: name at least two domains, each once")
    stream, stream_apart = _split(by_domain, [streamed] * wanted.has_stream, wanted.stream_prompts, wanted.calibration)
    measured, apart = _split(by_domain, domains * wanted.has_domains, wanted.per_domain, wanted.calibration)
    foreign = [name for name in by_domain if name not in domains and wanted.has_domains]
    others = {name: by_domain[name][: wanted.per_domain] for name in foreign}
    return Prompts(
        streamed, stream.get(streamed, []), stream_apart.get(streamed, []), measured, apart, others, left_out
    )


def _sort(prompts: Iterable[BenchPrompt], max_chars: int | None) -> tuple[dict[str, list[BenchPrompt]], dict[str, int]]:
    """Domains in the order in which they first appear, also where their first prompts are too long."""
    unique: dict[str, BenchPrompt] = {}
    for prompt in prompts:
        unique.setdefault(prompt.text.strip(), prompt)
    by_domain: dict[str, list[BenchPrompt]] = {prompt.domain: [] for prompt in unique.values()}
    left_out: dict[str, int] = {}
    for prompt in unique.values():
        if max_chars is not None and len(prompt.text) > max_chars:
            left_out[prompt.domain] = left_out.get(prompt.domain, 0) + 1
        else:
            by_domain[prompt.domain].append(prompt)
    kept = {domain: found for domain, found in by_domain.items() if found}
    if not kept:
        raise OptionError(f"every prompt has more than {max_chars} characters; raise --max-prompt-chars")
    return kept, left_out


def _split(
    by_domain: Mapping[str, list[BenchPrompt]], domains: Sequence[str], num_first: int, num_last: int
) -> tuple[dict[str, list[BenchPrompt]], dict[str, list[BenchPrompt]]]:
    pairs = {domain: split(by_domain[domain], num_first, num_last) for domain in domains}
    first = {domain: pair[0] for domain, pair in pairs.items()}
    return first, {domain: pair[1] for domain, pair in pairs.items()}


def _in_turn(groups: Iterable[Sequence[BenchPrompt]]) -> list[BenchPrompt]:
    """All groups have the same length."""
    return [prompt for turn in zip(*groups, strict=True) for prompt in turn]


def _counts(groups: Mapping[str, Sequence[BenchPrompt]]) -> dict[str, int]:
    return {domain: len(found) for domain, found in groups.items()}
