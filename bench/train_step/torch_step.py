#!/usr/bin/python3
"""Times training steps of tuned PyTorch on the CPU and prints one JSON line.

    /usr/bin/python3 torch_step.py WORKLOAD [--threads N] [--steps K] [--untuned]

A step is forward, loss, backward, optimizer and zero_grad; two steps of warm-up are not counted. Tuned means
OpenBLAS built for OpenMP and told the instruction set it fails to find by itself, and threads bound to cores.
"""
import argparse
import json
import os
import resource
import statistics
import sys
import time

OPENBLAS = "/usr/lib/x86_64-linux-gnu/openblas-openmp"
WARMUP = 2


def tuned_environment(threads):
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads), OMP_PROC_BIND="true")
    if os.path.isdir(OPENBLAS):
        environment["LD_LIBRARY_PATH"] = OPENBLAS + (":" + os.environ["LD_LIBRARY_PATH"] if os.environ.get("LD_LIBRARY_PATH") else "")
    with open("/proc/cpuinfo") as f:
        flags = next((line.split() for line in f if line.startswith("flags")), [])
    if "avx512f" in flags:
        environment["OPENBLAS_CORETYPE"] = "SkylakeX"
    return environment


def main():
    parser = argparse.ArgumentParser(description="Times training steps of PyTorch.")
    parser.add_argument("workload", choices=["resnet18", "gpt2-small", "gpt-tiny"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--untuned", action="store_true", help="PyTorch as it comes")
    options = parser.parse_args()

    # The libraries read their settings when they are loaded, so the process starts over with them set.
    if os.environ.get("WEFT_BENCH_TORCH") != "1":
        environment = tuned_environment(options.threads)
        if options.untuned:
            environment = dict(os.environ, OMP_NUM_THREADS=str(options.threads))
        os.execve(sys.executable, [sys.executable] + sys.argv, dict(environment, WEFT_BENCH_TORCH="1"))

    import torch
    import torch.nn.functional as F
    from models import WORKLOADS, make_data, make_model, make_optimizer

    torch.set_num_threads(options.threads)
    model = make_model(options.workload)
    optimizer = make_optimizer(options.workload, model.parameters())
    _, x, _, y = make_data(options.workload, 3)
    batch = WORKLOADS[options.workload]["batch"]
    seconds, losses = [], []
    for step in range(WARMUP + options.steps):
        start = time.perf_counter()
        first = step * batch % len(x)
        logits = model(x[first:first + batch])
        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), y[first:first + batch].reshape(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    seconds = seconds[WARMUP:]
    print(json.dumps({
        "workload": options.workload, "threads": options.threads, "median_seconds": statistics.median(seconds),
        "seconds": seconds, "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "losses": losses, "tuned": not options.untuned}))


if __name__ == "__main__":
    main()
