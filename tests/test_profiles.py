"""Profiles: what is read is what was written, whoever writes at the same time and whatever interrupts them."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import errno
import hashlib
import json
import multiprocessing
import os
import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest
import torch
from transformers import AutoModelForCausalLM

from pico import pico
from selfdraft import Engine, ProfileError
from selfdraft.profiles import document, key, lock, profile, store
from selfdraft.profiles.key import ProfileKey, fingerprint
from selfdraft.profiles.profile import SCHEMA, Artefact
from selfdraft.profiles.store import Store

KEY = ProfileKey("llama-0123", "NVIDIA H200", "bfloat16", "1.2", name="my model")
COMMAND = "selfdraft calibrate 'my model'"
OLD, NEW = torch.arange(6.0).reshape(2, 3), torch.arange(8, dtype=torch.bfloat16)
QUESTION = {"prompts": "abc", "seed": 0}


@pytest.fixture
def kept(tmp_path) -> Store:
    return Store(tmp_path / "profiles", lock_seconds=5)


def files_of(kept: Store) -> set[str]:
    """All but the locks."""
    files = (path.relative_to(kept.folder) for path in kept.folder.rglob("*") if path.is_file())
    return {path.as_posix() for path in files if path.parts[0] != "locks"}


def add_old(kept: Store) -> None:
    kept.set_latency(KEY, {"mlp_seconds": 1e-5})
    kept.update(KEY, "knn", Artefact({"version": "old"}, {"centres": OLD}))


def add_new(kept: Store) -> None:
    kept.update(KEY, "knn", Artefact({"version": "new"}, {"centres": NEW}))


def version_of(kept: Store) -> str:
    """Which of the two versions is there; it must be there as a whole."""
    found = kept.load(KEY)
    artefact = found.artefacts["knn"]
    version = artefact.values["version"]
    assert torch.equal(artefact.arrays["centres"], {"old": OLD, "new": NEW}[version])
    assert found.latency == {"mlp_seconds": 1e-5}
    return version


# ------------------------------------------------------------------------------------------------ reading and writing


def test_what_is_read_is_what_was_written(kept):
    assert kept.load(KEY) is kept.repair(KEY) is None
    add_old(kept)
    assert kept.repair(KEY) is None
    kept.update(KEY, "swift", Artefact({"skip": "a3,m4", "window": (1, 2)}))
    found = Store(kept.folder).load(KEY)
    assert (found.key, found.schema, found.latency) == (KEY, SCHEMA, {"mlp_seconds": 1e-5})
    assert set(found.versions) == {"selfdraft", "torch", "transformers"}
    assert found.created <= found.updated
    assert found.artefacts["swift"].values == {"skip": "a3,m4", "window": [1, 2]}
    assert found.artefacts["swift"].arrays == {}
    assert torch.equal(found.artefacts["knn"].arrays["centres"], OLD)


@pytest.mark.parametrize("array", [NEW, torch.tensor(3), torch.ones(2, 3).T, torch.ones(1).expand(4), torch.ones(0)])
def test_arrays_of_any_layout(kept, array):
    kept.update(KEY, "any", Artefact(arrays={"one": array, "same memory": array}))
    found = kept.load(KEY).artefacts["any"].arrays
    assert set(found) == {"one", "same memory"}
    assert all(torch.equal(each, array) and each.dtype == array.dtype for each in found.values())


def test_the_json_is_for_people(kept):
    add_old(kept)
    content = json.loads(kept.path_of(KEY).read_text())
    assert content["model"] == "my model"
    named = {"fingerprint": "llama-0123", "device": "NVIDIA H200", "dtype": "bfloat16", "version": "1.2"}
    assert content["key"] == named
    assert content["artefacts"]["knn"]["arrays"] == {"centres": "float32 [2, 3]"}
    assert kept.path_of(KEY).parent.name == "llama-0123-nvidia-h200-bfloat16-1.2"


def test_in_memory_an_artefact_is_what_will_be_read():
    assert Artefact({"pair": (1, 2), "by layer": {3: 0.5}}).values == {"pair": [1, 2], "by layer": {"3": 0.5}}
    with pytest.raises(ValueError, match="not JSON compliant"):
        Artefact({"loss": float("nan")})
    with pytest.raises(TypeError, match="not JSON serializable"):
        Artefact({"tensor": OLD})


def test_old_arrays_are_removed_and_damaged_ones_written_again(kept):
    add_old(kept)
    before = files_of(kept)
    truncate(array_file(kept))
    add_old(kept)
    assert version_of(kept) == "old"
    add_new(kept)
    assert version_of(kept) == "new"
    assert len(before) == len(files_of(kept)) == 2
    assert before != files_of(kept)


def test_keys_are_kept_apart(kept, home):
    add_old(kept)
    for name, value in (("fingerprint", "llama-9"), ("device", "cpu"), ("dtype", "float16"), ("version", "1.3")):
        assert kept.load(dataclasses.replace(KEY, **{name: value})) is None
    assert Store().folder == home / "profiles"


def test_entries_and_remove(kept):
    assert kept.entries() == []
    other = ProfileKey("gpt2-77", "cpu", "float32")
    add_old(kept)
    kept.update(other, "knn", Artefact())
    kept.journal(other, "knn", QUESTION).record("1", Artefact())
    kept.path_of(KEY).write_text("{")
    gpt2, llama = kept.entries()
    assert gpt2.profile.key == other
    assert gpt2.problem is None
    assert llama.profile is None
    assert "selfdraft calibrate" in str(llama.problem)
    assert kept.remove(other)
    assert not kept.remove(other)
    assert kept.load(other) is None
    assert [entry.path for entry in kept.entries()] == [kept.path_of(KEY)]
    assert not kept.path_of(other).parent.exists()


# ------------------------------------------------------------------------------------------------ damage


def edit(**members: object) -> Callable[[Store], object]:
    def change(kept: Store) -> None:
        path = kept.path_of(KEY)
        path.write_text(json.dumps({**json.loads(path.read_text()), **members}))

    return change


def write_json(text: bytes) -> Callable[[Store], object]:
    return lambda kept: kept.path_of(KEY).write_bytes(text)


def array_file(kept: Store) -> Path:
    return next(kept.folder.rglob("*.safetensors"))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def put_another_in_its_place(kept: Store) -> None:
    other = dataclasses.replace(KEY, device="NVIDIA H100")
    kept.update(other, "knn", Artefact())
    os.replace(kept.path_of(other), kept.path_of(KEY))


def write_other_arrays(kept: Store) -> None:
    """Their hash is right, what they hold is not: somebody wrote it."""
    text = b"not safetensors"
    name = f"{hashlib.sha256(text).hexdigest()}.safetensors"
    edit(artefacts={"knn": {"values": {}, "file": name}})(kept)
    (array_file(kept).parent / name).write_bytes(text)


DAMAGE: dict[str, tuple[Callable[[Store], object], str]] = {
    "truncated": (lambda kept: truncate(kept.path_of(KEY)), "Expecting|delimiter|Unterminated"),
    "empty": (write_json(b""), "Expecting value"),
    "not text": (write_json(b"\xff\xfe\xfd{"), "codec can't decode"),
    "not an object": (write_json(b"[1]"), "it holds no JSON object"),
    "nested": (write_json(b"[" * 100_000), "nested too deeply"),
    "something else": (write_json(b'{"a": 1}'), "it is not a profile of selfdraft"),
    "newer": (edit(selfdraft_profile=SCHEMA + 1, artefacts=[]), "schema 2, this selfdraft reads 1 .a newer .* upgrade"),
    "older": (edit(selfdraft_profile=0), "it has schema 0, this selfdraft reads 1 .an older"),
    "odd schema": (edit(selfdraft_profile=True), "its 'selfdraft_profile' is missing or of the wrong kind"),
    "foreign": (put_another_in_its_place, "another model, device or version .device NVIDIA H100; asked for: device"),
    "no key": (edit(key=None), "its 'key' is missing or of the wrong kind"),
    "half a key": (edit(key={"fingerprint": "llama-0123"}), "its 'device' is missing"),
    "no name": (edit(model=None), "its 'model' is missing"),
    "no date": (edit(created=7), "its 'created' is missing"),
    "latency": (edit(latency=[1]), "its 'latency' is missing or of the wrong kind"),
    "artefacts": (edit(artefacts=[]), "its 'artefacts' is missing"),
    "artefact": (edit(artefacts={"knn": 1}), "its 'knn' is missing"),
    "values": (edit(artefacts={"knn": {}}), "its 'values' is missing"),
    "outside": (
        edit(artefacts={"knn": {"values": {}, "file": "../../key"}}),
        "'../../key', which is not an array file",
    ),
    "lost": (edit(artefacts={"knn": {"values": {}, "file": f"{'0' * 64}.safetensors"}}), "its file .* is missing"),
    "arrays lost": (lambda kept: array_file(kept).unlink(), "its file .* is missing"),
    "arrays truncated": (lambda kept: truncate(array_file(kept)), "are not what was written"),
    "arrays changed": (lambda kept: flip_a_bit(array_file(kept)), "are not what was written"),
    "arrays of another": (write_other_arrays, "holds no arrays"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_an_error_that_names_the_repairing_command(kept, name):
    damage, reason = DAMAGE[name]
    add_old(kept)
    damage(kept)
    with pytest.raises(ProfileError, match=reason) as caught:
        kept.load(KEY)
    assert str(kept.path_of(KEY)) in str(caught.value)
    assert str(caught.value).endswith(f"Make it again with: {COMMAND}")
    assert str(kept.repair(KEY)) == str(caught.value)
    assert kept.load(KEY) is None
    add_old(kept)
    assert version_of(kept) == "old"


@pytest.mark.parametrize("name", ["truncated", "newer", "foreign", "artefact"])
def test_nothing_is_overwritten_in_silence(kept, name):
    add_old(kept)
    DAMAGE[name][0](kept)
    before = kept.path_of(KEY).read_bytes()
    with pytest.raises(ProfileError, match=COMMAND):
        add_new(kept)
    assert kept.path_of(KEY).read_bytes() == before


def test_a_profile_that_may_not_be_read_is_not_removed(kept, monkeypatch):
    add_old(kept)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", mock.Mock(side_effect=PermissionError(errno.EACCES, "no")))
        for attempt in (kept.load, kept.repair):
            with pytest.raises(ProfileError, match=f"cannot read the profile .* SELFDRAFT_HOME .*{COMMAND}"):
                attempt(KEY)
    assert version_of(kept) == "old"


# ------------------------------------------------------------------------------------------------ interruptions


@dataclass
class Saboteur:
    """Lets the n-th call fail; all later ones, too, where it plays a process that was killed."""

    failing_call: int
    failure: BaseException
    is_late: bool = False
    is_fatal: bool = False
    num_calls: int = 0

    def wrap(self, function: Callable) -> Callable:
        def call(*arguments, **options):
            self.num_calls = number = self.num_calls + 1
            is_dead = self.is_fatal and number > self.failing_call
            if is_dead or (number == self.failing_call and not self.is_late):
                raise self.failure
            try:
                return function(*arguments, **options)
            finally:
                if number == self.failing_call:
                    raise self.failure

        return call

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """On everything that a write asks of the system."""
        with pytest.MonkeyPatch.context() as patch:
            for owner, names in ((Path, ("open", "unlink", "mkdir")), (os, ("open", "fsync", "replace"))):
                for name in names:
                    patch.setattr(owner, name, self.wrap(getattr(owner, name)))
            yield


class Killed(BaseException):
    pass


FAILURES = {
    "full disk": {"failure": OSError(errno.ENOSPC, "No space left on device")},
    "Ctrl-C before": {"failure": KeyboardInterrupt()},
    "Ctrl-C after": {"failure": KeyboardInterrupt(), "is_late": True},
    "killed": {"failure": Killed(), "is_fatal": True},
}


def sabotaged(name: str) -> Iterator[Saboteur]:
    """Failing at the first call, at the second, and so on, until a write is through before it fails."""
    for failing_call in range(1, 100):
        saboteur = Saboteur(failing_call, **FAILURES[name])
        yield saboteur
        if saboteur.num_calls < failing_call:
            break
    assert failing_call > 5


UNREADABLE = f"cannot read the profile .* Make it readable, or .*SELFDRAFT_HOME .* run: {COMMAND}"
INTACT = f"could not write to .* No space left .* What was there is intact.* SELFDRAFT_HOME .*, then run: {COMMAND}"


@pytest.mark.parametrize("name", FAILURES)
def test_a_write_that_fails_anywhere_leaves_a_whole_profile(kept, name):
    versions, messages = [], []
    for saboteur in sabotaged(name):
        add_old(kept)
        with saboteur.at_work():
            try:
                add_new(kept)
            except (ProfileError, KeyboardInterrupt, Killed) as error:
                messages.append(str(error))
        versions.append(version_of(kept))
        add_new(kept)
        assert len(files_of(kept)) == 2, "left-overs were not swept"
    if name != "full disk":  # which tidying up may ignore
        assert versions == sorted(versions, reverse=True), "the old version, from some call on the new one"
    assert set(versions) == {"old", "new"}
    assert all(re.fullmatch(f"{INTACT}|{UNREADABLE}|", message) for message in messages)
    assert (name == "full disk") == any(re.fullmatch(INTACT, message) for message in messages)


OURS = {str(Path(module.__file__)) for module in (document, lock, profile, store)}


@contextmanager
def ctrl_c_at_line(number: int) -> Iterator[list[int]]:
    """Interrupt when the n-th line of ours is about to run; the list counts them."""
    count = [0]

    def trace(frame, event, argument):
        if frame.f_code.co_filename not in OURS:
            return None
        if event == "line":
            count[0] += 1
            if count[0] == number:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield count
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)


def test_ctrl_c_at_any_line_leaves_a_whole_profile(kept, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    versions = []
    for number in range(1, 1000):
        add_old(kept)
        with ctrl_c_at_line(number) as count:
            add_new(kept)
        if count[0] < number:
            break
        versions.append(version_of(kept))
    assert number > 50
    assert versions == sorted(versions, reverse=True)
    assert set(versions) == {"old", "new"}


def test_a_profile_is_on_the_disk_before_it_is_seen(kept, monkeypatch):
    """A power cut after the rename must not find an empty file."""
    events = []
    for name in ("fsync", "replace"):
        whole = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, name=name, whole=whole: (events.append(name), whole(*a)))
    add_new(kept)
    assert events == ["fsync", "replace", "fsync"] * 2  # the file, its name, the folder; arrays first


# ------------------------------------------------------------------------------------------------ several at once

NUM_TURNS = 15


def write_often(folder: Path, writer: int) -> None:
    kept = Store(folder)
    for turn in range(NUM_TURNS):
        kept.update(KEY, f"{writer}", Artefact({"turn": turn}, {"array": torch.tensor([writer, turn])}))
        kept.update(KEY, f"{writer} {turn}", Artefact())
        assert kept.load(KEY).artefacts[f"{writer}"].values == {"turn": turn}


def check_all_was_kept(kept: Store, writers: range) -> None:
    found = kept.load(KEY).artefacts
    assert set(found) == {f"{w}" for w in writers} | {f"{w} {turn}" for w in writers for turn in range(NUM_TURNS)}
    assert all(found[f"{w}"].arrays["array"].tolist() == [w, NUM_TURNS - 1] for w in writers)
    assert len(files_of(kept)) == 1 + len(writers)


def test_processes_keep_each_others_results(kept):
    other = multiprocessing.get_context("fork").Process(target=write_often, args=(kept.folder, 1))
    other.start()
    write_often(kept.folder, 0)
    other.join(timeout=60)
    assert other.exitcode == 0
    check_all_was_kept(kept, range(2))


@pytest.mark.parametrize("has_locks", [True, False])
def test_threads_keep_each_others_results(kept, monkeypatch, has_locks):
    if not has_locks:
        monkeypatch.setattr(lock, "fcntl", None)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write_often, [kept.folder] * 3, range(3)))
    check_all_was_kept(kept, range(3))


def test_a_reader_whose_arrays_vanish_reads_again(kept, monkeypatch):
    """A writer replaced the profile between the reader's two looks."""
    add_old(kept)
    read_arrays = document.Document._read_arrays

    def late(self, file):
        monkeypatch.undo()
        add_new(kept)
        return read_arrays(self, file)

    monkeypatch.setattr(document.Document, "_read_arrays", late)
    assert version_of(kept) == "new"


