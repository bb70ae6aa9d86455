#!/usr/bin/python3
"""Writes FOLDER/NAME/model.onnx and job.yaml for models of torchvision, with random weights, in training mode.

    /usr/bin/python3 bench/stages/export.py FOLDER [NAME ...]

The jobs name data that are not there: weft_bench_stages reads none. What is there already stays.
"""
import argparse
import os
import warnings

import torch
import torchvision

warnings.filterwarnings("ignore")
MODELS = {  # samples of 3 x 224 x 224
    "resnet18": 8, "resnet50": 2, "mobilenet_v2": 4, "mobilenet_v3_small": 8, "efficientnet_b0": 4, "densenet121": 2,
    "vgg11": 2, "squeezenet1_1": 4, "shufflenet_v2_x1_0": 8, "googlenet": 4, "vit_b_16": 2, "swin_t": 2,
    "convnext_tiny": 2,
}
JOB = """format: 1
model: model.onnx
task: train
inputs: {{x: image}}
loss: {{type: cross_entropy, logits: logits, labels: label}}
data:
  train: {{type: npz, path: none.npz}}
batch_size: {batch}
steps: 1
optimizer: {{type: sgd, learning_rate: 0.01, momentum: 0.9}}
output: trained.onnx
"""


def build(name):
    torch.manual_seed(0)
    options = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
    model = torchvision.models.get_model(name, weights=None, **options).train()
    for part in model.modules():
        if isinstance(part, torchvision.ops.StochasticDepth):
            part.p = 0.0  # what it draws with is not exported
    return model


def export(name, folder):
    os.makedirs(folder, exist_ok=True)
    batch, job = MODELS[name], os.path.join(folder, "job.yaml")
    if os.path.exists(job):
        return
    torch.onnx.export(build(name), torch.randn(batch, 3, 224, 224), os.path.join(folder, "model.onnx"), input_names=["x"],
                      output_names=["logits"], opset_version=17, training=torch.onnx.TrainingMode.TRAINING,
                      do_constant_folding=False)
    with open(job, "w") as f:
        f.write(JOB.format(batch=batch))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Writes models of torchvision for weft_bench_stages.")
    parser.add_argument("folder")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODELS) + "; all when none is given")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.names or MODELS:
        if name not in MODELS:
            parser.error(f"no model {name}; there are {', '.join(MODELS)}")
        export(name, os.path.join(options.folder, name))
