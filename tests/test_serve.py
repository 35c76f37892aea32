"""The server over a real socket, asked by OpenAI's own client: texts, streams, errors, faults."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
import torch

pytest.importorskip("fastapi")
import uvicorn

from pico import letter_tokenizer, pico, pico_tokenizer
from selfdraft import Engine, Session
from selfdraft.explanation import NAMES
from selfdraft.serve.app import create_app
from selfdraft.serve.grammar import Grammars
from selfdraft.serve.metrics import speed_up
from selfdraft.serve.scheduler import Queue, Scheduler
from selfdraft.serve.service import Limits, Service
from selfdraft.serve.work import Work

TEMPLATE = "{% for message in messages %}{{ message.role[0] }}{{ message.content }}{% endfor %}a"
ASKED = [{"role": "user", "content": "abcabc"}]
SAMPLED = {"temperature": 0.8, "seed": 5}
CHOICES: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    SAMPLED,
    {**SAMPLED, "top_p": 0.7},
    {**SAMPLED, "seed": -3},
    {**SAMPLED, "frequency_penalty": 0.7, "presence_penalty": -0.4},
    {"temperature": 0, "logit_bias": {"7": 60, "9": -5.5}},
    {"temperature": 0, "stop": "c"},
    {"temperature": 0, "stop": ["zz", "b"]},
    {**SAMPLED, "extra_body": {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.3, "min_tokens": 4}},
    {"temperature": 0, "extra_body": {"selfdraft": {"strategy": "off"}}},
    {**SAMPLED, "extra_body": {"selfdraft": {"strategy": "uniform", "settings": {"uniform": {"ratio": 0.3}}}}},
)


def new_engine() -> Engine:
    tokenizer = letter_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return Engine(pico("llama"), tokenizer, profile=None)


@contextlib.contextmanager
def serving(service: Service, **options: Any) -> Iterator[str]:
    """Its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(create_app(service, **options), port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(30)


@pytest.fixture(scope="module")
def alone() -> Engine:
    """What a text must be."""
    return new_engine()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(Service(new_engine(), "pico", Limits(max_rows=6, max_tokens=100, max_body=20_000))) as address:
        yield address


@pytest.fixture
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def expected(engine: Engine, prompt: Any, asked: dict[str, Any], count: int, **more: Any) -> Any:
    """By the engine itself, plainly."""
    options = {**asked, **asked.get("extra_body", {}), **more}
    for name in ("extra_body", "selfdraft"):
        options.pop(name, None)
    if "min_tokens" in options:
        options["min_new_tokens"] = options.pop("min_tokens")
    if "logit_bias" in options:
        options["logit_bias"] = {int(token): bias for token, bias in options["logit_bias"].items()}
    options["seed"] = options.get("seed", 0) % 2**64
    return engine.generate(prompt, max_new_tokens=count, strategy="off", **options)


# ------------------------------------------------------------------------------------------------ texts


@pytest.mark.parametrize("asked", CHOICES, ids=str)
def test_a_chat_is_what_the_engine_says(client: openai.OpenAI, alone: Engine, asked: dict[str, Any]) -> None:
    right = expected(alone, ASKED, asked, 20)
    answer = client.chat.completions.create(model="pico", messages=ASKED, max_completion_tokens=20, **asked)
    assert answer.choices[0].message.content == right.text
    assert answer.choices[0].finish_reason == ("stop" if right.finish_reason in ("eos", "stop") else "length")
    assert answer.usage.completion_tokens == len(right.tokens)
    assert answer.usage.prompt_tokens == right.num_prompt_tokens
    stream = client.chat.completions.create(model="pico", messages=ASKED, max_tokens=20, stream=True, **asked)
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == right.text
    assert [chunk.choices[0].delta.role for chunk in chunks][:2] == ["assistant", None]
    assert chunks[-1].choices[0].finish_reason == answer.choices[0].finish_reason
    assert all(chunk.usage is None for chunk in chunks)


@pytest.mark.parametrize("asked", CHOICES[:4], ids=str)
def test_a_completion_is_what_the_engine_says(client: openai.OpenAI, alone: Engine, asked: dict[str, Any]) -> None:
    prompts = ["abcabc", "the cat"]
    right = [one for prompt in prompts for one in expected(alone, [prompt], asked, 16, n=2)]
    answer = client.completions.create(model="pico", prompt=prompts, n=2, **asked)
    assert [choice.text for choice in answer.choices] == [one.text for one in right]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    texts = ["", "", "", ""]
    for chunk in client.completions.create(model="pico", prompt=prompts, n=2, stream=True, **asked):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [one.text for one in right]


def test_token_ids_are_a_prompt(client: openai.OpenAI, alone: Engine) -> None:
    answer = client.completions.create(model="pico", prompt=[5, 6, 7], max_tokens=5, temperature=0)
    assert answer.choices[0].text == alone.generate([5, 6, 7], max_new_tokens=5, strategy="off").text


def test_the_figures_of_drafts(client: openai.OpenAI) -> None:
    body = {"selfdraft": {"strategy": "uniform", "lookahead": "fixed", "settings": {"uniform": {"ratio": 0.2}}}}
    asked = {"model": "pico", "messages": ASKED, "max_tokens": 40, "temperature": 0, "extra_body": body}
    answer = client.chat.completions.create(**asked)
    told, details = answer.metrics["speculative_decoding"], answer.usage.completion_tokens_details
    assert told["num_accepted_draft_tokens"] == details.accepted_prediction_tokens > 0
    assert told["num_draft_tokens"] - told["num_accepted_draft_tokens"] == details.rejected_prediction_tokens
    assert sum(told["acceptance_histogram"]) == told["num_spec_steps"]
    counted = sum(number * count for number, count in enumerate(told["acceptance_histogram"]))
    assert counted == told["num_accepted_draft_tokens"]
    assert told["mean_acceptance_length"] == pytest.approx(1 + counted / told["num_spec_steps"])
    *_, last = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    assert not last.choices
    assert last.metrics["speculative_decoding"] == told
    assert last.usage.completion_tokens == answer.usage.completion_tokens


def test_logprobs(client: openai.OpenAI, alone: Engine) -> None:
    right = expected(alone, ASKED, {"temperature": 0}, 8, logprobs=3)
    asked = {"model": "pico", "messages": ASKED, "max_tokens": 8, "temperature": 0, "logprobs": True}
    answer = client.chat.completions.create(**asked, top_logprobs=3)
    told = answer.choices[0].logprobs.content
    assert [one.logprob for one in told] == pytest.approx([one.logprob for one in right.logprobs], abs=1e-4)
    assert [[top.logprob for top in one.top_logprobs] for one in told] == [
        pytest.approx([value for _, value in one.top], abs=1e-4) for one in right.logprobs
    ]
    assert "".join(one.token for one in told) == right.text
    chunks = list(client.chat.completions.create(**asked, stream=True))
    streamed = [one for chunk in chunks if chunk.choices[0].logprobs for one in chunk.choices[0].logprobs.content]
    assert [one.token for one in streamed] == [one.token for one in told]
    plain = client.completions.create(model="pico", prompt="abc", max_tokens=4, temperature=0, logprobs=2)
    logprobs = plain.choices[0].logprobs
    assert logprobs.text_offset == [len("".join(logprobs.tokens[:place])) for place in range(4)]
    assert all(len(top) == 2 for top in logprobs.top_logprobs)


def test_a_seed_that_is_not_given_is_drawn(client: openai.OpenAI) -> None:
    ask = {"model": "pico", "messages": ASKED, "max_tokens": 30, "temperature": 1.5}
    texts = {client.chat.completions.create(**ask).choices[0].message.content for _ in range(4)}
    assert len(texts) > 1


def test_many_at_a_time_are_what_they_would_be_alone(client: openai.OpenAI, alone: Engine) -> None:
    rng = random.Random(0)

    def ask(number: int) -> tuple[str, str]:
        prompt = "".join(rng.choices("abcdefg ", k=rng.randint(1, 60)))
        asked = {**rng.choice(CHOICES[:5]), "seed": number}
        count, stream = rng.randint(1, 40), rng.random() < 0.5
        answer = client.completions.create(model="pico", prompt=prompt, max_tokens=count, stream=stream, **asked)
        text = "".join(one.choices[0].text for one in answer) if stream else answer.choices[0].text
        return text, (prompt, asked, count)

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(ask, range(30)))
    for text, (prompt, asked, count) in answers:
        assert text == expected(alone, prompt, asked, count).text