@pytest.mark.parametrize(("has_locks", "advice"), [(True, "Try again"), (False, "if there is none, delete that file")])
def test_a_lock_that_is_never_given_back(kept, monkeypatch, has_locks, advice):
    add_old(kept)
    kept.lock_seconds = 0.05
    if not has_locks:
        monkeypatch.setattr(lock, "fcntl", None)
    with kept._writing(KEY), pytest.raises(ProfileError, match=f"holding .*{KEY.stem}.lock.* 0.05 seconds.*{advice}"):
        add_new(kept)
    assert version_of(kept) == "old"
    add_new(kept)
    assert version_of(kept) == "new"


# ------------------------------------------------------------------------------------------------ the journal


def test_a_journal_resumes_and_is_dropped(kept):
    journal = kept.journal(KEY, "knn", QUESTION)
    assert journal.done == {}
    journal.record("first", Artefact({"loss": 0.5}, {"hidden": OLD}))
    journal.record("second", Artefact({"loss": 0.25}))
    resumed = Store(kept.folder).journal(KEY, "knn", QUESTION)
    assert {step: result.values["loss"] for step, result in resumed.done.items()} == {"first": 0.5, "second": 0.25}
    assert torch.equal(resumed.done["first"].arrays["hidden"], OLD)
    assert kept.load(KEY) is None, "a journal is no profile"
    assert kept.entries() == []
    resumed.finish()
    assert files_of(kept) == set()
    assert resumed.done == {}


