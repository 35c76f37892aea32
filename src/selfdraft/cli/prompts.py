"""The prompts that commands learn from: files of JSON lines, or some of their domains."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..errors import unknown_name
from ..prompts.read import CALIBRATION_PROMPTS, Labels, read_prompts
from ..strategies.domains import UNLABELLED
from ..types import Prompt
from .inputs import read_file


def add_prompt_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--prompts", metavar="FILE", nargs="+", help="JSON lines with domain and prompt (default: ours)")
    add("--domain", metavar="NAME", nargs="+", help="the prompts of these domains (default: of all)")


def add_label_options(parser: argparse.ArgumentParser) -> None:
    """For a command that can do without labels; `read` goes by it. A field that was asked for must be there."""
    parser.add_argument(
        "--domain-field",
        metavar="NAME",
        help="the field of a line that names its domain; not given: `domain`, and a line without it belongs to the "
        f"file's name where there are several, to {UNLABELLED!r} where there is one",
    )


def read(options: argparse.Namespace) -> list[Prompt]:
    files = options.prompts or [str(CALIBRATION_PROMPTS)]
    prompts = read_prompts(((Path(file).name, read_file(file)) for file in files), labels=_labels(options, files))
    domains = {prompt.domain for prompt in prompts}
    for domain in options.domain or ():
        if domain not in domains:
            raise unknown_name("domain", domain, domains)
    return [prompt for prompt in prompts if prompt.domain in (options.domain or domains)]


def _labels(options: argparse.Namespace, files: Sequence[str]) -> Labels:
    if "domain_field" not in options:
        return Labels()
    if options.domain_field:
        return Labels(options.domain_field)
    is_by_file = len(files) > 1
    return Labels(otherwise=lambda file: Path(file).stem if is_by_file else UNLABELLED)
