#!/usr/bin/python3
"""Makes the training references of target L1: 20 steps of PyTorch in float64 for each case.

    /usr/bin/python3 make_references.py [--output DIR] [--seed N] [--full] [--check] [CASE ...]

--check also trains the exported graph itself, node by node in float64, and prints how far that is from the module:
it shows that the export says what the module does. --full: the architectures at their real widths and depths.
README.md lists the files.
"""
import argparse
import fnmatch
import gzip
import math
import os
import re
import shutil
import sys
import tempfile
import warnings

import numpy as np
import onnx
from onnx import numpy_helper
import torch
from torch import nn
import torch.nn.functional as F

import architectures
import onnx_torch
from sketch import sketch

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "e2e"))
import tensor_file

STEPS = 20
# An ONNX attribute or constant holds float32: the modules use the same rounded numbers, so that the reference
# in float64 computes what the file says.
EPSILON = float(np.float32(1e-5))
MOMENTUM = 1 - float(np.float32(0.9))


class Block(nn.Module):
    def __init__(self, width, heads, gelu, mask_by_add, dropout):
        super().__init__()
        self.heads, self.gelu, self.mask_by_add = heads, gelu, mask_by_add
        self.ln_1 = nn.LayerNorm(width, EPSILON)
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width, EPSILON)
        self.c_fc = nn.Linear(width, 4 * width)
        self.m_proj = nn.Linear(4 * width, width)
        # Of rate zero: the operator is there and must do nothing.
        self.dropout = nn.Dropout(0.0) if dropout else nn.Identity()

    def forward(self, x, mask):
        b, t, c = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).split(c, dim=2)
        # The arithmetic on sizes is left to the exporter: it makes the integer chains that real exports have.
        q = q.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        k = k.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        v = v.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        mask = mask[:, :, :t, :t]
        if self.mask_by_add:
            scores = (q @ k.transpose(-2, -1)) / 4.0 + mask
        else:
            scores = (q @ k.transpose(-2, -1)) * (c // self.heads) ** -0.5
            scores = scores.masked_fill(mask == 0, float("-inf"))
        y = self.dropout(F.softmax(scores, dim=-1)) @ v
        x = x + self.dropout(self.c_proj(y.transpose(1, 2).reshape(b, t, c)))
        return x + self.dropout(self.m_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate=self.gelu)))


class GPT(nn.Module):
    def __init__(self, layers, heads=3, width=48, vocabulary=64, length=32, gelu="none", mask_by_add=False, tied=True,
                 dropout=False):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(length, width)
        self.h = nn.ModuleList(Block(width, heads, gelu, mask_by_add, dropout) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width, EPSILON)
        self.head = None if tied else nn.Linear(width, vocabulary, bias=False)
        seen = torch.tril(torch.ones(length, length)).view(1, 1, length, length)
        mask = torch.zeros_like(seen).masked_fill(seen == 0, float("-inf")) if mask_by_add else seen
        self.register_buffer("mask", mask)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            x = block(x, self.mask)
        return F.linear(self.ln_f(x), self.wte.weight if self.head is None else self.head.weight)


def norm(channels):
    return nn.BatchNorm2d(channels, EPSILON, MOMENTUM)


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride=1, groups=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, groups=groups, bias=False)
        self.bn2 = norm(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet18(nn.Module):
    """ResNet-18 as torchvision builds it, names included, with a first width of 16 in place of 64."""

    def __init__(self, width=16, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = norm(width)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inputs = width
        for i in range(4):
            outputs = width << i
            blocks = nn.Sequential(BasicBlock(inputs, outputs, 1 if i == 0 else 2), BasicBlock(outputs, outputs))
            self.add_module(f"layer{i + 1}", blocks)
            inputs = outputs
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x):
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class ResNetSmall(nn.Module):
    """Grouped and depthwise convolutions, one bias that a BatchNormalization swallows, a mean in place of a pool."""

    def __init__(self, classes=10):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, 1, 1, bias=True)
        self.bn = norm(16)
        self.block1 = BasicBlock(16, 16, groups=4)
        self.block2 = BasicBlock(16, 32, 2, groups=8)
        self.depthwise = nn.Conv2d(32, 32, 3, 1, 1, groups=32, bias=False)
        self.bn_depthwise = norm(32)
        self.block3 = BasicBlock(32, 48, 2, groups=2)
        self.fc = nn.Linear(48, classes)

    def forward(self, x):
        x = self.block2(self.block1(F.relu(self.bn(self.conv(x)))))
        x = F.relu(self.bn_depthwise(self.depthwise(x)))
        return self.fc(self.block3(x).mean((2, 3)))


