"""Drafts tested by rejection, in torch: the specification of `reject`, and what runs where Triton does not.

A drawn token x is kept with probability min(1, p(x) / q(x)), where q is the draft's distribution and p the target's
(Leviathan et al., arXiv:2211.17192; Chen et al., arXiv:2302.01318); otherwise p becomes max(p - q, 0), normalised, and
q loses x. Siblings are drawn without replacement, so each is tested likewise with what is left of p and q (SpecInfer,
arXiv:2305.09781); the last word is a draw from the p that remains. A guess without a distribution is a point mass: kept
with p(x), else p loses x.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from ..noise import REST, TEST, gumbel_at, mixed, uniform_at
from ..passes import SETTINGS, ChoiceKind, Columns
from .choose_reference import lines_of, warped

_KEY, _SECOND_KEY, _ROUND, _NUM_NODES, _NUM_DRAWN = (
    SETTINGS.index(name) for name in ("key", "second_key", "round", "num_nodes", "num_drawn")
)


def reject(scores: torch.Tensor, drawn_from: torch.Tensor, columns: Columns, kind: ChoiceKind) -> torch.Tensor:
    """See `top.reject`."""
    target = warped(scores, columns, kind)[lines_of(columns)]
    num_rows, num_depths, width = *drawn_from.shape[:2], columns.depths.shape[1]
    places = torch.arange(0, num_rows * width, width, device=scores.device).repeat_interleave(num_depths)
    draft = warped(drawn_from.flatten(0, 1), replace(columns, places=places), kind).view(drawn_from.shape)
    return walk(target, draft, columns, parents_of(columns.on_path))


def walk(
    target: torch.Tensor, draft: torch.Tensor, columns: Columns, parents: torch.Tensor, may_read: bool = False
) -> torch.Tensor:
    """`target` [rows, width, vocabulary] and `draft` [rows, depths, vocabulary] are warped.

    Column by column, each if it continues the last one kept: a parent stands before its children, so that is the walk
    down the tree. With `may_read`, columns that continue no row's are passed over.
    """
    walks = _Walks(target, draft, columns)
    for column in range(1, target.shape[1]):
        is_child = (parents[:, column] == walks.at) & (column <= columns.settings[:, _NUM_NODES])
        if not may_read or bool(is_child.any()):
            walks.test(column, is_child)
    return torch.cat((walks.num_kept[:, None], walks.kept[:, 1:], walks.last_word()[:, None]), 1)


class _Walks:
    """Of each row so far: where it stands, and what is left of both distributions there."""

    def __init__(self, target: torch.Tensor, draft: torch.Tensor, columns: Columns) -> None:
        self._target, self._draft, self._columns = target, draft, columns
        self._rows = torch.arange(len(target), device=target.device)
        self.at = torch.zeros_like(self._rows)  # the column of the last token kept
        self.num_kept, self._num_tested = torch.zeros_like(self._rows), torch.zeros_like(self._rows)
        self.kept = torch.zeros_like(columns.depths)  # the columns kept, from place 1 on
        self.left = target[:, 0].double().softmax(-1)  # of the target's distribution
        self._offered = draft[:, 0].double()  # scores, as what is left may be too small for a probability

    def test(self, column: int, is_child: torch.Tensor) -> None:
        """The token of this column, in rows where it continues the last one kept."""
        tokens = self._columns.path[:, column : column + 1]
        is_token = torch.arange(self.left.shape[1], device=tokens.device) == tokens
        is_drawn = (column <= self._columns.settings[:, _NUM_DRAWN])[:, None]
        offered = torch.where(is_drawn, self._offered.softmax(-1), is_token.double())
        bar = uniform_at(self._keys(TEST), self._num_tested[:, None])[:, 0] * offered.gather(1, tokens)[:, 0]
        is_kept = is_child & (bar < self.left.gather(1, tokens)[:, 0])
        is_refused = (is_child & ~is_kept)[:, None]
        left = normalised((self.left - offered).clamp(min=0.0), self.left)
        self.left = torch.where(is_refused, left, self.left)
        self._offered = self._offered.masked_fill(is_refused & is_token, -torch.inf)
        self._num_tested = torch.where(is_kept, 0, self._num_tested + is_child)
        self._keep(column, is_kept)

    def _keep(self, column: int, is_kept: torch.Tensor) -> None:
        self.at = torch.where(is_kept, column, self.at)
        self.num_kept = self.num_kept + is_kept
        place = torch.arange(self.kept.shape[1], device=self.at.device)
        self.kept = torch.where(is_kept[:, None] & (place == self.num_kept[:, None]), column, self.kept)
        depth = self.num_kept.clamp(max=self._draft.shape[1] - 1)
        self.left = torch.where(is_kept[:, None], self._target[:, column].double().softmax(-1), self.left)
        self._offered = torch.where(is_kept[:, None], self._draft[self._rows, depth].double(), self._offered)

    def last_word(self) -> torch.Tensor:
        """[rows] drawn from what is left."""
        return (self.left.log() + gumbel_at(self._keys(REST), self.left.shape[1])).argmax(-1)

    def _keys(self, salt: int) -> tuple[torch.Tensor, torch.Tensor]:
        settings, index = self._columns.settings, self._columns.indices + self.num_kept
        parts = (index, settings[:, _ROUND], salt)
        return mixed(settings[:, _KEY], *parts), mixed(settings[:, _SECOND_KEY], *parts)


def normalised(probs: torch.Tensor, otherwise: torch.Tensor) -> torch.Tensor:
    """Rows that sum to 1; where rounding left nothing of one, the row of `otherwise`."""
    total = probs.sum(-1, keepdim=True)
    return torch.where(total > 0, probs / total.clamp(min=1e-300), otherwise)


def parents_of(sees: torch.Tensor) -> torch.Tensor:
    """[rows, width] the last column before itself that a column attends to."""
    column = torch.arange(sees.shape[1], device=sees.device)
    is_before = (sees[:, :, None] >> column & 1).bool() & (column < column[:, None])
    return torch.where(is_before, column, 0).amax(-1)
