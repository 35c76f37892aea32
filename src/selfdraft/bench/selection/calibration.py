"""What the strategies know before they are measured: the seconds of passes, and the frontier of `prune`.

Fitted here, on prompts that are kept apart, or read from a file that an earlier run wrote. The user's own profiles are
neither read nor written.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from ...calibrate.kit import EngineKit, Workshop
from ...economics import LatencyFit
from ...engine.engine import Engine
from ...errors import OptionError, ProfileError
from ...fitting import CalibrationPrompt
from ...models.latency import BUDGET_SECONDS, LENGTHS, measure
from ...profiles.journal import Journal
from ...profiles.key import ProfileKey
from ...profiles.profile import SCHEMA, Artefact, Profile
from ...profiles.store import Store
from ...strategies.prune import Prune
from ...types import FrontierPoint
from ..pace import Say, Told
from ..prompts import BenchPrompt, encode

PRUNE = "prune"
_KEY = ("fingerprint", "device", "dtype", "version")


@dataclass(frozen=True)
class Recipe:
    """How to fit. `lengths`: of the texts that passes are timed behind; `file`: read where it exists, else written."""

    prompts: Sequence[BenchPrompt]
    num_tokens: int = 2048
    fit_seconds: float = 600.0
    lengths: Sequence[int] = LENGTHS
    latency_seconds: float = BUDGET_SECONDS
    file: Path | None = None


@dataclass(frozen=True)
class Facts:
    """What the fit took (`seconds`: of the latency, the texts and the fit itself) and saw."""

    seconds: Mapping[str, float]
    num_texts: int
    num_tokens: int
    is_whole: bool  # not cut short by its budget


@dataclass(frozen=True)
class Calibration:
    """`source`: the file it was read from; None: it was fitted now."""

    profile: Profile
    facts: Facts
    source: str | None = None

    @cached_property
    def latency(self) -> LatencyFit:
        assert self.profile.latency is not None
        return LatencyFit.from_json(self.profile.latency, self.profile.latency["num_layers"])

    @cached_property
    def points(self) -> Sequence[FrontierPoint]:
        frontier = self.profile.artefacts[PRUNE].values["frontier"]
        return [FrontierPoint.from_json(point) for point in frontier]

    def figures(self) -> dict[str, Any]:
        return {**asdict(self.facts), "num_points": len(self.points), "source": self.source}


def calibrate(engine: Engine, recipe: Recipe, say: Say) -> Calibration:
    if recipe.file is not None and recipe.file.exists():
        return read_calibration(engine, recipe.file, recipe.lengths, say)
    found = _fit(engine, recipe, say)
    if recipe.file is not None:
        recipe.file.write_text(json.dumps(_as_json(found), indent=1) + "\n", encoding="utf-8")
    return found


def _fit(engine: Engine, recipe: Recipe, say: Say) -> Calibration:
    """In a store of its own, which is gone afterwards."""
    key, runner, told = engine.knowledge.key, engine.runner, Told(say, "calibrating")
    prompts = [CalibrationPrompt(prompt.id, prompt.domain, tuple(encode(prompt, engine))) for prompt in recipe.prompts]
    with tempfile.TemporaryDirectory() as folder:
        store, stamps = Store(Path(folder)), [runner.seconds()]
        latency = measure(runner, recipe.lengths, recipe.latency_seconds, told)
        store.set_latency(key, latency.to_json())
        stamps.append(runner.seconds())
        workshop = Workshop(engine, latency, recipe.num_tokens, partial(journal, store, key), told)
        looks = workshop.write(prompts)
        texts = looks.texts
        stamps.append(runner.seconds())
        kit = EngineKit(workshop, prompts, lambda: looks, workshop.journal(PRUNE), recipe.fit_seconds, "fitting")
        store.update(key, PRUNE, Artefact(Prune.fit(kit, Prune.Options())))
        stamps.append(runner.seconds())
        profile = store.load(key)
    assert profile is not None
    seconds = dict(zip(("latency", "texts", "fit"), _differences(stamps), strict=True))
    num_tokens = sum(text.num_generated for text in texts)
    say(f"calibrated in {sum(seconds.values()):.0f} s on {len(texts)} texts, {num_tokens} tokens")
    return Calibration(profile, Facts(seconds, len(texts), num_tokens, not kit.is_out_of_time))


def journal(store: Store, key: ProfileKey, name: str, **question: Any) -> Journal:
    return store.journal(key, name, question)


def _differences(stamps: Sequence[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(stamps)]


# ------------------------------------------------------------------------------------------------------- its file


def _as_json(found: Calibration) -> dict[str, Any]:
    profile = found.profile
    return {
        "key": {name: getattr(profile.key, name) for name in _KEY},
        "created": profile.created,
        "versions": dict(profile.versions),
        "facts": asdict(found.facts),
        "latency": profile.latency,
        "frontier": profile.artefacts[PRUNE].values["frontier"],
    }


def read_calibration(engine: Engine, file: Path, lengths: Sequence[int], say: Say) -> Calibration:
    """A ProfileError where it belongs to another model, device or version."""
    key = engine.knowledge.key
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        there, asked = content["key"], {name: getattr(key, name) for name in _KEY}
        if there != asked:
            raise ValueError(f"it was made for {there}, this is {asked}")
        artefact = Artefact({"frontier": content["frontier"]})
        for point in artefact.values["frontier"]:
            FrontierPoint.from_json(point).skip.check(engine.runner.num_layers)
        latency = LatencyFit.from_json(content["latency"], engine.runner.num_layers)
        facts = Facts(**content["facts"])
        times = content["created"], content["created"], content["versions"]
    except (ValueError, LookupError, TypeError, OSError, OptionError) as error:
        raise ProfileError(
            f"cannot use what {file} says of the model ({type(error).__name__}: {error}). Name another file: it is "
            "written where it does not exist"
        ) from error
    if max(lengths) > max(latency.lengths):
        say(f"{file}: passes were measured behind up to {max(latency.lengths)} tokens; beyond, lines are extended")
    profile = Profile(key, SCHEMA, *times, latency=latency.to_json(), artefacts={PRUNE: artefact})
    return Calibration(profile, facts, file.name)
