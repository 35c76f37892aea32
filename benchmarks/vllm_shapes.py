"""vLLM at published sizes: milliseconds a token of one text, with dummy weights, beside `selfdraft bench passes`.

    selfdraft bench passes --shape qwen3-8b llama-3.1-8b --output passes.jsonl
    python benchmarks/vllm_shapes.py --shape qwen3-8b llama-3.1-8b --output vllm.jsonl  # where vLLM is installed
    selfdraft report passes.jsonl vllm.jsonl --markdown

Shapes are named as there. Each is run in a process of its own, from a folder that has its config.json and nothing else:
vLLM makes the weights, prompts are tokens. Greedy, bfloat16, no prefix cache; a token's time is that of a whole call of
`LLM.generate` less that of a call for one token, the best of several each. What is done already is kept in --output.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from selfdraft.bench.shapes import chosen_shapes
from selfdraft.bench.shapes.results import NUM_NEW, NUM_PROMPT, ShapeLine, ShapesFile, ShapesHead
from selfdraft.version import __version__
from vllm_batches import read  # beside this script; it also keeps vLLM's engine in this process


def token_seconds(config: dict[str, Any], arguments: dict[str, Any], repeats: int) -> float:
    import vllm

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
        llm = vllm.LLM(model=folder, skip_tokenizer_init=True, load_format="dummy", **arguments)
    prompt = {"prompt_token_ids": [token % config["vocab_size"] for token in range(1, NUM_PROMPT + 1)]}

    def best(num_tokens: int) -> float:
        params = vllm.SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
        found = []
        for _ in range(repeats + 1):  # the first one warms up
            began = time.perf_counter()
            llm.generate([prompt], params, use_tqdm=False)
            found.append(time.perf_counter() - began)
        return min(found[1:])

    return (best(NUM_NEW) - best(1)) / (NUM_NEW - 1)


def measure(name: str, config: dict[str, Any], options: argparse.Namespace) -> None:
    """One shape, kept beside those that the file has."""
    import torch
    import vllm

    arguments = {"dtype": "bfloat16", "enable_prefix_caching": False, "max_num_seqs": 1}
    arguments |= {"max_model_len": NUM_PROMPT + NUM_NEW, "gpu_memory_utilization": 0.9}
    arguments |= {key: read(value) for key, _, value in (text.partition("=") for text in options.set)}
    device = {"device_name": torch.cuda.get_device_name(0), "dtype": arguments["dtype"]}
    question = {"vllm": vllm.__version__, "torch": torch.__version__, **device, "arguments": arguments}
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    file = ShapesFile(options.output, ShapesHead(question, {"selfdraft": __version__, "date": date}))
    if name in file.lines:
        return
    seconds = token_seconds(config, arguments, options.repeats)
    print(json.dumps({"shape": name, "ms_per_token": 1000 * seconds, **question}), flush=True)
    file.add(ShapeLine(name, peers={f"vLLM {vllm.__version__}": seconds}))


def main() -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(
        "--shape", nargs="+", required=True, metavar="NAME", help="as `selfdraft bench passes` takes them"
    )
    made.add_argument("--repeats", type=int, default=4, metavar="N")
    made.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="more for vllm.LLM")
    made.add_argument("--output", required=True, metavar="FILE.jsonl", help="keep every shape here")
    options = made.parse_args()
    shapes = chosen_shapes(options.shape)
    if len(shapes) == 1:
        measure(*next(iter(shapes.items())), options)
        return 0
    others = [word for text in options.set for word in ("--set", text)]
    others += ["--repeats", str(options.repeats), "--output", options.output]
    alone = [sys.executable, __file__, "--shape"]
    words = [name for word in options.shape for name in (chosen_shapes([word]) if word == "all" else [word])]
    failed = [word for word in dict.fromkeys(words) if subprocess.run([*alone, word, *others], check=False).returncode]
    for word in failed:
        print(f"{word} failed, and is left out", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