def test_a_journal_belongs_to_its_question_and_version(kept, monkeypatch):
    others = [("knn", {**QUESTION, "seed": 1}), ("knn", {}), ("swift", QUESTION), ("knn-2", QUESTION)]
    kept.journal(KEY, "knn", QUESTION).record("1", Artefact())
    assert all(kept.journal(KEY, *other).done == {} for other in others)
    assert kept.journal(ProfileKey("gpt2-1", "cpu", "float32"), "knn", QUESTION).done == {}
    assert set(kept.journal(KEY, "knn", QUESTION).done) == {"1"}
    monkeypatch.setattr(store, "installed_version", lambda package: "99")
    assert kept.journal(KEY, "knn", QUESTION).done == {}


def test_finishing_drops_that_journal_and_no_other(kept):
    others = [("knn", {}), ("knn-2", QUESTION)]
    for name, question in (("knn", QUESTION), *others):
        kept.journal(KEY, name, question).record("1", Artefact(arrays={"hidden": OLD}))
    kept.journal(KEY, "knn", QUESTION).finish()
    assert kept.journal(KEY, "knn", QUESTION).done == {}
    assert all(set(kept.journal(KEY, *other).done) == {"1"} for other in others)
    kept.journal(KEY, "knn", QUESTION).drop_all()
    assert kept.journal(KEY, "knn", {}).done == {}
    assert set(kept.journal(KEY, "knn-2", QUESTION).done) == {"1"}
    assert len(files_of(kept)) == 2


