#!/usr/bin/env python3
"""Writes the models that the plans of this folder are made for: as ONNX files without their weights, for a plan needs
none. A file says what each weight is called and how large it is, and that its bytes lie in a file beside it, which is
never written. No file takes more than a MiB or two. The exporter runs each model once: GPT-2 XL wants 14 GiB and some minutes.

    python3 models.py FOLDER [NAME...]      needs PyTorch (1.13 or later), torchvision and onnx
"""
import math
import pathlib
import sys

import onnx
import torch
from torch import nn
import torch.nn.functional as F
from torchvision.models import resnet101


class Attention(nn.Module):
    def __init__(self, width, heads, causal, length):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        if causal:
            self.register_buffer("mask", torch.ones(1, 1, length, length, dtype=torch.bool).triu(1))

    def forward(self, x):
        width, length = x.shape[2], x.shape[1]
        q, k, v = (part.reshape(-1, length, self.heads, width // self.heads).transpose(1, 2)
                   for part in self.qkv(x).split(width, 2))
        scores = q @ k.transpose(2, 3) * (1 / math.sqrt(width // self.heads))
        if self.causal:
            scores = scores.masked_fill(self.mask, float("-inf"))
        return self.out((F.softmax(scores, 3) @ v).transpose(1, 2).reshape(-1, length, width))


class Block(nn.Module):
    """Before: norms lie before attention and the hidden layer, as GPT-2 has it; else after them, as BERT has it."""

    def __init__(self, width, heads, causal, length, before):
        super().__init__()
        self.before = before
        self.attention = Attention(width, heads, causal, length)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        hidden = lambda y: self.down(F.gelu(self.up(y)))
        if self.before:
            x = x + self.attention(self.norm1(x))
            return x + hidden(self.norm2(x))
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + hidden(x))


class Transformer(nn.Module):
    """Logits over the vocabulary for every token; the head's weights are the embedding's."""

    def __init__(self, layers, width, heads, length, vocabulary, causal):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(1, length, width))
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(width, heads, causal, length, before=causal) for _ in range(layers))
        self.causal = causal

    def forward(self, tokens):
        x = self.embedding(tokens) + self.position
        if not self.causal:
            x = self.norm(x)
        for block in self.blocks:
            x = block(x)
        if self.causal:
            x = self.norm(x)
        return F.linear(x, self.embedding.weight)


def tokens(length):
    return torch.zeros(1, length, dtype=torch.int64)


MODELS = {  # name: what makes the model, its input's name, an input
    "bert-large": (lambda: Transformer(24, 1024, 16, 512, 30522, causal=False), "tokens", tokens(512)),
    "gpt-1.3b": (lambda: Transformer(24, 2048, 16, 1024, 50257, causal=True), "tokens", tokens(1024)),
    "gpt2-xl": (lambda: Transformer(48, 1600, 25, 1024, 50257, causal=True), "tokens", tokens(1024)),
    "resnet101": (resnet101, "image", torch.zeros(1, 3, 224, 224)),
}


def leave_weights_out(path, input_name, sizes):
    """The exporter made the weights inputs: they become initializers whose bytes lie in a file that is not there."""
    model = onnx.load(path)
    kept, offset = [], 0
    for value in model.graph.input:
        if value.name == input_name:
            kept.append(value)
            continue
        tensor = onnx.TensorProto(name=value.name,
                                  data_type=value.type.tensor_type.elem_type,
                                  dims=[dim.dim_value for dim in value.type.tensor_type.shape.dim],
                                  data_location=onnx.TensorProto.EXTERNAL)
        size = sizes[value.name]
        for key, entry in (("location", path.stem + ".weights"), ("offset", offset), ("length", size)):
            tensor.external_data.add(key=key, value=str(entry))
        offset += size
        model.graph.initializer.append(tensor)
    del model.graph.input[:]
    model.graph.input.extend(kept)
    onnx.save(model, path)


def write(name, folder):
    make, input_name, example = MODELS[name]
    model = make().train().requires_grad_(False)
    path = folder / f"{name}.onnx"
    torch.onnx.export(model, (example,), str(path), input_names=[input_name], output_names=["logits"],
                      dynamic_axes={input_name: {0: "batch"}}, export_params=False, do_constant_folding=False,
                      training=torch.onnx.TrainingMode.TRAINING, opset_version=15)
    sizes = {key: value.numel() * value.element_size() for key, value in model.state_dict().items()}
    leave_weights_out(path, input_name, sizes)
    print(f"{path}: {sum(sizes.values()) / 2**20:.0f} MiB of weights left out")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or MODELS:
        write(name, folder)


if __name__ == "__main__":
    main()
