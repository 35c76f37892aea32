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
from selfdraft.cli.main import main
from selfdraft.cli.verify import SHAPING
from selfdraft.engine import audit
from selfdraft.options import GenerateOptions
from selfdraft.registry import ACCEPTANCES

Document = dict[str, Any]
NUM_TOKENS = 24
SAMPLED = ["--temperature", "0.9", "--top-p", "0.9", "--seed", "5"]


@pytest.fixture(scope="module")
def eos_folder(folder: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same model with an end-of-text token that it says after `abc`, but not at once."""
    engine = selfdraft.Engine(pico("llama"), letter_tokenizer())
    tokens = engine.generate("abc", max_new_tokens=30).tokens
    eos = next(token for index, token in enumerate(tokens) if index >= 6 and token not in tokens[:index])
    path = tmp_path_factory.mktemp("eos") / "model"
    shutil.copytree(folder, path)
    settings = json.loads((path / "generation_config.json").read_text())
    (path / "generation_config.json").write_text(json.dumps({**settings, "eos_token_id": eos}))
    return str(path)


@pytest.fixture(scope="module")
def engine() -> selfdraft.Engine:
    return selfdraft.Engine(pico("llama"), letter_tokenizer())


def generated(folder: str, capsys: pytest.CaptureFixture[str], *arguments: str) -> Document:
    assert main(["generate", "--model", folder, "--json", "--max-new-tokens", str(NUM_TOKENS), *arguments, "abc"]) == 0
    document: Document = json.loads(capsys.readouterr().out)
    return document


@pytest.fixture
def verify(tmp_path: Path, folder: str) -> Callable[..., int]:
    def call(document: Document | str, *arguments: str, model: str = folder) -> int:
        file = tmp_path / "file"
        file.write_text(document if isinstance(document, str) else json.dumps(document))
        return main(["verify", model, str(file), *arguments])

    return call


CALLS = {
    "greedy": [],
    "plain": ["--strategy", "off"],
    "top-p": SAMPLED,
    "top-k min-p": ["--temperature", "1.3", "--top-k", "20", "--min-p", "0.02", "--seed", "18446744073709551615"],
    "repetition": ["--repetition-penalty", "1.4"],
    "sampled repetition": [*SAMPLED, "--repetition-penalty", "1.4"],
    "lookup": [*SAMPLED, "--drafter", "lookup"],
}


@pytest.mark.parametrize("arguments", CALLS.values(), ids=CALLS.keys())
def test_a_true_document(
    folder: str, verify: Callable[..., int], arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    document = generated(folder, capsys, *arguments)
    assert verify(document) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{NUM_TOKENS} tokens: {NUM_TOKENS} the target's own choice, 0 ties, 0 different\n"
    assert captured.err == ""


def test_the_document_says_how_it_was_made(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    document = generated(folder, capsys, *SAMPLED, "--stop", "\x00")
    assert document["prompt_tokens"] == letter_tokenizer()("abc").input_ids
    assert set(document["options"]) == set(SHAPING)
    assert document["options"]["seed"] == document["seed"] == 5
    assert (document["options"]["top_p"], document["options"]["stop"]) == (0.9, ["\x00"])


def test_stop_strings(folder: str, verify: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    text = generated(folder, capsys)["text"]
    document = generated(folder, capsys, f"--stop={text[10:12]}")
    assert document["finish_reason"] == "stop"
    assert verify(document) == 0
    capsys.readouterr()
    whole = generated(folder, capsys)
    whole["options"]["stop"] = [text[10:12]]
    assert verify(whole) == 1
    assert "goes on after its end: token" in (output := capsys.readouterr().out)
    assert "completes a stop string" in output
    whole["options"]["stop"], whole["finish_reason"] = [], "stop"
    assert verify(whole) == 1
    assert "the text ends by length, but its finish_reason is stop" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], SAMPLED, ["--min-new-tokens", "20"]], ids=["greedy", "sampled", "min"])
def test_end_of_text(
    eos_folder: str, verify: Callable[..., int], arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    document = generated(eos_folder, capsys, *arguments)
    assert verify(document, model=eos_folder) == 0
    assert "0 different" in capsys.readouterr().out


def test_a_text_that_goes_on_behind_its_end(
    folder: str, eos_folder: str, verify: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    num_tokens = len(generated(eos_folder, capsys)["tokens"])
    assert verify(generated(folder, capsys), model=eos_folder) == 1
    output = capsys.readouterr().out
    assert f"goes on after its end: token {num_tokens - 1} is the end-of-text token" in output
    assert f"but there are {NUM_TOKENS}" in output


def test_a_text_that_stops_early(
    eos_folder: str, verify: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    document = generated(eos_folder, capsys)
    assert document["finish_reason"] == "eos"
    short = {**document, "tokens": document["tokens"][:-2]}
    assert verify(short, model=eos_folder) == 1
    output = capsys.readouterr().out
    assert "ends too early: its finish_reason is eos, but its last token is not an end-of-text token" in output
    assert "0 different" in output, "the tokens that are there are right"
    assert verify({**short, "finish_reason": "length"}, model=eos_folder) == 1
    assert f"but it has {len(short['tokens'])} tokens of {NUM_TOKENS}" in capsys.readouterr().out
    assert verify({**short, "finish_reason": "cancelled", "text": None}, model=eos_folder) == 0


def test_a_text_that_is_too_long(folder: str, verify: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    document = generated(folder, capsys)
    document["options"]["max_new_tokens"] = NUM_TOKENS - 1
    assert verify(document) == 1
    assert f"context allow {NUM_TOKENS - 1} tokens, but there are {NUM_TOKENS}" in capsys.readouterr().out


def test_a_text_that_overruns_the_context(engine: selfdraft.Engine) -> None:
    tokens = [*engine.generate("abc", max_new_tokens=300).tokens, 1, 2]
    found = engine.verify("abc", tokens, max_new_tokens=300)
    assert (found.num_tokens, found.verdict) == (CONTEXT_LENGTH - 3, "different")
    assert f"context allow {CONTEXT_LENGTH - 3} tokens, but there are {CONTEXT_LENGTH - 1}" in found.faults[0]


def test_a_text_its_tokens_do_not_spell(
    folder: str, verify: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    document = generated(folder, capsys)
    assert verify({**document, "text": document["text"] + "!"}) == 1
    assert "the text is not what its tokens spell" in capsys.readouterr().out


def test_a_changed_token(folder: str, verify: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    document = generated(folder, capsys)
    choice = document["tokens"][17]
    token = document["tokens"][17] = (choice + 5) % VOCAB_SIZE
    with torch.inference_mode():
        prefix = torch.tensor([[*document["prompt_tokens"], *document["tokens"][:17]]])
        scores = pico("llama")(prefix).logits[0, -1]
    assert verify(document, "--json") == 1
    report = json.loads(capsys.readouterr().out)
    first = report["findings"][0]
    assert (first["index"], first["token"], first["choice"], first["verdict"]) == (17, token, choice, "different")
    assert (first["text"], first["choice_text"]) == (chr(33 + token), chr(33 + choice))
    assert first["gap"] == pytest.approx(float(scores[choice] - scores[token]), rel=1e-4)
    assert report["num_choices"] + report["num_different"] + report["num_ties"] == report["num_tokens"] == NUM_TOKENS
    assert (report["verdict"], report["rule"]) == ("different", "choice")
    assert verify(document) == 1
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith("token 17    different ")
    assert f"(id {token}); the target chooses " in line
    assert f"gap {first['gap']:.3g}" in line


@pytest.mark.parametrize("change", [{"seed": 6}, {"temperature": 1.2}, {"top_p": 0.2}], ids=str)
def test_another_seed_or_option_is_found_out(
    folder: str, verify: Callable[..., int], change: Document, capsys: pytest.CaptureFixture[str]
) -> None:
    document = generated(folder, capsys, *SAMPLED)
    document["options"] |= change
    assert verify(document) == 1


class TestRejection:
    """A text that follows the target's distribution, but is no function of the seed."""

    def test_possible_is_all_that_is_said(
        self, folder: str, verify: Callable[..., int], capsys: pytest.CaptureFixture[str]
    ) -> None:
        document = generated(folder, capsys, *SAMPLED)
        document["acceptance"], document["options"]["seed"] = "rejection", 77
        assert verify(document) == 0
        output = capsys.readouterr().out
        assert output.startswith(
            f"{NUM_TOKENS} tokens: {NUM_TOKENS} possible, 0 ties, 0 different\nnote: rejection sampling"
        )

    def test_an_impossible_token(
        self, folder: str, verify: Callable[..., int], capsys: pytest.CaptureFixture[str]
    ) -> None:
        document = generated(folder, capsys, "--temperature", "0.9", "--top-k", "3")
        document["acceptance"] = "rejection"
        with torch.inference_mode():
            prefix = torch.tensor([[*document["prompt_tokens"], *document["tokens"][:9]]])
            order = pico("llama")(prefix).logits[0, -1].argsort(descending=True).tolist()
        document["tokens"][9] = order[3]
        assert verify(document, "--json") == 1
        report = json.loads(capsys.readouterr().out)
        first = report["findings"][0]
        assert (first["index"], first["choice"], first["gap"], report["rule"]) == (9, order[0], None, "possible")
        verify(document)
        assert "likeliest is" in (output := capsys.readouterr().out)
        assert "ruled out by the options" in output

    def test_greedy_is_judged_by_choice(
        self, folder: str, verify: Callable[..., int], capsys: pytest.CaptureFixture[str]
    ) -> None:
        document = generated(folder, capsys)
        document["acceptance"] = "rejection"
        assert verify(document) == 0
        assert f"{NUM_TOKENS} the target's own choice" in capsys.readouterr().out

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

    @pytest.mark.parametrize(
        ("prompt", "tokens", "options", "message"),
        [
            (["a", "b"], [1], {}, "verify judges one text"),
            ("abc", [VOCAB_SIZE], {}, f"token id {VOCAB_SIZE} is outside the vocabulary"),
            ("abc", [1], {"acceptance": "typical"}, "unknown acceptance 'typical'. Known: coupled, rejection"),
            ("abc", [1], {"temprature": 1}, "Did you mean 'temperature'?"),
        ],
        ids=["batch", "vocabulary", "acceptance", "option"],
    )
    def test_errors(
        self, engine: selfdraft.Engine, prompt: Any, tokens: list[int], options: Document, message: str
    ) -> None:
        with pytest.raises(selfdraft.SelfdraftError) as error:
            engine.verify(prompt, tokens, **options)
        assert message in str(error.value)


class TestPlainText:
    def test_greedy(self, folder: str, verify: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
        text = generated(folder, capsys)["text"]
        assert verify(text + "\n", "--prompt", "abc") == 0
        output = capsys.readouterr().out
        assert output.startswith(f"{NUM_TOKENS} tokens: {NUM_TOKENS} the target's own choice, 0 ties, 0 different\n")
        assert "note: the text was tokenised again" in output
        assert verify(text[:20] + "!" + text[21:], "--prompt", "abc", "--raw") == 1

    def test_sampled(
        self, folder: str, verify: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        text = generated(folder, capsys, *SAMPLED)["text"]
        (tmp_path / "prompt").write_text("abc")
        arguments = ["--prompt-file", str(tmp_path / "prompt")]
        assert verify(text, *arguments, *SAMPLED, "--min-new-tokens", "2") == 0
        assert verify(text, *arguments) == 1

    def test_the_chat_template(
        self, folder: str, tmp_path: Path, verify: Callable[..., int], capsys: pytest.CaptureFixture[str]
    ) -> None:
        chatty = tmp_path / "chatty"
        shutil.copytree(folder, chatty)
        (chatty / "chat_template.jinja").write_text("{% for m in messages %}<{{ m['content'] }}>{% endfor %}")
        text = generated(str(chatty), capsys)["text"]
        assert verify(text, "--prompt", "abc", model=str(chatty)) == 0
        assert verify(text, "--prompt", "<abc>", "--raw", model=str(chatty)) == 0
        assert verify(text, "--prompt", "abc", "--raw", model=str(chatty)) == 1


def test_standard_input(folder: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    document = generated(folder, capsys)
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(document)))
    assert main(["verify", folder, "-"]) == 0


def test_json_and_notes(folder: str, verify: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    document = generated(folder, capsys)
    assert verify({**document, "model": "another", "device": "cuda"}, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["notes"][0] == "the document names the model 'another'"
    assert report["notes"][1].startswith("made on cuda in float32, judged on cpu in float32")
    counts = {name: report[name] for name in ("num_tokens", "num_choices", "num_ties", "num_different")}
    assert counts == {"num_tokens": NUM_TOKENS, "num_choices": NUM_TOKENS, "num_ties": 0, "num_different": 0}
    assert (report["verdict"], report["findings"], report["faults"]) == ("equal", [], [])


def test_the_document_sets_the_dtype(
    folder: str, verify: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    document = generated(folder, capsys, "--dtype", "float16")
    verify(document, "--json")
    assert json.loads(capsys.readouterr().out)["dtype"] == "float16"
    verify(document, "--json", "--dtype", "float32")
    assert json.loads(capsys.readouterr().out)["dtype"] == "float32"


GOOD: Document = {
    "prompt_tokens": [1],
    "tokens": [2],
    "options": {},
    "acceptance": "coupled",
    "finish_reason": "length",
    "model": "big",
}
BAD_DOCUMENTS = [
    ("once upon a time", [], "is not a JSON document of `selfdraft generate --json` (Expecting value"),
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
    ({**GOOD, "finish_reason": "tired"}, [], "must be one of eos, stop, length, cancelled, got 'tired'"),
    ({**GOOD, "finish_reason": []}, [], "must be one of eos, stop, length, cancelled, got []"),
    ({**GOOD, "text": 3}, [], "must be text, got 3"),
    ({**GOOD, "dtype": "int3"}, [], "unknown dtype 'int3'"),
    (GOOD, ["--temperature", "1"], "a document says itself how it was made; leave out --temperature"),
    (GOOD, ["--raw"], "leave out --raw, or give --prompt"),
    (GOOD, ["--prompt", "abc"], "is a document that has its own prompt; leave out --prompt"),
    ("\n", ["--prompt", "abc"], "is empty: there is no text to judge"),
    ("abc", ["--prompt", " "], "the prompt is empty"),
    ("abc", ["--prompt", "a", "--prompt-file", "b"], "two prompts; leave one out"),
    ("abc", ["--prompt-file", "no-such-file"], "cannot read no-such-file: No such file or directory"),
    ("abc", ["--prompt", "abc", "--top-p", "much"], "generate.top_p must be a number, got 'much'"),
    ("abc", ["--prompt", "abc", "--device", "gpu9"], "unknown or absent device 'gpu9'"),
]


@pytest.mark.parametrize(("content", "arguments", "message"), BAD_DOCUMENTS, ids=lambda value: str(value)[:40])
def test_bad_input_is_one_line_and_exit_code_2(
    verify: Callable[..., int],
    content: Document | str,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert verify(content, *arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("selfdraft verify: error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_files_that_cannot_be_read(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", folder, str(tmp_path / "nothing")]) == 2
    assert "No such file or directory" in capsys.readouterr().err
    assert main(["verify", folder, str(tmp_path)]) == 2
    assert "Is a directory" in capsys.readouterr().err
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    assert main(["verify", folder, str(tmp_path / "bytes")]) == 2
    assert "is not UTF-8 text" in capsys.readouterr().err
    assert main(["verify", folder, "-", "--prompt-file", "-"]) == 2
    assert "cannot both come from standard input" in capsys.readouterr().err
