"""`selfdraft verify` and `Engine.verify`: true texts pass, every other one is found out."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import selfdraft
from pico import CONTEXT_LENGTH, VOCAB_SIZE, letter_tokenizer, pico
from selfdraft.cli.parsers.use import SHAPING
from selfdraft.engine import audit
from selfdraft.options import GenerateOptions
from selfdraft.registry import ACCEPTANCES

Document = dict[str, Any]
Said = Callable[..., str]
Generated = Callable[..., Document]
NUM_TOKENS = 24
UNIFORM = ["--strategy", "uniform"]
SAMPLED = ["--temperature", "0.9", "--top-p", "0.9", "--seed", "5"]
ALL_CHOSEN = f"{NUM_TOKENS} tokens: {NUM_TOKENS} the target's own choice, 0 ties, 0 different\n"


@pytest.fixture(scope="module")
def engine() -> selfdraft.Engine:
    return selfdraft.Engine(pico("llama"), letter_tokenizer(), strategy="uniform")


@pytest.fixture(scope="module")
def eos_folder(folder: str, engine: selfdraft.Engine, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same model with an end-of-text token that it says after `abc`, but not at once."""
    tokens = engine.generate("abc", max_new_tokens=30).tokens
    eos = next(token for index, token in enumerate(tokens) if index >= 6 and token not in tokens[:index])
    path = tmp_path_factory.mktemp("eos") / "model"
    shutil.copytree(folder, path)
    settings = json.loads((path / "generation_config.json").read_text())
    (path / "generation_config.json").write_text(json.dumps({**settings, "eos_token_id": eos}))
    return str(path)


@pytest.fixture
def generated(folder: str, said: Said) -> Generated:
    def call(*options: str, model: str = folder) -> Document:
        return json.loads(
            said("generate", "--model", model, "--json", *UNIFORM, "--max-new-tokens", str(NUM_TOKENS), *options, "abc")
        )

    return call


@pytest.fixture
def verify(tmp_path: Path, folder: str, said: Said) -> Said:
    """What is said about a document or a text, with the status that is expected."""

    def call(document: Document | str, *options: str, model: str = folder, status: int = 0) -> str:
        file = tmp_path / "file"
        file.write_text(document if isinstance(document, str) else json.dumps(document))
        return said("verify", model, str(file), *options, status=status)

    return call


CALLS = {
    "greedy": [],
    "plain": ["--strategy", "off"],
    "top-p": SAMPLED,
    "top-k min-p": ["--temperature", "1.3", "--top-k", "20", "--min-p", "0.02", "--seed", "18446744073709551615"],
    "repetition": ["--repetition-penalty", "1.4", "--logit-bias", "30:1.5,27:-2"],
    "sampled penalties": [*SAMPLED, "--presence-penalty", "1.5", "--frequency-penalty", "-0.4"],
    "lookup": [*SAMPLED, "--drafter", "lookup"],
}


@pytest.mark.parametrize("options", CALLS.values(), ids=CALLS)
def test_a_true_document(options: list[str], generated: Generated, verify: Said) -> None:
    assert verify(generated(*options)) == ALL_CHOSEN


@pytest.mark.parametrize("options", [[], SAMPLED, ["--min-new-tokens", "20"]], ids=["greedy", "sampled", "min"])
def test_end_of_text(options: list[str], eos_folder: str, generated: Generated, verify: Said) -> None:
    assert "0 different" in verify(generated(*options, model=eos_folder), model=eos_folder)


def test_the_document_says_how_it_was_made(generated: Generated) -> None:
    document = generated(*SAMPLED, "--stop", "\x00")
    assert document["prompt_tokens"] == letter_tokenizer()("abc").input_ids
    assert set(document["options"]) == set(SHAPING)
    assert document["options"]["seed"] == document["seed"] == 5
    assert (document["options"]["top_p"], document["options"]["stop"]) == (0.9, ["\x00"])


