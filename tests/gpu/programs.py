"""weft's programs as children of this process: with the libraries that they need, for a limited time, and ended with
it whatever happens. And the part of a run: its checks, its time, its table.
"""
import contextlib
import ctypes
import glob
import json
import os
import re
import signal
import site
import subprocess
import sys
import threading
import time

PART_SECONDS = 590  # under ten minutes


class Failed(Exception):
    """A check that does not hold, in words."""


class Skipped(Exception):
    """A check that cannot be made here, and why."""


class Finished:
    def __init__(self, code, out, err, seconds):
        self.code, self.out, self.err, self.seconds = code, out, err, seconds

    def events(self):
        return [json.loads(line) for line in self.out.splitlines() if line.startswith("{")]

    def last(self):
        return self.events()[-1]

    def tail(self):
        lines = [line for line in (self.err or self.out).splitlines() if line.strip()]
        return " | ".join(lines[-3:])[-400:]


# ---- libraries -------------------------------------------------------------------------------------------------------

def library_folders():
    """Where CUDA's libraries may lie, nearest first: as the environment says, what pip installed, CUDA's own folders, the
    system's."""
    folders = [f for f in os.environ.get("LD_LIBRARY_PATH", "").split(":") if f]
    places = sys.path + (site.getsitepackages() if hasattr(site, "getsitepackages") else []) + [site.getusersitepackages()]
    for place in dict.fromkeys(p for p in places if p):
        folders += sorted(glob.glob(os.path.join(place, "nvidia", "*", "lib")), reverse=True)  # cu13 before cublas
        folders += sorted(glob.glob(os.path.join(place, "nvidia", "*", "lib64")))
    for pattern in ("/usr/local/cuda*/lib64", "/usr/local/cuda*/targets/x86_64-linux/lib", "/usr/local/cuda*/lib",
                    "/opt/conda/lib", "/usr/local/nvidia/lib64"):
        folders += sorted(glob.glob(pattern), reverse=True)
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, timeout=20).stdout
        folders += [os.path.dirname(p) for p in re.findall(r"=> (\S+)", listed)]
    return [f for f in dict.fromkeys(map(os.path.realpath, folders)) if os.path.isdir(f)]


# Asked in a process of its own: what is loaded here once cannot be unloaded.
VERSIONS = {
    "libcudnn.so": ("cuDNN", "cudnnGetVersion", "cudnnGetCudartVersion"),
    "libcublasLt.so": ("cuBLASLt", "cublasLtGetVersion", "cublasLtGetCudartVersion"),
    "libnvrtc.so": ("NVRTC", None, None),
}


