"""The built-in prompts: every domain has enough of them, and no two of a domain are made from one template."""

from __future__ import annotations

from importlib.resources import files
from itertools import combinations

import pytest

from selfdraft.prompts.read import CALIBRATION_PROMPTS, read_prompts
from selfdraft.prompts.sets import PROMPT_SETS, builtin_prompts

MIN_PROMPTS, MIN_CONTEXT, LONGEST_SHARED = 12, 300, 5
OTHER_FILES = (CALIBRATION_PROMPTS,)

by_domain = pytest.mark.parametrize("domain", PROMPT_SETS)


def texts_of(domain: str) -> list[str]:
    return [prompt.text for prompt in builtin_prompts([domain])]


def runs_of_words(text: str, length: int) -> set[tuple[str, ...]]:
    words = text.casefold().split()
    return {tuple(words[start : start + length]) for start in range(len(words) - length + 1)}


def context_length(text: str) -> int:
    """All but the request, which is the first or the last paragraph, whichever is shorter."""
    paragraphs = text.split("\n\n")
    return len(text) - min(len(paragraphs[0]), len(paragraphs[-1]))


def test_every_file_is_a_domain() -> None:
    folder = files("selfdraft.prompts") / "builtin"
    assert {file.name for file in folder.iterdir()} == {f"{name}.jsonl" for name in PROMPT_SETS}
    assert {prompt.domain for prompt in builtin_prompts()} == set(PROMPT_SETS)


def test_every_prompt_is_there_once() -> None:
    prompts = builtin_prompts()
    assert [prompt.domain for prompt in prompts[: len(PROMPT_SETS)]] == list(PROMPT_SETS)
    others = read_prompts((file.name, file.read_text(encoding="utf-8")) for file in OTHER_FILES)
    assert len({prompt.id for prompt in prompts}) == len(prompts)
    assert len({prompt.text for prompt in prompts + others}) == len(prompts) + len(others)


@by_domain
def test_a_file_holds_enough_of_its_domain(domain: str) -> None:
    prompts = builtin_prompts([domain, domain])
    assert len(prompts) >= MIN_PROMPTS
    assert {prompt.domain for prompt in prompts} == {domain}
    assert [prompt.id for prompt in prompts] == [f"{domain}-{number:02}" for number in range(1, len(prompts) + 1)]


@by_domain
def test_no_two_prompts_share_a_template(domain: str) -> None:
    texts = texts_of(domain)
    beginnings = {" ".join(text.casefold().split()[:4]) for text in texts}
    assert len(beginnings) == len(texts)
    runs = [runs_of_words(text, LONGEST_SHARED + 1) for text in texts]
    assert not [shared for one, other in combinations(runs, 2) for shared in one & other]


@pytest.mark.parametrize("domain", ["code", "rewrite"])
def test_there_is_something_to_copy(domain: str) -> None:
    assert min(context_length(text) for text in texts_of(domain)) >= MIN_CONTEXT