def test_stop_strings(generated: Generated, verify: Said) -> None:
    whole = generated()
    stop = whole["text"][10:12]
    document = generated(f"--stop={stop}")
    assert document["finish_reason"] == "stop"
    verify(document)
    whole["options"]["stop"] = [stop]
    found = verify(whole, status=1)
    assert "goes on after its end: token" in found
    assert "completes a stop string" in found


def test_a_text_that_goes_on_after_its_end(eos_folder: str, generated: Generated, verify: Said) -> None:
    num_tokens = len(generated(model=eos_folder)["tokens"])
    found = verify(generated(), model=eos_folder, status=1)
    assert f"goes on after its end: token {num_tokens - 1} is the end-of-text token" in found
    assert f"but there are {NUM_TOKENS}" in found


def test_a_text_that_stops_early(eos_folder: str, generated: Generated, verify: Said) -> None:
    document = generated(model=eos_folder)
    assert document["finish_reason"] == "eos"
    short = {**document, "tokens": document["tokens"][:-2]}
    found = verify(short, model=eos_folder, status=1)
    assert "ends too early: its finish_reason is eos, but its last token is not an end-of-text token" in found
    assert "0 different" in found, "the tokens that are there are right"
    found = verify({**short, "finish_reason": "length"}, model=eos_folder, status=1)
    assert f"but it has {len(short['tokens'])} tokens of {NUM_TOKENS}" in found
    verify({**short, "finish_reason": "cancelled", "text": None}, model=eos_folder)


def test_claims_that_are_not_true(generated: Generated, verify: Said) -> None:
    document = generated()
    for change, fault in (
        (
            {"options": {"max_new_tokens": NUM_TOKENS - 1}},
            f"allows {NUM_TOKENS - 1} tokens, but there are {NUM_TOKENS}",
        ),
        ({"finish_reason": "stop"}, "the text ends by length, but its finish_reason is stop"),
        ({"text": document["text"] + "!"}, "the text is not what its tokens spell"),
    ):
        assert fault in verify({**document, **change}, status=1)


def test_a_text_that_overruns_the_context(engine: selfdraft.Engine) -> None:
    tokens = [*engine.generate("abc", max_new_tokens=300).tokens, 1, 2]
    found = engine.verify("abc", tokens, max_new_tokens=300)
    assert (found.num_tokens, found.verdict) == (CONTEXT_LENGTH - 3, "different")
    assert f"context has room for {CONTEXT_LENGTH - 3} tokens, but there are {CONTEXT_LENGTH - 1}" in found.faults[0]


def scores_after(document: Document, num_tokens: int) -> torch.Tensor:
    with torch.inference_mode():
        prefix = [*document["prompt_tokens"], *document["tokens"][:num_tokens]]
        return pico("llama")(torch.tensor([prefix])).logits[0, -1]


def test_a_changed_token(generated: Generated, verify: Said) -> None:
    document = generated()
    choice = document["tokens"][17]
    token = document["tokens"][17] = (choice + 5) % VOCAB_SIZE
    scores = scores_after(document, 17)
    report = json.loads(verify(document, "--json", status=1))
    first = report["findings"][0]
    assert (first["index"], first["token"], first["choice"], first["verdict"]) == (17, token, choice, "different")
    assert (first["text"], first["choice_text"]) == (chr(33 + token), chr(33 + choice))
    assert first["gap"] == pytest.approx(float(scores[choice] - scores[token]), rel=1e-4)
    assert report["num_choices"] + report["num_different"] + report["num_ties"] == report["num_tokens"] == NUM_TOKENS
    assert (report["verdict"], report["rule"]) == ("different", "choice")
    line = verify(document, status=1).splitlines()[0]
    assert line.startswith("token 17    different ")
    assert f"(id {token}); the target chooses " in line
    assert f"gap {first['gap']:.3g}" in line


