#!/usr/bin/python3
"""Writes what bench/serve compares: FOLDER/window.onnx (the whole window) and FOLDER/cached.onnx (with a cache).

    /usr/bin/python3 export.py FOLDER [gpt2-small | tiny]
"""
import os
import sys
import warnings

import torch

from cached_models import SIZES, WithCache, make_model


def main():
    folder, name = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "gpt2-small"
    torch.set_num_threads(1)
    os.makedirs(folder, exist_ok=True)
    sizes, model = SIZES[name], make_model(name)
    tokens = torch.zeros(1, sizes["positions"], dtype=torch.int64)
    heads, head_width = sizes["heads"], sizes["width"] // sizes["heads"]
    past = [torch.zeros(1, heads, 3, head_width) for _ in range(2 * sizes["layers"])]
    names = [f"past.{i}" for i in range(len(past))]
    cached = WithCache(model).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Nothing is folded: the file keeps its parameters as they are.
        torch.onnx.export(model, tokens, os.path.join(folder, "window.onnx"), input_names=["tokens"],
                          output_names=["logits"], training=torch.onnx.TrainingMode.TRAINING,
                          do_constant_folding=False, opset_version=17)
        torch.onnx.export(cached, (tokens[:, :1], torch.tensor([[3]]), *past), os.path.join(folder, "cached.onnx"),
                          input_names=["tokens", "positions", *names],
                          output_names=["logits", *(f"present.{i}" for i in range(len(past)))],
                          dynamic_axes={**{n: {2: "past"} for n in names},
                                        **{f"present.{i}": {2: "all"} for i in range(len(past))}},
                          opset_version=17)


if __name__ == "__main__":
    main()