def test_two_fits_of_the_same_share_a_journal(kept):
    """After one has finished it, the other writes all that it knows: whoever resumes it must not miss a step."""
    one, two = (kept.journal(KEY, "knn", QUESTION) for _ in range(2))
    one.record("1", Artefact())
    for step in "23":
        two.record(step, Artefact({"step": step}))
    assert sorted(kept.journal(KEY, "knn", QUESTION).done) == ["1", "2", "3"]
    one.finish()
    two.record("4", Artefact())
    assert sorted(kept.journal(KEY, "knn", QUESTION).done) == ["2", "3", "4"]


@pytest.mark.parametrize("part", ["*.json", "*/*.safetensors"])
def test_a_damaged_journal_begins_from_the_start(kept, part):
    kept.journal(KEY, "knn", QUESTION).record("1", Artefact(arrays={"hidden": OLD}))
    truncate(next(kept.path_of(KEY).parent.glob(part)))
    again = kept.journal(KEY, "knn", QUESTION)
    assert again.done == {}
    again.record("1", Artefact(arrays={"hidden": NEW}))
    assert torch.equal(kept.journal(KEY, "knn", QUESTION).done["1"].arrays["hidden"], NEW)


@pytest.mark.parametrize("name", FAILURES)
def test_a_record_that_fails_anywhere_keeps_the_earlier_ones(kept, name):
    for saboteur in sabotaged(name):
        kept.remove(KEY)
        kept.journal(KEY, "knn", QUESTION).record("1", Artefact(arrays={"hidden": OLD}))
        journal = kept.journal(KEY, "knn", QUESTION)
        with saboteur.at_work(), contextlib.suppress(ProfileError, KeyboardInterrupt, Killed):
            journal.record("2", Artefact(arrays={"hidden": NEW}))
        assert "1" in kept.journal(KEY, "knn", QUESTION).done


