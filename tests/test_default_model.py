"""A real model: its tokenizer, and six methods against one plain run and `model.generate`, 4 prompts x 14 tokens."""

from __future__ import annotations

import doctest
import functools
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from selfdraft import Engine, GenerateOptions, Generation

pytestmark = pytest.mark.model
greedy, sampled = pytest.mark.xdist_group("greedy"), pytest.mark.xdist_group("sampled")  # each shares its plain runs

NUM_TOKENS = 14
PROMPTS = (
    "Write a long story about a fox who learns to read.",
    "List twenty animals and say one thing about each of them.",
    "Copy this sentence five times: The small boat sailed slowly past the old harbour wall.",
    "Write the numbers from one to one hundred as words, separated by commas.",
)
SAMPLED = {"temperature": 0.8, "top_p": 0.9, "seed": 3}
COMBINATIONS: dict[str, dict[str, Any]] = {
    "uniform-siblings": {
        "lookahead": "fixed",
        "tree": "siblings",
        "settings": {"fixed": {"tokens": 1}, "siblings": {"table": "1:2"}},
    },
    "lookup-siblings": {
        "drafter": "lookup",
        "tree": "siblings",
        "settings": {"lookup": {"max_tokens": 1}, "siblings": {"lookup": 2, "lookup_tokens": 2, "max_nodes": 2}},
    },
    "early-exit-rejection": {
        "strategy": "early-exit",
        "acceptance": "rejection",
        "settings": {"early-exit": {"layers": 26}, "confidence": {"max_tokens": 1}},
    },
    "ngram-pool": {"drafter": "ngram-pool", "settings": {"ngram-pool": {"window": 1, "ngram": 2, "guesses": 1}}},
    "lookup-sampled": {"drafter": "lookup", "settings": {"lookup": {"max_tokens": 1}}, **SAMPLED},
    "uniform-confidence-sampled": {"settings": {"confidence": {"max_tokens": 1}}, **SAMPLED},
}
"""Short drafts: four rows at once make every token of one dear."""
FIRST = ("uniform-siblings",)
"""In `make test`; some 10 seconds each, so the others are for `make test-full`."""


def marks_of(name: str) -> list[pytest.MarkDecorator]:
    return [sampled if name.endswith("sampled") else greedy, *([] if name in FIRST else [pytest.mark.full])]


@functools.cache
def engine() -> Engine:
    return Engine.from_pretrained(dtype="float32", device="cpu", strategy="uniform")


def chat(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


@functools.cache
def plain(row: int, is_sampled: bool) -> Generation:
    options: dict[str, Any] = SAMPLED if is_sampled else {}
    return engine().generate(chat(PROMPTS[row]), strategy="off", sequence=row, max_new_tokens=NUM_TOKENS, **options)


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of(name)) for name in COMBINATIONS])
def test_drafting_changes_nothing(name: str) -> None:
    """The four prompts as one ragged batch; each row against its plain run alone."""
    options = COMBINATIONS[name]
    sampling = {key: value for key, value in options.items() if key in SAMPLED}
    found = engine().generate([chat(prompt) for prompt in PROMPTS], max_new_tokens=NUM_TOKENS, **options)
    for row, generation in enumerate(found):
        expected = plain(row, bool(sampling))
        comparison = engine().compare(chat(PROMPTS[row]), expected, generation, sequence=row, **sampling)
        assert comparison.verdict == "equal", (row, comparison)
        assert generation.text == expected.text
    assert sum(generation.stats.num_accepted for generation in found) > NUM_TOKENS // 5, "hardly any draft was tried"


@greedy
@pytest.mark.parametrize("row", [0, 1, *(pytest.param(row, marks=pytest.mark.full) for row in (2, 3))])
def test_plain_decoding_equals_transformers(row: int) -> None:
    tokens = engine().tokenizer.apply_chat_template(chat(PROMPTS[row]), add_generation_prompt=True, return_dict=False)
    inputs = torch.tensor([tokens])
    with torch.inference_mode():
        expected = engine().model.generate(
            inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=NUM_TOKENS, do_sample=False
        )
    assert list(plain(row, False).tokens) == expected[0, len(tokens) :].tolist()


@sampled
def test_one_prompt_alone_sampled_and_streamed() -> None:
    stream = engine().stream(chat(PROMPTS[1]), sequence=1, max_new_tokens=NUM_TOKENS - 8, **SAMPLED)
    text = "".join(chunk.text for chunk in stream)
    assert stream.generation.tokens == plain(1, True).tokens[: NUM_TOKENS - 8]
    assert plain(1, True).text.startswith(text.rstrip("\N{REPLACEMENT CHARACTER}"))


@greedy
def test_a_text_read_at_once_is_the_text_read_token_by_token() -> None:
    """Characters of several tokens, unfinished ones, and special tokens, too."""
    tokenizer, requests = engine().tokenizer, engine()._requests
    text = " ".join((*PROMPTS, "naïve café 日本語 🙂👩‍👩‍👧 \n\n\tdef f(x):", "<|im_end|> again<|im_start|>  and again"))
    tokens, num_at_once, marks = tokenizer(text).input_ids, [0, 0], set(tokenizer.all_special_ids)
    for first, last in itertools.combinations(range(0, len(tokens), 7), 2):
        tail = requests.texts([[1]], GenerateOptions())[0].tail
        found = tail.at_once(tokens[first:last])
        for token in tokens[first:last]:
            tail.push(token)
        tail.flush()
        num_at_once[marks.isdisjoint(tokens[first:last])] += found is not None
        assert found in (None, tail.text)
    assert num_at_once[True] > 50
    assert num_at_once[False] > 5


def test_its_tokenizer_is_repaired() -> None:
    tokenizer, model = engine().tokenizer, engine().model
    assert tokenizer.tokenize("12345") == list("12345")
    # Without the repaired pre-tokenizer the last blank would stick to the number, apart from the others.
    assert tokenizer.tokenize("x =   12") == ["x", "Ġ=", "ĠĠĠ", "1", "2"]
    text = "it 's 3.14 , don't\n\n  é 日本 x"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    prompt = tokenizer.apply_chat_template(chat("Who?"), add_generation_prompt=True, tokenize=False)
    assert prompt.endswith("<|im_end|>\n<|im_start|>assistant\n")
    eos = model.generation_config.eos_token_id
    assert 2 in (eos if isinstance(eos, list) else [eos])
    assert tokenizer.eos_token_id == 2
    assert tokenizer.convert_ids_to_tokens(2) == "<|im_end|>"
    assert getattr(model.config, "quantization_config", None) is None
    assert "Paris" in engine().generate(chat("What is the capital of France?"), max_new_tokens=12).text


@greedy
def test_the_first_session_of_the_docs() -> None:
    """The docs' answers are what Python answers."""
    page = (Path(__file__).parents[1] / "docs" / "python.md").read_text(encoding="utf-8")
    (session,) = re.findall(r"```pycon\n(.*?)```", page, re.DOTALL)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    test = doctest.DocTestParser().get_doctest(session, {}, "docs/python.md", None, None)
    told: list[str] = []
    found = doctest.DocTestRunner(optionflags=flags).run(test, out=told.append)
    assert found.attempted > 10
    assert not found.failed, "".join(told)
