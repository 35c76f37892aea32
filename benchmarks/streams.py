"""What methods that learn gain along a stream of prompts, by `selfdraft bench`.

    python benchmarks/streams.py benchmarks/results/streams-h200-gsm8k.jsonl

prints a Markdown table for each file: speed over plain decoding on the whole stream, its first and its last fifth, and
what optimising took. Methods took turns text by text; in brackets the middle 95 % over resampled prompts.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from selfdraft.bench.tables import interval, measured_with
from selfdraft.measure.estimate import ratio, speed
from selfdraft.measure.records import OFF, Record
from selfdraft.measure.result import Result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="what `selfdraft bench --output` wrote")
    print("\n\n".join("\n".join(page(Result.read(file).complete())) for file in parser.parse_args().files))


def page(result: Result) -> Iterator[str]:
    plain, fifth = result.all_of.arms[OFF], len(result.all_of.arms[OFF]) // 5
    yield f"### {len(plain)} texts of {', '.join(result.prompts_of)}\n\n{measured_with(result)}\n"
    yield "| method | all texts | the first fifth | the last fifth | optimising | outputs: equal, tie, different |"
    yield "|---|---:|---:|---:|---:|---:|"
    for arm in (arm for arm in result.arms if arm.total and arm.name != OFF):
        records = result.all_of.arms[arm.name]
        parts = (range(len(plain)), range(fifth), range(len(plain) - fifth, len(plain)))
        speeds = " | ".join(interval(ratio(among(records, part), among(plain, part), speed, 0)) for part in parts)
        spent = sum(one.optimise_seconds for one in records) / sum(one.decode_seconds or 0.0 for one in records)
        verdicts = [one.verdict for one in records]
        counts = ", ".join(str(verdicts.count(verdict)) for verdict in ("equal", "tie", "different"))
        yield f"| `{arm.name}` | {speeds} | {spent:.1%} | {counts} |"


def among(records: Sequence[Record], numbers: range) -> list[Record]:
    return [record for record in records if record.number in numbers]


if __name__ == "__main__":
    main()
