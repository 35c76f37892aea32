"""The prompts that come with selfdraft, one file of JSON lines per domain in `builtin`, and those beside them.

The text of ours is our own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.resources import files as package_files
from pathlib import PurePath

from ..errors import unknown_name
from ..types import Prompt
from .arrange import in_turn
from .hub import dataset_prompts
from .read import Labels, read_prompts

PROMPT_SETS: tuple[str, ...] = ("summarise", "math", "translate", "story", "sql", "code", "chat", "rewrite")
ALL_SETS = "all"
DATASET_PROMPTS = 16
"""Of a dataset, where nobody says how many of a domain: as many as a set of ours has."""

_BY_FILE = Labels(otherwise=lambda file: PurePath(file).stem)


def builtin_prompts(domains: Sequence[str] | None = None) -> list[Prompt]:
    """Those of the named domains, or of all; the first of every domain, then the second of every domain, and so on."""
    names = PROMPT_SETS if domains is None else tuple(dict.fromkeys(domains))
    for name in names:
        if name not in PROMPT_SETS:
            raise unknown_name("prompt set", name, PROMPT_SETS)
    folder = package_files(__package__) / "builtin"
    return read_prompts((f"{name}.jsonl", (folder / f"{name}.jsonl").read_text(encoding="utf-8")) for name in names)


def select_prompts(
    sets: Sequence[str], files: Sequence[tuple[str, str]], datasets: Sequence[str], per_domain: int | None
) -> list[Prompt]:
    """Of built-in sets (`all`: of all), (name, content) of files, and datasets; in turn from each domain.

    Nothing at all: all built-in sets. A line of a file that names no domain belongs to the file's name. Where two
    sources share an id, the later prompt gets another.
    """
    if not (sets or files or datasets):
        sets = [ALL_SETS]
    found: list[Prompt] = []
    if sets:
        found += builtin_prompts(None if ALL_SETS in sets else sets)
    if files:
        found += read_prompts(files, labels=_BY_FILE)
    for name in datasets:
        found += dataset_prompts(name, per_domain or DATASET_PROMPTS)
    return in_turn(_with_own_ids(found), per_domain)


def _with_own_ids(prompts: Sequence[Prompt]) -> Iterator[Prompt]:
    taken = {prompt.id for prompt in prompts}
    met: set[str] = set()
    for prompt in prompts:
        numbered = (f"{prompt.id}-{number}" for number in itertools.count(2))
        name = next(other for other in numbered if other not in taken) if prompt.id in met else prompt.id
        taken.add(name)
        met.add(name)
        yield replace(prompt, id=name)
