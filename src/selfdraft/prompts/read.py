"""Prompts from JSON lines with `domain` and `prompt`, or in Spec-Bench's form with its turns."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from ..errors import OptionError
from ..options import read_object
from ..types import Prompt
from .arrange import in_turn

CALIBRATION_PROMPTS = Path(__file__).with_name("calibration.jsonl")
"""Ours to learn from: code, math and chat; none of them is in a built-in set."""
_EXAMPLE = '{"domain": "chat", "prompt": "Why do cats purr?"}'
_SPEC_BENCH = '{"question_id": 81, "category": "chat", "turns": ["Why do cats purr?", "And lions?"]}'


@dataclass(frozen=True)
class Labels:
    """Which field of a line names its domain, and what a line without one belongs to; None: it must have one."""

    field: str = "domain"
    otherwise: Callable[[str], str] | None = None  # of the file's name


_MUST_HAVE = Labels()


def read_prompts(files: Iterable[tuple[str, str]], labels: Labels = _MUST_HAVE) -> list[Prompt]:
    """Of (name, content) of each file; the first of every domain, then the second of every domain, and so on.

    So a run that is cut short has measured all domains alike.
    """
    found = [
        _read_line(line, file, number, labels)
        for file, content in files
        for number, line in enumerate(content.split("\n"), start=1)
        if line.strip()
    ]
    if not found:
        raise OptionError("there are no prompts; write JSON lines like " + _EXAMPLE)
    return in_turn(found)


def _read_line(line: str, file: str, number: int, labels: Labels) -> Prompt:
    where = f"line {number} of {file}"
    row = read_object(line, f"{where} is not a JSON object", f"write one object a line: {_EXAMPLE}")
    is_ours = row.get("prompt") is not None or "turns" not in row
    # A field of domains that the line has, or that was asked for, goes before Spec-Bench's own.
    is_own_field = is_ours or labels.field != _MUST_HAVE.field or labels.field in row
    field = labels.field if is_own_field else "category"
    if labels.otherwise is not None:
        row.setdefault(field, labels.otherwise(file))
    name = row.get("id", f"{Path(file).stem}-{number}")
    if is_ours:
        found, reference = _Row(row, where, _EXAMPLE.replace("domain", field, 1)), row.get("reference")
        known = reference if isinstance(reference, str) else ""
        return Prompt(str(name), found.text(field), found.text("prompt"), reference=known)
    found = _Row(row, where, _SPEC_BENCH.replace("category", field, 1))
    first, *later = found.texts("turns")
    return Prompt(str(row.get("question_id", name)), found.text(field), first, tuple(later))


@dataclass(frozen=True)
class _Row:
    """What a line says, where it stands, and what it should look like."""

    content: Mapping[str, Any]
    where: str
    example: str

    def text(self, key: str) -> str:
        text = self.content.get(key)
        if not isinstance(text, str) or not text.strip():
            raise OptionError(f"{self.where} has no {key!r} that is text; write it like {self.example}")
        return self._whole(text, key)

    def texts(self, key: str) -> list[str]:
        texts = self.content[key]
        if not is_list_of_texts(texts):
            raise OptionError(
                f"{self.where} has {key!r} that is not a list of texts: {reprlib.repr(texts)}; "
                f"write it like {self.example}"
            )
        return [self._whole(text, key) for text in texts]

    def _whole(self, text: str, key: str) -> str:
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise OptionError(f"{self.where} has half a character in its {key!r}; write it as UTF-8 text")
        return text


def is_list_of_texts(found: object) -> TypeGuard[list[str]]:
    """Of at least one, and none of them blank."""
    return isinstance(found, list) and bool(found) and all(isinstance(one, str) and one.strip() for one in found)
