"""Plain decoding on a CPU beside other engines, and beside the least time that reading the weights takes.

    python benchmarks/cpu.py --threads 1 2 --peers FOLDER --output cpu.jsonl

--parts chooses what is measured, in float32, in a process of its own for each number of threads:

floor    the product (`torch.mv`) of a vector and a matrix as large as all weights that a token reads, with rows as
         wide as the hidden size; with wider rows it is faster, and nearer to what memory allows
plain    decoding the same prompt greedily: selfdraft, `model.generate`, CTranslate2 and llama.cpp
widths   passes of 1 to 16 tokens after 100, as a draft is verified
prefill  reading a prompt, up to its first new token
memory   resident memory after a text, selfdraft and `model.generate` each in a fresh process

What is in a part takes turns with the floor, --repeats times; tables show medians, --output keeps every repeat. A pause
before each turn lets the threads of the last one fall asleep. A token's time is that of decoding alone: from the first
new token to the last, or what `generation.stats` says. Weights for other engines are converted once, into --peers; an
engine that is not there (`pip install ctranslate2 llama-cpp-python`) is named and left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from itertools import cycle, islice, pairwise, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

from selfdraft import Engine, __version__
from selfdraft.measure.circumstances import machine_circumstances
from selfdraft.measure.peers import transformers_text
from selfdraft.models.load.catalogue import CATALOGUE, DEFAULT_MODEL, model_folder
from selfdraft.models.load.info import describe
from selfdraft.models.load.loading import load
from selfdraft.passes import PassRequest

PARTS = ("floor", "plain", "widths", "prefill", "memory")
WIDTHS, CONTEXT, PROMPTS = (1, 2, 4, 8, 16), 100, (100, 300, 1000)
PAUSE_SECONDS, PASSES_A_TURN, LLAMA_CONTEXT = 0.5, 3, 2048
PLAIN: dict[str, Any] = {"device": "cpu", "dtype": "float32", "strategy": "off", "prefix_cache": False}
PROMPT = "The lighthouse stood at the end of a stone pier. One night in November, when the wind came from the north,"
Text = tuple[Sequence[int], float | None]  # tokens, and the seconds of each in decoding alone, if there are several
Writer = Callable[[list[int], int], Text]  # continues a prompt by a number of tokens


class Arm(NamedTuple):
    """`run` is one turn: what it took, by name. `details` describe the arm in its record."""

    method: str
    run: Callable[[], dict[str, float]]
    details: Mapping[str, Any]


class Arrivals(list[float]):
    """When tokens came; a streamer of transformers."""

    def put(self, tokens: object) -> bool:
        self.append(time.perf_counter())
        return False  # to CTranslate2: do not stop

    def end(self) -> None: ...

    def per_token(self) -> float | None:
        return (self[-1] - self[0]) / (len(self) - 1) if len(self) > 1 else None


def selfdraft_text(engine: Engine, prompt: list[int], count: int) -> Text:
    made = engine.generate(prompt, max_new_tokens=count)
    return made.tokens, made.stats.decode_seconds / made.stats.num_tokens


def generate_text(engine: Engine, prompt: list[int], count: int) -> Text:
    arrivals = Arrivals()
    tokens, _ = transformers_text(engine, prompt, max_new_tokens=count, streamer=arrivals)
    return tokens, Arrivals(arrivals[1:]).per_token()  # the prompt comes first


def ctranslate2_writer(engine: Engine, model: Path, peers: Path, threads: int) -> Writer:
    import ctranslate2

    folder = peers / f"{model.name}-ctranslate2"
    if not folder.exists():
        converter = ctranslate2.converters.TransformersConverter(str(model))
        converter.convert(f"{folder}.part", quantization="float32", force=True)
        os.rename(f"{folder}.part", folder)
    generator = ctranslate2.Generator(str(folder), device="cpu", compute_type="float32", intra_threads=threads)
    keep = {"include_prompt_in_result": False, "return_end_token": True}  # it is greedy by itself

    def write(prompt: list[int], count: int) -> Text:
        arrivals, words = Arrivals(), engine.tokenizer.convert_ids_to_tokens(prompt)
        (made,) = generator.generate_batch([words], max_length=count, callback=arrivals.put, **keep)
        return made.sequences_ids[0], arrivals.per_token()

    return write


def llama_writer(engine: Engine, model: Path, peers: Path, threads: int) -> Writer:
    """By `llama_decode` and the largest score, with keys and values in float32."""
    import llama_cpp

    file = peers / f"{model.name}-f32.gguf"
    if not file.exists():
        write_gguf(engine.model, f"{file}.part")
        os.rename(f"{file}.part", file)
    cache = {"n_ctx": LLAMA_CONTEXT, "type_k": llama_cpp.GGML_TYPE_F32, "type_v": llama_cpp.GGML_TYPE_F32}
    llama = llama_cpp.Llama(str(file), n_threads=threads, n_threads_batch=threads, verbose=False, **cache)

    def write(prompt: list[int], count: int) -> Text:
        arrivals, tokens, unread = Arrivals(), [], prompt
        llama.reset()
        while len(tokens) < count and engine.eos_tokens.isdisjoint(unread if tokens else ()):
            llama.eval(unread)
            scores = llama_cpp.llama_get_logits_ith(llama.ctx, -1)
            unread = [int(np.ctypeslib.as_array(scores, shape=(llama.n_vocab(),)).argmax())]
            tokens += unread
            arrivals.put(unread)
        return tokens, arrivals.per_token()

    return write


def write_gguf(model: Any, file: str) -> None:
    """A llama in float32, without a tokenizer."""
    import gguf

    config = model.config
    if config.model_type != "llama":
        raise ValueError(f"no GGUF file is written of a {config.model_type}")
    writer = gguf.GGUFWriter(file, "llama")
    facts = {"embedding_length": config.hidden_size, "feed_forward_length": config.intermediate_size}
    facts |= {"head_count": config.num_attention_heads, "head_count_kv": config.num_key_value_heads}
    facts |= {"rope_freq_base": config.rope_parameters["rope_theta"], "rope_dimension_count": config.head_dim}
    facts |= {"layer_norm_rms_eps": config.rms_norm_eps, "context_length": config.max_position_embeddings}
    facts |= {"vocab_size": config.vocab_size, "block_count": config.num_hidden_layers, "tokenizer_model": "none"}
    for name, value in facts.items():
        getattr(writer, f"add_{name}")(value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, weight in model.named_parameters():  # a tied head is not among them, nor in such files
        values = weight.detach().numpy()
        if num_heads := heads.get(name.split(".")[-2]):  # transformers rotates halves, llama.cpp neighbours
            values = values.reshape(num_heads, 2, -1, config.hidden_size).swapaxes(1, 2).reshape(values.shape)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), np.ascontiguousarray(values))
    for step in ("write_header_to_file", "write_kv_data_to_file", "write_tensors_to_file", "close"):
        getattr(writer, step)()


def find_writers(engine: Engine, options: argparse.Namespace) -> tuple[dict[str, Writer], dict[str, str]]:
    """Those that are there, and why others are not."""
    writers: dict[str, Writer] = {"selfdraft": partial(selfdraft_text, engine)}
    writers["transformers"], missing = partial(generate_text, engine), {}
    model = model_folder(options.model) if options.model in CATALOGUE else Path(options.model)
    for name, make in (("ctranslate2", ctranslate2_writer), ("llama-cpp-python", llama_writer)):
        try:
            if options.peers is None:
                raise ValueError("there is no --peers FOLDER for its weights")
            options.peers.mkdir(parents=True, exist_ok=True)
            writers[f"{name} {version(name)}"] = make(engine, model, options.peers, *options.threads)
        except Exception as error:
            missing[name] = f"{type(error).__name__}: {error}"
    return writers, missing


def median_seconds(work: Callable[[], object]) -> dict[str, float]:
    times = [time.perf_counter()]
    for _ in range(PASSES_A_TURN):
        work()
        times.append(time.perf_counter())
    return {"seconds": statistics.median(end - begin for begin, end in pairwise(times))}


def text_arms(engine: Engine, prompt: list[int], count: int, writers: Mapping[str, Writer]) -> Iterator[Arm]:
    """Each with a word on how its text compares with ours."""
    ours = tuple(writers["selfdraft"](prompt, count)[0])

    def run(write: Writer) -> dict[str, float]:
        began = time.perf_counter()
        _, seconds = write(prompt, count)
        call_seconds = time.perf_counter() - began
        return {"call_seconds": call_seconds, "seconds": call_seconds if count == 1 else seconds or float("nan")}

    for name, write in writers.items():
        text = tuple(write(prompt, count)[0])
        found = engine.compare(prompt, ours, text)
        details = {"text": found.verdict, "parts_at": found.first_difference}
        yield Arm(name, partial(run, write), {"prompt_tokens": len(prompt), "new_tokens": len(text), **details})


def arms_of(part: str, engine: Engine, options: Any, writers: Mapping[str, Writer]) -> Iterator[Arm]:
    prompt = tokens_of(engine.tokenizer, options.prompt)
    longer = list(islice(cycle(prompt), max(PROMPTS)))
    num_bytes, hidden = describe(engine.runner.decoder).pass_bytes, int(engine.model.config.hidden_size)
    weights = torch.ones(num_bytes // 4 // (8 * hidden), 8 * hidden)
    for name, size in (("floor", hidden), ("floor, rows 8 times wider", 8 * hidden)):
        product_of_all = partial(torch.mv, weights.view(-1, size), torch.ones(size))
        yield Arm(name, partial(median_seconds, product_of_all), {"bytes": weights.nbytes})
    if part == "plain":
        yield from text_arms(engine, prompt, options.tokens, writers)
    for length in PROMPTS if part == "prefill" else ():
        yield from text_arms(engine, longer[:length], 1, writers)
    cache = engine.runner.new_cache(1, CONTEXT + max(WIDTHS))
    for width in WIDTHS if part == "widths" else ():
        engine.runner.forward(PassRequest([longer[:CONTEXT]], [0], needs_scores=False), cache)
        request = PassRequest([longer[CONTEXT:][:width]], [CONTEXT])
        run = partial(median_seconds, lambda request=request: engine.runner.forward(request, cache).choices())
        yield Arm(f"{width} tokens", run, {"width": width})


def tokens_of(tokenizer: Any, prompt: str) -> list[int]:
    return list(tokenizer(Path(prompt).read_text("utf-8") if os.path.isfile(prompt) else prompt).input_ids)


def interleave(arms: Sequence[Arm], repeats: int) -> list[dict[str, list[float]]]:
    """What each arm took, turn by turn; a first turn of all is left out."""
    kept: list[list[dict[str, float]]] = [[] for _ in arms]
    for _ in range(repeats + 1):
        for arm, own in zip(arms, kept, strict=True):
            time.sleep(PAUSE_SECONDS)
            own.append(arm.run())
    return [{name: [turn[name] for turn in own[1:]] for name in own[0]} for own in kept]


def turns(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    engine = Engine.from_pretrained(options.model, **PLAIN)
    written = [part for part in ("plain", "prefill") if part in options.parts]
    writers, missing = find_writers(engine, options) if written else ({}, {})
    yield from ({"part": written[0], "method": name, "missing": reason} for name, reason in missing.items())
    for part in filter("memory".__ne__, options.parts):
        arms = list(arms_of(part, engine, options, writers))
        for arm, kept in zip(arms, interleave(arms, options.repeats), strict=True):
            medians = {name: statistics.median(values) for name, values in kept.items()}
            yield {"part": part, "method": arm.method, **arm.details, **medians, "repeats": kept}


def memory(method: str, options: argparse.Namespace) -> dict[str, Any]:
    before = resident_bytes()
    if method == "selfdraft":
        engine = Engine.from_pretrained(options.model, **PLAIN)
        engine.generate(tokens_of(engine.tokenizer, options.prompt), max_new_tokens=options.tokens)
    else:
        model, tokenizer = load(options.model, device="cpu", dtype="float32")
        bare: Any = SimpleNamespace(model=model, device=model.device)
        transformers_text(bare, tokens_of(tokenizer, options.prompt), max_new_tokens=options.tokens)
    return {"part": "memory", "method": method, "bytes": resident_bytes(), "bytes_before_loading": before}


def resident_bytes() -> dict[str, int]:
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {name[:-1]: int(rest[0]) * 1024 for name, *rest in lines if name.startswith(("VmRSS", "VmHWM", "Rss"))}


def run_job(options: argparse.Namespace) -> int:
    """Print a line of JSON for each measurement."""
    torch.set_num_threads(*options.threads)
    known = {"options": {name: getattr(options, name) for name in ("model", "prompt", "tokens", "repeats")}}
    known |= {"benchmark": "cpu", "selfdraft": __version__, "load_before": os.getloadavg()}
    known |= machine_circumstances(torch.device("cpu"), torch.float32)
    for row in turns(options) if options.job == "turns" else [memory(options.job, options)]:
        print(json.dumps({**row, **known, "load_after": os.getloadavg()}), flush=True)
    return 0


def shown(row: Mapping[str, Any]) -> str:
    return "off, selfdraft" if row["method"] == "selfdraft" else str(row["method"])


def table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    measured = [row for row in rows if "seconds" in row]
    floor = next(row["seconds"] for row in measured if row["method"] == "floor")
    ours = {row["prompt_tokens"]: row["seconds"] for row in measured if row["method"] == "selfdraft"}
    yield f"{'':26}{'prompt':>7}{'ms':>10}{'a second':>10}{'of floor':>10}{'floors':>9}{'/selfdraft':>11}  call, text"
    for row in measured:
        seconds, prompt = row["seconds"], row.get("prompt_tokens", "")
        line = f"{shown(row):26}{prompt:>7}{1000 * seconds:10.2f}{1 / seconds:10.2f}{floor / seconds:10.1%}"
        line += f"{seconds / floor:9.2f}" + (f"{seconds / ours[prompt]:10.2f}x" if prompt else "")
        line += f"  {row['new_tokens'] / row['call_seconds']:.2f}/s, {row['text']}" if prompt else ""
        yield line + (f" at {row['parts_at']}" if row.get("parts_at") is not None else "")
    yield from (f"{row['method']}: left out, {row['missing']}" for row in rows if "missing" in row)


def memory_table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for row in rows:
        sizes = "".join(f"{name:>10}{num_bytes / 1e6:8.0f} MB" for name, num_bytes in row["bytes"].items())
        yield f"{shown(row):26}{sizes}{row['bytes']['VmRSS'] / rows[0]['bytes']['VmRSS']:10.2f}x"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--model", default=DEFAULT_MODEL, help="catalogue name or folder; default %(default)s")
    made.add_argument("--threads", type=int, nargs="+", default=[1, 2], metavar="N")
    made.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    made.add_argument("--repeats", type=int, default=15, metavar="N")
    made.add_argument("--tokens", type=int, default=64, metavar="N", help="new ones")
    made.add_argument("--prompt", default=PROMPT, metavar="TEXT", help="or a file that holds it")
    made.add_argument("--peers", type=Path, metavar="FOLDER", help="weights in the formats of other engines")
    made.add_argument("--output", metavar="FILE.jsonl", help="add a line of JSON for each measurement")
    made.add_argument("--show", type=Path, metavar="FILE.jsonl", help="the tables of what was measured before")
    made.add_argument("--job", choices=("turns", "selfdraft", "transformers"), help=argparse.SUPPRESS)
    return made


def measured(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Each job in a process of its own, so that no engine's threads are in another's way."""
    jobs = ["turns"] if {*options.parts} - {"memory"} else []
    jobs += ["selfdraft", "transformers"] if "memory" in options.parts else []
    for threads, job in product(options.threads, jobs):
        command = [sys.executable, __file__, *sys.argv[1:], "--threads", str(threads), "--job", job]
        printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        lines = [line for line in printed.splitlines() if line.startswith('{"part"')]
        if options.output:
            with Path(options.output).open("a", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines)
        yield from map(json.loads, lines)


def circumstances(row: Mapping[str, Any]) -> str:
    names = ("device_name", "torch", "transformers", "commit")
    loads = "load before and after {:.2f}, {:.2f}".format(row["load_before"][0], row["load_after"][0])
    return ", ".join([row["options"]["model"], *(f"{name} {row[name]}" for name in names), loads])


def main() -> int:
    options = parser().parse_args()
    if options.job:
        return run_job(options)
    found = [json.loads(line) for line in options.show.open()] if options.show else list(measured(options))
    keys = dict.fromkeys((row["threads"], row["part"], row["options"]["repeats"]) for row in found)
    for threads, part, repeats in keys:
        rows = [row for row in found if (row["part"], row["threads"]) == (part, threads)]
        print(f"\n## {part}, threads: {threads}, repeats: {repeats}\n\n{circumstances(rows[-1])}\n")
        print("\n".join(f"    {line}" for line in (memory_table if part == "memory" else table)(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
