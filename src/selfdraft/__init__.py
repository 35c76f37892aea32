"""selfdraft: exact self-speculative decoding. Some of a model's own sub-layers draft, the whole model verifies.

import selfdraft
engine = selfdraft.Engine.from_pretrained()            # the default model; or a hub id, a folder, a GGUF file
print(engine.generate("Write a haiku about rain.", max_new_tokens=64).text)
"""

from typing import TYPE_CHECKING, Any

from .engine.audit import Finding, Verification
from .engine.engine import Engine
from .engine.metrics import Comparison, compare
from .engine.stream import Chunk, Piece, Stream
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
from .options import GenerateOptions
from .types import Generation, Plan, SkipSet, Stats, StepRecord
from .version import __version__

if TYPE_CHECKING:
    from .engine.inside_generate import decoder
    from .measuring import learn, measure_methods

__all__ = [
    "Chunk",
    "Comparison",
    "DownloadError",
    "Engine",
    "Finding",
    "GenerateOptions",
    "Generation",
    "MissingExtraError",
    "ModelError",
    "OptionError",
    "Piece",
    "Plan",
    "ProfileError",
    "PromptError",
    "SelfTestError",
    "SelfdraftError",
    "SkipSet",
    "Stats",
    "StepRecord",
    "Stream",
    "UnsupportedModelError",
    "Verification",
    "__version__",
    "compare",
    "decoder",
    "learn",
    "measure_methods",
]


def __getattr__(name: str) -> Any:
    """These are imported when asked for: what they need (of transformers, to measure and to fit) takes seconds."""
    if name == "decoder":
        from .engine.inside_generate import decoder

        return decoder
    if name in ("learn", "measure_methods"):
        from . import measuring

        return getattr(measuring, name)
    raise AttributeError(f"module 'selfdraft' has no attribute {name!r}")
