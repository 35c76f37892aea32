"""What a run asks: all that shapes its figures. Only a run that asks the same goes on with what another has kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ...engine.engine import Engine
from ...profiles.profile import Profile
from ...version import __version__
from ..prompts import BenchPrompt
from .plan import BenchPlan

_WHERE = ("device_name", "dtype", "threads", "torch", "transformers", "commit")


def question_of(plan: BenchPlan, engine: Engine, where: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "selfdraft": __version__,
        "fingerprint": engine.knowledge.key.fingerprint,
        "profile": profile_digest(engine.knowledge.profile),
        **{name: where[name] for name in _WHERE},
        **plan.facts,
        "methods": {name: _as_names(method) for name, method in plan.methods.items()},
        "peers": list(plan.peers),
        "prompts": [prompt.id for prompt in plan.prompts],
        "prompts_digest": prompts_digest(plan.prompts),
        "num_texts": plan.num_texts,
        "max_new_tokens": plan.max_new_tokens,
        "temperature": plan.temperature,
        **({} if plan.top_p is None else {"top_p": plan.top_p}),
        "seed": plan.seed,
    }


def prompts_digest(prompts: Sequence[BenchPrompt]) -> str:
    """An id may stand before another text tomorrow."""
    words = [[prompt.id, prompt.domain, prompt.text, *prompt.later] for prompt in prompts]
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]


def profile_digest(profile: Profile | None) -> str | None:
    """Of what was learned about the model: strategies decide by it."""
    if profile is None:
        return None
    values = {name: artefact.values for name, artefact in profile.artefacts.items()}
    digest = hashlib.sha256(json.dumps([profile.latency, values], sort_keys=True).encode())
    for name, artefact in sorted(profile.artefacts.items()):
        for key, array in sorted(artefact.arrays.items()):
            digest.update(f"{name} {key}".encode() + array.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _as_names(method: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value if isinstance(value, str | dict) else str(value) for name, value in method.items()}
