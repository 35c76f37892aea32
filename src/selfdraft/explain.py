"""`selfdraft info --methods [NAME]`: what each method is, its paper, its options, when to use it."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator

from .errors import unknown_name
from .options import describe
from .registry import AXES, AXIS_HELP, DEFAULT_HELP, DEFAULTS, find

WHEN = {
    "off": "to compare with, and where drafting does not pay: small models on few CPU cores",
    "fixed": "you know what to skip (`selfdraft calibrate` prints sets), or how many tokens to draft",
    "uniform": "to try drafting with nothing learned; seldom the fastest",
    "early-exit": "the model was trained for it (LayerSkip)",
    "asd": "no calibration, and prompts that differ much; a baseline more than a choice",
    "clasp": "no calibration, long texts",
    "draft-verify": "you can spend hours of calibration, and trust nothing but the clock",
    "knapspec": "long contexts, where attention is what a pass costs",
    "prune": "the usual choice: after `selfdraft calibrate`; decodes plainly where that is faster",
    "swift": "a stream of similar texts on a GPU, no calibration",
    "knn": "several kinds of text that are known beforehand",
    "heuristic": "a constant number that follows the text: two more after a full draft, one less after a miss",
    "confidence": "the usual choice: stops where the draft is unsure",
    "adaptive": "as Draft & Verify: the threshold follows the acceptance",
    "roc": "the threshold follows what drafts of this text were worth",
    "perplexity": "stops where the draft as a whole has become unlikely",
    "disco": "after `selfdraft calibrate --lookahead disco`, which trains it for your model and texts",
    "tpt": "goes by seconds: drafts on while a token more promises more tokens per second",
    "self": "always there: the model drafts with some of its own sub-layers",
    "lookup": "the answer repeats the prompt: rewriting, summaries, code edits; costs next to nothing",
    "ngram-pool": "as lookup, with n-grams of all the text so far; needs no model",
    "model": "you have a small model with the same tokenizer",
    "chain": "one token after the other; on a CPU",
    "siblings": "on a GPU, where verifying a few more tokens is nearly free",
    "coupled": "the usual choice: the same seed gives the same text, with drafting and without",
    "rejection": "speculative sampling as published: the same distribution, other random numbers",
}


def methods_text(name: str) -> str:
    """Of one method, or of all in a line each."""
    if not name:
        return "\n".join(_overview())
    axes = [axis for axis, table in AXES.items() if name in table]
    if not axes:
        raise unknown_name("method", name, WHEN)
    return "\n\n".join("\n".join(_method(axis, name)) for axis in axes)


def _overview() -> Iterator[str]:
    for axis, table in AXES.items():
        yield f"{axis}: {AXIS_HELP[axis]} (--{axis} NAME, default: {DEFAULT_HELP.get(axis, DEFAULTS[axis])})"
        for name in table:
            yield f"  {name:<13} {_first(axis, name)}"
            yield f"  {'':<13} when: {WHEN[name]}"
        yield ""
    yield "selfdraft info --methods NAME says more of one, with its options."


def _method(axis: str, name: str) -> Iterator[str]:
    _, _, rest = _explained(axis, name).partition("\n\n")
    yield f"{name} ({axis}): {_first(axis, name)}"
    yield from ("", *rest.splitlines()) if rest and axis != "acceptance" else ()
    yield f"\nwhen to use it: {WHEN[name]}"
    options = describe(find(axis, name).Options) if axis != "acceptance" else []
    if options:
        yield "\noptions (--set METHOD.OPTION=VALUE):"
    for option, default, text in options:
        lines = textwrap.wrap(f"{text} (default: {default!r})", 90)
        yield f"  {f'{name}.{option}':<24} " + f"\n{'':27}".join(lines)


def _explained(axis: str, name: str) -> str:
    """The docstring of the file that has the method, or of the method itself where a file has several."""
    method = find(axis, name)
    text = method.__doc__ if axis == "acceptance" else sys.modules[method.__module__].__doc__
    return textwrap.dedent(text or "").strip()


def _first(axis: str, name: str) -> str:
    """Its first paragraph, in one line."""
    paragraph = " ".join(_explained(axis, name).partition("\n\n")[0].split())
    return paragraph.removeprefix(f"`{name}`: ")
