"""docs/recipes: the dashboard asks for figures that there are, and every command is one that the server takes."""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import re
import shlex
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from pico import letter_tokenizer, pico
from selfdraft import Engine
from selfdraft.cli.main import parse
from selfdraft.serve.metrics import Metrics
from selfdraft.serve.service import Limits, Service

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "recipes.md").read_text(encoding="utf-8")
DOCKERFILE = (DOCS / "recipes" / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
UNIT = (DOCS / "recipes" / "selfdraft.service").read_text(encoding="utf-8")
DASHBOARD = json.loads((DOCS / "recipes" / "grafana.json").read_text(encoding="utf-8"))
PANELS = DASHBOARD["panels"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
GRID_COLUMNS = 24
PARTS = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}
"""Of a kind of metric, after its name."""


# ------------------------------------------------------------------------------------------------ the dashboard


@pytest.fixture(scope="module")
def metrics() -> Metrics:
    return Service(Engine(pico("llama"), letter_tokenizer(), profile=None), "pico", Limits()).metrics


def test_the_dashboard_asks_for_what_the_server_tells(metrics: Metrics) -> None:
    """Values with labels come with their first use, types at once."""
    types = re.findall(r"^# TYPE (\S+) (\w+)$", metrics.render().decode(), re.MULTILINE)
    rendered = {name + part for name, kind in types for part in PARTS[kind]}
    variables = [variable["query"]["query"] for variable in DASHBOARD["templating"]["list"][1:]]
    used = [re.findall(r"selfdraft:\w+", query) for query in (*QUERIES, *variables)]
    assert all(used)
    assert set(itertools.chain.from_iterable(used)) <= rendered


def test_the_dashboard_asks_by_labels_that_metrics_have(metrics: Metrics) -> None:
    labels = {
        name: {*one._labelnames, "le"} for one, names in metrics._registry._collector_to_names.items() for name in names
    }
    asked = [pair for query in QUERIES for pair in re.findall(r"by \((\w+)\) \(rate\((selfdraft:\w+)", query)]
    assert {label for label, _ in asked} == {"le", "position", "status", "finished_reason", "kind"}
    assert [(label, name) for label, name in asked if label not in labels[name]] == []


def test_queries_are_of_the_chosen_model_and_data_source() -> None:
    for query in QUERIES:
        assert query.count("(") == query.count(")")
        assert len(re.findall(r"selfdraft:\w+", query)) == query.count('{model_name=~"$model"}')
    source = {"type": "prometheus", "uid": "${datasource}"}
    assert all(one["datasource"] == source for panel in PANELS for one in (panel, *panel["targets"]))
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == ["datasource", "model"]


def cells_of(panel: dict[str, Any]) -> set[tuple[int, int]]:
    place = panel["gridPos"]
    assert place["x"] >= 0
    assert place["x"] + place["w"] <= GRID_COLUMNS
    columns, rows = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
    return set(itertools.product(columns, rows))


def test_panels_do_not_overlap() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS) == 13
    for one, other in itertools.combinations(PANELS, 2):
        assert not cells_of(one) & cells_of(other), (one["title"], other["title"])


# ------------------------------------------------------------------------------------------------ commands


def read_unit() -> RawConfigParser:
    parser = RawConfigParser(strict=False)
    parser.optionxform = str
    parser.read_string(UNIT)
    return parser


def docker_command() -> list[str]:
    (command,) = re.findall(r"^CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    return list(json.loads(command))


def unit_command() -> list[str]:
    program, *words = shlex.split(read_unit()["Service"]["ExecStart"])
    return [Path(program).name, *words]


def page_commands() -> list[list[str]]:
    """Wherever they stand, with what follows up to the end of the line or of the span of code."""
    return [shlex.split(command) for command in re.findall(r"selfdraft serve\b[^`\n]*(?=`|$)", PAGE, re.MULTILINE)]


def served(words: list[str]) -> argparse.Namespace:
    assert words[:2] == ["selfdraft", "serve"]
    return parse(words[1:])


def test_commands_are_those_that_the_parser_takes() -> None:
    commands = [docker_command(), unit_command(), *page_commands()]
    assert len(commands) >= 4
    for command in commands:
        assert served(command).command == "serve"


def test_options_named_alone_are_those_of_the_server() -> None:
    """What stands in backticks by itself; Docker's options are named with it, and in commands."""
    flags = {f"--{name.replace('_', '-')}" for name in vars(served(docker_command()))}
    named = set(re.findall(r"`(--[\w-]+)", PAGE)) - {"--gpus", "--build-arg"}
    comments = re.findall(r"^# .*", f"{DOCKERFILE}\n{UNIT}", re.MULTILINE)
    named |= set(re.findall(r"--[\w-]+", " ".join(comments)))
    assert named
    assert named <= flags


def test_who_stops_it_waits_for_what_was_taken() -> None:
    stop = int(read_unit()["Service"]["TimeoutStopSec"])
    assert stop > served(unit_command()).drain_seconds
    (stop_timeout,) = re.findall(r"--stop-timeout (\d+)", PAGE)
    assert int(stop_timeout) > served(docker_command()).drain_seconds


def test_the_container_is_asked_where_it_listens() -> None:
    asked = served(docker_command())
    (check,) = re.findall(r"HEALTHCHECK .*? CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    python, flag, code = json.loads(check)
    assert (python, flag) == ("python", "-c")
    ast.parse(code)
    assert f"http://127.0.0.1:{asked.port}/ready" in code
    assert f"EXPOSE {asked.port}" in DOCKERFILE
    assert f"-p 127.0.0.1:{asked.port}:{asked.port}" in PAGE
    assert asked.host == "0.0.0.0"


def test_what_is_kept_is_in_the_volume() -> None:
    (volume,) = re.findall(r"^VOLUME (\S+)$", DOCKERFILE, re.MULTILINE)
    assert f"SELFDRAFT_HOME={volume} " in DOCKERFILE
    assert f"-v selfdraft:{volume} " in PAGE
    assert f"Environment=SELFDRAFT_HOME=/var/lib/{read_unit()['Service']['StateDirectory']}\n" in UNIT
    assert re.findall(r"^USER (\S+)$", DOCKERFILE, re.MULTILINE) == ["selfdraft"]


def test_what_is_copied_into_the_image_is_there() -> None:
    for names in re.findall(r"^COPY (.+) \S+$", DOCKERFILE, re.MULTILINE):
        assert all((DOCS.parent / name).exists() for name in names.split())


# ------------------------------------------------------------------------------------------------ snippets


def test_snippets_can_be_read() -> None:
    snippets = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(snippets) == 3
    for snippet in snippets:
        ast.parse(snippet)
    bodies = re.findall(r" -d '(.*?)'$", PAGE, re.DOTALL | re.MULTILINE)
    assert len(bodies) == 3
    assert all(json.loads(body)["model"] == "smollm2-135m-instruct" for body in bodies)
