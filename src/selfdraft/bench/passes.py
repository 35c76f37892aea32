"""What passes of a shape cost: a model of random weights is made on the device, attached, and timed by its own runner.

The time of a pass does not depend on what the weights say. Weights are made where they stay, in the dtype they have: no
copy in another one, none on the host. What is timed is what models/latency.py times for every other model.
"""

from __future__ import annotations

import contextlib
import gc
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.initialization import no_init_weights

from ..engine.engine import Engine
from ..errors import ModelError, OptionError
from ..measure.device import copy_bandwidth, device_seconds, peak_bytes, reset_peak
from ..measure.passes import CONTEXT, cost_figures
from ..measure.peers import PEERS, peer_arms
from ..measure.records import Record
from ..models import latency
from ..models.families import family_of
from ..models.free_memory import free_bytes
from ..models.load.info import ModelInfo, describe
from ..passes import PassRequest
from ..progress import Progress, no_progress, quiet
from ..protocols import Runner
from ..strategies.uniform import spread
from ..types import SkipSet
from .shapes.results import NUM_NEW, NUM_PROMPT, ShapeLine
from .tables import size

RATIOS = {"a third": 1 / 3, "half": 1 / 2}
"""Shares of the sub-layers that the shown drafts skip."""
SPARE_BYTES = {"cuda": 3 << 30}
"""On top of the weights: keys and values, recordings, layers while they are joined. Elsewhere: `LITTLE_BYTES`."""
LITTLE_BYTES = 1 << 28
_LARGEST = 0.03
"""Of random weights: their deviation is about what models are initialised with."""
_NEW_SETS = (0.2, 0.3, 0.4)
"""Ratios of attentions alone: no set of theirs has been timed before."""


def read_config(name: str, content: Mapping[str, Any]) -> Any:
    try:
        return AutoConfig.for_model(**content)
    except Exception as error:  # whatever a config's class says about its values
        reason = " ".join(str(error).split())[:200]
        raise OptionError(f"the shape {name!r} is not one that transformers can make: {reason}") from None


def evenly(num_layers: int, ratio: float) -> SkipSet:
    """Both sub-layers of this share of the layers."""
    layers = spread(num_layers, ratio)
    return SkipSet.of(layers, layers)


@dataclass(frozen=True)
class ShapeBench:
    """Where, and how, shapes are timed one after the other; each leaves the memory that it took."""

    device: torch.device
    dtype: torch.dtype
    seconds: float  # of timing passes, for each shape
    peers: Sequence[str] = ()
    progress: Progress = no_progress

    def run(self, shapes: Mapping[str, Any]) -> Iterator[ShapeLine]:
        """`shapes`: configs by name. What does not fit, or fails, is told and left out."""
        bandwidth = copy_bandwidth(self.device) if shapes else 0.0
        for number, (name, config) in enumerate(shapes.items()):
            self.progress(number, len(shapes), name)
            try:
                yield self._line(name, config, bandwidth)
            except Exception as error:  # the next one may do better
                kind = "" if isinstance(error, ModelError) else f"{type(error).__name__}: "
                yield ShapeLine(name, missing=f"{kind}{' '.join(str(error).split())[:300]}")
            finally:
                free_memory(self.device)

    def _line(self, name: str, config: Any, bandwidth: float) -> ShapeLine:
        check_memory(config, self.device, self.dtype)
        with self._stage("make") as made:
            model = make_model(config, self.device, self.dtype)
        with self._stage("attach") as attached:
            engine = Engine(model, profile=None, name=name, strategy="off", prefix_cache=False)
        with self._stage("time") as timed:
            fit = latency.measure(engine.runner, [CONTEXT], self.seconds)
            recorded = record_seconds(engine.runner)
        info, skips = describe(engine.runner.decoder), [evenly(fit.num_layers, ratio) for ratio in RATIOS.values()]
        costs = cost_figures(engine, fit.at(fit.lengths[0]), skips, bandwidth)
        seconds = {draft["skip"]: draft["seconds"] for draft in costs["drafts"]}
        drafts = {
            share: {"skip": str(skip), "seconds": seconds[str(skip)], "weights_left": weights_left(info, skip)}
            for share, skip in zip(RATIOS, skips, strict=True)
        }
        figures = {
            "family": info.family,
            "num_parameters": info.parameters.total,
            "weight_bytes": info.weight_bytes,
            "slow_path": info.fast_path_note or engine.runner.fallback_reason,
            **costs,
            "drafts": drafts,
            "record_seconds": recorded,
            **made,
            **attached,
            "peak_bytes": timed["time_peak_bytes"],
            "latency": fit.to_json(),
        }
        return ShapeLine(name, figures, {PEERS[peer][0]: peer_seconds(engine, peer) for peer in self.peers})

    @contextlib.contextmanager
    def _stage(self, name: str) -> Iterator[dict[str, Any]]:
        """Its seconds, and the most memory meanwhile, with what was there before."""
        found: dict[str, Any] = {}
        reset_peak(self.device)
        began = device_seconds(self.device)
        yield found
        found[f"{name}_seconds"] = device_seconds(self.device) - began
        found[f"{name}_peak_bytes"] = peak_bytes(self.device)


