"""The house rules: imports go one way, files and functions stay short, names do not change, the core needs little."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import json
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import selfdraft
from selfdraft.registry import AXES, find
from selfdraft.types import Generation, Stats

PACKAGE = Path(selfdraft.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_MEDIAN_LINES = 400, 60, 6

LEVELS = (
    ("errors", "version", "progress", "files", "lazy", "types", "passes", "drafted", "noise", "chains", "explanation"),
    ("protocols", "registry", "options", "economics", "fitting", "config", "explain"),
    ("kernels",),
    ("models",),
    ("profiles", "drafters"),
    ("strategies", "lookahead", "trees"),
    ("engine",),
    ("prompts",),
    ("measure",),
    ("calibrate",),
    ("bench", "serve", "measuring"),
    ("integrations",),
    ("__init__",),
    ("cli",),
    ("__main__",),
)
"""Who may import whom: what stands below. Single files of a level may import each other, folders of a level may not."""

LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}
BUDGETS = {
    "economics": 177,
    "kernels": 3550,
    "models": 2840,
    "models/gpu": 3255,
    "models/cpu": 785,
    "models/load": 988,
    "profiles": 1095,
    "drafters": 850,
    "strategies": 4585,
    "strategies/choosing": 676,
    "lookahead": 906,
    "trees": 150,
    "engine": 4772,
    "prompts": 490,
    "measure": 1630,
    "calibrate": 1800,
    "bench": 2275,
    "bench/papers": 5171,
    "serve": 2500,
    "integrations": 700,
    "cli": 4220,
}
"""Lines of a part at most. A folder inside one counts apart where it has a row of its own."""

CORE = {"torch", "transformers", "numpy", "tokenizers", "safetensors", "huggingface_hub"}
"""What `pip install torch transformers numpy` brings and the core may rely on; the last three are transformers' own."""
EXTRAS = {
    "kernels": {"triton"},
    "serve": {"uvicorn", "fastapi", "starlette", "pydantic", "openai", "prometheus_client", "llguidance"},
}
"""Of parts that are imported only where these are."""


# ------------------------------------------------------------------------------------------------ reading the house


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def part_of(path: Path) -> str:
    """The folder, or the single file, of the house that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def num_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def functions_of(path: Path) -> Iterator[tuple[str, int]]:
    """Name and number of lines of every function, also of those inside others."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.name, node.end_lineno - node.lineno + 1