class Tagger(nn.Module):
    """Two kinds of tags for each token; no layer knows of more than its sample."""

    def __init__(self, vocabulary=40, width=24, tags=(7, 5)):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.norm = nn.LayerNorm(width, EPSILON)
        self.mix = nn.Linear(width, width)
        self.fine, self.coarse = nn.Linear(width, tags[0]), nn.Linear(width, tags[1])

    def forward(self, tokens):
        x = torch.tanh(self.mix(self.norm(self.embedding(tokens))))
        return self.fine(x), self.coarse(x)


def tagged(samples, length, rng):
    """Tokens of which few and unevenly many have tags; of two samples none has any. A weight a sample, one of them 0."""
    tokens = rng.integers(0, 40, (samples, length))
    fine, coarse = tokens % 7, tokens // 8
    for i in range(samples):
        fine[i, rng.integers(1, length + 1):] = -100
        coarse[i, :rng.integers(0, length)] = -1
    fine[[3, 4]], coarse[[3, 10]] = -100, -1
    return {"tokens": tokens, "fine": fine, "coarse": coarse, "weight": rng.integers(0, 9, samples).astype(np.float32) / 4}


class FrozenNorms(nn.Module):
    """One layer that is frozen whole, one of which only the statistics are, one of which only weight and bias are."""

    def __init__(self, classes=10):
        super().__init__()
        self.conv1, self.whole = nn.Conv2d(3, 8, 3, 1, 1, bias=False), norm(8)
        self.conv2, self.statistics = nn.Conv2d(8, 8, 3, 2, 1, bias=False), norm(8)
        self.conv3, self.weights = nn.Conv2d(8, 8, 3, 2, 1, bias=False), norm(8)
        self.fc = nn.Linear(8, classes)

    def forward(self, x):
        x = F.relu(self.whole(self.conv1(x)))
        x = F.relu(self.statistics(self.conv2(x)))
        x = F.relu(self.weights(self.conv3(x)))
        return self.fc(x.mean((2, 3)))


def text(samples, length, vocabulary, rng):
    """Walks on a random graph with three ways out of each token: something to learn within 20 steps."""
    ways = rng.integers(0, vocabulary, (vocabulary, 3))
    tokens = np.zeros((samples, length + 1), np.int64)
    tokens[:, 0] = rng.integers(0, vocabulary, samples)
    for t in range(length):
        tokens[:, t + 1] = ways[tokens[:, t], rng.integers(0, 3, samples)]
    return {"tokens": tokens[:, :-1].copy(), "targets": tokens[:, 1:].copy()}


def images(samples, size, rng):
    """Noise around one pattern a class, in steps of 1/8, which float32 holds exactly and zip packs well."""
    labels = rng.integers(0, 10, samples)
    patterns = rng.integers(-4, 5, (10, 3, size, size))
    noise = rng.integers(-8, 9, (samples, 3, size, size))
    return {"image": ((patterns[labels] + noise) / 8).astype(np.float32), "label": labels.astype(np.int64)}


