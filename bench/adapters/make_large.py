#!/usr/bin/python3
"""Writes a decoder as large as those that people fine-tune, with random weights of four bits, and a job of adapters.

    make_large.py FOLDER [--layers 32] [--width 4096] [--inner 11008] [--heads 32] [--vocabulary 32000]
        [--length 128] [--steps 1] [--rank 8]

FOLDER gets model.onnx with model.onnx.data beside it, corpus.txt and lora.yaml. Matrices are int4 in blocks of 128
with a scale in float16, as DequantizeLinear has them: 6.7 B parameters take 3.5 GB. Needs Python alone.
"""
import os
import pathlib
import random
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from make_gpt import FLOAT, INT64, Model, arguments, number, piece, varint, write_corpus

INT4, FLOAT16, BLOCK = 22, 10, 128
EXTERNAL = 1


class LargeModel(Model):
    """Its matrices lie in a file beside it."""

    def __init__(self, data):
        super().__init__(is_published=False)
        self.data, self.offset = data, 0
        self.draws = random.Random(3)

    def outside(self, name, dims, dtype, size, block=None):
        """Of equal blocks, or of drawn bytes."""
        pad = -self.offset % 64
        self.data.write(b"\0" * pad)
        self.offset += pad
        for begin in range(0, size, 1 << 22):
            count = min(1 << 22, size - begin)
            self.data.write(self.draws.randbytes(count) if block is None else (block * (1 << 22))[:count])
        places = {"location": "model.onnx.data", "offset": str(self.offset), "length": str(size)}
        self.offset += size
        entries = b"".join(piece(13, piece(1, k) + piece(2, v)) for k, v in places.items())
        self.initializers.append(b"".join(number(1, d) for d in dims) + number(2, dtype) + piece(8, name) + entries +
                                 number(14, EXTERNAL))
        return name

    def matrix(self, name, rows, columns, axis=0):
        """Blocks along `axis`: along what is added up, or along a table's rows."""
        scales = (rows // BLOCK, columns) if axis == 0 else (rows, columns // BLOCK)
        numbers = self.outside(name + ".int4", (rows, columns), INT4, rows * columns // 2)
        scale = self.outside(name + ".scale", scales, FLOAT16, 2 * scales[0] * scales[1],
                             struct.pack("<e", 0.004))
        return self.node("DequantizeLinear", [numbers, scale], name + ".wide", [name], axis=axis, block_size=BLOCK,
                         output_dtype=FLOAT)

    def product(self, x, name, rows, columns):
        return self.node("MatMul", [x, self.matrix(name + ".weight", rows, columns)], name)

    def rms_norm(self, x, name, width):
        return self.node("RMSNormalization", [x, self.weight(name + ".weight", width, fill=1.0)], name, axis=-1,
                         epsilon=1e-5)

    def write(self, path, inputs, outputs):
        graph = b"".join(piece(1, n) for n in self.nodes) + piece(2, "large")
        graph += b"".join(piece(5, i) for i in self.initializers)
        graph += b"".join(piece(11, i) for i in inputs) + b"".join(piece(12, o) for o in outputs)
        with open(path, "wb") as file:
            file.write(number(1, 11) + piece(2, "make_large") + piece(8, piece(1, "") + number(2, 23)))
            file.write(varint(7 << 3 | 2) + varint(len(graph)) + graph)


def attention(m, x, name, o):
    def by_head(letter, perm):
        projected = m.product(x, f"{name}.{letter}_proj", o.width, o.width)
        heads = m.node("Reshape", [projected, "by_head"], f"{name}.heads_{letter}")
        return m.node("Transpose", [heads], f"{name}.first_{letter}", perm=perm)

    q, k, v = by_head("q", (0, 2, 1, 3)), by_head("k", (0, 2, 3, 1)), by_head("v", (0, 2, 1, 3))
    scores = m.node("Mul", [m.node("MatMul", [q, k], name + ".scores"), "scale"], name + ".scaled")
    weights = m.node("Softmax", [m.node("Add", [scores, "mask"], name + ".masked")], name + ".softmax", axis=-1)
    mixed = m.node("Transpose", [m.node("MatMul", [weights, v], name + ".mixed")], name + ".back", perm=(0, 2, 1, 3))
    return m.product(m.node("Reshape", [mixed, "whole"], name + ".joined"), name + ".o_proj", o.width, o.width)


def feed_forward(m, x, name, o):
    gate = m.product(x, name + ".gate_proj", o.width, o.inner)
    gate = m.node("Mul", [gate, m.node("Sigmoid", [gate], name + ".sigmoid")], name + ".silu")
    up = m.product(x, name + ".up_proj", o.width, o.inner)
    return m.product(m.node("Mul", [gate, up], name + ".gated"), name + ".down_proj", o.inner, o.width)


def make_model(folder, o):
    with open(os.path.join(folder, "model.onnx.data"), "wb") as data:
        m = LargeModel(data)
        m.integers("by_head", [0, o.length, o.heads, o.width // o.heads])
        m.integers("whole", [0, o.length, o.width])
        m.initializer("scale", [], FLOAT, struct.pack("<f", (o.width // o.heads) ** -0.5))
        rows = (struct.pack(f"<{o.length}f", *([0.0] * (t + 1) + [-1e9] * (o.length - t - 1)))
                for t in range(o.length))
        m.initializer("mask", [1, 1, o.length, o.length], FLOAT, b"".join(rows))
        x = m.node("Gather", [m.matrix("model.embed_tokens.weight", o.vocabulary, o.width, axis=1), "tokens"],
                   "model.embed_tokens")
        for layer in range(o.layers):
            name = f"model.layers.{layer}"
            a = attention(m, m.rms_norm(x, name + ".input_layernorm", o.width), name + ".self_attn", o)
            x = m.node("Add", [x, a], name + ".add_1")
            f = feed_forward(m, m.rms_norm(x, name + ".post_attention_layernorm", o.width), name + ".mlp", o)
            x = m.node("Add", [x, f], name + ".add_2")
        x = m.rms_norm(x, "model.norm", o.width)
        m.node("MatMul", [x, m.matrix("lm_head.weight", o.width, o.vocabulary)], "lm_head", ["logits"])
        m.write(os.path.join(folder, "model.onnx"), [m.port("tokens", INT64, "batch", o.length)],
                [m.port("logits", FLOAT, "batch", o.length, o.vocabulary)])


JOB = """model: model.onnx
task: train
inputs: {{tokens: tokens}}
loss: {{type: cross_entropy, logits: logits, labels: targets}}
data: {{train: {{type: text, path: corpus.txt, sequence_length: {length}}}}}
batch_size: 1
steps: {steps}
optimizer: {{type: adamw, learning_rate: 1e-4}}
adapters: {{type: lora, rank: {rank}, targets: ["*.q_proj.weight", "*.v_proj.weight"]}}
output: trained.onnx
"""


def main():
    o = arguments(__doc__, layers=32, width=4096, inner=11008, heads=32, vocabulary=32000, length=128, steps=1, rank=8)
    make_model(o.folder, o)
    write_corpus(o.folder, 8 * o.length)
    with open(os.path.join(o.folder, "lora.yaml"), "w", encoding="utf-8") as file:
        file.write(JOB.format(length=o.length, steps=o.steps, rank=o.rank))


if __name__ == "__main__":
    main()