# ------------------------------------------------------------------------------------------------ whose it is


def test_the_same_model_loaded_twice(tmp_path):
    model = pico("llama")
    for folder in ("here", "there"):
        model.save_pretrained(tmp_path / folder)
    here, there = (AutoModelForCausalLM.from_pretrained(tmp_path / folder) for folder in ("here", "there"))
    assert fingerprint(here) == fingerprint(there) == fingerprint(model)
    assert re.fullmatch(r"llama-[0-9a-f]{32}", fingerprint(model))
    assert (ProfileKey.of(here) == ProfileKey.of(there), ProfileKey.of(there).name) == (True, str(tmp_path / "there"))
    half = ProfileKey.of(there.to(torch.bfloat16), "tiny")
    assert (half.dtype, half.name) == ("bfloat16", "tiny")


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3"])
def test_attaching_and_generating_change_nothing(family):
    model = copy.deepcopy(pico(family))
    before = fingerprint(model)
    Engine(model, strategy="uniform").generate([5, 6, 7], max_new_tokens=4)
    assert fingerprint(model) == before


def test_every_weight_counts():
    model = copy.deepcopy(pico("qwen2"))
    seen = [fingerprint(model)]
    for weight in model.parameters():
        weight.data *= 1.5
        seen.append(fingerprint(model))
    assert len(seen) == len(set(seen)) > 50


