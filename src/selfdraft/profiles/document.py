"""A JSON file that people can read, and beside it the arrays it names: `profile.json`, `profile/<sha256>.safetensors`.

An array file is named by its content and never changed, so replacing the JSON file switches both at once. Whatever
interrupts a write leaves the old document whole; what it left lying about is swept by the next write. Writers must
hold a lock (lock.py), readers need none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors

from ..files import replace_file
from .profile import Artefact

Value = TypeVar("Value")
_ARRAY_FILE = re.compile(r"[0-9a-f]{64}\.safetensors")


class Document:
    """ValueError: what is there is damaged. OSError: it cannot be read or written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.array_folder = path.with_suffix("")

    def read(self) -> dict[str, Any] | None:
        """The JSON; None where there is none."""
        try:
            content = json.loads(self.path.read_bytes().decode(), parse_constant=_no_number)
        except FileNotFoundError:
            return None
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error
        if not isinstance(content, dict):
            raise ValueError("it holds no JSON object")
        return content

    def artefacts(self, content: Mapping[str, Any]) -> dict[str, Artefact]:
        """All that `content`, a result of `read`, names. FileNotFoundError: arrays are gone."""
        return {name: self._unpack(name, packed) for name, packed in packed_artefacts(content).items()}

    def write(self, content: Mapping[str, Any], changed: Mapping[str, Artefact]) -> None:
        """Replace the document by `content`, with the `changed` artefacts in place of those of the same name."""
        packed = packed_artefacts(content)
        blobs: dict[str, bytes] = {}
        for name, artefact in changed.items():
            packed[name], files = _pack(artefact)
            blobs.update(files)
        text = json.dumps({**content, "artefacts": packed}, indent=1, allow_nan=False) + "\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for file, blob in blobs.items():
            self.array_folder.mkdir(exist_ok=True)
            replace_file(self.array_folder / file, blob)
        replace_file(self.path, text.encode())
        self._sweep({entry.get("file") for entry in packed.values()})

    def remove(self) -> bool:
        """Whether there was one. The JSON goes first: without it the arrays mean nothing."""
        is_there = self.path.exists()
        self.path.unlink(missing_ok=True)
        shutil.rmtree(self.array_folder, ignore_errors=True)
        return is_there

    def _unpack(self, name: str, packed: Mapping[str, Any]) -> Artefact:
        values = member(packed, "values", dict)
        if "file" not in packed:
            return Artefact(values)
        file = member(packed, "file", str)
        if not _ARRAY_FILE.fullmatch(file):
            raise ValueError(f"{name} names {file!r}, which is not an array file")
        return Artefact(values, self._read_arrays(file))

    def _read_arrays(self, file: str) -> dict[str, torch.Tensor]:
        blob = (self.array_folder / file).read_bytes()
        if hashlib.sha256(blob).hexdigest() != Path(file).stem:
            raise ValueError(f"the arrays in {file} are not what was written, {len(blob)} bytes")
        try:
            arrays: dict[str, torch.Tensor] = load_safetensors(blob)
        except SafetensorError as error:
            raise ValueError(f"{file} holds no arrays: {error}") from error
        return arrays

    def _sweep(self, files: set[str | None]) -> None:
        """Remove array files of earlier versions and what killed writers left. It can wait if it fails."""
        left_over = [*self.path.parent.glob(f"{self.path.name}.*.tmp")]
        left_over += [path for path in self.array_folder.glob("*") if path.name not in files]
        for path in left_over:
            with contextlib.suppress(OSError):
                path.unlink()


def _no_number(text: str) -> None:
    raise ValueError(f"it holds {text}, which is not a number")


def member(content: Mapping[str, Any], name: str, kind: type[Value]) -> Value:
    """What must be there and of this kind."""
    value = content.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"its {name!r} is missing or of the wrong kind")
    return value


def packed_artefacts(content: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The artefacts by name, as the JSON has them."""
    packed = member(content, "artefacts", dict)
    return {name: member(packed, name, dict) for name in packed}


def _pack(artefact: Artefact) -> tuple[dict[str, Any], dict[str, bytes]]:
    """An artefact as JSON, and the array file that it names."""
    if not artefact.arrays:
        return {"values": artefact.values}, {}
    blob = save_safetensors({name: array.contiguous().clone() for name, array in artefact.arrays.items()})
    file = f"{hashlib.sha256(blob).hexdigest()}.safetensors"
    shapes = {name: f"{str(array.dtype)[6:]} {list(array.shape)}" for name, array in artefact.arrays.items()}
    return {"values": artefact.values, "file": file, "arrays": shapes}, {file: blob}
