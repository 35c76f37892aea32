"""A busy machine is noticed and named: the judgement on given numbers, a made-up /proc, and one process that spins."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from selfdraft.cli.main import main
from selfdraft.measure import cores
from selfdraft.measure.cores import Load, Watch
from selfdraft.measure.result import Result

CPU = torch.device("cpu")
PYTHON, FFMPEG = "7 python", "9 ffmpeg"


@pytest.mark.parametrize(
    ("others", "waited", "num_cores", "num_threads", "words"),
    [
        ({}, 0.0, 2, 2, None),
        ({PYTHON: 0.98}, 0.0, 2, 2, "another process uses the cores: python (98 %)"),
        ({PYTHON: 0.98, FFMPEG: 0.4}, 0.0, 2, 2, "2 other processes use the cores: python (98 %), ffmpeg (40 %)"),
        ({PYTHON: 0.98, "8 sh": 0.01}, 0.0, 2, 2, "another process uses the cores: python (98 %)"),
        ({PYTHON: 0.98}, 0.0, 2, 1, None),  # on the core that we leave
        ({PYTHON: 1.98}, 0.0, 2, 1, "another process uses the cores: python (198 %)"),
        ({PYTHON: 12.0}, 0.0, 16, 1, None),  # a GPU needs one of sixteen
        ({PYTHON: 0.2}, 0.1, 2, 2, None),
        ({PYTHON: 0.98}, 0.0, 2, 4, "another process uses the cores: python (98 %)"),
        ({}, 0.4, 2, 2, "threads starved: our threads waited for a core 40 % of their time"),
        (
            {str(n): 1.0 for n in range(5)},
            0.5,
            4,
            4,
            "5 other processes use the cores:  (100 %),  (100 %),  (100 %) and 2 more; our threads waited for a core "
            "50 % of their time",
        ),
    ],
)
def test_the_judgement(
    others: dict[str, float], waited: float, num_cores: int, num_threads: int, words: str | None
) -> None:
    assert Load(others, waited, num_cores, num_threads).words() == words


def test_others_on_cores_that_we_may_not_use_are_not_in_the_way() -> None:
    assert Load({PYTHON: 1.0}, 0.0, 1, 1, num_elsewhere=1).words() is None
    assert "python" in (Load({PYTHON: 1.0}, 0.0, 1, 1).words() or "")
    assert "python" in (Load({PYTHON: 1.9}, 0.0, 1, 1, num_elsewhere=1).words() or "")


def test_threads_of_ours_that_wait_for_each_other_do_not_blame_others() -> None:
    assert Load({}, 0.6, 2, 8).words() == "8 threads of ours share 2 cores: take fewer (--threads)"


def a_process(proc: Path, number: int, name: str, ticks: int) -> None:
    (proc / str(number)).mkdir(parents=True, exist_ok=True)
    fields = ["S", *["0"] * 10, str(ticks // 2), str(ticks - ticks // 2), *["0"] * 30]
    (proc / str(number) / "stat").write_text(f"{number} ({name}) {' '.join(fields)}")


def threads(proc: Path, ran: float, waited: float) -> None:
    (proc / "self/task/1").mkdir(parents=True, exist_ok=True)
    (proc / "self/task/1/schedstat").write_text(f"{ran * 1e9:.0f} {waited * 1e9:.0f} 5")


def test_what_linux_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own CPU time does not count, a kernel thread may change its name, a new process has all of its time."""
    now, ticks = [100.0], os.sysconf("SC_CLK_TCK")
    monkeypatch.setattr(cores, "PROC", tmp_path)
    monkeypatch.setattr(cores.time, "monotonic", lambda: now[0])
    a_process(tmp_path, os.getpid(), "ours", 0)
    a_process(tmp_path, 3, "kworker/u8:2-flush", 900 * ticks)
    a_process(tmp_path, 5, "odd (name) )", 0)
    threads(tmp_path, 50, 1)
    watch = Watch()
    now[0] += 10
    a_process(tmp_path, os.getpid(), "ours", 20 * ticks)
    a_process(tmp_path, 3, "kworker/u8:2-events", 900 * ticks)
    a_process(tmp_path, 5, "odd (name) )", 9 * ticks)
    a_process(tmp_path, 6, "new", 5 * ticks)
    threads(tmp_path, 56, 5)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    found = watch.look(CPU)
    assert found is not None
    assert found.others == pytest.approx({"5 odd (name) )": 0.9, "6 new": 0.5})
    assert (found.waited, found.num_cores, found.num_threads) == (0.4, 1, torch.get_num_threads())
    now[0] += 30  # nothing more
    assert watch.look(CPU) is None
    said = (
        "2 other processes used the cores: odd (name) ) (90 %), new (50 %); our threads waited for a core 40 % of their"
    )
    assert watch.summary(CPU) == f"10 of 40 s: {said} time"


