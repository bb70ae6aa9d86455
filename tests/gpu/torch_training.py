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
    model = case["model"]()
    model.load_state_dict(initial_state(folder, model))
    model.train().to(device)
    with np.load(os.path.join(folder, "data.npz")) as data:
        x, labels = make_references.columns(case, data, torch.float32)
    x, labels = [v.to(device) for v in x], [v.to(device) for v in labels]

    def loss_of(order):
        logits = make_references.outputs_of(model(*(v[order] for v in x)))
        terms = [make_references.cross_entropy(z, y[order], loss) for z, y, loss in zip(logits, labels, case["losses"])]
        return make_references.weighted_sum(terms, case["losses"])

    losses, _ = make_references.train(list(model.parameters()), loss_of, case, len(x[0]))
    tensors = {k: v.detach().double().cpu().numpy() for k, v in model.state_dict().items() if v.is_floating_point()}
    return losses, tensors


cases = make_references.CASES | architectures.cases(make_references.images, make_references.text, False)
for number, folder in enumerate(folders):
    try:
        losses, tensors = train(folder, cases[os.path.basename(folder)])
    except (RuntimeError, KeyError) as why:  # another version of a module has other names
        print(f"{folder}: {why}", file=sys.stderr)
        continue
    partial = os.path.join(output, f"{number}.partial.npz")
    np.savez(partial, losses=losses, **tensors)
    os.replace(partial, os.path.join(output, f"{number}.npz"))
