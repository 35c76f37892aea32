"""Plain decoding of every joined family beside `model.generate`: float32 on a CPU, random weights, two sizes.

    python benchmarks/cpu_families.py --threads 1 --output families.jsonl

Both continue the same prompt greedily and take turns, --repeats times; a token's time is the best whole call's (the
prompt is read in it) over its new tokens. Speed-ups are by the clock and by the processor's time, which other processes
disturb less; with several threads it counts the time of all. Texts must be equal, or part where scores tie.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

import selfdraft
from selfdraft.measure.circumstances import circumstances
from selfdraft.measure.peers import transformers_text
from selfdraft.models.families import FAMILIES

NAMES = "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim vocab_size"
SIZES = {"pico": (32, 48, 5, 4, 2, 8, 112), "smollm2": (576, 1536, 30, 9, 3, 64, 49152)}
"""The second is SmolLM2-135M's; the embedding is the head, as there."""
ENDLESS = {"tie_word_embeddings": True, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
EYE = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28}
JOINED = {name: family.parts for name, family in FAMILIES.items() if family.parts is not None}


def config_of(family: str, size: str) -> Any:
    """Two of eight experts are half as wide each: a token reads as many weights as elsewhere."""
    values: dict[str, Any] = {**ENDLESS, **dict(zip(NAMES.split(), SIZES[size], strict=True))}
    if JOINED[family].experts:
        half = values["intermediate_size"] // 2
        values |= {"num_experts": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": half}
        values |= {"intermediate_size": half}
    if family == "gemma3":
        eye = {"model_type": "siglip_vision_model", "patch_size": 14, **EYE}
        values = {**ENDLESS, "text_config": {**values}, "vision_config": eye, "image_token_index": 0}
    return AutoConfig.for_model(family, **values)


def take_turns(calls: Sequence[Callable[[], Any]], repeats: int) -> tuple[list[Any], list[tuple[float, float]]]:
    """What the calls return, and the least seconds of each, by the clock and of the processor."""
    outputs = [call() for call in calls]  # warms up
    best = [(float("inf"), float("inf"))] * len(calls)
    for _ in range(repeats):
        for place, call in enumerate(calls):
            began, used = time.perf_counter(), time.process_time()
            call()
            taken = time.perf_counter() - began, time.process_time() - used
            best[place] = min(best[place][0], taken[0]), min(best[place][1], taken[1])
    return outputs, best


def measure(family: str, size: str, options: argparse.Namespace) -> dict[str, Any]:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config_of(family, size), dtype=torch.float32).eval()
    engine = selfdraft.Engine(model, strategy="off", prefix_cache=False)
    prompt, count = [token % 100 for token in range(7, 7 + 13 * options.prompt, 13)], options.tokens
    generate = partial(transformers_text, engine, prompt, max_new_tokens=count)
    ((theirs, _), ours), seconds = take_turns(
        (generate, lambda: engine.generate(prompt, max_new_tokens=count).tokens), options.repeats
    )
    names = "generate_ms", "generate_cpu_ms", "plain_ms", "plain_cpu_ms"
    return {
        "family": family,
        "size": size,
        **dict(zip(names, (1000 * taken / count for taken in chain(*seconds)), strict=True)),
        "texts": engine.compare(prompt, theirs, ours).verdict,
        "options": {name: getattr(options, name) for name in ("prompt", "tokens", "repeats")},
        "selfdraft": selfdraft.__version__,
        **circumstances(engine.runner),
    }


def line_of(row: dict[str, Any]) -> str:
    shown = [f"{row['size']:9}{row['family']:13}{row['generate_ms']:10.3f}{row['plain_ms']:10.3f}"]
    shown += [f"{row['generate' + unit] / row['plain' + unit]:9.2f}x" for unit in ("_ms", "_cpu_ms")]
    return "".join([*shown, f"  {row['texts']}"])


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--family", nargs="+", default=list(JOINED), choices=JOINED, metavar="NAME")
    made.add_argument("--size", nargs="+", default=list(SIZES), choices=SIZES)
    made.add_argument("--prompt", type=int, default=16, metavar="N", help="tokens of the prompt")
    made.add_argument("--tokens", type=int, default=64, metavar="N", help="new ones")
    made.add_argument("--repeats", type=int, default=5, metavar="N")
    made.add_argument("--threads", type=int, metavar="N", help="default: torch's own choice")
    made.add_argument("--output", metavar="FILE.jsonl", help="add a line of JSON for each family and size")
    return made


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    torch.set_num_threads(options.threads or torch.get_num_threads())
    rows = []
    for size in options.size:
        for family in options.family:
            rows.append(measure(family, size, options))
            if options.output:
                with Path(options.output).open("a", encoding="utf-8") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    print(f"{'':22}{'generate':>10}{'plain':>10}{'clock':>10}{'CPU':>10}  texts   (ms a token; speed-ups)")
    print("\n".join(map(line_of, rows)))
    return 1 if any(row["texts"] == "different" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
