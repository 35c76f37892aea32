"""What the engine costs before any speculation: plain decoding against `model.generate`, and memory.

    python benchmarks/overhead.py                     # the default model, 5 prompts, 128 tokens each
    python benchmarks/overhead.py --model FOLDER --max-new-tokens 64

Speed: `strategy="off"` and `model.generate` take turns on the same prompts in one process; whole calls, prefill
included, greedy; the ratio is total tokens over total seconds of each. Memory: the peak resident set of a process that
loads the model and generates once, plainly or speculating, and (Linux) what it holds at the end, median of three
processes each; the peak falls into loading. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers

import selfdraft
from selfdraft.models.load.loading import load

PROMPTS = Path(__file__).with_name("prompts.jsonl")
MEMORY_MODES = ("generate", "off", "uniform")
"""`model.generate` without an engine; plainly; speculating."""


def read_prompts(tokenizer: Any, count: int) -> list[list[int]]:
    lines = PROMPTS.read_text(encoding="utf-8").splitlines()[:count]
    messages = [[{"role": "user", "content": json.loads(line)["prompt"]}] for line in lines]
    return [tokenizer.apply_chat_template(m, add_generation_prompt=True, return_dict=False) for m in messages]


def generate_with_transformers(model: Any, prompt: list[int], num_tokens: int) -> list[int]:
    tokens = torch.tensor([prompt], device=model.device)
    with torch.inference_mode():
        output = model.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=num_tokens, do_sample=False
        )
    return output[0, len(prompt) :].tolist()


def generate_plainly(engine: selfdraft.Engine, prompt: list[int], num_tokens: int) -> list[int]:
    return list(engine.generate(prompt, max_new_tokens=num_tokens, strategy="off").tokens)


def measure_speed(
    engine: selfdraft.Engine, prompts: list[list[int]], num_tokens: int, num_rounds: int
) -> dict[str, Any]:
    ways = {
        "transformers": lambda *call: generate_with_transformers(engine.model, *call),
        "selfdraft off": lambda *call: generate_plainly(engine, *call),
    }
    for run in ways.values():
        run(prompts[0], 8)
    seconds, tokens = dict.fromkeys(ways, 0.0), dict.fromkeys(ways, 0)
    for _ in range(num_rounds):
        for prompt in prompts:
            outputs = {}
            for name, run in ways.items():
                began = time.perf_counter()
                outputs[name] = run(prompt, num_tokens)
                seconds[name] += time.perf_counter() - began
                tokens[name] += len(outputs[name])
            if outputs["transformers"] != outputs["selfdraft off"]:
                raise SystemExit("the outputs differ: the speeds would not be comparable")
            speeds = {name: tokens[name] / seconds[name] for name in ways}
            print("  ".join(f"{name} {speed:6.2f} tok/s" for name, speed in speeds.items()), flush=True)
    return {"tokens_per_second": speeds, "ratio": speeds["selfdraft off"] / speeds["transformers"]}


def memory(arguments: argparse.Namespace, mode: str) -> dict[str, float]:
    """Resident megabytes of one fresh process, at its peak and at its end."""
    command = [sys.executable, __file__, "--child", mode, "--max-new-tokens", str(arguments.max_new_tokens)]
    command += ["--model", arguments.model] if arguments.model else []
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, float] = json.loads(output.strip().splitlines()[-1])
    return found


def run_child(arguments: argparse.Namespace) -> None:
    model, tokenizer = load(arguments.model)
    prompt = read_prompts(tokenizer, 1)[0]
    if arguments.child == "generate":
        generate_with_transformers(model, prompt, arguments.max_new_tokens)
    else:
        engine = selfdraft.Engine(model, tokenizer, strategy=arguments.child)
        engine.generate(prompt, max_new_tokens=arguments.max_new_tokens)
    unit = 1 if platform.system() == "Darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    statm = Path("/proc/self/statm")
    end = int(statm.read_text().split()[1]) * resource.getpagesize() if statm.exists() else peak
    print(json.dumps({"peak": peak / 1e6, "end": end / 1e6}))


def measure_memory(arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    runs = {mode: [memory(arguments, mode) for _ in range(3)] for mode in MEMORY_MODES}
    return {
        mode: {when: statistics.median(run[when] for run in of_mode) for when in ("peak", "end")}
        for mode, of_mode in runs.items()
    }


def commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder, catalogue name or hub id (default: the default model)")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--prompts", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--no-memory", action="store_true", help="speed only")
    parser.add_argument("--child", choices=MEMORY_MODES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        run_child(arguments)
        return
    model, tokenizer = load(arguments.model)
    engine = selfdraft.Engine(model, tokenizer)
    prompts = read_prompts(tokenizer, arguments.prompts)
    result = measure_speed(engine, prompts, arguments.max_new_tokens, arguments.rounds)
    print(f"plain decoding is {result['ratio']:.2f}x model.generate")
    if not arguments.no_memory:
        used = result["resident_megabytes"] = measure_memory(arguments)
        print("  ".join(f"{mode}: peak {at['peak']:.0f} MB, end {at['end']:.0f} MB" for mode, at in used.items()))
        changes = (f"{used['uniform'][when] / used['off'][when] - 1:+.1%} at the {when}" for when in ("peak", "end"))
        print(f"speculating against plain: {', '.join(changes)}")
    result |= {
        "model": arguments.model or "default",
        "device": str(engine.device),
        "dtype": str(engine.dtype),
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "selfdraft": selfdraft.__version__,
        "commit": commit(),
        "max_new_tokens": arguments.max_new_tokens,
        "prompts": len(prompts),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