# The rates of the ResNets are low on purpose: at 0.01 one ReLU that flips in float32 sets the runs apart within 20 steps.
CASES = {
    "gpt3": dict(
        model=lambda: GPT(3, dropout=True), opset=13, variants=["dynamic", "fixed"],
        data=lambda rng: text(60, 32, 64, rng), inputs={"tokens": "tokens"}, losses=[architectures.NEXT],
        batch=8, microbatch=4, freeze=["mask"],
        optimizer=dict(type="adamw", learning_rate=1e-3, weight_decay=0.1, betas=[0.9, 0.95], epsilon=1e-6),
        schedule=dict(type="cosine", warmup_steps=5, final=0.1), clip_norm=1.0),
    "gpt4": dict(
        model=lambda: GPT(4, gelu="tanh", mask_by_add=True, tied=False), opset=17, variants=["dynamic"],
        data=lambda rng: text(40, 32, 64, rng), inputs={"tokens": "tokens"}, losses=[architectures.NEXT],
        batch=4, microbatch=4, freeze=["mask"],
        optimizer=dict(type="adamw", learning_rate=5e-4, epsilon=1e-6),
        schedule=dict(type="linear", warmup_steps=4), clip_norm=None),
    "resnet18w16": dict(
        model=ResNet18, opset=17, variants=["dynamic"],
        data=lambda rng: images(48, 32, rng), inputs={"x": "image"}, losses=[architectures.LOGITS],
        batch=16, microbatch=16, freeze=[],
        optimizer=dict(type="sgd", learning_rate=0.002, momentum=0.9, nesterov=True, weight_decay=5e-4),
        schedule=dict(type="constant"), clip_norm=None),
    "resnet_small": dict(
        model=ResNetSmall, opset=13, variants=["dynamic"],
        data=lambda rng: images(72, 16, rng), inputs={"x": "image"}, losses=[architectures.LOGITS],
        batch=16, microbatch=8, freeze=[],
        optimizer=dict(type="sgd", learning_rate=0.003, momentum=0.9, nesterov=True, weight_decay=1e-3),
        schedule=dict(type="cosine", warmup_steps=4, final=0.01), clip_norm=1.5),
    "frozen_norms": dict(
        model=FrozenNorms, opset=17, variants=["dynamic"],
        data=lambda rng: images(48, 12, rng), inputs={"x": "image"}, losses=[architectures.LOGITS],
        batch=16, microbatch=8, freeze=["whole.*", "statistics.running_*", "weights.weight", "weights.bias"],
        optimizer=dict(type="sgd", learning_rate=0.02, momentum=0.9, nesterov=False, weight_decay=0.0),
        schedule=dict(type="constant"), clip_norm=None),
}


CASES["tagger"] = dict(
    model=Tagger, opset=17, variants=["dynamic"], data=lambda rng: tagged(20, 6, rng), inputs={"tokens": "tokens"},
    losses=[dict(type="cross_entropy", logits="fine", labels="fine", axis=2, class_weights=[1.0, 0.5, 2.0, 1.0, 0.0, 1.25, 1.0],
                 label_smoothing=0.125, sample_weights="weight"),
            dict(type="cross_entropy", logits="coarse", labels="coarse", axis=2, ignore_index=-1, weight=0.375)],
    batch=8, microbatch=8, freeze=[], evaluate=True,
    optimizer=dict(type="adamw", learning_rate=2e-3, weight_decay=0.25, epsilon=1e-6,
                   groups=[dict(parameters=["*.bias", "norm*"], weight_decay=0.0, learning_rate_factor=0.5),
                           dict(parameters=["embedding*", "fine*"], learning_rate_factor=2.0)]),
    schedule=dict(type="cosine", warmup_steps=4, final=0.1), clip_norm=1.0)


def adapted(model, schedule, optimizer, adapters, **of):
    """A case with low-rank adapters: nothing else is trained but what a `full` names."""
    lora, *full = adapters
    lora = dict(type="lora", init="start.safetensors") | lora
    return dict(opset=17, variants=["dynamic"], freeze=["*"], model=model, schedule=schedule, optimizer=optimizer, clip_norm=None,
                adapters=[lora] + [dict(type="full", targets=t) for t in full]) | of


