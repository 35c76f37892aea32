"""Wrong commands: each is told in one line what is wrong, with exit code 2, before a model is loaded."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

import pytest

import selfdraft
from selfdraft.bench.methods import PRESETS
from selfdraft.bench.papers.experiment import MainTable
from selfdraft.bench.papers.recipes import RECIPES
from selfdraft.bench.papers.workbench import QUICK, QUICK_SECONDS, WHOLE
from selfdraft.bench.tables import LEGEND
from selfdraft.calibrate.calibrate import USUAL_TOKENS, USUAL_TOKENS_ON_CPU
from selfdraft.calibrate.lookahead import USUAL_TOKENS as LOOKAHEAD_TOKENS
from selfdraft.calibrate.training import LABELS
from selfdraft.calibrate.tuning import TUNABLE
from selfdraft.cli.calibrate import DEFAULT_STRATEGY
from selfdraft.cli.main import MOVED, main
from selfdraft.cli.parsers import PARSERS
from selfdraft.cli.parsers.arguments import DTYPES
from selfdraft.cli.parsers.learn import LEARNED
from selfdraft.errors import DownloadError, OptionError
from selfdraft.explain import WHEN
from selfdraft.measure.peers import PEERS
from selfdraft.models.load import loading
from selfdraft.prompts.sets import PROMPT_SETS
from selfdraft.registry import AXES

REFUSED = [
    (
        "generate abc compare",
        "nothing is known to do with 'compare'; put a text of several words in quotes, or did",
    ),
    ("bench MODEL quick", "nothing is known to do with 'quick'; did you mean --quick?"),
    ("bench quick", "unknown model 'quick'; did you mean --quick?"),
    ("info methods", "unknown model 'methods'; did you mean --methods?"),
    ("generate abc --foo", "unknown flag --foo; see selfdraft generate --help"),
    ("generat abc", "unknown command 'generat'. Did you mean 'generate'? Known: bench, "),
    (
        "generate abc --max-new-token 3",
        "selfdraft generate: error: unknown flag --max-new-token; did you mean --max-new-tokens?",
    ),
    ("profile show --contxt 3", "selfdraft profile show: error: unknown flag --contxt; did you mean --context?"),
    ("bench --zzz", "selfdraft bench: error: unknown flag --zzz; see selfdraft bench --help"),
    (
        "generate why is the sky blue",
        "nothing is known to do with 'is the sky blue'; put a text of several words in quotes",
    ),
    ("--verson", "selfdraft: error: unknown flag --verson; did you mean --version?"),
    ("info --methods prune MODEL", "--methods describes methods, not a model; leave out 'MODEL'"),
    ("info --methods --device cpu --threads 2", "not a model; leave out --device, --threads"),
    ("--completion tcsh", "unknown shell 'tcsh'. Known: bash, fish, zsh"),
    ("info --methods prun", "unknown method 'prun'. Did you mean 'prune'?"),
    ("generate", "no prompt is given; pass a text, --prompt-file or --messages, or pipe one in"),
    ("generate abc --strategy lookup", "'lookup' is a drafter, not a strategy; use --drafter lookup (in Python: "),
    ("generate abc --lookahead off", "'off' is a strategy, not a lookahead; use --strategy off"),
    ("bench --strategies lookup", "'lookup' is a drafter, not a strategy; use --drafter lookup"),
    ("generate abc --set swift.window=64", "swift.window is set, but nothing chosen reads it; add --strategy swift"),
    ("generate abc --set fixed.tokens=3", "fixed.tokens is set, but nothing chosen reads it; add --lookahead fixed ("),
    (
        "generate abc --strategy off --set confidence.threshold=0.5",
        "confidence.threshold is set, but the strategy 'off'",
    ),
    ("generate abc --strategy knn --set draft-verify.iterations=3", "draft-verify.iterations is set, but nothing"),
    ("bench --strategies prune --set swift.window=64", "swift.window is set, but nothing chosen reads it"),
    ("calibrate --set swift.window=64", "swift.window is set, but nothing chosen reads it; add --strategy swift"),
    ("calibrate --lookahead fixed --set swift.window=64", "swift.window is set, but nothing chosen reads it"),
    ("generate --prompt-file nowhere.txt", "cannot read nowhere.txt"),
    ("serve --api-key-file nowhere.txt", "the API keys cannot be read from 'nowhere.txt'"),
    ("chat --messages nowhere.json", "cannot read nowhere.json"),
    ("serve --strategy swfit", "unknown strategy 'swfit'. Did you mean 'swift'?"),
    ("generate abc --messages nowhere.json", "cannot read nowhere.json"),
    ("generate --messages PROMPTS", "is not JSON"),
    ("generate - --prompt-file -", "standard input can be read once"),
    ("generate abc --system Hi --raw", "--raw sends the prompt as it is; leave out --system and --messages"),
    ("generate abc --seed rand", "generate.seed must be a whole number, got 'rand'"),
    ("generate abc --threads 0", "must be a whole number of at least 1, got '0'"),
    ("generate ''", "the prompt is empty"),
    ("generate abc --strategy unifrom", "unknown strategy 'unifrom'. Did you mean 'uniform'?"),
    ("generate abc --lookahead oracle", "the lookahead 'oracle' cannot generate"),
    ("generate abc --set uniform.ration=1", "unknown option of uniform 'ration'. Did you mean 'ratio'?"),
    ("generate abc --strategy zzz", "unknown strategy 'zzz'. Known: asd, auto, clasp, "),
    (
        "generate abc --acceptance couple",
        "unknown acceptance 'couple'. Did you mean 'coupled'? Known: coupled, rejection",
    ),
    ("generate abc --set unifrom.ratio=1", "unknown method in the settings 'unifrom'. Did you mean 'uniform'? Known: "),
    ("generate abc --set coupled.x=1", "unknown method in the settings 'coupled'."),
    ("generate abc --set fixed.tokns=1", "option of fixed 'tokns'. Did you mean 'tokens'? Known: skip, tokens"),
    ("generate abc --set off.ratio=1", "off has no options, got 'ratio'; leave it out"),
    ("generate abc --set uniform", "cannot read --set 'uniform'; write METHOD.OPTION=VALUE"),
    ("generate abc --set uniform.ratio=much", "uniform.ratio must be a number, got 'much'"),
    ("generate abc --max-new-tokens -3", "generate.max_new_tokens must be at least 1, got -3"),
    ("generate abc --max-new-tokens many", "generate.max_new_tokens must be a whole number, got 'many'"),
    ("generate abc --device gpu9", "unknown or absent device 'gpu9'. Possible here: cpu"),
    ("generate abc --dtype int3", "unknown dtype 'int3'. Possible: float32, bfloat16, float16, fp32, bf16, fp16"),
    ("verify MODEL", "the following arguments are required: file"),
    ("verify MODEL nowhere.json", "cannot read nowhere.json"),
    ("verify MODEL - --prompt a --prompt-file b", "--prompt and --prompt-file are two prompts; leave one out"),
    ("verify MODEL - --prompt-file -", "prompt and text cannot both come from standard input"),
    ("info ./no-such-folder", "no model at no-such-folder: not a folder"),
    ("info --dtype int3", "unknown dtype 'int3'"),
    ("pull smollm2", "Did you mean 'smollm2-135m-instruct'"),
    ("calibrate --budget soon", "cannot read the time 'soon'; write it like 90s, 10m or 1h"),
    ("calibrate --budget 0", "cannot read the time '0'"),
    ("calibrate --tokens 0", "must be a whole number of at least 1, got '0'"),
    ("calibrate --trial-prompts -1", "must be a whole number of at least 0, got '-1'"),
    ("calibrate --strategy prun", "unknown strategy 'prun'. Did you mean 'prune'?"),
    ("calibrate --strategy off", "nothing to learn for the strategy 'off'"),
    ("calibrate --domain poems", "unknown domain 'poems'. Known: chat, code, math"),
    ("calibrate --prompts nowhere.jsonl", "cannot read nowhere.jsonl"),
    ("calibrate --device toaster", "unknown or absent device 'toaster'"),
    ("calibrate --strategy knn --set knn.clusters=-1", "knn.clusters must be at least 0"),
    ("calibrate --strategy knn --set knn.search=uniform", "knn.search='uniform' cannot search"),
    ("calibrate --strategy knn --set knn.anchor=3", "unknown option of knn 'anchor'. Did you mean 'anchors'?"),
    ("calibrate --drafter lookup", "--drafter needs --lookahead NAME"),
    ("calibrate --json", "--json needs --lookahead NAME"),
    ("calibrate --lookahead disco --again", "--again does not go with --lookahead"),
    ("calibrate --lookahead disco --domain-field task", "--domain-field does not go with --lookahead"),
    ("calibrate --lookahead disco --domain cod", "unknown domain 'cod'. Did you mean 'code'?"),
    ("calibrate --lookahead disco --strategy unifrom", "unknown strategy 'unifrom'. Did you mean 'uniform'?"),
    ("calibrate --lookahead disco --strategy off", "the strategy 'off' drafts nothing"),
    ("calibrate --lookahead disco --strategy prune knn", "learns for one strategy, got prune, knn; name one"),
    ("calibrate --lookahead disco --drafter lookupp", "unknown drafter 'lookupp'"),
    ("calibrate --lookahead disco --set uniform.ratio=2", "uniform.ratio must be between 0 and 1"),
    ("calibrate --lookahead disco --label other", "unknown label 'other'. Known: "),
    ("calibrate --lookahead disco --dtype float99", "unknown dtype 'float99'"),
    ("calibrate --lookahead disco --prompts TWICE", "at least two different prompts of one domain"),
    ("calibrate --lookahead fixed --label tv", "--label belongs to --lookahead disco; leave it out"),
    ("calibrate --lookahead fixd", "unknown lookahead to calibrate 'fixd'. Did you mean 'fixed'?"),
    ("calibrate --lookahead tpt", "Known: confidence, disco, fixed, perplexity"),
    ("calibrate --lookahead fixed --set fixed.tokens=0", "fixed.tokens must be at least 1"),
    ("calibrate --lookahead fixed --prompts nowhere.jsonl", "cannot read nowhere.jsonl"),
    ("profile", "the following arguments are required: ACTION"),
    ("profile shw", "unknown action 'shw'. Did you mean 'show'?"),
    ("profile show --context 0", "must be a whole number of at least 1, got '0'"),
    ("profile show --device toaster", "unknown or absent device 'toaster'"),
    ("profile plot", "the following arguments are required: --output"),
    ("profile plot --output nowhere/a.png", "cannot write nowhere/a.png: there is no folder"),
    ("profile plot --output a.png --set x3", "cannot read 'x3' in the skip set"),
    ("profile plot --output a.png --of swift --set a1", "--set names what `--of sets` draws"),
    ("bench --preset gpus", "unknown name 'gpus'. Did you mean 'gpu'?"),
    ("bench --strategies prun", "unknown strategy 'prun'. Did you mean 'prune'?"),
    ("bench --lookahead confidnce", "unknown lookahead 'confidnce'. Did you mean 'confidence'?"),
    ("bench --set uniform.ratio=2", "uniform.ratio must be between 0 and 1"),
    ("bench --strategy off --drafters lookup", "--strategy off is plain decoding, which is always measured"),
    ("bench --variant fast", "cannot read --variant 'fast'; write NAME: AXIS=METHOD"),
    ("bench --variant 'fast: stratgy=prune'", "unknown axis in --variant 'fast: stratgy=prune': 'stratgy'"),
    ("bench --mode warm", "cannot read --mode 'warm'; write NAME: OPTION=VALUE"),
    ("bench --mode 'warm: temprature=1'", "unknown option in --mode 'warm: temprature=1': 'temprature'"),
    ("bench --mode 'a: top_k=2' --mode 'a: top_k=3'", "two rows cannot both be named 'a'"),
    ("bench --variant 'off: strategy=prune'", "two rows cannot both be named 'off'"),
    ("bench --peers eagr", "unknown peer 'eagr'"),
    ("bench --peers none lookup", "none stands alone"),
    ("bench --peers eager --temperature 1", "peers are greedy; leave out --temperature"),
    ("bench --prompt-sets maths", "unknown prompt set 'maths'. Did you mean 'math'? Known: chat, code"),
    ("bench --prompts nowhere.jsonl", "cannot read nowhere.jsonl"),
    ("bench --datasets ''", "'' does not name a dataset"),
    ("bench --mix 2", "the mix ratio must be from 0 (domain by domain) to 1 (always another domain), got 2.0"),
    ("bench --mix nan", "got nan"),
    ("bench --temperature -1", "temperature must be between 0 and 1000, got -1.0"),
    ("bench --top-p 2", "top_p must be between 0 and 1, got 2.0"),
    ("bench --seed -1", "seed must be between 0 and"),
    ("bench --seconds soon", "must be a number of seconds, got 'soon'"),
    ("bench --runs 0", "must be a whole number of at least 1, got '0'"),
    ("bench --output nowhere/a.jsonl", "cannot write nowhere/a.jsonl: there is no folder"),
    ("bench --device toaster", "unknown or absent device 'toaster'"),
    ("reproduce", "the following arguments are required: PAPER"),
    ("reproduce swft", "Did you mean 'swift'?"),
    ("reproduce swift --experiments table-99", "unknown experiment 'table-99'"),
    ("reproduce swift --prompts nowhere.jsonl", "cannot read nowhere.jsonl"),
    ("reproduce swift --per-task 0", "must be a whole number of at least 1, got '0'"),
    ("reproduce swift --seed -1", "seed must be between 0 and"),
    ("reproduce swift --output nowhere/a.jsonl", "cannot write nowhere/a.jsonl: there is no folder"),
    ("reproduce swift --device toaster", "unknown or absent device 'toaster'"),
    ("report", "the following arguments are required: FILE.jsonl"),
    ("report nowhere.jsonl", "cannot read nowhere.jsonl: no such file"),
    ("report .", "the folder . has no .jsonl"),
    ("report a b --html nowhere/a.html", "cannot read a: no such file"),
    ("report PROMPTS --html nowhere/a.html", "cannot write nowhere/a.html: there is no folder"),
    ("report PROMPTS --output PROMPTS", "is a result itself, which would be lost"),
    ("report PROMPTS PROMPTS", "is named twice; name each file once"),
    ("report PROMPTS --notes .", "cannot read"),
    *((f"{old} MODEL --lookahead fixed", f"`selfdraft {old}` is now `selfdraft {new}`") for old, new in MOVED.items()),
]


@pytest.mark.parametrize(("command", "message"), REFUSED, ids=[command for command, _ in REFUSED])
def test_it_is_refused(
    command: str, message: str, said: Callable[..., str], prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for read in ("_from_catalogue", "_from_pretrained", "_from_hub"):
        loaded = mock.Mock(side_effect=AssertionError("loaded"))
        monkeypatch.setattr(f"selfdraft.models.load.loading.{read}", loaded)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: object())  # of matplotlib
    twice = tmp_path / "twice.jsonl"
    twice.write_text('{"domain": "a", "prompt": "b"}\n' * 2, encoding="utf-8")
    files = {"PROMPTS": prompts, "TWICE": str(twice)}
    error = said(*(files.get(word, word) for word in shlex.split(command)), status=2)
    assert message in error
    assert error.splitlines()[-1].startswith("selfdraft")
    assert error.startswith("usage: ") or error.count("\n") == 1


def test_every_command_is_in_the_table() -> None:
    assert {command.partition(" ")[0] for command, _ in REFUSED} >= set(PARSERS)


@pytest.mark.parametrize("name", ["", *PARSERS])
def test_help_teaches_with_an_example(name: str, said: Callable[..., str]) -> None:
    output = said(*name.split(), "--help")
    assert "example" in output
    assert f"  selfdraft {name}" in output


# ------------------------------------------------------------------------------------------------ at once

AT_ONCE = [
    ("--help", 0, "usage: selfdraft [options] COMMAND", ""),
    ("", 0, "usage: selfdraft [options] COMMAND", ""),
    ("--version", 0, f"selfdraft {selfdraft.__version__}\n", ""),
    ("generate --help", 0, "usage: selfdraft generate [options] [prompt]", ""),
    ("bench --help", 0, "usage: selfdraft bench [options] [model]", ""),
    ("bench passes --help", 0, "usage: selfdraft bench passes [options]", ""),
    ("generate abc --temprature 1", 2, "", "unknown flag --temprature; did you mean --temperature?"),
    ("--completion fish", 0, "complete -c selfdraft", ""),
]


@pytest.mark.parametrize(("command", "status", "output", "error"), AT_ONCE, ids=[command for command, *_ in AT_ONCE])
def test_torch_is_not_imported(command: str, status: int, output: str, error: str) -> None:
    code = "import sys; from selfdraft.cli.main import main\ntry:\n    status = main()\nexcept SystemExit as end:\n    "
    code += "status = end.code\nassert not {'torch', 'transformers', 'numpy'} & {*sys.modules}\nsys.exit(status)"
    ran = subprocess.run([sys.executable, "-c", code, *command.split()], capture_output=True, text=True, check=False)
    assert (ran.returncode, output in ran.stdout, error in ran.stderr) == (status, True, True), ran.stdout + ran.stderr
    assert (ran.stdout == "") == (status == 2)


HELP = ["", *PARSERS, "bench passes", *(f"profile {action}" for action in ("list", "show", "plot", "remove"))]
MOST_LINES = {"generate": 63, "calibrate": 60, "bench": 80}


@pytest.mark.parametrize("name", HELP)
def test_help_fits_a_screen_and_a_half(name: str, said: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = said(*name.split(), "--help").splitlines()
    assert len(lines) <= MOST_LINES.get(name, 60)
    assert max(map(len, lines)) <= 80, max(lines, key=len)


GLOSSES = {
    "MLP": "feed-forward",
    "GGUF": "llama.cpp",
    "ROC": "receiver operating characteristic",
    "SL": "speculation lookahead",
    "SWIFT": "arXiv:2410.06916",
    "DISCO": "arXiv:2405.04304",
    "KNN": "arXiv:2505.16162",
    "SSD": "arXiv:2505.16162",
    "CLaSp": "arXiv:2505.24196",
    "DEL": "arXiv:2504.05598",
    "KnapSpec": "arXiv:2602.20217",
    "LayerSkip": "arXiv:2404.16710",
    "SpecInfer": "arXiv:2305.09781",
}
"""What must stand in the same text."""
NAMES = {
    "asd": "adaptive self-speculative decoding",
    "disco": "dynamic speculation lookahead optimization",
    "knn": "k nearest neighbours",
    "roc": "receiver operating characteristic",
    "tpt": "tokens per time",
}
"""Names of methods that are abbreviations: told where the method is."""
PLAIN = {"CPU", "GPU", "CUDA", "JSON", "HTML", "HTTP", "API", "OpenAI", "PyPI", "GB", "MiB", "SIGTERM"}
PLAIN |= {"SELFDRAFT_HOME", "SELFDRAFT_API_KEYS"}
PLACEHOLDERS = {"METHOD", "OPTION", "VALUE", "AXIS", "ID", "NAME", "MODEL", "FILE"}


def unexplained(text: str) -> set[str]:
    words = {word for word in re.findall(r"\w+", text) if sum(map(str.isupper, word)) >= 2}
    told = " ".join(text.split())
    return {word for word in words - PLAIN - PLACEHOLDERS if GLOSSES.get(word, "\0") not in told}


@pytest.mark.parametrize("name", HELP)
def test_help_explains_its_abbreviations(name: str, said: Callable[..., str]) -> None:
    shown = said(*name.split(), "--help")
    metavars = set(re.findall(r"^ +--?[-\w]+ \[?([A-Z_]+)", shown, re.MULTILINE)) | {"COMMAND", "ACTION", "PAPER"}
    assert unexplained(shown) <= metavars


@pytest.mark.parametrize("name", ["", *dict.fromkeys(name for table in AXES.values() for name in table)])
def test_methods_explain_their_abbreviations(name: str, said: Callable[..., str]) -> None:
    shown = said("info", "--methods", *name.split())
    assert not unexplained(shown)
    assert max(map(len, shown.splitlines())) <= 80
    assert NAMES.get(name, "").lower() in " ".join(shown.split()).lower()
    assert not re.search(r"\w\.py\b", shown), "files that a user cannot see"


def test_the_legend_of_bench_explains_its_abbreviations() -> None:
    assert not unexplained(LEGEND)
    for word in ("length M", "share a", "cost c", "share r", "equation 11 of KNN-SSD", "peak: the most memory"):
        assert word in LEGEND


def test_help_names_what_there_is(said: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written without importing what it speaks of."""
    monkeypatch.setenv("COLUMNS", "1000")
    told = {name: said(name, "--help") for name in ("calibrate", "bench", "reproduce")}
    assert ", ".join(PROMPT_SETS) in told["bench"]
    assert f"{', '.join(PEERS)} (default: all" in told["bench"]
    assert all(f"  {name} " in told["bench"] for name in PRESETS)
    assert f"{', '.join(RECIPES)}, or all" in told["reproduce"]
    assert (
        f"prompts of each task (default: {WHOLE.prompts}, of main tables {MainTable(0).prompts};" in told["reproduce"]
    )
    assert f"default: {WHOLE.tokens}, of main tables as the paper; with --quick: {QUICK.tokens}" in told["reproduce"]
    assert f"(default: {WHOLE.fit_seconds:g}; with --quick: {QUICK.fit_seconds:g})" in told["reproduce"]
    assert f"with --quick: {QUICK_SECONDS:g} a paper" in told["reproduce"]
    assert f"instead: {', '.join(('disco', *TUNABLE))}" in told["calibrate"]
    assert f"(default: {USUAL_TOKENS}, on a CPU {USUAL_TOKENS_ON_CPU})" in told["calibrate"]
    assert f"of each text ({LOOKAHEAD_TOKENS})" in told["calibrate"]
    assert f"(default: {DEFAULT_STRATEGY})" in told["calibrate"]
    assert "{" + ",".join(LABELS) + "}" in told["calibrate"]


