"""`selfdraft bench passes`: shapes, random weights, costs of passes, what they predict. The clock judges nothing."""

from __future__ import annotations

import json
import runpy
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from selfdraft.bench import passes
from selfdraft.bench.papers import predicted
from selfdraft.bench.shapes import SHAPES, chosen_shapes
from selfdraft.cli.main import main
from selfdraft.cli.parsers.measure import SHAPE_PEERS
from selfdraft.economics import LatencyFit, Line
from selfdraft.measure.peers import PEERS
from selfdraft.types import SkipSet
from test_house import run_alone

PUBLISHED = {
    "codellama-34b": 33.744,
    "gemma-2-9b": 9.242,
    "gemma-3-12b": 11.766,
    "gemma-3-1b": 1.000,
    "gemma-3-4b": 3.880,
    "granite-3.3-8b": 8.171,
    "llama-2-13b": 13.016,
    "llama-2-70b": 68.977,
    "llama-2-7b": 6.738,
    "llama-3.1-8b": 8.030,
    "llama-3.2-1b": 1.236,
    "mistral-7b-v0.3": 7.248,
    "olmo-2-7b": 7.299,
    "phi-4": 14.660,
    "qwen2.5-coder-1.5b": 1.544,
    "qwen3-0.6b": 0.596,
    "qwen3-1.7b": 1.721,
    "qwen3-14b": 14.768,
    "qwen3-30b-a3b": 30.532,
    "qwen3-8b": 8.191,
    "smollm2-135m": 0.135,
    "smollm3-3b": 3.075,
    "starcoder2-7b": 7.174,
}
"""Parameters in billions, each once, as the models' pages or their weights have them."""
TINY = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 5, "num_attention_heads": 4}
TINY |= {"num_key_value_heads": 2, "vocab_size": 112, "max_position_embeddings": 512}
CPU = torch.device("cpu")


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    """A folder with a config.json and nothing else."""
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps({"model_type": "llama", **TINY}), encoding="utf-8")
    return str(tmp_path / "tiny")


def test_shapes_are_as_large_as_published() -> None:
    assert set(PUBLISHED) == set(SHAPES)
    for name, content in chosen_shapes(["all"]).items():
        model = passes.make_model(passes.read_config(name, content), torch.device("meta"), torch.bfloat16)
        assert round(sum(weight.numel() for weight in {*model.parameters()}) / 1e9, 3) == PUBLISHED[name], name
        assert content["architectures"] == [type(model).__name__]


@pytest.mark.parametrize("family", ["llama", "gemma2", "starcoder2", "qwen3_moe"])
def test_weights_are_made_where_they_stay_and_scores_are_finite(family: str) -> None:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    config = passes.read_config(family, {"model_type": family, "tie_word_embeddings": True, **TINY, **experts})
    model = passes.make_model(config, CPU, torch.bfloat16)
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    assert model.lm_head.weight is model.get_input_embeddings().weight
    scores = model(torch.arange(8)[None]).logits
    assert scores.isfinite().all()
    assert scores.std() > 0
    usual = dict(AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).named_buffers())
    assert all(torch.equal(buffer, usual[name]) for name, buffer in model.named_buffers()), "not only weights are made"


def test_a_folder_is_timed_kept_and_reported(tiny: str, said: Callable[..., str], tmp_path: Path, capsys: Any) -> None:
    command = ["bench", "passes", "--shape", tiny, "--seconds", "0.2", "--peers", "eager"]
    file = str(tmp_path / "passes.jsonl")
    assert main([*command, "--output", file]) == 0
    first = capsys.readouterr()
    assert "tiny: measured" in first.err
    assert "transformers eager" in first.out.partition("\n")[0]
    kept = Path(file).read_text(encoding="utf-8")
    assert said(*command, "--output", file) == first.out, "the same command goes on, and everything is there"
    assert Path(file).read_text(encoding="utf-8") == kept
    document = json.loads(said(*command, "--output", file, "--json"))
    (line,) = document["shapes"]
    figures = line["figures"]
    assert {"device_name", "torch", "transformers", "commit", "dtype"} <= set(document)
    assert figures["weight_bytes"] == 4 * figures["num_parameters"]
    assert 0 < figures["pass_bytes"] < figures["weight_bytes"], "of the embedding one row is read"
    assert set(figures["width_seconds"]) >= {"1", "2"}
    assert set(figures["drafts"]) == {"a third", "half"}
    assert all(0 < draft["weights_left"] < 1 for draft in figures["drafts"].values())
    assert figures["record_seconds"] is None, "nothing is recorded on a CPU"
    assert line["peers"]["transformers eager"] > 0
    shown = said("report", file, "--markdown")
    assert shown.startswith("| shape | ms | floor | 2 |")
    assert "Predicted" not in shown, "no paper is about this size"
    assert "--png is not for results of `bench passes`" in said("report", file, "--png", str(tmp_path), status=2)


