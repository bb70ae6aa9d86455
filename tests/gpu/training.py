"""weft's training on the device: as on one machine in double (target L1), the same bits again, the same bits in two stages,
and together with a processor.
"""
import concurrent.futures
import datetime
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
import time

import graphs
from programs import Failed, Skipped
from tensors import read_initializers

BOUNDS = {"loss": 1e-5, "tensor": 1e-4}  # of float32, as tests/numerics/compare.py has them
ALL_STEPS = 20                           # of a reference
# Of the shim, which is some thousand times slower.
HOST_CASES, HOST_STEPS = ["two_heads", "gru"], 3
BITS_CASES = ["gpt3", "resnet_small", "densenet121"]


def cases(part):
    """Folder by case and seed: {"gpt3": [".../seed1/gpt3"], ...}."""
    found = {}
    top = os.path.join(part.root, "numerics")
    for seed in sorted(s for s in os.listdir(top) if s.startswith("seed")):
        for name in sorted(os.listdir(os.path.join(top, seed))):
            found.setdefault(name, []).append(os.path.join(top, seed, name))
    if part.host:
        found = {name: found[name][:1] for name in HOST_CASES}
    return found


def steps_of(part):
    return HOST_STEPS if part.host else ALL_STEPS


def unpack_model(folder):
    path = os.path.join(folder, "model.onnx")
    if not os.path.exists(path):
        partial = f"{path}.{threading.get_ident()}"
        with gzip.open(path + ".gz") as packed, open(partial, "wb") as model:
            shutil.copyfileobj(packed, model)
        os.replace(partial, path)
    return path


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def read_model(path):
    with open(path, "rb") as f:
        return read_initializers(f.read())


class Trained:
    def __init__(self, events, output):
        self.losses = [e["loss"] for e in events if e.get("event") == "step"]
        self.output = output
        self.start = next((e for e in events if e.get("event") == "start"), {})

    def tensors(self):
        import numpy as np
        return {name: values.astype(np.float64) for name, values in read_model(self.output).items()}


def job_arguments(part, folder, output):
    unpack_model(folder)
    return [os.path.join(folder, "job.yaml"), "--format", "json", "--set", f"steps={steps_of(part)}", "--set", f"output={output}"]


def train(part, folder, backend, label, seconds, threads=None, more=()):
    output = os.path.join(part.work, f"{os.path.basename(os.path.dirname(folder))}-{os.path.basename(folder)}-{label}.onnx")
    command = [part.program("weft"), "local", *job_arguments(part, folder, output), *more, "--backend", backend]
    if threads:
        command += ["--threads", str(threads)]
    return Trained(part.run(command, seconds).events(), output)


# ---- target L1 -------------------------------------------------------------------------------------------------------

class References:
    """weft's own double arithmetic on the processor, begun early: it is slow and wants no GPU."""

    def __init__(self, part):
        self.part, self.pool, self.futures = part, None, {}
        workers = max(1, (os.cpu_count() or 2) - 4)  # of one thread each; the rest is for ops' references
        self.pool = concurrent.futures.ThreadPoolExecutor(workers)
        for name, folders in cases(part).items():
            # One seed: what it is to show is that the shortest way to the truth is PyTorch's float64, too.
            self.futures[folders[0]] = self.pool.submit(train, part, folders[0], "reference", "reference", 300, 1)

    def get(self, folder):
        """None for further seeds, and where it takes too long: PyTorch's float64 is in the bundle."""
        if folder not in self.futures:
            return None
        try:
            return self.futures[folder].result(timeout=max(0.1, self.part.time_left() - 60))
        except (Failed, concurrent.futures.TimeoutError):
            return None

    def close(self):
        self.pool.shutdown(wait=False, cancel_futures=True)


def gap(values, expected):
    import numpy as np
    finite = np.isfinite(expected)  # an additive mask holds -inf
    a, b = values.reshape(expected.shape)[finite], expected[finite]
    scale = np.linalg.norm(b)
    return float(np.linalg.norm(a - b) / scale) if scale else float(np.linalg.norm(a))


def sketch_of(part):
    sys.path.insert(0, os.path.join(part.root, "numerics"))
    from sketch import sketch
    return sketch


