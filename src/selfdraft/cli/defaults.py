"""What a command leaves open is as the config file has it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from typing import Any

from ..config import PLACE, read_config
from ..errors import SelfdraftError
from ..registry import AXES, is_off
from .parsers.measure import PLURALS

_SELECTING = ("preset", "variant", *PLURALS.values(), *AXES)
"""Flags of `bench` that say what is measured."""


def fill_in(options: argparse.Namespace) -> None:
    """`configured`: settings of the config file, which are taken where they are read."""
    if "device" not in options:  # needs no model
        return
    config = read_config()
    names = [*PLACE, *_method_keys(options, config.values)]
    if options.command == "verify":
        names.remove("dtype")  # a document has its own
    options.config, options.configured = config.file, config.settings
    for name in names:
        if getattr(options, name, "") is None and name in config.values:
            value = config.values[name]
            setattr(options, name, [value] if (options.command, name) == ("calibrate", "strategy") else value)


def _method_keys(options: argparse.Namespace, values: Mapping[str, Any]) -> tuple[str, ...]:
    """Of the method: all for `generate`, and for `bench` that names none; those that `calibrate` learns for."""
    if options.command == "bench" and not any(getattr(options, name) for name in _SELECTING):
        return () if is_off(values) else tuple(AXES)
    if options.command == "calibrate" and options.lookahead:
        return ("strategy", "drafter", "tree")
    if options.command != "generate":
        return ()
    if options.strategy == "off":  # flags win: what drafts is not asked
        return ("acceptance",)
    drafts = options.lookahead or options.drafter or options.tree
    return tuple(axis for axis in AXES if not (axis == "strategy" and drafts and is_off(values)))


def origin(error: SelfdraftError, options: argparse.Namespace) -> str:
    """Of an error about a value that the config file sets: where it is from."""
    values = read_config().values if vars(options).get("config") else {}
    for name, value in values.items():
        text = re.escape(str(value).removeprefix("./"))
        if vars(options).get(name) == value and re.search(rf"(?<!\w){text}(?!\w)", str(error)):
            return f" ({name} is set in {options.config})"
    return ""