def test_without_proc_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "PROC", tmp_path / "missing")
    watch = Watch()
    assert (watch.look(CPU, 0.0), watch.warning(CPU), watch.summary(CPU)) == (None, None, None)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_process_that_spins_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "PROC", Path("/proc"))
    monkeypatch.setattr(torch, "get_num_threads", lambda: os.cpu_count())
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as spinning:
        try:
            watch, deadline = Watch(), time.monotonic() + 20
            found = None
            while found is None and time.monotonic() < deadline:
                time.sleep(0.5)
                found = watch.look(CPU, 0.4)
        finally:
            spinning.kill()
    assert found is not None
    assert any(name.startswith(f"{spinning.pid} ") for name in found.others)
    assert "the cores: " in (found.words() or "")


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever one looks, three seconds have gone by, and another process has used a core for two of them."""
    numbers = itertools.count()

    def glance() -> cores._Glance:
        number = next(numbers)
        return cores._Glance(3.0 * number - 1e6, {"7": ("python", 2.0 * number)}, 0.0, 0.0)

    monkeypatch.setattr(cores, "_glance", glance)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)


@pytest.mark.full
@pytest.mark.usefixtures("busy", "home", "untimed")
def test_the_commands_say_so(
    folder: str, prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "result.jsonl"
    few = ["--prompts", prompts, "--per-domain", "1", "--max-new-tokens", "4", "--peers", "none"]
    assert main(["bench", folder, *few, "--strategies", "uniform", "--output", str(file)]) == 0
    output = capsys.readouterr()
    warning = "the machine is busy: another process uses the cores: python (67 %); speeds will be noisy"
    assert warning in output.err
    assert "another process used the cores: python (67 %)" in " ".join(output.out.split())
    for found in (Result.read(file).document(), json.loads(file.read_text().split("\n")[0])["circumstances"]):
        assert found["busy"].endswith(" s: another process used the cores: python (67 %)")

    monkeypatch.setattr("selfdraft.calibrate.calibrate.TRIAL_TOKENS", 4)
    assert main(["calibrate", folder, "--prompts", prompts, "--tokens", "24", "--trial-prompts", "1"]) == 0
    output = capsys.readouterr()
    assert warning in output.err
    assert "the machine was busy for " in output.out

    drafting = ["--strategy", "uniform", "--lookahead", "fixed", "--tokens", "12"]
    assert main(["calibrate", folder, "--prompts", prompts, *drafting]) == 0
    assert "the machine was busy for " in capsys.readouterr().out


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("is_busy", [True, False])
def test_generate_compare_says_so(
    folder: str, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest, is_busy: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if is_busy:
        request.getfixturevalue("busy")
    else:
        quiet = itertools.count()
        monkeypatch.setattr(cores, "_glance", lambda: cores._Glance(3.0 * next(quiet) - 1e6, {}, 0.0, 0.0))
    command = ["generate", "--model", folder, "--max-new-tokens", "4", "--raw", "Hello"]
    assert main([*command, "--compare"]) == 0
    assert ("the machine was busy for 3 of 3 s: another process used" in capsys.readouterr().err) is is_busy
    assert main([*command, "--compare", "--json"]) == 0
    assert ("busy" in json.loads(capsys.readouterr().out)) is is_busy
    assert main(command) == 0
    assert "busy" not in capsys.readouterr().err, "nothing is compared"
