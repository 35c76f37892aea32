"""Batches: tokens per second of many texts at a time, plain and drafting, beside transformers' own batches.

    python benchmarks/batches.py MODEL --rows 1 8 32 --variant "tree: strategy=fixed ..." --output result.json

For each number of rows the arms take turns, --repeats times, on the same prompts, one of each domain after the other;
shown are whole calls of `engine.generate(list)` (prompts read, texts decoded) and decoding alone, the best repeat of
each. In such a call the slowest text decides; --per-row K keeps all rows busy instead: K texts for each, in a session
where the next one joins when one leaves. Every text is held against that of a single plain call: equal, a tie of
scores, or different.

--stall asks for a long prompt while others are being decoded: how long do they wait for a token? --queue N asks for N
texts at once, transformers with padding of neighbours in length; both in turn, twice, the best of each. Without --eos
texts go on after their end, so that each has all its tokens.

--peer adds transformers' continuous batching, `generate_batch`: made again for each number of rows, with PEER_MEMORY of
the free memory, without shared prompts (ours has no prefix cache here either). It decodes with flash attention where
that is installed, and only then records CUDA graphs: `cuda_graphs` in the document says so. Where it fails, the run
says so and goes on without it.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

import selfdraft
from selfdraft.cli.bench import read_variants
from selfdraft.cli.inputs import write_file
from selfdraft.measure.circumstances import circumstances
from selfdraft.measure.device import device_seconds
from selfdraft.prompts.arrange import in_turn
from selfdraft.prompts.sets import select_prompts
from selfdraft.prompts.tokens import encode
from selfdraft.registry import DRAFTING

LONG, BESIDE, BEFORE = 4096, 8, 64
"""Of --stall: tokens of the long prompt, texts that are being decoded, rounds before it comes."""
PEER, PEER_MEMORY = "transformers generate_batch", 0.4
Call = Callable[[list[list[int]]], tuple[list[tuple[int, ...]], float | None]]


@dataclass
class Row:
    """One arm at one number of rows; seconds are the best of all repeats."""

    rows: int
    arm: str
    num_tokens: int
    seconds: float  # of the whole call
    decode_seconds: float | None  # None: not told
    record_seconds: float  # of the whole: what recordings took that were not there yet
    verdicts: dict[str, int]

    @property
    def per_second(self) -> float:
        return self.num_tokens / self.seconds


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.engine = selfdraft.Engine.from_pretrained(
            options.model, device=options.device, strategy="off", prefix_cache=False
        )
        files = [(path, Path(path).read_text(encoding="utf-8")) for path in options.prompts]
        prompts = in_turn(select_prompts([], files, [], None))
        tokens = [encode(prompt, self.engine) for prompt in prompts]
        limit = (self.engine.context_length or 1 << 30) - options.max_new_tokens
        self.prompts = [one for one in tokens if len(one) <= min(limit, options.max_prompt)]
        if not options.eos:
            self.engine.model.generation_config.eos_token_id = [-1]
        self.alone: dict[int, tuple[int, ...]] = {}
        self.peer: dict[str, Any] = {}

    def arms(self) -> dict[str, Call]:
        methods = {"off": {"strategy": "off"}, **read_variants(self.options, {"strategy": DRAFTING})}
        own: dict[str, Call] = {name: self._ours(method) for name, method in methods.items()}
        return own | ({PEER: self._theirs} if self.options.peer else {})

    def _ours(self, method: dict[str, Any]) -> Call:
        engine = self.engine.fork()

        def call(prompts: list[list[int]]) -> tuple[list[tuple[int, ...]], float | None]:
            found = engine.generate(prompts, max_new_tokens=self.options.max_new_tokens, **method)
            return [one.tokens for one in found], max(one.stats.decode_seconds for one in found)

        def keep_busy(prompts: list[list[int]]) -> tuple[list[tuple[int, ...]], None]:
            done: dict[int, tuple[int, ...]] = {}
            with engine.session(max_rows=len(prompts) // self.options.per_row) as session:
                ids = [session.add(one, max_new_tokens=self.options.max_new_tokens, **method) for one in prompts]
                while session.num_open:
                    done |= {event.id: event.generation.tokens for event in session.step() if event.generation}
            return [done[number] for number in ids], None

        return keep_busy if self.options.per_row else call

    def _theirs(self, prompts: list[list[int]]) -> tuple[list[tuple[int, ...]], None]:
        model, attention = self.engine.model, self.engine.model.config._attn_implementation
        bounds = ContinuousBatchingConfig(max_memory_percent=PEER_MEMORY, allow_block_sharing=False)
        options = {"generation_config": self._greedy(), "continuous_batching_config": bounds}
        try:
            found = list(model.generate_batch(prompts, persistent_manager=True, **options).values())
        finally:
            model.set_attn_implementation(attention)  # where it failed before it could do so
        if errors := [one.error for one in found if one.error] or ["texts are missing"] * (len(found) < len(prompts)):
            raise RuntimeError(errors[0])
        manager = model._cached_continuous_batching_manager
        self.peer["cuda_graphs"] = any(manager.continuous_batching_config.cuda_graph_booleans)
        return [tuple(one.generated_tokens) for one in found], None

    def _forget_peer(self) -> None:
        """It is made for the first requests it gets: as many at a time as those."""
        self.engine.model.destroy_cached_continuous_batching_manager()
        gc.collect()

    def _greedy(self) -> GenerationConfig:
        end = self.engine.model.generation_config.eos_token_id
        return GenerationConfig(max_new_tokens=self.options.max_new_tokens, do_sample=False, eos_token_id=end)

    # ------------------------------------------------------------------------------------------------ numbers of rows

    def by_rows(self) -> list[Row]:
        rows, arms = [], self.arms()
        for number in self.options.rows:
            num_texts = number * (self.options.per_row or 1)
            prompts = [self.prompts[place % len(self.prompts)] for place in range(num_texts)]
            best: dict[str, Row] = {}
            for repeat in range(self.options.repeats + 1):  # the first one records
                for name in random.Random(repeat).sample(list(arms), len(arms)):
                    row = self._measure(number, name, arms[name], prompts, judges=repeat == 0)
                    if row is None:
                        del arms[name]
                        best.pop(name, None)
                    elif repeat == 0:
                        best[name] = row
                    elif repeat == 1 or row.seconds < best[name].seconds:
                        best[name] = Row(**{**asdict(row), "verdicts": best[name].verdicts})
            if self.options.peer:
                self._forget_peer()
            for name in arms:
                rows.append(best[name])
                print(line_of(best[name], best["off"]), flush=True)
        return rows

    def _measure(self, number: int, name: str, call: Call, prompts: list[list[int]], judges: bool) -> Row | None:
        """None: the peer failed."""
        try:
            return self._time(number, name, call, prompts, judges)
        except Exception as error:
            if name != PEER:
                raise
            self.peer["failed"] = f"{type(error).__name__} at {number} rows: {error}"
            print(f"{PEER}: {self.peer['failed']}; left out from here on", file=sys.stderr, flush=True)
            return None

    def _time(self, number: int, name: str, call: Call, prompts: list[list[int]], judges: bool) -> Row:
        recorded = self.engine.runner.record_seconds
        (texts, decode_seconds), seconds = self._timed(lambda: call(prompts))
        recorded = self.engine.runner.record_seconds - recorded
        is_judged = judges and not self.options.blind
        verdicts = Counter(map(self._judge, range(len(texts)), prompts, texts)) if is_judged else {}
        return Row(number, name, sum(map(len, texts)), seconds, decode_seconds, recorded, dict(verdicts))

    def _timed(self, call: Callable[[], Any]) -> tuple[Any, float]:
        began = device_seconds(self.engine.device)
        found = call()
        return found, device_seconds(self.engine.device) - began

    def _judge(self, place: int, prompt: list[int], text: tuple[int, ...]) -> str:
        place %= len(self.prompts)
        if place not in self.alone:
            options = {"max_new_tokens": self.options.max_new_tokens, "strategy": "off"}
            self.alone[place] = self.engine.generate(prompt, **options).tokens
        return self.engine.compare(prompt, self.alone[place], text).verdict

    # ------------------------------------------------------------------------------------------- a long prompt, a queue

    def stall(self) -> dict[str, float]:
        """Milliseconds between the rounds of texts while a long prompt is read beside them."""
        long = [token for prompt in self.prompts for token in prompt][:LONG]
        options = {"max_new_tokens": 4 * BEFORE, "strategy": "off"}
        with self.engine.session(max_rows=BESIDE + 1) as session:
            for _ in range(2):  # the first time records
                ids = [session.add(prompt, **options) for prompt in self.prompts[:BESIDE]]
                gaps, first, number = [], None, None
                while number is None or first is None:
                    began = time.perf_counter()
                    events = session.step()
                    gaps.append(1e3 * (time.perf_counter() - began))
                    if len(gaps) == BEFORE:
                        number = session.add(long, max_new_tokens=2, strategy="off")
                    if number is not None and any(event.id == number for event in events):
                        first = len(gaps)
                for one in (*ids, number):
                    session.cancel(one)
                while session.num_open:
                    session.step()
        usual, during = gaps[8:BEFORE], gaps[BEFORE:first]
        all_gaps = sorted(gaps[8:first])
        return {
            "prompt_tokens": len(long),
            "beside": BESIDE,
            "median_ms": statistics.median(usual),
            "median_during_ms": statistics.median(during),
            "p99_ms": all_gaps[int(0.99 * (len(all_gaps) - 1))],
            "longest_ms": max(during),
            "rounds": len(during),
        }

    def queue(self, number: int) -> dict[str, float]:
        """Seconds of many texts asked for at once."""
        prompts = [self.prompts[place % len(self.prompts)] for place in range(number)]
        options = {"max_new_tokens": self.options.max_new_tokens, "strategy": "off"}
        ours, theirs = [], []
        for _ in range(2):  # the first time records
            texts, seconds = self._timed(lambda: self.engine.generate(prompts, **options))
            ours.append(seconds)
            theirs.append(self._timed(lambda: self._in_padded_batches(prompts))[1])
        num_tokens = sum(len(text.tokens) for text in texts)
        return {"texts": number, "num_tokens": num_tokens, "seconds": min(ours), "transformers_seconds": min(theirs)}

    def _in_padded_batches(self, prompts: list[list[int]]) -> None:
        ordered = sorted(prompts, key=len)
        for first in range(0, len(ordered), self.options.padded_rows):
            self._padded(ordered[first : first + self.options.padded_rows])

    def _padded(self, prompts: Sequence[list[int]]) -> None:
        longest, device = max(map(len, prompts)), self.engine.device
        ids = torch.tensor([[0] * (longest - len(one)) + one for one in prompts], device=device)
        mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in prompts], device=device)
        config = self._greedy()
        config.pad_token_id = 0
        self.engine.model.generate(ids, attention_mask=mask, generation_config=config)


def line_of(row: Row, plain: Row) -> str:
    decode = f"{row.num_tokens / row.decode_seconds:9.0f}" if row.decode_seconds else f"{'':9}"
    share = f"{plain.seconds * row.num_tokens / (row.seconds * plain.num_tokens):5.2f}x"
    verdicts = ", ".join(f"{count} {name}" for name, count in sorted(row.verdicts.items()))
    recorded = f"recording {1e3 * row.record_seconds:.0f} ms" if row.record_seconds else ""
    told = "  ".join(text for text in (share, verdicts, recorded) if text)
    return f"{row.rows:4} rows  {row.arm:28} {row.per_second:9.0f} tokens/s, decoding {decode}  {told}"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("model", nargs="?", help="hub id, folder or catalogue name (default: the default model)")
    made.add_argument("--device", help="cpu, cuda (default: cuda where there is one)")
    made.add_argument("--rows", type=int, nargs="*", default=[1, 4, 16], metavar="N", help="texts at a time")
    made.add_argument("--per-row", type=int, metavar="K", help="K texts for each row, which is kept busy")
    made.add_argument("--variant", action="append", default=[], metavar="TEXT", help="as for selfdraft bench")
    made.add_argument("--prompts", nargs="*", default=[], metavar="FILE", help="JSON lines (default: our own prompts)")
    made.add_argument("--max-prompt", type=int, default=1500, metavar="N", help="leave longer prompts out")
    made.add_argument("--max-new-tokens", type=int, default=128, metavar="N")
    made.add_argument("--repeats", type=int, default=3, metavar="N")
    made.add_argument("--eos", action="store_true", help="texts end where the model ends them")
    made.add_argument("--peer", action="store_true", help="also transformers' generate_batch")
    made.add_argument("--blind", action="store_true", help="compare no texts")
    made.add_argument("--stall", action="store_true", help="also a long prompt beside texts")
    made.add_argument("--queue", type=int, metavar="N", help="also N texts at once, and transformers padded")
    made.add_argument("--padded-rows", type=int, default=64, metavar="N", help="of transformers' padded batches")
    made.add_argument("--output", metavar="FILE", help="keep the JSON document here")
    made.add_argument("--keep-prompts", metavar="FILE", help="write the prompts' tokens here, for vllm_batches.py")
    made.add_argument("--commit", metavar="TEXT", help="what was measured, where git does not know")
    return made


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    bench = Bench(options)
    if options.keep_prompts:
        write_file(options.keep_prompts, json.dumps(bench.prompts).encode())
    where = circumstances(bench.engine.runner)
    left_out = ("output", "commit", "device", "keep_prompts")
    asked = {name: value for name, value in vars(options).items() if name not in left_out}
    asked |= {"model": Path(options.model or "").name, "prompts": [Path(path).name for path in options.prompts]}
    document: dict[str, Any] = {"benchmark": "batches", "selfdraft": selfdraft.__version__, **where, "options": asked}
    document["commit"] = options.commit or where["commit"]
    document["rows"] = [asdict(row) for row in bench.by_rows()]
    if options.peer:
        document["peer"] = bench.peer
    if options.stall:
        document["stall"] = bench.stall()
        print("stall", json.dumps(document["stall"]), flush=True)
    if options.queue:
        document["queue"] = bench.queue(options.queue)
        print("queue", json.dumps(document["queue"]), flush=True)
    if options.output:
        write_file(options.output, (json.dumps(document, indent=1) + "\n").encode())
    ours = [row for row in document["rows"] if row["arm"] != PEER]
    return 1 if any(row["verdicts"].get("different") for row in ours) else 0


if __name__ == "__main__":
    sys.exit(main())
