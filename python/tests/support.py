"""What the tests share: the programs, a folder of their own, a weft that says what a test wants."""

import contextlib
import json
import os
import stat
import sys
import tempfile
import textwrap
import unittest
import warnings

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))

import weft  # noqa: E402
from weft import program  # noqa: E402

REAL = os.path.abspath(os.environ.get("WEFT") or os.path.join(ROOT, "build/release/weft"))
DOC_DATA = os.path.abspath(os.environ.get("WEFT_DOC_DATA") or os.path.join(ROOT, "build/release/weft_doc_data"))

PATIENCE = 600  # seconds; what takes so long has failed

try:
    import numpy  # noqa: F401
    HAS_NUMPY = True
except ImportError:
    HAS_NUMPY = False

needs_numpy = unittest.skipUnless(HAS_NUMPY, "numpy is not here")


class Case(unittest.TestCase):
    """A test with a folder, in which nothing of the user's own weft is seen, and that leaves nothing behind."""

    def setUp(self):
        warnings.simplefilter("error", ResourceWarning)
        folder = tempfile.TemporaryDirectory(prefix="weft-test-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        os.mkdir(self.file("temporary"))
        self.set_environment(WEFT=REAL, WEFT_BROKER=None, WEFT_TOKEN=None, HOME=self.folder, XDG_CONFIG_HOME=self.folder,
                             XDG_RUNTIME_DIR=self.folder, TMPDIR=self.file("temporary"), OMP_NUM_THREADS="1")
        tempfile.tempdir = None
        self.addCleanup(setattr, tempfile, "tempdir", None)

    def set_environment(self, **variables):
        for name, value in variables.items():
            before = os.environ.get(name)
            self.addCleanup(self._restore, name, before)
            self._restore(name, value)

    @staticmethod
    def _restore(name, value):
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value

    def file(self, name):
        return os.path.join(self.folder, name)

    def tearDown(self):
        self.assertEqual(processes_of(self.folder), [], "processes that a test has left behind")

    def write(self, name, text):
        path = self.file(name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def left_behind(self):
        return sorted(os.listdir(self.file("temporary")))

    @contextlib.contextmanager
    def raises(self, kind, text):
        with self.assertRaises(kind) as caught:
            yield caught
        self.assertIn(text, str(caught.exception))

    # ---- a weft that is a script

    def fake(self, body, version="0.1.0"):
        """Runs `body` for every command but --version; it has `arguments`, and `say(event=..., ...)`."""
        script = textwrap.dedent("""\
            import json, os, signal, sys, time
            arguments = sys.argv[1:]
            def say(**fields):
                print(json.dumps(fields), flush=True)
            with open({log!r}, "a") as log:
                log.write(json.dumps({{"arguments": arguments, "pid": os.getpid(),
                                       "token": os.environ.get("WEFT_TOKEN")}}) + "\\n")
            """).format(log=self.file("calls")) + textwrap.dedent(body)
        self.write("weft.py", script)
        path = self.write("weft", f"""#!/bin/sh
[ "$1" != --version ] || {{ echo 'weft {version} (test)'; exit; }}
exec {sys.executable} -I -S {self.file("weft.py")} "$@"
""")
        os.chmod(path, stat.S_IRWXU)
        self.set_environment(WEFT=path)
        program._versions.clear()
        return path

    def calls(self):
        with open(self.file("calls"), encoding="utf-8") as log:
            return [json.loads(line) for line in log]


def processes_of(folder):
    """The ids of processes whose command line has the folder in it."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if os.fsencode(folder) in file.read() and is_alive(pid):
                    found.append(int(pid))
        except OSError:
            pass
    return found


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


__all__ = ["Case", "DOC_DATA", "HAS_NUMPY", "PATIENCE", "REAL", "ROOT", "is_alive", "needs_numpy", "weft"]
