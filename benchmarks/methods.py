"""Every strategy and drafter, as a chain and as a tree, against plain decoding and transformers' own assistants.

    python benchmarks/methods.py                                        # the default model, our own prompts
    python benchmarks/methods.py --prompts a.jsonl b.jsonl --per-domain 3 --max-new-tokens 64

Greedy. For each prompt all methods take turns in one process, `off` first; every output is compared with that of
`off`. Speeds are total tokens over total seconds: "decoding" without the prefill, against `off`; "whole call" with it,
against `model.generate`. Prompts are JSON lines with `domain` and `prompt`. The last line printed is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

import selfdraft
from overhead import commit
from selfdraft.models.load.loading import load

OWN_PROMPTS = Path(__file__).with_name("prompts.jsonl")
TREE = {"tree": "siblings"}


@dataclass
class Total:
    """Sums over the prompts of one domain."""

    tokens: int = 0
    decode_seconds: float = 0.0
    call_seconds: float = 0.0
    accepted: int = 0
    draft_steps: int = 0
    passes: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    error: str | None = None

    def add(self, other: Total) -> None:
        for name in ("tokens", "decode_seconds", "call_seconds", "accepted", "draft_steps", "passes", "verdicts"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.error = self.error or other.error


def methods(num_layers: int, draft: Any) -> dict[str, dict[str, Any]]:
    """Names as in the table; an early exit at two thirds, where an untrained model begins to know what it will say."""
    exit_layers = {"early-exit": {"layers": num_layers * 2 // 3}}
    few = {"uniform": {"ratio": 0.1}}
    lookup = {"siblings": {"lookup": 2}}
    return {
        "uniform 0.25, chain": {},
        "uniform 0.25, tree": TREE,
        "uniform 0.1, chain": {"settings": few},
        "uniform 0.1, tree": {**TREE, "settings": few},
        "uniform 0.1, tree + lookup": {**TREE, "settings": {**few, **lookup}},
        "early-exit, chain": {"strategy": "early-exit", "settings": exit_layers},
        "early-exit, tree": {"strategy": "early-exit", **TREE, "settings": exit_layers},
        "lookup, chain": {"drafter": "lookup"},
        "lookup, tree": {"drafter": "lookup", **TREE, "settings": lookup},
        "model, chain": {"drafter": "model", "settings": {"model": {"source": draft}}},
        "model, tree": {"drafter": "model", **TREE, "settings": {"model": {"source": draft}}},
        "jacobi, chain": {"drafter": "ngram-pool", "settings": {"ngram-pool": {"window": 0, "tokens": 4}}},
        "ngram-pool, tree": {"drafter": "ngram-pool"},
    }


def peers(num_layers: int) -> dict[str, dict[str, Any]]:
    return {
        "transformers generate": {},
        "transformers early exit": {"assistant_early_exit": num_layers * 2 // 3},
        "transformers prompt lookup": {"prompt_lookup_num_tokens": 10},
    }


def first_layers(model: Any, num_layers: int) -> Any:
    """A draft model for a family of one: the target's own first layers, as a model of its own on the same weights."""
    config = type(model.config).from_dict({**model.config.to_dict(), "num_hidden_layers": num_layers})
    config.layer_types = None
    with torch.device("meta"):
        draft = type(model)(config)
    draft.load_state_dict(model.state_dict(), strict=False, assign=True)
    draft.tie_weights()
    draft.model.rotary_emb = model.model.rotary_emb
    return draft.eval()


def read_prompts(paths: list[Path], per_domain: int) -> Iterator[tuple[str, str]]:
    taken: Counter[str] = Counter()
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            domain = row.get("domain", path.stem)
            taken[domain] += 1
            if taken[domain] <= per_domain:
                yield domain, row["prompt"]


def run_ours(engine: selfdraft.Engine, prompt: list[int], num_tokens: int, method: dict[str, Any]) -> Any:
    began = time.perf_counter()
    generation = engine.generate(prompt, max_new_tokens=num_tokens, **method)
    seconds = time.perf_counter() - began
    stats = generation.stats
    total = Total(
        tokens=stats.num_tokens,
        decode_seconds=stats.decode_seconds,
        call_seconds=seconds,
        accepted=stats.num_accepted,
        draft_steps=stats.num_draft_steps,
        passes=stats.num_target_passes,
    )
    return generation.tokens, total


def run_peer(engine: selfdraft.Engine, prompt: list[int], num_tokens: int, options: dict[str, Any]) -> Any:
    inputs = torch.tensor([prompt], device=engine.device)
    began = time.perf_counter()
    with torch.inference_mode():
        output = engine.model.generate(
            inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=num_tokens, do_sample=False, **options
        )
    seconds = time.perf_counter() - began
    tokens = tuple(output[0, len(prompt) :].tolist())
    return tokens, Total(tokens=len(tokens), call_seconds=seconds)


