"""Streams of prompts that change between tasks: KNN-SSD (arXiv:2505.16162), equation 8."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import TypeVar

from ..errors import OptionError
from .prompts import BenchPrompt, by_domain

Item = TypeVar("Item")

RATIOS = (0.0, 0.3, 0.7, 1.0)


def mixed(prompts: Mapping[str, Sequence[Item]], ratio: float, length: int, seed: int) -> list[tuple[str, Item]]:
    """(task, prompt) one after the other, beginning with the first task; no prompt twice.

    The next prompt belongs to another task with the probability `ratio`, to each of the others alike. Each task's
    prompts come in their order. Where a task has none left it is drawn from those that have.
    """
    draw = random.Random(seed)
    waiting = {task: list(found) for task, found in prompts.items() if found}
    stream: list[tuple[str, Item]] = []
    task = next(iter(waiting), None)
    while task is not None and len(stream) < length:
        stream.append((task, waiting[task].pop(0)))
        waiting = {name: left for name, left in waiting.items() if left}
        task = _next_task(task, list(waiting), ratio, draw)
    return stream


def mixed_prompts(prompts: Sequence[BenchPrompt], ratio: float, seed: int) -> list[BenchPrompt]:
    """All of them, their domains being the tasks; 0: domain by domain, 1: always another one while there is one."""
    if not 0 <= ratio <= 1:
        raise OptionError(f"the mix ratio must be from 0 (domain by domain) to 1 (always another domain), got {ratio}")
    return [prompt for _, prompt in mixed(by_domain(prompts), ratio, len(prompts), seed)]


def _next_task(task: str, tasks: Sequence[str], ratio: float, draw: random.Random) -> str | None:
    others = [name for name in tasks if name != task]
    if not others:
        return task if task in tasks else None
    return draw.choice(others) if task not in tasks or draw.random() < ratio else task


def change_share(tasks: Sequence[str]) -> float | None:
    """How often the next task is another one."""
    changes = [after != before for before, after in itertools.pairwise(tasks)]
    return sum(changes) / len(changes) if changes else None
