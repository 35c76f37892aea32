"""What `selfdraft train-lookahead` and `selfdraft tune` share: options, loading, and how measurements are shown."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from .. import __version__
from ..bench.prompts import BenchPrompt
from ..calibrate.lookahead import USUAL_TOKENS, Measured
from ..engine.engine import Engine
from ..errors import OptionError
from ..fitting import CalibrationPrompt
from ..models.load import loading
from ..models.load.catalogue import DEFAULT_MODEL
from . import terminal
from .calibrate import seconds
from .inputs import MODEL_HELP, add_device_options, add_method_options, check_method_names, count, read_method
from .prompts import add_prompt_options, for_calibration, read

DRAFTING_AXES = ("strategy", "drafter", "tree")


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", nargs="?", help=MODEL_HELP)
    add_device_options(parser)
    add_prompt_options(parser)
    add("--tokens", metavar="N", type=count, default=USUAL_TOKENS, help="of each text (default: %(default)s)")
    add("--budget", metavar="TIME", type=seconds, default="10m", help="90s, 10m, 1h (default: %(default)s)")
    add("--json", action="store_true", help="print one JSON document as the last line")
    add_method_options(parser, DRAFTING_AXES)


def read_before_loading(options: argparse.Namespace) -> tuple[list[BenchPrompt], dict[str, Any]]:
    """The prompts and the method: whatever can be wrong with the command is, before a model is loaded."""
    method = read_method(options)
    check_method_names(method)
    if method.get("strategy") == "off":
        raise OptionError("the strategy 'off' drafts nothing, so there is nothing to learn; name another --strategy")
    loading.choose_dtype(options.dtype, loading.choose_device(options.device))
    return read(options), method


def load(
    options: argparse.Namespace, prompts: Sequence[BenchPrompt], method: dict[str, Any]
) -> tuple[Engine, list[CalibrationPrompt]]:
    with terminal.Progress() as progress:
        model, tokenizer = loading.load(options.model, device=options.device, dtype=options.dtype, progress=progress)
    engine = Engine(model, tokenizer, name=options.model or DEFAULT_MODEL, **method)
    return engine, [for_calibration(prompt, engine) for prompt in prompts]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# ------------------------------------------------------------------------------------------------ what came out


def table(rows: Sequence[Measured], best: Measured) -> str:
    """Milliseconds a token of plain decoding and of every setting that was tried; the best one is starred."""
    plain = rows[0].seconds_per_token
    labels = [_label(row) for row in rows]
    width = max(map(len, labels))
    lines = [f"  {'':{width}}  {'predicted':>9}  {'measured':>9}  {'speed-up':>8}  {'mean length':>11}"]
    for label, row in zip(labels, rows, strict=True):
        length, speedup = row.total.num_tokens / max(1, row.total.num_passes), plain / row.seconds_per_token
        seconds = f"{1000 * row.predicted_seconds:9.2f}  {1000 * row.seconds_per_token:9.2f}"
        lines.append(f"{'*' if row is best else ' '} {label:{width}}  {seconds}  {speedup:7.2f}x  {length:11.2f}")
    texts = terminal.number(rows[0].total.num_texts, "prompt")
    note = f"  (milliseconds a token, {texts} in turns; predicted: by replay)"
    return "\n".join([*lines, note])


def _label(row: Measured) -> str:
    if row.candidate is None:
        return "plain decoding"
    return f"{row.candidate}{' (usual)' if row.is_usual else ''}"


def generate_command(engine: Engine, options: argparse.Namespace, lookahead: str) -> str:
    """With what was learned, and what it was learned for."""
    chosen = [f"--{axis} {getattr(options, axis)}" for axis in DRAFTING_AXES if getattr(options, axis)]
    chosen += [f"--set {shlex.quote(text)}" for text in options.set]
    model = f" --model {shlex.quote(options.model)}" if options.model else ""
    parts = [f"selfdraft generate{model}{engine.knowledge.key.options}", *chosen, lookahead, '"Why is the sky blue?"']
    return " ".join(parts)


def circumstances(engine: Engine, method: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    names = engine.names(**method)
    return {
        "version": __version__,
        "model": options.model or DEFAULT_MODEL,
        "device": engine.knowledge.key.device,
        "dtype": str(engine.dtype).removeprefix("torch."),
        **{axis: names[axis] for axis in DRAFTING_AXES},
        "settings": names["settings"],
    }
