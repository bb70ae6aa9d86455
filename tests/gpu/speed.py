"""Target S3: a training step of weft against PyTorch's on the same card, turns A B A B, for each precision and batch."""
import contextlib
import json
import os
import queue
import re
import subprocess
import sys
import threading

import graphs
from programs import Failed, Skipped

ORDER = ["gpt-tiny", "resnet18", "gpt2-small"]
PRECISIONS = ["fp32", "tf32", "bf16"]
BATCHES = [1, 8]  # times target S1's
ROUNDS = 2
WARMUP = 5
# First losses further apart than this: the two do not train the same model on the same samples.
SAME_LOSS = {"fp32": 1e-3, "tf32": 5e-3, "bf16": 3e-2}


class Shape:
    """Of a run; on the host's shim as little as shows that everything works."""

    def __init__(self, part):
        host = part.host
        self.workloads = part.options.workloads or (["gpt-tiny"] if host else ORDER)
        self.precisions = ["fp32"] if host else PRECISIONS
        self.batches = BATCHES[:1] if host else BATCHES
        self.rounds = 1 if host else ROUNDS
        self.warmup = 1 if host else WARMUP
        self.host = host

    def batch_of(self, workload, times):
        return 1 if self.host else workload["batch"] * times

    def steps(self, seconds):
        """As many as take a second, within reason."""
        return 1 if self.host else max(10, min(60, int(1 / max(seconds, 1e-4))))


def median(values):
    values = sorted(values)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2


# ---- the two sides ---------------------------------------------------------------------------------------------------

class Torch:
    """A process that times PyTorch's steps of one workload, turn by turn."""

    def __init__(self, part, workload):
        self.part = part
        self.log = open(os.path.join(part.work, f"torch-{workload}.log"), "w+")
        self.child = part.start(
            [sys.executable, os.path.join(part.root, "py", "torch_steps.py"), os.path.join(part.root, "graphs"),
             os.path.join(part.root, "py", "train_step"), workload, part.torch_device()],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
            env=dict(part.environment, **part.torch_environment()))
        self.lines = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.child.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def turn(self, precision, batch, warmup, steps, new, compiled, seconds):
        asked = {"precision": precision, "batch": batch, "warmup": warmup, "steps": steps, "new": new, "compile": compiled}
        with contextlib.suppress(BrokenPipeError):
            self.child.stdin.write(json.dumps(asked) + "\n")
            self.child.stdin.flush()
        limit = min(seconds, self.part.time_left())
        try:
            line = self.lines.get(timeout=max(limit, 0.1))
        except queue.Empty:
            self.part.end(self.child)  # its answer would be taken for the next turn's
            raise Failed(f"PyTorch is not through after {limit:.0f} s") from None
        if line is None:
            self.log.seek(0)
            raise Failed("PyTorch ended: " + " | ".join(self.log.read().strip().splitlines()[-2:])[-300:])
        return json.loads(line)

    def close(self):
        self.part.end(self.child)
        self.log.close()


