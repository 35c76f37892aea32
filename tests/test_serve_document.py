"""Requests made up from the server's own OpenAPI document, valid and not: what comes back is what it describes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

pytest.importorskip("fastapi")
from selfdraft.serve.service import Limits, Service
from test_serve import new_engine, serving

schemathesis = pytest.importorskip("schemathesis")
pytestmark = pytest.mark.full
MODEL = "pico"


@pytest.fixture(scope="module")
def document() -> Iterator[Any]:
    with serving(Service(new_engine(), MODEL, Limits(max_rows=6, max_tokens=12, max_body=200_000))) as url:
        yield schemathesis.openapi.from_url(f"{url}/openapi.json")


operations = schemathesis.pytest.from_fixture("document")


@operations.parametrize()
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
def test_answers_are_as_described(case: Any) -> None:
    """No 5xx, no status or body that the document does not have; what no schema can say may be refused."""
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        case.body["model"] = MODEL  # another one is a 404, and nothing else would be looked at
    allowed = [schemathesis.checks.positive_data_acceptance]
    case.call_and_validate(timeout=30, excluded_checks=allowed)
