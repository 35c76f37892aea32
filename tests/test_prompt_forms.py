"""The forms that a benchmark's prompts come in: conversations, datasets, mixed streams, long texts, several at once."""

from __future__ import annotations

import copy
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from pico import CONTEXT_LENGTH, letter_tokenizer, pico, pico_tokenizer
from selfdraft import Engine
from selfdraft.errors import OptionError, PromptError
from selfdraft.prompts.arrange import context_prompts, mixed_prompts
from selfdraft.prompts.hub import dataset_prompts
from selfdraft.prompts.read import Labels, read_prompts
from selfdraft.prompts.sets import DATASET_PROMPTS, PROMPT_SETS, builtin_prompts, select_prompts
from selfdraft.prompts.tokens import encode
from selfdraft.types import Prompt

OURS = {"domain": "chat", "prompt": "Why?"}
SPEC_BENCH = {"question_id": 81, "category": "writing", "turns": ["Write.", "Shorten."], "reference": []}
TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}<assistant>"


def lines(*rows: object) -> str:
    return "\n".join(json.dumps(row) for row in rows)


class TestSpecBench:
    def test_a_line_with_its_turns(self) -> None:
        alone = {**SPEC_BENCH, "question_id": 82, "turns": ["Once."]}
        named = {"id": "talk", "domain": "chat", "turns": ["a", "b"]}
        assert read_prompts([("question.jsonl", lines(SPEC_BENCH, OURS, alone, named, {**OURS, "turns": 3}))]) == [
            Prompt("81", "writing", "Write.", ("Shorten.",)),
            Prompt("question-2", "chat", "Why?"),
            Prompt("82", "writing", "Once."),
            Prompt("talk", "chat", "a", ("b",)),
            Prompt("question-5", "chat", "Why?"),
        ]

    @pytest.mark.parametrize(
        ("labels", "domain"),
        [
            (Labels(), "writing"),
            (Labels("reference"), "file's own"),
            (Labels(otherwise=lambda file: "by file"), "writing"),
        ],
    )
    def test_its_domain(self, labels: Labels, domain: str) -> None:
        row = {**SPEC_BENCH, "reference": "file's own"}
        (prompt,) = read_prompts([("a.jsonl", lines(row))], labels=labels)
        assert prompt.domain == domain

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"turns": []}, r"line 2 of a.jsonl has 'turns' that is not a list of texts: \[\]; write it like .*turns"),
            ({"turns": "text"}, "'turns' that is not a list of texts: 'text'; write it like"),
            ({"turns": ["x", 7]}, r"'turns' that is not a list of texts: \['x', 7\]; write it like"),
            ({"turns": ["x", " "]}, "not a list of texts"),
            ({"turns": ["x", "\ud83d"]}, "line 2 of a.jsonl has half a character in its 'turns'; write it as UTF-8"),
            ({"category": None}, "line 2 of a.jsonl has no 'category' that is text; write it like .*turns"),
        ],
    )
    def test_bad_lines(self, change: dict[str, Any], message: str) -> None:
        with pytest.raises(OptionError, match=message):
            read_prompts([("a.jsonl", lines(OURS, {**SPEC_BENCH, **change}))])

    def test_a_field_of_domains_that_was_asked_for(self) -> None:
        with pytest.raises(OptionError, match=r"has no 'topic' that is text; write it like .*topic.*turns"):
            read_prompts([("a.jsonl", lines(SPEC_BENCH))], labels=Labels("topic"))

    @pytest.mark.parametrize(("line", "got"), [("once", r" \(Expecting value.*\)"), ("[1]", r", got \[1\]")])
    def test_a_line_that_is_none(self, line: str, got: str) -> None:
        with pytest.raises(OptionError, match=f"line 1 of a.jsonl is not a JSON object{got}; write one object a line"):
            read_prompts([("a.jsonl", line)])


# ------------------------------------------------------------------------------------------------------- as tokens


def engine_with(template: str | None) -> Engine:
    tokenizer = copy.deepcopy(pico_tokenizer())
    tokenizer.chat_template = template
    return Engine(pico("llama", vocab_size=len(tokenizer)), tokenizer)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return engine_with(None)


