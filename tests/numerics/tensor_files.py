"""Files of safetensors by their published form: eight bytes that say how long the header is, the header, the bytes."""
import json
import struct

import numpy as np


def write(path, tensors):
    """`tensors`: arrays of float32 by name."""
    header, data = {}, b""
    for name in sorted(tensors):
        part = tensors[name].astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensors[name].shape), "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def read(path):
    """The arrays of float32 by name."""
    with open(path, "rb") as file:
        raw = file.read()
    (length,) = struct.unpack("<Q", raw[:8])
    rows = {name: row for name, row in json.loads(raw[8:8 + length]).items() if name != "__metadata__" and row["dtype"] == "F32"}
    return {name: np.frombuffer(raw[8 + length:][slice(*row["data_offsets"])], "<f4").reshape(row["shape"])
            for name, row in rows.items()}
