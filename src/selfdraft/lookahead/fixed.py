"""`fixed`: always draft the same number of tokens (static lookahead).

The usual rule (Leviathan et al., arXiv:2211.17192), and what DISCO (arXiv:2405.04304) is compared with. `selfdraft
calibrate --lookahead fixed` finds the best number for a model and its prompts: "static SL-opt" in DISCO's tables, SL
being the speculation lookahead.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..options import setting
from ..protocols import DraftedBy, Knowledge
from .base import PlainLookahead


class Fixed(PlainLookahead):
    @dataclass(frozen=True)
    class Options:
        tokens: int = setting(5, "tokens to draft in every round", minimum=1)

    def __init__(
        self, options: Options, knowledge: Knowledge | None = None, drafted_by: DraftedBy | None = None
    ) -> None:
        self.options, self.max_tokens = options, options.tokens
