"""Ties by routing: what flips by rounding is told with its reason, every other difference stays one."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import selfdraft
from pico import letter_tokenizer, pico
from selfdraft.cli.compare import Baseline
from selfdraft.cli.verify import _finding_line
from selfdraft.engine import audit
from selfdraft.engine.routing import Routing, flip_between
from selfdraft.measure.run import Measurement, MeasurePlan
from selfdraft.types import Prompt

MIXTURES = ("qwen3_moe", "mixtral", "gpt_oss")
PROMPTS = [[3 + (7 * number + 13 * index) % 100 for index in range(12)] for number in range(6)]
CALL: dict[str, Any] = {"max_new_tokens": 16}
FLIP = r"routing: layer 0 chooses expert (1 or 2|2 or 1) \(scores (\S+) / (\S+)\)"


def engine_for(family: str, dtype: torch.dtype = torch.bfloat16, are_alike: bool = True) -> selfdraft.Engine:
    """`are_alike`: the first router scores experts 1 and 2 alike."""
    model = copy.deepcopy(pico(family)).to(dtype)
    engine = selfdraft.Engine(model, letter_tokenizer(), strategy="uniform")
    if are_alike:
        router = first_router(engine)
        for parameter in router.parameters():
            parameter.data[2] = parameter.data[1]
    return engine


def first_router(engine: selfdraft.Engine) -> Any:
    return engine.runner.decoder.routers()["a0"][1]


@pytest.fixture
def flip(monkeypatch: pytest.MonkeyPatch) -> Callable[[selfdraft.Engine], None]:
    """From now on, passes of several tokens take expert 2 where others take 1, and 1 where they take 2."""

    def begin(engine: selfdraft.Engine) -> None:
        router = first_router(engine)
        plain = type(router).forward

        def forward(self: Any, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            scores, weights, chosen = plain(self, hidden)
            is_flipped = (chosen == 1) | (chosen == 2)
            return (
                scores,
                weights,
                (3 - chosen).where(is_flipped, chosen) if self is router and len(hidden) > 1 else chosen,
            )

        monkeypatch.setattr(type(router), "forward", forward)

    return begin


def texts(engine: selfdraft.Engine, prompt: list[int]) -> tuple[selfdraft.Generation, selfdraft.Generation]:
    plain, drafted = (engine.generate(prompt, **CALL, strategy=name) for name in ("off", "uniform"))
    return plain, drafted


def comparisons(engine: selfdraft.Engine) -> list[selfdraft.Comparison]:
    return [engine.compare(prompt, *texts(engine, prompt), **CALL) for prompt in PROMPTS]


@pytest.mark.parametrize("family", MIXTURES)
def test_a_flip_by_rounding_is_a_tie_with_its_reason(family, flip):
    engine = engine_for(family)
    flip(engine)
    found = comparisons(engine)
    assert {one.verdict for one in found} <= {"equal", "tie"}
    reasons = [one.reason for one in found if one.reason is not None]
    assert len(reasons) >= 3, "of six texts; which of them flip depends on how a CPU rounds"
    assert all(re.fullmatch(FLIP, reason) for reason in reasons)


def test_verify_says_so_too(flip):
    """A text is judged in wide passes, which plain decoding does not know."""
    engine = engine_for("mixtral")
    flip(engine)
    found = engine.verify(PROMPTS[1], engine.generate(PROMPTS[1], **CALL, strategy="off"), **CALL)
    assert found.verdict == "tie"
    first = next(one for one in found.findings if one.reason is not None)
    assert re.fullmatch(FLIP, first.reason or "")
    assert _finding_line(engine, first, "choice").endswith(f"gap {first.gap:.3g}; {first.reason}")


def test_what_is_told(flip):
    """By `generate --compare`, and by the records of a measurement."""
    engine = engine_for("mixtral")
    flip(engine)
    prompt = "".join(chr(33 + token) for token in PROMPTS[1])
    plain, drafted = texts(engine, PROMPTS[1])
    compared = Baseline(engine, prompt, CALL).compare(drafted, plain)
    reason = compared.document()["comparison_reason"]
    assert re.fullmatch(FLIP, reason)
    assert next(line for line in compared.lines() if line.startswith("outputs: tie")).endswith(f"; {reason}")
    plan = MeasurePlan([Prompt("a", "chat", prompt)], {"uniform": {"strategy": "uniform"}}, **CALL)
    found = Measurement(engine, plan).run()
    assert [record.to_json()["reason"] for record in found.arms[1].differences] == [reason]
    assert not found.is_different


def test_a_flip_by_more_than_rounding_is_a_difference(flip):
    engine = engine_for("mixtral", are_alike=False)
    flip(engine)
    assert [one.verdict for one in comparisons(engine)].count("different") >= 2


def test_float32_is_not_excused(flip):
    engine = engine_for("mixtral", torch.float32)
    flip(engine)
    assert {one.verdict for one in comparisons(engine)} == {"different"}


def with_worst_token(engine: selfdraft.Engine, prompt: list[int], index: int) -> tuple[Sequence[int], Sequence[int]]:
    """A plain text, and the same with a token that the target likes least."""
    plain = engine.generate(prompt, **CALL, strategy="off").tokens
    worst = int(engine.scores_behind([*prompt, *plain[:index]]).argmin())
    return plain, [*plain[:index], worst, *plain[index + 1 :]]


def test_another_token_is_a_difference(flip):
    """Also where routing flips."""
    engine = engine_for("mixtral")
    flip(engine)
    for prompt in PROMPTS:
        plain, wrong = with_worst_token(engine, prompt, 9)
        found = engine.compare(prompt, plain, wrong, **CALL)
        assert (found.verdict, found.first_difference, found.reason) == ("different", 9, None)
        found = engine.verify(prompt, wrong[:10], **CALL).findings
        assert [(one.index, one.reason) for one in found if one.verdict == "different"] == [(9, None)]


def test_a_skipped_expert_is_a_difference(monkeypatch):
    """Of the last layer, by what writes one of the texts; they are judged without the defect."""
    engine = engine_for("mixtral", are_alike=False)
    plain = [engine.generate(prompt, **CALL, strategy="off") for prompt in PROMPTS]
    last = engine.runner.decoder.model.model.layers[-1].mlp.experts
    right = type(last).forward

    def forward(self: Any, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        is_left_out = (chosen == 3) & (self is last)
        return right(self, hidden, chosen, weights.masked_fill(is_left_out, 0.0))

    with monkeypatch.context() as patch:
        patch.setattr(type(last), "forward", forward)
        drafted = [engine.generate(prompt, **CALL) for prompt in PROMPTS]
    found = [engine.compare(*three, **CALL) for three in zip(PROMPTS, plain, drafted, strict=True)]
    assert [one.verdict for one in found].count("different") >= 2


def test_texts_that_part_after_the_context_are_told():
    """Peers may write more than the model has room for."""
    engine = engine_for("mixtral", are_alike=False)
    prompt = [5] * (engine.runner.context_length - 6)
    for length in (7, 9):
        assert engine.compare(prompt, [1] * length + [2], [1] * length + [3]).verdict == "different"


def test_a_flip_must_reach_the_position():
    """Of an earlier token, in a layer after which the last token's scores are the same."""
    one = Routing(torch.tensor([[[1.0, 0.5]] * 2] * 2), torch.tensor([[[True, False]] * 2] * 2))
    scores, chosen = (part.clone() for part in one)
    scores[0, 0], chosen[0, 0] = torch.tensor([0.5, 0.5]), torch.tensor([False, True])
    near = Routing(torch.tensor([[[0.5, 0.5], [1.0, 0.5]], [[1.0, 0.5]] * 2]), one.is_chosen)
    assert flip_between(near, Routing(scores, chosen), ["a0", "a1"]) is None
    scores[1, 1] = torch.tensor([3.0, 0.5])
    assert flip_between(near, Routing(scores, chosen), ["a0", "a1"]) is not None


