"""Is `auto` ever slower than plain decoding, and how near is it to the best single method? By `selfdraft bench`.

    python benchmarks/never_slower.py benchmarks/results/auto-cpu-greedy.jsonl

prints, for each file, a Markdown table by kind of prompt: `auto` over plain decoding on all texts and without the first
five of the run (by then it has met the machine), the slowest single text, and the fastest other method in hindsight.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from selfdraft.bench.tables import measured_with
from selfdraft.measure.estimate import Estimate, call_speed, mean_ratio, ratio, speed
from selfdraft.measure.records import OFF, Record
from selfdraft.measure.result import Result

AUTO, NUM_FIRST = "auto", 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="what `selfdraft bench --output` wrote")
    print("\n\n".join("\n".join(page(Result.read(file).complete())) for file in parser.parse_args().files))


def page(result: Result) -> Iterator[str]:
    question = result.head.question
    temperature = question["options"]["temperature"]
    yield f"### {'Greedy' if not temperature else f'Sampled at temperature {temperature}'}"
    yield f"\n{measured_with(result)}\n"
    yield "| prompts | all texts | after the first 5 | slowest text | fastest other method | `auto` over that |"
    yield "|---|---:|---:|---:|---|---:|"
    domains = list(result.prompts_of)
    for domain in domains:
        yield row(result, domain, lambda record, domain=domain: record.domain == domain)
    yield row(result, "all", lambda record: True)
    means = mean_ratio([(of(result, AUTO, one), of(result, OFF, one)) for one in map(in_domain, domains)], speed, 0)
    yield f"\nMean over the kinds of prompts: {means}x."
    for arm in result.arms:
        if arm.kind == "peer" and arm.total:
            over = ratio(result.all_of.arms[AUTO], result.all_of.arms[arm.name], call_speed, 0)
            yield f"Whole calls over {arm.name}: {over}x ({over.count if over else 0} prompts)."


def in_domain(domain: str) -> Callable[[Record], bool]:
    return lambda record: record.domain == domain


def of(result: Result, arm: str, wanted: Callable[[Record], bool]) -> list[Record]:
    return [record for record in result.all_of.arms[arm] if wanted(record)]


def row(result: Result, name: str, wanted: Callable[[Record], bool]) -> str:
    plain, auto = of(result, OFF, wanted), of(result, AUTO, wanted)
    later = ratio(after_first(auto), after_first(plain), speed, 0)
    others = {arm.name: of(result, arm.name, wanted) for arm in result.arms if arm.kind == "ours" and arm.name != AUTO}
    speeds = {arm: found for arm, own in others.items() if arm != OFF and (found := ratio(own, plain, speed, 0))}
    best = max(speeds, key=lambda arm: speeds[arm].value) if speeds else None
    beside = f"{best} {speeds[best].value:.2f}x | {ratio(auto, others[best], speed, 0)}" if best else "- | -"
    return f"| {name} | {told(ratio(auto, plain, speed, 0))} | {told(later)} | {slowest(auto, plain):.2f}x | {beside} |"


def after_first(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record.number >= NUM_FIRST]


def slowest(auto: Sequence[Record], plain: Sequence[Record]) -> float:
    seconds = {record.number: record.decode_seconds or 0.0 for record in plain}
    return min(seconds[record.number] / record.decode_seconds for record in auto if record.decode_seconds)


def told(one: Estimate | None) -> str:
    return "-" if one is None else f"{one.value:.2f}x [{one.low:.2f}, {one.high:.2f}]"


if __name__ == "__main__":
    main()
