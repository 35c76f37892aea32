"""The house rules: imports go one way, files and functions stay short, names do not change, the core needs little."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import selfdraft
from pico import pico, pico_tokenizer
from selfdraft.registry import AXES, find
from selfdraft.types import Generation, Stats

PACKAGE = Path(selfdraft.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
MAX_FILE_LINES, MAX_FUNCTION_LINES = 400, 60

LEVELS = (
    ("version", "errors", "progress", "types", "passes", "protocols", "fitting"),
    ("registry", "options"),
    ("kernels",),
    ("models",),
    ("profiles", "drafters"),
    ("strategies", "lookahead", "trees"),
    ("engine",),
    ("calibrate",),
    ("bench", "serve", "cluster"),
    ("__init__",),
    ("cli",),
    ("__main__",),
)
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}
SIDE_BY_SIDE = ("version", "errors", "progress", "types", "passes", "protocols", "fitting", "registry", "options")
"""Single files of one level may import each other; folders of one level may not."""

CORE = {"torch", "transformers", "numpy", "tokenizers", "safetensors", "huggingface_hub"}
"""What `pip install torch transformers numpy` brings and the core may rely on; the last three are transformers' own."""


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def part_of(path: Path) -> str:
    """The folder, or the single file, of the house that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported_modules(path: Path) -> Iterator[str]:
    """Absolute names of all that a file imports, also inside functions and for type checking."""
    package = ("selfdraft", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            yield from (f"{module}.{alias.name}" for alias in node.names)


def imported_parts(path: Path) -> Iterator[str]:
    for module in imported_modules(path):
        first, _, rest = module.partition(".")
        if first == "selfdraft":
            part = rest.partition(".")[0]
            yield part if part in LEVEL else "__init__"


by_file = pytest.mark.parametrize("path", FILES, ids=name_of)


@by_file
def test_imports_go_one_way(path):
    part = part_of(path)
    for other in imported_parts(path):
        is_below = LEVEL[other] < LEVEL[part]
        is_beside = LEVEL[other] == LEVEL[part] and (part in SIDE_BY_SIDE or part == other)
        assert is_below or is_beside, f"{name_of(path)} imports {other}, which stands above or beside it"


def test_every_part_has_its_place():
    assert {part_of(path) for path in FILES} <= set(LEVEL)


@by_file
def test_files_and_functions_are_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_FILE_LINES
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno - node.lineno + 1 <= MAX_FUNCTION_LINES, f"{node.name} is too long"


@by_file
def test_every_file_says_what_it_is(path):
    tree = tree_of(path)
    assert not tree.body or ast.get_docstring(tree)


def test_the_public_names():
    assert set(selfdraft.__all__) == {
        "__version__",
        "Chunk",
        "Comparison",
        "DownloadError",
        "Engine",
        "Finding",
        "GenerateOptions",
        "Generation",
        "MissingExtraError",
        "ModelError",
        "OptionError",
        "Piece",
        "Plan",
        "ProfileError",
        "PromptError",
        "SelfTestError",
        "SelfdraftError",
        "SkipSet",
        "Stats",
        "StepRecord",
        "Stream",
        "UnsupportedModelError",
        "Verification",
        "compare",
        "decoder",
    }
    assert all(hasattr(selfdraft, name) for name in selfdraft.__all__)
    assert (PACKAGE / "py.typed").exists()


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (Generation, "text tokens sources num_prompt_tokens finish_reason stats steps report"),
        (
            Stats,
            "num_tokens num_rounds num_target_passes num_draft_steps num_accepted acceptance_rate "
            "mean_generated_length prefill_seconds decode_seconds optimise_seconds draft_seconds verify_seconds "
            "tokens_per_second",
        ),
    ],
)
def test_names_that_do_not_change(kind, names):
    assert [item.name for item in dataclasses.fields(kind)] == names.split()


METHODS = [(axis, name) for axis in ("strategy", "lookahead", "drafter", "tree") for name in AXES[axis]]


@pytest.mark.parametrize(("axis", "name"), METHODS)
def test_a_method_explains_itself(axis, name):
    method = find(axis, name)
    assert importlib.import_module(method.__module__).__doc__.startswith(f"`{name}`: ")
    assert dataclasses.is_dataclass(method.Options)
    for item in dataclasses.fields(method.Options):
        assert item.metadata["help"], f"{name}.{item.name} has no help text"


# ---------------------------------------------------------------------------------------------- few dependencies


def top_level_packages(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        yield node.module.partition(".")[0]


def guarded(tree: ast.Module) -> set[ast.AST]:
    """Everything inside a function, where an import happens only when it is needed."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {inner for function in functions for inner in ast.walk(function)}


