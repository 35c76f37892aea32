"""`selfdraft --completion SHELL`: what makes a shell complete commands, flags and values, made from the parsers."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping

BASH = """\
# selfdraft: eval "$(selfdraft --completion bash)"
_selfdraft() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" command="${{COMP_WORDS[1]}}" at=$((COMP_CWORD - 1)) words="" flags=""
    while [ "$at" -gt 1 ] && [[ "${{COMP_WORDS[at]}}" != --* ]]; do at=$((at - 1)); done
    local after=$((COMP_CWORD - at))
    if [ "$after" -eq 2 ] && [ "${{COMP_WORDS[at + 1]}}" = "=" ]; then after=1; fi
    if [ "$word" = "=" ]; then word=""; fi
    case "$command" in
{commands}
    esac
    case "$command ${{COMP_WORDS[at]}} $after" in
{values}
    esac
    if [ "$COMP_CWORD" -eq 1 ]; then words="{first}"; fi
    if [ -z "$words" ] || [[ "$word" == -* ]]; then words="$words $flags"; fi
    COMPREPLY=( $(compgen -W "$words" -- "$word") )
    [ "${{#COMPREPLY[@]}}" -gt 0 ] || COMPREPLY=( $(compgen -f -- "$word") )
}}
complete -o filenames -F _selfdraft selfdraft"""
"""`at`: where the flag is that the word may be a value of; `after`: how far after it."""
ZSH = """\
# selfdraft: eval "$(selfdraft --completion zsh)"
(( $+functions[compdef] )) || {{ autoload -U compinit && compinit }}
autoload -U +X bashcompinit && bashcompinit
{bash}"""
NO_FLAGS = {
    "+": '[[ "$word" == -* ]] && [ "$after" -gt 1 ] || flags=""',
    "?": '[[ "$word" == -* ]] || flags=""',
}
"""By the number of values that a flag takes: when no other flag may follow; of one value it is never."""
Commands = Mapping[str, list[argparse.Action]]


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    commands: dict[str, list[argparse.Action]] = {}
    for name, command in _inner(parser).items():  # what has a second word (`bench passes`) is offered after the first
        commands.setdefault(name.split()[0], []).extend(_actions(command))
    top = [one for one in parser._actions if one.option_strings]
    if shell == "fish":
        return "\n".join(["# selfdraft: selfdraft --completion fish | source", *_fish({"": top, **commands})])
    rows = (f"    {name}) flags='{_flags(one)}' words='{_positionals(one)}';;" for name, one in commands.items())
    values, first = _values({"--*": top, **commands}), f"{' '.join(commands)} {_flags(top)}"
    bash = BASH.format(commands="\n".join(rows), values="\n".join(values), first=first)
    return bash if shell == "bash" else ZSH.format(bash=bash)


def _values(commands: Commands) -> Iterator[str]:
    """What follows which flags; `profile`'s actions follow the command."""
    rows: dict[str, list[str]] = {}
    for name, actions in commands.items():
        for one in actions:
            if isinstance(one, argparse._SubParsersAction):
                rows.setdefault(f"words='{_words(one)}'", []).append(f'{name}" {name} "1')
            elif one.option_strings and one.nargs != 0:
                found = f"words='{_words(one)}'; {NO_FLAGS.get(str(one.nargs), 'flags=')}"
                rows.setdefault(found, []).append(f'{name}" {one.option_strings[-1]} "{"*" if one.nargs == "+" else 1}')
    return (f"    {'|'.join(patterns)}) {row};;" for row, patterns in rows.items())


def _fish(commands: Commands) -> Iterator[str]:
    for name, actions in commands.items():
        asked = f"'__fish_seen_subcommand_from {name}'" if name else "__fish_use_subcommand"
        begin = f"complete -c selfdraft -n {asked}"
        known = _positionals(actions) if name else " ".join(commands)
        yield f"{begin} -a '{known}'"
        for one in actions:
            value = "" if one.nargs == 0 else f" -x -a '{_words(one)}'" if _words(one) else " -r"
            for flag in one.option_strings:
                if flag.startswith("--"):
                    yield f"{begin} -l {flag[2:]}{value} -d {_quoted(one.help)}"


def _actions(command: argparse.ArgumentParser) -> list[argparse.Action]:
    """Also those of `profile show` and the like."""
    return [one for parser in (command, *_inner(command).values()) for one in parser._actions]


def _inner(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = [one.choices for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    return dict(found[0]) if found else {}


def _flags(actions: Iterable[argparse.Action]) -> str:
    return " ".join(dict.fromkeys(flag for one in actions for flag in one.option_strings if flag[:2] == "--"))


def _positionals(actions: Iterable[argparse.Action]) -> str:
    return " ".join(dict.fromkeys(_words(one) for one in actions if not one.option_strings)).strip()


def _words(action: argparse.Action) -> str:
    return " ".join(getattr(action, "completes", None) or action.choices or ())


def _quoted(text: str | None) -> str:
    first = " ".join((text or "").split()).partition(". ")[0].replace("%%", "%")
    return "'" + first.replace("\\", "").replace("'", "\\'") + "'"
