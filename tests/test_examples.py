"""The examples run: each script and every cell of the notebook, with a pico model; what the notebook stores is real."""

from __future__ import annotations

import io
import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

import notebooks
from selfdraft import Engine
from selfdraft.models.load.catalogue import DEFAULT_MODEL
from selfdraft.models.load.pull import pull

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOK = EXAMPLES / "quickstart.ipynb"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, home: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs one as `python examples/NAME ARGUMENTS`; what it printed."""

    def run(name: str, *arguments: str, typed: str = "") -> str:
        monkeypatch.setattr("sys.argv", [name, *arguments])
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        capsys.readouterr()
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_every_example_is_run_here() -> None:
    found = {path.name for path in EXAMPLES.iterdir()} - {"rewrite.txt", "__pycache__"}
    assert found == {"batch.py", "chat.py", "inside_transformers.py", NOTEBOOK.name}


@pytest.mark.full
def test_chat(script: Any, folder: str) -> None:
    printed = script("chat.py", folder, typed="hello\nand-you?")  # ends with the input
    assert printed.count("you> ") == 3
    assert printed.count(" tokens, ") == 2
    assert script("chat.py", folder, typed="\nnever read\n") == "you> "


def test_batch_over_a_file(script: Any, folder: str, tmp_path: Path) -> None:
    source, target = tmp_path / "prompts.txt", tmp_path / "answers.jsonl"
    source.write_text("".join(f"prompt-{number}\n\n" for number in range(9)), encoding="utf-8")
    assert script("batch.py", str(source), str(target), folder) == "8 of 9\n9 of 9\n"
    answers = [json.loads(line) for line in target.open(encoding="utf-8")]
    assert [answer["prompt"] for answer in answers] == [f"prompt-{number}" for number in range(9)]
    alone = Engine.from_pretrained(folder, device="cpu").generate("prompt-8", max_new_tokens=64)
    assert (answers[8]["answer"], answers[8]["finish_reason"]) == (alone.text, "length")


@pytest.mark.parametrize("arguments", [(), ("prompts.txt",)])
def test_batch_says_what_it_takes(script: Any, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        script("batch.py", *arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err == "usage: python examples/batch.py prompts.txt answers.jsonl [MODEL]\n"


def test_without_a_model_it_is_the_default_one(script: Any, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfdraft.models.load.loading.pull", lambda name, progress: Path(folder))
    assert script("chat.py", typed="") == "you> "
    assert script("inside_transformers.py").endswith("the same tokens: True\n")


@pytest.mark.full
def test_a_chat_is_another_each_time(script: Any, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = []
    monkeypatch.setattr("secrets.randbits", lambda bits: seeds.append(len(seeds)) or seeds[-1])
    script("chat.py", folder, typed="hello\nhello\n")
    assert len(seeds) == 2


def test_inside_transformers(script: Any, folder: str) -> None:
    printed = script("inside_transformers.py", folder)
    assert printed.endswith("the same tokens: True\n")
    assert len(printed.splitlines()) > 1  # streamed


# ------------------------------------------------------------------------------------------------------- the notebook


def printed_by(outputs: list[dict[str, Any]]) -> str:
    return "".join(line for output in outputs for line in output.get("text", ()))


def assert_says_what_it_should(cells: list[list[dict[str, Any]]]) -> None:
    """Of a run of the notebook, whatever the model."""
    _, loaded, shown, told, streamed, compared, measured = cells
    assert "ForCausalLM on " in printed_by(loaded)
    assert shown[0]["output_type"] == "execute_result"
    assert "passes" in printed_by(told)
    assert printed_by(streamed)
    assert [line.split()[-1] for line in printed_by(compared).splitlines()] == ["equal", "equal"]
    rows = printed_by(measured).splitlines()
    assert [row.split()[0] for row in rows] == ["off", "uniform", "lookup"]
    assert all(row.endswith("different texts: 0") for row in rows)


def test_every_cell_runs(folder: str, home: Path, untimed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFDRAFT_EXAMPLE_MODEL", folder)
    assert_says_what_it_should(notebooks.run(notebooks.read(NOTEBOOK)))


def test_a_cell_that_fails_is_noticed(folder: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = notebooks.read(NOTEBOOK)
    notebook["cells"].insert(1, {"cell_type": "code", "source": ["1 / 0"]})
    with pytest.raises(ZeroDivisionError):
        notebooks.run(notebook)


def test_stored_outputs_are_of_one_run() -> None:
    notebook = notebooks.read(NOTEBOOK)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert_says_what_it_should([cell["outputs"] for cell in cells])
    assert "/home/" not in json.dumps(notebook)


@pytest.mark.full
@pytest.mark.model
def test_stored_outputs_are_those_of_the_default_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts, their tokens and their passes; speeds are of the day. The cells after it compare and measure: minutes."""
    monkeypatch.setenv("SELFDRAFT_EXAMPLE_MODEL", str(pull(DEFAULT_MODEL)))
    monkeypatch.setenv("SELFDRAFT_HOME", str(tmp_path))  # without what may have been learned about it
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    notebook = notebooks.read(NOTEBOOK)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"][:5]
    fresh = notebooks.run({"cells": cells})
    assert without_speeds(fresh) == without_speeds([cell["outputs"] for cell in cells])


def without_speeds(outputs: Any) -> str:
    return re.sub(r"[\d.]+ tokens/s", "", json.dumps(outputs, sort_keys=True))


def test_a_notebook_is_what_jupyter_reads() -> None:
    notebook = notebooks.read(NOTEBOOK)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in notebook["cells"]:
        fields = {"cell_type", "id", "metadata", "source"}
        assert set(cell) == (fields | {"execution_count", "outputs"} if cell["cell_type"] == "code" else fields)


def test_the_runner_shows_what_a_notebook_shows() -> None:
    assert notebooks.run_cell("x = 1", {}, 1) == []
    assert printed_by(notebooks.run_cell("print('a')\nNone", {}, 1)) == "a\n"

    class Shown:
        def _repr_html_(self) -> str:
            return "<b>x</b>"

    (output,) = notebooks.run_cell("x", {"x": Shown()}, 3)
    assert (output["execution_count"], output["data"]["text/html"]) == (3, ["<b>x</b>"])
