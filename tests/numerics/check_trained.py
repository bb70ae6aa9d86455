#!/usr/bin/python3
"""Checks what a training run wrote against the file that was submitted, without weft.

    check_trained.py SUBMITTED.onnx TRAINED.onnx INFERENCE.onnx [--frozen GLOB ...] [--samples FILE.npz ...] [--rename x=image ...]

It asserts that
- all three are valid ONNX, and TRAINED is SUBMITTED byte for byte in everything but the values of float initializers;
- initializers that match --frozen kept their values, and at least one other changed;
- INFERENCE has no training-mode BatchNormalization and no active Dropout, has the same inputs and outputs, and
  carries the trained values under the same names;
- on ten samples, INFERENCE predicts what TRAINED predicts in inference mode, and, where --samples holds weft's own
  predictions, what weft predicts, within --tolerance.

--samples: npz files that hold, under the names of the graph's inputs, samples, and under the names of its outputs,
what `weft predict` wrote for them. --rename graph_input=array says where an input goes by another name. Without
inputs, random samples take their place. Exit status 0: all holds; 1: something does not, and it says what.
"""
import argparse
import copy
import fnmatch
import sys

import numpy as np
import onnx
from onnx import numpy_helper
import torch

import onnx_torch

FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
VALUES = ("raw_data", "float_data", "double_data", "int32_data", "external_data", "data_location")


def require(condition, message):
    if not condition:
        sys.exit(f"check_trained: {message}")


def blank(model):
    """A copy without the values of float initializers."""
    model = copy.deepcopy(model)
    for t in model.graph.initializer:
        if t.data_type in FLOATS:
            for field in VALUES:
                t.ClearField(field)
    return model


def values(model):
    return {t.name: np.array(numpy_helper.to_array(t)) for t in model.graph.initializer}