def gaps_to_pytorch(part, reference, losses, tensors):
    """To the bundle's float64: by kind, name -> gap; and PyTorch's own float32 gaps on a processor."""
    import numpy as np
    sketch = sketch_of(part)
    expected = reference["losses"][:len(losses)]
    ours = {"loss": {}, "tensor": {}}
    theirs = {"loss": {}, "tensor": {}}
    for i, loss in enumerate(losses):
        ours["loss"][i] = abs(loss - expected[i]) / abs(expected[i])
        theirs["loss"][i] = abs(reference["losses_f32"][i] - expected[i]) / abs(expected[i])
    for key in reference.files if len(losses) == ALL_STEPS else []:
        kind, _, name = key.partition("/")
        if kind == "sketch":
            values = reference[key].astype(np.float64)
            ours["tensor"][name], theirs["tensor"][name] = gap(sketch(tensors[name]), values[1:]), float(values[0])
        elif kind == "gap_f32":
            ours["tensor"][name] = gap(tensors[name], reference[name].astype(np.float64))
            theirs["tensor"][name] = float(reference[key])
    return ours, theirs


def gaps_to_weft(reference, trained):
    """To weft's double arithmetic: every tensor whole."""
    tensors, expected = trained.tensors(), reference.tensors()
    return {"loss": {i: abs(a - b) / abs(b) for i, (a, b) in enumerate(zip(trained.losses, reference.losses))},
            "tensor": {name: gap(tensors[name], expected[name]) for name in expected}}


def allowed(bound, theirs):
    """A quiet case has a bound of its own; a chaotic one PyTorch's."""
    return bound if theirs <= bound / 10 else max(bound, 2 * theirs)


def larger(a, b):
    """By kind and name, of those that either has."""
    return {kind: {n: max(a[kind].get(n, 0), b[kind].get(n, 0)) for n in {**a[kind], **b[kind]}} for kind in BOUNDS}