@pytest.mark.parametrize(("family", "dtype"), [("llama", torch.bfloat16), ("mixtral", torch.float32)])
def test_what_cannot_be_routing_is_not_read_again(family, dtype, monkeypatch):
    engine = engine_for(family, dtype, are_alike=False)
    plain, wrong = with_worst_token(engine, PROMPTS[0], 9)
    monkeypatch.setattr(audit.Routing, "of", lambda *_: pytest.fail("read again"))
    assert engine.compare(PROMPTS[0], plain, wrong, **CALL).verdict == "different"
    assert engine.verify(PROMPTS[0], wrong, **CALL).verdict == "different"


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([[8.0, 4.0, 3.9], [8.0, 3.9, 4.0]], "routing: layer 3 chooses expert 1 or 2 (scores 4 / 3.906)"),
        ([[8.0, 4.0, 3.0], [8.0, 3.0, 4.0]], None),  # by more than 4 units of 8
        ([[8.0, 4.0, 3.9], [8.0, 4.0, 3.9]], None),  # not at all
    ],
)
def test_a_flip_is_within_the_tolerance_of_a_tie(scores, expected):
    def routing(own: list[float]) -> Routing:
        """Two of three experts in the second of two layers; in the first there is nothing to choose."""
        found = torch.tensor([[[9.0, 5.0, 1.0], own]], dtype=torch.bfloat16)
        return Routing(found, torch.zeros_like(found, dtype=torch.bool).scatter(2, found.topk(2).indices, True))

    one, other = map(routing, scores)
    assert flip_between(one, other, ("a1", "a3")) == expected
