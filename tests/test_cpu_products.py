"""Products of torch's own on a CPU: what is chosen, what is packed, how much memory that takes, and that texts stay."""

from __future__ import annotations

import copy
import gc
import json
import logging
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from cases import SETTINGS
from pico import pico
from selfdraft import Engine
from selfdraft.models import eager
from selfdraft.models.cpu import products
from selfdraft.models.cpu.clock import remembered
from selfdraft.models.cpu.products import LINEAR, PACKED, SEPARATE, WIDTHS, Products, can_pack, measure, methods_of
from selfdraft.models.load.info import describe

FLOAT = torch.ones(1, 1)
can_be_packed = pytest.mark.skipif(not can_pack(FLOAT), reason="this torch has no packed products")
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [5, 6, 5, 6, 5], [9]]
METHODS: list[dict[str, Any]] = [
    {"strategy": "uniform"},
    {"strategy": "fixed", "drafter": "lookup", "tree": "siblings"},
    {"strategy": "early-exit"},
    {"strategy": "uniform", "acceptance": "rejection"},
]
MODES: dict[str, dict[str, Any]] = {"greedy": {}, "sampled": {"temperature": 0.8, "seed": 3}}


def all_of(method: str) -> Any:
    return lambda weight: (LINEAR, *[method] * (len(WIDTHS) - 1))


def engine_of(monkeypatch: pytest.MonkeyPatch, method: str, family: str = "llama", **options: Any) -> Engine:
    """No compiler, and this method wherever there are several tokens."""
    monkeypatch.setattr(eager, "library", lambda: None)
    monkeypatch.setattr(products, "methods_of", all_of(method))
    return Engine(copy.deepcopy(pico(family)), settings=SETTINGS, profile=None, **options)


def bytes_of(engine: Engine) -> int:
    return engine.generate(PROMPTS[0], max_new_tokens=2).stats.packed_bytes


