"""The interface in Python: signatures, what results look like, forms of prompts, seeds, cancelling, and every slip."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import functools
import html
import inspect
import itertools
import json
import pickle
import pydoc
import re
import threading
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from transformers import BatchEncoding, TextGenerationPipeline

import selfdraft
from learned import profile
from pico import CONTEXT_LENGTH, NUM_LAYERS, VOCAB_SIZE, letter_tokenizer, pico
from selfdraft import Engine, GenerateOptions, Generation, ModelError, OptionError, PromptError, SelfdraftError, decoder
from selfdraft.engine.keywords import CALL_NAMES, METHOD_NAMES, CallOptions, MethodOptions
from selfdraft.engine.text import encode_prompts
from selfdraft.options import describe
from selfdraft.registry import AXES, resolve
from selfdraft.types import FinishReason

ROOT = Path(__file__).parents[1]
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
TEMPLATE = (
    "{% if tools %}{{ tools[0].name }}{% endif %}{% for m in messages %}({{ m.role }}){{ m.content }}/{% endfor %}"
    "{% if add_generation_prompt %}(bot){% if enable_thinking %}?{% endif %}{% endif %}"
)
PLAIN_TEMPLATE = (
    "{% for m in messages %}({{ m.role }}){{ m.content }}/{% endfor %}{% if add_generation_prompt %}(bot){% endif %}"
)
"""Reads nothing but messages, as that of the default model."""


@functools.cache
def engine() -> Engine:
    tokenizer = letter_tokenizer()
    tokenizer.chat_template, tokenizer.pad_token = TEMPLATE, "!"
    return Engine(pico("llama"), tokenizer, strategy="uniform", settings={"confidence": {"threshold": 0.4}})


@functools.cache
def generated() -> Generation:
    return engine().generate(PROMPT, max_new_tokens=30)


# ------------------------------------------------------------------------------------------------------ signatures


def keywords_of(function: Any) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(function).parameters
    assert not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    return {name: one for name, one in parameters.items() if one.kind is inspect.Parameter.KEYWORD_ONLY}


OF_A_CALL = [Engine.generate, Engine.stream, Engine.compare, Engine.verify]
OF_A_METHOD = [Engine, Engine.from_pretrained, decoder, Engine.prepare, Engine.save, Engine.names, Engine.method]


def test_the_keywords_are_those_that_are_validated() -> None:
    """Written three times, never apart: the types, the options that validate, the axes."""
    fields = {item.name for item in dataclasses.fields(GenerateOptions)}
    assert set(MethodOptions.__annotations__) == {*AXES, "settings"} == set(METHOD_NAMES)
    assert set(typing.get_type_hints(CallOptions)) == {*fields, *METHOD_NAMES, "chat_template_kwargs"}
    assert set(CALL_NAMES) == set(typing.get_type_hints(CallOptions))
    hints, own = typing.get_type_hints(CallOptions), typing.get_type_hints(GenerateOptions)
    plain = {name: own[name] for name in fields - {"seed", "stop", "processors", "cancel", "logit_bias"}}
    assert {name: hints[name] for name in plain} == plain
    assert hints["seed"] == int | None


@pytest.mark.parametrize("function", OF_A_CALL, ids=lambda one: one.__name__)
def test_a_call_shows_its_keywords_with_types_and_defaults(function: Any) -> None:
    keywords = keywords_of(function)
    assert set(CALL_NAMES) <= set(keywords)
    hints = typing.get_type_hints(CallOptions)
    for name, default, _ in describe(GenerateOptions):
        assert (keywords[name].default, keywords[name].annotation) == (default, hints[name])
    for name in METHOD_NAMES:
        assert (keywords[name].default, keywords[name].annotation) == (None, hints[name])


@pytest.mark.parametrize("function", OF_A_METHOD, ids=lambda one: one.__name__)
def test_what_takes_a_method_shows_its_keywords(function: Any) -> None:
    keywords = keywords_of(function)
    assert set(METHOD_NAMES) <= set(keywords)
    assert not {item.name for item in dataclasses.fields(GenerateOptions)} - {"seed"} & set(keywords)


def test_help_documents_every_keyword() -> None:
    shown = pydoc.plain(pydoc.render_doc(Engine.generate))
    for name, default, text in describe(GenerateOptions):
        assert re.search(rf"{name}: [^=]*= {re.escape(repr(default))}[,)]", shown), name
        assert f"{name}: {text}" in shown
    for axis, table in AXES.items():
        assert re.search(rf"{axis}: [^\n]*{', '.join(table)}\n", shown), axis
    assert "chat_template_kwargs: for messages" in shown
    for function in (Engine.__init__, decoder):
        assert "strategy: which sub-layers draft: auto, " in inspect.getdoc(function)


def test_the_implementation_takes_what_the_signature_says() -> None:
    """Every keyword at its default is the call without it; it reaches the engine as it was typed."""
    defaults = {name: one.default for name, one in keywords_of(Engine.generate).items()}
    assert engine().generate(PROMPT, **{**defaults, "max_new_tokens": 30}).tokens == generated().tokens
    assert Engine(pico("llama"), **dict.fromkeys(METHOD_NAMES)).names() == resolve({})


def test_a_lookahead_of_the_callers_is_an_object() -> None:
    own = engine().method(lookahead="fixed").lookahead
    ids = torch.tensor([PROMPT])
    found = pico("llama").generate(ids, custom_generate=decoder(lookahead=own), max_new_tokens=30, do_sample=False)
    assert found[0, len(PROMPT) :].tolist() == list(engine().generate(PROMPT, lookahead=own, max_new_tokens=30).tokens)


def test_the_docs_run(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    tokenizer = letter_tokenizer()
    tokenizer.chat_template, tokenizer.pad_token = PLAIN_TEMPLATE, "!"
    own = Engine(pico("llama"), tokenizer)
    names: dict[str, Any] = {"engine": own, "tokenizer": tokenizer, "selfdraft": selfdraft}
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(code, "docs/python.md", "exec"), names)
    assert capsys.readouterr().out.startswith(str(engine().generate("Once upon a time", max_new_tokens=16)))
    assert names["generation"].finish_reason == "length"
    fields = {item.name for item in dataclasses.fields(Generation)}
    listed = re.findall(r"^\| (`.*?) \|", page.partition("| field | is |")[2].partition("```")[0], re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(listed))) == fields
    reasons = typing.get_args(FinishReason)
    assert all(f"`{reason}`" in page for reason in reasons)


# ---------------------------------------------------------------------------------------------- what things look like


def test_an_engine_shows_its_model_and_method() -> None:
    shown = repr(engine())
    assert shown.startswith(f"Engine('LlamaForCausalLM', {NUM_LAYERS} layers, float32, cpu, strategy='uniform', ")
    assert shown.endswith("acceptance='coupled', settings={'confidence': {'threshold': 0.4}})")
    named = repr(Engine(pico("llama"), name="mine", strategy="off"))
    assert "Engine('mine', " in named
    assert "strategy='off'" in named
    assert "settings" not in named


def test_a_stream_shows_how_far_it_is() -> None:
    stream = engine().stream(PROMPT, max_new_tokens=5, strategy="off")
    assert repr(stream) == "Stream(1 prompt, 0 new tokens, running)"
    next(iter(stream))
    stream = engine().stream([PROMPT, [1]], max_new_tokens=5)
    stream.run()
    assert repr(stream) == "Stream(2 prompts, 10 new tokens, length)"


def test_a_generation_is_its_text_and_its_repr_is_short() -> None:
    found = dataclasses.replace(generated(), text="It rains. " * 50)
    assert str(found) == found.text
    assert len(repr(found)) < 140
    speed = f"{found.stats.tokens_per_second:.1f} tokens/s"
    assert re.fullmatch(r"Generation\('It rains.*\.\.\..*It rains. ', 30 tokens, ended by length, .*\)", repr(found))
    assert speed in repr(found)
    ids = repr(Engine(pico("llama")).generate(PROMPT, max_new_tokens=30))
    assert ids.startswith("Generation([")
    assert len(ids) < 140


def test_a_generation_in_a_notebook_has_coloured_tokens_and_figures() -> None:
    found = generated()
    page = found._repr_html_()
    spans = re.findall(r'<span style="color:(#\w+)" title="token (\d+), (\w+)">(.*?)</span>', page, re.DOTALL)
    assert [int(token) for _, token, _, _ in spans] == list(found.tokens)
    assert tuple(source for _, _, source, _ in spans) == found.sources
    assert {color for color, _, source, _ in spans if source == "draft"} == {"#1a9c3e"}
    assert {color for color, _, source, _ in spans if source == "target"} == {"#0b8fa8"}
    assert html.unescape("".join(text for *_, text in spans)) == found.text
    stats = found.stats
    assert f"30 tokens in {stats.num_target_passes} passes, {stats.tokens_per_second:.1f} tokens/s" in page
    assert f"{stats.num_accepted} drafted</span>" in page
    assert page.endswith("ended by length</small>")


def test_what_a_model_says_is_not_taken_for_markup() -> None:
    said = ("<script>", "alert('&')", "</script>")
    evil = dataclasses.replace(generated(), text="".join(said), tokens=(1, 2, 3), sources=("target",) * 3, pieces=said)
    page = evil._repr_html_()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    without_text = Engine(pico("llama")).generate(PROMPT, max_new_tokens=3)
    assert all(f">{token} </span>" in without_text._repr_html_() for token in without_text.tokens)


def test_pieces_are_the_text_token_by_token() -> None:
    found = generated()
    assert len(found.pieces) == len(found.tokens)
    stopped = engine().generate(PROMPT, max_new_tokens=30, stop=found.text[10:12])
    assert "".join(found.pieces) == found.text
    assert "".join(stopped.pieces) == stopped.text == found.text[: found.text.index(found.text[10:12])]


def test_pieces_and_rounds_are_made_when_they_are_first_read() -> None:
    """Nobody notices: equal, copied, pickled and streamed generations are the same."""
    tokenizer = letter_tokenizer()
    with mock.patch.object(type(tokenizer), "decode", autospec=True, side_effect=type(tokenizer).decode) as decode:
        found = Engine(pico("llama"), tokenizer, strategy="uniform").generate(PROMPT, max_new_tokens=20)
        assert decode.call_count == 1
        restored, copied = pickle.loads(pickle.dumps(found)), copy.copy(found)
        assert restored == copied == dataclasses.replace(found) == found
        assert decode.call_count > 20
    with Engine(pico("llama"), tokenizer, strategy="uniform").stream(PROMPT, max_new_tokens=20) as stream:
        pieces = [piece.text for chunk in stream for piece in chunk.pieces]
    assert tuple(pieces) == stream.generation.pieces == found.pieces
    assert stream.generation.text == found.text
    assert len(restored.steps) == found.stats.num_rounds
    assert dataclasses.replace(found, pieces=("a",)) != found


@pytest.mark.parametrize("strategy", ["uniform", "swift", "knn"])
def test_a_generation_becomes_json(strategy: str) -> None:
    one = Engine(pico("llama"), letter_tokenizer(), strategy=strategy, profile=profile())
    found = one.generate(PROMPT, max_new_tokens=20, temperature=0.7, seed=3)
    document = json.loads(json.dumps(found.to_dict()))
    assert document["text"] == found.text
    assert document["tokens"] == list(found.tokens)
    assert document["sources"] == list(found.sources)
    assert (document["seed"], document["finish_reason"], document["num_prompt_tokens"]) == (3, "length", len(PROMPT))
    assert document["stats"] == dataclasses.asdict(found.stats)
    assert document["report"] == dict(found.report)
    fields = {item.name for item in dataclasses.fields(Generation)}
    assert set(document) == fields - {"steps"}


# ---------------------------------------------------------------------------------------------------------- prompts

IDS = torch.tensor(PROMPT)
PADDED = torch.tensor([[0, 0, 3, 1], [7, 8, 9, 9]])
LEFT = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])


@pytest.mark.parametrize(
    "prompt",
    [
        IDS,
        IDS[None],
        IDS.int(),
        IDS.numpy(),
        IDS[None].numpy(),
        IDS.numpy().astype(np.uint16),
        IDS.numpy().astype(">i8"),
        list(IDS),
        list(IDS.numpy()),
        {"input_ids": IDS},
        {"input_ids": PROMPT, "attention_mask": [1] * 8},
        BatchEncoding({"input_ids": IDS[None], "attention_mask": torch.ones(1, 8, dtype=torch.long)}),
        {"input_ids": torch.tensor([[0, *PROMPT]]), "attention_mask": torch.tensor([[0] + [1] * 8])},
        {"input_ids": np.array([*PROMPT, 0, 0]), "attention_mask": np.array([True] * 8 + [False] * 2)},
    ],
    ids=lambda value: f"{type(value).__name__}-{getattr(value, 'dtype', '')}",
)
def test_one_prompt_as_tensor_array_or_encoding(prompt: Any) -> None:
    found = engine().generate(prompt, max_new_tokens=30)
    assert isinstance(found, Generation)
    assert found.tokens == generated().tokens
    assert found.num_prompt_tokens == len(PROMPT)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (PADDED, [[0, 0, 3, 1], [7, 8, 9, 9]]),
        (PADDED.numpy(), [[0, 0, 3, 1], [7, 8, 9, 9]]),
        ({"input_ids": PADDED, "attention_mask": LEFT}, [[3, 1], [7, 8, 9, 9]]),
        ({"input_ids": PADDED.flip(1), "attention_mask": LEFT.flip(1)}, [[1, 3], [9, 9, 8, 7]]),
        ({"input_ids": [[5], [6, 7]]}, [[5], [6, 7]]),
        ({"input_ids": [[5]], "attention_mask": [[1]]}, [[5]]),
        ([IDS, IDS[None, :2]], [PROMPT, PROMPT[:2]]),
        ([{"input_ids": IDS}, PROMPT[:2]], [PROMPT, PROMPT[:2]]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_several_prompts_as_tensors_arrays_or_encodings(prompt: Any, expected: list[list[int]]) -> None:
    found = engine().generate(prompt, max_new_tokens=12)
    alone = engine().generate(expected, max_new_tokens=12)
    assert [one.tokens for one in found] == [one.tokens for one in alone]


def test_what_the_tokenizer_returns_is_a_prompt() -> None:
    tokenizer, texts = engine().tokenizer, ["abcdef", "xy"]
    expected = [one.tokens for one in engine().generate(texts, max_new_tokens=9)]
    for side in ("left", "right"):
        tokenizer.padding_side = side
        batch = tokenizer(texts, return_tensors="pt", padding=True)
        assert [one.tokens for one in engine().generate(batch, max_new_tokens=9)] == expected
    assert [one.tokens for one in engine().generate(tokenizer(texts), max_new_tokens=9)] == expected
    assert engine().generate(tokenizer(texts[0], return_tensors="pt"), max_new_tokens=9).tokens == expected[0]
    assert engine().generate(tokenizer(texts[0]), max_new_tokens=9).tokens == expected[0]


def test_verify_and_compare_take_the_same_forms() -> None:
    tokens = torch.tensor(generated().tokens)
    assert engine().verify(IDS[None], generated(), max_new_tokens=30).verdict == "equal"
    assert engine().verify({"input_ids": PROMPT}, tokens, max_new_tokens=30).verdict == "equal"
    assert engine().compare(IDS, tokens.numpy(), generated()).verdict == "equal"


# --------------------------------------------------------------------------------------------------- chat templates

ASK = [{"role": "user", "content": "Hi"}]


def rendered(messages: Any, **chat: Any) -> str:
    """What the engine makes of messages; one character is one token."""
    (tokens,), is_batch = encode_prompts(messages, engine().tokenizer, chat)
    assert not is_batch
    return engine().tokenizer.decode(tokens)


def test_the_template_gets_what_it_takes() -> None:
    assert rendered(ASK) == "(user)Hi/(bot)"
    assert rendered(ASK, enable_thinking=True) == "(user)Hi/(bot)?"
    assert rendered(ASK, enable_thinking=False) == "(user)Hi/(bot)"
    assert rendered(ASK, tools=[{"name": "look"}]) == "look(user)Hi/(bot)"
    assert rendered(ASK, add_generation_prompt=False) == "(user)Hi/"
    assert rendered(ASK, chat_template="{{ messages[0].content }}{{ more }}", more="+") == "Hi+"


def test_an_assistants_last_message_is_continued() -> None:
    started = [*ASK, {"role": "assistant", "content": "Well"}]
    assert rendered(started) == "(user)Hi/(assistant)Well"
    assert rendered([*started, *ASK]) == "(user)Hi/(assistant)Well/(user)Hi/(bot)"
    assert rendered(started, add_generation_prompt=True) == "(user)Hi/(assistant)Well/(bot)"
    called = [*ASK, {"role": "assistant", "content": "f", "tool_calls": [{"name": "f"}]}]
    assert rendered(called) == "(user)Hi/(assistant)f/(bot)", "a call of a tool is a whole turn"
    for none in (None, []):
        assert rendered([*ASK, {**started[1], "tool_calls": none}]) == "(user)Hi/(assistant)Well", "no call of a tool"


def test_of_several_templates_the_chosen_one_is_read() -> None:
    tokenizer, tools = letter_tokenizer(), [{"name": "look"}]
    tokenizer.chat_template = {"default": "{{ messages[0].content }}", "tool_use": "{{ tools[0].name }}"}
    for chat in ({"chat_template": "tool_use", "tools": tools}, {"tools": tools}):
        (tokens,), _ = encode_prompts(ASK, tokenizer, chat)
        assert tokenizer.decode(tokens) == "look"
    with pytest.raises(OptionError, match="does not read 'tools'"):
        encode_prompts(ASK, tokenizer, {"chat_template": "default", "tools": tools})


@pytest.mark.parametrize(
    "template",
    [
        "{% set more = more or '-' %}{{ more }}",
        "{% if more is defined %}{% set more = more %}{% endif %}{{ more }}",
        "{% macro f(x) %}{{ x }}{% endmacro %}{{ f(more) }}",
        "{% for m in messages %}{% generation %}{{ more }}{% endgeneration %}{% break %}{% endfor %}",
    ],
)
def test_a_name_that_a_template_reads_in_any_way(template: str) -> None:
    assert rendered(ASK, chat_template=template, more="+") == "+"


def test_generate_passes_them_on_and_so_does_verify() -> None:
    chat = {"enable_thinking": True}
    for messages in (ASK, [*ASK, {"role": "assistant", "content": "Well"}]):
        found = engine().generate(messages, chat_template_kwargs=chat, max_new_tokens=9)
        expected = engine().generate(rendered(messages, **chat), max_new_tokens=9)
        assert found.tokens == expected.tokens
        assert found.num_prompt_tokens == expected.num_prompt_tokens
        judged = engine().verify(messages, found, chat_template_kwargs=chat, max_new_tokens=9)
        assert judged.verdict == "equal"
    assert found.tokens == engine().generate("(user)Hi/(assistant)Well", max_new_tokens=9).tokens


# ------------------------------------------------------------------------------------------ seeds, endings, cancelling


def test_a_seed_is_drawn_and_told() -> None:
    call = {"max_new_tokens": 20, "temperature": 1.0}
    found = [engine().generate(PROMPT, seed=None, **call) for _ in range(3)]
    assert len({one.seed for one in found}) == len({one.tokens for one in found}) == 3
    for one in found:
        assert engine().generate(PROMPT, seed=one.seed, strategy="off", **call).tokens == one.tokens
        assert engine().verify(PROMPT, one, seed=None, **call).verdict == "equal", "it is judged by its own seed"
        assert engine().compare(PROMPT, one, one.tokens, seed=None, **call).verdict == "equal"
    assert engine().generate(PROMPT, seed=7, **call).seed == 7
    assert engine().generate(PROMPT, **call).seed == 0
    rows = engine().generate([PROMPT, PROMPT], seed=None, **call)
    assert rows[0].seed == rows[1].seed
    assert rows[0].tokens != rows[1].tokens
    assert engine().generate(PROMPT, seed=rows[1].seed, sequence=1, **call).tokens == rows[1].tokens


@pytest.mark.parametrize("strategy", ["off", "uniform"])
@pytest.mark.parametrize(("limit", "reason"), [(9, "length"), (10, "length"), (11, "context"), (500, "context")])
def test_a_full_context_is_told_from_the_limit(strategy: str, limit: int, reason: str) -> None:
    prompt = [5] * (CONTEXT_LENGTH - 10)
    found = engine().generate(prompt, max_new_tokens=limit, strategy=strategy)
    assert (found.finish_reason, len(found.tokens)) == (reason, min(limit, 10))
    assert engine().verify(prompt, found, max_new_tokens=limit).verdict == "equal"
    other = {"length": "context", "context": "length"}[reason]
    judged = engine().verify(prompt, found.tokens, finish_reason=other, max_new_tokens=limit)
    assert f"ends by {reason}, but its finish_reason is {other}" in judged.faults[0]
    early = engine().verify(prompt, found.tokens[:-1], finish_reason=reason, max_new_tokens=limit)
    assert "ends too early" in early.faults[0]


@pytest.mark.parametrize(("limit", "reason"), [(6, "length"), (7, "context")])
@pytest.mark.filterwarnings("ignore:the text ends after")
def test_inside_generate_too(limit: int, reason: str) -> None:
    decode = decoder()
    ids = torch.tensor([[5] * (CONTEXT_LENGTH - 6)])
    pico("llama").generate(ids, custom_generate=decode, max_new_tokens=limit)
    assert [one.finish_reason for one in decode.generations] == [reason]


@pytest.mark.parametrize("kind", [threading.Event, asyncio.Event])
def test_an_event_cancels(kind: Callable[[], Any]) -> None:
    event = kind()
    stream = engine().stream(PROMPT, max_new_tokens=100, strategy="off", cancel=event)
    for number, _ in enumerate(stream):
        if number == 4:
            event.set()
    assert (stream.generation.finish_reason, len(stream.generation.tokens)) == ("cancelled", 5)
    event.clear()
    assert engine().generate(PROMPT, max_new_tokens=30, cancel=event).tokens == generated().tokens


def test_what_cancels_is_asked_whatever_it_is() -> None:
    assert engine().generate(PROMPT, max_new_tokens=30, cancel=Falsy()).finish_reason == "cancelled"


def test_numbers_of_numpy() -> None:
    found = engine().generate(PROMPT, max_new_tokens=np.int64(9), temperature=np.float32(0.5), seed=np.uint64(3))
    assert found.tokens == engine().generate(PROMPT, max_new_tokens=9, temperature=0.5, seed=3).tokens
    assert json.dumps(found.to_dict()["seed"]) == "3"


# --------------------------------------------------------------------------------------------------------- async for


async def read(stream: selfdraft.Stream) -> list[selfdraft.Chunk]:
    return [chunk async for chunk in stream]


def test_async_for_gives_the_same_chunks() -> None:
    chunks = asyncio.run(read(engine().stream(PROMPT, max_new_tokens=30)))
    assert chunks == list(engine().stream(PROMPT, max_new_tokens=30))
    assert "".join(chunk.text for chunk in chunks) == generated().text


def test_rounds_run_in_one_worker_and_the_loop_goes_on() -> None:
    threads, ticks = set(), itertools.count()

    def watched(prefix: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        threads.add(threading.current_thread())
        return scores

    async def tick() -> None:
        while True:
            next(ticks)
            await asyncio.sleep(0)

    async def all_of_it() -> list[list[selfdraft.Chunk]]:
        beside = asyncio.create_task(tick())
        streams = [engine().stream(prompt, max_new_tokens=20, processors=[watched]) for prompt in (PROMPT, [1], [2])]
        found = await asyncio.gather(*map(read, streams))
        beside.cancel()
        return found

    found = asyncio.run(all_of_it())
    assert len(threads) == 1, "streams of one engine take turns"
    assert threading.current_thread() not in threads
    assert next(ticks) > 20
    for chunks, prompt in zip(found, (PROMPT, [1], [2]), strict=True):
        text = "".join(chunk.text for chunk in chunks)
        assert text == engine().generate(prompt, max_new_tokens=20).text, "together as alone"


@pytest.mark.parametrize("leave", ["break", "with", "cancel"])
def test_leaving_early_cancels(leave: str) -> None:
    stream = engine().stream(PROMPT, max_new_tokens=200, strategy="off")

    async def some() -> None:
        async for _ in stream:
            break
        async with asyncio.timeout(60):  # the loop closes what `break` left
            while "running" in repr(stream):
                await asyncio.sleep(0.001)

    async def some_with() -> None:
        async with stream:
            async for _ in stream:
                break
        assert stream.generation.finish_reason == "cancelled"

    async def some_of_a_task() -> None:
        started = asyncio.Event()

        async def job() -> None:
            async for _ in stream:
                started.set()

        task = asyncio.create_task(job())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run({"break": some, "with": some_with, "cancel": some_of_a_task}[leave]())
    found = stream.generation
    assert found.finish_reason == "cancelled"
    assert 0 < len(found.tokens) < 200
    assert found.tokens == engine().generate(PROMPT, max_new_tokens=len(found.tokens), strategy="off").tokens


def test_an_error_of_a_round_reaches_the_loop() -> None:
    def breaks(prefix: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        asyncio.run(read(engine().stream(PROMPT, processors=[breaks])))


# ------------------------------------------------------------------------------------------------------------- slips


def on_meta() -> Any:
    return copy.deepcopy(pico("llama")).to("meta")


def generate(prompt: Any = PROMPT, **options: Any) -> Callable[[], Any]:
    return lambda: engine().generate(prompt, **{"max_new_tokens": 3, **options})


def verify(**options: Any) -> Callable[[], Any]:
    return lambda: engine().verify(PROMPT, [1], **options)


def masked(flag: Any) -> dict[str, Any]:
    return {"input_ids": PROMPT, "attention_mask": [flag] * len(PROMPT)}


def nested() -> torch.Tensor:
    return torch.nested.nested_tensor([IDS, IDS[:2]], layout=torch.jagged)


def half_in_half() -> Any:
    model = copy.deepcopy(pico("llama"))
    model.model.layers[1].half()
    return model


async def tomorrow() -> bool:
    return True


class Tomorrow:
    async def __call__(self) -> bool:
        return True


class Falsy:
    """An object that says False of itself, and True when it is asked."""

    def __bool__(self) -> bool:
        return False

    def __call__(self) -> bool:
        return True


def say(*messages: Any, **chat: Any) -> Callable[[], Any]:
    return generate(list(messages), chat_template_kwargs=chat)


def make(model: Any, *arguments: Any, **options: Any) -> Callable[[], Any]:
    return lambda: Engine(model() if isinstance(model, types.FunctionType) else model, *arguments, **options)


def pipeline() -> Any:
    return TextGenerationPipeline(copy.deepcopy(pico("llama")), letter_tokenizer())


LOAD = r"AutoModelForCausalLM\.from_pretrained.*Engine\.from_pretrained"
EMPTY = "the prompt is empty; pass some text, token ids or messages"
NO_PROMPT = "must be text, a list of token ids or a list of messages, got "
NEEDS = r"write it as \{'role': 'user', 'content': 'some text'\}"

BAD_CALLS: dict[str, tuple[Callable[[], Any], type[SelfdraftError], str]] = {
    # what a model is not
    "a name": (make("gpt2"), OptionError, r"takes a loaded model; for 'gpt2' use Engine\.from_pretrained"),
    "a class": (make(type(pico("llama"))), OptionError, f"got the class LlamaForCausalLM; load one with .*{LOAD}"),
    "a pipeline": (make(pipeline), OptionError, r"Pipeline; .*: Engine\(pipeline\.model, pipeline\.tokenizer\)"),
    "a tokenizer": (make(letter_tokenizer), OptionError, r"got .*; the model comes first: Engine\(model, tokenizer\)"),
    "swapped": (make(letter_tokenizer(), pico("llama")), OptionError, r"the model comes first"),
    "a number": (make(5), OptionError, f"takes a loaded model, got 5 of type int; load one with .*{LOAD}"),
    "a config": (make(pico("llama").config), OptionError, f"got .* of type LlamaConfig; load one with .*{LOAD}"),
    "a module": (make(torch.nn.Linear(2, 2)), ModelError, f"Linear is not a causal language model.*{LOAD}"),
    "no head": (make(pico("llama").model), ModelError, f"LlamaModel is not a causal language model.*{LOAD}"),
    "no weights": (make(on_meta), ModelError, r"no weights: .* is on the meta device\. Load it with from_pretrained"),
    "tokenizer's name": (make(pico("llama"), "gpt2"), OptionError, r"tokenizer, got 'gpt2' .*AutoTokenizer\.from_pre"),
    "a typo of Engine": (make(pico("llama"), stratgy="off"), OptionError, r"option of Engine 'stratgy'.*'strategy'\?"),
    "a call's option": (
        make(pico("llama"), seed=1),
        OptionError,
        r"belongs to a call: engine.generate\(prompt, seed=1",
    ),
    "a typo of decoder": (lambda: decoder(draftr="self"), OptionError, r"option of decoder 'draftr'.* 'drafter'\?"),
    "an engine": (
        lambda: Engine(engine()),
        OptionError,
        r"it is an engine already: use it as it is, or engine\.fork\(\)",
    ),
    "a tokenizer alone": (
        make(None, letter_tokenizer()),
        OptionError,
        r"got None .*needs its model: Engine\(model, tok",
    ),
    "half of it half": (
        make(half_in_half),
        ModelError,
        r"cannot read a text by itself: .*Half.* Bring it to one dtype",
    ),
    "a class of tokenizers": (
        make(pico("llama"), type(letter_tokenizer())),
        OptionError,
        r"tokenizer, got <class .*; pass",
    ),
    "graphs": (make(pico("llama"), graphs="x"), OptionError, "graphs must be true or false, got 'x'"),
    "no profile": (
        make(pico("llama"), profile="x.json"),
        OptionError,
        "profile must be what selfdraft.learn returns, .*n",
    ),
    "fork of 5": (lambda: engine().fork(5), OptionError, "profile must be .*, got 5"),
    "fork of an array": (lambda: engine().fork(np.ones(2)), OptionError, "profile must be "),
    "fork by 5": (lambda: engine().fork(method=5), OptionError, r"a method must be a dict like .*, got 5"),
    "remember 5": (lambda: engine().remember(5), OptionError, "profile must be .*, got 5"),
    "load 5": (lambda: Engine.from_pretrained(5), OptionError, "from_pretrained takes the id of .* got 5 of type int"),
    "load bytes": (lambda: Engine.from_pretrained(b"x"), OptionError, "got b'x' of type bytes"),
    "load a list": (lambda: Engine.from_pretrained(["x"]), OptionError, r"got \['x'\] of type list"),
    "load a model": (
        lambda: Engine.from_pretrained(pico("llama")),
        OptionError,
        r"of type LlamaForCausalLM; a loaded model goes to Engine\(model, tokenizer\)",
    ),
    "trust": (
        lambda: Engine.from_pretrained("x/y", trust_remote_code="yes"),
        OptionError,
        "trust_remote_code of from_pretrained must be True or False, got 'yes'",
    ),
    "a streamer": (lambda: decoder(streamer=5), OptionError, "streamer must have put and end, .*TextStreamer.* got 5"),
    "decoder's tokenizer": (lambda: decoder(tokenizer=5), OptionError, "tokenizer must be a loaded tokenizer, got 5"),
    "decoder not called": (
        lambda: pico("llama").generate(IDS[None], custom_generate=decoder, max_new_tokens=3),
        OptionError,
        r"decoder takes keywords only, and is called before it is passed: custom_generate=decoder\(\)",
    ),
    # what a prompt is not
    "nothing": (generate(None), PromptError, f"{NO_PROMPT}None"),
    "a number alone": (generate(1.5), PromptError, f"{NO_PROMPT}1.5"),
    "numbers": (generate([1.5, 2.5]), PromptError, f"{NO_PROMPT}1.5"),
    "a mix": (generate([5, "a"]), PromptError, "'a' stands among token ids; pass ids only, or text, or messages"),
    "a nested mix": (generate([[5, [6]]]), PromptError, r"\[6\] stands among token ids; pass ids only"),
    "too deep": (generate([[["a"]]]), PromptError, NO_PROMPT),
    "bytes": (generate(b"ab"), PromptError, f"{NO_PROMPT}b'ab'"),
    "no prompts": (generate([]), PromptError, EMPTY),
    "no rows": (generate(torch.zeros(0, 4, dtype=torch.long)), PromptError, EMPTY),
    "no tokens": (generate(torch.zeros(2, 0, dtype=torch.long)), PromptError, EMPTY),
    "no ids": (generate(np.array([], dtype=int)), PromptError, EMPTY),
    "no text": (generate(["a", ""]), PromptError, EMPTY),
    "scores": (
        generate(torch.rand(3, 4)),
        PromptError,
        r"whole numbers, .* got float32 \[3, 4\]; pass the tokenizer's",
    ),
    "a cube": (
        generate(np.zeros((1, 2, 3), dtype=int)),
        PromptError,
        r"got int64 \[1, 2, 3\]; pass the tokenizer's inp",
    ),
    "a number as tensor": (generate(torch.tensor(5)), PromptError, f"{NO_PROMPT}5"),
    "empty tensor": (generate(IDS.to("meta")), PromptError, r"Tensor cannot be read as a list \(.*meta.*; pass what"),
    "too short a mask": (
        generate({"input_ids": PROMPT, "attention_mask": [1]}),
        PromptError,
        r"attention_mask \[1\] does not fit input_ids \[3, .*; they must agree, one number per token",
    ),
    "a sparse tensor": (
        generate(IDS.to_sparse()),
        PromptError,
        r"a Tensor cannot be read as a list \(.*\); pass what the",
    ),
    "a nested tensor": (generate(nested()), PromptError, "cannot be read as a list"),
    "a nested tensor of numbers": (generate(nested().float()), PromptError, "must hold whole numbers"),
    "an empty mask": (
        generate({"input_ids": IDS[None], "attention_mask": torch.ones(1, 8, device="meta")}),
        PromptError,
        "cannot be read as a list .*meta",
    ),
    "a mask of NaN": (
        generate(masked(float("nan"))),
        PromptError,
        "attention_mask is of ones and zeros, got nan; leave",
    ),
    "a mask of text": (generate(masked("1")), PromptError, "ones and zeros, got '1'"),
    "a mask of tensors": (generate(masked(torch.ones(2))), PromptError, "ones and zeros, got "),
    "all padding": (
        generate({"input_ids": [[1]], "attention_mask": [[0]]}),
        PromptError,
        "all padding.* needs a token",
    ),
    "a hole": (
        generate({"input_ids": [1, 2, 3], "attention_mask": [1, 0, 1]}),
        PromptError,
        "hides token 1, inside the prompt; .* Leave the token out",
    ),
    "pictures": (
        generate({"input_ids": IDS, "pixel_values": IDS}),
        PromptError,
        "input_ids and attention_mask alone, got 'pixel_values' too; leave that out",
    ),
    "outside": (generate([VOCAB_SIZE]), PromptError, f"token id {VOCAB_SIZE} .*; use ids from 0 to {VOCAB_SIZE - 1}"),
    "a long one": (generate([1] * CONTEXT_LENGTH), PromptError, f"context holds {CONTEXT_LENGTH}; shorten the prompt"),
    # messages
    "no content": (say({"role": "user"}), PromptError, f"message 0 has no content: .*{NEEDS}"),
    "content None": (say(*ASK, {"role": "user", "content": None}), PromptError, f"message 1 has no content: .*{NEEDS}"),
    "content 5": (say({"role": "user", "content": 5}), PromptError, f"a content of type int: .*{NEEDS}"),
    "no role": (say({"content": "Hi"}), PromptError, f"message 0 has no role: .*{NEEDS}"),
    "a single message": (generate(ASK[0]), PromptError, r"a message belongs in a list of messages: \[\{"),
    "nothing to continue": (
        say(*ASK, {"role": "assistant", "content": ""}),
        PromptError,
        "an assistant's without text: there is nothing to continue; leave it out",
    ),
    "a refusing template": (
        say(*ASK, chat_template="{{ raise_exception('no ' + messages[0].role) }}"),
        PromptError,
        "the chat template cannot write these messages: .*no user. Change the messages or chat_template_kwargs",
    ),
    "a broken template": (say(*ASK, chat_template="{% if %}"), PromptError, "cannot write these messages: Template"),
    "no such switch": (
        say(*ASK, enable_thinkng=1),
        OptionError,
        "does not read 'enable_thinkng'.*; check its spelling",
    ),
    "ours": (say(*ASK, tokenize=False), OptionError, "cannot set 'tokenize', it belongs to the engine; leave it out"),
    "a loop's name": (say(*ASK, m=1), OptionError, "does not read 'm'"),
    "an attribute": (say(*ASK, content=1), OptionError, "does not read 'content'"),
    "the messages": (say(*ASK, messages=[]), OptionError, "cannot set 'messages', it belongs to the engine"),
    "for text": (
        generate("ab", chat_template_kwargs={"tools": []}),
        OptionError,
        "are for messages, got text; leave them",
    ),
    "for ids": (
        generate(chat_template_kwargs={"tools": []}),
        OptionError,
        "are for messages, got token ids; leave them",
    ),
    "no dict": (generate(ASK, chat_template_kwargs="on"), OptionError, "must be a dict like .*, got 'on'"),
    # processors
    "returns None": (
        generate(processors=[lambda prefix, scores: None]),
        OptionError,
        rf"processor <lambda> must return scores \[1, {VOCAB_SIZE}\], .*, but returned None; end it with `return",
    ),
    "returns a row": (
        generate(processors=[lambda prefix, scores: scores[0]]),
        OptionError,
        rf"must return scores \[1, {VOCAB_SIZE}\], .* but returned a tensor \[{VOCAB_SIZE}\]",
    ),
    "returns too few": (generate(processors=[lambda _, scores: scores[:, :5]]), OptionError, r"a tensor \[1, 5\]"),
    "returns a list": (generate(processors=[lambda _, scores: [1]]), OptionError, r"but returned \[1\]; end it"),
    "not a function": (generate(processors=[5]), OptionError, r"a processor must be a function .*, got 5"),
    "a class of processors": (
        generate(processors=[int]),
        OptionError,
        "must be a function .* may not be async or a class",
    ),
    "too few arguments": (generate(processors=[lambda scores: scores]), OptionError, "it is called with 2 arguments"),
    "returns None inside generate": (
        lambda: pico("llama").generate(
            IDS[None], custom_generate=decoder(), max_new_tokens=3, logits_processor=[lambda prefix, scores: None]
        ),
        OptionError,
        r"processor <lambda> must return scores .*, but returned None",
    ),
    # keywords
    "a typo of generate": (generate(max_tokens=5), OptionError, r"'max_tokens'. Did you mean 'max_new_tokens'\? Known"),
    "a typo of a method": (
        generate(stratgy="off"),
        OptionError,
        r"generate 'stratgy'. Did you mean 'strategy'\? Known",
    ),
    "a typo of verify": (lambda: engine().verify(PROMPT, [1], sed=1), OptionError, r"'sed'. Did you mean 'seed'\?"),
    "a typo of compare": (lambda: engine().compare(PROMPT, [1], [1], sed=1), OptionError, r"Did you mean 'seed'\?"),
    "a typo of prepare": (lambda: engine().prepare(9, drafer="x"), OptionError, r"Did you mean 'drafter'\?"),
    "prepare nothing": (
        lambda: engine().prepare("many"),
        OptionError,
        "num_tokens must be a whole number.* got 'many'",
    ),
    "nothing to save": (lambda: engine().save(), OptionError, "'uniform' learns nothing.* nothing to save; leave it"),
    "lookahead 5": (generate(lookahead=5), OptionError, r"lookahead must be a name \(fixed, .*wants_more.*, got 5"),
    "acceptance 5": (generate(acceptance=5), OptionError, r"acceptance must be a name \(coupled, .*accept, got 5"),
    "cancel now": (generate(cancel=True), OptionError, "cancel must be an event or a function .*, got True"),
    "cancel by a class": (
        generate(cancel=threading.Event),
        OptionError,
        "an event or a function .*, got <class 'threading.Event'>; it is called with 0 arguments",
    ),
    "cancel by one": (generate(cancel=lambda one: True), OptionError, "it is called with 0 arguments"),
    "cancel by async": (generate(cancel=tomorrow), OptionError, "may not be async"),
    "cancel by async object": (generate(cancel=Tomorrow()), OptionError, "may not be async"),
    "text for a number": (generate(top_k="5"), OptionError, "top_k must be a whole number, got '5'"),
    "text in settings": (
        generate(settings={"uniform": {"ratio": "0.3"}}),
        OptionError,
        "uniform.ratio must be a number, got '0.3'",
    ),
    "text for decoder": (lambda: decoder(seed="5"), OptionError, "seed must be a whole number, got '5'"),
    "prepare True": (lambda: engine().prepare(True), OptionError, "num_tokens must be a whole number, got True"),
    "no such end": (
        verify(finish_reason="zz"),
        OptionError,
        "unknown finish_reason 'zz'. Known: cancelled, context, eos",
    ),
    "an end in a list": (
        verify(finish_reason=["eos"]),
        OptionError,
        "unknown finish_reason .*Did you mean 'eos'|Known",
    ),
    "a number as text": (verify(text=5), OptionError, "text must be text, got 5"),
    "progress 5": (verify(progress=5), OptionError, r"progress must be a function \(done, total, what\), got 5"),
    "compare below": (
        lambda: engine().compare(PROMPT, [-1], [1]),
        PromptError,
        "token id -1 is outside the vocabulary",
    ),
    "compare above": (lambda: engine().compare(PROMPT, [1], [VOCAB_SIZE]), PromptError, "is outside the vocabulary"),
    "compare after": (lambda: engine().compare([VOCAB_SIZE], [1], [2]), PromptError, "is outside the vocabulary"),
    "compare long": (lambda: engine().compare([1] * CONTEXT_LENGTH, [1], [2]), PromptError, "shorten the prompt"),
    "judge by no seed": (
        lambda: engine().verify(PROMPT, [1], seed=None, temperature=1.0),
        OptionError,
        "seed=None draws a new seed, but a text is judged by the one it was made with; pass that",
    ),
    "judge nothing": (
        lambda: engine().verify(PROMPT, None),
        OptionError,
        "a Generation or a list of token ids, got None",
    ),
    "judge a text": (lambda: engine().compare(PROMPT, "a", [1]), OptionError, "or a list of token ids, got 'a'"),
    "judge two": (lambda: engine().compare([PROMPT, PROMPT], [1], [1]), PromptError, "one prompt; pass its own prompt"),
    "verify two": (
        lambda: engine().verify([[1], [2]], [1]),
        PromptError,
        "verify judges one text; pass its own prompt",
    ),
}


@pytest.mark.parametrize("slip", BAD_CALLS)
def test_every_slip_says_what_with_which_value_and_what_to_do(slip: str) -> None:
    call, kind, message = BAD_CALLS[slip]
    with pytest.raises(SelfdraftError, match=message) as caught:
        call()
    assert isinstance(caught.value, kind)
    assert len(str(caught.value)) < 600


JUNK = [
    None,
    True,
    -1,
    5,
    1.5,
    float("nan"),
    "x",
    b"x",
    [],
    [None],
    [1.5],
    {"x": 1},
    {1: {}},
    object(),
    torch.ones(2, 2),
]


def is_answered(call: Callable[[], Any]) -> bool:
    """By a result or by an error of ours; a foreign one is raised."""
    try:
        call()
    except SelfdraftError as error:
        return bool(str(error))
    return True


@pytest.mark.parametrize("name", CALL_NAMES)
def test_no_value_of_any_keyword_is_a_foreign_error(name: str) -> None:
    for junk in JUNK:
        assert is_answered(generate(ASK, **{name: junk})), junk


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_no_value_of_any_keyword_of_a_method_is_a_foreign_error(name: str) -> None:
    for junk in JUNK:
        assert is_answered(make(pico("llama"), **{name: junk})), junk
        assert is_answered(lambda junk=junk: decoder(**{name: junk})), junk
        assert is_answered(lambda junk=junk: engine().verify(PROMPT, [1], **{name: junk})), junk


def test_no_object_is_a_prompt_or_a_model_by_accident() -> None:
    odd = ([[]], [[1], None], [{}], {"input_ids": None}, {"input_ids": "x"}, {"input_ids": [[1], 2]}, {5}, range(0))
    masks = ({"input_ids": [[1], 2], "attention_mask": [[1], 2]}, {"input_ids": [1], "attention_mask": "x"})
    arrays = (IDS.to_sparse(), IDS.to("meta"), nested(), np.array(PROMPT, dtype=object), np.array(["a"]), np.ones(2))
    for junk in (*JUNK, *odd, *masks, *arrays):
        assert is_answered(generate(junk)), junk
        assert is_answered(lambda junk=junk: engine().verify(junk, [1])), junk
        assert is_answered(lambda junk=junk: engine().verify(PROMPT, junk)), junk
        assert is_answered(lambda junk=junk: engine().compare(PROMPT, [1], junk)), junk
        assert junk is None or is_answered(make(junk)), junk
        assert is_answered(make(pico("llama"), junk)), junk
        assert isinstance(junk, str | None) or is_answered(lambda junk=junk: Engine.from_pretrained(junk)), junk
        assert is_answered(make(pico("llama"), graphs=junk)), junk
        assert is_answered(make(pico("llama"), profile=junk)), junk
        assert is_answered(lambda junk=junk: engine().fork(junk)), junk
        assert is_answered(lambda junk=junk: engine().fork(method=junk)), junk
        assert is_answered(lambda junk=junk: engine().fork().remember(junk)), junk
        assert is_answered(lambda junk=junk: decoder(streamer=junk, tokenizer=junk)), junk
        for name in ("finish_reason", "text", "progress"):
            assert is_answered(verify(**{name: junk})), junk
