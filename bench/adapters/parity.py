#!/usr/bin/python3
"""Adapters beside a GPT-2 of its real width, as weft trains them and as PyTorch does by a hand-written LoRA.

    bench/adapters/parity.py [--weft build/release/weft] [--steps 20] [MAKE_GPT OPTIONS ...]

Both begin with the same adapters, take the same samples in the same order, and use AdamW. PyTorch computes in float64,
and again in float32: how far that comes from float64 is what float32 costs. Printed are the largest relative gaps of
the loss over all steps and of the trained factors (by the largest number of each). Fails where weft's gap is above
twice PyTorch's own. Needs PyTorch and onnx; GPT-2 small takes 8 GB and some minutes.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from onnx import numpy_helper
import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "tests/numerics"), str(HERE.parents[1] / "tests/e2e")]
import onnx_torch
import tensor_file

RANK, ALPHA, RATE, DECAY, EPSILON = 8, 16, 1e-3, 0.01, 1e-6
PREFIX = "base_model.model."

JOB = """model: model.onnx
task: train
inputs: {{tokens: tokens}}
loss: {{type: cross_entropy, logits: logits, labels: targets}}
data: {{train: {{type: npz, path: data.npz}}}}
shuffle: false
batch_size: {batch}
microbatch_size: {batch}
steps: {steps}
optimizer: {{type: adamw, learning_rate: {rate}, weight_decay: {decay}, epsilon: {epsilon}}}
adapters: {{type: lora, rank: {rank}, alpha: {alpha}, targets: ["*.c_attn.weight"], init: start.safetensors}}
output: trained.onnx
"""


def start_of(weights, generator):
    """Factors by name, of matrices [in, out]; B is not zero, so that A learns from the first step on."""
    start = {}
    for name, weight in weights.items():
        module = PREFIX + name.removesuffix(".weight")
        rows, columns = weight.shape
        start[module + ".lora_A.weight"] = torch.randn(RANK, rows, generator=generator) * rows**-0.5
        start[module + ".lora_B.weight"] = torch.randn(columns, RANK, generator=generator) * 0.01
    return start


def in_pytorch(model, start, batches, dtype):
    """(losses, factors by name)"""
    graph = onnx_torch.Graph(model, dtype, training=True)
    values = onnx_torch.initializers(model, dtype)
    factors = {name: torch.nn.Parameter(value.to(dtype)) for name, value in start.items()}
    optimizer = torch.optim.AdamW(factors.values(), lr=RATE, weight_decay=DECAY, eps=EPSILON)
    losses = []
    for tokens, targets in batches:
        merged = dict(values)
        for name in start:
            if name.endswith(".lora_A.weight"):
                weight = name.removeprefix(PREFIX).removesuffix(".lora_A.weight") + ".weight"
                b = factors[name.replace(".lora_A.", ".lora_B.")]
                merged[weight] = values[weight] + ALPHA / RANK * (b @ factors[name]).t()
        logits = graph.run({"tokens": tokens}, merged)[0]["logits"]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: value.detach().double() for name, value in factors.items()}


def in_weft(weft, folder):
    output = subprocess.run([weft, "local", os.path.join(folder, "job.yaml"), "--format", "json"], check=True,
                            stdout=subprocess.PIPE).stdout
    losses = [e["loss"] for e in map(json.loads, output.splitlines()) if e["event"] == "step"]
    trained = tensor_file.read(os.path.join(folder, "trained.adapter", "adapter_model.safetensors"))
    return losses, {name: torch.from_numpy(np.frombuffer(data, np.float32).reshape(shape).copy()).double()
                    for name, (_, shape, data) in trained.items()}


def gaps(have, want):
    losses = max(abs(a - b) / abs(b) for a, b in zip(have[0], want[0], strict=True))
    factors = max(((have[1][name] - value).abs().max() / value.abs().max()).item() for name, value in want[1].items())
    return losses, factors


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weft", default="build/release/weft")
    parser.add_argument("--steps", type=int, default=20)
    options, rest = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, str(HERE / "make_gpt.py"), folder] + rest, check=True)
        model = onnx_torch.load(os.path.join(folder, "model.onnx"))
        dims = model.graph.output[0].type.tensor_type.shape.dim
        length, vocabulary, batch = dims[1].dim_value, dims[2].dim_value, 2
        generator = torch.Generator().manual_seed(1)
        text = torch.randint(vocabulary, (options.steps * batch, length + 1), generator=generator)
        np.savez(os.path.join(folder, "data.npz"), tokens=text[:, :-1].numpy(), targets=text[:, 1:].numpy())
        weights = {t.name: torch.from_numpy(numpy_helper.to_array(t).copy()) for t in model.graph.initializer
                   if t.name.endswith(".c_attn.weight")}
        start = start_of(weights, generator)
        packed = {name: ("F32", list(value.shape), value.contiguous().numpy().tobytes()) for name, value in start.items()}
        with open(os.path.join(folder, "start.safetensors"), "wb") as file:
            file.write(tensor_file.packed(packed))
        with open(os.path.join(folder, "job.yaml"), "w", encoding="utf-8") as file:
            file.write(JOB.format(batch=batch, steps=options.steps, rate=RATE, decay=DECAY, epsilon=EPSILON, rank=RANK,
                                  alpha=ALPHA))
        weft = in_weft(options.weft, folder)
        batches = [(part[:, :-1], part[:, 1:]) for part in text.split(batch)]
        exact = in_pytorch(model, start, batches, torch.float64)
        single = in_pytorch(model, start, batches, torch.float32)
    own, of_weft = gaps(single, exact), gaps(weft, exact)
    print(f"{options.steps} steps, loss {exact[0][0]:.4f} to {exact[0][-1]:.4f}")
    for what, a, b in zip(("loss", "factors"), of_weft, own, strict=True):
        print(f"{what:8} weft {a:.2e}   PyTorch in float32 {b:.2e}")
    if any(a > 2 * b for a, b in zip(of_weft, own, strict=True)):
        sys.exit("weft is further from float64 than twice PyTorch's own gap")


if __name__ == "__main__":
    main()
