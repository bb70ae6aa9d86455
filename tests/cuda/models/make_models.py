#!/usr/bin/env python3
"""Writes, beside itself, the graphs of networks that people train, at their real sizes and without weights: NAME.onnx.gz. A
file says what each weight is called and how large it is, and that its bytes lie in a file that is never written.
tests/cuda asks of them what a GPU would compute (coverage_test.cc) and what is compiled for it (nvrtc_test.cc).

    /usr/bin/python3 make_models.py [NAME...]      needs python3-torch, python3-torchvision, python3-onnx (./dev install torch)
"""
import gzip
import pathlib
import sys
import tempfile

import onnx
import onnx.numpy_helper
import torch
import torchvision

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "bench" / "train_step"))
from models import make_model  # noqa: E402: of target S1

LARGE = 64  # elements; what is smaller may say a shape and stays


def image():
    return "image", torch.zeros(2, 3, 224, 224)


def text(length):
    return "tokens", torch.zeros(2, length, dtype=torch.int64)


MODELS = {  # name: what makes the model, and its input
    "resnet18": (lambda: torchvision.models.resnet18(weights=None), image()),
    "resnet50": (lambda: torchvision.models.resnet50(weights=None), image()),
    "mobilenet_v2": (lambda: torchvision.models.mobilenet_v2(weights=None), image()),
    "vit_b_16": (lambda: torchvision.models.vit_b_16(weights=None), image()),
    "gpt2_small": (lambda: make_model("gpt2-small"), text(128)),
    "gpt_tiny": (lambda: make_model("gpt-tiny"), text(128)),
}


def leave_weights_out(model):
    offset = 0
    for tensor in model.graph.initializer:
        values = onnx.numpy_helper.to_array(tensor)
        if values.size <= LARGE:
            continue
        for field in ("raw_data", "float_data", "int64_data", "int32_data"):
            tensor.ClearField(field)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", "absent.weights"), ("offset", offset), ("length", values.nbytes)):
            tensor.external_data.add(key=key, value=str(value))
        offset += values.nbytes
    for node in model.graph.node:
        node.doc_string = ""  # which line of which file made it


def write(name):
    make, (input_name, example) = MODELS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/{name}.onnx"
        torch.onnx.export(make().train(), (example,), path, input_names=[input_name], output_names=["logits"],
                          dynamic_axes={input_name: {0: "batch"}, "logits": {0: "batch"}}, opset_version=17,
                          training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)
        model = onnx.load(path)
    leave_weights_out(model)
    packed = HERE / f"{name}.onnx.gz"
    packed.write_bytes(gzip.compress(model.SerializeToString(deterministic=True), mtime=0))
    print(f"{packed.name}: {packed.stat().st_size} bytes")


for chosen in sys.argv[1:] or MODELS:
    write(chosen)
