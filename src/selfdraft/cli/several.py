"""`selfdraft generate -n N`: several texts of one prompt, which is read once."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from ..engine.engine import Engine
from ..engine.text import OnePrompt
from ..errors import OptionError
from ..options import check_value
from ..types import Generation
from . import terminal


def check_several(options: argparse.Namespace) -> bool:
    """Whether there are several."""
    check_value("-n", options.n, int, minimum=1)
    if options.n > 1 and options.compare:
        raise OptionError("--compare compares a single text with another one; leave it or -n out")
    if options.n > 1 and options.explain:
        raise OptionError("--explain explains a single text; leave it or -n out (--json has every text)")
    return bool(options.n > 1)


def write_several(
    engine: Engine, prompt: OnePrompt, call: dict[str, Any], options: argparse.Namespace
) -> list[Generation]:
    """Each under its number, all at the end: they are written at once. Ctrl-C ends them where they are."""
    began = time.perf_counter()
    stream = engine.stream(prompt, n=options.n, **call)
    try:
        stream.run()
    except KeyboardInterrupt:
        stream.close()
    seconds, texts = time.perf_counter() - began, stream.generations
    if not options.json:
        color = terminal.wants_color(options.color, sys.stdout)
        for number, text in enumerate(texts, start=1):
            title = f"--- {number} of {len(texts)}, ended by {text.finish_reason}"
            print(f"{terminal.paint(title, terminal.TARGET, color)}\n{text.text}")
        num_tokens = sum(len(text.tokens) for text in texts)
        told = f"{len(texts)} texts, {num_tokens} tokens in {seconds:.2f} s, {num_tokens / seconds:.1f} tokens/s"
        terminal.say(f"{told}; the prompt was read once")
    return texts
