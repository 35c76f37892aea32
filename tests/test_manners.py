"""What commands write where: a table of commands with standard input, standard output, standard error and exit code."""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import selfdraft
from selfdraft import Engine
from selfdraft.cli.generate import AS_MESSAGE
from selfdraft.cli.main import main
from selfdraft.errors import OptionError

TEXT, JSON, TABLE, NOTHING = "text", "json", "table", "nothing"
TEMPLATE = "{% for message in messages %}<{{ message.role[0] }}>{{ message.content }}{% endfor %}"
FIGURES = ("tokens/s", "ended by length")
OFF_NOTE = "note: --strategy off decodes plainly; --drafter lookup, --tree siblings is not used"


class Case(NamedTuple):
    command: str
    output: str
    """Of standard output: the text and a line break, a JSON document, a table, or nothing."""
    errors: tuple[str, ...] = ()
    """Parts of standard error, in this order; none: it is empty."""
    status: int = 0
    stdin: bytes | None = None
    """What a pipe holds; None: /dev/null."""
    absent: str = "Warning"
    """What standard error does not say."""


G = "generate --model MODEL --max-new-tokens 6"
C = "generate --model CHAT --max-new-tokens 6"
B = "bench MODEL --peers none --max-new-tokens 4 --prompts PROMPTS --per-domain 1"
CASES = [
    Case(f"{G} --strategy uniform abc", TEXT, ("drafting", "ended by length"), absent=AS_MESSAGE),
    Case(f"{G} --json abc", JSON),
    Case(f"{G} --compare --drafter lookup abc", TEXT, ("drafting", "plain", "outputs: equal", "speed-up:")),
    Case(f"{G} --compare --json --drafter lookup abc", JSON),
    Case(f"{G} --strategy off abc", TEXT, ("plain", "ended by length"), absent="drafting"),
    Case(f"{G} --strategy off --compare abc", TEXT, ("plain", "outputs: equal", "speed-up:"), absent="draft"),
    Case(f"{G} --strategy off --drafter lookup --tree siblings abc", TEXT, (f"{OFF_NOTE}\n", *FIGURES)),
    Case(f"{G} --strategy off --drafter lookup --tree siblings --json abc", JSON, (f"{OFF_NOTE}\n",)),
    Case(f"{G} --strategy lookup abc", NOTHING, ("use --drafter lookup",), 2),
    Case(f"{G} --drafter lookup --set lookup.min_ngram=1 --json abc", JSON),
    Case(f"{G} --set lookup.min_ngram=1 abc", NOTHING, ("lookup.min_ngram is set", "add --drafter lookup"), 2),
    Case(
        f"{G} --strategy off --drafter lookup --set lookup.min_ngram=1 abc",
        NOTHING,
        ("lookup.min_ngram is set, but the strategy 'off' drafts nothing; choose another one, or leave it out",),
        2,
        absent="add --drafter lookup",
    ),
    Case(f"{G} --strategy prune --set siblings.lookup=1 abc", NOTHING, ("needs to know the model",), 2),
    Case(f"{G} --strategy knn --set prune.gain=0.1 abc", NOTHING, ("needs to know the model",), 2),
    Case(f"{G} abc", TEXT, FIGURES, stdin=b"def\n"),
    Case(f"{G}", TEXT, FIGURES, stdin=b"def\n"),
    Case(f"{G} --raw abc", TEXT, FIGURES, stdin=b""),
    Case(f"{G}", NOTHING, ("no prompt is given",), 2),
    Case(f"{G}", NOTHING, ("no prompt is given",), 2, stdin=b""),
    Case(f"{G}", NOTHING, ("the prompt is empty",), 2, stdin=b"\n \n"),
    Case(f"{G} -", NOTHING, ("the prompt is empty",), 2),
    Case(f"{G}", NOTHING, ("standard input is not UTF-8 text",), 2, stdin=b"a\xff"),
    Case(f"{G} abc --prompt-file WORDS --json", JSON, stdin=b"def\n"),
    Case(f"{G} --prompt-file ''", NOTHING, ("cannot read '': ",), 2),
    Case(f"{G} --prompt-file nowhere.txt abc", NOTHING, ("cannot read nowhere.txt: No such file",), 2),
    Case(f"{G} --prompt-file EMPTY", NOTHING, ("the prompt is empty",), 2),
    Case(f"{C} abc", TEXT, (*FIGURES, f"\n{AS_MESSAGE}\n")),
    Case(f"{C} --raw abc", TEXT, FIGURES, absent=AS_MESSAGE),
    Case(f"{C} --system be abc", TEXT, FIGURES, absent=AS_MESSAGE),
    Case(f"{C} --messages MESSAGES", TEXT, FIGURES, absent=AS_MESSAGE),
    Case(f"{C} --messages - --json", JSON, stdin=b'[{"role": "user", "content": "abc"}]'),
    Case(f"{C} --messages SYSTEM --system be abc", NOTHING, ("has a system message; leave out --system",), 2),
    Case(f"{C} --messages nowhere.json", NOTHING, ("cannot read nowhere.json",), 2),
    Case(f"{C} --messages WORDS", NOTHING, ("is not JSON: ",), 2),
    Case(f"{G} --messages MESSAGES", NOTHING, ("need a chat template, and this model's tokenizer has none",), 2),
    Case(f"{G} --seed random --temperature 1 --json abc", JSON, ("seed ",)),
    Case(f"{G} --seed none abc", NOTHING, ("generate.seed must be a whole number, got 'none'",), 2),
    Case(f"{G} --dtype bf16 --json abc", JSON, ("",)),  # torch may have something to say
    Case(f"{G} --threads 1 --json abc", JSON),
    Case(f"{B} --drafter lookup", TABLE, ("texts measured: ",)),
    Case(f"{B} --drafter lookup --json", JSON, ("texts measured: ",)),
    Case(f"{B} --drafter lookup --output RESULT", TABLE, ("texts measured: ",)),
    Case(f"{B} --strategy off", NOTHING, ("--strategy off is plain decoding, which is always measured",), 2),
    Case(f"{B} --variant 'a: strategy=off drafter=lookup'", TABLE, ("--drafter lookup is not used",)),
    Case(f"{B} --strategies prune --set lookup.min_ngram=1", NOTHING, ("lookup.min_ngram is set", "--drafter"), 2),
]