class MemoryWatch:
    """How much more of the GPU's memory is taken than before, at most, as nvidia-smi sees it: of a machine that nobody else
    uses. As `with`."""

    def __init__(self, part):
        self.part, self.child, self.readings = part, None, []

    def __enter__(self):
        if not self.part.smi:
            return self
        self.child = self.part.start([*self.part.smi, "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-lms", "100"],
                                     stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        begun = threading.Event()

        def read():
            for line in self.child.stdout:
                found = re.match(r"\s*(\d+)", line)
                if found:
                    self.readings.append(int(found[1]) << 20)
                    begun.set()

        threading.Thread(target=read, daemon=True).start()
        begun.wait(10)
        return self

    def __exit__(self, *_):
        if self.child:
            self.part.end(self.child)

    def bytes(self):
        return max(self.readings) - self.readings[0] if len(self.readings) > 1 else None


def weft_turn(part, workload, precision, batch, warmup, steps, seconds):
    folder = os.path.join(part.root, "graphs", workload)
    output = os.path.join(part.work, f"{workload}.onnx")
    command = [part.program("weft"), "local", os.path.join(folder, "job.yaml"), "--backend", part.cuda(), "--format", "json"]
    for setting in (f"steps={warmup + steps}", f"batch_size={batch}", f"precision={precision}", f"output={output}"):
        command += ["--set", setting]
    with MemoryWatch(part) as memory:
        events = part.run(command, seconds).events()
    of_steps = [e for e in events if e.get("event") == "step"]
    if len(of_steps) != warmup + steps:
        raise Failed(f"weft local printed {len(of_steps)} steps, not {warmup + steps}")
    start = next(e for e in events if e.get("event") == "start")
    return {"seconds": [e["seconds"] for e in of_steps[warmup:]], "loss": of_steps[0]["loss"],
            "planned_bytes": (start.get("persistent_bytes") or 0) + (start.get("microbatch_bytes") or 0),
            "taken_bytes": memory.bytes()}


# ---- one comparison --------------------------------------------------------------------------------------------------

def compare(part, shape, torch, workload, precision, batch):
    """One row: medians over the counted steps of all turns."""
    if precision.replace("fp32", "f32") not in part.arithmetic:
        raise Skipped(f"the device has no {precision}")
    row = {"workload": workload, "precision": precision, "batch": batch}
    limit = 600 if part.host else 90
    ours, theirs, unread = [], [], []
    steps = shape.steps(0)
    if torch:
        first = torch.turn(precision, batch, shape.warmup, 3, True, False, limit)
        steps, row["torch_loss"] = shape.steps(median(first["seconds"])), first["loss"]
    else:
        steps = shape.steps(0.05)
    for _ in range(shape.rounds):
        if torch:
            answer = torch.turn(precision, batch, 2, steps, False, False, limit)
            theirs += answer["seconds"]
            unread.append(answer["unread_seconds"])
            row.update({f"torch_{k}": answer[k] for k in ("allocated_bytes", "reserved_bytes") if k in answer})
        turn = weft_turn(part, workload, precision, batch, shape.warmup, steps, limit)
        ours += turn["seconds"]
        row.update(weft_loss=turn["loss"], weft_planned_bytes=turn["planned_bytes"])
        if turn["taken_bytes"]:
            row["weft_taken_bytes"] = max(turn["taken_bytes"], row.get("weft_taken_bytes", 0))
    row.update(steps=steps, weft_seconds=median(ours))
    if torch:
        row.update(torch_read_seconds=median(theirs), torch_unread_seconds=median(unread))
        # The better of its two loops: weft tells every loss and need not wait for it.
        row["torch_seconds"] = min(row["torch_read_seconds"], row["torch_unread_seconds"])
        row["ratio"] = row["weft_seconds"] / row["torch_seconds"]
    part.figures["rows"].append(row)
    if torch:
        apart = abs(row["weft_loss"] - row["torch_loss"]) / abs(row["torch_loss"])
        if not apart <= SAME_LOSS[precision]:
            raise Failed(f"the first losses are {row['weft_loss']:.6g} and PyTorch's {row['torch_loss']:.6g}: not the same training")
    return row


def mib(count):
    return "?" if not count else f"{count / 2**20:.0f}"


def words_of(row):
    text = f"weft {row['weft_seconds'] * 1e3:.2f} ms"
    if "ratio" in row:
        text += f", PyTorch {row['torch_seconds'] * 1e3:.2f} ms: {row['ratio']:.2f}x"
    if "compiled_ratio" in row:
        text += f" (compiled {row['compiled_seconds'] * 1e3:.2f} ms: {row['compiled_ratio']:.2f}x)"
    text += f"; MiB: weft {mib(row.get('weft_taken_bytes'))} taken, {mib(row['weft_planned_bytes'])} planned"
    if "torch_reserved_bytes" in row:
        text += f", PyTorch {mib(row['torch_allocated_bytes'])} allocated, {mib(row['torch_reserved_bytes'])} reserved"
    return text


def compiled_turn(part, shape, workload, row):
    """torch.compile's figure for a row; Skipped where it does not work within its time."""
    torch = Torch(part, workload)
    try:
        answer = torch.turn(row["precision"], row["batch"], 5, row["steps"], True, True, min(100, part.time_left() - 15))
    except Failed as why:
        raise Skipped(str(why)) from None
    finally:
        torch.close()
    row["compiled_seconds"] = min(median(answer["seconds"]), answer["unread_seconds"])
    row["compiled_ratio"] = row["weft_seconds"] / row["compiled_seconds"]
    return f"weft {row['weft_seconds'] * 1e3:.2f} ms, compiled {row['compiled_seconds'] * 1e3:.2f} ms: {row['compiled_ratio']:.2f}x"


def run(part):
    part.figures["rows"] = []
    if not part.options.numpy:
        part.add("models", "skipped", "this python3 has no numpy, which draws their weights")
        return
    shape, rows, compiled = Shape(part), {}, set()
    # What target S3 names first, compiled as well, in half of the time.
    compare_all(part, shape, shape.batches[0], rows)
    compile_all(part, shape, rows, compiled, part.seconds / 2)
    for times in shape.batches[1:]:
        compare_all(part, shape, times, rows)
    compile_all(part, shape, rows, compiled, 60)
    if not part.options.torch:
        part.add("PyTorch", "skipped", "this python3 has no PyTorch")
    elif has_no_compiler(part):
        part.add("torch.compile", "skipped", f"PyTorch {part.options.torch} has none")
    else:
        for name in [name for name in rows if name not in compiled and part.wants("compiled")]:
            part.add(f"{name}, compiled", "skipped", "no time is left for it in this part")


def has_no_compiler(part):
    return part.options.torch.startswith("1.")


def compare_all(part, shape, times, rows):
    known = graphs.workloads(os.path.join(part.root, "graphs"))
    for workload in shape.workloads:
        graphs.draw_all(os.path.join(part.root, "graphs"), workload, known[workload])
        torch = Torch(part, workload) if part.options.torch else None
        try:
            for precision in shape.precisions:
                batch = shape.batch_of(known[workload], times)
                name = f"{workload} {precision} batch {batch}"
                if not part.wants(name):
                    continue
                if part.time_left() < 40 and not part.host:
                    part.add(name, "skipped", "no time is left for it in this part")
                    continue

                def one():
                    rows[name] = compare(part, shape, torch, workload, precision, batch)
                    return words_of(rows[name])

                if part.check(name, one) is None and torch and torch.child.poll() is not None:
                    torch.close()
                    torch = Torch(part, workload)  # it may have gone out of memory
        finally:
            if torch:
                torch.close()


def compile_all(part, shape, rows, compiled, seconds_left):
    """Of the rows that have none yet, until so much time is left."""
    if not part.options.torch or has_no_compiler(part) or not part.wants("compiled"):
        return
    for name, row in rows.items():
        if name not in compiled and part.time_left() > seconds_left:
            compiled.add(name)
            part.check(f"{name}, compiled", compiled_turn, part, shape, row["workload"], row)
