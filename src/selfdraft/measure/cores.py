"""Who else uses the cores of this machine, by what Linux says of its processes; elsewhere nothing is known.

Between two glances every process has used some CPU time, and our own threads have waited for a core. A machine is busy
where others use cores that our threads need, or where these wait, whoever it is that they wait for.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..progress import Progress

PROC = Path("/proc")
LEAST_CORES = 0.25  # that threads of ours must lack: fewer do not show in figures
LEAST_WAIT = 0.15  # share of the time of our threads, waiting for a core
LEAST_WORTH_NAMING = 0.1  # of a core
MOST_NAMED = 3
_SHORTEST, _USUAL = 0.25, 2.0  # seconds between two glances: CPU time is counted in hundredths
_ADVICE = "speeds will be noisy: end what else runs, or rerun when it is over"


@dataclass(frozen=True)
class Load:
    """`others`: cores that each other process uses, by "number name"; `waited`: share of the time of our threads."""

    others: Mapping[str, float]
    waited: float
    num_cores: int  # that we may use
    num_threads: int  # of ours, that compute
    num_elsewhere: int = 0  # cores that we may not use, and others may

    def words(self, verb: str = "use") -> str | None:
        """Who is in the way; None: nobody."""
        free = max(0, self.num_cores - self.num_threads) + self.num_elsewhere
        is_starved, is_crowded = self.waited >= LEAST_WAIT, sum(self.others.values()) - free >= LEAST_CORES
        waiting = f"our threads waited for a core {self.waited:.0%} of their time".replace("%", " %")
        if is_crowded:
            return f"{_named(self.others, verb)}{f'; {waiting}' if is_starved else ''}"
        if is_starved and self.num_threads > self.num_cores:  # they wait for each other
            return f"{self.num_threads} threads of ours share {self.num_cores} cores: take fewer (--threads)"
        return f"threads starved: {waiting}" if is_starved else None


def _named(others: Mapping[str, float], verb: str) -> str:
    """`2 other processes use the cores: python (98 %), ffmpeg (40 %)`."""
    busiest = Counter(others).most_common()
    count = max(1, sum(cores >= LEAST_WORTH_NAMING for _, cores in busiest))
    names = ", ".join(f"{name.partition(' ')[2]} ({100 * cores:.0f} %)" for name, cores in busiest[:MOST_NAMED][:count])
    more = f" and {count - MOST_NAMED} more" if count > MOST_NAMED else ""
    who = f"{count} other processes {verb}" if count > 1 else f"another process {verb}{'s' * (verb == 'use')}"
    return f"{who} the cores: {names}{more}"


@dataclass(frozen=True)
class _Glance:
    """`others`: name and CPU seconds of each process, by its number; `ran`, `waited`: seconds of our own threads."""

    seconds: float
    others: Mapping[str, tuple[str, float]]
    ran: float
    waited: float


def _glance() -> _Glance | None:
    """None: this system does not say. Of threads some systems say nothing: then ours have never waited."""
    try:
        others, threads = dict(_others()), os.listdir(PROC / "self/task")
    except OSError:
        return None
    ours = []
    for thread in threads:
        with contextlib.suppress(OSError):  # it has ended
            ours.append((PROC / "self/task" / thread / "schedstat").read_text().split())
    ran, waited = (sum(int(numbers[place]) for numbers in ours) / 1e9 for place in (0, 1))
    return _Glance(time.monotonic(), others, ran, waited)


def _others() -> Iterator[tuple[str, tuple[str, float]]]:
    ticks = os.sysconf("SC_CLK_TCK")
    for number in filter(str.isdigit, os.listdir(PROC)):
        if int(number) != os.getpid():
            with contextlib.suppress(OSError):  # it has ended
                before, _, after = (PROC / number / "stat").read_text(errors="replace").rpartition(")")
                yield number, (before.partition("(")[2], sum(map(int, after.split()[11:13])) / ticks)


def load_between(before: _Glance, after: _Glance, num_threads: int) -> Load:
    seconds = after.seconds - before.seconds
    known = {number: cpu for number, (_, cpu) in before.others.items()}
    others = {
        f"{number} {name}": (cpu - known.get(number, 0.0)) / seconds for number, (name, cpu) in after.others.items()
    }
    ran, waited = max(0.0, after.ran - before.ran), max(0.0, after.waited - before.waited)  # a thread may have ended
    every = os.cpu_count() or 1
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else every
    used = {name: cores for name, cores in others.items() if cores > 0}
    return Load(used, waited / (ran + waited) if waited else 0.0, num_cores, num_threads, every - num_cores)


class Watch:
    """Glances from now on, at most one every few seconds, and what was busy among the times between them."""

    def __init__(self) -> None:
        self._last = _glance()
        self._busy: list[tuple[float, Load]] = []
        self._seconds = 0.0

    def look(self, device: torch.device, least_seconds: float = _USUAL) -> Load | None:
        """What was going on since the last glance, where it was busy."""
        if self._last is None or time.monotonic() - self._last.seconds < least_seconds:
            return None
        before, self._last = self._last, _glance()
        if self._last is None:
            return None
        seconds = self._last.seconds - before.seconds
        found = load_between(before, self._last, torch.get_num_threads() if device.type == "cpu" else 1)
        self._seconds += seconds
        if not found.words():
            return None
        self._busy.append((seconds, found))
        return found

    def warning(self, device: torch.device) -> str | None:
        """Before something is measured."""
        found = self.look(device, _SHORTEST)
        return f"the machine is busy: {found.words()}; {_ADVICE}" if found else None

    def summary(self, device: torch.device) -> str | None:
        """`12 of 300 s: another process used the cores: python (98 %)`; None: never busy."""
        self.look(device, _SHORTEST)
        if not self._busy:
            return None
        busy = sum(seconds for seconds, _ in self._busy)
        return f"{busy:.0f} of {self._seconds:.0f} s: {_mean(self._busy).words('used')}"

    def beside(self, progress: Progress, device: torch.device) -> Progress:
        """Looks whenever progress is told."""

        def tell(done: int, total: int | None, label: str) -> None:
            self.look(device)
            progress(done, total, label)

        return tell


def _mean(loads: Sequence[tuple[float, Load]]) -> Load:
    whole, others = sum(seconds for seconds, _ in loads), Counter[str]()
    for seconds, load in loads:
        others.update({name: seconds / whole * cores for name, cores in load.others.items()})
    waited, last = sum(seconds * load.waited for seconds, load in loads) / whole, loads[-1][1]
    return replace(last, others=others, waited=waited)
