"""`selfdraft profile`: what `selfdraft calibrate` learned about models: listed, shown, drawn, checked, forgotten."""

from __future__ import annotations

import argparse
from typing import Any

from ..bench.charts import require_matplotlib
from ..errors import OptionError, ProfileError
from ..models.load.catalogue import DEFAULT_MODEL
from ..profiles.contents import DAMAGE, KnownSet, KnownSets, fit_of, read_sets, reading
from ..profiles.key import ProfileKey, installed_version
from ..profiles.profile import Artefact, Profile
from ..profiles.searches import Where, read_domains
from ..profiles.store import Entry, Store, calibrate_command
from ..strategies.timeline import read_search
from ..types import SkipSet
from . import profile_charts, terminal
from .inputs import add_command, add_model, check_output, count, load_engine, write_file
from .profile_text import SHORT, WORDS, as_text

EXAMPLES = """\
A profile belongs to a model's weights, a device, a dtype and a version of selfdraft: `show`, `plot` and `remove` load
the model to find its own.

examples:
  selfdraft profile list                                   what is known about which models
  selfdraft profile show smollm2-135m-instruct             seconds of passes, skip sets, speed-ups
  selfdraft profile show --context 4096                    predicted after a text of 4096 tokens
  selfdraft profile plot --output profile.png              the same as a picture
  selfdraft profile plot --output sets.png --set a3-9,m4 a10-20
  selfdraft profile plot --output domains.png --of knn     domains, their anchors and sets; swift: its timeline
  selfdraft profile remove smollm2-135m-instruct           forget it; `selfdraft calibrate` learns again
"""
_MAKING = {"knn": " --domain-field domain --prompts FILE", "swift": ""}
"""What has a picture of its own, and what to add to the command that makes it."""


def add_parser(commands: Any) -> None:
    text = "show what was learned about models"
    about = "Show, draw, check and forget what `selfdraft calibrate` learned about models on this device."
    parser = add_command(commands, "profile", run_list, text, about, EXAMPLES)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("list", help="every profile there is", description="List every profile there is.")
    show = _add_action(actions, "show", "seconds of passes, skip sets and their speed-ups", run_show)
    show.add_argument("--brief", action="store_true", help="some of the skip sets (default: every one)")
    drawing = "draw skip sets, what they keep and cost, and seconds; needs matplotlib"
    plot = _add_action(actions, "plot", drawing, run_plot)
    plot.add_argument("--output", metavar="FILE.png", required=True, help="where to write it")
    of = "sets: of prune and fixed; knn: domains and anchors; swift: steps and timeline (default: %(default)s)"
    plot.add_argument("--of", choices=("sets", *_MAKING), default="sets", help=of)
    sets = "these skip sets, like a3,m4-6 (default: some of the profile's)"
    plot.add_argument("--set", metavar="SET", nargs="+", default=[], help=sets)
    for one in (show, plot):
        text = "costs and speed-ups after a text of N tokens (default: %(default)s)"
        one.add_argument("--context", metavar="N", type=count, default=SHORT, help=text)
    _add_action(actions, "remove", "forget what was learned about a model on this device", run_remove)


def _add_action(actions: Any, name: str, text: str, run: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    add_model(parser)
    parser.set_defaults(run=run)
    return parser


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
    """Every set, the cheapest last."""
    frontier = {one.skip for one in learned.frontier}
    sets = [*learned.frontier, *(one for one in learned.tried if one.skip not in frontier)]
    header = f"every skip set, after {learned.costs.num_context} tokens (cost: of a drafted token, plain pass = 1)"
    columns = "    match   cost  tokens  predicted  measured  skip set"
    rows = [_set_row(one, one.skip == learned.chosen) for one in sorted(sets, key=lambda one: -one.cost)]
    return "\n".join([header, columns, *rows])


def _set_row(one: KnownSet, is_chosen: bool) -> str:
    measured = "-" if one.measured is None else f"{one.measured:.2f}x"
    figures = f"{one.match:6.1%}  {one.cost:5.2f}  {one.num_drafted:6}  {one.predicted:8.2f}x  {measured:>8}"
    return f"{' *' if is_chosen else '  '} {figures}  {one.skip}"