WALKS = dict(data=lambda rng: text(40, 32, 64, rng), inputs={"tokens": "tokens"}, losses=[architectures.NEXT], batch=8, microbatch=4)
QUICK = dict(type="adamw", learning_rate=5e-3, weight_decay=0.05, epsilon=1e-6)
CASES |= {
    "gpt_lora": adapted(
        lambda: GPT(3, gelu="tanh", mask_by_add=True, tied=False), dict(type="cosine", warmup_steps=4, final=0.1), QUICK,
        [dict(rank=4, alpha=8, targets=["*.c_attn.weight", "*.m_proj.weight", "wte.weight"]), ["*.ln_2.*"]], **WALKS),
    "llama_lora": adapted(
        lambda: architectures.Llama(64, 4, 2, 2, 112, 64, 32), dict(type="linear", warmup_steps=4), QUICK,
        [dict(rank=8, alpha=32, targets=["*.attention.*.weight", "head.weight"]), ["norm.weight"]], **(WALKS | dict(clip_norm=1.0))),
    "resnet_lora": adapted(
        ResNetSmall, dict(type="constant"), dict(type="sgd", learning_rate=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
        [dict(rank=3, alpha=6, targets=["*.downsample.0.weight", "fc.weight"])],
        data=lambda rng: images(72, 16, rng), inputs={"x": "image"}, losses=[architectures.LOGITS], batch=16, microbatch=8),
}


class Adapters:
    """Low-rank adapters beside the modules that a case names, as the library PEFT adds them: what a module gives, and
    alpha / rank times what its input gives by A and then by B."""

    def __init__(self, model, case, seed):
        lora = case["adapters"][0]
        self.rank, self.scale = lora["rank"], lora["alpha"] / lora["rank"]
        self.modules = {name: module for name, module in model.named_modules() if is_named(name + ".weight", lora["targets"])}
        generator = torch.Generator().manual_seed(seed + 1000)
        self.start = {}
        for name, module in self.modules.items():
            kind, (rows, columns) = self.kind(module), module.weight.shape[:2]
            out, inputs = (columns, rows) if kind == "embedding_" else (rows, columns)
            ones = [1] * (module.weight.dim() - 2)
            draw = torch.randn([self.rank, inputs] + ones, generator=generator) * inputs ** -0.5
            self.start[f"base_model.model.{name}.lora_{kind}A" + self.ending(kind)] = torch.round(draw * 256) / 256
            self.start[f"base_model.model.{name}.lora_{kind}B" + self.ending(kind)] = torch.zeros([out, self.rank] + ones)

    @staticmethod
    def kind(module):
        return "embedding_" if isinstance(module, nn.Embedding) else ""

    @staticmethod
    def ending(kind):
        return "" if kind else ".weight"  # a table's factors are parameters and no modules

    def attach(self, model, dtype):
        """The factors by name, as parameters, which the model's modules add from now on."""
        factors = {name: nn.Parameter(value.to(dtype)) for name, value in self.start.items()}
        for name, module in model.named_modules():
            if name in self.modules:
                kind = self.kind(module)
                module.register_forward_hook(self.adds(*(factors[f"base_model.model.{name}.lora_{kind}{x}" + self.ending(kind)]
                                                         for x in "AB")))
        return factors

    def adds(self, a, b):
        def hook(module, inputs, output):
            x = inputs[0]
            if isinstance(module, nn.Embedding):
                low = F.embedding(x, a.t())
                return output + self.scale * F.linear(low, b)
            if isinstance(module, nn.Conv2d):
                return output + self.scale * F.conv2d(F.conv2d(x, a, None, module.stride), b)
            return output + self.scale * F.linear(F.linear(x, a), b)
        return hook


def initialise(model, seed, quiet=None):
    """`quiet`: a pattern of the scales that end residual branches: they start small, so that a deep net does not take
    float32 and float64 apart within a few steps. Every float is a multiple of 2^-8: exact in float32, and small once compressed. Nothing trained starts at zero, so
    that relative gaps make sense for every tensor."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        draw = torch.randn(p.shape, generator=generator)
        if isinstance(model, GPT):
            centre, deviation = (1.0 if ".ln_" in "." + name and name.endswith("weight") else 0.0), 0.04
        elif p.dim() == 4:
            centre, deviation = 0.0, math.sqrt(2.0 / p[0].numel())
        elif p.dim() in (2, 3):
            centre, deviation = 0.0, 0.1
        else:
            centre, deviation = (1.0 if name.endswith("weight") else 0.0), 0.1
        if quiet is not None and re.fullmatch(quiet, name):
            centre, deviation = 0.25, 0.05
        p.data = torch.round((centre + deviation * draw) * 256) / 256


def output_names(case):
    return [loss["logits"] for loss in case["losses"]]


def export(model, case, example, path, dynamic):
    state = {k: v.clone() for k, v in model.state_dict().items()}
    names = list(case["inputs"]), output_names(case)
    axes = {name: {0: "batch"} for name in names[0] + names[1]} if dynamic else None
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        raw = os.path.join(folder, "model.onnx")
        torch.onnx.export(model, example, raw, input_names=names[0], output_names=names[1], dynamic_axes=axes,
                          training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, opset_version=case["opset"])
        proto = onnx.load(raw)
    model.load_state_dict(state)
    # The trace ran the model once and moved the running statistics.
    for t in proto.graph.initializer:
        if t.name in state:  # not what the exporter itself put there: sizes of a Resize, states that begin at zero
            t.CopyFrom(numpy_helper.from_array(state[t.name].numpy(), t.name))
    onnx.checker.check_model(proto)
    with open(path, "wb") as f:
        # No name and no time in the header: the same model gives the same file.
        with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=f, mtime=0) as z:
            z.write(proto.SerializeToString())
    return proto


def rate(step, base, schedule):
    warmup, final = schedule.get("warmup_steps", 0), schedule.get("final", 0.0)
    if step <= warmup:
        return base * step / warmup
    u = (step - warmup) / (STEPS - warmup)
    if schedule["type"] == "linear":
        return base * (1 - (1 - final) * u)
    if schedule["type"] == "cosine":
        return base * (final + (1 - final) * (1 + math.cos(math.pi * u)) / 2)
    return base


def grouped(named, o):
    """PyTorch's parameter groups: the first pattern that matches a name holds."""
    groups = [dict(params=[], factor=1.0)] + [dict(params=[], factor=g.get("learning_rate_factor", 1.0)) for g in o.get("groups", [])]
    for mine, g in zip(groups[1:], o.get("groups", [])):
        if "weight_decay" in g:
            mine["weight_decay"] = g["weight_decay"]
    for name, p in named:
        at = next((i for i, g in enumerate(o.get("groups", []), 1) if any(fnmatch.fnmatchcase(name, x) for x in g["parameters"])), 0)
        groups[at]["params"].append(p)
    return [g for g in groups if g["params"]]


def make_optimizer(parameters, o):
    if o["type"] == "adamw":
        return torch.optim.AdamW(parameters, lr=o["learning_rate"], betas=o.get("betas", [0.9, 0.999]),
                                 eps=o["epsilon"], weight_decay=o.get("weight_decay", 0.01))
    return torch.optim.SGD(parameters, lr=o["learning_rate"], momentum=o["momentum"], nesterov=o["nesterov"],
                           weight_decay=o["weight_decay"])


def train(named, loss_of, case, samples):
    """The step as weft defines it. loss_of(sample numbers, those of the step) gives a microbatch's loss; the mean of these
    over the step's microbatches is the step's."""
    parameters = [p for _, p in named]
    optimizer = make_optimizer(grouped(named, case["optimizer"]), case["optimizer"])
    batch, microbatch, clip = case["batch"], case["microbatch"], case["clip_norm"]
    losses, norms = [], []
    for step in range(1, STEPS + 1):
        order = [p % samples for p in range((step - 1) * batch, step * batch)]  # file order, across epoch borders
        optimizer.zero_grad(set_to_none=True)
        total = []
        for m in range(0, batch, microbatch):
            loss = loss_of(order[m:m + microbatch], order)
            loss.backward()  # adds to the gradients of the microbatches before
            total.append(loss.item())
        gradients = [p.grad for p in parameters]
        torch._foreach_div_(gradients, float(len(total)))
        length = math.sqrt(sum(g.double().square().sum().item() for g in gradients))
        if clip is not None:
            torch._foreach_mul_(gradients, min(1.0, clip / (length + 1e-6)))
        for group in optimizer.param_groups:
            group["lr"] = rate(step, case["optimizer"]["learning_rate"], case["schedule"]) * group["factor"]
        optimizer.step()
        losses.append(sum(total) / len(total))
        norms.append(length)
    return np.array(losses), np.array(norms)


def columns(case, data, dtype, device="cpu"):
    """The data of the inputs, in their order, and of the labels and their weights, in that of the losses."""
    x = [torch.from_numpy(data[column]).to(device) for column in case["inputs"].values()]
    x = [v.to(dtype) if v.is_floating_point() else v for v in x]
    weights = [torch.from_numpy(data[loss["sample_weights"]]).to(device, dtype) if "sample_weights" in loss else None
               for loss in case["losses"]]
    return x, [torch.from_numpy(data[loss["labels"]]).to(device) for loss in case["losses"]], weights


def count(labels, loss, weights):
    """What a term is the mean over: v w[label] of the labels that count."""
    counts = labels != loss.get("ignore_index", -100)
    of_class = 1.0
    if "class_weights" in loss:
        of_class = torch.tensor(loss["class_weights"], dtype=torch.float64, device=labels.device)[torch.where(counts, labels, 0)]
    of_sample = 1.0 if weights is None else weights.double().reshape(-1, *[1] * (labels.dim() - 1))
    return (counts * of_class * of_sample).sum().item()


def cross_entropy(logits, labels, loss, weights=None, divisor=None):
    """PyTorch's, over all of these samples, or over `divisor` where they are a part of a step."""
    axis = loss.get("axis", logits.dim() - 1)
    logits = logits.movedim(axis, -1)
    of_class = torch.tensor(loss["class_weights"], dtype=logits.dtype, device=logits.device) if "class_weights" in loss else None
    each = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), weight=of_class, reduction="none",
                           ignore_index=loss.get("ignore_index", -100), label_smoothing=loss.get("label_smoothing", 0.0))
    if weights is not None:
        each = each.reshape(labels.shape) * weights.reshape(-1, *[1] * (labels.dim() - 1))
    return each.sum() / (count(labels, loss, weights) if divisor is None else divisor)


