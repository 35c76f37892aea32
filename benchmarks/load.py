"""Many clients at a time: throughput, first tokens, tokens between, and whether each text is what it is alone.

    python benchmarks/load.py --clients 32 --requests 20 --output load.json
    python benchmarks/load.py --show benchmarks/results/load-cpu.json

starts `selfdraft serve` once for each strategy (--strategies auto off), asks the same requests of mixed length (half
greedy, half sampled with a seed of their own) with that many clients, and the first strategy's once more one by one.
Every text must equal that one. `--url` asks a server that runs already, of any kind; nothing is said of equality then.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import openai
import torch

from selfdraft.files import replace_file
from selfdraft.measure.circumstances import machine_circumstances
from selfdraft.prompts.sets import builtin_prompts

SHORTEST, LONGEST = 8, 96
"""New tokens of a request."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=20, help="of each client")
    parser.add_argument("--strategies", nargs="+", default=["auto", "off"])
    parser.add_argument("--url", help="of a server that runs already")
    parser.add_argument("--no-single", action="store_true", help="do not ask one by one")
    parser.add_argument("--device", default="cpu", help="of the server, to be told")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--show", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.show:
        print(page(json.loads(options.show.read_text(encoding="utf-8"))))
        return
    found = measured(options)
    if options.output:
        replace_file(options.output, json.dumps(found).encode() + b"\n")
    print(page(found))


def measured(options: argparse.Namespace) -> dict[str, Any]:
    asked, rows = requests(options), []
    for strategy in [None] if options.url else options.strategies:
        with contextlib.nullcontext(options.url) if options.url else serving(options.model, strategy) as url:
            load = os.getloadavg()[0]
            rows.append({"strategy": strategy, **run(url, options.model, asked, options.clients), "load_before": load})
            if not (options.url or options.no_single or rows[1:]):
                rows[0]["alone"] = run(url, options.model, asked, 1)["texts"]
    command = {name: getattr(options, name) for name in ("model", "clients", "requests", "seed")}
    return {
        "benchmark": "load",
        **command,
        "circumstances": machine_circumstances(torch.device(options.device), torch.float32),
        "rows": rows,
    }


def requests(options: argparse.Namespace) -> list[dict[str, Any]]:
    rng, prompts = random.Random(options.seed), builtin_prompts()
    return [
        {
            "messages": [{"role": "user", "content": rng.choice(prompts).text}],
            "max_tokens": rng.randint(SHORTEST, LONGEST),
            "temperature": rng.choice([0.0, 0.8]),
            "seed": number,
        }
        for number in range(options.clients * options.requests)
    ]


@contextlib.contextmanager
def serving(model: str, strategy: str) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["serve", "--model", model, "--strategy", strategy, "--port", str(port), "--max-waiting", "4096"]
    server = subprocess.Popen([sys.executable, "-m", "selfdraft", *words], stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/ready", timeout=1):
                break
            if server.poll() is not None:
                raise SystemExit(f"the server ended with {server.returncode}")
            time.sleep(0.2)
        yield f"{url}/v1"
    finally:
        server.terminate()
        server.wait(60)


def run(url: str, model: str, asked: Sequence[Mapping[str, Any]], num_clients: int) -> dict[str, Any]:
    """Each client asks its next request when the one before it was answered."""
    texts: list[str] = [""] * len(asked)
    first, between, counts = list[float](), list[float](), list[int]()

    async def ask(client: openai.AsyncOpenAI, number: int) -> None:
        began, last, chunks = time.monotonic(), 0.0, []
        usage = {"stream_options": {"include_usage": True}}
        async for chunk in await client.chat.completions.create(model=model, stream=True, **usage, **asked[number]):
            if chunk.usage:
                counts.append(chunk.usage.completion_tokens)
            piece = chunk.choices[0].delta.content if chunk.choices else ""
            if not piece:
                continue
            now = time.monotonic()
            (between if last else first).append(now - (last or began))
            last = now
            chunks.append(piece)
        texts[number] = "".join(chunks)

    async def work(client: openai.AsyncOpenAI, numbers: Iterator[int]) -> None:
        for number in numbers:
            await ask(client, number)

    async def all_of_them() -> None:
        left = iter(range(len(asked)))
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=3600) as client:
            await asyncio.gather(*(work(client, left) for _ in range(num_clients)))

    began = time.monotonic()
    asyncio.run(all_of_them())
    seconds = time.monotonic() - began
    return {"seconds": seconds, "num_tokens": sum(counts), "texts": texts, "first": first, "between": between}


def page(found: Mapping[str, Any]) -> str:
    """Markdown."""
    rows, facts = found["rows"], found["circumstances"]
    known = ", ".join(f"{name} {facts[name]}" for name in ("device_name", "torch", "commit") if facts.get(name))
    lines = [
        f"{found['clients']} clients, {found['requests']} requests each, {found['model']}; {known}.",
        "",
        "| strategy | tokens/s | first piece p50 | p95 | between pieces p50 | p95 | texts as alone |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    alone = rows[0].get("alone")
    for row in rows:
        cuts = [part for name in ("first", "between") for part in percentiles(row[name])]
        same = "-" if alone is None else f"{sum(map(str.__eq__, row['texts'], alone))} of {len(alone)}"
        times = " | ".join(f"{1000 * one:.0f} ms" for one in cuts)
        lines.append(f"| {row['strategy'] or '-'} | {row['num_tokens'] / row['seconds']:.1f} | {times} | {same} |")
    return "\n".join(lines)


def percentiles(values: Sequence[float]) -> tuple[float, float]:
    parts = statistics.quantiles(values, n=20)
    return statistics.median(values), parts[18]


if __name__ == "__main__":
    main()
