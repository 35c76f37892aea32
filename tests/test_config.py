"""The config file: found where people put it, filled in where a command leaves something open, wrong ones named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from selfdraft.cli.defaults import fill_in
from selfdraft.cli.main import main, parse
from selfdraft.config import find_config, read_config
from selfdraft.errors import OptionError

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a config file, by default into the current folder, which is empty."""
    monkeypatch.delenv("SELFDRAFT_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def write(text: str, file: str | Path = "selfdraft.toml") -> Path:
        path = Path(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


def filled(*words: str) -> Any:
    """What a command does with the config file in use."""
    options = parse(words)
    fill_in(options)
    return options


def test_where_it_is_looked_for(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_config() is None
    home = write("", tmp_path / "xdg" / "selfdraft" / "config.toml")
    assert find_config() == home
    here = write("")
    assert find_config() == here
    named = write("", tmp_path / "other.toml")
    monkeypatch.setenv("SELFDRAFT_CONFIG", str(named))
    assert find_config() == named
    monkeypatch.setenv("SELFDRAFT_CONFIG", "")
    assert find_config() is None


def test_without_xdg(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_config() is None
    file = write("", tmp_path / ".config" / "selfdraft" / "config.toml")
    assert find_config() == file


WRONG = [
    ('modl = "a"', "selfdraft.toml: unknown key 'modl'. Did you mean 'model'?"),
    ("model = 3", "selfdraft.toml: model must be text, got 3"),
    ('threads = "two"', "selfdraft.toml: threads must be a whole number of at least 1, got 'two'"),
    ("threads = 0", "selfdraft.toml: threads must be a whole number of at least 1, got 0"),
    ("threads = true", "selfdraft.toml: threads must be a whole number of at least 1, got True"),
    ('strategy = "lookup"', "selfdraft.toml: 'lookup' is a drafter, not a strategy"),
    ('strategy = "unifrom"', "selfdraft.toml: unknown strategy 'unifrom'. Did you mean 'uniform'?"),
    ("settings = 3", "selfdraft.toml: settings must be a table of tables, [settings.METHOD], got 3"),
    ("[settings]\nprune = 3", "selfdraft.toml: settings.prune must be a table of options"),
    ("[settings.prune]\ngain = [1]", "selfdraft.toml: settings.prune must be a table of options"),
    ("[settings.prune]\ngian = 1", "selfdraft.toml: unknown option of prune 'gian'. Did you mean 'gain'?"),
    ("[settings.prune]\ngain = -1", "selfdraft.toml: prune.gain must be at least 0, got -1"),
    ("model = ", "selfdraft.toml is not a TOML document"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_it_is_refused(text: str, message: str, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    write(text)
    assert main(["info"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('model = "./nowhere"', "no model at nowhere: not a folder (model is set in selfdraft.toml)"),
        ('device = "toaster"', "unknown or absent device 'toaster'. Possible here: cpu (device is set in"),
        ('dtype = "int3"', "Possible: float32, bfloat16, float16, fp32, bf16, fp16 (dtype is set in selfdraft.toml)"),
    ],
)
def test_an_error_names_where_a_value_is_from(text: str, message: str, write: Write, folder: str, capsys: Any) -> None:
    write(text)
    assert main(["generate", "abc"]) == 2
    assert message in capsys.readouterr().err
    assert main(["generate", "abc", "--model", "./elsewhere", "--device", "cpu", "--dtype", "fp32"]) == 2
    assert "selfdraft.toml" not in capsys.readouterr().err


def test_a_mark_at_its_beginning(write: Write) -> None:
    """As some editors write it."""
    write('\ufeffmodel = "m"')
    assert read_config().values == {"model": "m"}


def test_one_that_is_not_there(write: Write, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFDRAFT_CONFIG", "nowhere.toml")
    with pytest.raises(OptionError, match=r"cannot read the config file nowhere\.toml: No such file"):
        read_config()
    assert main(["profile", "list"]) == 0, "which needs no model, nor what is said about one"


PLACE = 'model = "m"\ndevice = "cpu"\ndtype = "bf16"\nthreads = 2\n'
METHOD = 'strategy = "prune"\nlookahead = "fixed"\ndrafter = "lookup"\ntree = "siblings"\nacceptance = "rejection"\n'


@pytest.mark.parametrize("command", ["generate abc", "info", "calibrate", "profile show", "bench", "reproduce asd"])
def test_every_command_goes_by_it_and_flags_win(command: str, write: Write) -> None:
    write(PLACE)
    found = filled(*command.split())
    assert (found.model, found.device, found.dtype, found.threads) == ("m", "cpu", "bf16", 2)
    found = filled(*command.split(), "--device", "cuda", "--dtype", "fp16", "--threads", "1")
    assert (found.model, found.device, found.dtype, found.threads) == ("m", "cuda", "fp16", 1)


def test_a_document_has_its_own_dtype(write: Write) -> None:
    write(PLACE)
    found = filled("verify", "other", "file")
    assert (found.model, found.device, found.dtype, found.threads) == ("other", "cpu", None, 2)


def test_who_goes_by_its_method(write: Write) -> None:
    write(METHOD)
    for command in (["generate", "abc"], ["bench"]):
        found = filled(*command)
        assert (found.strategy, found.lookahead, found.drafter) == ("prune", "fixed", "lookup")
        assert (found.tree, found.acceptance) == ("siblings", "rejection")
    assert filled("generate", "abc", "--strategy", "off").strategy == "off"
    assert filled("bench", "--quick").strategy is None
    assert filled("bench", "--strategies", "swift").lookahead is None
    assert filled("calibrate").lookahead is None, "which would learn something else"
    learned = filled("calibrate", "--lookahead", "disco")
    assert (learned.strategy, learned.drafter, learned.tree) == (["prune"], "lookup", "siblings")
    write('strategy = "off"')
    assert filled("bench").strategy is None


def test_flags_win_over_off_and_off_over_what_drafts(write: Write) -> None:
    write('strategy = "off"\nacceptance = "rejection"')
    assert filled("generate", "abc").strategy == "off"
    found = filled("generate", "abc", "--drafter", "lookup")
    assert (found.strategy, found.drafter, found.acceptance) == (None, "lookup", "rejection")
    assert filled("generate", "abc", "--tree", "siblings").strategy is None
    assert filled("generate", "abc", "--acceptance", "coupled").strategy == "off"
    write(METHOD)
    found = filled("generate", "abc", "--strategy", "off")
    assert (found.strategy, found.lookahead, found.drafter, found.tree) == ("off", None, None, None)
    assert found.acceptance == "rejection"


SETTINGS = "[settings.uniform]\nratio = 0.4\n[settings.swift]\nwindow = 64\npaper = true\n"


def test_generate_with_it(write: Write, folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Settings that nothing reads are a warning; those of the command win."""
    threads = torch.get_num_threads()
    method = 'strategy = "uniform"\nlookahead = "fixed"\n'
    write(f'model = "{folder}"\ndtype = "fp32"\n{method}threads = {threads}\n{SETTINGS}')
    command = ["generate", "abc", "--json", "--max-new-tokens", "4"]
    assert main(command) == 0
    ran = capsys.readouterr()
    document = json.loads(ran.out)
    assert (document["model"], document["lookahead"], document["dtype"]) == (folder, "fixed", "float32")
    assert ran.err == "warning: selfdraft.toml sets swift.paper, swift.window, which nothing chosen reads\n"
    assert main([*command, "--set", "uniform.ratio=0.9"]) == 0
    assert main([*command, "--set", "swift.window=3"]) == 2, "the command's own is an error"
    write('strategy = "uniform"\n[settings.uniform]\nratio = 0.0\n')
    capsys.readouterr()
    assert main([*command, "--model", folder, "--compare"]) == 0
    assert json.loads(capsys.readouterr().out)["stats"]["acceptance_rate"] == 1.0, "nothing is skipped"


def test_info_names_it(write: Write, folder: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", folder]) == 0
    assert capsys.readouterr().out.endswith("\nconfig file: none\n")
    write(f'model = "{folder}"')
    assert main(["info"]) == 0
    assert capsys.readouterr().out.endswith("\nconfig file: selfdraft.toml\n")
    assert main(["info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["config"] == "selfdraft.toml"