def step_loss(logits, labels, weights, case, order, step):
    """Of a microbatch, so that the mean over the microbatches is PyTorch's loss over the whole step."""
    terms = []
    for z, y, v, loss in zip(logits, labels, weights, case["losses"]):
        part = lambda rows: (y[rows], loss, None if v is None else v[rows])
        divisor = count(*part(step)) * len(order) / len(step)
        terms.append(cross_entropy(z, *part(order), divisor=divisor))
    return weighted_sum(terms, case["losses"])


def weighted_sum(terms, losses):
    """As the job file says it; one loss without a weight is itself."""
    terms = [term if "weight" not in loss else loss["weight"] * term for term, loss in zip(terms, losses)]
    return sum(terms[1:], terms[0])


def outputs_of(result):
    return list(result) if isinstance(result, tuple) else [result]


def is_named(name, patterns):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def is_frozen(case, name):
    whole = [pattern for entry in case.get("adapters", [])[1:] for pattern in entry["targets"]]
    return is_named(name, case["freeze"]) and not is_named(name, whole)


def freeze(model, case):
    """A BatchNorm whose statistics are frozen is in eval(); a parameter that is frozen gets no gradient."""
    for name, module in model.named_modules():
        if isinstance(module, nn.BatchNorm2d) and is_frozen(case, name + ".running_mean"):
            module.eval()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not is_frozen(case, name))


