"""Prompts of a dataset on the Hugging Face hub or in a folder; needs `pip install "selfdraft[datasets]"`.

    openai/gsm8k
    openai/gsm8k,config=main,split=test,column=question,domain=math

The name comes first; what is left out is found: the config that is the usual one, the split `test` or else
`validation` or `train`, the column that is called like a prompt. The domain is else the last part of the name.
"""

from __future__ import annotations

import dataclasses
import itertools
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from ..errors import OptionError, unknown_name
from ..types import Prompt
from .read import is_list_of_texts

USUAL_COLUMNS = ("prompt", "question", "instruction", "text", "article", "input")
USUAL_SPLITS = ("test", "validation", "train")
_EXAMPLE = "openai/gsm8k,config=main,split=test,column=question,domain=math"

Row = Mapping[str, Any]


@dataclass(frozen=True)
class _Source:
    name: str
    config: str | None = None
    split: str | None = None
    column: str | None = None
    domain: str | None = None


def dataset_prompts(name: str, count: int) -> list[Prompt]:
    """The first rows that have some text; a column of lists of texts holds conversations. Fetches little more."""
    source = _parse(name)
    prompts = list(itertools.islice(_prompts(source), count))
    if not prompts:
        raise OptionError(f"the dataset {source.name!r} has no row with text; name another: {_EXAMPLE}")
    return prompts


def _parse(text: str) -> _Source:
    name, *settings = (part.strip() for part in text.split(","))
    if not name:
        raise OptionError(f"{text!r} does not name a dataset; write it like {_EXAMPLE}")
    known = [item.name for item in dataclasses.fields(_Source)[1:]]
    found: dict[str, str] = {}
    for setting in settings:
        key, _, value = (part.strip() for part in setting.partition("="))
        if not value:
            raise OptionError(f"{setting!r} in {text!r} is not a setting; write it like {_EXAMPLE}")
        if key not in known:
            raise unknown_name("setting of a dataset", key, known)
        found[key] = value
    return _Source(name, **found)


def _prompts(source: _Source) -> Iterator[Prompt]:
    short_name = PurePath(source.name).name
    for number, row in enumerate(_rows(source), start=1):
        column = _column(row, source)
        if turns := _turns(row[column], column, source):
            yield Prompt(f"{short_name}-{number}", source.domain or short_name, turns[0], tuple(turns[1:]))


def _rows(source: _Source) -> Iterator[Row]:
    """As they stream in. Whatever goes wrong on the way is the dataset's or the network's."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise OptionError(
            f"the dataset {source.name!r} cannot be read without the package datasets ({error}). "
            'Install with: pip install "selfdraft[datasets]"'
        ) from None
    try:
        found = load_dataset(source.name, source.config, split=source.split, streaming=True)
        usual = None if source.split else next((name for name in USUAL_SPLITS if name in found), next(iter(found)))
        yield from found[usual] if usual else found
    except Exception as error:
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        raise OptionError(f"cannot read the dataset {source.name!r}: {cause} (write it like {_EXAMPLE})") from error


def _column(row: Row, source: _Source) -> str:
    if source.column is not None:
        if source.column not in row:
            raise unknown_name(f"column of {source.name}", source.column, row)
        return source.column
    if usual := [name for name in USUAL_COLUMNS if name in row]:
        return usual[0]
    raise OptionError(
        f"the dataset {source.name!r} has no column called {', '.join(USUAL_COLUMNS)}, but {', '.join(row)}; "
        f"name the one to ask with: {source.name},column={next(iter(row), 'NAME')}"
    )


def _turns(found: object, column: str, source: _Source) -> list[str]:
    """None where a row has no text."""
    if isinstance(found, str):
        found = [found] if found.strip() else []
    if not found:
        return []
    if is_list_of_texts(found):
        return found
    raise OptionError(
        f"the column {column!r} of the dataset {source.name!r} holds {reprlib.repr(found)}, which is not text; "
        f"name another: {source.name},column=NAME"
    )