def ask_versions(path):
    """As a child: prints (version, CUDA's major version) of the library."""
    library = ctypes.CDLL(path)
    kind = VERSIONS[os.path.basename(path).split(".so")[0] + ".so"]
    if kind[1] is None:
        major, minor = ctypes.c_int(), ctypes.c_int()
        library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        print(json.dumps([f"{major.value}.{minor.value}", major.value]))
        return
    for name in kind[1:]:
        getattr(library, name).restype = ctypes.c_size_t
    print(json.dumps([str(getattr(library, kind[1])()), getattr(library, kind[2])() // 1000]))


def _versions_of(path, folders):
    environment = dict(os.environ, LD_LIBRARY_PATH=":".join([os.path.dirname(path)] + folders))
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        asked = subprocess.run([sys.executable, os.path.abspath(__file__), path], capture_output=True, text=True, timeout=60,
                               env=environment)
        return json.loads(asked.stdout)
    return None


def find_libraries(needed):
    """The folders of these sonames, as LD_LIBRARY_PATH wants them, and their versions. Failed: with what is missing."""
    folders, chosen, versions = library_folders(), [], {}
    for soname in needed:
        having = [f for f in folders if os.path.exists(os.path.join(f, soname))]
        if not having:
            raise Failed(f"{soname} is nowhere: the module needs cuBLASLt and NVRTC of CUDA 13 and cuDNN 9 for CUDA 13, as CUDA's "
                         "packages or pip's nvidia-cublas, nvidia-cuda-nvrtc and nvidia-cudnn-cu13 have them")
        kind = VERSIONS.get(soname.split(".so")[0] + ".so")
        found = None
        for folder in having if kind else []:
            # cuDNN 9 has one name for CUDA 12 and for CUDA 13.
            asked = _versions_of(os.path.join(folder, soname), chosen + folders)
            if asked and asked[1] == 13:
                found = (folder, asked[0])
                break
        if kind and not found:
            raise Failed(f"{soname} in {', '.join(having[:3])} does not load, or is not of CUDA 13")
        chosen.append(found[0] if found else having[0])
        if found:
            versions[kind[0]] = found[1]
    return list(dict.fromkeys(chosen)), versions


# ---- a part ----------------------------------------------------------------------------------------------------------

class Part:
    """What one part of a run knows: where things are, how much time is left, what was found."""

    def __init__(self, name, root, work, options):
        self.name, self.root, self.work, self.options = name, root, work, options
        self.begun, self.seconds = time.monotonic(), options.seconds
        self.checks, self.versions, self.figures = [], {}, {}
        self.device, self.driver, self.host = None, None, bool(options.modules)
        # What programs keep, they keep in the working folder: nothing stays on the machine.
        self.environment = dict(os.environ, CUDA_DEVICE_ORDER="PCI_BUS_ID", XDG_CONFIG_HOME=os.path.join(work, "config"),
                                XDG_CACHE_HOME=os.path.join(work, "cache"), TORCHINDUCTOR_CACHE_DIR=os.path.join(work, "inductor"),
                                TRITON_CACHE_DIR=os.path.join(work, "triton"))
        for variable in ("WEFT_BROKER", "WEFT_TOKEN", "WEFT_MODULES"):  # of whoever runs this
            self.environment.pop(variable, None)
        self._children, self._lock = set(), threading.Lock()

    # -- programs

    def program(self, name):
        return os.path.join(self.root, "bin", name)

    def set_libraries(self, folders):
        """The bundle's libraries, then these. The compiler's only where the machine's own are older: they want a newer libc
        than the rest."""
        own = [os.path.join(self.root, "lib")] + folders
        inherited = [f for f in os.environ.get("LD_LIBRARY_PATH", "").split(":") if f]
        self.environment["LD_LIBRARY_PATH"] = ":".join(own + inherited)
        for program in ("weft", "weft_gpu_check"):
            if self.run([self.program(program), "--help"], 30, anyhow=True).code != 0:
                compiler = os.path.join(self.root, "lib", "compiler")
                self.environment["LD_LIBRARY_PATH"] = ":".join([compiler] + own + inherited)
                self.run([self.program(program), "--help"], 30)

    def cuda(self):
        return f"cuda:{self.options.device}"

    def time_left(self):
        return self.seconds - (time.monotonic() - self.begun)

    def start(self, command, **more):
        """A child in a session of its own, known until it is collected."""
        child = subprocess.Popen(command, start_new_session=True, **dict({"env": self.environment}, **more))
        with self._lock:
            self._children.add(child)
        return child

    def end(self, child):
        """And what it started. Once: its number may be another's afterwards."""
        with self._lock:
            if child not in self._children:
                return
            self._children.discard(child)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()

    def end_all(self):
        for child in list(self._children):
            self.end(child)

    def run(self, command, seconds, environment=None, anyhow=False):
        """Runs it to its end. Failed: beyond its time, or with another exit code than 0 unless `anyhow`."""
        limit = min(seconds, self.time_left())
        if limit < 1:
            raise Failed("no time is left for it in this part")
        begun = time.monotonic()
        child = self.start(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                           env=dict(self.environment, **(environment or {})))
        try:
            out, err = child.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            raise Failed(f"not over after {limit:.0f} s: {os.path.basename(command[0])} {' '.join(command[1:3])}") from None
        finally:
            self.end(child)
        finished = Finished(child.returncode, out, err, time.monotonic() - begun)
        if finished.code != 0 and not anyhow:
            raise Failed(f"{os.path.basename(command[0])} {command[1] if len(command) > 1 else ''} ended with "
                         f"{finished.code}: {finished.tail()}")
        return finished

    # -- findings

    def add(self, name, result, figure=""):
        self.checks.append({"name": name, "result": result, "figure": figure})
        print(f"  {result:8} {name}: {figure}", file=sys.stderr, flush=True)

    def check(self, name, function, *arguments):
        """Runs it if --only wants it; what it returns is the figure. Its result, or None where it did not hold."""
        return self.check_always(name, function, *arguments) if self.wants(name) else None

    def check_always(self, name, function, *arguments):
        try:
            figure = function(*arguments)
            self.add(name, "ok", figure or "")
            return figure or True
        except Skipped as why:
            self.add(name, "skipped", str(why))
        except Failed as why:
            self.add(name, "FAILED", str(why))
        except Exception as why:  # what a program wrote is not what it should be: this row fails, the others go on
            self.add(name, "FAILED", f"{type(why).__name__}: {why}")
        return None

    def wants(self, name):
        return not self.options.only or any(word in name for word in self.options.only)

    def ok(self):
        return bool(self.checks) and all(c["result"] != "FAILED" for c in self.checks)

    def report(self):
        """The table, then the line."""
        where = self.device or "no device"
        print(f"{self.name} on {where}" + (", which is NO GPU" if self.host else ""))
        width = max((len(c["name"]) for c in self.checks), default=0)
        for c in self.checks:
            print(f"  {c['name']:<{width}}  {c['result']:<8} {c['figure']}")
        line = {"part": self.name, "ok": self.ok(), "device": self.device, "host_device": self.host, "driver": self.driver,
                "versions": self.versions, "seconds": round(time.monotonic() - self.begun, 1), "checks": self.checks}
        line.update(self.figures)
        text = json.dumps(line)
        print(text, flush=True)
        if self.options.out:
            with open(os.path.join(self.options.out, f"{self.name}.json"), "w") as f:
                f.write(text + "\n")


if __name__ == "__main__":
    ask_versions(sys.argv[1])