TALK = Prompt("81", "writing", "one", ("two", "three"))


class TestTurns:
    @pytest.mark.parametrize(
        ("template", "answers", "text"),
        [
            (None, (), "one"),
            (None, ("A",), "one\n\nA\n\ntwo"),
            (None, ("A", ""), "one\n\nA\n\ntwo\n\n\n\nthree"),
            (TEMPLATE, (), "<user>one<assistant>"),
            (TEMPLATE, ("A", "B"), "<user>one<assistant>A<user>two<assistant>B<user>three<assistant>"),
        ],
    )
    def test_as_tokens(self, template: str | None, answers: tuple[str, ...], text: str) -> None:
        assert encode(TALK, engine_with(template), answers) == pico_tokenizer()(text).input_ids

    def test_a_conversation_that_outgrows_the_context(self, engine: Engine) -> None:
        with pytest.raises(PromptError, match=f"prompt 81, turn 2: the prompt has .* context holds {CONTEXT_LENGTH}"):
            encode(TALK, engine, ["x" * CONTEXT_LENGTH])
        with pytest.raises(PromptError, match="prompt long: the prompt has"):
            encode(Prompt("long", "chat", "x" * CONTEXT_LENGTH), engine)


# ---------------------------------------------------------------------------------------------------- mixed streams


class TestMixedPrompts:
    PROMPTS = tuple(Prompt(f"{domain}{number}", domain, "text") for number in range(6) for domain in "abc")

    def domains(self, ratio: float, seed: int = 1) -> str:
        return "".join(prompt.domain for prompt in mixed_prompts(self.PROMPTS, ratio, seed))

    @pytest.mark.parametrize("ratio", [0, 0.3, 0.7, 1])
    def test_each_comes_once(self, ratio: float) -> None:
        found = mixed_prompts(self.PROMPTS, ratio, 1)
        assert sorted(prompt.id for prompt in found) == sorted(prompt.id for prompt in self.PROMPTS)
        assert [prompt.id for prompt in found if prompt.domain == "b"] == [f"b{number}" for number in range(6)]

    def test_from_domain_by_domain_to_always_another(self) -> None:
        assert self.domains(0) in ("a" * 6 + "b" * 6 + "c" * 6, "a" * 6 + "c" * 6 + "b" * 6)
        restless = self.domains(1)
        only_one_is_left = next(place for place in range(18) if len(set(restless[place:])) == 1)
        assert all(before != after for before, after in itertools.pairwise(restless[: only_one_is_left + 1]))

    def test_the_seed_decides(self) -> None:
        assert self.domains(0.5, 3) == self.domains(0.5, 3)
        assert len({self.domains(0.5, seed) for seed in range(5)}) > 1


# ------------------------------------------------------------------------------------------------------- long texts


