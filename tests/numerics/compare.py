#!/usr/bin/python3
"""Target L1 on demand: makes references with several seeds, trains them with weft, and says how far apart they end.

    /usr/bin/python3 compare.py [--weft PROGRAM] [--full] [--seeds N] [--backends reference,cpu] [CASE ...]

The reference backend must be PyTorch's float64: every loss within 1e-7, every tensor within 1e-6 (norm of the difference
over norm). The cpu backend must be within 1e-5 and 1e-4 where PyTorch's own float32 stays within a tenth of that, and
elsewhere within twice PyTorch's distance from its float64, in the median over the seeds.
"""
import argparse
import contextlib
import gzip
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

import numpy as np
import onnx
from onnx import numpy_helper

import architectures
import make_references
from sketch import sketch

ROOT = os.path.dirname(os.path.dirname(make_references.HERE))
BOUNDS = {"loss": 1e-5, "tensor": 1e-4}  # in float32


def train(weft, folder, backend):
    """The losses of `weft local`, and the trained tensors by name."""
    with gzip.open(os.path.join(folder, "model.onnx.gz")) as packed, open(os.path.join(folder, "model.onnx"), "wb") as model:
        shutil.copyfileobj(packed, model)
    command = [weft, "local", os.path.join(folder, "job.yaml"), "--format", "json"] + (
        ["--backend", "reference"] if backend == "reference" else ["--threads", "1"])
    finished = subprocess.run(command, capture_output=True, text=True)
    if finished.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {finished.stderr or finished.stdout}")
    events = [json.loads(line) for line in finished.stdout.splitlines()]
    model = onnx.load(os.path.join(folder, "trained.onnx"))
    tensors = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer if t.data_type == 1}
    adapters = os.path.join(folder, "trained.adapter", "adapter_model.safetensors")
    if os.path.exists(adapters):
        tensors |= {name: np.frombuffer(data, "<f4").reshape(shape).astype(np.float64)
                    for name, (_, shape, data) in make_references.tensor_file.read(adapters).items()}
    return np.array([e["loss"] for e in events if e["event"] == "step"]), tensors


def gaps(reference, losses, tensors):
    """How far weft and PyTorch's float32 are from PyTorch's float64: by kind, (name, ours, theirs)."""
    expected = reference["losses"]
    ours, theirs = (np.abs(x - expected) / np.abs(expected) for x in (losses, reference["losses_f32"]))
    found = {"loss": [(f"step {i + 1}", ours[i], theirs[i]) for i in range(len(expected))], "tensor": []}
    for key in reference.files:
        kind, _, name = key.partition("/")
        if kind == "sketch":
            values = reference[key].astype(np.float64)
            found["tensor"].append((name, make_references.gap(sketch(tensors[name]), values[1:]), values[0]))
        elif kind == "gap_f32":
            found["tensor"].append((name, make_references.gap(tensors[name], reference[name].astype(np.float64)),
                                    float(reference[key])))
    return found


def judge(name, runs, backend):
    """`runs`: gaps by seed. Prints a line and says whether the target is met."""
    good, parts = True, []
    for kind, bound in BOUNDS.items():
        worst, worst_ratio = 0.0, 0.0
        for entries in zip(*(run[kind] for run in runs)):
            ours, theirs = (statistics.median(entry[k] for entry in entries) for k in (1, 2))
            worst = max(worst, ours)
            if backend == "reference":
                good &= ours <= bound / 100
            else:
                # A quiet case has a bound of its own; a chaotic one PyTorch's.
                allowed = bound if theirs <= bound / 10 else max(bound, 2 * theirs)
                worst_ratio = max(worst_ratio, ours / allowed)
                good &= ours <= allowed
        parts.append(f"{kind} {worst:.1e}" + (f" ({worst_ratio:.2f} of what is allowed)" if backend == "cpu" else ""))
    print(f"{name} {backend}: worst {', '.join(parts)}: {'meets L1' if good else 'MISSES L1'}", flush=True)
    return good


def compare(name, case, options, work):
    good = True
    runs = {backend: [] for backend in options.backends.split(",")}
    for seed in range(1, options.seeds + 1):
        folder = os.path.join(work, name)
        with contextlib.redirect_stdout(io.StringIO()):
            make_references.make(name, case, folder, seed, False)
        reference = np.load(os.path.join(folder, "reference.npz"))
        for backend in runs if seed == 1 else [b for b in runs if b == "cpu"]:  # float64 needs no median
            runs[backend].append(gaps(reference, *train(options.weft, folder, backend)))
    for backend, of_seeds in runs.items():
        good &= judge(name, of_seeds, backend)
    return good


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compares weft's training with PyTorch's (target L1).")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--weft", default=os.path.join(ROOT, "build/release/weft"))
    parser.add_argument("--full", action="store_true", help="architectures at their real widths")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--backends", default="reference,cpu")
    options = parser.parse_args()
    make_references.torch.set_num_threads(1)
    all_cases = make_references.CASES | architectures.cases(make_references.images, make_references.text, options.full)
    with tempfile.TemporaryDirectory() as work:
        results = [compare(name, all_cases[name], options, work) for name in options.cases or all_cases]
    sys.exit(0 if all(results) else 1)
