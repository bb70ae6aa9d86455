"""Times training steps of PyTorch, as it is told.   torch_steps.py GRAPHS TRAIN_STEP WORKLOAD DEVICE

Standard input: a line of JSON for each turn, {"precision": fp32|tf32|bf16, "batch": N, "warmup": N, "steps": N, "compile":
bool, "new": bool}. Standard output: a line for each, {"seconds": [...] where each step's loss is read, "unread_seconds":
a step where none is before the last, "loss": of the first step, "allocated_bytes", "reserved_bytes": at most}. A model
stays until a turn asks for a new one.
"""
import contextlib
import json
import os
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F

graphs, train_step, workload, device = sys.argv[1:]
sys.path[:0] = [train_step, os.path.dirname(os.path.abspath(__file__))]
import graphs as drawn  # noqa: E402
import models  # noqa: E402

on_gpu = device != "cpu"
torch.backends.cudnn.benchmark = True  # the algorithms that are fastest here, as one who times PyTorch would have it
ROOT = os.path.dirname(graphs)


def synchronize():
    if on_gpu:
        torch.cuda.synchronize(device)


def make_model():
    try:
        model = models.make_model(workload)
    except ImportError:  # no torchvision: the same network is among the numeric references
        import unittest.mock
        for name in ("onnx", "architectures"):
            sys.modules.setdefault(name, unittest.mock.MagicMock())
        sys.path.insert(0, os.path.join(ROOT, "numerics"))
        import make_references
        model = make_references.ResNet18(64, 1000)
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.eps, module.momentum = 1e-5, 0.1
        model.train()
    weights = {k: torch.from_numpy(np.array(v)) for k, v in drawn.read_weights(graphs, workload).items()}
    missing = model.load_state_dict(weights, strict=False)
    if missing.unexpected_keys or not all(name in weights for name, _ in model.named_parameters()):
        raise SystemExit(f"the weights do not fit the module: {missing}")
    return model.to(device)


def load_data():
    with np.load(os.path.join(graphs, workload, "data.npz")) as data:
        arrays = [torch.from_numpy(data[name]) for name in (("tokens", "targets") if "tokens" in data.files else ("image", "label"))]
    return [a.pin_memory() for a in arrays] if on_gpu else arrays


class Trainer:
    def __init__(self, turn):
        self.model = make_model()
        self.optimizer = models.make_optimizer(workload, self.model.parameters())
        self.call = torch.compile(self.model) if turn["compile"] else self.model
        self.batch, self.precision, self.at = turn["batch"], turn["precision"], 0
        self.x, self.y = DATA

    def arithmetic(self):
        if self.precision != "bf16":
            return contextlib.nullcontext()
        return torch.autocast(device_type="cuda" if on_gpu else "cpu", dtype=torch.bfloat16)

    def step(self):
        first = self.at * self.batch % len(self.x)
        self.at += 1
        x = self.x[first:first + self.batch].to(device, non_blocking=True)
        y = self.y[first:first + self.batch].to(device, non_blocking=True)
        with self.arithmetic():
            logits = self.call(x)
            loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    def read_steps(self, count):
        losses, seconds = [], []
        for _ in range(count):
            begun = time.perf_counter()
            losses.append(self.step().item())
            seconds.append(time.perf_counter() - begun)
        return losses, seconds

    def unread_steps(self, count):
        synchronize()
        begun = time.perf_counter()
        for _ in range(count):
            loss = self.step()
        loss.item()
        synchronize()
        return (time.perf_counter() - begun) / count


def set_tf32(allowed):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed


DATA = load_data()
trainer = None
for line in sys.stdin:
    turn = json.loads(line)
    set_tf32(turn["precision"] != "fp32")
    if turn["new"]:
        trainer = None
        if on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        trainer = Trainer(turn)
    losses, _ = trainer.read_steps(turn["warmup"])
    more, seconds = trainer.read_steps(turn["steps"])
    answer = {"seconds": seconds, "unread_seconds": trainer.unread_steps(turn["steps"]), "loss": (losses + more)[0]}
    if on_gpu:
        answer.update(allocated_bytes=torch.cuda.max_memory_allocated(device), reserved_bytes=torch.cuda.max_memory_reserved(device))
    print(json.dumps(answer), flush=True)
