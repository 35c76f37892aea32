"""The config file: what commands go by where their flags say nothing.

`selfdraft.toml` in the current folder, else `selfdraft/config.toml` in $XDG_CONFIG_HOME (~/.config). SELFDRAFT_CONFIG
names another file; empty: none is read.

    model = "qwen2.5-coder-1.5b-instruct"
    dtype = "bf16"
    strategy = "prune"

    [settings.prune]
    gain = 0.05
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import OptionError, unknown_name
from .registry import AXES, check_settings, find, read_settings

PLACE = ("model", "device", "dtype", "threads")
"""Which model, and where it computes how."""
_KINDS: Mapping[str, tuple[type[Any], str]] = {
    **dict.fromkeys((*PLACE, *AXES), (str, "text")),
    "threads": (int, "a whole number of at least 1"),
    "settings": (dict, "a table of tables, [settings.METHOD]"),
}


@dataclass(frozen=True)
class Config:
    """`file`: None where there is none; `settings`: as `--set` takes them."""

    file: Path | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    settings: tuple[str, ...] = ()


def find_config() -> Path | None:
    named = os.environ.get("SELFDRAFT_CONFIG")
    if named is not None:
        return Path(named).expanduser() if named else None
    home = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    return next((file for file in (Path("selfdraft.toml"), home / "selfdraft" / "config.toml") if file.is_file()), None)


def read_config() -> Config:
    """Raise, naming the file, for what cannot be read, and for a key or a value that does not exist."""
    file = find_config()
    if file is None:
        return Config()
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8-sig"))
        _check(values)
        settings = tuple(_as_text(values.pop("settings", {})))
        check_settings(read_settings(settings))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"{file} is not a TOML document: {error}") from None
    except OSError as error:
        raise OptionError(f"cannot read the config file {file}: {error.strerror or error}") from None
    except OptionError as error:
        raise OptionError(f"{file}: {error}") from None
    return Config(file, values, settings)


def _check(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if name not in _KINDS:
            raise unknown_name("key", name, _KINDS)
        kind, text = _KINDS[name]
        if type(value) is not kind or (name == "threads" and value < 1):
            raise OptionError(f"{name} must be {text}, got {value!r}")
        if name in AXES:
            find(name, value)


def _as_text(settings: Mapping[str, Any]) -> list[str]:
    """As `--set` takes them."""
    texts = []
    for method, options in settings.items():
        for option, value in options.items() if isinstance(options, dict) else [("", options)]:
            if not option or not isinstance(value, str | int | float):
                raise OptionError(f"settings.{method} must be a table of options, text or numbers, got {options!r}")
            texts.append(f"{method}.{option}={str(value).lower() if isinstance(value, bool) else value}")
    return texts
