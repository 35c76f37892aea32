"""Many clients at a time: throughput, first tokens, tokens between, and whether each text is what it is alone.

    python benchmarks/load.py --clients 32 --requests 20 --output load.json
    python benchmarks/load.py --show benchmarks/results/load-cpu.json

starts `selfdraft serve` once for each strategy (--strategies auto off), asks the same requests of mixed length (half
greedy, half sampled with a seed of their own) with that many clients, and the first strategy's once more one by one.
Every text must equal that one. With `--transformers` these and `transformers serve` are asked by 8 clients as well, 5
requests each. `--url` asks a server that runs already, of any kind; nothing is said of equality then.
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
from selfdraft.models.load.pull import pull
from selfdraft.prompts.sets import builtin_prompts

SHORTEST, LONGEST = 8, 96
"""New tokens of a request."""
BESIDE_PEERS = 8, 5
"""Clients, and requests of each."""
TRANSFORMERS = "transformers serve"
PREFIX_CACHE = str(256 << 20)
"""Bytes; full after a tenth of the requests, so that what grows then is something else."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=20, help="of each client")
    parser.add_argument("--turns", type=int, default=1, help="of each strategy, in alternating order")
    parser.add_argument("--strategies", nargs="+", default=["auto", "off"])
    parser.add_argument("--transformers", action="store_true", help=f"beside `{TRANSFORMERS}`, with fewer clients")
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
    size, servers = (options.clients, options.requests), [None] if options.url else options.strategies
    turns = [one for number in range(options.turns) for one in (servers, servers[::-1])[number % 2]]
    rows = [row(options, server, *size, is_first=not place) for place, server in enumerate(turns)]
    beside = [row(options, one, *BESIDE_PEERS) for one in (*turns, TRANSFORMERS) if options.transformers]
    command = {name: getattr(options, name) for name in ("model", "clients", "requests", "seed")}
    return {
        "benchmark": "load",
        **command,
        "circumstances": machine_circumstances(torch.device(options.device), torch.float32),
        "rows": rows,
        "beside": beside,
    }


def row(options: argparse.Namespace, server: str | None, clients: int, count: int, is_first: bool = False) -> Any:
    """What one server made of these requests; of the first one also what each text is alone."""
    asked = requests(options, clients * count)
    with contextlib.nullcontext((options.url, options.model, 0)) if options.url else serving(options, server) as at:
        found = {"strategy": server, "load_before": os.getloadavg()[0], **run(*at, asked, clients)}
        if is_first and not (options.url or options.no_single):
            found["alone"] = run(*at, asked, 1)["texts"]
    return found


def requests(options: argparse.Namespace, count: int) -> list[dict[str, Any]]:
    rng, prompts = random.Random(options.seed), builtin_prompts()
    return [
        {
            "messages": [{"role": "user", "content": rng.choice(prompts).text}],
            "max_tokens": rng.randint(SHORTEST, LONGEST),
            "temperature": rng.choice([0.0, 0.8]),
            "seed": number,
        }
        for number in range(count)
    ]


@contextlib.contextmanager
def serving(options: argparse.Namespace, server: str | None) -> Iterator[tuple[str, str, int]]:
    """Its address, the model's name there, and its process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    if server == TRANSFORMERS:
        model = str(pull(options.model))
        words = [
            str(Path(sys.executable).with_name("transformers")),
            "serve",
            model,
            "--port",
            port,
            "--dtype",
            "float32",
        ]
    else:
        model, own = options.model, [sys.executable, "-m", "selfdraft", "serve", "--model", options.model]
        words = [
            *own,
            "--strategy",
            str(server),
            "--port",
            port,
            "--max-waiting",
            "4096",
            "--prefix-cache",
            PREFIX_CACHE,
        ]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=1):
                break
            if process.poll() is not None:
                raise SystemExit(f"{server}: the server ended with {process.returncode}")
            time.sleep(0.2)
        yield f"{url}/v1", model, process.pid
    finally:
        process.terminate()
        process.wait(60)


def run(url: str, model: str, process: int, asked: Sequence[Mapping[str, Any]], num_clients: int) -> dict[str, Any]:
    """Each client asks its next request when the one before it was answered. `bytes`: of the server's memory, after
    each tenth of the requests.
    """
    texts: list[str] = [""] * len(asked)
    first, between, counts, held = list[float](), list[float](), list[int](), list[int]()

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
        if process and len(counts) % max(len(asked) // 10, 1) == 0:
            held.append(held_bytes(process))

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
    times = {"seconds": seconds, "first": first, "between": between}
    return {**times, "num_tokens": sum(counts), "texts": texts, "bytes": held}


def held_bytes(process: int) -> int:
    """Its own memory: weights are mapped from their file, and are the system's."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def page(found: Mapping[str, Any]) -> str:
    """Markdown."""
    facts, size = found["circumstances"], (found["clients"], found["requests"])
    known = ", ".join(f"{name} {facts[name]}" for name in ("device_name", "torch", "commit") if facts.get(name))
    lines = [f"{found['model']}; {known}.", "", *table(found["rows"], *size)]
    return "\n".join([*lines, *(["", *table(found["beside"], *BESIDE_PEERS)] if found["beside"] else [])])


def table(rows: Sequence[Mapping[str, Any]], clients: int, count: int) -> list[str]:
    lines = [
        f"{clients} clients, {count} requests each:",
        "",
        "| server | tokens/s | first piece p50 | p95 | between pieces p50 | p95 | MiB at 10 %, 100 % | as alone |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    alone = rows[0].get("alone")
    for one in rows:
        cuts = [part for name in ("first", "between") for part in percentiles(one[name])]
        is_ours = alone is not None and one["strategy"] != TRANSFORMERS
        same = f"{sum(map(str.__eq__, one['texts'], alone))} of {len(alone)}" if is_ours else "-"
        memory = f"{one['bytes'][0] >> 20}, {one['bytes'][-1] >> 20}" if one["bytes"] else "-"
        cells = [f"{one['num_tokens'] / one['seconds']:.1f}", *(f"{1000 * cut:.0f} ms" for cut in cuts), memory, same]
        lines.append(f"| {one['strategy'] or '-'} | {' | '.join(cells)} |")
    return lines


def percentiles(values: Sequence[float]) -> tuple[float, float]:
    parts = statistics.quantiles(values, n=20)
    return statistics.median(values), parts[18]


if __name__ == "__main__":
    main()