# ------------------------------------------------------------------------------------------------ forms

PERSON = {
    "type": "object",
    "x-guidance": {"whitespace_flexible": False},
    "properties": {"name": {"type": "string", "maxLength": 3}, "kind": {"enum": ["a", "b"]}, "on": {"type": "boolean"}},
    "required": ["name", "kind", "on"],
    "additionalProperties": False,
}
FORMS: dict[str, tuple[dict[str, Any], Callable[[str], bool]]] = {
    "schema": (
        {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}},
        lambda text: set(json.loads(text)) == {"name", "kind", "on"} and json.loads(text)["kind"] in "ab",
    ),
    "object": ({"type": "json_object"}, lambda text: isinstance(json.loads(text), dict)),
    "regex": (
        {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[0-9]{3}-[ab]{1,4}"}},
        lambda text: re.fullmatch("[0-9]{3}-[ab]{1,4}", text) is not None,
    ),
    "lark": (
        {"type": "grammar", "grammar": {"syntax": "lark", "definition": 'start: ("yes" | "no") " "? start?'}},
        lambda text: re.fullmatch("((yes|no) ?)+", text) is not None,
    ),
}


@pytest.fixture(scope="module")
def bytes_url() -> Iterator[str]:
    """Of a model whose tokens are bytes, and which can end a text."""
    tokenizer = copy.deepcopy(pico_tokenizer())
    tokenizer.chat_template = TEMPLATE
    engine = Engine(pico("llama", vocab_size=300), tokenizer, profile=None)
    with serving(Service(engine, "pico", Limits())) as address:
        yield address


