"""The documents of batches.py and vllm_batches.py as Markdown tables: `python benchmarks/batches_page.py FILE...`"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Document = dict[str, Any]
OURS, PEER = "off", "transformers generate_batch"


def table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [heads, ["---", *["---:"] * (len(heads) - 1)], *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def speed(row: Document) -> float:
    return float(row["num_tokens"] / row["seconds"])


def told(verdicts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(verdicts.items())) or "-"


def circumstances(document: Document) -> str:
    """What was measured, on what, and how."""
    given, versions = document["options"], (f"{key} {document[key]}" for key in ("torch", "transformers"))
    where = ", ".join((document["device_name"], given["model"], document["dtype"], *versions))
    ends = "texts end where the model ends them" if given["eos"] else "texts go on after their end"
    return f"{where}, commit {document['commit']}; best of {given['repeats']}, {ends}.\n"


def plain(document: Document, others: Sequence[Document]) -> str:
    """Our own, by rows; beside them others' on the same requests, our slower and our faster run against each."""
    ends = bool(document["options"]["eos"])
    measured: dict[str, dict[int, list[float]]] = {OURS: {}, "vLLM": {}, PEER: {}}
    for one in (document, *others):
        for row in one["rows"]:
            if row.get("eos", ends) == ends:
                measured[row.get("arm", "vLLM")].setdefault(row["rows"], []).append(speed(row))
    peers = [name for name in ("vLLM", PEER) if measured[name]]
    lines = []
    for row in document["rows"]:
        if row["arm"] == OURS:
            decoding = f"{row['num_tokens'] / row['decode_seconds']:,.0f}" if row["decode_seconds"] else "-"
            ours, *theirs = (measured[name].get(row["rows"], []) for name in (OURS, *peers))
            cells = [cell for one in theirs for cell in beside(ours, one)]
            lines.append([str(row["rows"]), f"{speed(row):,.0f}", decoding, told(row["verdicts"]), *cells])
    heads = [head for name in peers for head in (name, "ours against it")]
    return table(["rows", "tokens/s, whole calls", "decoding alone", "texts", *heads], lines)


def beside(ours: Sequence[float], theirs: Sequence[float]) -> list[str]:
    pairs = zip(range_of(ours), range_of(theirs)[::-1], strict=False)
    ratios = {f"{one / other:.2f}x": None for one, other in pairs}
    return [" to ".join(f"{one:,.0f}" for one in sorted(set(theirs))) or "-", " to ".join(ratios) or "-"]


def range_of(numbers: Sequence[float]) -> list[float]:
    return [min(numbers), max(numbers)] if numbers else []


def arms(document: Document) -> str:
    """Methods against plain decoding, by rows."""
    names = list(dict.fromkeys(row["arm"] for row in document["rows"]))
    found = {(row["rows"], row["arm"]): row for row in document["rows"]}
    lines = []
    for number in dict.fromkeys(row["rows"] for row in document["rows"]):
        base = speed(found[number, names[0]])
        there = [found.get((number, name)) for name in names[1:]]  # a peer that failed is not
        ratios = [f"{speed(row) / base:.2f}x" if row else "-" for row in there]
        verdicts = sum((Counter(row["verdicts"]) for row in there if row and row["arm"] != PEER), Counter[str]())
        lines.append([str(number), f"{base:,.0f}", *ratios, told(verdicts)])
    return table(["rows", f"{names[0]}, tokens/s", *names[1:], "texts"], lines)


def figures(what: str, numbers: dict[str, float]) -> str:
    shown = [f"{number:,}" if isinstance(number, int) else f"{number:,.2f}" for number in numbers.values()]
    return table([what, ""], [[name.replace("_", " "), text] for name, text in zip(numbers, shown, strict=True)])


def page(documents: Sequence[Document]) -> str:
    """A table of each; one that was measured again has one of both."""
    parts, shown = [], []
    for one in documents:
        others = [other for other in documents if other is not one and is_like(other, one)]
        if one["benchmark"] == "batches" and one["rows"] and not any(other in shown for other in others):
            is_plain = all(row["arm"] in (OURS, PEER) for row in one["rows"])
            methods = "Methods, rows kept busy" if one["options"].get("per_row") else "Methods"
            title = methods if not is_plain else "Texts that end" if one["options"]["eos"] else "Texts at a time"
            parts.append(section(title, plain(one, others) if is_plain else arms(one), one))
            shown.append(one)
        for name, title in (("stall", "A long prompt beside others"), ("queue", "A queue")):
            parts += [section(title, figures(name, one[name]), one)] if name in one else []
    return "\n".join(parts)


def section(title: str, text: str, document: Document) -> str:
    return f"## {title}\n\n{text}\n{circumstances(document)}"


def is_like(other: Document, one: Document) -> bool:
    """Whether it was measured beside it, of the same requests."""
    if other["benchmark"] == "vllm":
        return bool(other["options"]["max_new_tokens"] == one["options"]["max_new_tokens"])
    same = ("prompts", "eos", "max_new_tokens", "variant", "per_row")
    return all(other["options"].get(key) == one["options"].get(key) for key in same)


if __name__ == "__main__":
    print(page([json.loads(Path(file).read_text(encoding="utf-8")) for file in sys.argv[1:]]), end="")