def test_another_seed_or_option_is_found_out(generated: Generated, verify: Said) -> None:
    document = generated(*SAMPLED)
    for change in ({"seed": 6}, {"temperature": 1.2}, {"top_p": 0.2}):
        verify({**document, "options": {**document["options"], **change}}, status=1)


class TestRejection:
    """A text that follows the target's distribution, but is no function of the seed."""

    def test_possible_is_all_that_is_said(self, generated: Generated, verify: Said) -> None:
        document = generated(*SAMPLED)
        document["acceptance"], document["options"]["seed"] = "rejection", 77
        possible = f"{NUM_TOKENS} tokens: {NUM_TOKENS} possible, 0 ties, 0 different\nnote: rejection sampling"
        assert verify(document).startswith(possible)

    def test_an_impossible_token(self, generated: Generated, verify: Said) -> None:
        document = generated("--temperature", "0.9", "--top-k", "3")
        document["acceptance"] = "rejection"
        order = scores_after(document, 9).argsort(descending=True).tolist()
        document["tokens"][9] = order[3]
        report = json.loads(verify(document, "--json", status=1))
        first = report["findings"][0]
        assert (first["index"], first["choice"], first["gap"], report["rule"]) == (9, order[0], None, "possible")
        found = verify(document, status=1)
        assert "likeliest is" in found
        assert "ruled out by the options" in found

    def test_greedy_is_judged_by_choice(self, generated: Generated, verify: Said) -> None:
        assert verify({**generated(), "acceptance": "rejection"}) == ALL_CHOSEN

    def test_every_acceptance_has_a_rule(self) -> None:
        assert set(ACCEPTANCES) <= set(audit.RULES)


def findings(scores: list[list[float]], tokens: list[int], rule: audit.Rule, **options: Any) -> list[audit.Finding]:
    sampler = audit.Sampler(GenerateOptions(**options))
    return list(audit.Audit([0], tokens, sampler, rule).findings(0, torch.tensor(scores)))


def test_ties() -> None:
    scores = [[1.0, 1.0 + 2e-7, 0.0], [1.0, 1.0, 0.0], [1.0, 1.1, 0.0]]
    found = findings(scores, [0, 1, 0], "choice")
    assert [(finding.index, finding.verdict) for finding in found if finding.index != 1] == [
        (0, "tie"),
        (2, "different"),
    ]
    assert all(finding.verdict == "tie" and finding.gap == 0 for finding in found if finding.index == 1)
    assert found[-1].gap == pytest.approx(0.1)
    assert audit.Verification(3, tuple(found[:1])).verdict == "tie"


def test_ties_at_the_edge_of_what_is_possible() -> None:
    scores = [[2.0, 1.0, 1.0 - 2e-7, 0.0]] * 3
    found = findings(scores, [1, 2, 3], "possible", temperature=1.0, top_k=2)
    assert [(finding.index, finding.verdict, finding.choice) for finding in found] == [
        (1, "tie", 0),
        (2, "different", 0),
    ]