def train_module(make, state, case, data, dtype, device="cpu", adapters=None):
    model = make()
    model.load_state_dict(state)
    model.train().to(device, dtype)
    freeze(model, case)
    factors = adapters.attach(model, dtype) if adapters else {}
    x, labels, weights = columns(case, data, dtype, device)

    def loss_of(order, step):
        return step_loss(outputs_of(model(*(v[order] for v in x))), labels, weights, case, order, step)

    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad] + list(factors.items())
    losses, norms = train(named, loss_of, case, len(x[0]))
    ends = dict(named) if adapters else {k: v for k, v in model.state_dict().items() if v.is_floating_point()}
    tensors = {k: v.detach().double().cpu().numpy() for k, v in ends.items()}
    return losses, norms, tensors, evaluate(model, case, x, labels, weights) if case.get("evaluate") else {}


def evaluate(model, case, x, labels, weights):
    """Over all samples at once: each term's mean over what it counts, and the first one's accuracy."""
    model.eval()
    with torch.no_grad():
        logits = outputs_of(model(*x))
        terms = [cross_entropy(z, y, loss, v) for z, y, v, loss in zip(logits, labels, weights, case["losses"])]
        counted = labels[0] != case["losses"][0].get("ignore_index", -100)
        hits = (logits[0].argmax(case["losses"][0].get("axis", logits[0].dim() - 1)) == labels[0])[counted]
    return {"evaluation_loss": weighted_sum(terms, case["losses"]).item(), "evaluation_accuracy": hits.double().mean().item()}


