"""The models that are timed, without their weights: a bundle holds graphs, the machine with the GPU draws the weights.

pack_graphs() writes, by workload, model.onnx whose parameters are external data, drawing.json that says how to draw them,
and job.yaml. draw_all() writes the weights and the data by seed. Both trainers then read the same files, whatever
generator PyTorch has there.
"""
import json
import os
import sys

SEED = 20261
BATCHES = 3         # of the largest batch
LARGEST_BATCH = 8   # times that of target S1


def workloads(folder):
    """bench/train_step/models.py's, which needs PyTorch; as pack wrote them, which needs nothing."""
    with open(os.path.join(folder, "workloads.json")) as f:
        return json.load(f)


# ---- where the bundle is made ----------------------------------------------------------------------------------------

def pack_graphs(bench, folder):
    """`bench`: the folder of export.py and models.py."""
    sys.path.insert(0, bench)
    import export
    import models
    for name in models.WORKLOADS:
        target = os.path.join(folder, name)
        os.makedirs(target, exist_ok=True)
        export.export(name, target)
        os.remove(os.path.join(target, "data.npz"))
        _take_weights_out(os.path.join(target, "model.onnx"), models.make_model(name), os.path.join(target, "drawing.json"))
    with open(os.path.join(folder, "workloads.json"), "w") as f:
        json.dump(models.WORKLOADS, f, indent=1)


def _take_weights_out(path, model, drawing):
    import onnx
    from onnx import numpy_helper
    proto = onnx.load(path)
    parameters, plan, offset = {n for n, _ in model.named_parameters()}, [], 0
    for t in proto.graph.initializer:
        if t.name not in parameters:
            continue  # running statistics and masks are small, or all alike
        values = numpy_helper.to_array(t)
        plan.append({"name": t.name, "shape": list(values.shape), "offset": offset, "mean": float(values.mean()),
                     "deviation": float(values.std())})
        t.ClearField("raw_data")
        t.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", "weights.bin"), ("offset", str(offset)), ("length", str(values.nbytes))):
            entry = t.external_data.add()
            entry.key, entry.value = key, value
        offset += values.nbytes
    if {p["name"] for p in plan} != parameters:
        raise SystemExit(f"{path}: not every parameter kept its name")
    onnx.save(proto, path)
    with open(drawing, "w") as f:
        json.dump({"bytes": offset, "tensors": plan}, f)


# ---- where the GPU is ------------------------------------------------------------------------------------------------

def draw_all(folder, name, workload):
    import numpy as np
    with open(os.path.join(folder, name, "drawing.json")) as f:
        plan = json.load(f)
    path = os.path.join(folder, name, "weights.bin")
    if not os.path.exists(path):
        with open(path + ".partial", "wb") as f:
            for number, t in enumerate(plan["tensors"]):
                rng = np.random.Generator(np.random.PCG64([SEED, number]))
                values = rng.standard_normal(t["shape"], np.float32) * np.float32(t["deviation"]) + np.float32(t["mean"])
                f.write(values.astype("<f4").tobytes())
        os.replace(path + ".partial", path)
    path = os.path.join(folder, name, "data.npz")
    if not os.path.exists(path):
        np.savez(path, **_draw_data(np, workload))


def _draw_data(np, workload):
    rng = np.random.Generator(np.random.PCG64(SEED))
    samples = workload["batch"] * LARGEST_BATCH * BATCHES
    if "gpt" in workload:
        text = rng.integers(0, workload["gpt"]["vocabulary"], (samples, workload["length"] + 1))
        return {"tokens": text[:, :-1].copy(), "targets": text[:, 1:].copy()}
    return {"image": rng.standard_normal((samples, 3, 224, 224), np.float32), "label": rng.integers(0, 1000, samples)}


def read_weights(folder, name):
    """By name, arrays over the file."""
    import numpy as np
    with open(os.path.join(folder, name, "drawing.json")) as f:
        plan = json.load(f)
    values = np.memmap(os.path.join(folder, name, "weights.bin"), "<f4", "r")
    found = {}
    for t in plan["tensors"]:
        count = int(np.prod(t["shape"]))
        found[t["name"]] = values[t["offset"] // 4:t["offset"] // 4 + count].reshape(t["shape"])
    return found


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: graphs.py BENCH_FOLDER OUTPUT_FOLDER")
    pack_graphs(sys.argv[1], sys.argv[2])
