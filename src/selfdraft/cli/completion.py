"""`selfdraft --completion SHELL`: what makes a shell complete commands and flags, made from the parsers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

BASH = """\
# selfdraft: eval "$(selfdraft --completion bash)"
_selfdraft() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" command="${{COMP_WORDS[1]}}" words=""
    if [ "$COMP_CWORD" -eq 1 ]; then words="{commands}"; else case "$command" in
{cases}
    esac; fi
    COMPREPLY=( $(compgen -W "$words" -- "$word") )
    [ "${{#COMPREPLY[@]}}" -gt 0 ] || COMPREPLY=( $(compgen -f -- "$word") )
}}
complete -o filenames -F _selfdraft selfdraft"""


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    if shell == "fish":
        return "\n".join(["# selfdraft: selfdraft --completion fish | source", *_fish(parser)])
    cases = [f'        {name}) words="{" ".join(_words(command))}";;' for name, command in _commands(parser).items()]
    bash = BASH.format(commands=" ".join([*_commands(parser), *_flags(parser)]), cases="\n".join(cases))
    if shell == "bash":
        return bash
    return "\n".join(
        ['# selfdraft: eval "$(selfdraft --completion zsh)"', "autoload -U +X bashcompinit && bashcompinit", bash]
    )


def _fish(parser: argparse.ArgumentParser) -> Iterator[str]:
    for name, command in _commands(parser).items():
        yield f"complete -c selfdraft -n __fish_use_subcommand -a {name} -d {_quoted(command.description)}"
        for one in command._actions:
            for flag in one.option_strings:
                if flag.startswith("--"):
                    asked = f"'__fish_seen_subcommand_from {name}'"
                    yield f"complete -c selfdraft -n {asked} -l {flag[2:]} -d {_quoted(one.help)}"
        for word in _commands(command):
            yield f"complete -c selfdraft -n '__fish_seen_subcommand_from {name}' -a {word}"


def _words(command: argparse.ArgumentParser) -> list[str]:
    """Its actions (`profile show`), then flags of all of them."""
    actions = _commands(command)
    return [*actions, *dict.fromkeys(flag for one in (command, *actions.values()) for flag in _flags(one))]


def _flags(parser: argparse.ArgumentParser) -> list[str]:
    return [flag for one in parser._actions for flag in one.option_strings if flag.startswith("--")]


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = [one.choices for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    return dict(found[0]) if found else {}


def _quoted(text: str | None) -> str:
    first = " ".join((text or "").split()).partition(". ")[0].replace("%%", "%")
    return "'" + first.replace("\\", "").replace("'", "\\'") + "'"