class TestEngine:
    def test_a_generation_brings_what_it_claims(self, engine: selfdraft.Engine) -> None:
        generation = engine.generate("abc", max_new_tokens=20, temperature=0.8, seed=3)
        assert engine.verify("abc", generation, max_new_tokens=20, temperature=0.8, seed=3).verdict == "equal"
        assert engine.verify("abc", generation, max_new_tokens=21, temperature=0.8, seed=3).faults
        assert engine.verify("abc", generation, max_new_tokens=20, temperature=0.8, seed=4).num_different

    def test_a_row_of_a_batch(self, engine: selfdraft.Engine) -> None:
        second = engine.generate(["abc", "xyz"], max_new_tokens=20, temperature=0.8)[1]
        assert engine.verify("xyz", second, max_new_tokens=20, temperature=0.8, sequence=1).verdict == "equal"
        assert engine.verify("xyz", second, max_new_tokens=20, temperature=0.8).verdict == "different"

    def test_chunks_change_nothing(self, engine: selfdraft.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        options = {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.2, "max_new_tokens": 60}
        prompt = list(range(40))
        tokens = list(engine.generate(prompt, **options).tokens)
        tokens[30] = (tokens[30] + 1) % VOCAB_SIZE
        expected = engine.verify(prompt, tokens, **options)
        monkeypatch.setattr(audit, "SCORED_CHUNK", 7)
        monkeypatch.setattr(audit, "PREFILL_CHUNK", 11)
        monkeypatch.setattr(audit, "_ROWS", 3)
        seen: list[tuple[int, int | None, str]] = []
        found = engine.verify(prompt, tokens, progress=lambda *report: seen.append(report), **options)
        key = [(finding.index, finding.choice, finding.verdict) for finding in expected.findings]
        assert [(finding.index, finding.choice, finding.verdict) for finding in found.findings] == key
        assert key[0][0] == 30
        assert (seen[0], seen[-1]) == ((7, 60, "verifying"), (60, 60, "verifying"))

    def test_nothing_generated(self, engine: selfdraft.Engine) -> None:
        assert engine.verify("abc", []).verdict == "equal"
        assert engine.verify("abc", [], finish_reason="cancelled").verdict == "equal"
        assert engine.verify("abc", [], finish_reason="eos").verdict == "different"

    def test_one_text_is_judged(self, engine: selfdraft.Engine) -> None:
        with pytest.raises(selfdraft.PromptError, match="verify judges one text"):
            engine.verify(["a", "b"], [1])


class TestPlainText:
    def test_greedy(self, generated: Generated, verify: Said) -> None:
        text = generated()["text"]
        found = verify(text + "\n", "--prompt", "abc")
        assert found.startswith(ALL_CHOSEN)
        assert "note: the text was tokenised again" in found
        verify(text[:20] + "!" + text[21:], "--prompt", "abc", "--raw", status=1)

    def test_sampled(self, generated: Generated, verify: Said, tmp_path: Path) -> None:
        text = generated(*SAMPLED)["text"]
        (tmp_path / "prompt").write_text("abc")
        prompt = ["--prompt-file", str(tmp_path / "prompt")]
        verify(text, *prompt, *SAMPLED, "--min-new-tokens", "2")
        verify(text, *prompt, status=1)

    def test_the_chat_template(self, folder: str, tmp_path: Path, generated: Generated, verify: Said) -> None:
        chatty = tmp_path / "chatty"
        shutil.copytree(folder, chatty)
        (chatty / "chat_template.jinja").write_text("{% for m in messages %}<{{ m['content'] }}>{% endfor %}")
        text = generated(model=str(chatty))["text"]
        verify(text, "--prompt", "abc", model=str(chatty))
        verify(text, "--prompt", "<abc>", "--raw", model=str(chatty))
        verify(text, "--prompt", "abc", "--raw", model=str(chatty), status=1)


def test_standard_input(folder: str, generated: Generated, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(generated())))
    assert said("verify", folder, "-") == ALL_CHOSEN


def test_json_and_notes(generated: Generated, verify: Said) -> None:
    report = json.loads(verify({**generated(), "model": "another", "device": "cuda"}, "--json"))
    assert report["notes"][0] == "the document names the model 'another'"
    assert report["notes"][1].startswith("made on cuda in float32, judged on cpu in float32")
    counts = {name: report[name] for name in ("num_tokens", "num_choices", "num_ties", "num_different")}
    assert counts == {"num_tokens": NUM_TOKENS, "num_choices": NUM_TOKENS, "num_ties": 0, "num_different": 0}
    assert (report["verdict"], report["findings"], report["faults"]) == ("equal", [], [])


def test_the_document_sets_the_dtype(generated: Generated, verify: Said) -> None:
    document = generated("--dtype", "float16")
    assert json.loads(verify(document, "--json"))["dtype"] == "float16"
    assert json.loads(verify(document, "--json", "--dtype", "float32"))["dtype"] == "float32"