def test_ctrl_c_keeps_what_is_done(tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    file, command = tmp_path / "passes.jsonl", ["bench", "passes", "--seconds", "0.2", "--shape", tiny]
    assert main([*command, "--output", str(file)]) == 0
    monkeypatch.setattr(passes, "make_model", interrupted)
    assert main([*command, "smollm2-135m", "--output", str(file)]) == 130
    told = capsys.readouterr()
    assert "the same command goes on" in told.err
    assert "\ntiny " in told.out
    assert len(file.read_text(encoding="utf-8").splitlines()) == 2


def test_what_does_not_fit_is_left_out_with_numbers(
    tiny: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(passes, "free_bytes", lambda device: 10**9)
    assert main(["bench", "passes", "--shape", "llama-2-7b", tiny, "--seconds", "0.2"]) == 0
    told = capsys.readouterr()
    needed = "not enough memory on cpu: weights of 26.95 GB and 268.4 MB beside them are needed, 1.00 GB are free"
    assert f"llama-2-7b: {needed}" in told.err
    assert "llama-2-7b was left out" in told.out
    assert "\ntiny " in told.out


@pytest.mark.full
def test_a_shape_leaves_its_memory_and_the_next_one_is_timed_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    made, make = [], passes.make_model

    def remembered(config: Any, device: torch.device, dtype: torch.dtype) -> Any:
        assert not [model for model in made if model() is not None], "the one before is still there"
        model = make(config, device, dtype)
        made.extend([weakref.ref(model)] if device == CPU else [])
        return model

    def failing(runner: Any) -> None:
        if len(made) == 2:
            raise RuntimeError("no luck")

    monkeypatch.setattr(passes, "make_model", remembered)
    monkeypatch.setattr(passes, "record_seconds", failing)
    configs = {name: passes.read_config(name, {"model_type": "llama", **TINY}) for name in "abc"}
    lines = list(passes.ShapeBench(CPU, torch.float32, 0.1, ["eager"]).run(configs))
    assert [line.missing for line in lines] == [None, "RuntimeError: no luck", None]
    assert len(made) == 3


def test_errors_at_the_door(tiny: str, tmp_path: Path, said: Callable[..., str]) -> None:
    def error(*words: str) -> str:
        return said("bench", "passes", "--shape", *words, status=2)

    assert "unknown shape 'qwen3-8'. Did you mean 'qwen3-8b'?" in error("qwen3-8")
    assert "there is no " in error(str(tmp_path))
    assert "two shapes are called 'phi-4', the second is" in error("phi-4", str(SHAPES["phi-4"]))
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    assert "is not the config.json of a model: it has no model_type" in error(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "unheard"}', encoding="utf-8")
    assert "is not one that transformers can make" in error(str(tmp_path))
    assert "unknown peer 'vllm'" in error(tiny, "--peers", "vllm")
    assert set(SHAPE_PEERS) <= set(PEERS)


@pytest.mark.full
def test_it_needs_no_extra(tiny: str) -> None:
    done = run_alone("bench", "passes", "--shape", tiny, "--seconds", "0.1", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["shapes"][0]["name"] == "tiny"


def test_a_new_set_is_its_first_pass_less_the_next() -> None:
    clock, seen = [0.0], set()

    def forward(request: Any, cache: object) -> None:
        clock[0] += 1.0 if request.skip in seen else 5.0
        seen.add(request.skip)

    runner: Any = SimpleNamespace(is_recording=True, num_layers=12, context_length=None, seconds=lambda: clock[0])
    runner.recorded_slots, runner.new_cache, runner.forward = (lambda n: ()), (lambda rows, slots: None), forward
    assert passes.record_seconds(runner) == 4.0
    assert len(seen) == 4, "three new sets, and the whole model for the text"


def test_folders_whose_names_have_dots_are_told_apart(tmp_path: Path) -> None:
    names = ["Llama-3.1-8B", "Llama-3.2-1B"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(SHAPES["llama-3.1-8b"].read_text())
    assert list(chosen_shapes([str(tmp_path / name) for name in names])) == names
    assert list(chosen_shapes([str(tmp_path / name / "config.json") for name in names])) == names
    assert list(chosen_shapes([str(SHAPES["qwen2.5-coder-1.5b"])])) == ["qwen2.5-coder-1.5b"]


# ---------------------------------------------------------------------------------------------------------- predicted

ONE = Line(0.0, 1.0)
FIT = LatencyFit(
    *(40, Line(0.0, 0.01), 0.01, 0.2, ONE, (1, 2, 32), (ONE, ONE, Line(0.0, 1.5))),
    is_recorded=False,
    lengths=(320,),
    rms_error=0.0,
    max_error=0.0,
)


def test_the_formula() -> None:
    """4 draft passes of 0.2 + 40 x 0.01 and a verification; of 5 tokens, 1 + 3 / 30 / 2."""
    layers = range(1, 21)
    skip, costs = SkipSet.of(layers, layers), FIT.at(320)
    assert costs.draft(skip) == pytest.approx(0.6)
    assert predicted.speedup(costs, skip, 3.0, 0.5) == pytest.approx(3 / (4 * 0.6 + 1.05))
    assert predicted.speedup(costs, skip, 3.0, 0.5, width=32) == pytest.approx(3 / (4 * 0.6 + 1.5))


@pytest.mark.parametrize(
    ("length", "acceptance", "expected"), [(4.34, 0.99, 1.52), (3.13, 0.98, 1.43), (3.54, 0.90, 1.39)]
)
def test_where_costs_are_those_that_swift_assumes_it_is_the_expected_speedup_of_its_table_4(
    length: float, acceptance: float, expected: float
) -> None:
    fit = replace(FIT, attention=Line(0.0, 1 / 80), mlp_seconds=1 / 80, rest_seconds=0.0, widths=(1,), verify=(ONE,))
    layers = range(18)
    found = predicted.speedup(fit.at(320), SkipSet.of(layers, layers), length, acceptance)
    assert found == pytest.approx(expected, abs=0.005)


def test_published_runs_are_those_of_the_papers() -> None:
    runs = list(predicted.published_runs())
    assert {run.source.split()[0] for run in runs} == {"swift", "knn-ssd"}
    known = {(run.source, run.model, run.task, run.method): run for run in runs}
    assert len(known) == len(runs) == 24
    swift = known["swift table 4, table 2", "Llama-2-70B", "TinyStories", "SWIFT"]
    assert (swift.ratio, swift.length, swift.acceptance, swift.speedup) == (0.5, 6.17, 0.99, "1.62x†")
    knn = known["knn-ssd table 3", "Llama-2-13B", "", "knn"]
    assert (knn.ratio, knn.length, knn.acceptance, knn.speedup) == (0.45, 3.12, 0.88, "1.34x")
    assert set(predicted.SHAPES.values()) <= set(SHAPES)
    assert all(run.length > 1 and 0 < run.acceptance <= 1 for run in runs)


def test_the_page_says_predicted(tmp_path: Path, said: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With vLLM's lines beside ours: one of each file makes one row."""
    figures = {"family": "llama", "num_parameters": 13 * 10**9, "weight_bytes": 26 * 10**9, "context": 320}
    figures |= {"width_seconds": {"1": 1.0, "2": 1.0, "32": 1.5}, "drafts": {}, "floor_seconds": 0.9}
    file, beside = passes_file(tmp_path, {**figures, "latency": FIT.to_json()}), tmp_path / "vllm.jsonl"
    run_vllm(monkeypatch, "--shape", "llama-2-13b", "--output", str(beside))
    page = said("report", str(file), str(beside), "--markdown")
    assert "**Predicted, not measured**" in page
    assert "| llama-2-13b | 1000.000 | 90.0% | 1.00x | - | - | - | 1.50x | - |" in page
    assert "vLLM 0.26.0" in page.partition("\n")[0]
    (row,) = (line for line in page.splitlines() if "knn-ssd table 3" in line)
    skipped = predicted.spread(40, 0.45)
    gained = predicted.speedup(FIT.at(320), SkipSet.of(skipped, skipped), 3.12, 0.88)
    assert f"| 3.12 | 0.88 | 1.34x | 0.64 | {gained:.2f}x |" in row
    assert "CodeLlama-34B" not in page, "its shape was not measured"
    assert all(f"- left out: {reason}" in page for reason in predicted.LEFT_OUT)


def passes_file(folder: Path, figures: dict[str, Any]) -> Path:
    file = folder / "passes.jsonl"
    head = {"selfdraft_passes": 1, "question": {"dtype": "bfloat16"}, "circumstances": {"device_name": "a device"}}
    rows = (head, {"name": "llama-2-13b", "figures": figures})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def run_vllm(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    """benchmarks/vllm_shapes.py with a vLLM that answers at once."""
    made: list[dict[str, Any]] = []

    def llm(model: str, **arguments: Any) -> Any:
        made.append({**arguments, "config": json.loads(Path(model, "config.json").read_text(encoding="utf-8"))})
        return SimpleNamespace(generate=lambda prompts, params, use_tqdm: None)

    fake = SimpleNamespace(__version__="0.26.0", LLM=llm, SamplingParams=lambda **options: None)
    script = Path(__file__).parents[1] / "benchmarks" / "vllm_shapes.py"
    monkeypatch.setitem(sys.modules, "vllm", fake)
    monkeypatch.syspath_prepend(script.parent)  # as Python does for a script
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "a device")
    monkeypatch.setattr(sys, "argv", [str(script), *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0
    assert made[0]["load_format"] == "dummy"
    assert made[0]["skip_tokenizer_init"]
    assert made[0]["config"]["architectures"] == ["LlamaForCausalLM"]
