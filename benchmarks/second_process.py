"""Is the first text of a second process as fast as later ones, by what the first process learned?

    python benchmarks/second_process.py --output second-process-cpu.json

Each process writes a text first, then others, then the same text again some times, `off` and `auto` in turns: how fast
the first one was beside the last ones. The first process finds nothing that was kept (a folder of its own), the second
one what the first one kept.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from selfdraft.files import replace_file
from selfdraft.measure.circumstances import circumstances
from selfdraft.models.load.catalogue import cache_home

REWRITES = Path(__file__).parent / "rewrites.jsonl"
NUM_AGAIN = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="default: the default model")
    parser.add_argument("--prompts", type=Path, default=REWRITES, help="JSON lines; each is once the first text")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--commit", help="what was measured")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--inside", type=int, help=argparse.SUPPRESS)  # place of the first text: one process
    options = parser.parse_args()
    if options.inside is not None:
        print(json.dumps(one_process(options)))
        return
    count = sum(1 for _ in options.prompts.open())
    rows = [both_processes(place) for place in range(count)]
    shares = {name: statistics.mean(row[name]["first_over_later"] for row in rows) for name in ("first", "second")}
    machine = rows[0]["first"].pop("machine")
    document = {"commit": options.commit, "machine": machine, "rows": rows, "first_over_later": shares}
    print(f"first text over the same text later: first process {shares['first']:.3f}, second {shares['second']:.3f}")
    if options.output:
        replace_file(options.output, json.dumps(document, indent=1).encode())


def both_processes(place: int) -> dict[str, Any]:
    """Two processes, one after the other, in a cache folder of their own."""
    with tempfile.TemporaryDirectory() as home:
        for folder in ("models", "kernels", "measured"):
            if (cache_home() / folder).exists():
                (Path(home) / folder).symlink_to(cache_home() / folder)
        command = [sys.executable, __file__, *sys.argv[1:], "--inside", str(place)]
        run = {"env": {**os.environ, "SELFDRAFT_HOME": home}, "check": True, "capture_output": True, "text": True}
        return {name: json.loads(subprocess.run(command, **run).stdout) for name in ("first", "second")}


def one_process(options: argparse.Namespace) -> dict[str, Any]:
    """Speeds over plain decoding on the same text."""
    import selfdraft

    engine = selfdraft.Engine.from_pretrained(options.model)
    texts = [json.loads(line)["prompt"] for line in options.prompts.open()]
    first = texts.pop(options.inside)
    engine.generate("Warm up.", max_new_tokens=4, strategy="off")

    def speedup(text: str) -> float:
        prompt = [{"role": "user", "content": text}]
        auto = engine.generate(prompt, max_new_tokens=options.max_new_tokens)
        plain = engine.generate(prompt, max_new_tokens=options.max_new_tokens, strategy="off")
        assert auto.tokens == plain.tokens
        return auto.stats.tokens_per_second / plain.stats.tokens_per_second

    begun = speedup(first)
    for text in texts:
        speedup(text)
    later = [speedup(first) for _ in range(NUM_AGAIN)]
    told = {"first": begun, "later": later, "first_over_later": begun / statistics.median(later)}
    return {**told, "machine": circumstances(engine.runner)}


if __name__ == "__main__":
    main()
