"""`selfdraft info --methods [NAME]`: what each method is, its paper, its options, when to use it."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from .errors import unknown_name
from .options import describe
from .registry import AXES, AXIS_HELP, DEFAULTS, find

WIDTH = 80
WHEN: Mapping[str, Mapping[str, str]] = {
    "strategy": {
        "auto": "the default: nothing to know or to calibrate; a calibration makes it start better",
        "off": "to compare with, and where drafting does not pay: small models on few CPU cores",
        "fixed": "you know what to skip: `selfdraft calibrate` prints sets",
        "uniform": "to try drafting with nothing learned; seldom the fastest",
        "early-exit": "the model was trained for it (LayerSkip, arXiv:2404.16710); others draft badly this way",
        "dynamic-exit": "as `early-exit`, without knowing how many layers to draft with",
        "asd": "a baseline; `selfdraft calibrate` finds its numbers; decodes plainly where that is faster",
        "clasp": "a baseline, with nothing to calibrate: accepted often, but too dear a draft where we measured it",
        "draft-verify": "you can spend hours of calibration, and trust nothing but the clock",
        "knapspec": "long texts; after `selfdraft calibrate --strategy knapspec` plans are cheap",
        "prune": "after `selfdraft calibrate`, drafts of the skipped self alone; plain where that is faster",
        "swift": "a stream of similar texts on a GPU, nothing to calibrate",
        "knn": "several kinds of text that are known beforehand; compare it with `prune`",
    },
    "lookahead": {
        "fixed": "drafts that are all worth the same, or a baseline; calibrate the number, as five is often too far",
        "heuristic": "a separate, much smaller model drafts; a model that drafts for itself goes too far with it",
        "confidence": "the usual choice: nothing to train, and no rule was clearly faster",
        "adaptive": "you change strategies or kinds of text, and no threshold was tuned for them; `asd` and "
        "`draft-verify` pair with it",
        "roc": "a separate, much smaller model whose probabilities are not to be trusted as they are; a model that "
        "drafts for itself goes too far with it",
        "perplexity": "long drafts, where many tokens of middling confidence add up; tune it by `selfdraft calibrate "
        "--lookahead perplexity`, else prefer `confidence`",
        "disco": "a separate, much smaller model drafts, and you can train it: `selfdraft calibrate --lookahead disco`",
        "tpt": "high temperatures, or you change devices and kinds of text and do not want to tune anything",
    },
    "drafter": {
        "self": "the usual choice: nothing but the model is needed",
        "lookup": "the answer repeats the prompt: rewriting, summaries, code edits; costs next to nothing",
        "ngram-pool": "nothing is calibrated and the answer does not repeat the prompt, on a GPU, where it is nearly "
        "free to verify more tokens",
        "model": "you have a small model with the same tokenizer",
    },
    "tree": {
        "chain": "on a CPU, where each token more to verify takes time",
        "siblings": "on a GPU, where verifying a few more tokens is nearly free",
    },
    "acceptance": {
        "coupled": "the usual choice: the same seed gives the same text, with drafting and without",
        "rejection": "to compare with papers that sample so; only the distribution of texts is that of plain decoding, "
        "a seed gives another text",
    },
}


def methods_text(name: str) -> str:
    """Of one method, or of all in a few lines each."""
    if not name:
        return "\n".join(_overview())
    return "\n\n".join("\n".join(_method(axis, name)) for axis in _axes(name))


def methods_document(name: str) -> dict[str, dict[str, Any]]:
    """The same for programs: by axis and name, of all or of one."""
    axes = {axis: [name] for axis in _axes(name)} if name else AXES
    return {axis: {one: _document(axis, one) for one in names} for axis, names in axes.items()}


def _document(axis: str, name: str) -> dict[str, Any]:
    options = {option: {"default": default, "help": text} for option, default, text in _options(axis, name)}
    return {"what": _first(axis, name), "about": _rest(axis, name), "when": _when(axis, name), "options": options}


def _axes(name: str) -> list[str]:
    found = [axis for axis, table in AXES.items() if name in table]
    if not found:
        raise unknown_name("method", name, [one for table in AXES.values() for one in table])
    return found


def _overview() -> Iterator[str]:
    for axis, table in AXES.items():
        yield _hung(f"{axis}: {AXIS_HELP[axis]} (--{axis} NAME, default: {DEFAULTS[axis]})", "  ")
        for name in table:
            yield _hung(f"  {name:<13} {_first(axis, name)}", " " * 16)
            yield _hung(f"{'':16}when: {_when(axis, name)}", " " * 18)
        yield ""
    yield "selfdraft info --methods NAME says more of one, with its options."


def _method(axis: str, name: str) -> Iterator[str]:
    yield _hung(f"{name} ({axis}): {_first(axis, name)}")
    if rest := _rest(axis, name):
        yield f"\n{rest}"
    yield "\n" + _hung(f"when to use it: {_when(axis, name)}")
    options = {f"{name}.{option}": (default, text) for option, default, text in _options(axis, name)}
    if options:
        yield "\noptions (--set METHOD.OPTION=VALUE):"
    width = max(map(len, options), default=0) + 4
    for label, (default, text) in options.items():
        yield _hung(f"  {label:<{width - 2}}{text} (default: {default!r})", " " * width)


def _when(axis: str, name: str) -> str:
    return WHEN[axis].get(name, "its file says")


def _options(axis: str, name: str) -> Any:
    return describe(find(axis, name).Options) if axis != "acceptance" else []


def _explained(axis: str, name: str) -> str:
    """The docstring of the file that has the method, or of the method itself where a file has several."""
    method = find(axis, name)
    text = (method.__doc__ if axis == "acceptance" else sys.modules[method.__module__].__doc__) or ""
    first, _, rest = text.strip().partition("\n\n")
    return f"{first}\n\n{textwrap.dedent(rest)}".strip()


def _first(axis: str, name: str) -> str:
    """Its first paragraph, in one line."""
    paragraph = " ".join(_explained(axis, name).partition("\n\n")[0].split())
    return paragraph.removeprefix(f"`{name}`: ")


def _rest(axis: str, name: str) -> str:
    """The paragraphs after it; formulas stand as they are."""
    paragraphs = _explained(axis, name).split("\n\n")[1:]
    return "\n\n".join(text if text.startswith(" ") else _filled(text) for text in paragraphs)


def _filled(paragraph: str) -> str:
    """Each item of a list begins on a line of its own."""
    items = re.split(r"\n(?=- )", paragraph)
    return "\n".join(_hung(" ".join(item.split()), "  " if item.startswith("- ") else "") for item in items)


def _hung(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)