GOOD: Document = {
    "prompt_tokens": [1],
    "tokens": [2],
    "options": {},
    "acceptance": "coupled",
    "finish_reason": "length",
    "model": "big",
}
BAD_DOCUMENTS = [
    ("once upon a time", [], "is not a document of `selfdraft generate --json` (Expecting value"),
    ("once upon a time", [], "a plain text needs its prompt: --prompt or --prompt-file"),
    ("[1, 2]", [], "is not a document of `selfdraft generate --json`, got [1, 2]"),
    (
        {"tokens": [1], "acceptance": "coupled"},
        [],
        "lacks prompt_tokens, options, finish_reason; it must be a document",
    ),
    ({**GOOD, "tokens": "abc"}, [], "tokens in"),
    ({**GOOD, "tokens": [1, True]}, [], "must be a list of token ids, got [1, True]"),
    ({**GOOD, "prompt_tokens": [1.5]}, [], "must be a list of token ids, got [1.5]"),
    ({**GOOD, "prompt_tokens": []}, [], "the prompt is empty"),
    ({**GOOD, "tokens": [49151]}, [], "token id 49151 is outside the vocabulary; use ids from 0 to 111"),
    ({**GOOD, "tokens": [49151]}, [], "it was made with the model 'big'"),
    ({**GOOD, "tokens": [-1]}, [], "token id -1 is outside the vocabulary"),
    ({**GOOD, "prompt_tokens": [1] * CONTEXT_LENGTH}, [], f"context holds {CONTEXT_LENGTH}"),
    ({**GOOD, "options": {"top_q": 1}}, [], "unknown option of generate 'top_q'. Did you mean 'top_p'?"),
    ({**GOOD, "options": {"top_p": 7}}, [], "generate.top_p must be between 0 and 1, got 7"),
    ({**GOOD, "options": []}, [], "options in"),
    ({**GOOD, "acceptance": "typical"}, [], "unknown acceptance 'typical'"),
    ({**GOOD, "acceptance": None}, [], "unknown acceptance 'None'"),
    ({**GOOD, "finish_reason": "tired"}, [], "must be one of eos, stop, length, context, cancelled, got 'tired'"),
    ({**GOOD, "finish_reason": []}, [], "must be one of eos, stop, length, context, cancelled, got []"),
    ({**GOOD, "text": 3}, [], "must be text, got 3"),
    ({**GOOD, "dtype": "int3"}, [], "unknown dtype 'int3'"),
    (GOOD, ["--temperature", "1"], "a document says itself how it was made; leave out --temperature"),
    (GOOD, ["--raw"], "leave out --raw, or give --prompt"),
    (GOOD, ["--prompt", "abc"], "is a document that has its own prompt; leave out --prompt"),
    ("\n", ["--prompt", "abc"], "is empty: there is no text to judge"),
    ("abc", ["--prompt", " "], "the prompt is empty"),
    ("abc", ["--prompt-file", "no-such-file"], "cannot read no-such-file: No such file or directory"),
    ("abc", ["--prompt", "abc", "--top-p", "much"], "generate.top_p must be a number, got 'much'"),
    ("abc", ["--prompt", "abc", "--device", "gpu9"], "unknown or absent device 'gpu9'"),
]


@pytest.mark.parametrize(("content", "options", "message"), BAD_DOCUMENTS, ids=lambda value: str(value)[:40])
def test_bad_input_is_one_line_and_exit_code_2(
    verify: Said, content: Document | str, options: list[str], message: str
) -> None:
    error = verify(content, *options, status=2)
    assert error.startswith("selfdraft verify: error: ")
    assert message in error
    assert error.count("\n") == 1


def test_files_that_cannot_be_read(folder: str, tmp_path: Path, said: Said) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for file, message in [
        ("nothing", "No such file or directory"),
        (".", "Is a directory"),
        ("bytes", "is not UTF-8 text"),
    ]:
        assert message in said("verify", folder, str(tmp_path / file), status=2)
