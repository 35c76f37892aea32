"""vLLM on the requests of benchmarks/batches.py: whole calls of `LLM.generate`, the best of several.

    python benchmarks/batches.py MODEL --keep-prompts prompts.json --rows 8 32 64 ...
    python benchmarks/vllm_batches.py MODEL prompts.json --rows 8 32 64 --output vllm.json  # where vLLM is installed

Prompts are given as tokens, as they are there; greedy, no prefix cache, bfloat16. Texts go on after their end, and with
--eos the same is measured once more with texts that end where the model ends them.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # its engine in this process: no messages between two


def read(value: str) -> Any:
    """A number, a truth value or a list where it is one, else the text."""
    try:
        return json.loads(value)
    except ValueError:
        return value


def measure(llm: Any, prompts: list[list[int]], params: Any, repeats: int) -> dict[str, float]:
    requests = [{"prompt_token_ids": prompt} for prompt in prompts]
    found = []
    for _ in range(repeats + 1):  # the first one warms up
        began = time.perf_counter()
        outputs = llm.generate(requests, params, use_tqdm=False)
        seconds = time.perf_counter() - began
        found.append((seconds, sum(len(output.outputs[0].token_ids) for output in outputs)))
    seconds, num_tokens = min(found[1:])
    return {"num_tokens": num_tokens, "seconds": seconds}


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("model", help="a Hugging Face folder or hub id")
    made.add_argument("prompts", help="what batches.py --keep-prompts has written")
    made.add_argument("--rows", type=int, nargs="+", default=[8, 32, 64], metavar="N", help="texts at a time")
    made.add_argument("--max-new-tokens", type=int, default=128, metavar="N")
    made.add_argument("--repeats", type=int, default=4, metavar="N")
    made.add_argument("--eos", action="store_true", help="also with texts that end where the model ends them")
    made.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="more for vllm.LLM")
    made.add_argument("--output", required=True, metavar="FILE", help="keep the JSON document here")
    options = made.parse_args()

    import torch
    import vllm

    known = json.loads(Path(options.prompts).read_text(encoding="utf-8"))
    arguments = {"dtype": "bfloat16", "enable_prefix_caching": False, "max_num_seqs": max(options.rows)}
    arguments |= {"max_model_len": max(map(len, known)) + options.max_new_tokens, "gpu_memory_utilization": 0.5}
    arguments |= {name: read(value) for name, _, value in (text.partition("=") for text in options.set)}
    llm = vllm.LLM(model=options.model, **arguments)
    rows: list[dict[str, Any]] = []
    asked = {**vars(options), "model": Path(options.model).name, "prompts": Path(options.prompts).name}
    del asked["output"]
    document = {"benchmark": "vllm", "vllm": vllm.__version__, "torch": torch.__version__, "arguments": arguments}
    document |= {"device": torch.cuda.get_device_name(0), "options": asked, "rows": rows}
    for ends in [False, True][: 1 + options.eos]:
        params = vllm.SamplingParams(temperature=0.0, max_tokens=options.max_new_tokens, ignore_eos=not ends)
        for number in options.rows:
            prompts = [known[place % len(known)] for place in range(number)]
            row = {"rows": number, "arm": "vLLM", "eos": ends, **measure(llm, prompts, params, options.repeats)}
            print(f"{number:4} rows  eos {ends!s:5} {row['num_tokens'] / row['seconds']:9.0f} tokens/s", flush=True)
            rows.append(row)
    Path(options.output).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
