"""Where the GPU's time goes in plain decoding and with a method: kernels by kind, and the time it waits for the host.

    python benchmarks/gpu_profile.py qwen2.5-coder-1.5b-instruct --strategy fixed --tree siblings \
        --set fixed.skip=a4,a5,a7-13,a16,a17,m1,m3-17,m25

Each row is microseconds a generated token, prefill included. Time in which no kernel ran is "between kernels" where it
is short, as inside a graph, else "waiting for the host"; the profiler slows both down, so they are upper bounds. Prints
Markdown.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import selfdraft
from selfdraft.cli.inputs import add_method_options, read_method

PROMPT = [{"role": "user", "content": "Write a Python class for a bank account with tests for each of its methods."}]
KINDS = {
    "_attend": "attention",
    "_join": "attention",
    "_gated": "gate/up product",
    "_add_norm": "norms",
    "_rank": "best tokens",
    "_feed": "best tokens",
    "Mem": "copies",
    "gemm": "other products",
    "gemv": "other products",
    "nvjet": "other products",
    "cutlass": "other products",
    "splitKreduce": "other products",
}
OTHER, BETWEEN, WAITING = "everything else", "between kernels", "waiting for the host"
LAUNCH_GAP = 4.0
"""Microseconds: kernels of one graph follow each other faster than this."""

Result = tuple[Counter[str], Counter[str], int]
"""Microseconds and launches by kind, and the tokens generated."""


def kind_of(kernel: str) -> str:
    return next((kind for name, kind in KINDS.items() if name in kernel), OTHER)


def gaps(spans: Iterable[tuple[float, float]]) -> Iterator[float]:
    """The times in which none of these intervals ran."""
    last = None
    for begin, end in sorted(spans):
        if last is not None and begin > last:
            yield begin - last
        last = end if last is None else max(last, end)


def profiled(engine: Any, max_new_tokens: int, method: Mapping[str, Any]) -> Result:
    """Of a second call; the first one warms up."""
    engine.generate(PROMPT, max_new_tokens=max_new_tokens, **method)
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        generation = engine.generate(PROMPT, max_new_tokens=max_new_tokens, **method)
        torch.cuda.synchronize()
    micros: Counter[str] = Counter()
    launches: Counter[str] = Counter()
    spans = []
    for event in found.events():
        if event.device_type == torch.autograd.DeviceType.CUDA and event.time_range.end > event.time_range.start:
            kind = kind_of(event.name)
            micros[kind] += event.time_range.elapsed_us()
            launches[kind] += 1
            spans.append((event.time_range.start, event.time_range.end))
    for gap in gaps(spans):
        micros[WAITING if gap > LAUNCH_GAP else BETWEEN] += gap
    return micros, launches, len(generation.tokens)


def cells(result: Result, kind: str) -> str:
    micros, launches, num_tokens = result
    us, count = (by.total() if kind == "all" else by[kind] for by in (micros, launches))
    return f"{us / num_tokens:.0f} | {count / num_tokens:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    add_method_options(parser)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this profiles a CUDA device, and there is none")
    engine = selfdraft.Engine.from_pretrained(options.model, device="cuda", dtype="bfloat16", prefix_cache=False)
    methods = {"off": {"strategy": "off"}, "drafting": read_method(options)}
    results = {name: profiled(engine, options.max_new_tokens, method) for name, method in methods.items()}
    kinds = sorted(set(KINDS.values()) | {OTHER, BETWEEN, WAITING}, key=lambda kind: -results["off"][0][kind])
    print(f"| µs a token | {' | '.join(f'{name} | launches' for name in methods)} |")
    print("|---|" + "---:|---:|" * len(methods))
    for kind in [*kinds, "all"]:
        print(f"| {kind} | {' | '.join(cells(result, kind) for result in results.values())} |")


if __name__ == "__main__":
    main()
