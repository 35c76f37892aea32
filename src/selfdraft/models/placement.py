"""Where the tokens of a pass stand: which cache rows, which slots, which positions, what they may see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class Placement:
    """Explicit positions for one pass; nothing is ever inferred from what a cache layer happens to hold.

    Chains stand at slot = position, each row from its own start. Slots behind a row's verified length are
    scratch: whoever writes them reads only what it wrote itself in this round.
    """

    rows: slice  # neighbouring cache rows: what they read is a view, never a copy
    positions: torch.Tensor  # [rows, width]
    end: int  # slots 0..end-1 are read
    start: int | None  # first slot written where all rows share it; None: rows are ragged
    _masks: dict[tuple[int | None, torch.dtype], torch.Tensor | None] = field(default_factory=dict, repr=False)

    @classmethod
    def chain(cls, starts: Sequence[int], width: int, device: torch.device, first_row: int = 0) -> Placement:
        """`width` consecutive tokens per row, row i from position `starts[i]`, in cache rows from `first_row` on."""
        offsets = torch.arange(width, device=device)
        is_uniform = min(starts) == max(starts)
        if is_uniform:
            positions = (offsets + starts[0]).expand(len(starts), width)
        else:
            positions = torch.tensor(starts, device=device)[:, None] + offsets
        return cls(
            rows=slice(first_row, first_row + len(starts)),
            positions=positions,
            end=max(starts) + width,
            start=starts[0] if is_uniform else None,
        )

    @property
    def row_index(self) -> torch.Tensor:
        """[rows, 1], to pair with `positions` when writing ragged rows."""
        return torch.arange(self.rows.start, self.rows.stop, device=self.positions.device)[:, None]

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