def measure(
    engine: selfdraft.Engine, prompts: list[tuple[str, list[int]]], num_tokens: int, ways: dict[str, Callable[..., Any]]
) -> dict[str, dict[str, Total]]:
    totals: dict[str, dict[str, Total]] = defaultdict(lambda: defaultdict(Total))
    for name, run in ways.items():
        guarded(name, run, prompts[0][1], 8)
    began = time.perf_counter()
    for count, (domain, prompt) in enumerate(prompts, start=1):
        plain: Any = None
        for name, run in ways.items():
            tokens, total = guarded(name, run, prompt, num_tokens)
            plain = tokens if name == "off" else plain
            if tokens is not None and name != "off":
                total.verdicts[engine.compare(prompt, plain, tokens).verdict] += 1
            totals[name][domain].add(total)
        left = (time.perf_counter() - began) / count * (len(prompts) - count)
        print(f"{count}/{len(prompts)} prompts, about {left / 60:.1f} minutes left", file=sys.stderr, flush=True)
    return totals


def guarded(name: str, run: Callable[..., Any], prompt: list[int], num_tokens: int) -> Any:
    """A peer that cannot run this model is a row of the table, not the end of it."""
    if not name.startswith("transformers"):
        return run(prompt, num_tokens)
    try:
        return run(prompt, num_tokens)
    except (RuntimeError, ValueError, TypeError, AttributeError, NotImplementedError) as error:
        return None, Total(error=f"{type(error).__name__}: {error}".splitlines()[0][:80])


def table(totals: dict[str, dict[str, Total]], domains: list[str]) -> Iterator[str]:
    head = "".join(f"{domain:>22}" for domain in [*domains, "all"])
    yield f"{'decoding against off':28}{head}"
    yield f"{'':28}" + "   accepted  len  speed" * (len(domains) + 1)
    for name, by_domain in totals.items():
        if not any(total.passes for total in by_domain.values()):
            continue
        yield f"{name:28}" + "".join(_cell(pick(by_domain, d), pick(totals["off"], d)) for d in [*domains, None])
    yield ""
    yield f"{'whole call against generate':28}{head}"
    for name, by_domain in totals.items():
        cells = [(pick(by_domain, d), pick(totals["transformers generate"], d)) for d in [*domains, None]]
        texts = (total.error or f"{call_speed(total) / call_speed(base):.2f}x" for total, base in cells)
        yield f"{name:28}" + "".join(f"{text[:21]:>22}" for text in texts)
    verdicts = sum((pick(by_domain, None).verdicts for by_domain in totals.values()), Counter[str]())
    yield f"outputs against off: {dict(verdicts)}"


def pick(by_domain: dict[str, Total], domain: str | None) -> Total:
    if domain is not None:
        return by_domain[domain]
    whole = Total()
    for total in by_domain.values():
        whole.add(total)
    return whole


def _cell(total: Total, plain: Total) -> str:
    speedup = (total.tokens / total.decode_seconds) / (plain.tokens / plain.decode_seconds)
    rate = f"{total.accepted / total.draft_steps:.0%}" if total.draft_steps else "-"
    return f"{rate:>11} {total.tokens / total.passes:4.2f} {speedup:.2f}x"


def call_speed(total: Total) -> float:
    return total.tokens / total.call_seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder, catalogue name or hub id (default: the default model)")
    parser.add_argument("--prompts", type=Path, nargs="+", default=[OWN_PROMPTS], help="JSON lines: domain, prompt")
    parser.add_argument("--per-domain", type=int, default=3)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    arguments = parser.parse_args()
    model, tokenizer = load(arguments.model)
    engine = selfdraft.Engine(model, tokenizer)
    num_layers = model.config.num_hidden_layers
    chosen = {"off": {"strategy": "off"}, **methods(num_layers, first_layers(model, num_layers // 2))}
    ways: dict[str, Callable[..., Any]] = {
        name: lambda prompt, count, method=method: run_ours(engine, prompt, count, method)
        for name, method in chosen.items()
    }
    for name, options in peers(num_layers).items():
        ways[name] = lambda prompt, count, options=options: run_peer(engine, prompt, count, options)
    prompts = [
        (domain, tokenizer.apply_chat_template(message(text), add_generation_prompt=True, return_dict=False))
        for domain, text in read_prompts(arguments.prompts, arguments.per_domain)
    ]
    totals = measure(engine, prompts, arguments.max_new_tokens, ways)
    domains = list(dict.fromkeys(domain for domain, _ in prompts))
    print("\n".join(table(totals, domains)))
    document = {
        "totals": {
            name: {domain: as_plain(total) for domain, total in parts.items()} for name, parts in totals.items()
        },
        "model": arguments.model or "default",
        "prompts": [path.name for path in arguments.prompts],
        "per_domain": arguments.per_domain,
        "max_new_tokens": arguments.max_new_tokens,
        "device": str(engine.device),
        "dtype": str(engine.dtype),
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "selfdraft": selfdraft.__version__,
        "commit": commit(),
    }
    print(json.dumps(document))
    ours = [pick(parts, None).verdicts for name, parts in totals.items() if not name.startswith("transformers")]
    return 1 if any(verdicts["different"] for verdicts in ours) else 0


def as_plain(total: Total) -> dict[str, Any]:
    return {**vars(total), "verdicts": dict(total.verdicts)}


def message(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


if __name__ == "__main__":
    sys.exit(main())
