"""`siblings`: verify the draft's runners-up, too; the less sure it is, the more of them.

At each depth of the chain the draft's next best tokens stand beside the drafted one, as leaves. How many depends on
the draft's largest probability, by a table; `swift` is the one of SWIFT (arXiv:2410.06916, appendix), `swift-code` what
its authors' code has. Continuations looked up in the text may stand beside all that as branches of their own.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from ..drafters.lookup import find_matches
from ..errors import OptionError
from ..options import setting
from ..protocols import Path

TABLES = {
    "narrow": "0.5:4,0.8:3,0.95:2,1:1",
    "swift": "0.5:10,0.8:5,0.95:3,1:1",
    "swift-code": "0.5:10,0.8:8,0.95:5,1:3",
}
MAX_NODES, WIDE_NODES = 31, 62
"""Drafted tokens of a round: with the committed one they fill 32 columns, or all 63 that a recorded pass may have.

The rows of a batch share 32: products of more tokens cost more.
"""


def read_table(text: str) -> tuple[tuple[float, int], ...]:
    """`"0.5:4,1:1"` -> ((0.5, 4), (1.0, 1)): up to a probability of 0.5 four candidates, above that one."""
    try:
        rows = tuple((float(p), int(k)) for p, k in (pair.split(":") for pair in TABLES.get(text, text).split(",")))
    except ValueError:
        rows = ()
    bounds = [bound for bound, _ in rows]
    if not rows or bounds != sorted(set(bounds)) or bounds[0] <= 0 or bounds[-1] != 1 or min(k for _, k in rows) < 1:
        raise OptionError(
            f"cannot read siblings.table={text!r}. Write PROBABILITY:CANDIDATES pairs in ascending order up to 1, for "
            f"example {TABLES['narrow']} (up to a probability of 0.5 four candidates, ...), or: {', '.join(TABLES)}"
        )
    return rows


class Siblings:
    @dataclass(frozen=True)
    class Options:
        table: str = setting(
            "narrow", "candidates by the draft's confidence: narrow, swift, swift-code, or like 0.5:4,0.9:2,1:1"
        )
        max_nodes: int = setting(
            0,
            f"the most tokens to verify in a round; 0: {WIDE_NODES} for one text on recorded passes, else {MAX_NODES}, "
            "which the texts of a batch share",
            minimum=0,
        )
        lookup: int = setting(0, "looked-up continuations that stand beside the draft", minimum=0)
        lookup_tokens: int = setting(8, "tokens of each of them", minimum=1)

    def __init__(self, options: Options) -> None:
        self.options = options
        table = read_table(options.table)
        self._bounds, self._counts = [bound for bound, _ in table[:-1]], [count for _, count in table]
        self.max_candidates = max(self._counts)

    def max_nodes(self, num_rows: int, *, is_recorded: bool) -> int:
        most = WIDE_NODES if is_recorded and num_rows == 1 else max(1, (MAX_NODES + 1) // num_rows - 1)
        return self.options.max_nodes or most

    def num_candidates(self, confidence: float) -> int:
        return self._counts[bisect.bisect_left(self._bounds, confidence)]

    def branches(self, committed: Sequence[int]) -> Sequence[Path]:
        if not self.options.lookup:
            return ()
        matches = find_matches(
            committed, max_ngram=8, min_ngram=2, max_tokens=self.options.lookup_tokens, max_matches=self.options.lookup
        )
        return [match.tokens for match in matches]
