"""Where the tokens of a pass stand: which cache rows, which slots, which positions, what they may see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

Rows = slice | torch.Tensor


@dataclass(frozen=True)
class Placement:
    """Explicit positions for one pass; nothing is ever inferred from what a cache layer happens to hold.

    Chains stand at slot = position, each row from its own start. Slots behind a row's verified length are
    scratch: whoever writes them reads only what it wrote itself in this round.
    """

    rows: Rows
    positions: torch.Tensor  # [rows, width]
    end: int  # slots 0..end-1 are read
    start: int | None  # first slot written where all rows share it; None: rows are ragged
    _masks: dict[tuple[int | None, torch.dtype], torch.Tensor | None] = field(default_factory=dict, repr=False)

    @classmethod
    def chain(
        cls, starts: Sequence[int], width: int, device: torch.device, rows: Sequence[int] | None = None
    ) -> Placement:
        """`width` consecutive tokens per row, row i from position `starts[i]`; `rows`: their cache rows."""
        offsets = torch.arange(width, device=device)
        is_uniform = min(starts) == max(starts)
        if is_uniform:
            positions = (offsets + starts[0]).expand(len(starts), width)
        else:
            positions = torch.tensor(starts, device=device)[:, None] + offsets
        return cls(
            rows=_as_index(range(len(starts)) if rows is None else rows, device),
            positions=positions,
            end=max(starts) + width,
            start=starts[0] if is_uniform else None,
        )

    @property
    def row_index(self) -> torch.Tensor:
        """[rows, 1], to pair with `positions` when writing ragged rows."""
        if isinstance(self.rows, slice):
            return torch.arange(self.rows.start, self.rows.stop, device=self.positions.device)[:, None]
        return self.rows[:, None]

    def mask(self, window: int | None, dtype: torch.dtype) -> torch.Tensor | None:
        """Additive mask [rows or 1, 1, width, end] in the model's dtype, or None where every query sees every slot.

        A bool mask is silently wrong in transformers' eager attention, and a missing one lets it guess.
        """
        key = (window, dtype)
        if key not in self._masks:
            self._masks[key] = self._build_mask(window, dtype)
        return self._masks[key]

    def _build_mask(self, window: int | None, dtype: torch.dtype) -> torch.Tensor | None:
        width = self.positions.shape[1]
        if width == 1 and self.start is not None and (window is None or self.end <= window):
            return None
        slots = torch.arange(self.end, device=self.positions.device)
        positions = self.positions if self.start is None else self.positions[:1]
        queries = positions[:, :, None]
        hidden = slots > queries
        if window is not None:
            hidden = hidden | (slots <= queries - window)
        mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
        return mask.masked_fill_(hidden, torch.finfo(dtype).min)[:, None]


def _as_index(rows: Sequence[int], device: torch.device) -> Rows:
    """A slice where the rows are neighbours (a view, no copy), else an index tensor."""
    first = rows[0]
    if list(rows) == list(range(first, first + len(rows))):
        return slice(first, first + len(rows))
    return torch.tensor(rows, device=device)
