"""The wheel: what is in it, and that its versions are those of weft."""

import csv
import hashlib
import base64
import os
import re
import subprocess
import sys
import unittest
import zipfile

from support import ROOT, Case, weft


class Wheel(Case):
    def setUp(self):
        super().setUp()
        self.path = self.make("wheels")

    def make(self, folder):
        said = subprocess.run([sys.executable, os.path.join(ROOT, "packaging/wheel.py"), self.file(folder)],
                              capture_output=True, text=True, check=True)
        return said.stdout.strip()

    def test_it_is_the_package(self):
        with zipfile.ZipFile(self.path) as wheel:
            names = set(wheel.namelist())
            rows = list(csv.reader(wheel.read(f"weft-{weft.__version__}.dist-info/RECORD").decode().splitlines()))
            self.assertEqual({row[0] for row in rows}, names)
            for name, digest, size in rows[:-1]:
                body = wheel.read(name)
                expected = base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=").decode()
                self.assertEqual((digest, int(size)), ("sha256=" + expected, len(body)))
            metadata = wheel.read(f"weft-{weft.__version__}.dist-info/METADATA").decode()
        here = os.listdir(os.path.join(ROOT, "python/weft"))
        self.assertEqual({name for name in names if name.startswith("weft/")},
                         {"weft/" + name for name in here if name.endswith((".py", ".typed"))})
        self.assertIn("Requires-Python: >=3.9\n", metadata)
        self.assertIn("Requires-Dist: torch>=1.13 ; extra == 'torch'\n", metadata)

    def test_it_is_the_same_bytes_again(self):
        with open(self.path, "rb") as first, open(self.make("again"), "rb") as second:
            self.assertEqual(first.read(), second.read())

    def test_python_takes_it(self):
        said = subprocess.run([sys.executable, "-c", "import weft; print(weft.__file__, weft.__version__)"],
                              env={**os.environ, "PYTHONPATH": self.path}, cwd=self.folder, capture_output=True, text=True,
                              check=True)
        self.assertEqual(said.stdout.split(), [self.path + "/weft/__init__.py", weft.__version__])

    def test_one_version(self):
        with open(os.path.join(ROOT, "CMakeLists.txt"), encoding="utf-8") as file:
            built = re.search(r"project\(weft VERSION ([0-9.]+)", file.read()).group(1)
        self.assertEqual((built, os.path.basename(self.path)),
                         (weft.__version__, f"weft-{weft.__version__}-py3-none-any.whl"))

    def test_it_needs_python_3_9_and_no_later_one(self):
        """The syntax; 3.9 itself may not be here."""
        import ast
        folder = os.path.join(ROOT, "python/weft")
        for name in sorted(os.listdir(folder)):
            if name.endswith(".py"):
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    source = file.read()
                ast.parse(source, name, feature_version=(3, 9))
                self.assertIn("from __future__ import annotations", source + ("" if name != "__init__.py" else
                              "from __future__ import annotations"), name)


if __name__ == "__main__":
    unittest.main()
