"""selfdraft: exact self-speculative decoding. Some of a model's own sub-layers draft, the whole model verifies.

import selfdraft
engine = selfdraft.Engine.from_pretrained()            # the default model; or a hub id, a folder, a GGUF file
print(engine.generate([{"role": "user", "content": "Write a haiku about rain."}], max_new_tokens=64).text)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from .engine.audit import Finding, Verification
    from .engine.engine import Engine
    from .engine.live import Piece
    from .engine.metrics import Comparison, compare
    from .engine.session import Event, Session
    from .engine.stream import Chunk, Stream
    from .errors import (
        DownloadError,
        MissingExtraError,
        ModelError,
        OptionError,
        ProfileError,
        PromptError,
        SelfdraftError,
        SelfTestError,
        UnsupportedModelError,
    )
    from .integrations.inside_generate import decoder
    from .measure.figures import Figures
    from .measuring import learn, measure_methods
    from .options import GenerateOptions
    from .profiles.profile import Profile
    from .types import Generation, Plan, SkipSet, Stats, StepRecord, TokenLogprobs

_HOME = {
    "engine.audit": ("Finding", "Verification"),
    "engine.engine": ("Engine",),
    "integrations.inside_generate": ("decoder",),
    "engine.metrics": ("Comparison", "compare"),
    "engine.live": ("Piece",),
    "engine.session": ("Event", "Session"),
    "engine.stream": ("Chunk", "Stream"),
    "errors": (
        "DownloadError",
        "MissingExtraError",
        "ModelError",
        "OptionError",
        "ProfileError",
        "PromptError",
        "SelfTestError",
        "SelfdraftError",
        "UnsupportedModelError",
    ),
    "measure.figures": ("Figures",),
    "measuring": ("learn", "measure_methods"),
    "options": ("GenerateOptions",),
    "profiles.profile": ("Profile",),
    "types": ("Generation", "Plan", "SkipSet", "Stats", "StepRecord", "TokenLogprobs"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}
__all__ = [
    "Chunk",
    "Comparison",
    "DownloadError",
    "Engine",
    "Event",
    "Figures",
    "Finding",
    "GenerateOptions",
    "Generation",
    "MissingExtraError",
    "ModelError",
    "OptionError",
    "Piece",
    "Plan",
    "Profile",
    "ProfileError",
    "PromptError",
    "SelfTestError",
    "SelfdraftError",
    "Session",
    "SkipSet",
    "Stats",
    "StepRecord",
    "Stream",
    "TokenLogprobs",
    "UnsupportedModelError",
    "Verification",
    "__version__",
    "compare",
    "decoder",
    "learn",
    "measure_methods",
]


def __getattr__(name: str) -> Any:
    """Imported when asked for: torch and transformers take seconds, which `selfdraft --help` does not wait for."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'selfdraft' has no attribute {name!r}")
    return getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