def train_graph(proto, names, case, data):
    """The same training of the exported graph, node by node."""
    graph = onnx_torch.Graph(proto, torch.float64, training=True)
    values = onnx_torch.initializers(proto, torch.float64)
    parameters = [(n, values[n].requires_grad_()) for n in names]
    x, labels, weights = columns(case, data, torch.float64)

    def loss_of(order, step):
        outputs, statistics = graph.run({name: v[order] for name, v in zip(case["inputs"], x)}, values)
        values.update(statistics)
        return step_loss([outputs[loss["logits"]] for loss in case["losses"]], labels, weights, case, order, step)

    losses, norms = train(parameters, loss_of, case, len(x[0]))
    return losses, norms, {k: v.detach().numpy() for k, v in values.items() if v.is_floating_point()}


def gap(value, reference):
    finite = np.isfinite(reference)  # an additive mask holds -inf
    a, b = value[finite], reference[finite]
    scale = np.linalg.norm(b)
    return float(np.linalg.norm(a - b) / scale) if scale else float(np.linalg.norm(a))


def flow(v):
    if isinstance(v, dict):
        return "{" + ", ".join(f"{k}: {flow(x)}" for k, x in v.items()) + "}"
    if isinstance(v, list):
        return "[" + ", ".join(flow(x) for x in v) + "]"
    if isinstance(v, bool):
        return str(v).lower()
    return repr(v) if not isinstance(v, str) else (v if v.isidentifier() else f'"{v}"')


def write_job(path, case):
    lines = ["# Written by make_references.py. Decompress model.onnx.gz first.", "format: 1", "model: model.onnx", "task: train",
             f"inputs: {flow(case['inputs'])}",
             f"loss: {flow(case['losses'][0] if len(case['losses']) == 1 else case['losses'])}",
             "data:", "  train: {type: npz, path: data.npz}", *(["  test: {type: npz, path: data.npz}"] * case.get("evaluate", 0)),
             f"batch_size: {case['batch']}", f"microbatch_size: {case['microbatch']}", f"steps: {STEPS}",
             "shuffle: false", "seed: 0"]
    if "adapters" in case:
        lines.append(f"adapters: {flow(case['adapters'])}")
    elif case["freeze"]:
        lines.append("freeze: [" + ", ".join(f'"{p}"' for p in case["freeze"]) + "]")
    lines += [f"optimizer: {flow(case['optimizer'])}", f"schedule: {flow(case['schedule'])}"]
    if case["clip_norm"] is not None:
        lines.append(f"clip_norm: {case['clip_norm']}")
    lines.append("output: trained.onnx")
    with open(path, "w") as f:
        f.write("\n".join(lines) + "\n")


