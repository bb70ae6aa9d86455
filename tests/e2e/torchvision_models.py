#!/usr/bin/python3
"""Two steps of torchvision's architectures by weft and by PyTorch: the same losses, and the time of a step.

    tests/e2e/torchvision_models.py [--weft build/release/weft] [--only NAME ...] [--parameters-max 100e6]
                                    [--size 224] [--batch 4] [--threads 1] [--ratio-max 1.2]

Every classification, segmentation and video model is built with random weights, exported in training mode (opset
17), and trained for a few steps of SGD on random data by both. Dropout and stochastic depth are set to zero, for
the two draw different numbers. A line a model; the last lines name what is wrong. Exit status 1 when a model does
not import, its losses differ, or its step takes more than --ratio-max of PyTorch's.

Where the losses of the two float32 runs differ, both are compared with PyTorch in float64, on five inputs: a
model that amplifies rounding is right when weft's median gap is at most twice PyTorch's.
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
SEEDS = 5
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
    return First(model)


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


class Trial:
    """One model with random weights, its exported file in a folder, and two ways to train it."""

    def __init__(self, name, options, folder):
        self.options, self.folder = options, folder
        size = fixed_size(name, options.size)
        self.model = build(name)
        self.count = sum(p.numel() for p in self.model.parameters())
        self.shape = input_shape(name, size, options.batch)

    def export(self):
        self.model.train()
        self.state = copy.deepcopy(self.model.state_dict())
        self.draw(0)
        torch.onnx.export(self.model, self.x, f"{self.folder}/model.onnx", input_names=["x"],
                          output_names=["logits"], opset_version=17, training=torch.onnx.TrainingMode.TRAINING,
                          do_constant_folding=False)

    def draw(self, seed):
        torch.manual_seed(seed)
        self.x = torch.randn(self.shape)
        self.model.load_state_dict(self.state)
        with torch.no_grad():
            y = self.model(self.x)
        self.model.load_state_dict(self.state)
        self.labels = torch.randint(0, y.shape[1], (y.shape[0],) + tuple(y.shape[2:]))

    def torch_steps(self, dtype, steps):
        self.model.load_state_dict(self.state)
        model, x = self.model.to(dtype), self.x.to(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        losses, seconds = [], []
        for _ in range(steps):
            begin = time.perf_counter()
            optimizer.zero_grad(set_to_none=True)
            loss = torch.nn.functional.cross_entropy(model(x), self.labels)
            loss.backward()
            optimizer.step()
            seconds.append(time.perf_counter() - begin)
            losses.append(float(loss))
        self.model.to(torch.float32)
        return losses, min(seconds[1:])

    def weft_steps(self, steps):
        np.savez(f"{self.folder}/train.npz", image=self.x.numpy(), label=self.labels.numpy())
        with open(f"{self.folder}/job.yaml", "w") as job:
            job.write(f"""model: model.onnx
task: train
inputs: {{x: image}}
loss: {{type: cross_entropy, logits: logits, labels: label}}
data: {{train: {{type: npz, path: train.npz}}}}
batch_size: {self.options.batch}
steps: {steps}
shuffle: false
optimizer: {{type: sgd, learning_rate: {RATE}}}
output: trained.onnx
""")
        threads = str(self.options.threads)
        run = subprocess.run([self.options.weft, "local", f"{self.folder}/job.yaml", "--format", "json",
                              "--threads", threads],
                             capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": threads})
        events = [json.loads(line) for line in run.stdout.splitlines() if '"step"' in line]
        events = [e for e in events if e.get("event") == "step"]
        if run.returncode != 0 or len(events) < steps:
            raise RuntimeError((run.stderr or run.stdout).strip()[-600:])
        return [e["loss"] for e in events], min(e["seconds"] for e in events[1:])

    def gaps_to_float64(self, ours, theirs):
        """Of the losses of two steps: weft's, PyTorch's."""
        true, _ = self.torch_steps(torch.float64, 2)
        return [abs(a - t) / abs(t) for a, t in zip(ours, true)], [abs(b - t) / abs(t) for b, t in zip(theirs, true)]


def compare(name, options):
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        trial = Trial(name, options, folder)
        size = f"{trial.count / 1e6:6.1f} M"
        if trial.count > options.parameters_max:
            return f"{name:32} {size} skipped", None, None
        trial.export()
        ours, our_seconds = trial.weft_steps(STEPS)
        theirs, their_seconds = trial.torch_steps(torch.float32, STEPS)
        gaps = [abs(a - b) / max(1e-3, abs(b)) for a, b in zip(ours[:2], theirs[:2])]
        right, note = gaps[0] < 1e-4 and gaps[1] < 1e-3, ""
        if not right:  # the model amplifies rounding, or weft is wrong: how far is each from the truth?
            seen = [trial.gaps_to_float64(ours, theirs)]
            for seed in range(1, SEEDS):
                trial.draw(seed)
                seen.append(trial.gaps_to_float64(trial.weft_steps(2)[0], trial.torch_steps(torch.float32, 2)[0]))
            mine, other = ([statistics.median(gap[who][step] for gap in seen) for step in range(2)] for who in range(2))
            right = all(m <= 2 * o + 1e-6 for m, o in zip(mine, other))
            note = f" to float64: {mine[0]:.1e} {mine[1]:.1e}, PyTorch {other[0]:.1e} {other[1]:.1e}"
    ratio = our_seconds / their_seconds
    line = (f"{name:32} {size}  loss {ours[0]:.5f} {ours[1]:.5f}  gaps {gaps[0]:.1e} {gaps[1]:.1e}  "
            f"step {our_seconds:7.3f} s, PyTorch {their_seconds:7.3f} s  ratio {ratio:.2f}{note}")
    wrong = []
    if not right:
        wrong.append("the losses differ")
    if ratio > options.ratio_max:
        wrong.append(f"{ratio:.2f} of PyTorch's time")
    return line, ", ".join(wrong), ratio


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weft", default="build/release/weft")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--parameters-max", type=float, default=100e6)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ratio-max", type=float, default=1.2)
    parser.add_argument("--folder", help="for temporary files")
    options = parser.parse_args()
    options.weft = os.path.abspath(options.weft)
    torch.set_num_threads(options.threads)
    if options.one:
        try:
            print(json.dumps(compare(options.one, options)))
        except Exception as error:  # noqa: BLE001: whatever it is, the other models go on
            print(json.dumps([f"{options.one:32} FAILED", " ".join(str(error).split())[:400], None]))
        return 0
    failures, ratios = {}, []
    for name in options.only or names():
        # A process each: the system may end one that needs more memory than there is.
        run = subprocess.run([sys.executable, *sys.argv, "--one", name], capture_output=True, text=True)
        if run.returncode == 0:
            line, wrong, ratio = json.loads(run.stdout.splitlines()[-1])
        else:
            line, wrong, ratio = f"{name:32} FAILED", f"PyTorch's process ended with {run.returncode}", None
        if ratio is not None:
            ratios.append(ratio)
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
