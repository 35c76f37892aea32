"""What a lookahead adds to a drafted token: the whole choice after its scores, timed for each of them.

    python benchmarks/lookahead_cost.py --draft-ms 0.8 --output result.json

On CUDA as a recorded draft makes it, many times in one graph; elsewhere call by call. Scores are random numbers; no
model is needed. Shown is what each rule adds to `fixed`, which decides by counting, also in percent of a draft pass
that takes --draft-ms (`selfdraft bench --passes` prints what one takes).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

import selfdraft
from selfdraft.cli.inputs import write_file
from selfdraft.drafted import DraftStats
from selfdraft.engine.accept import Coupled
from selfdraft.engine.draft import Rule
from selfdraft.lookahead.disco import NUM_FEATURES, Classifier, Disco
from selfdraft.measure.circumstances import commit, device_name
from selfdraft.options import GenerateOptions
from selfdraft.passes import NoiseKey
from selfdraft.registry import LOOKAHEADS, find

REPEATS, BEST_OF = 50, 20
NUM_HIDDEN = 32


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    size = options.vocabulary or (151936 if device.type == "cuda" else 49152)
    time_it = in_a_graph if device.type == "cuda" else call_by_call
    with torch.inference_mode():
        scores = 3 * torch.randn(1, size, generator=torch.Generator().manual_seed(0)).to(device, dtype)
        found = {name: time_it(choice(name, scores)) for name in LOOKAHEADS}
    document = {
        "benchmark": "lookahead-cost",
        "selfdraft": selfdraft.__version__,
        "commit": options.commit or commit(),
        "torch": torch.__version__,
        "device": device.type,
        "device_name": device_name(device),
        "dtype": str(dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "vocabulary": size,
        "draft_ms": options.draft_ms,
        "microseconds": found,
    }
    if options.output:
        write_file(options.output, (json.dumps(document, indent=1) + "\n").encode())
    print(as_text(document))
    return 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--device", help="cpu, cuda (default: cuda where there is one)")
    made.add_argument("--vocabulary", type=int, metavar="N", help="default: 151936 on CUDA, else 49152")
    made.add_argument("--draft-ms", type=float, required=True, help="milliseconds of a draft pass, for the percentages")
    made.add_argument("--output", metavar="FILE", help="keep the JSON document here")
    made.add_argument("--commit", metavar="TEXT", help="what the JSON says was measured (default: git's word)")
    return made


def choice(name: str, scores: torch.Tensor) -> Callable[[], object]:
    """What happens after the scores of one drafted token, in a chain, greedily."""
    tree: Any = SimpleNamespace(max_candidates=1)
    rule = Rule(lookahead(name), tree, Coupled(), GenerateOptions())
    row = torch.zeros(1, dtype=torch.long, device=scores.device)
    noise = NoiseKey(row, row, row, row)
    return lambda: rule(DraftStats(row + 2, row, row, row, scores), noise, (row[0], row[0]))


def lookahead(name: str) -> Any:
    kind = find("lookahead", name)
    if kind is not Disco:
        return kind(kind.Options())
    shapes = ((NUM_HIDDEN, NUM_FEATURES), (NUM_HIDDEN,), (NUM_HIDDEN,), ())
    return Disco.of(Classifier(*map(torch.randn, shapes), last_position=512.0, threshold=0.5, max_tokens=12))


def in_a_graph(work: Callable[[], object]) -> float:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(REPEATS):
                work()
    best = float("inf")
    for _ in range(BEST_OF):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end))
    return 1e3 * best / REPEATS


def call_by_call(work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(BEST_OF):
        began = time.perf_counter()
        for _ in range(REPEATS):
            work()
        best = min(best, time.perf_counter() - began)
    return 1e6 * best / REPEATS


def as_text(document: dict[str, Any]) -> str:
    found = document["microseconds"]
    lines = [
        f"{document['device_name']}, {document['dtype']}, vocabulary {document['vocabulary']}: microseconds a drafted "
        f"token, and of a draft pass of {document['draft_ms']:g} ms",
        f"{'':12}{'choice':>10}{'added':>10}{'share':>10}",
    ]
    for name, taken in found.items():
        added = taken - found["fixed"]
        lines.append(f"{name:12}{taken:10.1f}{added:10.1f}{added / document['draft_ms'] / 10:9.2f}%")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
