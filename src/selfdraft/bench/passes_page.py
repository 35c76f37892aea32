"""What passes of published shapes cost, as tables: on the terminal, or as a page with what papers' figures predict."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .papers.predicted import LEFT_OUT, predictions
from .shapes.results import ShapeLine, ShapesHead
from .tables import WIDTH, Table, markdown_table, number, size, text_table, times, title

WIDTHS = ("2", "4", "8", "16", "32")
LEGEND = (
    "ms: one token of plain decoding; floor: the share of it that reading the weights once takes, at the speed of a "
    "large copy; 2 to 32: a pass of as many tokens, against one; a third, half: a drafted token with that share of the "
    "sub-layers skipped, against one of plain decoding, and the share of the weights that it reads; new set: the first "
    "pass of a skip set that was not seen before, less the next one; peers: ms a token, and how many times as long"
)
PREDICTED = (
    "**Predicted, not measured**: with M tokens a round and a share alpha of drafted tokens accepted, as the paper "
    "published them, a round takes (M - 1) / alpha draft passes and one verification, at the costs of the tables above "
    "(a draft skips the paper's share r of the sub-layers, evenly; a verification is of the drafted tokens and one "
    "more). Speed-up: M plain tokens over that. What a method does beside its passes is not in it, and of trees only "
    "the path: `32 wide` is the same with a verification of 32 tokens. c: a draft pass over a plain token."
)
Run = tuple[ShapesHead, Sequence[ShapeLine]]


def joined(runs: Sequence[Run]) -> list[ShapeLine]:
    """One line for each shape of these files; peers may stand in a file of their own."""
    lines: dict[str, ShapeLine] = {}
    for line in (line for _, own in runs for line in own):
        known = lines.get(line.name, ShapeLine(line.name))
        figures, peers = {**known.figures, **line.figures}, {**known.peers, **line.peers}
        lines[line.name] = ShapeLine(line.name, figures, peers, known.missing or line.missing)
    return list(lines.values())


def tables(lines: Sequence[ShapeLine]) -> list[Table]:
    found = [(line, line.figures) for line in lines if line.figures]
    peers = list(dict.fromkeys(peer for line in lines for peer in line.peers))
    drafts = list(dict.fromkeys(share for _, figures in found for share in figures["drafts"]))
    passes = ["shape", "ms", "floor", *WIDTHS, *drafts, "new set", *peers]
    memory = ["shape", "parameters", "weights", "made", "attached", "timed", "made in", "attached in"]
    made = [
        Table("passes", passes, [_passes(line, drafts, peers) for line, _ in found]),
        Table("memory", memory, [_memory(line.name, figures) for line, figures in found]),
    ]
    return [table for table in made if table.rows]


def _passes(line: ShapeLine, drafts: Sequence[str], peers: Sequence[str]) -> list[str]:
    figures = line.figures
    widths: Mapping[str, float] = figures["width_seconds"]
    plain = widths["1"]
    wider = [times(widths[width] / plain) if width in widths else "-" for width in WIDTHS]
    shares = [figures["drafts"][share] for share in drafts]
    skipped = [f"{one['seconds'] / plain:.2f} ({one['weights_left']:.2f})" for one in shares]
    new_set = figures.get("record_seconds")
    return [
        *(line.name, f"{1000 * plain:.3f}", f"{figures['floor_seconds'] / plain:.1%}", *wider, *skipped),
        "-" if new_set is None else f"{1000 * new_set:.0f} ms",
        *(_peer(line.peers.get(peer), plain) for peer in peers),
    ]


def _peer(found: float | str | None, plain: float) -> str:
    return f"{1000 * found:.3f} ({times(found / plain)})" if isinstance(found, float) else "-"


def _memory(name: str, figures: Mapping[str, Any]) -> list[str]:
    peaks = (size(figures.get(f"{stage}peak_bytes")) for stage in ("make_", "attach_", ""))
    seconds = (f"{number(figures.get(f'{stage}_seconds'), '.1f')} s" for stage in ("make", "attach"))
    return [name, f"{figures['num_parameters'] / 1e9:.2f}B", size(figures["weight_bytes"]), *peaks, *seconds]


def notes(runs: Sequence[Run], lines: Sequence[ShapeLine]) -> Iterator[str]:
    contexts = sorted({line.figures["context"] for line in lines if line.figures})
    if contexts:
        yield f"random weights, passes after {' or '.join(map(str, contexts))} tokens; memory: the most meanwhile"
    for line in lines:
        if line.missing:
            yield f"{line.name} was left out: {line.missing}"
        if reason := line.figures.get("slow_path"):
            yield f"{line.name} does not take the fast path: {reason}"
        yield from (f"{line.name}, {peer}: {error}" for peer, error in line.peers.items() if isinstance(error, str))
    for head, _ in runs:
        facts = {**head.circumstances, **head.question}
        known = ("selfdraft", "commit", "torch", "transformers", "vllm")
        versions = ", ".join(f"{name} {facts[name]}" for name in known if facts.get(name))
        yield f"{title(facts)}: measured with {versions}; {str(facts.get('date', ''))[:10]}"


def as_text(runs: Sequence[Run]) -> str:
    lines = joined(runs)
    below = "\n".join(textwrap.fill(text, WIDTH, subsequent_indent="  ") for text in (*notes(runs, lines), LEGEND))
    return "\n\n".join([*map(text_table, tables(lines)), below])


def as_markdown(runs: Sequence[Run]) -> str:
    """With what follows from the papers' figures, where a shape of theirs was measured."""
    lines = joined(runs)
    below = "\n".join(f"- {note}" for note in (*notes(runs, lines), LEGEND))
    parts = [*map(markdown_table, tables(lines)), below]
    predicted = predictions({line.name: line.figures for line in lines if line.figures})
    if predicted.rows:
        left_out = "\n".join(f"- left out: {reason}" for reason in LEFT_OUT)
        parts += ["## Predicted from the papers' figures", PREDICTED, markdown_table(predicted), left_out]
    return "\n\n".join(parts)