@pytest.mark.parametrize("method", [LINEAR, pytest.param(PACKED, marks=can_be_packed), SEPARATE])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 2, 4, 33])
def test_a_product_is_what_it_is(method: str, dtype: torch.dtype, width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    weight, bias, hidden = (
        torch.randn(*size, generator=generator).to(dtype) for size in ((24, 40), (24,), (2, width, 40))
    )
    if method == PACKED and not can_pack(weight):
        pytest.skip("not in this dtype")
    multiply = Products()
    multiply.prepare([weight], all_of(method))
    expected = F.linear(hidden.double(), weight.double(), bias.double())
    tolerance = 1e-5 if dtype == torch.float32 else 0.1
    torch.testing.assert_close(multiply(hidden, weight, bias).double(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(multiply(hidden, weight, None).double(), expected - bias, rtol=tolerance, atol=tolerance)
    assert (multiply.packed_bytes > 0) is (method == PACKED)


@can_be_packed
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3"])
def test_texts_are_the_same_with_packed_weights_on_and_off(
    family: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = engine_of(monkeypatch, PACKED, family)
    bare = engine_of(monkeypatch, PACKED, family, packed_weights=False)
    assert bytes_of(packed) > bytes_of(bare) == 0
    expected = [one.tokens for one in bare.generate(PROMPTS, strategy="off", max_new_tokens=16, **MODES[mode])]
    for method in METHODS:
        if "acceptance" in method and MODES[mode]:
            continue  # its text hangs on its drafts
        for engine in (packed, bare):
            found = engine.generate(PROMPTS, max_new_tokens=16, **method, **MODES[mode])
            assert [one.tokens for one in found] == expected
            assert engine.generate(PROMPTS[0], max_new_tokens=16, **method, **MODES[mode]).tokens == expected[0]


@can_be_packed
def test_the_head_is_packed_first_and_never_more_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = engine_of(monkeypatch, PACKED)
    head = whole.model.get_output_embeddings().weight.nbytes
    weights = describe(whole.runner.decoder).pass_bytes
    assert head < bytes_of(whole) <= weights
    assert bytes_of(engine_of(monkeypatch, PACKED, packed_weights=head)) == head
    assert bytes_of(engine_of(monkeypatch, PACKED, packed_weights=head - 1)) < head
    monkeypatch.setattr(products, "free_bytes", lambda device: 4 * head)
    assert bytes_of(engine_of(monkeypatch, PACKED)) == head, "a quarter of what is free"


@can_be_packed
def test_packed_weights_go_with_the_engine_and_change_with_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(monkeypatch, PACKED)
    copies = [weakref.ref(packed) for packed in engine.runner.decoder._products._packed.values()]
    before = engine.generate(PROMPTS[0], max_new_tokens=8).tokens
    with torch.no_grad():
        engine.model.get_output_embeddings().weight.mul_(-1)
    after = engine.generate(PROMPTS[0], max_new_tokens=8).tokens
    assert before != after == Engine(engine.model, graphs=False).generate(PROMPTS[0], max_new_tokens=8).tokens
    assert all(one() is None for one in copies), "packed again"
    copies = [weakref.ref(packed) for packed in engine.runner.decoder._products._packed.values()]
    del engine
    gc.collect()
    assert all(one() is None for one in copies)


def test_what_is_quickest_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is kept for the next process once it was found twice; what is damaged or unknown is not used."""
    monkeypatch.setenv("SELFDRAFT_HOME", str(tmp_path))
    calls: list[torch.Size] = []
    monkeypatch.setattr(products, "measure", lambda weight: calls.append(weight.shape) or [SEPARATE] * len(WIDTHS))
    weights = [torch.zeros(6, 4), torch.zeros(8, 4)]
    for _ in "12":
        assert {methods_of(weight) for weight in weights} == {(SEPARATE,) * len(WIDTHS)}
    assert len(calls) == 4
    (path,) = (tmp_path / "measured").iterdir()
    known = json.loads(path.read_text())
    path.write_text(json.dumps(dict.fromkeys(known, "magic")))
    assert set(methods_of(weights[0])) == {LINEAR}
    path.write_text("{")
    assert set(methods_of(weights[0])) == {SEPARATE}
    assert [one.suffix for one in path.parent.iterdir()] == [".json"]


def test_what_differs_each_time_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something else was running."""
    monkeypatch.setenv("SELFDRAFT_HOME", str(tmp_path))
    found = iter("abbacc")
    assert [remembered("key", lambda: next(found)) for _ in "1234"] == ["a", "b", "c", "c"]


def test_where_nothing_can_be_kept_it_is_measured_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").write_text("a file")
    monkeypatch.setenv("SELFDRAFT_HOME", str(tmp_path / "home"))
    assert methods_of(torch.zeros(6, 4)) is not None


def test_the_quickest_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock, and only clearly: a copy is not made for a few percent."""
    seconds = {LINEAR: 1.0, SEPARATE: 0.95, PACKED: 0.5}
    monkeypatch.setattr(products, "interleaved", lambda runs: {name: seconds[name] for name in runs})
    weight = torch.ones(8, 4)
    assert set(measure(weight)) == ({PACKED} if can_pack(weight) else {LINEAR})
    seconds[PACKED] = 0.97
    assert set(measure(weight)) == {LINEAR}
    seconds[SEPARATE] = 0.4
    assert measure(weight) == (LINEAR, SEPARATE, SEPARATE, LINEAR, LINEAR, LINEAR)


def test_where_torch_has_no_packed_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_has_mkldnn", False)
    assert not can_pack(FLOAT)
    assert PACKED not in measure(torch.ones(8, 4))


def test_info_says_how_passes_run(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        info = describe(engine_of(monkeypatch, PACKED).runner.decoder)
    assert info.cpu_path is not None
    assert info.cpu_path.startswith("torch's products")
    assert ("weights packed" in info.cpu_path) is (info.packed_bytes > 0) is can_pack(FLOAT)


@pytest.mark.parametrize("value", [-1, "much", 1.5])
def test_a_wrong_bound_is_refused(value: Any) -> None:
    with pytest.raises(Exception, match="packed_weights"):
        Engine(pico("llama"), packed_weights=value)
