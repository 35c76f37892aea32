"""`fixed`: skip the sub-layers you name, always. For a set found elsewhere, and for experiments."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import OptionError
from ..options import setting
from ..protocols import Knowledge
from ..types import Plan, SkipSet
from .base import ConstantStrategy


class Fixed(ConstantStrategy):
    @dataclass(frozen=True)
    class Options:
        skip: str = setting("", "sub-layers to skip, like a3,a5-7,m4 (attention 3, 5, 6, 7, feed-forward 4)")

    def __init__(self, options: Options, knowledge: Knowledge) -> None:
        skip = SkipSet.parse(options.skip)
        skip.check(knowledge.num_layers)
        if not skip:
            raise OptionError(
                "the strategy 'fixed' needs a skip set: pass settings={'fixed': {'skip': 'a3,a5-7,m4'}}, on the "
                "command line --set fixed.skip=a3,a5-7,m4"
            )
        super().__init__(Plan(skip))