def add_one(place: int) -> Callable:
    return lambda model: model.lm_head.weight.data.view(-1)[place].add_(1)


def transpose(model) -> None:
    model.lm_head.weight.data = model.lm_head.weight.data.T.contiguous().T


def set_in_text(**values: object) -> Callable:
    return lambda model: model.config.text_config.update(values)


@pytest.mark.parametrize(
    ("family", "change", "is_same"),
    [
        ("llama", add_one(0), False),
        ("llama", add_one(-1), False),
        ("llama", add_one(1), True),  # not looked at: what is read is a sample
        ("llama", transpose, True),  # the layout in memory
        ("llama", lambda model: model.to(torch.bfloat16), False),
        ("llama", lambda model: model.to("meta"), False),  # elsewhere: by name and shape
        ("gemma3", set_in_text(rms_norm_eps=1e-3), False),
        ("gemma3", set_in_text(eos_token_id=3, _name_or_path="elsewhere"), True),  # changes no score
    ],
)
def test_what_makes_another_model(family, change, is_same):
    other = copy.deepcopy(pico(family))
    change(other)
    assert (fingerprint(other) == fingerprint(pico(family))) is is_same
    assert fingerprint(other) == fingerprint(copy.deepcopy(other))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.uint8, torch.bool, torch.float8_e4m3fn])
def test_weights_of_any_dtype(dtype):
    assert len(key._samples(torch.ones(3).to(dtype))) == 3 * dtype.itemsize
    assert len(key._samples(torch.ones(()).to(dtype))) == dtype.itemsize
    assert key._samples(torch.ones(0).to(dtype)) == b""


def test_the_device_is_told_by_what_its_speed_depends_on(monkeypatch):
    name = key.device_name(torch.device("cpu"))
    assert name.endswith(f", threads {torch.get_num_threads()}")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    assert key.device_name(torch.device("cpu")) != name
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    assert key.device_name(torch.device("cuda")) == "NVIDIA H200"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_model_is_the_same_on_a_gpu():
    assert fingerprint(copy.deepcopy(pico("llama")).cuda()) == fingerprint(pico("llama"))