def imported_modules(path: Path, nodes: Iterable[ast.AST] | None = None) -> Iterator[str]:
    """Absolute names of all that a file imports, also inside functions and for type checking; or of these nodes."""
    package = ("selfdraft", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(tree_of(path)) if nodes is None else nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            yield from (f"{module}.{alias.name}" for alias in node.names)


@functools.cache
def imported_files(path: Path) -> frozenset[Path]:
    """The files of the house that a file imports: each module by name, or the one that a name is taken from."""
    ours = [module for module in imported_modules(path) if module.partition(".")[0] == "selfdraft"]
    found = {module: file_of(module) or file_of(module.rpartition(".")[0]) for module in ours}
    missing = [module for module, file in found.items() if file is None]
    assert not missing, f"{name_of(path)} imports {missing}, not there"
    return frozenset(file for file in found.values() if file is not None) - {path}


def file_of(module: str) -> Path | None:
    inside = PACKAGE.joinpath(*module.split(".")[1:])
    return next((file for file in (inside.with_suffix(".py"), inside / "__init__.py") if file.is_file()), None)


def reached_from(path: Path) -> set[Path]:
    found: set[Path] = set()
    pending = list(imported_files(path))
    while pending:
        file = pending.pop()
        if file not in found:
            found.add(file)
            pending += imported_files(file)
    return found


def budget_of(path: Path) -> str:
    """The row of the budgets that a file counts for: the innermost folder that has one."""
    inside = path.relative_to(PACKAGE).with_suffix("")
    rows = [name.as_posix() for name in (inside, *inside.parents) if name.as_posix() in BUDGETS]
    return rows[0] if rows else ""


# ------------------------------------------------------------------------------------------------ its rules


def assert_none(offenders: Iterable[object]) -> None:
    """Lists them all."""
    listed = "\n".join(map(str, offenders))
    assert not listed, f"\n{listed}"


def test_every_part_has_its_place_and_budget():
    assert_none(sorted({part_of(path) for path in FILES} - set(LEVEL)))
    assert_none(sorted({part_of(path) for path in FILES if path.parent != PACKAGE} - set(BUDGETS)))


def is_below(part: str, other: str) -> bool:
    """Whether `part` may import `other`."""
    is_file = not (PACKAGE / part).is_dir()
    return LEVEL[other] < LEVEL[part] or part == other or (is_file and LEVEL[other] == LEVEL[part])


def test_imports_go_one_way():
    assert_none(
        f"{name_of(path)} imports {name_of(other)}"
        for path in FILES
        for other in imported_files(path)
        if not is_below(part_of(path), part_of(other))
    )


def test_files_do_not_import_each_other_in_circles():
    reached = {path: reached_from(path) for path in FILES}
    circles = {frozenset(one for one in reached[path] if path in reached[one]) for path in FILES} - {frozenset()}
    assert_none(sorted(map(name_of, circle)) for circle in circles)


def test_files_and_functions_are_short():
    functions = [(path, name, length) for path in FILES for name, length in functions_of(path)]
    assert_none((name_of(path), num_lines(path)) for path in FILES if num_lines(path) > MAX_FILE_LINES)
    assert_none((name_of(path), name, length) for path, name, length in functions if length > MAX_FUNCTION_LINES)
    assert statistics.median(length for *_, length in functions) <= MAX_MEDIAN_LINES


def test_folders_keep_to_their_budgets():
    lines: Counter[str] = Counter()
    for path in FILES:
        lines[budget_of(path)] += num_lines(path)
    assert_none(f"{name}: {lines[name]} lines, at most {most}" for name, most in BUDGETS.items() if lines[name] > most)


def test_every_file_says_what_it_is():
    assert_none(name_of(path) for path in FILES if tree_of(path).body and not ast.get_docstring(tree_of(path)))


def test_the_public_names():
    values = (
        "Chunk Comparison Event Figures Finding GenerateOptions Generation Piece Plan Profile Session SkipSet Stats "
        "StepRecord Stream TokenLogprobs Verification"
    )
    errors = "Download MissingExtra Model Option Profile Prompt SelfTest Selfdraft UnsupportedModel"
    names = {"__version__", "Engine", "compare", "decoder", "learn", "measure_methods", *values.split()}
    assert set(selfdraft.__all__) == names | {f"{name}Error" for name in errors.split()}
    assert all(hasattr(selfdraft, name) for name in selfdraft.__all__)
    assert (PACKAGE / "py.typed").exists()


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (Generation, "text tokens sources num_prompt_tokens finish_reason stats steps report seed pieces logprobs"),
        (
            Stats,
            "num_tokens num_rounds num_target_passes num_draft_steps num_accepted acceptance_rate "
            "mean_generated_length cached_prompt_tokens prefill_seconds decode_seconds optimise_seconds record_seconds "
            "draft_seconds "
            "verify_seconds tokens_per_second packed_bytes",
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


def run_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Everything but the inside of functions, where an import happens only when it is needed."""
    for inner in ast.iter_child_nodes(node):
        if not isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            yield inner
            yield from run_at_import(inner)


def foreign_imports(path: Path) -> set[str]:
    """What a file imports when it is imported, and the core does not bring."""
    allowed = CORE | EXTRAS.get(part_of(path), set())
    found = {module.partition(".")[0] for module in imported_modules(path, run_at_import(tree_of(path)))}
    return found - allowed - sys.stdlib_module_names - {"selfdraft"}


def test_the_core_imports_little():
    assert_none((name_of(path), foreign) for path in FILES if (foreign := foreign_imports(path)))


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


def run_alone(*arguments: str, blocked: set[str] = BLOCKED) -> subprocess.CompletedProcess[str]:
    """`python -m selfdraft ...` where only torch, transformers, numpy and what these need can be imported."""
    code = BLOCKER.format(blocked=blocked, ours=BLOCKED_FOR_US, arguments=arguments)
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=120, check=False)


def test_generate_without_any_extra(folder):
    done = run_alone("generate", "the-rain", "--model", folder, "--max-new-tokens", "12", "--json", "--compare")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert len(document["tokens"]) == 12
    assert document["comparison"] == "equal"


def test_the_blocker_blocks():
    assert "No module named 'argparse' (blocked)" in run_alone("--help", blocked={"argparse"}).stderr
