"""PyTorch's float32 of numeric references on a card.   torch_training.py NUMERICS DEVICE OUTPUT FOLDER...

For the N-th folder OUTPUT/N.npz: the losses of its steps and every trained tensor. The modules are those of
tests/numerics/make_references.py, which also writes ONNX files: what that needs is not asked for here.
"""
import importlib.util
import os
import sys
import unittest.mock

import numpy as np
import torch

numerics, device, output, folders = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
sys.path[:0] = [numerics, os.path.dirname(os.path.abspath(__file__))]
if importlib.util.find_spec("onnx") is None:
    sys.modules["onnx"] = unittest.mock.MagicMock()

import architectures  # noqa: E402
import make_references  # noqa: E402
from tensors import read_initializers  # noqa: E402

torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def initial_state(folder, model):
    with open(os.path.join(folder, "model.onnx"), "rb") as f:
        values = read_initializers(f.read())
    state = model.state_dict()
    return {k: torch.from_numpy(values[k].copy()) if k in values else v for k, v in state.items()}


def train(folder, case):
    with np.load(os.path.join(folder, "data.npz")) as data:
        losses, _, tensors, _ = make_references.train_module(case["model"], initial_state(folder, case["model"]()), case, data,
                                                             torch.float32, device)
    return losses, tensors


cases = make_references.CASES | architectures.cases(make_references.images, make_references.text, False)
for number, folder in enumerate(folders):
    try:
        losses, tensors = train(folder, cases[os.path.basename(folder)])
    except Exception as why:  # another version of a module has other names, say: the others go on
        print(f"{folder}: {type(why).__name__}: {why}", file=sys.stderr)
        continue
    partial = os.path.join(output, f"{number}.partial.npz")
    np.savez(partial, losses=losses, **tensors)
    os.replace(partial, os.path.join(output, f"{number}.npz"))