def test_methods_are_explained(said: Callable[..., str]) -> None:
    overview = " ".join(said("info", "--methods").split())
    assert {axis: set(table) for axis, table in AXES.items()} == {axis: set(table) for axis, table in WHEN.items()}
    assert all(f"when: {text}" in overview for table in WHEN.values() for text in table.values())
    about = said("info", "--methods", "swift")
    assert "arXiv:2410.06916" in about
    assert "swift.window" in about
    both = " ".join(said("info", "--methods", "fixed").split())
    assert all(f"when to use it: {WHEN[axis]['fixed']}" in both for axis in ("strategy", "lookahead"))


def test_methods_as_a_document(said: Callable[..., str]) -> None:
    document = json.loads(said("info", "--methods", "--json"))
    assert {axis: list(methods) for axis, methods in document.items()} == {axis: list(AXES[axis]) for axis in AXES}
    for methods in document.values():
        assert all(method["what"] and method["when"] for method in methods.values())
    assert document["strategy"]["uniform"]["options"]["ratio"] == {
        "default": 0.25,
        "help": "share of the layers to skip",
    }
    assert set(json.loads(said("info", "--methods", "fixed", "--json"))) == {"strategy", "lookahead"}


def test_a_config_file_does_not_disturb_methods(
    said: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "selfdraft.toml").write_text('model = "smollm2-135m-instruct"\n', encoding="utf-8")
    monkeypatch.setenv("SELFDRAFT_CONFIG", str(tmp_path / "selfdraft.toml"))
    assert "prune (strategy)" in said("info", "--methods", "prune")