def make_model(config: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Matrices are small random numbers, so that scores stay finite; norms multiply by 1, biases are 0."""
    with torch.device(device), no_init_weights(), quiet():
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    parts = family_of(model).parts
    offset = parts.norm.offset if parts else 0
    model.tie_weights()  # part of the initialisation that is left out
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                weight.uniform_(-_LARGEST, _LARGEST)
            else:
                weight.fill_(1 - offset if name.endswith("weight") else 0)
    model.generation_config.eos_token_id = None  # random texts go on
    return model.eval().requires_grad_(False)


def check_memory(config: Any, device: torch.device, dtype: torch.dtype) -> None:
    model = make_model(config, torch.device("meta"), dtype)
    weights, free = sum(weight.nbytes for weight in {*model.parameters()}), free_bytes(device)
    spare = SPARE_BYTES.get(device.type, LITTLE_BYTES)
    if weights + spare > free:
        needed = f"weights of {size(weights)} and {size(spare)} beside them"
        raise ModelError(f"not enough memory on {device}: {needed} are needed, {size(free)} are free")


def free_memory(device: torch.device) -> None:
    torch.compiler.reset()  # compiled peers hold their models
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def weights_left(info: ModelInfo, skip: SkipSet) -> float:
    """The share of a pass's weights that a draft reads."""
    attention = sum(info.layers[layer].attention_share for layer in skip.attention)
    return 1 - attention - sum(info.layers[layer].mlp_share for layer in skip.mlp)


def record_seconds(runner: Runner) -> float | None:
    """What a skip set costs that has not been seen: its first pass less its next. None: nothing is recorded."""
    if not runner.is_recording:
        return None
    length = latency.fitting_length(runner, CONTEXT)
    cache = runner.new_cache(1, length + latency.ROOM)
    runner.forward(PassRequest([[1] * length], [0], needs_scores=False), cache)

    def seconds(skip: SkipSet) -> float:
        began = runner.seconds()
        runner.forward(PassRequest([[1]], [length], skip=skip), cache)
        return runner.seconds() - began

    new = (SkipSet.of(spread(runner.num_layers, ratio)) for ratio in _NEW_SETS)
    return statistics.median(seconds(skip) - seconds(skip) for skip in new)


def peer_seconds(engine: Engine, name: str) -> float | str:
    """A token, of whole calls less the first token's; or why it could not run."""
    (arm,) = peer_arms(engine, [name])
    prompt, call = [token % engine.runner.vocab_size for token in range(1, NUM_PROMPT + 1)], {"max_new_tokens": NUM_NEW}
    text = Record(arm.name, name, "", 0, len(prompt), 0, 0.0)
    arm.warm_up([prompt] * 2, NUM_NEW, call)
    calls = [output.record for _ in range(2) if (output := arm.run(text, prompt, call))]
    firsts = [seconds for _ in range(2) if (seconds := arm.first_token_seconds(prompt, call)) is not None]
    if not (calls and firsts):
        return arm.error or "it generated nothing"
    best = min(calls, key=lambda record: record.call_seconds)
    return (best.call_seconds - min(firsts)) / max(1, best.num_tokens - 1)
