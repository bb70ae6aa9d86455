#!/usr/bin/python3
"""Target S1 and S2: one training step of weft against tuned PyTorch, in one run, side by side.

    /usr/bin/python3 bench/train_step/run.py --weft build/release/weft [--before OTHER/weft] [--workloads gpt-tiny ...] [--threads 1 2]
        [--rounds 3]

The two take turns (A B A B ...); the figure of each is the median over all its counted steps. Prints a table, then one
JSON line. Models are exported to --cache the first time.
"""
import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
WORKLOADS = ["gpt-tiny", "resnet18", "gpt2-small"]
WARMUP = 2


def run_process(command):
    """Runs it to its end; returns (standard output, peak resident bytes)."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=output, stderr=errors)
        try:
            # wait4 reports the memory of this child alone.
            _, status, usage = os.wait4(process.pid, 0)
        except KeyboardInterrupt:
            process.send_signal(signal.SIGTERM)
            process.wait()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        if process.returncode != 0:
            tail = errors.read().decode(errors="replace")[-2000:]
            sys.exit(f"{' '.join(command)}\nended with {process.returncode}:\n{tail}")
        return output.read().decode(), usage.ru_maxrss * 1024


def torch_round(workload, threads, steps):
    output, memory = run_process([sys.executable, os.path.join(HERE, "torch_step.py"), workload,
                                  "--threads", str(threads), "--steps", str(steps)])
    result = json.loads(output.splitlines()[-1])
    return result["seconds"], memory, result["losses"]


def weft_round(weft, job, threads, steps):
    with tempfile.TemporaryDirectory() as folder:
        output, memory = run_process([weft, "local", job, "--threads", str(threads), "--format", "json",
                                      "--set", f"steps={WARMUP + steps}", "--set", f"output={folder}/trained.onnx"])
    events = [json.loads(line) for line in output.splitlines() if line.strip()]
    lines = [e for e in events if e.get("event") == "step"]
    if len(lines) != WARMUP + steps:
        sys.exit(f"weft local {job} printed {len(lines)} step lines, not {WARMUP + steps}")
    return [e["seconds"] for e in lines[WARMUP:]], memory, [e["loss"] for e in lines]


def main():
    parser = argparse.ArgumentParser(description="weft against PyTorch, one training step.")
    parser.add_argument("--weft", default=os.path.join(ROOT, "build/release/weft"))
    parser.add_argument("--before", help="another weft, timed in the same turns: how this one compares with it")
    parser.add_argument("--workloads", nargs="+", default=WORKLOADS, choices=WORKLOADS)
    parser.add_argument("--threads", nargs="+", type=int, default=[1])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=0, help="counted steps a round; 0: 10, of gpt-tiny 40, of gpt2-small 4")
    parser.add_argument("--cache", default=os.path.join(ROOT, "build/bench/train_step"))
    options = parser.parse_args()
    programs = {"weft": os.path.abspath(options.weft)}
    if options.before:
        programs["before"] = os.path.abspath(options.before)
    for side, program in programs.items():
        if not os.access(program, os.X_OK):
            sys.exit(f"{program} is not a program; build it first or give another --{side}")
    sides = ["torch", *programs]
    missing = [w for w in options.workloads if not os.path.exists(os.path.join(options.cache, w, "model.onnx"))]
    if missing:
        print(f"exporting {', '.join(missing)} to {options.cache}", file=sys.stderr)
        run_process([sys.executable, os.path.join(HERE, "export.py"), options.cache] + missing)

    rows = []
    for workload in options.workloads:
        job = os.path.join(options.cache, workload, "job.yaml")
        steps = options.steps or {"gpt-tiny": 40, "gpt2-small": 4}.get(workload, 10)
        for threads in options.threads:
            times, rounds = {side: [] for side in sides}, {side: [] for side in sides}
            memory, losses = {side: 0 for side in sides}, {}
            for number in range(options.rounds):
                for side in sides:
                    run = (torch_round(workload, threads, steps) if side == "torch"
                           else weft_round(programs[side], job, threads, steps))
                    times[side] += run[0]
                    rounds[side].append(statistics.median(run[0]))
                    memory[side] = max(memory[side], run[1])
                    losses[side] = run[2]
                    print(f"{workload}, {threads} threads, round {number + 1}, {side}: {rounds[side][-1] * 1e3:.1f} ms",
                          file=sys.stderr)
            # Both train the same model on the same samples: timing something else would show here.
            gap = max(abs(a - b) / max(abs(a), 1e-3) if b is not None else float("inf")
                      for a, b in zip(losses["torch"], losses["weft"]))
            a, b = statistics.median(times["torch"]), statistics.median(times["weft"])
            rows.append({"workload": workload, "threads": threads, "torch_seconds": a, "weft_seconds": b, "ratio": b / a,
                         "round_ratios": [y / x for x, y in zip(rounds["torch"], rounds["weft"])],
                         "torch_peak_rss_bytes": memory["torch"], "weft_peak_rss_bytes": memory["weft"],
                         "memory_ratio": memory["weft"] / memory["torch"], "largest_loss_gap": gap})
            if options.before:
                rows[-1]["ratio_to_before"] = b / statistics.median(times["before"])
                rows[-1]["memory_ratio_to_before"] = memory["weft"] / memory["before"]

    print(f"{'workload':<12}{'threads':>8}{'torch ms':>11}{'weft ms':>11}{'ratio':>8}{'torch MiB':>11}{'weft MiB':>10}"
          f"{'ratio':>8}{'loss gap':>10}" + (f"{'to before':>11}{'its memory':>12}" if options.before else ""))
    for r in rows:
        print(f"{r['workload']:<12}{r['threads']:>8}{r['torch_seconds'] * 1e3:>11.1f}{r['weft_seconds'] * 1e3:>11.1f}"
              f"{r['ratio']:>8.3f}{r['torch_peak_rss_bytes'] / 2**20:>11.0f}{r['weft_peak_rss_bytes'] / 2**20:>10.0f}"
              f"{r['memory_ratio']:>8.3f}{r['largest_loss_gap']:>10.1g}"
              + (f"{r['ratio_to_before']:>11.3f}{r['memory_ratio_to_before']:>12.3f}" if options.before else ""))
    print(json.dumps({"bench": "train_step", "cpus": os.cpu_count(), "rounds": options.rounds, "rows": rows}))


if __name__ == "__main__":
    main()
