"""How well a rule tells tokens that will be kept from those that will not, as DISCO's table 5 has it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from ...calibrate.replay import RoundSeconds, replay
from ...calibrate.traces import Trace
from ...calibrate.training import f1, oracle_depths
from ...lookahead.base import PlainLookahead

_NO_LIMIT = 1 << 30


@dataclass(frozen=True)
class Judged:
    """Of drafted tokens: whether a rule said that they would be kept, and whether they were."""

    predicted: torch.Tensor  # [tokens] bool
    is_kept: torch.Tensor  # [tokens] bool

    @classmethod
    def join(cls, parts: Iterable[Judged]) -> Judged:
        parts = list(parts)
        return cls(torch.cat([part.predicted for part in parts]), torch.cat([part.is_kept for part in parts]))

    @property
    def f1(self) -> float:
        return f1(self.predicted, self.is_kept)


def judge(traces: Sequence[Trace], lookahead: PlainLookahead, seconds: RoundSeconds, counts: bool) -> Judged:
    """Every drafted token of rounds that end with the first refused one, whatever the rule would have drafted.

    A rule that looks at the tokens says of one that it will be kept if it would draft on behind it; its longest draft
    does not count. A rule that `counts` them says it of those that it drafts: of the first k. What learns has learned
    of the texts before, by the rounds it would have made of them.
    """
    parts = []
    for trace in traces:
        parts.append(Judged(_predicted(trace, lookahead, counts), trace.is_kept[trace.is_drafted]))
        replay([trace], lookahead, seconds)
    return Judged.join(parts)


def _predicted(trace: Trace, lookahead: PlainLookahead, counts: bool) -> torch.Tensor:
    depths = (oracle_depths(trace) - int(counts)).tolist()  # one that counts was asked behind the token before
    limit = lookahead.max_tokens
    lookahead.max_tokens = limit if counts else _NO_LIMIT
    places = trace.is_drafted.nonzero()[:, 0].tolist()
    found = [bool(lookahead.wants_more(trace.stats(place, depths[place]))) for place in places]
    lookahead.max_tokens = limit
    return torch.tensor(found, dtype=torch.bool)