class TestContextPrompts:
    PROMPTS = tuple(Prompt(str(number), "chat", f"{number}: rain and the" * 2) for number in range(4))

    @pytest.mark.parametrize("template", [None, TEMPLATE])
    def test_as_long_as_asked_for(self, template: str | None) -> None:
        engine = engine_with(template)
        found = context_prompts(self.PROMPTS, engine, [90, 200, 90], 3)
        assert [prompt.domain for prompt in found] == ["context 90"] * 3 + ["context 200"] * 3
        assert [prompt.id for prompt in found[3:]] == ["context-200-0", "context-200-1", "context-200-2"]
        for prompt in found:
            length = int(prompt.domain.split()[1])
            assert length - 8 <= len(encode(prompt, engine)) <= length

    def test_no_character_is_cut(self, engine: Engine) -> None:
        prompts = [Prompt("question", "chat", "why"), Prompt("other", "chat", "🙂" * 9)]
        for prompt in context_prompts(prompts, engine, range(20, 30), 1):
            assert set(prompt.text) == set("🙂\n\nwhy")

    def test_other_texts_stand_in_front_of_the_question(self, engine: Engine) -> None:
        found = context_prompts(self.PROMPTS, engine, [240], 4)
        assert [prompt.text[:2] for prompt in found] == ["1:", "2:", "3:", "0:"]
        for prompt, question in zip(found, self.PROMPTS, strict=True):
            assert prompt.text.endswith("\n\n" + question.text)
            before = prompt.text.removesuffix(question.text)
            assert question.text not in before
            assert sum(other.text in before for other in self.PROMPTS) >= 2

    def test_letters_that_are_tokens(self) -> None:
        engine = Engine(pico("llama"), letter_tokenizer())
        prompts = [Prompt("a", "chat", "abc"), Prompt("b", "chat", "xyz", ("later",))]
        first, second = context_prompts(prompts, engine, [12], 2)
        assert first.text.startswith("xyz")
        assert (second.text[:3], second.later) == ("abc", ())
        assert [len(encode(prompt, engine)) for prompt in (first, second)] == [12, 12]

    @pytest.mark.parametrize(
        ("prompts", "length", "count", "message"),
        [
            (PROMPTS, CONTEXT_LENGTH, 1, f"{CONTEXT_LENGTH} tokens leaves no room .* at most {CONTEXT_LENGTH - 1}"),
            (PROMPTS, 100, 5, "4 prompts are shorter than 100 tokens, but 5 are asked for"),
            (PROMPTS, 3, 1, "0 prompts are shorter than 3 tokens, but 1 are asked for"),
            (PROMPTS[:1], 100, 1, "no other prompt to put in front of 0; name at least two"),
        ],
    )
    def test_what_cannot_be(
        self, engine: Engine, prompts: Sequence[Prompt], length: int, count: int, message: str
    ) -> None:
        with pytest.raises(OptionError, match=message):
            context_prompts(prompts, engine, [length], count)


# --------------------------------------------------------------------------------------------------------- datasets

QUESTIONS = [{"question": "1+1?", "answer": "2"}, {"question": " ", "answer": ""}, {"question": "2+2?", "answer": "4"}]


class FakeHub:
    """What `datasets` would say: `splits` by name; `calls`: what was asked for; `num_read`: how many rows."""

    def __init__(self, **splits: Sequence[Any]) -> None:
        self.splits = dict(splits)
        self.calls: list[tuple[str, str | None, str | None]] = []
        self.num_read = 0

    def load_dataset(self, name: str, config: str | None, *, split: str | None, streaming: bool) -> Any:
        assert streaming, "nothing big is fetched"
        self.calls.append((name, config, split))
        rows = {known: self._read(known) for known in self.splits}
        return rows if split is None else rows[split]

    def _read(self, split: str) -> Iterator[dict[str, Any]]:
        """An error among the rows is one that reading meets there."""
        for row in self.splits[split]:
            self.num_read += 1
            if isinstance(row, Exception):
                raise row
            yield row


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    made = FakeHub(train=[{"question": "train?"}] * 99, test=QUESTIONS)
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=made.load_dataset))
    return made


