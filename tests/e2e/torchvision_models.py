#!/usr/bin/python3
"""Two steps of torchvision's architectures by weft and by PyTorch: the same losses, and the time of a step.

    tests/e2e/torchvision_models.py [--weft build/release/weft] [--only NAME ...] [--parameters-max 100e6]
                                    [--size 224] [--batch 4] [--threads 1] [--ratio-max 1.2]

Every classification, segmentation and video model is built with random weights, exported in training mode (opset
17), and trained for a few steps of SGD on random data by both. Dropout and stochastic depth are set to zero, for
the two draw different numbers. A line a model; the last lines name what is wrong. Exit status 1 when a model does
not import, its losses differ, or its step takes more than --ratio-max of PyTorch's.

The losses of float32 are compared with those of PyTorch in float64 where the two float32 runs differ: a model that
amplifies rounding is right when weft is at most three times as far from float64 as PyTorch is.
"""

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

if "OMP_PROC_BIND" not in os.environ:  # PyTorch as fast as it gets here
    os.environ.setdefault("LD_LIBRARY_PATH", "/usr/lib/x86_64-linux-gnu/openblas-openmp")
    os.environ["OMP_PROC_BIND"] = "true"
    os.execv(sys.executable, [sys.executable] + sys.argv)

import numpy as np
import torch
import torchvision

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../numerics/families"))
from make_families import First  # noqa: E402

warnings.filterwarnings("ignore")
STEPS = 4
RATE = 0.005


def names():
    listed = []
    for module in (torchvision.models, torchvision.models.segmentation, torchvision.models.video):
        listed += torchvision.models.list_models(module=module)
    return [n for n in listed if not n.startswith("quantized")]


def build(name):
    torch.manual_seed(0)
    options = {}
    if name in ("inception_v3", "googlenet"):
        options = {"aux_logits": False, "init_weights": True}
    segmentation = name in torchvision.models.list_models(module=torchvision.models.segmentation)
    if segmentation:
        options = {"weights_backbone": None}
    model = torchvision.models.get_model(name, weights=None, **options)
    for part in model.modules():
        if isinstance(part, torch.nn.modules.dropout._DropoutNd):
            part.p = 0.0
        if isinstance(part, torchvision.ops.StochasticDepth):
            part.p = 0.0
        if isinstance(part, torch.nn.MultiheadAttention):
            part.dropout = 0.0
    return First(model), segmentation


def input_shape(name, size, batch):
    if name not in torchvision.models.list_models(module=torchvision.models.video):
        return (batch, 3, size, size)
    frames = 8 if name in ("r3d_18", "mc3_18", "r2plus1d_18") else 16
    return (batch, 3, frames, size, size)


def fixed_size(name, size):
    """The least size that an architecture takes."""
    if name == "inception_v3":
        return max(size, 75)
    if name.startswith(("vit_", "mvit", "maxvit", "swin")):
        return 224
    return size


def torch_steps(model, x, labels, dtype):
    model = model.to(dtype)
    x = x.to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses, seconds = [], []
    for _ in range(STEPS if dtype == torch.float32 else 2):
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
        losses.append(float(loss))
    return losses, min(seconds[1:])


def weft_steps(weft, folder, threads):
    run = subprocess.run([weft, "local", f"{folder}/job.yaml", "--format", "json", "--threads", str(threads)],
                         capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": str(threads)})
    steps = [json.loads(line) for line in run.stdout.splitlines() if '"step"' in line]
    steps = [s for s in steps if s.get("event") == "step"]
    if run.returncode != 0 or len(steps) < STEPS:
        raise RuntimeError((run.stderr or run.stdout).strip()[-600:])
    return [s["loss"] for s in steps], min(s["seconds"] for s in steps[1:])


def compare(name, options):
    size = fixed_size(name, options.size)
    model, segmentation = build(name)
    count = sum(p.numel() for p in model.parameters())
    if count > options.parameters_max:
        return f"{name:32} skipped: {count / 1e6:.0f} M parameters", None
    model.train()
    x = torch.randn(input_shape(name, size, options.batch))
    with torch.no_grad():
        state = copy.deepcopy(model.state_dict())
        y = model(x)
        model.load_state_dict(state)
    labels = torch.randint(0, y.shape[1], (y.shape[0],) + tuple(y.shape[2:]))
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        torch.onnx.export(model, x, f"{folder}/model.onnx", input_names=["x"], output_names=["logits"],
                          opset_version=17, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)
        model.load_state_dict(state)
        np.savez(f"{folder}/train.npz", image=x.numpy(), label=labels.numpy())
        with open(f"{folder}/job.yaml", "w") as job:
            job.write(f"""model: model.onnx
task: train
inputs: {{x: image}}
loss: {{type: cross_entropy, logits: logits, labels: label}}
data: {{train: {{type: npz, path: train.npz}}}}
batch_size: {options.batch}
steps: {STEPS}
shuffle: false
optimizer: {{type: sgd, learning_rate: {RATE}}}
output: trained.onnx
""")
        ours, our_seconds = weft_steps(options.weft, folder, options.threads)
    theirs, their_seconds = torch_steps(model, x, labels, torch.float32)
    gaps = [abs(a - b) / max(1e-3, abs(b)) for a, b in zip(ours[:2], theirs[:2])]
    right = gaps[0] < 1e-4 and gaps[1] < 1e-3
    note = ""
    if not right:
        model.load_state_dict(state)
        true, _ = torch_steps(model, x, labels, torch.float64)
        mine = [abs(a - t) for a, t in zip(ours, true)]
        other = [abs(b - t) for b, t in zip(theirs, true)]
        right = all(m <= 3 * o + 1e-4 * abs(t) for m, o, t in zip(mine, other, true))
        note = f" to float64: {mine[0]:.1e} {mine[1]:.1e}, PyTorch {other[0]:.1e} {other[1]:.1e}"
    ratio = our_seconds / their_seconds
    line = (f"{name:32} {count / 1e6:6.1f} M  loss {ours[0]:.5f} {ours[1]:.5f}  gaps {gaps[0]:.1e} {gaps[1]:.1e}  "
            f"step {our_seconds:7.3f} s, PyTorch {their_seconds:7.3f} s  ratio {ratio:.2f}{note}")
    wrong = []
    if not right:
        wrong.append("the losses differ")
    if ratio > options.ratio_max:
        wrong.append(f"{ratio:.2f} of PyTorch's time")
    return line, ", ".join(wrong)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weft", default="build/release/weft")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--parameters-max", type=float, default=100e6)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ratio-max", type=float, default=1.2)
    parser.add_argument("--folder", help="for temporary files")
    options = parser.parse_args()
    options.weft = os.path.abspath(options.weft)
    torch.set_num_threads(options.threads)
    failures, ratios = {}, []
    for name in options.only or names():
        try:
            line, wrong = compare(name, options)
            if wrong is not None:
                ratios.append(float(line.split("ratio ")[1].split()[0]))
        except Exception as error:  # noqa: BLE001: whatever it is, the other models go on
            line, wrong = f"{name:32} FAILED", " ".join(str(error).split())[:400]
        if wrong:
            failures[name] = wrong
        print(line, flush=True)
    if ratios:
        print(f"ratio: median {statistics.median(ratios):.2f}, worst {max(ratios):.2f}, of {len(ratios)} models")
    for name, why in failures.items():
        print(f"wrong: {name}: {why}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
