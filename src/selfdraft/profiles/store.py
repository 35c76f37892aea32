"""Where profiles are kept: one folder per key, `profile.json` and its arrays in it, journals beside.

Each change reads, merges and writes under a lock, so processes that calibrate at once keep each other's results.
Nothing is repaired in silence: what is damaged or foreign is a ProfileError that names the command, and that command
calls `repair`.
"""

from __future__ import annotations

import contextlib
import datetime
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ProfileError
from ..models.load.catalogue import cache_home
from .document import Document, member, packed_artefacts
from .journal import Journal
from .key import ProfileKey, installed_version
from .lock import locked
from .profile import SCHEMA, Artefact, Profile, as_json

PROFILE = "profile.json"
_KEY = ("fingerprint", "device", "dtype", "version")
LOCK_SECONDS = 60.0
"""So long a change waits for another one; each takes milliseconds."""


@dataclass(frozen=True)
class Entry:
    """What `Store.entries` found: a profile, or why it cannot be read."""

    path: Path
    profile: Profile | None = None
    problem: ProfileError | None = None


class Store:
    """Profiles in a folder; nothing named: `profiles` in the cache folder."""

    def __init__(self, folder: Path | None = None, lock_seconds: float = LOCK_SECONDS) -> None:
        self.folder = cache_home() / "profiles" if folder is None else folder
        self.lock_seconds = lock_seconds

    def path_of(self, key: ProfileKey) -> Path:
        return self.folder / key.stem / PROFILE

    def load(self, key: ProfileKey) -> Profile | None:
        """None: nothing was learned yet."""
        with self._reading(key):
            return self._load(key)

    def update(self, key: ProfileKey, name: str, artefact: Artefact) -> None:
        """Keep `artefact` under `name`, beside all that is there."""
        self._change(key, {name: artefact})

    def set_latency(self, key: ProfileKey, latency: Mapping[str, Any]) -> None:
        self._change(key, {}, latency=as_json(latency))

    def remove(self, key: ProfileKey) -> bool:
        """Forget the model on that device, journals included. Whether there was a profile."""
        with self._writing(key):
            return self._remove(key)

    def repair(self, key: ProfileKey) -> ProfileError | None:
        """Remove a damaged or foreign profile and say why it was; a sound one stays, and so do journals."""
        with self._writing(key):
            try:
                self.load(key)
            except ProfileError as problem:
                if isinstance(problem.__cause__, OSError):  # it may be sound
                    raise
                Document(self.path_of(key)).remove()
                return problem
        return None

    def entries(self) -> list[Entry]:
        """Every profile there is, also those that cannot be read."""
        return [self._entry(path) for path in sorted(self.folder.glob(f"*/{PROFILE}"))]

    def is_empty(self) -> bool:
        return next(self.folder.glob(f"*/{PROFILE}"), None) is None

    def journal(self, key: ProfileKey, name: str, question: Mapping[str, Any]) -> Journal:
        """What an earlier, interrupted fit of `name` left, if it was asked the same `question`."""
        folder = self.path_of(key).parent
        return Journal(folder, name, question, _versions()["selfdraft"], lambda: self._writing(key))

    def _load(self, key: ProfileKey) -> Profile | None:
        document = Document(self.path_of(key))
        content = document.read()
        while content is not None:
            _check(content, key)
            try:
                return _profile(content, key, document.artefacts(content))
            except FileNotFoundError as error:
                # A writer may have replaced both since the JSON was read; if not, the arrays are lost.
                if (newer := document.read()) == content:
                    raise ValueError(f"its file {error.filename} is missing") from error
                content = newer
        return None

    def _change(self, key: ProfileKey, artefacts: Mapping[str, Artefact], **members: Any) -> None:
        document = Document(self.path_of(key))
        with self._writing(key):
            with self._reading(key):
                content = document.read()
                if content is not None:
                    _check(content, key)
            content = content or _new(key)
            document.write({**content, **members, "updated": _now(), "versions": _versions()}, artefacts)

    def _remove(self, key: ProfileKey) -> bool:
        path = self.path_of(key)
        is_there = Document(path).remove()
        shutil.rmtree(path.parent, ignore_errors=True)
        return is_there

    def _entry(self, path: Path) -> Entry:
        unknown = ProfileKey("unknown", "unknown", "unknown")
        try:
            with self._reading(unknown, path):
                content = Document(path).read() or {}
                _check_schema(content)
                key = _key(content)
                if key.stem != path.parent.name:
                    raise ValueError(f"it belongs into the folder {key.stem}")
            return Entry(path, self.load(key))
        except ProfileError as problem:
            return Entry(path, problem=problem)

    @contextlib.contextmanager
    def _reading(self, key: ProfileKey, path: Path | None = None) -> Iterator[None]:
        path = path or self.path_of(key)
        try:
            yield
        except ValueError as error:
            raise ProfileError(
                f"cannot use the profile {path}: {error}. Make it again with: {calibrate_command(key)}"
            ) from error
        except OSError as error:
            raise ProfileError(
                f"cannot read the profile {path}: {error}. Make it readable, or set SELFDRAFT_HOME to another folder "
                f"and run: {calibrate_command(key)}"
            ) from error

    @contextlib.contextmanager
    def _writing(self, key: ProfileKey) -> Iterator[None]:
        try:
            with locked(self.folder / "locks" / f"{key.stem}.lock", self.lock_seconds):
                yield
        except OSError as error:
            raise ProfileError(
                f"could not write to {self.folder}: {error}. What was there is intact. Free some space or set "
                f"SELFDRAFT_HOME to another folder, then run: {calibrate_command(key)}"
            ) from error


