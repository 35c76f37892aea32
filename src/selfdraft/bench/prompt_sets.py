"""The prompts that come with selfdraft: one file of JSON lines per domain in `promptsets`, all of them our own text."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from ..errors import unknown_name
from .prompts import BenchPrompt, read_prompts

PROMPT_SETS: tuple[str, ...] = ("summarise", "math", "translate", "story", "sql", "code", "chat", "rewrite")


def builtin_prompts(domains: Sequence[str] | None = None) -> list[BenchPrompt]:
    """Those of the named domains, or of all; the first of every domain, then the second of every domain, and so on."""
    names = PROMPT_SETS if domains is None else tuple(dict.fromkeys(domains))
    for name in names:
        if name not in PROMPT_SETS:
            raise unknown_name("prompt set", name, PROMPT_SETS)
    folder = files(__package__) / "promptsets"
    return read_prompts((f"{name}.jsonl", (folder / f"{name}.jsonl").read_text(encoding="utf-8")) for name in names)