# ------------------------------------------------------------------------------------------------ completion

CATALOGUED = "smollm2-135m-instruct"
OFFERED = [
    ("--completion b", "bash"),
    ("ge", "generate"),
    ("generate --max", "--max-new-tokens"),
    ("generate --strategy pr", "prune"),
    ("generate --drafter ", " ".join(AXES["drafter"])),
    ("generate --lookahead ", " ".join(AXES["lookahead"])),
    ("generate --tree s", "siblings"),
    ("generate --acceptance r", "rejection"),
    ("generate --dtype bf1", "bf16"),
    ("generate --device ", "cpu cuda"),
    ("generate --model sm", CATALOGUED),
    ("info --methods pr", "prune"),
    ("pull sm", CATALOGUED),
    ("profile sh", "show"),
    ("bench --preset q", "quick"),
    ("bench --trees ", "chain siblings all"),
    ("bench passes --shape qwen3-8", "qwen3-8b"),
]
ONLY_BASH = [
    ("generate --strategy = pr", "prune"),  # as bash cuts `--strategy=pr`
    ("bench --strategies prune kn", "knapspec knn"),
    ("bench --strategies prune --q", "--quick"),
    ("info --methods --js", "--json"),
    ("profile ", "list show plot remove"),
    ("profile show sm", CATALOGUED),
    ("generate --strategy --", ""),
    ("generate --max-new-tokens ", ""),
    ("bench --prompts ", ""),
]
ASK = """
COMP_WORDS=(selfdraft {words}); COMP_CWORD={place}; COMPREPLY=(); _selfdraft; echo "${{COMPREPLY[*]}}"
"""


