#!/usr/bin/python3
"""Adapters beside full training: seconds of a step and memory, of a GPT-2 small of rank 8, in turns.

    bench/adapters/run.py [--weft build/release/weft] [--rounds 2] [--check] [MAKE_GPT OPTIONS ...]

Memory is what the job itself says it takes of the device, and the process's peak. Seconds are the median over the
steps but the first two of each run. --check fails where a step of adapters takes more than 0.72 of the time or 0.35
of the memory.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
WARMUP = 2
TIME_MOST, MEMORY_MOST = 0.72, 0.35


def run(weft, folder, name):
    """(seconds of each counted step, device bytes, peak resident bytes, last result)"""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen([weft, "local", os.path.join(folder, name + ".yaml"), "--format", "json"],
                                   stdout=output)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            sys.exit(f"{name}: weft ended with {process.returncode}")
        output.seek(0)
        events = [json.loads(line) for line in output]
    start = next(e for e in events if e["event"] == "start")
    steps = [e["seconds"] for e in events if e["event"] == "step"][WARMUP:]
    result = next(e for e in events if e["event"] == "result")
    return steps, start["persistent_bytes"] + start["microbatch_bytes"], usage.ru_maxrss * 1024, start, result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weft", default="build/release/weft")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--check", action="store_true")
    options, rest = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, os.path.join(HERE, "make_gpt.py"), folder] + rest, check=True)
        seconds, device, peak, start, result = {}, {}, {}, {}, {}
        for _ in range(options.rounds):
            for name in ("full", "lora"):
                steps, device[name], resident, start[name], result[name] = run(options.weft, folder, name)
                seconds.setdefault(name, []).extend(steps)
                peak[name] = max(peak.get(name, 0), resident)
    step = {name: statistics.median(values) for name, values in seconds.items()}
    print(f"{'':8} {'trained':>12} {'s a step':>9} {'device MB':>10} {'peak MB':>8}")
    for name in ("full", "lora"):
        print(f"{name:8} {start[name]['parameter_elements']:>12} {step[name]:>9.3f} {device[name] / 1e6:>10.0f} "
              f"{peak[name] / 1e6:>8.0f}")
    time, memory = step["lora"] / step["full"], device["lora"] / device["full"]
    print(f"adapters take {time:.2f} of the time and {memory:.2f} of the memory; the merged model is "
          f"{result['lora']['merge']['from_adapters']:.2g} from them, and {result['lora']['merge']['from_base']:.2g} "
          "from the base")
    print(json.dumps({"time": time, "memory": memory, "peak": peak["lora"] / peak["full"]}))
    if options.check and (time > TIME_MOST or memory > MEMORY_MOST):
        sys.exit(f"more than {TIME_MOST} of the time or {MEMORY_MOST} of the memory")


if __name__ == "__main__":
    main()
