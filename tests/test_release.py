"""The shape of a release: what the package says of itself, and a wheel that is built, installed and run."""

from __future__ import annotations

import email
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from selfdraft.bench.shapes import SHAPES
from selfdraft.version import __version__

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTHONS = ("3.11", "3.12", "3.13")
DATA = (
    "py.typed",
    "prompts/calibration.jsonl",
    *(
        f"prompts/builtin/{name}.jsonl"
        for name in ["chat", "code", "math", "rewrite", "sql", "story", "summarise", "translate"]
    ),
    *(f"bench/papers/published/{name}.json" for name in ["asd", "disco", "knapspec", "knn-ssd", "swift"]),
    *(f"bench/shapes/{name}.json" for name in SHAPES),
    "bench/page/page.html",
)


def ran(*command: object, **options: Any) -> str:
    """What it printed; an error tells what went wrong."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, offline, with the build backend that `dev` brings."""
    pytest.importorskip("hatchling", reason='the wheel is built with hatchling: pip install ".[dev]"')
    folder = tmp_path_factory.mktemp("release")
    source = folder / "source"
    left_out = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "results", "images")
    shutil.copytree(ROOT, source, ignore=left_out)
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    ran(sys.executable, "-m", "pip", "wheel", source, *options, "--wheel-dir", folder)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel alone, without what it depends on, in a folder of its own."""
    target = tmp_path_factory.mktemp("installed")
    options = ("--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check")
    ran(sys.executable, "-m", "pip", "install", *options, "--target", target, wheel)
    return target


def run_installed(installed: Path, *command: object) -> str:
    """Away from the repository, with the installed package first."""
    return ran(*command, cwd=installed, env={**os.environ, "PYTHONPATH": str(installed)})


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_holds_the_package_and_its_data_and_nothing_else(wheel: Path) -> None:
    assert wheel.name == f"selfdraft-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {f"selfdraft/{name}" for name in DATA} <= set(names)
    sources = (ROOT / "src").rglob("*.py")
    assert {path.relative_to(ROOT / "src").as_posix() for path in sources} <= set(names)
    assert {name.partition("/")[0] for name in names} == {"selfdraft", f"selfdraft-{__version__}.dist-info"}
    assert any(name.endswith("/LICENSE") for name in names)


INSIDE = """
import selfdraft
from selfdraft.cli.main import main
from selfdraft.prompts.read import CALIBRATION_PROMPTS
from selfdraft.prompts.sets import builtin_prompts

print(selfdraft.__file__)
print(len({prompt.domain for prompt in builtin_prompts()}), CALIBRATION_PROMPTS.is_file())
main(["generate", "abc", "--model", FOLDER, "--max-new-tokens", "4", "--json"])
"""


@pytest.mark.full
def test_what_is_installed_runs(installed: Path, folder: str) -> None:
    """Both forms of the command; the data through the package's own readers; a text."""
    for command in ((sys.executable, "-m", "selfdraft"), (installed / "bin" / "selfdraft",)):
        assert run_installed(installed, *command, "--version") == f"selfdraft {__version__}\n"
    where, data, text = run_installed(installed, sys.executable, "-c", f"FOLDER = {folder!r}{INSIDE}").splitlines()
    assert Path(where) == installed / "selfdraft" / "__init__.py"
    assert data == "8 True"
    assert len(json.loads(text)["tokens"]) == 4


def other_python(version: str) -> str | None:
    """An interpreter of that version on this machine: ours, one on the path, or one of pyenv's."""
    if version == "{}.{}".format(*sys.version_info):
        return sys.executable
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    places = [shutil.which(f"python{version}"), *sorted(root.glob(f"versions/{version}.*/bin/python"), reverse=True)]
    return next((str(place) for place in places if place and is_version(place, version)), None)


def is_version(python: str | Path, version: str) -> bool:
    """On the path there may be a shim that leads nowhere."""
    code = "import sys; print('{}.{}'.format(*sys.version_info))"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip() == version


def test_another_python_is_looked_for_on_the_path_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    for said, expected in (("3.14", str(tmp_path / "python3.14")), ("nothing", None)):
        script = tmp_path / "python3.14"
        script.write_text(f"#!/bin/sh\necho {said}\n", encoding="utf-8")
        script.chmod(0o755)
        assert other_python("3.14") == expected
    assert other_python("3.15") is None


@pytest.mark.full
@pytest.mark.parametrize("version", PYTHONS)
def test_every_python_that_is_named(installed: Path, version: str) -> None:
    """Each file compiles, and what needs no torch runs: version, help, a mistyped flag."""
    python = other_python(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    said = run_installed(installed, python, "-m", "selfdraft", "--version")
    assert said == f"selfdraft {__version__}\n"
    assert "generate" in run_installed(installed, python, "-m", "selfdraft", "--help")
    run_installed(installed, python, "-m", "compileall", "-q", "-f", installed / "selfdraft")


def test_the_metadata_is_complete(metadata: Message) -> None:
    assert (metadata["Name"], metadata["Version"]) == ("selfdraft", __version__)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata["Summary"]
    assert metadata["Keywords"]
    assert metadata["Author"]
    assert len(metadata.get_all("Project-URL") or []) >= 1
    assert str(metadata.get_payload()).startswith("# selfdraft")
    extras = set(metadata.get_all("Provides-Extra") or [])
    assert extras == {"gguf", "cli", "plot", "serve", "datasets", "dev", "full"}
    needed = [need for need in metadata.get_all("Requires-Dist") or [] if "extra" not in need]
    assert sorted(re.split(r"[<>=]", need)[0] for need in needed) == ["numpy", "torch", "transformers"]


def test_the_classifiers_name_what_holds() -> None:
    named = set(PROJECT["classifiers"])
    assert {f"Programming Language :: Python :: {version}" for version in PYTHONS} <= named
    assert {
        "Typing :: Typed",
        "Operating System :: OS Independent",
        "Programming Language :: Python :: 3 :: Only",
    } <= named
    assert not any(name.startswith("License ::") for name in named)  # the license is an expression
    known = pytest.importorskip("trove_classifiers").classifiers
    assert named <= set(known)


def test_the_changelog_has_the_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## (\S+)", changelog, re.MULTILINE)
    assert versions[0] == __version__
    assert "Python 3.11 or newer" in (ROOT / "README.md").read_text(encoding="utf-8")
