"""What was learned about the engine's model on its device: the profile, and what is measured where there is none."""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

from ..economics import LatencyFit
from ..errors import OptionError, ProfileError
from ..models.latency import measure
from ..models.load.info import shares
from ..profiles import learned
from ..profiles.contents import fit_of
from ..profiles.key import ProfileKey
from ..profiles.profile import Profile
from ..profiles.store import Store, calibrate_command, command_for
from ..protocols import Knowledge, Runner

QUICK_LENGTHS, QUICK_SECONDS = (64, 512), 3.0
"""How long passes are measured where no profile tells what they take."""
Given = Profile | Literal["stored"] | None
_LOGGER = logging.getLogger(__name__)


class EngineKnowledge:
    """Read when it is first asked for; `profile` may also be given, or None for nothing at all."""

    def __init__(self, model: Any, runner: Runner, name: str | None, profile: Given) -> None:
        if not (profile is None or isinstance(profile, Profile) or (isinstance(profile, str) and profile == "stored")):
            raise OptionError(
                f"profile must be what selfdraft.learn returns, 'stored' (the one in the cache folder) or None, got "
                f"{reprlib.repr(profile)}"
            )
        self._model, self._runner, self.name = model, runner, name
        self._profile = profile
        self.keeps = isinstance(profile, str) and learned.is_on()
        """Whether what is learned on the way is kept for the next process, and read."""
        self.has_forgotten = False

    @property
    def for_methods(self) -> Knowledge:
        return Knowledge(
            self._runner.num_layers,
            self.latency,
            self.artefact,
            lambda verb: command_for(self.key, verb),
            lambda: self.key.fingerprint,
            self.known,
            self.learned,
            lambda: shares(self._runner.decoder),
            self._runner.is_recording,
        )

    @cached_property
    def key(self) -> ProfileKey:
        return ProfileKey.of(self._model, self.name)

    @property
    def profile(self) -> Profile | None:
        if self._profile == "stored":
            self._profile = None if Store().is_empty() else Store().load(self.key)  # the key takes a while to make
        assert self._profile is None or isinstance(self._profile, Profile)
        return self._profile

    @property
    def profile_in_use(self) -> Profile | None:
        """None as well where nothing has asked for it yet."""
        return self._profile if isinstance(self._profile, Profile) else None

    def latency(self) -> LatencyFit:
        return self._latency

    @cached_property
    def _latency(self) -> LatencyFit:
        profile = self.profile
        if profile is not None and profile.latency is not None:
            return fit_of(profile, self._runner.num_layers)
        _LOGGER.info("no profile: measuring passes for %g seconds; `selfdraft calibrate` keeps them", QUICK_SECONDS)
        return measure(self._runner, QUICK_LENGTHS, QUICK_SECONDS)

    def artefact(self, name: str, method: str | None = None, command: str | None = None) -> Mapping[str, Any]:
        """`method` and `command` are for the message: what needs it (a strategy), and what to run to learn it."""
        profile = self.profile
        if profile is None or name not in profile.artefacts:
            method = method or f"the strategy {name!r}"
            command = command or f"{calibrate_command(self.key)} --strategy {name}"
            others = f"; what is known: {', '.join(profile.known)}" if profile and profile.known else ""
            raise ProfileError(
                f"{method} needs to know the model, and nothing has been learned for it on this device "
                f"({self.key.device}, {self.key.dtype}) yet{others}. Run: {command}"
            )
        return profile.artefacts[name].content

    def known(self, name: str) -> Mapping[str, Any]:
        """As `artefact`; empty where nothing was learned by that name."""
        profile = self.profile
        return profile.artefacts[name].content if profile and name in profile.artefacts else {}

    def learned(self, name: str) -> Mapping[str, Any]:
        """What a strategy kept at the end of an earlier process."""
        return learned.read(self.key).get(name, {}) if self.keeps and not self.has_forgotten else {}
