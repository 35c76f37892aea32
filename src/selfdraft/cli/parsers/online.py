"""The parsers of `serve` and `chat`."""

from __future__ import annotations

from typing import Any

from .arguments import add_command, add_generate_options, add_method_options, add_model, count, seconds
from .use import SHAPING

SERVE = """\
Clients of OpenAI's interface ask it at http://HOST:PORT/v1; a page to try it is
at /, its own description at /docs, figures for Prometheus at /metrics. All
texts are decoded together; each is what it would be alone. API keys stand one
on a line of a file, or in SELFDRAFT_API_KEYS with commas between; without any,
everybody who reaches the address may ask. Ctrl-C or SIGTERM: what was taken is
answered.

examples:
  selfdraft serve
  selfdraft serve --model Qwen/Qwen2.5-1.5B-Instruct --port 9000
  selfdraft serve --host 0.0.0.0 --api-key-file keys.txt
  curl localhost:8000/v1/models
"""


def add_serve(commands: Any) -> None:
    text, about = "answer requests over HTTP", "Answer OpenAI's clients over HTTP. Each text is what it would be alone."
    parser = add_command(commands, "serve", text, about, SERVE)
    add = parser.add_argument
    add_model(parser, "--model", nargs=None)
    add("--name", help="by which it is asked for (default: as --model)")
    add("--host", default="127.0.0.1", help="the address to listen at (default: 127.0.0.1, this machine alone)")
    add("--port", type=count, default=8000, help="(default: 8000)")
    add("--api-key-file", metavar="FILE", help="one of its lines must be sent")
    add("--origin", action="append", default=[], metavar="URL", help="a page from there may ask; repeatable")
    add("--max-rows", type=count, default=64, metavar="N", help="texts decoded at a time (default: 64)")
    add("--max-waiting", type=count, default=256, metavar="N", help="requests that may wait for it (default: 256)")
    add("--max-tokens", type=count, default=4096, metavar="N", help="of one text (default: 4096)")
    add("--max-body", type=count, default=4 * 2**20, metavar="BYTES", help="of one request (default: 4 MiB)")
    cache = "that what prompts begin with alike may take; 0: none (default: a tenth of what is free, at most 4096 MiB)"
    add("--prefix-cache", type=int, default=True, metavar="BYTES", help=cache)
    add("--seconds", type=seconds, metavar="N", help="for one request, waiting included (default: no limit)")
    add("--drain-seconds", type=seconds, default=30.0, metavar="N", help="to answer what was taken (default: 30)")
    add_method_options(parser)


CHAT = """\
What was said is read once, not again in every turn. /help, typed there, lists
commands: forget, keep, explain, another strategy. Ctrl-C stops an answer,
Ctrl-D leaves.

examples:
  selfdraft chat
  selfdraft chat --system "You are a pirate." --temperature 0.7
  selfdraft chat --messages saved.json
"""


def add_chat(commands: Any) -> None:
    text, about = "talk to a model", "Talk to a model on the terminal. Drafting on or off, it says the same."
    parser = add_command(commands, "chat", text, about, CHAT)
    add, colors = parser.add_argument, ("auto", "always", "never")
    add_model(parser, "--model", nargs=None)
    add("--system", metavar="TEXT", help="a system message before all others")
    add("--messages", metavar="FILE", help="go on with what /save wrote: a JSON list of {role, content}")
    add("--color", choices=colors, metavar="WHEN", default="auto", help=", ".join(colors))
    add_method_options(parser)
    group = add_generate_options(parser, "generation", lambda name: name in SHAPING and name not in ("stop",))
    group.add_argument("--stop", action="append", default=[], help="end before this string; repeatable")
