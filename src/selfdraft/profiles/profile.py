"""What a profile holds. Plain values and tensors; how they are stored is told in document.py and store.py."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from .key import ProfileKey

SCHEMA = 1
"""Raised when an older selfdraft could not read, or would misread, what a newer one wrote."""


def as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` as they will be read back: tuples are lists, names are text. NaN, infinity and objects are refused."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(values), allow_nan=False))
    return plain


@dataclass(frozen=True, eq=False)
class Artefact:
    """What one fit found: values that JSON can say, and arrays. In memory it already is what will be read back."""

    values: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", as_json(self.values))
        object.__setattr__(self, "arrays", {name: array.detach().cpu() for name, array in self.arrays.items()})

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Artefact:
        """Tensors and all else apart."""
        arrays = {name: value for name, value in content.items() if isinstance(value, torch.Tensor)}
        return cls({name: value for name, value in content.items() if name not in arrays}, arrays)

    @property
    def content(self) -> dict[str, Any]:
        return {**self.values, **self.arrays}


@dataclass(frozen=True, eq=False)
class Profile:
    """All that was learned about one model on one device. `versions` are those that wrote it last."""

    key: ProfileKey
    schema: int
    created: str
    updated: str
    versions: Mapping[str, str]
    latency: Mapping[str, Any] | None = None
    artefacts: Mapping[str, Artefact] = field(default_factory=dict)

    @property
    def known(self) -> list[str]:
        return [*(["latency"] if self.latency is not None else []), *sorted(self.artefacts)]

    @property
    def summary(self) -> str:
        """What it knows and when it was made, in one line."""
        when = self.updated.replace("T", " ").removesuffix("+00:00")
        return f"profile: {', '.join(self.known) or 'nothing yet'} (of {when} UTC)"
