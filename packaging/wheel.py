#!/usr/bin/python3
"""Writes the wheel of the Python package: packaging/wheel.py FOLDER prints its path.

A wheel is a zip file with a few texts beside the sources. This one is the same bytes whenever it is written.
"""

import base64
import glob
import hashlib
import os
import re
import sys
import zipfile

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../python")
TIME = (1980, 1, 1, 0, 0, 0)


def read(name):
    with open(os.path.join(HERE, name), encoding="utf-8") as file:
        return file.read()


def metadata():
    """The version, and the text METADATA, of pyproject.toml: Python has no reader of it before 3.11."""
    project = read("pyproject.toml")

    def value(key):
        return re.search(rf'^{key} = "(.*)"$', project, re.M).group(1)

    def values(key):
        return re.findall(r'"([^"]*)"', re.search(rf"^{key} = \[(.*?)\]", project, re.M | re.S).group(1))
    version = value("version")
    lines = ["Metadata-Version: 2.1", f"Name: {value('name')}", f"Version: {version}", f"Summary: {value('description')}",
             "License: " + re.search(r'^license = \{text = "(.*)"\}$', project, re.M).group(1),
             f"Requires-Python: {value('requires-python')}"]
    lines += [f"Classifier: {classifier}" for classifier in values("classifiers")]
    for extra in ("torch", "plot"):
        lines.append(f"Provides-Extra: {extra}")
        lines += [f"Requires-Dist: {need} ; extra == '{extra}'" for need in values(extra)]
    lines += ["Description-Content-Type: text/markdown", "", read("README.md")]
    return version, "\n".join(lines)


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    version, text = metadata()
    info = f"weft-{version}.dist-info"
    files = {}
    for path in sorted([*glob.glob(os.path.join(HERE, "weft/*.py")), os.path.join(HERE, "weft/py.typed")]):
        with open(path, "rb") as file:
            files["weft/" + os.path.basename(path)] = file.read()
    with open(os.path.join(HERE, "../LICENSE"), "rb") as file:
        files[f"{info}/LICENSE"] = file.read()
    files[f"{info}/METADATA"] = text.encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: weft\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b'=').decode()},{len(body)}\n"
        for name, body in files.items())
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    os.makedirs(sys.argv[1], exist_ok=True)
    path = os.path.join(sys.argv[1], f"weft-{version}-py3-none-any.whl")
    with zipfile.ZipFile(path + ".new", "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, body in files.items():
            entry = zipfile.ZipInfo(name, TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            wheel.writestr(entry, body)
    os.replace(path + ".new", path)
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
