"""What a lookahead keeps in tensors, because a recorded draft reads it there: numbers it learned, and running products.

A recording is bound to its tensors, so each is made once for a device and changed in place.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from ..drafted import DraftStats


class Learned:
    """Numbers that change between rounds. The host's copy counts; every device that asked has another."""

    def __init__(self, values: npt.ArrayLike) -> None:
        self.values: npt.NDArray[np.float32] = np.array(values, dtype=np.float32)
        self.num_changes = 0
        self._copies: dict[torch.device, torch.Tensor] = {}

    def on(self, device: torch.device) -> torch.Tensor:
        if device not in self._copies:
            with torch.inference_mode(False):
                self._copies[device] = torch.tensor(self.values, device=device)
        return self._copies[device]

    def set(self, values: npt.ArrayLike) -> None:
        new = np.array(values, dtype=np.float32)
        if not np.array_equal(new, self.values):
            self.values = new
            self.num_changes += 1
            for copy in self._copies.values():
                copy.copy_(torch.from_numpy(new))

    def put(self, place: int, value: float) -> None:
        """One of them."""
        if self.values[place] != value:
            self.values[place] = value
            self.num_changes += 1
            for copy in self._copies.values():
                copy[place] = value


class RunningProduct:
    """Of a value [rows] over the tokens that a round has drafted so far."""

    def __init__(self) -> None:
        self._products: dict[tuple[torch.device, int], torch.Tensor] = {}

    def __call__(self, stats: DraftStats, value: torch.Tensor) -> torch.Tensor:
        """To be asked at every depth. What is looked up has one value at all depths, and may come all at once."""
        if stats.scores is None:
            return value**stats.depth
        product = self.of(value)
        product.copy_(torch.where(stats.depth == 1, value, product * value))
        return product

    def of(self, value: torch.Tensor) -> torch.Tensor:
        """Where the products of that many rows are kept."""
        key = (value.device, len(value))
        if key not in self._products:
            with torch.inference_mode(False):
                self._products[key] = torch.ones(len(value), device=value.device)
        return self._products[key]
