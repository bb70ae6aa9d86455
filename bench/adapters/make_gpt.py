#!/usr/bin/python3
"""Writes a GPT-2 with random weights as ONNX, a corpus, and two jobs: all of it trained, and adapters beside it.

    make_gpt.py FOLDER [--layers 12] [--width 768] [--heads 12] [--vocabulary 50257] [--length 128]
        [--batch 2] [--steps 12] [--rank 8] [--published] [--cut]

FOLDER gets model.onnx, corpus.txt, full.yaml and lora.yaml. With --published its weights are numbers of bfloat16,
and published/model.safetensors has them as such, matrices of linear layers the other way round, as a hub has them
beside an export. With --cut the model has queries, keys and values as three matrices, as some exporters
write them, and published/ has the one that they are cut out of. Names are those of the library transformers. Needs
Python alone. The weights repeat a block of draws: only their sizes matter to what is measured.
"""
import argparse
import array
import os
import pathlib
import random
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests/e2e"))
import tensor_file

FLOAT, INT64 = 1, 7


def varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field, value):
    return varint(field << 3) + varint(value)


def piece(field, data):
    data = data.encode() if isinstance(data, str) else data
    return varint(field << 3 | 2) + varint(len(data)) + data


class Model:
    """A graph, one node after the other."""

    def __init__(self, is_published):
        draws = random.Random(1)
        self.block = array.array("f", (draws.gauss(0, 0.02) for _ in range(1 << 16)))
        if is_published:
            bits = array.array("I", self.block.tobytes())
            self.block = array.array("f", array.array("I", (b & 0xFFFF0000 for b in bits)).tobytes())
        self.nodes, self.initializers = [], []
        self.published = {} if is_published else None  # as tensor_file.packed() takes them

    def initializer(self, name, dims, dtype, raw):
        self.initializers.append(b"".join(number(1, d) for d in dims) + number(2, dtype) + piece(8, name) +
                                 piece(9, raw))
        return name

    def raw(self, name, dims, fill):
        count = 1
        for d in dims:
            count *= d
        if fill is not None:
            raw = struct.pack("<f", fill) * count
        else:
            block = self.block.tobytes()
            shift = 4 * (len(self.initializers) * 977 % len(self.block))
            raw = ((block[shift:] + block[:shift]) * (count // len(self.block) + 1))[:4 * count]
        if self.published is not None:
            tensor = tensor_file.halved(("F32", list(dims), raw))
            is_table = name.endswith("e.weight")
            self.published[name] = tensor if is_table else tensor_file.transposed(tensor)
        return raw

    def weight(self, name, *dims, fill=None):
        return self.initializer(name, dims, FLOAT, self.raw(name, dims, fill))

    def integers(self, name, values):
        return self.initializer(name, [len(values)], INT64, struct.pack(f"<{len(values)}q", *values))

    def node(self, op, inputs, name, outputs=None, **attributes):
        encoded = b"".join(piece(1, i) for i in inputs)
        outputs = outputs or [name + "_out"]
        encoded += b"".join(piece(2, o) for o in outputs) + piece(3, name) + piece(4, op)
        for key, value in attributes.items():
            body = piece(1, key)
            if isinstance(value, int):
                body += number(3, value) + number(20, 2)
            elif isinstance(value, float):
                body += varint(2 << 3 | 5) + struct.pack("<f", value) + number(20, 1)
            elif isinstance(value, str):
                body += piece(4, value) + number(20, 3)
            else:
                body += b"".join(number(8, v) for v in value) + number(20, 7)
            encoded += piece(5, body)
        self.nodes.append(encoded)
        return outputs[0] if len(outputs) == 1 else outputs

    def linear(self, x, name, rows, columns):
        y = self.node("MatMul", [x, self.weight(name + ".weight", rows, columns)], name)
        return self.node("Add", [y, self.weight(name + ".bias", columns, fill=0.0)], name + ".add")

    def cut_linear(self, x, name, rows, columns, parts):
        """What `linear` gives in parts, each by as many columns of the matrix."""
        numbers = array.array("f", self.raw(name + ".weight", [rows, columns], None))
        each, outputs = columns // len(parts), []
        for i, part in enumerate(parts):
            begins = range(i * each, rows * columns, columns)
            cut = b"".join(numbers[begin:begin + each].tobytes() for begin in begins)
            weight = self.initializer(f"{name}.{part}.weight", [rows, each], FLOAT, cut)
            y = self.node("MatMul", [x, weight], f"{name}.{part}")
            bias = self.weight(f"{name}.{part}.bias", each, fill=0.0)
            outputs.append(self.node("Add", [y, bias], f"{name}.{part}.add"))
        return outputs

    def norm(self, x, name, width):
        inputs = [x, self.weight(name + ".weight", width, fill=1.0), self.weight(name + ".bias", width, fill=0.0)]
        return self.node("LayerNormalization", inputs, name, axis=-1, epsilon=1e-5)

    @staticmethod
    def port(name, dtype, *dims):
        shape = b"".join(piece(1, piece(2, d) if isinstance(d, str) else number(1, d)) for d in dims)
        return piece(1, name) + piece(2, piece(1, number(1, dtype) + piece(2, shape)))

    def write(self, path, inputs, outputs):
        graph = b"".join(piece(1, n) for n in self.nodes) + piece(2, "gpt2")
        graph += b"".join(piece(5, i) for i in self.initializers)
        graph += b"".join(piece(11, i) for i in inputs) + b"".join(piece(12, o) for o in outputs)
        opset = piece(8, piece(1, "") + number(2, 20))
        with open(path, "wb") as file:
            file.write(number(1, 9) + piece(2, "make_gpt") + opset)
            file.write(varint(7 << 3 | 2) + varint(len(graph)) + graph)


def attention(m, x, name, width, is_cut):
    if is_cut:
        parts = m.cut_linear(x, name + ".c_attn", width, 3 * width, "qkv")
    else:
        qkv = m.linear(x, name + ".c_attn", width, 3 * width)
        parts = m.node("Split", [qkv, "thirds"], name + ".split", [f"{name}.{p}" for p in "qkv"], axis=2)
    heads_of = [m.node("Reshape", [part, "by_head"], f"{name}.heads_{p}") for part, p in zip(parts, "qkv")]
    q, k, v = (m.node("Transpose", [h], f"{name}.first_{p}", perm=(0, 2, 3, 1) if p == "k" else (0, 2, 1, 3))
               for h, p in zip(heads_of, "qkv"))
    scores = m.node("Mul", [m.node("MatMul", [q, k], name + ".scores"), "scale"], name + ".scaled")
    weights = m.node("Softmax", [m.node("Add", [scores, "mask"], name + ".masked")], name + ".softmax", axis=-1)
    mixed = m.node("Transpose", [m.node("MatMul", [weights, v], name + ".mixed")], name + ".back",
                   perm=(0, 2, 1, 3))
    return m.linear(m.node("Reshape", [mixed, "whole"], name + ".joined"), name + ".c_proj", width, width)


def make_model(path, o):
    m = Model(o.published)
    m.integers("thirds", [o.width] * 3)
    m.integers("by_head", [0, o.length, o.heads, o.width // o.heads])
    m.integers("whole", [0, o.length, o.width])
    m.integers("positions", list(range(o.length)))
    m.initializer("scale", [], FLOAT, struct.pack("<f", (o.width // o.heads) ** -0.5))
    rows = (struct.pack(f"<{o.length}f", *([0.0] * (t + 1) + [-1e9] * (o.length - t - 1))) for t in range(o.length))
    m.initializer("mask", [1, 1, o.length, o.length], FLOAT, b"".join(rows))
    wte = m.weight("transformer.wte.weight", o.vocabulary, o.width)
    wpe = m.weight("transformer.wpe.weight", max(1024, o.length), o.width)
    x = m.node("Add", [m.node("Gather", [wte, "tokens"], "transformer.wte"),
                       m.node("Gather", [wpe, "positions"], "transformer.wpe")], "transformer.embed")
    for layer in range(o.layers):
        name = f"transformer.h.{layer}"
        a = attention(m, m.norm(x, name + ".ln_1", o.width), name + ".attn", o.width, o.cut)
        x = m.node("Add", [x, a], name + ".add_1")
        h = m.linear(m.norm(x, name + ".ln_2", o.width), name + ".mlp.c_fc", o.width, 4 * o.width)
        h = m.node("Gelu", [h], name + ".mlp.act", approximate="tanh")
        x = m.node("Add", [x, m.linear(h, name + ".mlp.c_proj", 4 * o.width, o.width)], name + ".add_2")
    x = m.norm(x, "transformer.ln_f", o.width)
    turned = m.node("Transpose", [wte], "lm_head.turn", perm=(1, 0))
    m.node("MatMul", [x, turned], "lm_head", ["logits"])
    m.write(path, [m.port("tokens", INT64, "batch", o.length)],
            [m.port("logits", FLOAT, "batch", o.length, o.vocabulary)])
    if o.published:
        folder = pathlib.Path(path).parent / "published"
        folder.mkdir(exist_ok=True)
        (folder / "model.safetensors").write_bytes(tensor_file.packed(m.published))


JOB = """model: model.onnx
task: train
inputs: {{tokens: tokens}}
loss: {{type: cross_entropy, logits: logits, labels: targets}}
data: {{train: {{type: text, path: corpus.txt, sequence_length: {length}}}}}
batch_size: {batch}
steps: {steps}
optimizer: {{type: adamw, learning_rate: 1e-4}}
placement: {{stages: 1}}
output: {name}.onnx
"""


def arguments(documentation, **defaults):
    """A folder, which is made, and numbers and switches by name."""
    parser = argparse.ArgumentParser(description=documentation.splitlines()[0])
    parser.add_argument("folder")
    for key, value in defaults.items():
        if isinstance(value, bool):
            parser.add_argument("--" + key, action="store_true")
        else:
            parser.add_argument("--" + key, type=int, default=value)
    options = parser.parse_args()
    os.makedirs(options.folder, exist_ok=True)
    return options


def write_corpus(folder, count):
    draws = random.Random(2)
    words = ["".join(draws.choice("etaoinshrdlu") for _ in range(draws.randint(1, 8))) for _ in range(200)]
    with open(os.path.join(folder, "corpus.txt"), "w", encoding="utf-8") as file:
        file.write(" ".join(draws.choice(words) for _ in range(count)))


def main():
    o = arguments(__doc__, layers=12, width=768, heads=12, vocabulary=50257, length=128, batch=2, steps=12, rank=8,
                  published=False, cut=False)
    make_model(os.path.join(o.folder, "model.onnx"), o)
    write_corpus(o.folder, 60 * o.length)
    full = JOB.format(name="full", **vars(o))
    target = "*.c_attn.?.weight" if o.cut else "*.c_attn.weight"
    lora = JOB.format(name="lora", **vars(o)) + (
        f'adapters: {{type: lora, rank: {o.rank}, alpha: {2 * o.rank}, targets: ["{target}"]}}\n')
    for name, job in (("full", full), ("lora", lora)):
        with open(os.path.join(o.folder, name + ".yaml"), "w", encoding="utf-8") as file:
            file.write(job)


if __name__ == "__main__":
    main()
