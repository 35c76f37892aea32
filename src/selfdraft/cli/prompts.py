"""The prompts that commands learn from: files of JSON lines, some of their domains, as the model is asked."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..bench.prompts import OWN_PROMPTS, BenchPrompt, encode, read_prompts
from ..engine.engine import Engine
from ..errors import unknown_name
from ..fitting import CalibrationPrompt
from .inputs import read_file


def add_prompt_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--prompts", metavar="FILE", nargs="+", help="JSON lines with domain and prompt (default: ours)")
    add("--domain", metavar="NAME", nargs="+", help="the prompts of these domains (default: of all)")


def read(options: argparse.Namespace) -> list[BenchPrompt]:
    files = options.prompts or [str(OWN_PROMPTS)]
    prompts = read_prompts((Path(file).name, read_file(file)) for file in files)
    domains = {prompt.domain for prompt in prompts}
    for domain in options.domain or ():
        if domain not in domains:
            raise unknown_name("domain", domain, domains)
    return [prompt for prompt in prompts if prompt.domain in (options.domain or domains)]


def for_calibration(prompt: BenchPrompt, engine: Engine) -> CalibrationPrompt:
    return CalibrationPrompt(prompt.id, prompt.domain, tuple(encode(prompt, engine)))