@pytest.fixture(scope="module")
def files(folder: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What words in capitals stand for."""
    place = tmp_path_factory.mktemp("manners")
    chat = shutil.copytree(folder, place / "chat")
    (chat / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    user = {"role": "user", "content": "abc"}
    texts = {
        "WORDS": "ghi\n",
        "EMPTY": "",
        "MESSAGES": json.dumps([user]),
        "SYSTEM": json.dumps([{"role": "system", "content": "a"}, user]),
        "PROMPTS": "\n".join(json.dumps({"domain": name, "prompt": f"{name}bc"}) for name in ("code", "chat")),
    }
    for name, text in texts.items():
        (place / name).write_text(text, encoding="utf-8")
    return {
        "MODEL": folder,
        "CHAT": str(chat),
        "RESULT": str(place / "r"),
        **{name: str(place / name) for name in texts},
    }


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes | None], None]]:
    """Makes standard input a pipe that holds some bytes and has ended, or /dev/null."""
    opened: list[io.TextIOWrapper] = []

    def make(content: bytes | None) -> None:
        if content is None:
            opened.append(open(os.devnull, encoding="utf-8"))  # noqa: SIM115
        else:
            reading, writing = os.pipe()
            os.write(writing, content)
            os.close(writing)
            opened.append(open(reading, encoding="utf-8"))  # noqa: SIM115
        monkeypatch.setattr(sys, "stdin", opened[-1])

    yield make
    for file in opened:
        file.close()


@pytest.mark.parametrize("case", CASES, ids=[f"{case.command}, {case.stdin}" for case in CASES])
def test_a_command(
    case: Case,
    files: dict[str, str],
    stdin: Callable[[bytes | None], None],
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    stdin(case.stdin)
    with warnings.catch_warnings(record=True) as caught:  # Python would write them to standard error
        warnings.simplefilter("always")
        status = main([files.get(word, word) for word in shlex.split(case.command)])
    output, error = capsys.readouterr()
    assert status == case.status, error
    assert [str(one.message) for one in caught if issubclass(one.category, UserWarning)] == []
    place = 0
    for part in case.errors:
        assert part in error[place:], error
        place = error.index(part, place) + len(part)
    assert case.errors or error == ""
    assert case.absent not in error
    assert status != 2 or error.count("\n") == 1
    check_output(case.output, output)


def check_output(kind: str, output: str) -> None:
    """The text has six characters, some of them line breaks perhaps."""
    if kind == JSON:
        assert output.count("\n") == 1
        assert isinstance(json.loads(output), dict)
    elif kind == TEXT:
        assert len(output) == 7
        assert output.endswith("\n")
    elif kind == TABLE:
        assert "speed-up" in output
        assert "{" not in output
    else:
        assert output == ""


def test_bench_keeps_its_document_where_it_is_told(files: dict[str, str], home: Path, capsys: Any) -> None:
    """`--json` is the document alone, `--output` a file that `report` reads."""
    command = [files.get(word, word) for word in shlex.split(f"{B} --drafter lookup --again")]
    result = Path(files["RESULT"]).with_suffix(".jsonl")
    assert main([*command, "--output", str(result)]) == 0
    table = capsys.readouterr().out
    assert all(isinstance(json.loads(line), dict) for line in result.read_text(encoding="utf-8").splitlines())
    assert main(["report", str(result)]) == 0
    assert "lookup" in capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["benchmark"] == "methods"
    assert not table.rstrip().endswith("}")


def test_prompt_file_and_pipe_follow_in_this_order(files: dict[str, str], stdin: Any, capsys: Any) -> None:
    stdin(b"ghi\n")
    words = Path(files["WORDS"]).with_name("two")
    words.write_text("def\n", encoding="utf-8")
    command = f"generate --model MODEL --max-new-tokens 1 --json abc --prompt-file {words}"
    assert main([files.get(word, word) for word in command.split()]) == 0
    found = json.loads(capsys.readouterr().out)["prompt_tokens"]
    stdin(None)
    assert main(["generate", "--model", files["MODEL"], "--max-new-tokens", "1", "--json", "abc\n\ndef\n\nghi"]) == 0
    assert found == json.loads(capsys.readouterr().out)["prompt_tokens"]


# ------------------------------------------------------------------------------------------------ in Python


def test_off_with_a_drafter_is_told_at_the_line_of_the_caller(files: dict[str, str]) -> None:
    engine = Engine.from_pretrained(files["MODEL"])
    calls: list[Callable[[], Any]] = [
        lambda: engine.generate("abc", max_new_tokens=1, strategy="off", drafter="lookup"),
        lambda: engine.stream("abc", max_new_tokens=1, strategy="off", drafter="lookup"),
        lambda: engine.fork(method={"strategy": "off"}).generate("abc", max_new_tokens=1, drafter="lookup"),
        lambda: Engine.from_pretrained(files["MODEL"], strategy="off", drafter="lookup"),
        lambda: selfdraft.decoder(strategy="off", drafter="lookup"),
    ]
    for call in calls:
        with pytest.warns(UserWarning, match="strategy='off' decodes plainly: drafter='lookup' is not used") as told:
            call()
        assert [Path(one.filename).name for one in told] == [Path(__file__).name]


def test_lookup_as_a_strategy_in_python(files: dict[str, str]) -> None:
    message = r"'lookup' is a drafter, not a strategy; use --drafter lookup \(in Python: drafter='lookup'\)"
    engine = Engine.from_pretrained(files["MODEL"])
    for call in (
        lambda: Engine(engine.model, engine.tokenizer, strategy="lookup"),
        lambda: Engine.from_pretrained(files["MODEL"], strategy="lookup"),
        lambda: engine.generate("abc", strategy="lookup"),
        lambda: selfdraft.decoder(strategy="lookup"),
    ):
        with pytest.raises(OptionError, match=message):
            call()


def test_a_chat_model_that_says_nothing_after_a_plain_string(files: dict[str, str]) -> None:
    """Nothing but a warning: the text is as it is."""

    def ends_after(model: str, text: str) -> Engine:
        """One for which what it would say first is the end of the text."""
        engine = Engine.from_pretrained(files[model])
        engine.tokenizer.add_special_tokens({"eos_token": str(engine.generate(text, max_new_tokens=1))})
        engine.model.generation_config.eos_token_id = engine.tokenizer.eos_token_id
        return engine

    engine = ends_after("CHAT", "abc")
    with pytest.warns(UserWarning, match="says nothing after this plain string.*pass messages: ") as told:
        assert str(engine.generate("abc", max_new_tokens=3)) == ""
    assert Path(told[0].filename).name == Path(__file__).name
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert str(engine.generate("def", max_new_tokens=3)) != ""
        assert str(ends_after("CHAT", "<u>abc").generate([{"role": "user", "content": "abc"}], max_new_tokens=3)) == ""
        assert str(ends_after("MODEL", "abc").generate("abc", max_new_tokens=3)) == ""
