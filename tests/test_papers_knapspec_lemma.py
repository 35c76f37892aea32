"""Lemma 4.1 of KnapSpec, by hand, against its definition, and on the states of pico models of every family."""

from __future__ import annotations

import copy
import functools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from cases import by_family
from pico import FAMILIES, NUM_LAYERS, letter_tokenizer, pico
from selfdraft import Engine
from selfdraft.bench.papers import knapspec_states as states
from selfdraft.bench.papers.experiment import Found
from selfdraft.calibrate.writing import Text
from selfdraft.cli.main import main
from selfdraft.errors import UnsupportedModelError

CIRCLE = torch.eye(2)
"""Two words at right angles: |w_0 - w_1|^2 = 2."""
PROMPT = [3, 1, 4, 1, 5, 9]


def at(degrees: float, length: float = 1.0) -> torch.Tensor:
    return length * torch.tensor([math.cos(math.radians(degrees)), math.sin(math.radians(degrees))]).double()


def test_by_hand() -> None:
    """x = (3, 0): margin 3, |x|^2 = 9, so the cosine may lack 9 / (2 * 9 * 2) = 1/4: 41.4 degrees."""
    others = torch.stack([at(0, 0.2), at(41.3, 7.0), at(41.5), at(-44.9), at(46.0), at(180.0)])[:, None]
    found = states.check(at(0, 3.0)[None], others, CIRCLE)
    assert found.allowed.tolist() == pytest.approx([0.25])
    assert found.is_close[:, 0].tolist() == [True, True, False, False, False, False]
    assert found.is_same[:, 0].tolist() == [True, True, True, True, False, False]
    assert found.cosines[1, 0].item() == pytest.approx(math.cos(math.radians(41.3)))


def test_where_two_words_tie_there_is_no_choice_to_keep() -> None:
    assert not states.check(at(45)[None], at(45)[None, None], CIRCLE).is_close.any()


def test_a_vocabulary_in_parts_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the definition, written down plainly."""
    generator = torch.Generator().manual_seed(5)
    head, target = (torch.randn(count, 16, generator=generator) for count in (101, 7))
    others = target + 0.02 * torch.randn(9, 7, 16, generator=generator)
    scores = target.double() @ head.double().T
    best = scores.topk(2, dim=-1)
    distances = torch.cdist(head.double()[best.indices[:, 0]], head.double()).amax(-1)
    margins = best.values[:, 0] - best.values[:, 1]
    allowed = margins.square() / (2 * target.double().square().sum(-1) * distances.square())
    cosines = torch.cosine_similarity(others.double(), target.double(), dim=-1)
    is_same = (others.double() @ head.double().T).argmax(-1) == scores.argmax(-1)
    for size in (4096, 3):
        monkeypatch.setattr(states, "CHUNK_ROWS", size)
        found = states.check(target, others, head)
        torch.testing.assert_close(found.allowed, allowed)
        torch.testing.assert_close(found.cosines, cosines)
        assert found.is_close.tolist() == (cosines >= 1 - allowed).tolist()
        assert found.is_same.tolist() == is_same.tolist()
        assert 0 < found.is_close.sum() < found.is_close.numel()


def test_a_state_of_its_own() -> None:
    """x' = x: the premise holds wherever there is a choice, and so does the conclusion."""
    generator = torch.Generator().manual_seed(1)
    own, head = torch.randn(20, 32, generator=generator), torch.randn(112, 32, generator=generator)
    found = states.check(own, own[None], head)
    assert found.is_close.all()
    assert found.is_same.all()
    assert found.cosines.tolist() == [[1.0] * 20]


@functools.cache
def examined(family: str) -> dict[str, Any]:
    return states.summary([examine(pico(family))], 2 * NUM_LAYERS)


def examine(model: Any) -> tuple[list[int], states.Check]:
    engine = Engine(model, strategy="off", profile=None)
    written = engine.generate(PROMPT, max_new_tokens=16).tokens
    return states.examine(engine, Text((*PROMPT, *written), len(PROMPT)))


