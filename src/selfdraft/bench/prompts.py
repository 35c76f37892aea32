"""The prompts of a benchmark: JSON lines with `domain` and `prompt`, taken in turn from each domain."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import OptionError

OWN_PROMPTS = Path(__file__).with_name("prompts.jsonl")
"""Ours: code, math and chat."""


@dataclass(frozen=True)
class BenchPrompt:
    id: str
    domain: str
    text: str


def read_prompts(files: Iterable[tuple[str, str]], per_domain: int | None = None) -> list[BenchPrompt]:
    """Of (name, content) of each file; the first of every domain, then the second of every domain, and so on.

    So a run that is cut short has measured all domains alike.
    """
    domains: dict[str, list[BenchPrompt]] = {}
    for file, content in files:
        for number, line in enumerate(content.splitlines(), start=1):
            if line.strip():
                prompt = _read_line(line, file, number)
                domains.setdefault(prompt.domain, []).append(prompt)
    if not domains:
        raise OptionError("there are no prompts; write JSON lines like " + _EXAMPLE)
    rounds = itertools.zip_longest(*(prompts[:per_domain] for prompts in domains.values()))
    return [prompt for turn in rounds for prompt in turn if prompt is not None]


_EXAMPLE = '{"domain": "chat", "prompt": "Why do cats purr?"}'


def _read_line(line: str, file: str, number: int) -> BenchPrompt:
    where = f"line {number} of {file}"
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{where} is no JSON ({error}); write one object a line: {_EXAMPLE}") from None
    if not isinstance(row, dict):
        raise OptionError(f"{where} must be an object like {_EXAMPLE}")
    for key in ("domain", "prompt"):
        if not isinstance(row.get(key), str) or not row[key].strip():
            raise OptionError(f"{where} has no {key!r} that is text; write it like {_EXAMPLE}")
    return BenchPrompt(str(row.get("id", f"{Path(file).stem}-{number}")), row["domain"], row["prompt"])
