"""`selfdraft profile`: what `selfdraft calibrate` learned about models: listed, shown, drawn, checked, forgotten."""

from __future__ import annotations

import argparse
from typing import Any

from ..bench.charts import require_matplotlib
from ..errors import OptionError, ProfileError
from ..models.load.catalogue import DEFAULT_MODEL
from ..profiles.contents import DAMAGE, KnownSets, fit_of, read_sets, reading
from ..profiles.key import ProfileKey, installed_version
from ..profiles.profile import Artefact, Profile
from ..profiles.searches import Where, read_domains
from ..profiles.store import Entry, Store, calibrate_command
from ..strategies.timeline import read_search
from ..types import SkipSet
from . import profile_charts, terminal
from .inputs import check_output, load_engine, write_file
from .profile_text import WORDS, as_text

_MAKING = {"knn": " --domain-field domain --prompts FILE", "swift": ""}
"""What has a picture of its own, and what to add to the command that makes it."""


# ------------------------------------------------------------------------------------------------ list


def run_list(options: argparse.Namespace) -> int:
    store = Store()
    entries = store.entries()
    nothing = f"no profiles in {store.folder} yet. Make one with: selfdraft calibrate {DEFAULT_MODEL}"
    print("\n\n".join(map(_entry_text, entries)) or nothing)
    return 0


def _entry_text(entry: Entry) -> str:
    profile = entry.profile
    if profile is None:
        return str(entry.problem or f"{entry.path} is gone")
    key = profile.key
    known = [] if profile.latency is None else ["latency"]
    known += [_known_text(name, artefact) for name, artefact in sorted(profile.artefacts.items())]
    when, here = profile.updated.replace("T", " ").removesuffix("+00:00"), installed_version("selfdraft")
    version = key.version if key.version == here else f"{key.version} (not used: this is {here})"
    rows = {
        "knows": ", ".join(known) or "nothing yet",
        "updated": f"{when} UTC by selfdraft {version}",
        "file": str(entry.path),
    }
    lines = [f"  {label:9}{value}" for label, value in rows.items()]
    return "\n".join([f"{key.name} on {key.device}, {key.dtype}", *lines])


def _known_text(name: str, artefact: Artefact) -> str:
    frontier, trials = (artefact.values.get(kept, []) for kept in ("frontier", "trials"))
    if not isinstance(frontier, list) or not isinstance(trials, list):
        return f"{name} (damaged)"
    try:
        words = [WORDS[name](artefact.values)] if name in WORDS else []
    except DAMAGE:
        return f"{name} (damaged)"
    num_sets = sum(isinstance(point, dict) and bool(point.get("skip")) for point in frontier)  # the first skips nothing
    counted = ((num_sets, "skip set"), (len(trials), "trial"))
    told = [*words, *(terminal.number(amount, noun) for amount, noun in counted if amount)]
    return f"{name} ({', '.join(told)})" if told else name


# ------------------------------------------------------------------------------------------------ of one model


def run_show(options: argparse.Namespace) -> int:
    profile, num_layers = _load(options)
    print(as_text(profile, num_layers))
    if profile.latency is not None:
        learned = read_sets(profile, num_layers, options.context)
        print(f"\n{_choice_text(learned)}")
        if not options.brief:
            print(f"\n{_sets_text(learned)}")
    print(f"\nfile: {Store().path_of(profile.key)}")
    return 0


def run_plot(options: argparse.Namespace) -> int:
    require_matplotlib("a profile", "read it as text with: selfdraft profile show")
    check_output(options.output)
    asked = [SkipSet.parse(text) for text in options.set]
    if asked and options.of != "sets":
        raise OptionError(f"--set names what `--of sets` draws; `--of {options.of}` draws its own sets: leave one out")
    profile, num_layers = _load(options)
    if options.of == "sets":
        learned = read_sets(profile, num_layers, options.context)
        drawn = profile_charts.sets_picture(learned, _title(profile), asked)
    elif options.of == "knn":
        drawn = _knn_picture(profile, num_layers, options.context)
    else:
        drawn = _swift_picture(profile, num_layers)
    write_file(options.output, drawn)
    print(options.output)
    return 0


def _knn_picture(profile: Profile, num_layers: int, num_context: int) -> bytes:
    content, command = _learned(profile, "knn")
    where = Where(fit_of(profile, num_layers), num_layers, num_context)
    with reading("domains of `knn`", command):
        found, clouds = read_domains(content, where), profile_charts.read_clouds(content)
    return profile_charts.knn_picture(found, clouds, num_layers, _title(profile))


def _swift_picture(profile: Profile, num_layers: int) -> bytes:
    content, command = _learned(profile, "swift")
    with reading("steps of `swift`", command):
        found = read_search(content)
        found.check(num_layers)
    return profile_charts.swift_picture(found, num_layers, _title(profile))


def _learned(profile: Profile, name: str) -> tuple[dict[str, Any], str]:
    """What the profile has of a strategy, and the command that makes it."""
    command = f"{calibrate_command(profile.key)} --strategy {name}{_MAKING[name]}"
    if name not in profile.artefacts:
        raise ProfileError(f"the profile of {profile.key.name} has nothing of `{name}` yet. Make it with: {command}")
    return profile.artefacts[name].content, command


def _title(profile: Profile) -> str:
    key = profile.key
    return f"{key.name}, {key.dtype}, {key.device}"


def run_remove(options: argparse.Namespace) -> int:
    key = _key(options)[0]
    is_removed = Store().remove(key)
    where = f"{key.name} on {key.device}, {key.dtype}"
    print(f"forgotten: {where}" if is_removed else f"nothing was known about {where}")
    return 0


def _load(options: argparse.Namespace) -> tuple[Profile, int]:
    key, num_layers = _key(options)
    profile = Store().load(key)
    if profile is None:
        where = f"{key.name} on this device ({key.device}, {key.dtype})"
        raise ProfileError(f"nothing has been learned about {where} yet. Run: {calibrate_command(key)}")
    return profile, num_layers


def _key(options: argparse.Namespace) -> tuple[ProfileKey, int]:
    """Whose profile is asked for, and the number of layers."""
    engine = load_engine(options, strategy="off", graphs=False)
    return engine.knowledge.key, engine.runner.num_layers


def _choice_text(learned: KnownSets) -> str:
    where = f"after a text of {learned.costs.num_context} tokens"
    if not learned.frontier:
        return f"no skip sets yet: selfdraft calibrate --strategy prune finds them ({where} passes are as above)"
    if not learned.chosen:
        return f"{where} prune decodes plainly: no skip set promises more"
    one = learned.find(learned.chosen)
    return f"{where} prune drafts without {one.skip}: predicted {one.predicted:.2f}x, {one.num_drafted} tokens a round"


def _sets_text(learned: KnownSets) -> str:
    """Every set, the cheapest last. What was tried is not here: it stands with what is predicted of the same texts."""
    frontier = {one.skip for one in learned.frontier}
    sets = [*learned.frontier, *(one for one in learned.tried if one.skip not in frontier)]
    lines = [f"every skip set, after {learned.costs.num_context} tokens (cost: of a drafted token, plain pass = 1)"]
    lines.append("    match   cost  tokens  predicted  skip set")
    for one in sorted(sets, key=lambda one: -one.cost):
        figures = f"{one.match:6.1%}  {one.cost:5.2f}  {one.num_drafted:6}  {one.predicted:8.2f}x"
        lines.append(f"{' *' if one.skip == learned.chosen else '  '} {figures}  {one.skip}")
    return "\n".join(lines)
