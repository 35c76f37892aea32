"""Published shapes: the config.json of well-known models, without weights. Each file is a name of `bench passes`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...errors import OptionError, unknown_name

SHAPES = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.json"))}
ALL = "all"


def chosen_shapes(words: list[str]) -> dict[str, dict[str, Any]]:
    """Name -> content of config.json, of shapes by name, files and folders; `all`: of those that ship with us."""
    named = dict.fromkeys(name for word in words for name in (SHAPES if word == ALL else [word]))
    shapes: dict[str, dict[str, Any]] = {}
    for word in named:
        name = _name(word)
        if name in shapes:
            raise OptionError(f"two shapes are called {name!r}, the second is {word}: rename its folder or file")
        shapes[name] = _read(word)
    return shapes


def _name(word: str) -> str:
    """A file by its folder where it is called what all of them are. Names have dots: Llama-3.1-8B."""
    path = Path(word).resolve()
    path = path.parent if path.name == "config.json" else path
    return word if word in SHAPES else path.name.removesuffix(".json")


def _read(word: str) -> dict[str, Any]:
    path = SHAPES.get(word) or Path(word).expanduser()
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        if path.name == "config.json":
            raise OptionError(f"there is no {path}; --shape takes a name, a config.json or a folder that has one")
        raise unknown_name("shape", word, [*SHAPES, ALL])
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(config, dict) and isinstance(config.get("model_type"), str):
            return config
        reason = "it has no model_type"
    except (OSError, ValueError) as error:
        reason = str(error)
    raise OptionError(f"{path} is not the config.json of a model: {reason}")