class TestDatasets:
    def test_only_a_name(self, hub: FakeHub) -> None:
        assert dataset_prompts("openai/gsm8k", 5) == [
            Prompt("gsm8k-1", "gsm8k", "1+1?"),
            Prompt("gsm8k-3", "gsm8k", "2+2?"),
        ]
        assert hub.calls == [("openai/gsm8k", None, None)]

    def test_everything_named(self, hub: FakeHub) -> None:
        hub.splits["train"] = [{"question": "no", "answer": "yes"}]
        prompts = dataset_prompts("openai/gsm8k, config=main, split=train, column=answer, domain=math", 5)
        assert prompts == [Prompt("gsm8k-1", "math", "yes")]
        assert hub.calls == [("openai/gsm8k", "main", "train")]

    def test_no_more_than_needed_is_read(self, hub: FakeHub) -> None:
        assert len(dataset_prompts("a/b,split=train", 4)) == 4
        assert hub.num_read == 4

    @pytest.mark.parametrize(
        ("row", "turns"),
        [
            ({"text": "late", "prompt": "early"}, ["early"]),
            ({"input": "late", "instruction": "early"}, ["early"]),
            ({"article": "news", "summary": "short"}, ["news"]),
            ({"prompt": ["first", "second"]}, ["first", "second"]),
        ],
    )
    def test_a_column_that_is_called_like_a_prompt(self, hub: FakeHub, row: dict[str, Any], turns: list[str]) -> None:
        blank = [dict.fromkeys(row), {name: [] for name in row}]
        hub.splits = {"only": [*blank, row]}
        assert dataset_prompts("a/talks", 9) == [Prompt("talks-3", "talks", turns[0], tuple(turns[1:]))]

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("", "does not name a dataset; write it like openai/gsm8k,config="),
            ("a/b,test", "'test' in 'a/b,test' is not a setting; write it like openai/gsm8k,config="),
            ("a/b,split=", "'split=' in 'a/b,split=' is not a setting"),
            ("a/b,colum=x", r"unknown setting of a dataset 'colum'\. Did you mean 'column'\? Known: column, config"),
            ("a/b,column=quest", r"unknown column of a/b 'quest'\. Did you mean 'question'\? Known: answer, question"),
            ("a/b,split=dev", "cannot read the dataset 'a/b': KeyError: 'dev'"),
            ("a/b,split=odd", "no column called prompt, .* but story, title; .*: a/b,column=story"),
            ("a/b,split=number", "column 'text' of the dataset 'a/b' holds 7, which is not text; .*,column=NAME"),
            ("a/b,split=objects", "which is not text"),
            ("a/b,split=blank", "the dataset 'a/b' has no row with text"),
            ("a/b,split=empty", "the dataset 'a/b' has no row with text"),
            ("a/b,split=offline", "cannot read the dataset 'a/b': ConnectionError: Couldn't reach the Hub"),
        ],
    )
    def test_what_cannot_be_read(self, hub: FakeHub, name: str, message: str) -> None:
        hub.splits |= {
            "odd": [{"story": "x", "title": "y"}],
            "number": [{"text": 7}],
            "objects": [{"text": ["x", {}]}],
            "blank": [{"text": ""}],
            "empty": [],
            "offline": [{"text": "one"}, ConnectionError("Couldn't reach\n  the Hub")],
        }
        with pytest.raises(OptionError, match=message):
            dataset_prompts(name, 3)

    def test_without_the_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "datasets", None)
        with pytest.raises(OptionError, match=r"'a/b' cannot be read .*: pip install \"selfdraft\[datasets\]\""):
            dataset_prompts("a/b", 3)


# ------------------------------------------------------------------------------------------------- several at once


class TestSelectPrompts:
    def test_nothing_named_is_all_of_ours(self) -> None:
        assert select_prompts([], [], [], None) == select_prompts(["math", "all"], [], [], None) == builtin_prompts()

    def test_some_of_ours(self) -> None:
        found = select_prompts(["sql", "math"], [], [], 2)
        assert [prompt.id for prompt in found] == ["sql-01", "math-01", "sql-02", "math-02"]

    def test_files_alone(self) -> None:
        files = [("talks.jsonl", lines(SPEC_BENCH, {"prompt": "unlabelled"}))]
        assert [(prompt.id, prompt.domain) for prompt in select_prompts([], files, [], None)] == [
            ("81", "writing"),
            ("talks-2", "talks"),
        ]

    def test_all_kinds_in_turn(self, hub: FakeHub) -> None:
        files = [("a.jsonl", lines(*[{"domain": "chat", "prompt": f"{number}"} for number in range(3)]))]
        found = select_prompts(["code"], files, ["openai/gsm8k,split=train"], 2)
        assert [prompt.domain for prompt in found] == ["code", "chat", "gsm8k"] * 2
        assert hub.num_read == 2
        assert len(builtin_prompts()) // len(PROMPT_SETS) == DATASET_PROMPTS
        assert len(select_prompts([], [], ["a/b,split=train"], None)) == DATASET_PROMPTS

    def test_no_id_twice(self) -> None:
        rows = [{"id": name, "domain": "a", "prompt": f"text {name}"} for name in ("x", "y", "x-2")]
        found = select_prompts([], [("a.jsonl", lines(*rows)), ("b.jsonl", lines(*rows[:2]))], [], None)
        assert [prompt.id for prompt in found] == ["x", "y", "x-2", "x-3", "y-2"]
        assert [prompt.text for prompt in found] == ["text x", "text y", "text x-2", "text x", "text y"]
