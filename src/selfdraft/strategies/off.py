"""`off`: never speculate. The baseline every speed-up is measured against, on the same code path."""

from __future__ import annotations

from ..options import NoOptions
from ..protocols import Knowledge
from ..types import OFF
from .base import ConstantStrategy


class Off(ConstantStrategy):
    Options = NoOptions

    def __init__(self, options: NoOptions, knowledge: Knowledge) -> None:
        super().__init__(OFF)
