"""The most memory that loading a model and attaching an engine take, beside its weights.

    python benchmarks/load_memory.py --shape qwen3-14b --folder /tmp/weights

A checkpoint of the shape is written with random weights, by a process of its own, then loaded as users load theirs.
--folder needs room for it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile

import torch

import selfdraft
from selfdraft.bench.passes import make_model, read_config
from selfdraft.bench.shapes import chosen_shapes
from selfdraft.bench.tables import size
from selfdraft.measure.device import peak_bytes, reset_peak
from selfdraft.models.load.loading import choose_device, choose_dtype, load


def write(shape: str, folder: str, device: torch.device, dtype: torch.dtype) -> None:
    ((name, content),) = chosen_shapes([shape]).items()
    make_model(read_config(name, content), device, dtype).save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen3-14b", help="as of `selfdraft bench passes`; default %(default)s")
    parser.add_argument("--folder", help="where the checkpoint is written, and removed again; default: a temporary one")
    parser.add_argument("--device", help="cuda or cpu; default: cuda where there is one")
    options = parser.parse_args()
    device = choose_device(options.device)
    dtype = choose_dtype(None, device)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        writing = multiprocessing.get_context("spawn").Process(
            target=write, args=(options.shape, folder, device, dtype)
        )
        writing.start()
        writing.join()
        if writing.exitcode:
            raise SystemExit(f"the checkpoint could not be written: exit status {writing.exitcode}")
        reset_peak(device)
        before = peak_bytes(device) or 0
        model, _ = load(folder, device=device, dtype=dtype)
        loaded = peak_bytes(device) or 0
        selfdraft.Engine(model, profile=None, strategy="off")
        attached = peak_bytes(device) or 0
    weights = sum(weight.nbytes for weight in {*model.parameters()})
    print(f"{options.shape} on {device}: weights {size(weights)}; most memory on top of {size(before)} before:")
    for what, peak in (("loading", loaded), ("loading and attaching", attached)):
        print(f"  {what}: {size(peak - before)}, {(peak - before) / weights:.3f} of the weights")


if __name__ == "__main__":
    main()
