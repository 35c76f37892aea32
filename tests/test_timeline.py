"""A text of `generate --json`, told and drawn round by round by `report`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from selfdraft.bench.timeline import Run, chart
from selfdraft.cli.main import main


@pytest.fixture
def written(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    options = ["--compare", "--max-new-tokens", "60", "abcabcabcabc"]
    assert main(["generate", "--model", folder, "--json", *options]) == 0
    file = tmp_path / "text.json"
    file.write_text(capsys.readouterr().out)
    return file


def test_a_text_is_told_round_by_round(written: Path, said: Callable[..., str]) -> None:
    told = said("report", str(written))
    run = Run.read(written)
    assert run is not None
    assert sum(one.num_tokens for one in run.rounds) == 60
    signs = "".join(line for line in told.splitlines() if set(line) <= set(".cd"))
    assert signs == "".join({"off": ".", "copy": "c", "skip": "d"}[one.kind] for one in run.rounds)
    assert "strategy auto, " in told
    assert f"plainly {run.document['plain']['stats']['tokens_per_second']:.1f}" in told


def test_it_is_drawn(written: Path, tmp_path: Path, said: Callable[..., str]) -> None:
    pytest.importorskip("matplotlib")
    folder = tmp_path / "pictures"
    assert said("report", str(written), "--png", str(folder)) == f"wrote pictures to {folder}\n"
    assert (folder / "timeline.png").read_bytes().startswith(b"\x89PNG")
    run = Run.read(written)
    assert run is not None
    assert chart(run) == chart(run)


def test_what_does_not_belong_to_it(written: Path, said: Callable[..., str]) -> None:
    told = said("report", str(written), "--html", "page.html", status=2)
    assert "--html is not for texts of `generate --json`, which become text or pictures (--png)" in told
