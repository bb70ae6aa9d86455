"""The parts of tests/gpu/run, on the unpacked bundle.   parts.py ROOT WORK check|speed|sanitize [options]"""
import argparse
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys

import speed
import training
from programs import PART_SECONDS, Failed, Part, Skipped, find_libraries


class Run(Part):
    """With what the machine is found to have."""

    arithmetic = ()
    smi = None

    def torch_device(self):
        return "cpu" if self.host else self.cuda()

    def torch_environment(self):
        """PyTorch brings libraries of its own: it gets the environment as it came."""
        return {"LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")}

    def check_program(self, *arguments):
        return [self.program("weft_gpu_check"), *arguments, "--device", str(self.options.device)]


# ---- the machine -----------------------------------------------------------------------------------------------------

def module_version(name):
    """Without loading it here, where a fault of its libraries would end everything."""
    if importlib.util.find_spec(name) is None:
        return None
    try:
        asked = subprocess.run([sys.executable, "-c", f"import {name}; print({name}.__version__)"], capture_output=True, text=True,
                               timeout=120)
    except subprocess.TimeoutExpired:
        return None
    return asked.stdout.strip() or None


def find_machine(part):
    options = part.options
    part.versions["python"] = ".".join(map(str, sys.version_info[:3]))
    for name in ("numpy", "torch"):
        version = module_version(name)
        setattr(options, name, version)
        if version:
            part.versions[name] = version
    if shutil.which("nvidia-smi") and not part.host:
        visible = [v for v in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if v]
        which = visible[options.device] if options.device < len(visible) else str(options.device)
        part.smi = ["nvidia-smi", "-i", which]
        asked = subprocess.run([*part.smi, "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True)
        part.driver = asked.stdout.strip().splitlines()[0] if asked.returncode == 0 and asked.stdout.strip() else None


def find_device(part):
    folders, found = [], {}
    if part.host:
        part.environment["WEFT_MODULES"] = os.path.abspath(part.options.modules)
    else:
        with open(os.path.join(part.root, "needed.txt")) as f:
            folders, found = find_libraries(f.read().split())
    part.versions.update(found)
    part.set_libraries(folders)
    about = part.run(part.check_program("about"), 60).last()
    part.device, part.arithmetic = about["fingerprint"], about["arithmetic"]
    part.figures["build"], part.figures["memory_bytes"] = about["build"], about["memory_bytes"]
    if about["host_device"] != part.host:
        raise Failed("the module is the host's shim, which is no GPU" if about["host_device"] else "the module is none of the shim")
    return about["fingerprint"] + "".join(f"; {k} {v}" for k, v in part.versions.items())


# ---- check -----------------------------------------------------------------------------------------------------------

def check_ops(part):
    command = part.check_program("ops", "--seconds", str(int(min(240, part.time_left() * 0.6))))
    finished = part.run(command + (["--quick"] if part.host else []), 300, anyhow=True)
    if not finished.events():
        raise Failed(f"ended with {finished.code}: {finished.tail()}")
    result = finished.last()
    for row in result["rows"]:
        text = f"{row['ran']} cases"
        if row["name"] in ("ops", "large shapes"):
            text += f", {row['on_the_host']} of them on the host"
        if row["worst"]:
            text += f"; worst {row['worst']:.2f} of its tolerance, {row['worst_case']}"
        if row["skipped"]:
            text += f"; {row['skipped']} that the card has no units for"
        if row["failed"]:
            text += f"; {row['failed']} FAILED"
        part.add(f"{row['name']} against the reference" if row["name"] != "fused groups" else "fused groups against their ops",
                 "FAILED" if row["failed"] else "ok", text)
    part.figures["ops"] = {"rows": result["rows"], "failures": result["failures"]}
    if not result["complete"]:
        raise Failed(f"not all of {result['cases']} cases were run: {finished.tail()}")
    return f"{result['cases']} cases in {finished.seconds:.0f} s"


def check_digests(part):
    expected = os.path.join(part.root, "expected_digests.json")
    finished = part.run(part.check_program("compare", expected), 200, anyhow=True)
    if not finished.events():
        raise Failed(f"ended with {finished.code}: {finished.tail()}")
    result = finished.last()
    part.figures["digests"] = {k: result[k] for k in ("equal", "other_inputs", "different")}
    text = f"{result['equal']} cases equal"
    if result["other_inputs"]:
        text += f", {result['other_inputs']} whose operands this machine draws otherwise"
    if result["different"]:
        raise Failed(f"{text}, {len(result['different'])} different: {'; '.join(result['different'][:3])}")
    return text


def check_properties(part):
    if part.host:
        raise Skipped("the host device has none")
    if not part.options.out:
        raise Skipped("no --out to write them to")
    major_minor = part.device.split()[1] if part.device else "device"
    path = os.path.join(part.options.out, f"{major_minor}.json")
    part.run(part.check_program("properties", path), 60)
    with open(path) as f:
        json.load(f)
    return path


def run_check(part):
    wants_l1 = any(part.wants(l1_row(name)) for name in training.cases(part))
    references = training.References(part) if part.options.numpy and wants_l1 else None
    try:
        part.check("ops: all were run", check_ops, part)
        part.check("our own kernels give the bits of the host's shim", check_digests, part)
        part.check("the device's properties", check_properties, part)
        for folder in training.bits_case(part):
            part.check(f"{os.path.basename(folder)} twice: the same bits", training.check_same_again, part, folder)
        first = training.bits_case(part)[0]
        part.check("two stages: the bits of one", training.check_two_stages, part, first)
        part.check("two replicas: the bits of one machine", training.check_replicas, part, first)
        part.check("text: a processor's", training.check_text, part)
        part.check("a processor and a card in one job", training.check_mixed, part, first)
        if wants_l1:
            check_l1(part, references)
    finally:
        if references:
            references.close()


def l1_row(name):
    return f"target L1: {name}"


def check_l1(part, references):
    if not references:
        part.add("target L1", "skipped", "this python3 has no numpy")
        return
    card, folders = {}, training.cases(part)

    def on_card():
        card.update(training.train_on_card(part, [f for all_seeds in folders.values() for f in all_seeds]))
        return f"{len(card)} trainings on {part.torch_device()}"

    folders = {name: all_seeds for name, all_seeds in folders.items() if part.wants(l1_row(name))}
    part.check_always("PyTorch's float32 of the same", on_card)
    for name, all_seeds in folders.items():
        part.check(l1_row(name), training.check_numerics, part, all_seeds, references, card)


# ---- sanitize --------------------------------------------------------------------------------------------------------

TOOLS = ["memcheck", "racecheck", "initcheck", "synccheck"]


def find_sanitizer():
    for path in (shutil.which("compute-sanitizer"), "/usr/local/cuda/bin/compute-sanitizer",
                 "/usr/local/cuda/compute-sanitizer/compute-sanitizer"):
        if path and os.access(path, os.X_OK):
            return path
    return None


def sanitize(part, program, tool):
    seconds = int(min(90, part.time_left() / 5))
    finished = part.run([program, "--tool", tool, "--error-exitcode", "99", "--print-limit", "20",
                         *part.check_program("ops", "--quick", "--shuffled", "--seconds", str(seconds))],
                        seconds + 40, anyhow=True)
    with open(os.path.join(part.options.out or part.work, f"{tool}.log"), "w") as f:
        f.write(finished.out + finished.err)
    if not finished.events():
        raise Failed(f"ended with {finished.code}: {finished.tail()}")
    result = finished.last()
    ran = sum(row["ran"] for row in result["rows"])
    findings = [line for line in (finished.out + finished.err).splitlines() if line.startswith("=========") and
                ("Invalid" in line or "Race reported" in line or "Uninitialized" in line or "Barrier error" in line)]
    if finished.code == 99:
        raise Failed(f"{ran} of {result['cases']} cases; findings: {' | '.join(findings[:2]) or 'see its log'}")
    if result["failures"]:
        raise Failed(f"wrong under the tool: {result['failures'][0]}")
    return f"{ran} of {result['cases']} cases, no finding"


def check_plain(part):
    """Without a tool: what it compiles is then at hand for all of them."""
    result = part.run(part.check_program("ops", "--quick", "--shuffled", "--seconds", "20"), 150, anyhow=True).last()
    if result["failures"]:
        raise Failed(f"wrong without a tool: {result['failures'][0]}")
    return f"{sum(row['ran'] for row in result['rows'])} of {result['cases']} cases"


def run_sanitize(part):
    program = find_sanitizer()
    if program and not part.host:
        part.check("ops, without a tool", check_plain, part)
    for tool in TOOLS:
        if part.host:
            part.add(tool, "skipped", "compute-sanitizer needs a GPU")
        elif not program:
            part.add(tool, "skipped", "compute-sanitizer is not installed (it comes with the CUDA toolkit)")
        else:
            part.check(tool, sanitize, part, program, tool)


# ----------------------------------------------------------------------------------------------------------------------

PARTS = {"check": run_check, "speed": speed.run, "sanitize": run_sanitize}


def main():
    parser = argparse.ArgumentParser(prog="tests/gpu/run BUNDLE", description="What a machine with a GPU shows of weft.")
    parser.add_argument("root", help=argparse.SUPPRESS)
    parser.add_argument("work", help=argparse.SUPPRESS)
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--device", type=int, default=0, help="which GPU, from 0, as the PCI bus orders them")
    parser.add_argument("--out", help="a folder for what is found: the JSON line, the device's properties, logs")
    parser.add_argument("--seconds", type=int, default=PART_SECONDS, help="of the part, at most")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="the rows alone that have one of these words in their name")
    parser.add_argument("--modules", help="the folder of another module than the bundle's: of the host's shim, to try this without a GPU")
    parser.add_argument("--workloads", nargs="+", choices=speed.ORDER, help="of speed, these alone")
    options = parser.parse_args()
    if options.out:
        os.makedirs(options.out, exist_ok=True)
        options.out = os.path.abspath(options.out)
    part = Run(options.part, options.root, options.work, options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print(f"{options.part}: at most {options.seconds} s", file=sys.stderr)
    try:
        find_machine(part)
        if part.check_always("device", find_device, part):
            PARTS[options.part](part)
    finally:
        part.end_all()
    part.report()
    sys.exit(0 if part.ok() else 1)


if __name__ == "__main__":
    main()
