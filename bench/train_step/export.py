#!/usr/bin/python3
"""Writes model.onnx, data.npz and job.yaml of the S1 workloads.

    /usr/bin/python3 export.py FOLDER [WORKLOAD ...]     # FOLDER/WORKLOAD/...; gpt2-small takes 500 MB

The job trains for 12 steps on the samples that torch_step.py uses, in file order.
"""
import argparse
import os
import warnings

import numpy as np
import onnx
from onnx import numpy_helper
import torch

from models import WORKLOADS, make_data, make_model

BATCHES = 3
STEPS = 12


def export(name, folder):
    os.makedirs(folder, exist_ok=True)
    workload = WORKLOADS[name]
    model = make_model(name)
    state = {k: v.clone() for k, v in model.state_dict().items() if "running_" in k}
    column, x, label_column, y = make_data(name, BATCHES)
    np.savez(os.path.join(folder, "data.npz"), **{column: x.numpy(), label_column: y.numpy()})
    graph_input = "tokens" if column == "tokens" else "x"
    path = os.path.join(folder, "model.onnx")
    partial = path + ".partial"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, x[:workload["batch"]], partial, input_names=[graph_input], output_names=["logits"],
                          dynamic_axes={graph_input: {0: "batch"}, "logits": {0: "batch"}},
                          training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, opset_version=17)
    if state:
        # The trace ran the model once and moved the running statistics.
        proto = onnx.load(partial)
        for t in proto.graph.initializer:
            if t.name in state:
                t.CopyFrom(numpy_helper.from_array(state[t.name].numpy(), t.name))
        onnx.save(proto, partial)
    optimizer = ", ".join(f"{k}: {v}" for k, v in workload["optimizer"].items())
    freeze = 'freeze: ["mask"]\n' if "gpt" in workload else ""
    with open(os.path.join(folder, "job.yaml"), "w") as f:
        f.write(f"""format: 1
model: model.onnx
task: train
inputs: {{{graph_input}: {column}}}
loss: {{type: cross_entropy, logits: logits, labels: {label_column}}}
data:
  train: {{type: npz, path: data.npz}}
batch_size: {workload["batch"]}
steps: {STEPS}
shuffle: false
seed: 0
{freeze}optimizer: {{{optimizer}}}
output: trained.onnx
""")
    # Last, under its own name: a folder with model.onnx is complete.
    os.replace(partial, path)
    print(f"{name}: {path}, {os.path.getsize(path)} bytes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Writes the workloads of target S1.")
    parser.add_argument("folder")
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(WORKLOADS) + "; all when none is given")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.workloads or WORKLOADS:
        if name not in WORKLOADS:
            parser.error(f"no workload {name}; there are {', '.join(WORKLOADS)}")
        export(name, os.path.join(options.folder, name))
