"""`selfdraft serve`: an HTTP server that OpenAI's clients can ask."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from ..engine.engine import Engine
from ..errors import MissingExtraError, OptionError
from ..models.load.catalogue import DEFAULT_MODEL
from .inputs import checked_method, load_model, read_method

KEYS = "SELFDRAFT_API_KEYS"
"""In the environment, separated by commas."""
EXTRA = 'the server needs more than the core; install it with: pip install "selfdraft[serve]"'


def run(options: argparse.Namespace) -> int:
    try:
        from ..serve.app import create_app
        from ..serve.server import Server
        from ..serve.service import Limits, Service
    except ImportError as error:
        raise MissingExtraError(f"{EXTRA} ({error})") from error
    method, keys = checked_method(read_method(options), options), read_keys(options.api_key_file)
    if not keys and options.host not in ("127.0.0.1", "::1", "localhost"):
        print("anybody who reaches this address may ask: there is no API key", file=sys.stderr)
    model, tokenizer = load_model(options, options.model)
    name = options.model or DEFAULT_MODEL
    engine = Engine(model, tokenizer, name=name, prefix_cache=options.prefix_cache, **method)
    limits = Limits(
        max_rows=options.max_rows,
        max_waiting=options.max_waiting,
        max_tokens=options.max_tokens,
        max_body=options.max_body,
        seconds=options.seconds,
        drain_seconds=options.drain_seconds,
    )
    service = Service(engine, options.name or name, limits)

    _log_requests()
    app, address = create_app(service, keys, options.origin), {"host": options.host, "port": options.port}
    server = Server(app, service.scheduler, options.drain_seconds, access_log=False, **address)
    print(f"serving {service.model} at http://{options.host}:{options.port}/v1, and a page to try it", file=sys.stderr)
    server.run()
    return 0


def _log_requests() -> None:
    log, handler = logging.getLogger("selfdraft.serve"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)


def read_keys(file: str | None) -> list[str]:
    """One on a line of the file, and those of the environment."""
    try:
        lines = Path(file).read_text("utf-8").splitlines() if file else []
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"the API keys cannot be read from {file!r}: {error}") from error
    keys = [line.strip() for line in (*lines, *os.environ.get(KEYS, "").split(",")) if line.strip()]
    if file and not keys:
        raise OptionError(f"{file!r} holds no API key; write one on each line")
    return keys
