"""Draft & Verify's search (Self-SD, arXiv:2309.08168), which several papers compare themselves with. It is kept."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ...calibrate.fit_once import temporary_session
from ...calibrate.fit_session import EngineKit
from ...progress import LogProgress
from ...prompts.arrange import digest
from ...prompts.tokens import encoded
from ...strategies.draft_verify import DraftVerify
from ...types import Prompt
from .workbench import Workbench


def self_sd(
    bench: Workbench, name: str, prompts: Sequence[Prompt], *, seconds: float, num_prompts: int = 8, num_tokens: int = 32
) -> Mapping[str, Any]:
    """The fastest set that drafts (`skip`; None: none was tried), sets tried, seconds, its speed and the plain one.

    `name` tells searches on different prompts apart; each set is tried on `num_prompts` of them. Unlike `draft-verify`
    it does not decode plainly where that was faster: the papers' Self-SD drafts in any case.
    """
    prompts = [encoded(prompt, bench.engine) for prompt in prompts]
    options = DraftVerify.Options(num_prompts=num_prompts, num_tokens=num_tokens)
    question = {
        "prompts": digest(prompts),
        "seconds": seconds,
        "num_prompts": num_prompts,
        "num_tokens": num_tokens,
    }
    kept_as = f"self-sd-{name}-{num_prompts}-{num_tokens}-{seconds:g}"
    return bench.once(kept_as, question, lambda: _search(bench, options, prompts, seconds)).values


def _search(
    bench: Workbench, options: DraftVerify.Options, prompts: Sequence[Prompt], seconds: float
) -> dict[str, Any]:
    bench.say(f"Self-SD searches, for at most {seconds:.0f} s")
    began = time.monotonic()
    with temporary_session(bench.fork(), bench.scale.fit_tokens, LogProgress(bench.say, "self-sd")) as session:
        journal = session.journal("self-sd")
        kit = _SearchKit(session, prompts, lambda: session.write(prompts), journal, seconds, "self-sd")
        DraftVerify.fit(kit, options)
        speeds = {step["skip"]: step["tokens_per_second"] for step in kit.done}
    plain = speeds.pop("")
    best = max(speeds, key=lambda skip: speeds[skip], default=None)
    return {
        "skip": best,
        "num_steps": len(speeds),
        "num_prompts": min(options.num_prompts, len(prompts)),
        "seconds": time.monotonic() - began,
        "tokens_per_second": None if best is None else speeds[best],
        "plain": plain,
    }


class _SearchKit(EngineKit):
    """After plain decoding there is time for one set in any case."""

    def has_time(self) -> bool:
        return super().has_time() or len(self.done) < 2