# ------------------------------------------------------------------------------------------------ what the JSON says


def _new(key: ProfileKey) -> dict[str, Any]:
    return {
        "selfdraft_profile": SCHEMA,
        "model": key.name,
        "key": {name: getattr(key, name) for name in _KEY},
        "created": _now(),
        "updated": "",
        "versions": {},
        "latency": None,
        "artefacts": {},
    }


def _check(content: Mapping[str, Any], key: ProfileKey) -> None:
    """Everything but the artefacts; those are checked as they are read."""
    _check_schema(content)
    if (found := _key(content)) != key:
        names = [name for name in _KEY if getattr(found, name) != getattr(key, name)]
        there, asked = (", ".join(f"{name} {getattr(which, name)}" for name in names) for which in (found, key))
        raise ValueError(f"it was made for another model, device or version ({there}; asked for: {asked})")
    for name, kind in (("created", str), ("updated", str), ("versions", dict)):
        member(content, name, kind)
    packed_artefacts(content)
    if content.get("latency") is not None:
        member(content, "latency", dict)


def _check_schema(content: Mapping[str, Any]) -> None:
    if "selfdraft_profile" not in content:
        raise ValueError("it is not a profile of selfdraft")
    schema = member(content, "selfdraft_profile", int)
    if schema != SCHEMA:
        hint = "a newer selfdraft wrote it: upgrade, or lose it" if schema > SCHEMA else "an older selfdraft wrote it"
        raise ValueError(f"it has schema {schema}, this selfdraft reads {SCHEMA} ({hint})")


def _key(content: Mapping[str, Any]) -> ProfileKey:
    names = member(content, "key", dict)
    return ProfileKey(**{name: member(names, name, str) for name in _KEY}, name=member(content, "model", str))


def _profile(content: Mapping[str, Any], key: ProfileKey, artefacts: Mapping[str, Artefact]) -> Profile:
    told = {name: content[name] for name in ("created", "updated", "versions", "latency")}
    return Profile(key=key, schema=SCHEMA, artefacts=artefacts, **told)


def calibrate_command(key: ProfileKey) -> str:
    """What makes the profile of this key: options are named where they are not what a user gets anyway."""
    return command_for(key, "calibrate")


def command_for(key: ProfileKey, verb: str) -> str:
    return f"selfdraft {verb} {shlex.quote(key.name)}{key.options}"


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _versions() -> dict[str, str]:
    return {package: installed_version(package) for package in ("selfdraft", "torch", "transformers")}
