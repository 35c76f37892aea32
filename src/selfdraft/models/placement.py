"""Where the tokens of a pass stand: which cache rows, which slots, which positions, what they may see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ..passes import TreeMask

Band = slice | torch.Tensor  # rows of a cache: neighbours, or any by number


def has_gaps(rows: Sequence[int]) -> bool:
    """Of rows in ascending order: whether others stand between them."""
    return rows[-1] - rows[0] >= len(rows)


def band_of(rows: Sequence[int], device: torch.device) -> Band:
    return torch.tensor(rows, device=device) if has_gaps(rows) else slice(rows[0], rows[-1] + 1)


@dataclass(frozen=True)
class Sight:
    """What the columns of a tree see, where slots and positions are not the same."""

    sees: torch.Tensor  # [rows, width, end] bool
    slot_positions: torch.Tensor  # [rows, end]


@dataclass(frozen=True)
class Placement:
    """Explicit positions for one pass; nothing is ever inferred from what a cache layer happens to hold.

    Chains stand at slot = position, each row from its own start; a tree's nodes stand one slot after the other, at the
    position of their depth. Slots after a row's verified length are scratch: whoever writes them reads only what it
    wrote itself in this round.
    """

    rows: Band  # what neighbours read is a view; others copy what they read
    positions: torch.Tensor  # [rows, width]
    slots: torch.Tensor  # [rows, width]
    end: int  # slots 0..end-1 are read
    start: int | None  # first slot written where all rows write the same neighbouring slots; None: ragged
    sight: Sight | None = None  # None: a chain, every token sees all slots up to its own
    _masks: dict[tuple[int | None, torch.dtype], torch.Tensor | None] = field(default_factory=dict, repr=False)

    @classmethod
    def chain(cls, starts: Sequence[int], width: int, device: torch.device, rows: Sequence[int] = ()) -> Placement:
        """`width` consecutive tokens per row, row i from position `starts[i]` of cache row `rows[i]` (empty: i)."""
        slots, start = _slots(starts, width, device)
        return cls(band_of(rows or range(len(starts)), device), slots, slots, max(starts) + width, start)

    @classmethod
    def tree(cls, starts: Sequence[int], tree: TreeMask, device: torch.device, rows: Sequence[int] = ()) -> Placement:
        """The columns of a tree in the slots from `starts[i]` on: each sees the text before it and `tree.sees`."""
        width = len(tree.depths[0])
        end = max(starts) + width
        slots, start = _slots(starts, width, device)
        first = slots[:, :1]
        positions = first + torch.tensor(tree.depths, device=device)
        all_slots = torch.arange(end, device=device)
        sees = (all_slots < first)[:, None].repeat(1, width, 1)
        sees.scatter_(2, slots[:, None].expand(-1, width, -1), torch.from_numpy(tree.matrix).to(device))
        slot_positions = all_slots.repeat(len(starts), 1).scatter_(1, slots, positions)
        sight = Sight(sees, slot_positions)
        return cls(band_of(rows or range(len(starts)), device), positions, slots, end, start, sight)

    @classmethod
    def recorded(
        cls, starts: torch.Tensor, depths: torch.Tensor, sees: torch.Tensor, end: int, rows: Band
    ) -> Placement:
        """A pass whose numbers are in tensors: `starts` [rows], `depths` [rows, width], `sees` [rows, width] as bits.

        Nothing is read on the host, so that it can be recorded; chains and trees are alike. Bit j of `sees`: column j.
        """
        width, first = depths.shape[1], starts[:, None]
        columns, all_slots = (torch.arange(count, device=starts.device) for count in (width, end))
        offsets = all_slots - first  # [rows, end] of each slot: the column written there; below 0: the text
        is_written = (offsets >= 0) & (offsets < width)
        offsets = offsets.clamp(0, width - 1)
        seen = (sees[:, :, None] >> offsets[:, None]) & 1
        visible = (all_slots < first)[:, None] | ((seen == 1) & is_written[:, None])
        slot_positions = torch.where(is_written, first + depths.gather(1, offsets), all_slots)
        return cls(rows, first + depths, first + columns, end, None, Sight(visible, slot_positions))

    def after(self, num_known: Sequence[int]) -> tuple[Placement, torch.Tensor]:
        """The columns of each row from `num_known[i]` on, and their numbers [rows, width]; the last column pads."""
        width, device = self.positions.shape[1], self.positions.device
        first = torch.tensor(num_known, device=device)[:, None]
        columns = (first + torch.arange(width - min(num_known), device=device)).clamp(max=width - 1)
        is_uniform = self.start is not None and min(num_known) == max(num_known)
        start = self.start + num_known[0] if is_uniform and self.start is not None else None
        positions, slots = self.positions.gather(1, columns), self.slots.gather(1, columns)
        sight = self.sight
        if sight is not None:
            sees = sight.sees.gather(1, columns[:, :, None].expand(-1, -1, self.end))
            sight = Sight(sees, sight.slot_positions)
        return Placement(self.rows, positions, slots, self.end, start, sight), columns

    @property
    def row_index(self) -> torch.Tensor:
        """[rows, 1], to pair with `slots` when writing ragged rows."""
        if isinstance(self.rows, slice):
            return torch.arange(self.rows.start, self.rows.stop, device=self.slots.device)[:, None]
        return self.rows[:, None]

    def is_causal(self, window: int | None) -> bool:
        """Whether these are the first tokens of a text, which is all that they see."""
        return self.sight is None and self.start == 0 and self.end > 1 and (window is None or self.end <= window)

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
        if self.sight is None and width == 1 and self.start == self.end - 1 and (window is None or self.end <= window):
            return None
        slot_positions, hidden = self._hidden_slots()
        if window is not None:
            hidden = hidden | (slot_positions <= self._queries - window)
        mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
        return mask.masked_fill_(hidden, torch.finfo(dtype).min)[:, None]

    @property
    def _queries(self) -> torch.Tensor:
        """Positions as [rows, width, 1]; one row where all rows stand alike."""
        is_alike = self.sight is None and self.start is not None
        return (self.positions[:1] if is_alike else self.positions)[:, :, None]

    def _hidden_slots(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions of the slots, to compare with `_queries`, and [rows or 1, width, end]: what is out of sight."""
        if self.sight is not None:
            return self.sight.slot_positions[:, None], ~self.sight.sees
        slots = torch.arange(self.end, device=self.positions.device)
        return slots, slots > self._queries


def _slots(starts: Sequence[int], width: int, device: torch.device) -> tuple[torch.Tensor, int | None]:
    """[rows, width] neighbouring slots of each row, and the first one where all rows share it."""
    offsets = torch.arange(width, device=device)
    if min(starts) == max(starts):
        return (offsets + starts[0]).expand(len(starts), width), starts[0]
    return torch.tensor(starts, device=device)[:, None] + offsets, None
