"""README and docs: short enough, every command is one that the command line takes, every link leads somewhere."""

from __future__ import annotations

import ast
import copy
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from selfdraft.cli.main import parse
from selfdraft.cli.parsers import PARSERS
from selfdraft.registry import AXES

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += sorted((ROOT / "custom_generate").rglob("*.md"))
FOLDERS = ("src", "benchmarks", "custom_generate", "examples", "tests")
CODE = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
PLACEHOLDERS = re.compile(r"\bNAME\b|\.\.\.|\||\bFILES\b")
OLD_WORDS = re.compile(r"\banew\b|\bso (many|much)\b|\bcannot be told\b|\bbehind\b|(?<!\")\bways\b", re.IGNORECASE)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def commands_of(text: str) -> Iterator[str]:
    """Lines of code that begin with `selfdraft`, their continuations joined, and whole commands in the text."""
    lines = iter(text.splitlines())
    is_fenced = False
    for line in lines:
        is_fenced ^= line.startswith("```")
        code = line.strip().removeprefix("$ ")
        if code.startswith("selfdraft ") and (is_fenced or line.startswith("    ")):
            while code.endswith("\\"):
                code = f"{code[:-1]} {next(lines).strip()}"
            yield code
    for code in re.findall(r"`(selfdraft [^`]+)`", text.replace("\n", " ")):
        if not PLACEHOLDERS.search(code) and (len(code.split()) > 2 or code.split()[1] not in NAMES):
            yield code


NAMES = set(PARSERS)
COMMANDS_SHOWN = [(name_of(page), command) for page in PAGES for command in commands_of(text_of(page))]


def test_there_are_commands_of_every_kind() -> None:
    assert {command.split()[1] for page, command in COMMANDS_SHOWN if page == "README.md"} == NAMES
    assert len(COMMANDS_SHOWN) > 50


def status_of(words: list[str]) -> object:
    """That of reading a command, without running it; --help ends with 0."""
    try:
        parse(words)
    except SystemExit as ended:
        return ended.code
    return 0


@pytest.mark.parametrize(("page", "command"), COMMANDS_SHOWN)
def test_a_command_is_one_that_the_command_line_takes(
    page: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(command, comments=True)[1:]
    status = status_of(list(itertools.takewhile(lambda word: word not in ("<", ">"), words)))
    assert status == 0, f"{page}: {command}\n{capsys.readouterr().err}"


def is_python(code: str) -> bool:
    is_entry = code.lstrip().startswith('"') and not code.startswith('"""')  # of a table
    try:
        ast.parse(f"{{{code}}}" if is_entry else code)
    except SyntaxError:
        return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_examples_in_python_can_be_read(page: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", text_of(page), re.DOTALL)
    assert [code for code in examples if not is_python(code)] == []


def test_the_readme_s_examples_run(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One after the other, as a newcomer would, with nothing learned; a pico model in place of the hub's."""
    from pico import pico, pico_tokenizer

    tokenizer = copy.deepcopy(pico_tokenizer())
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\\n{% endfor %}"
    model = pico("llama", vocab_size=len(tokenizer))
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    names = {"model": model, "tokenizer": tokenizer, "inputs": tokenizer("Once", return_tensors="pt")}
    blocks = re.findall(r"```python\n(.*?)```", text_of(ROOT / "README.md"), re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(block.replace("Qwen/Qwen2.5-1.5B-Instruct", "./model"), names)
    assert len(capsys.readouterr().out) > 64
    assert len(names["decode"].generations) == 1


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", text_of(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            titles = re.findall(r"^#+ (.+)$", text_of(target), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles], link


def test_the_language_is_plain() -> None:
    """Of pages and of code: docstrings, comments and messages, names as well."""
    files = [file for file in (*PAGES, *CODE) if file.name not in ("CONTRIBUTING.md", "test_docs.py")]
    lines = [(file, line) for file in files for line in text_of(file).splitlines()]
    assert [f"{name_of(file)}: {line.strip()}" for file, line in lines if OLD_WORDS.search(line)] == []


def test_every_picture_is_shown() -> None:
    """Those of papers are on their own page."""
    links = [(page, link) for page in PAGES for link in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text_of(page))]
    shown = {(page.parent / link).resolve() for page, link in links}
    pictures = (ROOT / "docs" / "images").rglob("*.png")
    assert {picture for picture in pictures if picture.parent.name not in ("results", "papers")} <= shown


def test_the_readme_is_a_page() -> None:
    assert len(text_of(ROOT / "README.md").splitlines()) <= 150


def test_the_readme_names_every_method() -> None:
    text = text_of(ROOT / "README.md")
    for axis, methods in AXES.items():
        (row,) = re.findall(rf"^\| \[?{axis}\b.*$", text, re.MULTILINE)
        assert set(re.findall(r"`([\w-]+)`", row)) == set(methods), axis


def test_the_first_example_uses_messages() -> None:
    """As the command line does; and one line says what a plain string is."""
    text = text_of(ROOT / "README.md")
    first = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    assert 'engine.generate([{"role": "user", "content": ' in first
    told = "A plain string is sent as is, words on the command line as one user message: pass messages to get the same"
    assert told in " ".join(text.split())


def test_the_demo_shows_the_default_against_plain_decoding_and_transformers() -> None:
    """A question, a text to rewrite, and the same again: what was learned is used."""
    text = text_of(ROOT / "Makefile")
    (show,) = re.findall(r"^SHOW := \$\(RUN\) (.*)$", text, re.MULTILINE)
    recipe = text.partition("\ndemo:")[2].partition("\n\n")[0].replace("$(SHOW)", f"$(RUN) {show}")
    commands = re.findall(r"@\$\(RUN\) (selfdraft [^\n<]*)", recipe)
    assert all(status_of(shlex.split(command)[1:]) == 0 for command in commands)
    _, *generated = (parse(shlex.split(command)[1:]) for command in commands)
    assert all(one.compare and one.transformers and one.explain and not one.strategy for one in generated)
    assert [one.prompt == "-" for one in generated] == [False, True, True]