@by_family
def test_on_pico_models(family: str) -> None:
    *parts, total = examined(family)["rows"]
    name, num_networks, num_pairs, _, num_close, num_same, num_violations = total
    assert (name, num_networks, num_pairs, num_violations) == ("all", NUM_LAYERS, 16 * NUM_LAYERS, 0)
    assert 0.3 < num_same / num_pairs < 1, "else nothing is put to the test"
    assert num_close <= num_same
    assert [row[0] for row in parts] == ["up to 10%", "up to 20%", "up to 30%", "up to 40%", "up to 50%"]


@pytest.mark.full
def test_premises_hold_and_are_kept() -> None:
    """Of all pico models together, so that the test above is not empty."""
    assert sum(examined(family)["rows"][-1][4] > 0 for family in FAMILIES) > len(FAMILIES) / 3


def test_the_table_and_the_claim() -> None:
    """Rows by share: weights 1 and 2 of 20 are up to 10 %, weight 3 is up to 20 %; texts of different lengths."""
    cosines = torch.tensor([[0.9, 1.0], [0.8, 0.9], [0.5, 0.7]]).double()
    is_close = torch.tensor([[True, True], [False, False], [True, False]])
    is_same = torch.tensor([[True, True], [True, False], [False, False]])
    allowed = torch.tensor([0.1, 0.3]).double()
    longer = states.Check(cosines, is_close, is_same, allowed)
    shorter = states.Check(*(one[:, :1] for one in (cosines, is_same, is_same)), allowed[:1])
    found = states.summary([([1, 2, 3], longer)], 20)
    mean = pytest.approx(0.9)
    assert found["rows"][0] == ["up to 10%", 2, 4, mean, 2, 3, 0]
    assert found["rows"][1:] == [
        ["up to 20%", 1, 2, pytest.approx(0.6), 1, 0, 1],
        ["all", 3, 6, pytest.approx(0.8), 3, 3, 1],
    ]
    assert states.summary([([1, 2, 3], longer), ([1, 2, 3], shorter)], 20)["rows"][-1][1:3] == [6, 9]
    outcomes = []
    for texts in ([([1, 2, 3], longer)], [([1, 2, 3], shorter)]):
        (judgement,) = states.LEMMA.judge(Found({states.STATES: states.summary(texts, 20)}))
        outcomes.append(judgement.outcome)
    assert outcomes == [False, True]


def test_models_it_says_nothing_about() -> None:
    model: Any = copy.deepcopy(pico("llama"))
    bare = model.lm_head
    model.lm_head = torch.nn.Linear(32, 112).requires_grad_(False)
    with pytest.raises(UnsupportedModelError, match="the scores of LlamaForCausalLM are not its head's weight times"):
        examine(model)
    model.lm_head = bare
    bare.register_forward_hook(lambda module, inputs, output: 2 * output.roll(1, -1))
    with pytest.raises(UnsupportedModelError, match="are not its head's weight times the state"):
        examine(model)
    with pytest.raises(UnsupportedModelError, match="the model has 2 layers"):
        examine(pico("llama", num_hidden_layers=2))


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What was `profile lemma` names it."""
    assert main(["profile", "lemma"]) == 2
    assert "`selfdraft reproduce knapspec --experiments lemma`" in capsys.readouterr().err
    monkeypatch.setenv("SELFDRAFT_HOME", str(tmp_path / "home"))
    pico("llama").save_pretrained(tmp_path / "model")
    letter_tokenizer().save_pretrained(tmp_path / "model")
    lines = [json.dumps({"domain": "d", "prompt": text}) for text in ("abcabc", "xyz", "1+2")]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    asked = ["--experiments", "lemma", "--prompts", str(tmp_path / "prompts.jsonl"), "--quick"]
    assert main(["reproduce", "knapspec", str(tmp_path / "model"), *asked]) == 0
    output = capsys.readouterr().out
    assert (
        "a state that is close enough, by the premise, makes the target's choice: confirmed (0 violations in " in output
    )
    assert "up to 50%" in output