@pytest.mark.parametrize("form", FORMS)
def test_texts_have_the_form_that_was_asked_for(bytes_url: str, form: str) -> None:
    """Those that end by themselves; drafting on or off, they are the same."""
    asked, is_right = FORMS[form]
    client = openai.OpenAI(base_url=f"{bytes_url}/v1", api_key="none", max_retries=0)

    def ask(seed: int) -> list[tuple[str, str]]:
        body = {"model": "pico", "messages": ASKED, "max_tokens": 60, "temperature": 1.0, "response_format": asked}
        texts = []
        for strategy in ("auto", "off"):
            method = {"selfdraft": {"strategy": strategy}}
            answer = client.chat.completions.create(**body, seed=seed, n=2, extra_body=method)
            texts.append([(choice.finish_reason, choice.message.content) for choice in answer.choices])
        assert texts[0] == texts[1]
        return texts[0]

    with ThreadPoolExecutor(4) as pool:
        answers = [one for found in pool.map(ask, range(6)) for one in found]
    assert all(is_right(text) for reason, text in answers if reason == "stop")
    assert sum(reason == "stop" for reason, _ in answers) >= (6 if form in ("schema", "regex") else 1)


def test_what_a_grammar_allows_hangs_on_the_text_alone() -> None:
    """Whatever was asked before: other texts, drafts that it does not allow, the same text again."""
    tokenizer = pico_tokenizer()
    grammars, rng = Grammars(tokenizer, [tokenizer.eos_token_id]), random.Random(0)
    written = grammars.grammar(FORMS["schema"][0])
    used, texts = grammars.processor(written, 2), [[1, 2], [1, 2]]
    for turn in range(160):
        text = texts[turn % 2]
        drafts = [[*text, rng.randrange(270)] for _ in range(2)]
        for tokens in (*drafts, text):
            found, right = (
                processor(torch.tensor([tokens]), torch.zeros(1, 300))
                for processor in (used, grammars.processor(written, 2))
            )
            assert torch.equal(found, right)
        allowed = (right[0] == 0).nonzero().flatten().tolist()
        texts[turn % 2] = [*text, rng.choice(allowed)] if text[-1] != tokenizer.eos_token_id else [1, 2]


