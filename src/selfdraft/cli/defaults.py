"""What a command leaves open is as the config file has it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from ..config import PLACE, read_config
from ..registry import AXES
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
    for name in names:
        if getattr(options, name, "") is None and name in config.values:
            value = config.values[name]
            setattr(options, name, [value] if (options.command, name) == ("calibrate", "strategy") else value)
    options.config, options.configured = config.file, config.settings


def _method_keys(options: argparse.Namespace, values: Mapping[str, Any]) -> tuple[str, ...]:
    """Of the method: all for `generate`, and for `bench` that names none; those that `calibrate` learns for."""
    if options.command == "bench" and not any(getattr(options, name) for name in _SELECTING):
        return () if values.get("strategy") == "off" else tuple(AXES)
    if options.command == "calibrate" and options.lookahead:
        return ("strategy", "drafter", "tree")
    return tuple(AXES) if options.command == "generate" else ()