def same(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def first_difference(a, b):
    for field in ("ir_version", "opset_import", "producer_name", "producer_version", "domain", "model_version", "doc_string",
                  "metadata_props", "functions", "training_info"):
        if getattr(a, field) != getattr(b, field):
            return field
    for field in ("name", "doc_string", "input", "output", "value_info", "quantization_annotation", "sparse_initializer"):
        if getattr(a.graph, field) != getattr(b.graph, field):
            return "graph." + field
    for kind in ("node", "initializer"):
        xs, ys = getattr(a.graph, kind), getattr(b.graph, kind)
        if len(xs) != len(ys):
            return f"{len(xs)} against {len(ys)} of graph.{kind}"
        for x, y in zip(xs, ys):
            if x != y:
                return f"graph.{kind} {x.name or x.op_type}"
    return "the encoding"


def check_only_initializers(submitted, trained, frozen):
    a, b = blank(submitted), blank(trained)
    # Comparing messages first: files may lawfully differ in how they encode the same message.
    require(a == b, f"the trained file differs from the submitted one in {first_difference(a, b)}")
    before, after = values(submitted), values(trained)
    changed = 0
    for name in before:
        kept = same(before[name], after[name])
        if any(fnmatch.fnmatchcase(name, g) for g in frozen):
            require(kept, f"frozen initializer {name} changed")
        elif not kept:
            changed += 1
            require(np.isfinite(after[name]).all() or not np.isfinite(before[name]).all(), f"{name} is not finite")
    require(changed > 0, "no initializer changed: nothing was trained")
    return changed, len(before)


def check_twin(trained, inference):
    def signature(values):
        # Outputs of shape inference need not match in their dimension names, but name, type and rank must.
        return [(v.name, v.type.tensor_type.elem_type, len(v.type.tensor_type.shape.dim)) for v in values]

    require(signature(trained.graph.input) == signature(inference.graph.input), "the inference twin has other inputs")
    require(signature(trained.graph.output) == signature(inference.graph.output), "the inference twin has other outputs")
    opset = next(o.version for o in inference.opset_import if o.domain in ("", "ai.onnx"))
    constants = {n.output[0]: numpy_helper.to_array(a.t) for n in inference.graph.node if n.op_type == "Constant"
                 for a in n.attribute if a.name == "value"}
    constants.update({t.name: numpy_helper.to_array(t) for t in inference.graph.initializer})
    for node in inference.graph.node:
        label = f"{node.op_type} {node.name or node.output[0]} of the inference twin"
        if node.op_type == "BatchNormalization":
            mode = [a.i for a in node.attribute if a.name == "training_mode"]
            require(not any(mode), f"{label} is in training mode")
            require(len([o for o in node.output if o]) == 1, f"{label} has more than one output")
        if node.op_type == "Dropout" and opset >= 12 and len(node.input) > 2 and node.input[2]:
            flag = constants.get(node.input[2])
            require(flag is not None and not bool(flag), f"{label} drops")
    a, b = values(trained), values(inference)
    missing = [n for n in b if n in a and not same(a[n], b[n])]
    require(not missing, f"initializer {missing[:1]} of the inference twin is not the trained one")
    used = {i for n in inference.graph.node for i in n.input}
    lost = [n for n in a if n not in b and n in used]
    require(not lost, f"initializer {lost[:1]} is missing from the inference twin")


def first_samples(trained, files, rename, count):
    """Inputs by name: from the files, or random ones of the declared shape."""
    arrays = {}
    for file in files:
        with np.load(file) as archive:
            arrays.update({k: archive[k] for k in archive.files})
    graph_inputs = [v for v in trained.graph.input if v.name not in values(trained)]
    dims = graph_inputs[0].type.tensor_type.shape.dim
    fixed = dims[0].dim_value if dims and dims[0].HasField("dim_value") else 0
    rng = np.random.default_rng(0)
    inputs, random = {}, False
    for v in graph_inputs:
        name = rename.get(v.name, v.name)
        if name in arrays:
            inputs[v.name] = arrays[name][:count]
            continue
        random = True
        shape = [count] + [d.dim_value or 1 for d in v.type.tensor_type.shape.dim[1:]]
        if v.type.tensor_type.elem_type in FLOATS:
            inputs[v.name] = rng.standard_normal(shape).astype(np.float32)
        else:
            inputs[v.name] = rng.integers(0, 8, shape)
    expected = {} if random else {o.name: arrays[o.name][:count] for o in trained.graph.output if o.name in arrays}
    return inputs, expected, fixed


def predict(model, inputs, fixed):
    """Runs the graph in float64 in inference mode, by pieces where the file fixes the batch."""
    graph = onnx_torch.Graph(model, torch.float64, training=False)
    weights = onnx_torch.initializers(model, torch.float64)
    count = len(next(iter(inputs.values())))
    piece = fixed or count
    results = {}
    with torch.no_grad():
        for start in range(0, count, piece):
            feed = {}
            for name, array in inputs.items():
                part = array[start:start + piece]
                if len(part) < piece:  # the last piece is padded with its own last sample
                    part = np.concatenate([part] + [part[-1:]] * (piece - len(part)))
                t = torch.from_numpy(np.ascontiguousarray(part))
                feed[name] = t.double() if t.is_floating_point() else t
            outputs, _ = graph.run(feed, weights)
            for name, value in outputs.items():
                results.setdefault(name, []).append(value.numpy()[:count - start])
    return {name: np.concatenate(parts) for name, parts in results.items()}


def distance(a, b):
    """Largest difference, relative to values above one and absolute below."""
    return float(np.max(np.abs(a - b) / np.maximum(1.0, np.abs(b))))


def main():
    parser = argparse.ArgumentParser(description="Checks a trained file and its inference twin.")
    parser.add_argument("submitted")
    parser.add_argument("trained")
    parser.add_argument("inference")
    parser.add_argument("--frozen", nargs="*", default=[], help="names that must not have changed")
    parser.add_argument("--samples", nargs="*", default=[], help="npz files with inputs and weft's predictions")
    parser.add_argument("--rename", nargs="*", default=[], help="graph_input=array")
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--tolerance", type=float, default=1e-4)
    options = parser.parse_args()
    torch.set_num_threads(1)

    submitted, trained, inference = (onnx_torch.load(p) for p in (options.submitted, options.trained, options.inference))
    for path, model in ((options.submitted, submitted), (options.trained, trained), (options.inference, inference)):
        try:
            onnx.checker.check_model(model)
        except onnx.checker.ValidationError as error:
            require(False, f"{path} is not valid ONNX: {error}")
    changed, total = check_only_initializers(submitted, trained, options.frozen)
    check_twin(trained, inference)

    rename = dict(r.split("=", 1) for r in options.rename)
    inputs, expected, fixed = first_samples(trained, options.samples, rename, options.count)
    from_trained, from_twin = predict(trained, inputs, fixed), predict(inference, inputs, fixed)
    twin = max(distance(from_twin[n], from_trained[n]) for n in from_trained)
    require(twin <= options.tolerance, f"the inference twin predicts otherwise than the trained file: {twin:.3g}")
    report = f"{changed} of {total} initializers changed and nothing else; twin to trained {twin:.2g}"
    if options.samples and not expected:
        require(False, f"--samples holds no inputs {list(inputs)} or no outputs {list(from_twin)}")
    if expected:
        for name, array in expected.items():
            require(array.shape == from_twin[name].shape, f"output {name} has shape {array.shape}, not {from_twin[name].shape}")
        weft = max(distance(array.astype(np.float64), from_twin[name]) for name, array in expected.items())
        require(weft <= options.tolerance, f"weft predicts otherwise than the inference twin: {weft:.3g}")
        report += f"; weft to twin {weft:.2g}"
    print(report)


if __name__ == "__main__":
    main()