def make(name, case, folder, seed, check):
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    rng = np.random.default_rng(seed)
    data = case["data"](rng)
    np.savez_compressed(os.path.join(folder, "data.npz"), **data)
    write_job(os.path.join(folder, "job.yaml"), case)

    model = case["model"]()
    initialise(model, seed, case.get("quiet"))
    model.train()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    example = tuple(torch.from_numpy(data[column][:case["microbatch"]]) for column in case["inputs"].values())
    for variant in case["variants"]:
        file = "model.onnx.gz" if variant == "dynamic" else f"model_{variant}.onnx.gz"
        proto = export(model, case, example, os.path.join(folder, file), variant == "dynamic")
        exported = {t.name for t in proto.graph.initializer if t.data_type == onnx.TensorProto.FLOAT}
        if not exported >= {k for k, v in state.items() if v.is_floating_point()}:
            raise SystemExit(f"{name}: the export renamed or dropped initializers")
        if variant == "dynamic":
            dynamic = proto

    adapters = Adapters(model, case, seed) if "adapters" in case else None
    if adapters:
        start = {k: ("F32", v.shape, v.numpy().tobytes()) for k, v in adapters.start.items()}
        with open(os.path.join(folder, "start.safetensors"), "wb") as f:
            f.write(tensor_file.packed(start))
    losses, norms, tensors, metrics = train_module(case["model"], state, case, data, torch.float64, adapters=adapters)
    losses_f32, norms_f32, tensors_f32, _ = train_module(case["model"], state, case, data, torch.float32, adapters=adapters)
    gaps = {k: gap(tensors_f32[k], tensors[k]) for k in tensors}
    arrays = metrics | {"losses": losses, "gradient_norm": norms, "losses_f32": losses_f32, "gradient_norm_f32": norms_f32}
    for k, v in tensors.items():
        if k != "mask":
            if case.get("sketch"):  # in one array and as float32: there are many, and small
                arrays["sketch/" + k] = np.append(gaps[k], sketch(v)).astype(np.float32)
            else:
                arrays[k] = v.astype(np.float32)
                arrays["gap_f32/" + k] = np.float64(gaps[k])
    np.savez_compressed(os.path.join(folder, "reference.npz"), **arrays)
    worst = max(gaps, key=gaps.get)
    size = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))
    print(f"{name}: loss {losses[0]:.4f} to {losses[-1]:.4f}, gradient norm {norms.min():.3g} to {norms.max():.3g}, "
          f"{sum(v.numel() for v in model.parameters())} parameters, {size} bytes")
    print(f"  float32 to float64: loss {np.max(np.abs(losses_f32 - losses) / losses):.2g}, "
          f"worst tensor {gaps[worst]:.2g} ({worst})")
    if check and adapters:
        print("  the exported graph alone has no adapters")
    elif check and any(isinstance(m, nn.BatchNorm2d) and is_frozen(case, n + ".weight") for n, m in model.named_modules()):
        print("  the exported graph alone does not say which layers are frozen")
    elif check:
        names = [n for n, _ in model.named_parameters()]
        graph_losses, _, graph_tensors = train_graph(dynamic, names, case, data)
        between = {k: gap(graph_tensors[k], tensors[k]) for k in tensors}
        worst = max(between, key=between.get)
        print(f"  exported graph to module, float64: loss {np.max(np.abs(graph_losses - losses) / losses):.2g}, "
              f"worst tensor {between[worst]:.2g} ({worst})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Makes the training references of target L1.")
    names = list(CASES) + list(architectures.cases(images, text, False))
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(names) + "; all when none is given")
    parser.add_argument("--output", default=HERE, help="folder for the case folders (default: beside this script)")
    parser.add_argument("--seed", type=int, default=1, help="of the weights and the data")
    parser.add_argument("--full", action="store_true", help="architectures at their real widths; not to be committed")
    parser.add_argument("--check", action="store_true", help="also train the exported graph node by node")
    options = parser.parse_args()
    torch.set_num_threads(1)
    all_cases = CASES | architectures.cases(images, text, options.full)
    for name in options.cases or all_cases:
        make(name, all_cases[name], os.path.join(options.output, name), options.seed, options.check)
