"""A document of the search benchmark as Markdown. Nothing is computed here that the document does not say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..report import Table, markdown_table, number, times, verdicts
from ..ways import OFF
from .report_knn import knn_tables
from .run import EQUAL, KNN, SWIFT, ways_of
from .tables import FIGURES, cells, interval

Document = Mapping[str, Any]

_TITLES = {
    "A": "the same for all (lookahead confidence 0.8, a chain)",
    "B": "each with its own pairing (measured apart where marked, else as above)",
}
_MORE = ("drafting rounds", "accepted", "length", "recording s")
_STEPS = {
    "prune": "sub-layers dropped",
    "draft-verify": "sets tried",
    "swift": "steps",
    "knn": "sub-layers dropped, all domains and the general set",
}


def as_markdown(document: dict[str, Any]) -> str:
    parts = [heading(document)]
    if document[SWIFT]:
        parts += _swift(document[SWIFT])
    if document[KNN]:
        parts += ["## `knn` on several domains", *_lessons(document[KNN]["lessons"]), *knn_tables(document[KNN])]
    if document[EQUAL]:
        parts += _equal(document[EQUAL])
    return "\n\n".join([*parts, "\n".join(f"* {note}" for note in notes(document))])


def heading(document: Document) -> str:
    commit = f", commit {document['commit']}" if document.get("commit") else ""
    prompts, options = document["prompts"], document["options"]
    apart = ", ".join(f"{domain} {count}" for domain, count in prompts["kept_apart"].items())
    left_out = ", ".join(f"{domain} {count}" for domain, count in prompts["left_out"].items())
    limit = f"; longer than {options['max_prompt_chars']} characters and left out: {left_out}" if left_out else ""
    learned = f"; learned from {apart} other prompts" if apart else ""
    return (
        f"{document['model']} ({document['num_layers']} layers), {document['dtype']}, {document['device_name']}, "
        f"{document['threads']} threads; greedy, one text at a time, up to {options['max_new_tokens']} new "
        f"tokens{learned}{limit}; selfdraft {document['selfdraft']}{commit}, torch {document['torch']}, transformers "
        f"{document['transformers']}, {document['date'][:10]}."
    )


# ----------------------------------------------------------------------------------------------------------- swift


def _swift(found: Mapping[str, Any]) -> list[str]:
    """Speed first, then what the search came to, then where the time goes."""
    last = next(row["last"]["num_prompts"] for row in found["ways"])
    first = next(row["first"]["num_prompts"] for row in found["ways"])
    return [
        f"## `swift` on a stream of {found['num_prompts']} prompts of {found['domain']}",
        "Every way decodes every prompt in turn with off; a strategy lives through the whole stream. In brackets: 95 % "
        "of what other prompts like these would give.",
        _swift_speeds(found, first, last),
        "Where the search ended. Matchness is its own account: of the paper's on the tokens it searched with, of ours "
        "on tokens held out from the search, sets before the last one included. Held out is the match of the "
        f"last set on the model's texts behind {(found['held_out'] or {}).get('num_texts', 0)} prompts that are not in "
        "the stream. Uniform never searches.",
        _swift_ends(found),
        "Where decoding spends its time.",
        _swift_split(found),
    ]


def _swift_speeds(found: Mapping[str, Any], first: int, last: int) -> str:
    header = ["way", "speed-up", f"first {first}", f"last {last}", *_MORE, "outputs"]
    rows = [
        [
            row["name"],
            interval(row["interval"]),
            interval(row["first"]),
            interval(row["last"]),
            number(row["total"]["drafting_share"], ".0%"),
            number(row["total"]["acceptance_rate"], ".1%"),
            number(row["total"]["mean_generated_length"], ".2f"),
            number(row["total"]["capture_seconds"], ".2f"),
            verdicts(row["total"]),
        ]
        for row in found["ways"]
    ]
    return markdown_table(Table("speed", header, rows))


def _swift_ends(found: Mapping[str, Any]) -> str:
    header = ["way", "phase", "steps", "ratio", "matchness", "held out", "sub-layers skipped"]
    held_out = found["held_out"] or {"match": {}, "skip": {}}
    rows = []
    for row in found["ways"]:
        name, state = row["name"], found["states"].get(row["name"], {})
        skip = state.get("skip") or held_out["skip"].get(name)
        if name != OFF:
            rows.append(
                [
                    name,
                    state.get("phase") or "-",
                    number(state.get("step"), "d"),
                    number(state.get("ratio"), ".2f"),
                    number(state.get("matchness"), ".3f"),
                    number(held_out["match"].get(name), ".3f"),
                    f"`{skip}`" if skip else "-",
                ]
            )
    return markdown_table(Table("ends", header, rows))


def _swift_split(found: Mapping[str, Any]) -> str:
    names = ("optimise", "draft", "verify", "other")
    rows = [[row["name"], *(number(row["split"][name], ".1%") for name in names)] for row in found["ways"]]
    return markdown_table(Table("split", ["way", *names], rows))


# ------------------------------------------------------------------------------------------------------ equal time


def _lessons(lessons: Mapping[str, Mapping[str, Any]]) -> list[str]:
    header = ["learned", "seconds", "allowed", "prompts", "steps", "what is a step", "ended"]
    rows = [
        [
            name,
            number(facts["seconds"], ".1f"),
            number(facts["allowed_seconds"], "g"),
            str(facts["num_prompts"]),
            number(facts["num_steps"], "d"),
            _STEPS.get(facts["strategy"], "-"),
            _end(facts),
        ]
        for name, facts in lessons.items()
    ]
    text = "What was learned beforehand, texts included, the seconds of passes not; on prompts that are not measured."
    return [text, markdown_table(Table("learned", header, rows))] if rows else []


def _end(facts: Mapping[str, Any]) -> str:
    if facts["error"]:
        return f"nothing learned: {facts['error']}"
    return ("by itself" if facts["is_complete"] else "time was up") + (", read" if facts["is_known"] else "")


def _equal(found: Mapping[str, Any]) -> list[str]:
    parts = [f"## At equal calibration time: {found['seconds']:g} s each", *_lessons(found["lessons"])]
    if not found["ways"]:
        return parts
    ways = {row["name"]: row for row in found["ways"]}
    for letter, title in _TITLES.items():
        rows = {label: name for label, name in {OFF: OFF, **found["tables"][letter]}.items() if name in ways}
        shown = [[name, _learned_seconds(found, label), *cells(ways[name])] for label, name in rows.items()]
        header = [f"{found['num_prompts']} prompts", "calibration s", *(title for title, _, _ in FIGURES), "outputs"]
        parts += [f"The choice of sub-layers, {title}.", markdown_table(Table(letter, header, shown))]
    return parts


def _learned_seconds(found: Mapping[str, Any], label: str) -> str:
    facts = found["lessons"].get(label)
    return number(facts["seconds"], ".1f") if facts else "0"


def notes(document: dict[str, Any]) -> Iterator[str]:
    yield (
        "speed-up is total tokens over total seconds of decoding, against off on the same prompts in the same run; "
        "planning, searching and recording graphs are part of decoding; accepted: of the drafted tokens; length: "
        "tokens a target pass emits"
    )
    rows: Sequence[Mapping[str, Any]] = ways_of(document)
    controls = [row["total"]["control"] for row in rows if row["total"]["control"] and row["name"] != OFF]
    if controls:
        yield (
            f"how far to trust the speed-ups: ways that never drafted did what off did, and were measured at "
            f"{times(min(controls))} to {times(max(controls))} without their planning"
        )
    for row in rows:
        for item in row["differences"]:
            gap = "one text ends earlier" if item["gap"] is None else f"gap {item['gap']:.2g}"
            where = f"{item['id']} ({item['domain']}) from token {item['first_difference']} on"
            yield f"{row['name']}: {item['verdict']} in {where}, {gap}"
    for part, error in document["errors"].items():
        yield f"the part {part} failed: {error}"
    if not document["is_complete"]:
        yield "cut short: only the prompts counted above were measured"
