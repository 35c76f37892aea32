"""What a type checker, and so an editor, sees of the interface; mypy reads this in `make check`, nothing runs it.

A wrong call is marked with the error it must be: where mypy sees none there, the mark is unused, which is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_type

import selfdraft
from selfdraft import Engine, Figures, Generation, Profile


def right_calls(model: Any, prompts: Sequence[str]) -> None:
    engine = Engine(model, None, strategy="off", settings={})
    assert_type(engine.generate("a", max_new_tokens=3, seed=None, stop="x"), Generation)
    engine.generate("a", presence_penalty=0.5, logit_bias={5: -1.0}, logprobs=None)
    engine.generate("a", logit_bias=[(5, -1.0)], logprobs=3)
    assert_type(engine.generate(["a", "b"], lookahead="fixed"), list[Generation])
    assert_type(selfdraft.learn(engine, budget=600), Profile)
    figures = selfdraft.measure_methods(engine, prompts, ["lookup"])
    assert_type(figures, dict[str, Figures])
    if (speedup := figures["lookup"].speedup) is not None:
        print(f"{speedup.value:.2f}x, from {speedup.low:.2f} to {speedup.high:.2f}")
    Engine.from_pretrained("owner/model", revision="main", cache_dir="folder", drafter="lookup")


def wrong_calls(model: Any) -> None:
    engine = Engine(model, stratgy="off")  # type: ignore[call-arg]
    engine.generate("a", max_tokens=3)  # type: ignore[call-overload]
    engine.stream("a", temperature="hot")  # type: ignore[arg-type]
    engine.stream("a", logit_bias={"a": 1.0})  # type: ignore[dict-item]
    selfdraft.decoder(tree=5)  # type: ignore[arg-type]
    Engine.from_pretrained("owner/model", load_in_4bit=True)  # type: ignore[call-arg]
    Engine.from_pretrained("owner/model", trust_remote_code="no")  # type: ignore[arg-type]
