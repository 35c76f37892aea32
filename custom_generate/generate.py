"""selfdraft as a custom decoding method of the hub: `model.generate(..., custom_generate="<repository>")`."""

from typing import Any

import selfdraft
from selfdraft.registry import AXES

_OWN = (*AXES, "settings", "seed", "streamer", "tokenizer")


def generate(model: Any, **arguments: Any) -> Any:
    """`model.generate` with selfdraft's keywords added: strategy, drafter, ..., settings and seed."""
    if arguments.pop("assistant_model", None) is not None:
        raise selfdraft.OptionError("selfdraft drafts with the model itself; leave assistant_model out")
    own = {name: arguments.pop(name) for name in _OWN if name in arguments}
    # Not `model.generate`: a model loaded from a repository with this folder has this function there.
    return type(model).generate(model, custom_generate=selfdraft.decoder(**own), **arguments)