@pytest.mark.parametrize(
    "asked",
    [
        {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}},
        {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: nowhere"}},
        {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[0-"}},
    ],
)
def test_forms_that_cannot_be_followed(bytes_url: str, asked: dict[str, Any]) -> None:
    answer = httpx.post(f"{bytes_url}/v1/chat/completions", json={**CHAT, "response_format": asked})
    assert answer.status_code == 400
    assert "response_format cannot be followed" in answer.json()["error"]["message"]


# ------------------------------------------------------------------------------------------------ errors

JSON = {"content-type": "application/json"}
CHAT = {"model": "pico", "messages": ASKED, "max_tokens": 4}


@pytest.mark.parametrize(
    ("changes", "status", "fragment"),
    [
        ({"foo": 1}, 400, "foo"),
        ({"tools": []}, 400, "tools"),
        ({"response_format": {"type": "yaml"}}, 400, "response_format"),
        ({"response_format": {"type": "json_object"}}, 400, "no end-of-text token"),
        ({"response_format": {"type": "json_object"}, "min_tokens": 3}, 400, "min_tokens"),
        ({"temperature": 2.5}, 400, "temperature"),
        ({"temperature": "warm"}, 400, "temperature"),
        ({"n": 0}, 400, "n:"),
        ({"max_tokens": 101}, 400, "max_tokens"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, 400, "role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, 400, "content"),
        ({"messages": [{"role": "user", "content": "a" * 300}]}, 400, "context"),
        ({"stop": ["a", ""]}, 400, "stop"),
        ({"max_completion_tokens": 5}, 400, "leave one out"),
        ({"min_tokens": 5}, 400, "min_new_tokens"),
        ({"chat_template_kwargs": {"chat_template": "{{ 'a' * 9 }}"}}, 400, "not for requests"),
        ({"selfdraft": {"drafter": "model"}}, 400, "drafter"),
        ({"selfdraft": {"settings": {"model": {"source": "/etc/passwd"}}}}, 400, "the server's own"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, 400, "surrogates"),
        ({"stream": False, "stream_options": {"include_usage": True}}, 400, "stream_options"),
        ({"top_logprobs": 2}, 400, "logprobs"),
        ({"logit_bias": {"7000": 1}}, 400, "7000"),
        ({"selfdraft": {"strategy": "swfit"}}, 400, "swift"),
        ({"selfdraft": {"settings": {"uniform": {"ratio": 7}}}}, 400, "ratio"),
        ({"model": "gpt"}, 404, "'pico'"),
    ],
    ids=str,
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_not_right_is_refused(url: str, changes: Any, status: int, fragment: str, stream: bool) -> None:
    body = json.dumps({**CHAT, "stream": stream, **changes})
    answer = httpx.post(f"{url}/v1/chat/completions", content=body, headers=JSON)
    assert answer.status_code == status, answer.text
    assert fragment in answer.json()["error"]["message"]
    assert "Traceback" not in answer.text
    assert answer.headers["x-request-id"].startswith("req_")


def test_bodies_that_are_no_json_and_paths_that_are_not_there(url: str) -> None:
    answer = httpx.post(f"{url}/v1/chat/completions", content=b'{"model": ', headers=JSON)
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "the body is not valid JSON")
    answer = httpx.post(f"{url}/v1/chat/completions", content=b"model=pico")
    assert answer.status_code == 400
    assert "application/json" in answer.json()["error"]["message"]
    assert httpx.get(f"{url}/v1/nothing").status_code == 404
    assert httpx.get(f"{url}/v1/chat/completions").status_code == 405
    assert httpx.post(f"{url}/v1/completions", content=b"x" * 20_001).status_code == 413

    def parts() -> Iterator[bytes]:
        yield from [b"x" * 4096] * 8

    assert httpx.post(f"{url}/v1/completions", content=parts()).status_code == 413


def test_keys() -> None:
    with serving(Service(new_engine(), "pico", Limits()), keys=["right", "other"]) as url:
        for sent, status in (("right", 200), ("other", 200), ("wrong", 401), ("righ", 401), ("", 401)):
            headers = {"authorization": f"Bearer {sent}"} if sent else {}
            assert httpx.get(f"{url}/v1/models", headers=headers).status_code == status
        assert httpx.get(f"{url}/metrics").status_code == 401
        assert httpx.get(f"{url}/health").status_code == 200
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{url}/v1", api_key="wrong").models.list()
        counted = httpx.get(f"{url}/metrics", headers={"authorization": "Bearer right"}).text
        assert 'selfdraft:request_errors_total{model_name="pico",status="401"} 5.0' in counted


def test_monitors(url: str, client: openai.OpenAI) -> None:
    client.chat.completions.create(**CHAT)
    assert [model.id for model in client.models.list()] == ["pico"]
    assert client.models.retrieve("pico").id == "pico"
    assert httpx.get(f"{url}/ready").json() == {"status": "ready"}
    assert set(httpx.get(f"{url}/version").json()) == {"version"}
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    for name in ("spec_decode_num_drafts_total", "num_requests_running", "time_to_first_token_seconds_count"):
        assert any(line.startswith(f"selfdraft:{name}{{") for line in lines), name
    told = {line.split("{")[0]: float(line.split()[-1]) for line in lines if line.startswith("selfdraft:")}
    assert told["selfdraft:generation_tokens_total"] >= 4
    assert told["selfdraft:rounds_total"] >= 1
    assert told["selfdraft:kv_cache_usage_perc"] == 0, "nothing is decoded now"
    assert any(line.startswith('selfdraft:plan_info{drafter="') and 'skip="' in line for line in lines)


def test_speed_ups_of_texts() -> None:
    """Together: a long text counts for more. Nothing is said where nothing is known."""
    known = [(2.0, 1.0, 1.25), (1.0, 1.0, 0.75)]
    assert speed_up(known) == pytest.approx(1.5)
    assert speed_up(known, is_predicted=True) == pytest.approx(1.5)
    assert math.isnan(speed_up([]))


def test_the_speed_up_of_what_was_answered() -> None:
    """As `explain` tells it."""
    engine = new_engine()
    metrics = Service(engine, "pico", Limits()).metrics
    one = engine.generate([1, 2, 3, 1, 2, 3], max_new_tokens=60, strategy="auto")
    explained = one.explain()
    assert explained.plain_seconds
    metrics.watch().ended([[one]])
    found = metrics._registry.get_sample_value("selfdraft:speedup", {"model_name": "pico"})
    assert found == pytest.approx(explained.tokens_per_second * explained.plain_seconds)
    rounds = [
        metrics._registry.get_sample_value("selfdraft:rounds_total", {"model_name": "pico", "kind": kind}) or 0
        for kind in NAMES.values()
    ]
    assert sum(rounds) == len(one.steps)


# ------------------------------------------------------------------------------------------------ faults


class Gate:
    """Rounds wait while it is shut."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_open = threading.Event()
        real = Scheduler._round

        def wait(scheduler: Scheduler, session: Any) -> None:
            self.is_open.wait(20)
            real(scheduler, session)

        monkeypatch.setattr(Scheduler, "_round", wait)


def wait_until(is_so: Any) -> None:
    end = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.01)


def test_a_full_queue_refuses(monkeypatch: pytest.MonkeyPatch, alone: Engine) -> None:
    gate, service = Gate(monkeypatch), Service(new_engine(), "pico", Limits(max_rows=1, max_waiting=2))
    with serving(service) as url, ThreadPoolExecutor(4) as pool:
        first = pool.submit(httpx.post, f"{url}/v1/chat/completions", json=CHAT, timeout=30)
        wait_until(lambda: service.scheduler.num_running == 1)
        others = [pool.submit(httpx.post, f"{url}/v1/chat/completions", json=CHAT, timeout=30) for _ in range(2)]
        wait_until(lambda: service.scheduler.num_waiting == 2)
        refused = httpx.post(f"{url}/v1/chat/completions", json=CHAT)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        gate.is_open.set()
        assert [one.result().status_code for one in (first, *others)] == [200, 200, 200]


@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_frees_a_row(monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    gate, service = Gate(monkeypatch), Service(new_engine(), "pico", Limits(max_rows=1))
    with serving(service) as url:
        body = {**CHAT, "max_tokens": 100, "stream": stream}
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/v1/chat/completions", json=body, timeout=0.5)
        wait_until(lambda: service.scheduler._unwanted)
        gate.is_open.set()
        wait_until(lambda: not service.scheduler.num_running)
        assert httpx.post(f"{url}/v1/chat/completions", json=CHAT, timeout=30).status_code == 200


def test_who_leaves_in_the_middle_of_a_stream_frees_a_row() -> None:
    service = Service(new_engine(), "pico", Limits(max_rows=1, max_tokens=240))
    with serving(service) as url:
        body = {**CHAT, "max_tokens": 240, "stream": True}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=30) as answer:
            next(answer.iter_lines())
        wait_until(lambda: not service.scheduler.num_running)
        assert httpx.post(f"{url}/v1/chat/completions", json=CHAT, timeout=30).status_code == 200


def test_the_time_of_a_request_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, service = Gate(monkeypatch), Service(new_engine(), "pico", Limits(seconds=0.3))
    threading.Timer(0.6, gate.is_open.set).start()
    with serving(service) as url:
        answer = httpx.post(f"{url}/v1/chat/completions", json=CHAT, timeout=30)
        assert (answer.status_code, answer.json()["error"]["message"]) == (504, "the time for this request is over")


class Failing:
    """Some passes fail, by their numbers, and all those that read a token. The first waits for `company` texts."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        service: Service,
        passes: Sequence[int] = (),
        token: int = -1,
        company: int = 1,
    ) -> None:
        self.num_passes, self.num_failed = 0, 0
        engine, scheduler = service.engine, service.scheduler
        real = engine.runner.forward

        def forward(request: Any, *rest: Any, **named: Any) -> Any:
            while not self.num_passes and scheduler.num_running + scheduler.num_waiting < company:
                time.sleep(0.01)
            self.num_passes += 1
            if self.num_passes in passes or any(token in row for row in request.tokens):
                self.num_failed += 1
                raise RuntimeError("planted: the device is lost in /secret/path")
            return real(request, *rest, **named)

        monkeypatch.setattr(engine.runner, "forward", forward)


def ask_all(url: str, prompts: list[str]) -> list[httpx.Response]:
    body = {"model": "pico", "max_tokens": 30, **SAMPLED}
    with ThreadPoolExecutor(len(prompts)) as pool:
        asked = [pool.submit(httpx.post, f"{url}/v1/completions", json={**body, "prompt": one}) for one in prompts]
        return [one.result() for one in asked]


def test_faults_long_after_each_other_are_nobodys(monkeypatch: pytest.MonkeyPatch, alone: Engine) -> None:
    """Of a text that is alone in the server."""
    service = Service(new_engine(), "pico", Limits())
    failing = Failing(monkeypatch, service, passes=[4, 9, 14, 20])
    with serving(service) as url:
        (answer,) = ask_all(url, ["abc"])
    assert failing.num_failed == 4
    assert answer.json()["choices"][0]["text"] == expected(alone, "abc", SAMPLED, 30).text


def test_a_request_that_cannot_be_added_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    service, real = Service(new_engine(), "pico", Limits()), Session.add

    def add(session: Session, prompt: Any, *rest: Any, **options: Any) -> Any:
        if len(prompt) == 5:
            raise RuntimeError("planted: no memory in /secret/path")
        return real(session, prompt, *rest, **options)

    monkeypatch.setattr(Session, "add", add)
    with serving(service) as url:
        answers = ask_all(url, ["abcde", "abc"])
        assert [one.status_code for one in answers] == [500, 200]
        assert "secret" not in answers[0].text
        assert httpx.get(f"{url}/ready").status_code == 200


def test_a_page_may_ask_where_its_place_is_named() -> None:
    with serving(Service(new_engine(), "pico", Limits()), keys=["right"], origins=["http://page"]) as url:
        asks = {"origin": "http://page", "access-control-request-method": "POST"}
        asks["access-control-request-headers"] = "authorization,content-type"
        answer = httpx.options(f"{url}/v1/chat/completions", headers=asks)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "http://page")
        answer = httpx.post(f"{url}/v1/chat/completions", json=CHAT, headers={"origin": "http://page"})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (401, "http://page")
        other = httpx.options(f"{url}/v1/chat/completions", headers={**asks, "origin": "http://other"})
        assert "access-control-allow-origin" not in other.headers


def test_more_prompts_than_may_wait_are_no_request(url: str) -> None:
    body = {"model": "pico", "prompt": ["a"] * 300, "max_tokens": 2}
    assert httpx.post(f"{url}/v1/completions", json=body).status_code == 400
    answer = httpx.post(f"{url}/v1/completions", content=b'{"model": "pico", "prompt": "\\ud800"}', headers=JSON)
    assert (answer.status_code, "surrogates" in answer.text) == (400, True)


def test_a_round_that_fails_loses_nothing(monkeypatch: pytest.MonkeyPatch, alone: Engine) -> None:
    service = Service(new_engine(), "pico", Limits())
    failing, prompts = Failing(monkeypatch, service, passes=[6, 7, 20], company=4), ["abc", "bcd", "cde", "def"]
    with serving(service) as url:
        answers = ask_all(url, prompts)
        assert failing.num_failed == 3
        assert httpx.get(f"{url}/ready").status_code == 200
    right = [expected(alone, prompt, SAMPLED, 30).text for prompt in prompts]
    assert [one.json()["choices"][0]["text"] for one in answers] == right


def test_only_the_request_that_makes_the_model_fail_is_told_so(monkeypatch: pytest.MonkeyPatch, alone: Engine) -> None:
    service, prompts = Service(new_engine(), "pico", Limits()), ["abc", "bcd", "Zbc", "def"]
    bad = service.engine.tokenizer("Z").input_ids[0]
    Failing(monkeypatch, service, token=bad)
    with serving(service) as url:
        answers = ask_all(url, prompts)
        assert httpx.get(f"{url}/ready").status_code == 200
    assert [one.status_code for one in answers] == [200, 200, 500, 200]
    assert "secret" not in answers[2].text
    for prompt, answer in zip(prompts, answers, strict=True):
        if answer.status_code == 200:
            assert answer.json()["choices"][0]["text"] == expected(alone, prompt, SAMPLED, 30).text


def test_what_was_taken_is_answered_when_it_shuts_down(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, service = Gate(monkeypatch), Service(new_engine(), "pico", Limits(drain_seconds=20))
    with serving(service) as url, ThreadPoolExecutor(1) as pool, httpx.Client() as kept:
        assert kept.get(f"{url}/ready").status_code == 200
        asked = pool.submit(httpx.post, f"{url}/v1/chat/completions", json=CHAT, timeout=30)
        wait_until(lambda: service.scheduler.num_running)
        service.scheduler.take_no_more()
        assert kept.get(f"{url}/ready").status_code == 503
        assert kept.post(f"{url}/v1/chat/completions", json=CHAT).status_code == 503
        gate.is_open.set()
        assert asked.result().status_code == 200


def test_clients_take_turns() -> None:
    queue = Queue()
    for client in "aaab":
        queue.put(Work([1], {}, 1, lambda told: None, client))
    assert [queue.take().client for _ in range(len(queue))] == ["a", "b", "a", "a"]


def test_the_document_of_the_interface(url: str) -> None:
    document = httpx.get(f"{url}/openapi.json").json()
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/metrics"} <= set(document["paths"])
    assert json.dumps(document)
