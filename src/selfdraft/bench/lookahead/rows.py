"""The rules that the tables compare: DISCO's own (arXiv:2405.04304, tables 1 and 2), and what else there is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ...errors import OptionError, unknown_name
from ...lookahead.base import PlainLookahead
from ...lookahead.disco import Disco
from ...lookahead.fixed import Fixed
from ...lookahead.perplexity import Perplexity
from ...options import Settings
from ...registry import find, options_for
from .learning import Lesson
from .oracle import Oracle

PLAIN, ORACLE = "plain", "oracle"
STATIC_OPT, HEURISTIC, DISCO, TPT, TRANSFER = "static-opt", "heuristic", "disco", "tpt", "disco-transfer"


@dataclass(frozen=True)
class Known:
    """What a rule may be made of: what the domain's own texts taught, and those of another; options of the call."""

    lesson: Lesson
    other: Lesson
    settings: Settings
    max_new_tokens: int


Make = Callable[[Known], PlainLookahead]


def _by_name(name: str) -> Make:
    """As the library has it."""
    return lambda at: find("lookahead", name)(options_for("lookahead", name, at.settings))


MAKERS: Mapping[str, Make] = {
    HEURISTIC: _by_name("heuristic"),
    "static-5": lambda at: Fixed(Fixed.Options(tokens=5)),
    STATIC_OPT: lambda at: Fixed(Fixed.Options(**at.lesson.best["fixed"].options)),
    "perplexity": lambda at: Perplexity(Perplexity.Options(**at.lesson.best["perplexity"].options)),
    "confidence": _by_name("confidence"),
    "adaptive": _by_name("adaptive"),
    "roc": _by_name("roc"),
    TPT: _by_name("tpt"),
    DISCO: lambda at: Disco.of(at.lesson.classifier),
    TRANSFER: lambda at: Disco.of(at.other.classifier),
    ORACLE: lambda at: Oracle([[]], room=at.max_new_tokens),
}
ROWS = (PLAIN, *MAKERS)
COUNTING = (HEURISTIC, "static-5", STATIC_OPT)
"""These count tokens; the others look at them."""


def check_rows(names: Iterable[str] | None, num_domains: int) -> list[str]:
    """In the order of the table; plain decoding is always among them. None: all that make sense."""
    for name in names or ():
        if name not in ROWS:
            raise unknown_name("row", name, ROWS)
    if num_domains < 2 and TRANSFER in (names or ()):
        raise OptionError(f"the row {TRANSFER!r} needs prompts of at least two domains; leave it out")
    wanted = {PLAIN, *(names or ROWS)} - ({TRANSFER} if num_domains < 2 else set())
    return [name for name in ROWS if name in wanted]


def make(name: str, known: Known) -> PlainLookahead:
    """One that has seen no text."""
    return MAKERS[name](known)


def described(name: str, known: Known) -> str:
    """What was chosen, for the table; a threshold that moves is where it begins."""
    lookahead = make(name, known)
    if isinstance(lookahead, Fixed):
        return f"{lookahead.max_tokens} token{'s' * (lookahead.max_tokens > 1)}"
    options = lookahead.classifier if isinstance(lookahead, Disco) else getattr(lookahead, "options", None)
    threshold = getattr(options, "threshold", None)
    chosen = [f"of {known.other.domain}"] if name == TRANSFER else []
    chosen += [] if threshold is None else [f"threshold {threshold:.3g}"]
    return ", ".join([*chosen, f"up to {lookahead.max_tokens}"])