def median(values):
    return sorted(values)[len(values) // 2]


def gaps_of(part, folder, references, card):
    """(ours, PyTorch's own, whether weft in double was there to compare with), by kind and name."""
    import numpy as np
    trained = train(part, folder, part.cuda(), "cuda", 120)
    if len(trained.losses) != steps_of(part):
        raise Failed(f"{len(trained.losses)} steps, not {steps_of(part)}")
    reference = np.load(os.path.join(folder, "reference.npz"))
    ours, theirs = gaps_to_pytorch(part, reference, trained.losses, trained.tensors())
    if folder in card:
        theirs = larger(theirs, gaps_to_pytorch(part, reference, *card[folder])[0])
    double = references.get(folder)
    return (larger(ours, gaps_to_weft(double, trained)) if double else ours), theirs, bool(double)


def check_numerics(part, folders, references, card):
    """`card`: what PyTorch's float32 came to on the same card, by folder; may be empty."""
    seeds = [gaps_of(part, folder, references, card) for folder in folders]
    words, good = [], True
    for kind, bound in BOUNDS.items():
        worst = share = 0.0
        for entry in seeds[0][0][kind]:
            ours = median([seed[0][kind].get(entry, 0) for seed in seeds])
            share = max(share, ours / allowed(bound, median([seed[1][kind].get(entry, 0) for seed in seeds])))
            worst = max(worst, ours)
        good &= share <= 1
        words.append(f"{kind} {worst:.1e}, {share:.2f} of what is allowed")
    against = ["PyTorch's float64"] + ["weft in double"] * seeds[0][2] + [f"PyTorch on {part.torch_device()}"] * (folders[0] in card)
    text = "; ".join(words) + f" (against {', '.join(against)}" + (f"; {len(seeds)} seeds)" if len(seeds) > 1 else ")")
    if not good:
        raise Failed(text)
    return text


def train_on_card(part, folders):
    """PyTorch's float32 of the same jobs on the same card: by folder, (losses, tensors). Skipped, with the reason."""
    import numpy as np
    if part.options.torch is None:
        raise Skipped("this python3 has no PyTorch")
    output = os.path.join(part.work, "card")
    os.makedirs(output)
    for folder in folders:
        unpack_model(folder)
    device = part.torch_device()
    finished = part.run([sys.executable, os.path.join(part.root, "py", "torch_training.py"), os.path.join(part.root, "numerics"),
                         device, output, *folders], 150, environment=part.torch_environment(), anyhow=True)
    found = {}
    for number, folder in enumerate(folders):
        path = os.path.join(output, f"{number}.npz")
        if os.path.exists(path):
            arrays = np.load(path)
            found[folder] = (arrays["losses"], {k: arrays[k] for k in arrays.files if k != "losses"})
    if not found:
        raise Skipped(f"PyTorch trains none of them: {finished.tail()}")
    return found


# ---- bits ------------------------------------------------------------------------------------------------------------

def bits_case(part):
    every = cases(part)
    return [every[name][0] for name in (HOST_CASES[:1] if part.host else BITS_CASES)]


def check_same_again(part, folder):
    digests = []
    for turn in ("first", "second"):
        digests.append(sha256(train(part, folder, part.cuda(), turn, 120).output))
    if digests[0] != digests[1]:
        raise Failed(f"trained.onnx is {digests[0][:16]} and then {digests[1][:16]}")
    return f"trained.onnx {digests[0][:16]} both times"


class Cluster:
    """A broker and peers on this machine, over loopback. As `with`: they end with it."""

    def __init__(self, part, label):
        self.part, self.folder = part, os.path.join(part.work, f"cluster-{label}")
        self.children, self.logs = [], []
        os.makedirs(self.folder)

    def __enter__(self):
        try:
            self._start_broker()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for child in reversed(self.children):
            self.part.end(child)

    def _log(self, name):
        self.logs.append(os.path.join(self.folder, name + ".log"))
        return open(self.logs[-1], "w")

    def _start_broker(self):
        with self._log("broker") as log:
            broker = self.part.start([self.part.program("weft"), "broker", "--data-dir", os.path.join(self.folder, "broker"),
                                      "--listen", "127.0.0.1:0"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                                     text=True)
        self.children.append(broker)
        said = self._read(broker, 60)
        joins, tokens = re.search(r"weft join (\S+) --token (\S+)", said), re.search(r"submitter token: (\S+)", said)
        if not joins or not tokens:
            raise Failed(f"the broker does not start: {self.tail()}")
        self.address, self.peer_token, self.token = joins[1], joins[2], tokens[1]

    def _read(self, broker, seconds):
        """What it prints until it has told both tokens. A thread goes on reading, so that it never waits for a reader."""
        lines, told = [], threading.Event()

        def read():
            for line in broker.stdout:
                lines.append(line)
                if "submitter token: " in "".join(lines) and "weft join " in "".join(lines):
                    told.set()
            told.set()

        threading.Thread(target=read, daemon=True).start()
        told.wait(seconds)
        return "".join(lines)

    def start_peer(self, name, device):
        environment, memory, works = dict(self.part.environment), "2GiB", os.path.join(self.folder, name + ".works")
        if self.part.host:
            # The shim takes minutes to be measured: before it has joined its kernels compute nothing.
            environment["WEFT_HOST_DEVICE"], memory = f"memory={256 << 20},works_when={works}", "128MiB"
        with self._log(name) as log:
            peer = self.part.start(
                [self.part.program("weft"), "join", self.address, "--token", self.peer_token, "--name", name, "--data-dir",
                 os.path.join(self.folder, name), "--device", device, "--listen", "127.0.0.1:0", "--memory", memory],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment)
        self.children.append(peer)
        if self.part.host:
            self._wait_until_measured(name, peer, 120)
            open(works, "w").close()

    def _wait_until_measured(self, name, peer, seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until and peer.poll() is None:
            with open(os.path.join(self.folder, name + ".log")) as f:
                if "info measured" in f.read():
                    return
            time.sleep(0.1)
        raise Failed(f"{name} is not measured: {self.tail()}")

    def tail(self):
        words = []
        for path in self.logs:
            with open(path) as f:
                lines = [line.strip() for line in f if line.strip()]
            words += [f"{os.path.basename(path)[:-4]}: {line}" for line in lines[-1:]]
        return " | ".join(words)[-400:]

    def submit(self, folder, stages, seconds, more=()):
        output = os.path.join(self.folder, "trained.onnx")
        command = [self.part.program("weft"), "submit", *job_arguments(self.part, folder, output), *more, "--set",
                   f"placement.stages={stages}"]
        try:
            finished = self.part.run(command, seconds, {"WEFT_BROKER": self.address, "WEFT_TOKEN": self.token})
        except Failed as why:
            raise Failed(f"{why}; {self.tail()}") from None
        events = finished.events()
        result = next((e for e in events if e.get("event") == "result"), {})
        if result.get("status") != "completed":
            raise Failed(f"the job ended as {result.get('status')}: {result.get('reason')}; {self.tail()}")
        plan = next((e for e in events if e.get("event") == "plan"), {})
        devices = [stage["device"] for stage in plan.get("stages", [])]
        return Trained(events, output), devices


def check_two_stages(part, folder):
    alone = train(part, folder, part.cuda(), "alone", 120)
    with Cluster(part, "stages") as cluster:
        for name in ("one", "two"):
            cluster.start_peer(name, part.cuda())
        both, devices = cluster.submit(folder, 2, 150)
    if len(devices) != 2 or devices[0] == devices[1]:
        raise Failed(f"not two stages on two peers: {devices}")
    if sha256(alone.output) != sha256(both.output):
        raise Failed(f"other bits than one stage: losses {both.losses[-1]!r} and {alone.losses[-1]!r}")
    return f"trained.onnx {sha256(alone.output)[:16]}, as in one stage"


def check_mixed(part, folder):
    """What rounding makes of a few steps; one update too many or too few is a hundred times that."""
    alone = train(part, folder, part.cuda(), "unmixed", 120)
    with Cluster(part, "mixed") as cluster:
        cluster.start_peer("processor", "cpu:2")
        cluster.start_peer("card", part.cuda())
        both, devices = cluster.submit(folder, 2, 150)
    if len(devices) != 2 or devices[0] == devices[1]:
        raise Failed(f"not two stages on two peers: {devices}")
    if len(both.losses) != len(alone.losses):
        raise Failed(f"{len(both.losses)} steps, not {len(alone.losses)}")
    most = max(abs(a - b) / abs(b) for a, b in zip(both.losses, alone.losses))
    if not most <= 1e-4:
        raise Failed(f"losses {most:.1e} apart")
    return f"{len(both.losses)} steps, losses at most {most:.1e} apart"


def check_replicas(part, folder):
    """Two copies of the model that agree every four steps, one after the other in one process and on a peer each."""
    more = ["--set", "replicas=2", "--set", 'sync={every: 4, codec: "topk:0.1:int8"}', "--set", "clip_norm=null"]
    in_turn = train(part, folder, part.cuda(), "replicas", 120, more=more)
    with Cluster(part, "replicas") as cluster:
        for name in ("one", "two"):
            cluster.start_peer(name, part.cuda())
        both, _ = cluster.submit(folder, 1, 150, more)
    if sha256(in_turn.output) != sha256(both.output):
        raise Failed(f"other bits than in turn: losses {both.losses[-1]!r} and {in_turn.losses[-1]!r}")
    return f"trained.onnx {sha256(both.output)[:16]}, as in turn"


def check_text(part):
    """Text is drawn on the card as on a processor: incremental passes with what attention keeps."""
    folder, length = os.path.join(part.root, "graphs"), 40 if part.host else 200
    graphs.draw_all(folder, "gpt-tiny", graphs.workloads(folder)["gpt-tiny"])
    texts, seconds = [], []
    for backend in ("cpu", part.cuda()):
        finished = part.run([part.program("weft"), "generate", os.path.join(folder, "gpt-tiny", "model.onnx"), "--prompt", "A text",
                             "--length", str(length), "--temperature", "1", "--seed", "7", "--format", "json", "--backend", backend], 120)
        events = [e for e in finished.events() if e.get("event") == "text"]
        texts.append("".join(e["text"] for e in events))
        times = [datetime.datetime.fromisoformat(e["time"].replace("Z", "+00:00")) for e in events]
        seconds.append((times[-1] - times[0]).total_seconds() / max(1, len(times) - 1))
    if texts[0] != texts[1]:
        same = next((i for i, (a, b) in enumerate(zip(*texts)) if a != b), min(map(len, texts)))
        raise Failed(f"another text than a processor's from letter {same} on")
    return f"{length} tokens as on a processor; {seconds[1] * 1e3:.2f} ms a token, there {seconds[0] * 1e3:.2f}"