@by_file
def test_the_core_imports_little(path):
    tree = tree_of(path)
    inside = guarded(tree)
    for node in ast.walk(tree):
        if node not in inside:
            allowed = CORE | {"triton"} if part_of(path) == "kernels" else CORE  # imported where they can run
            foreign = set(top_level_packages(node)) - allowed - sys.stdlib_module_names - {"selfdraft"}
            assert not foreign, f"{name_of(path)} imports {foreign} when it is imported"


BLOCKER = """
import importlib.util, sys
from importlib.abc import MetaPathFinder

BLOCKED = {blocked!r}

class Blocker(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        caller = sys._getframe(1)
        while caller and "importlib" in caller.f_code.co_filename:
            caller = caller.f_back
        is_ours = caller is not None and caller.f_globals.get("__name__", "").startswith("selfdraft")
        if name.partition(".")[0] in BLOCKED or (is_ours and name.partition(".")[0] in {ours!r}):
            raise ModuleNotFoundError(f"No module named {{name!r}} (blocked)", name=name)
        return None

find_spec = importlib.util.find_spec  # how others ask whether a package is there: with None for an answer
importlib.util.find_spec = lambda name, package=None: None if name in BLOCKED else find_spec(name, package)
sys.meta_path.insert(0, Blocker())
sys.argv = ["selfdraft", *{arguments!r}]
import runpy
runpy.run_module("selfdraft", run_name="__main__", alter_sys=True)
"""
BLOCKED = {"rich", "matplotlib", "gguf", "accelerate", "hypothesis", "pytest", "pydantic", "scipy", "sklearn", "pandas"}
BLOCKED_FOR_US = {"tqdm", "typer", "click", "requests", "httpx"}
"""transformers cannot do without some of these; we can."""


def run_alone(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m selfdraft ...` where only torch, transformers, numpy and what these need can be imported."""
    code = BLOCKER.format(blocked=BLOCKED, ours=BLOCKED_FOR_US, arguments=arguments)
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=120, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("models") / "pico-llama"
    pico("llama", vocab_size=len(pico_tokenizer())).save_pretrained(target)
    pico_tokenizer().save_pretrained(target)
    return target


def test_help_without_any_extra():
    done = run_alone("--help")
    assert done.returncode == 0, done.stderr
    assert all(command in done.stdout for command in ("generate", "verify", "info", "bench", "pull", "list"))
    assert "examples:" in done.stdout
    assert done.stderr == ""


def test_generate_without_any_extra(folder):
    done = run_alone("generate", "the rain", "--model", str(folder), "--max-new-tokens", "12", "--json", "--compare")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert len(document["tokens"]) == 12
    assert document["comparison"] == "equal"
    assert document["tokens"] == document["plain"]["tokens"]


def test_the_blocker_blocks():
    code = BLOCKER.format(blocked={"argparse"}, ours=set(), arguments=("--help",))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert "No module named 'argparse' (blocked)" in done.stderr


IN_CIRCLES = {"bench/reproduce/recipe.py", "bench/reproduce/workbench.py"}
"""To be deleted with bench/reproduce."""


def test_no_file_imports_itself_through_others():
    """Also not inside a function or for type checking: two files that need each other are one, or lack a third."""
    modules = {".".join(("selfdraft", *path.relative_to(PACKAGE).with_suffix("").parts)): path for path in FILES}
    files = {module.removesuffix(".__init__"): path for module, path in modules.items()}
    imports = {
        path: {files.get(name) or files.get(name.rpartition(".")[0]) for name in imported_modules(path)} - {None, path}
        for path in FILES
    }

    def reached_from(path: Path) -> set[Path]:
        found, new = set(), imports[path]
        while new:
            found |= new
            new = set().union(*(imports[other] for other in new)) - found
        return found

    assert {name_of(path) for path in FILES if path in reached_from(path)} == IN_CIRCLES, "import themselves"
