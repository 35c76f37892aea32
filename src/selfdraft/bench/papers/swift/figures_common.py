"""What the figures of SWIFT share: how the methods are set, and the texts that they go through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ....calibrate.texts import Text
from ....errors import ProfileError
from ...prompts import BenchPrompt, encode
from ..recipe import Effort, Found, Unit
from ..scale import Scale
from ..tasks import TASKS, Task, Tasks
from ..workbench import Workbench
from .lessons import self_sd_lesson
from .methods import SELF_SD, Method
from .methods import self_sd as ways_of_self_sd
from .shown import PAPER_TOKENS

OURS = "SWIFT, ours"
FIRST_TASK = "cnn-dm"
PAPER_WINDOW, QUICK_WINDOW = 32, 16
_PROBED_TOKENS = 64


def window_of(scale: Scale) -> int:
    """Generated tokens that candidates are scored by. The paper's are more than a text of the quick scale has."""
    return QUICK_WINDOW if scale.is_quick else PAPER_WINDOW


def window_note(found: Found) -> list[str]:
    if not found.scale.get("is_quick"):
        return []
    return [f"candidates are scored by {QUICK_WINDOW} tokens, the paper's by {PAPER_WINDOW}: quick texts are short"]


def swift(scale: Scale, **options: Any) -> dict[str, Any]:
    """By the paper's rules, whatever we do otherwise."""
    return {"strategy": "swift", "settings": {"swift": {"paper": True, "window": window_of(scale), **options}}}


def ours(scale: Scale) -> dict[str, Any]:
    """As it is where nobody asks for the paper's rules."""
    return {"strategy": "swift", "settings": {"swift": {"window": window_of(scale)}}}


def text_tokens(scale: Scale) -> int:
    """Of a text that is long enough to be searched on: nothing is scored before a window is full."""
    return max(scale.tokens, 2 * window_of(scale))


def token_effort(found: Found, is_stream: bool = True) -> Effort:
    """`is_stream`: texts are searched on while they are measured."""
    tokens = found.scale.get("tokens")
    if tokens is not None and is_stream:
        tokens = max(tokens, 2 * (QUICK_WINDOW if found.scale.get("is_quick") else PAPER_WINDOW))
    return Effort("new tokens of a text at most", tokens, PAPER_TOKENS)


def stream_prompts(bench: Workbench, name: str, quick_count: int) -> Sequence[BenchPrompt]:
    """One task's prompts, twice as many as elsewhere; where nothing is learned beforehand none is kept apart for it."""
    scale = bench.scale
    count = max(quick_count, scale.prompts) if scale.is_quick else 2 * scale.prompts
    task = Tasks(bench.prompts, count, 1, bench.seed).find(name)
    return task.measured if task else ()


def found_tasks(bench: Workbench, names: Sequence[str]) -> list[Task]:
    return [task for task in map(bench.tasks.find, names) if task is not None]


def missing_tasks(bench: Workbench, names: Sequence[str]) -> list[Unit]:
    missing = [name for name in names if bench.tasks.find(name) is None]
    return [Unit(name, missing=bench.tasks.why_missing(name)) for name in missing]


def by_task(tasks: Sequence[Task]) -> list[BenchPrompt]:
    """Their measured prompts, one task behind the other; the task is the domain, so that figures are told by task."""
    return [replace(prompt, domain=task.name) for task in tasks for prompt in task.measured]


def stored_label(found: Found, name: str) -> str:
    """Of a task, as it was measured: as its own unit has it, else as other experiments do, else the paper's name."""
    stream = found.others.get("figure-7", {}).get("stream", {})
    table = found.others.get("table-2", {}).get(name, {})
    known = found.get(name, "label") or stream.get("labels", {}).get(name) or table.get("task")
    return str(known or TASKS[name].title)


def plain_texts(bench: Workbench, prompts: Sequence[BenchPrompt]) -> list[Text]:
    """What the model says behind them, to look at what sub-networks make of it."""
    num_tokens = max(bench.scale.tokens, _PROBED_TOKENS)
    found = []
    for prompt in prompts:
        tokens = encode(prompt, bench.engine)
        plain = bench.engine.generate(tokens, max_new_tokens=num_tokens, strategy="off")
        found.append(Text((*tokens, *plain.tokens), len(tokens)))
    return [text for text in found if text.num_generated]


# ------------------------------------------------------------------------------------------------------- lessons


def self_sd(bench: Workbench, task: Task, seconds: float) -> tuple[Method, Mapping[str, Any]]:
    """Self-SD with the best set that it tried, even where that is slower than plain decoding; and what its search took.

    Tables have the same lessons, so that each is learned once.
    """
    search = self_sd_lesson(bench, task, seconds=seconds)
    if not search["skip"]:
        raise ProfileError("Self-SD has no set to try: the model has too few layers")
    return ways_of_self_sd(SELF_SD, search["skip"])[SELF_SD], search


def self_sd_note(search: Mapping[str, Any] | None) -> list[str]:
    """What its own search says of the set."""
    if not search or search["tokens_per_second"] > search["plain"]:
        return []
    return [
        f"no set that Self-SD tried was faster than plain decoding ({search['plain']:.1f} tokens/s); the best of them "
        f"drafts here ({search['tokens_per_second']:.1f} when it was tried)"
    ]