def offered(shell: str, script: str, lines: Sequence[str], folder: Path) -> list[list[str]]:
    """What the shell itself makes of each line, in a folder without files."""
    (folder / "empty").mkdir()
    if shell == "fish":
        asked = [script, *(f"complete -C 'selfdraft {line}' | cut -f 1 | tr '\\n' ' '; echo" for line in lines)]
    else:
        words = [[*(line.split() if line.strip() else []), *([""] if line.endswith(" ") else [])] for line in lines]
        asked = [script, "" if shell == "bash" else "setopt ksharrays shwordsplit"]
        asked += [ASK.format(words=shlex.join(one), place=len(one)) for one in words]
    (folder / "asked").write_text("\n".join(asked), encoding="utf-8")
    flags = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    ran = subprocess.run(
        [shell, *flags, str(folder / "asked")], cwd=folder / "empty", capture_output=True, text=True, check=True
    )
    return [line.split() for line in ran.stdout.splitlines()]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, said: Callable[..., str], tmp_path: Path) -> None:
    script = said("--completion", shell)
    assert all(name in script for name in PARSERS)
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not here")
    table = [*OFFERED, *(ONLY_BASH if shell == "bash" else ())]
    found = offered(shell, script, [line for line, _ in table], tmp_path)
    for (line, words), got in zip(table, found, strict=True):
        if shell == "zsh":  # takes what begins with the word by itself
            got = [one for one in got if one.startswith("" if line.endswith(" ") else line.split()[-1])]
        assert sorted(got) == sorted(words.split()), line


def test_what_completes_is_what_there_is() -> None:
    assert set(DTYPES) == {*loading.DTYPES, *loading.DTYPES.values()}
    assert set(LEARNED) == {"disco", *TUNABLE}


@pytest.mark.parametrize(
    ("error", "status"), [(OptionError("a"), 2), (DownloadError("a"), 1), (KeyboardInterrupt(), 130), (OSError("a"), 1)]
)
def test_exit_codes(
    error: BaseException, status: int, said: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    with mock.patch("selfdraft.cli.info.run", side_effect=error), mock.patch("selfdraft.cli.main._silence_output"):
        assert main(["info"]) == status
    output, told = capsys.readouterr()
    assert (output, told.strip().count("\n")) == ("", 0)
    assert f" {status} " in said("--help").partition("exit codes: ")[2]
