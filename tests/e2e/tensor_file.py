"""Files of safetensors, read and written by the published format alone: for tests/e2e, tests/numerics and bench/adapters.

    tensor_file.py check FILE              fails unless its bytes are as the library lays them out; prints the names
    tensor_file.py split FILE FOLDER N PREFIX    as N files with an index, each name with PREFIX in front
    tensor_file.py transpose FILE NEW      with each matrix the other way round
    tensor_file.py halve FILE NEW          the same with float32 cut to bfloat16
    tensor_file.py spoil FILE              other numbers in place, of the same size and time
"""
import array
import json
import os
import pathlib
import struct
import sys

# As the library orders them: the last one comes first in a file.
TYPES = ["BOOL", "U8", "I8", "I16", "U16", "F16", "BF16", "I32", "U32", "F32", "F64", "I64", "U64"]
SIZES = dict(zip(TYPES, [1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 8, 8, 8]))


def read(path):
    raw = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    data = raw[8 + length :]
    header.pop("__metadata__", None)
    return {name: (row["dtype"], row["shape"], data[slice(*row["data_offsets"])]) for name, row in header.items()}


def packed(tensors):
    names = sorted(tensors, key=lambda name: (-TYPES.index(tensors[name][0]), name.encode()))
    header, parts, offset = {"__metadata__": {"format": "pt"}}, [], 0
    for name in names:
        dtype, shape, part = tensors[name]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(part)]}
        parts.append(part)
        offset += len(part)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([struct.pack("<Q", len(text)), text, *parts])


def q4_0(draws):
    return struct.pack("<e", draws.uniform(0.002, 0.01)) + b"\0" + draws.randbytes(15)


def q8_0(draws):
    numbers = [draws.choice((-127, 127))] + [draws.randint(-127, 127) for _ in range(31)]
    return struct.pack("<e32b", draws.uniform(0.0001, 0.0005), *numbers)


def gguf(tensors, draws, block=q4_0):
    """A file as llama.cpp has them: matrices of rows of whole blocks as Q4_0 or Q8_0, of drawn numbers; else as they are."""
    types = {"F32": 0, "F16": 1, "BF16": 30, q4_0: 2, q8_0: 8}
    head, data = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 0), b""
    for name, (dtype, shape, part) in tensors.items():
        number = types[dtype]
        if len(shape) == 2 and shape[1] % 32 == 0:
            number = types[block]
            part = b"".join(block(draws) for _ in range(shape[0] * shape[1] // 32))
        encoded = name.encode()
        head += struct.pack("<Q", len(encoded)) + encoded + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}QIQ", *reversed(shape), number, len(data))
        data += part + b"\0" * (-len(part) % 32)
    return head + b"\0" * (-len(head) % 32) + data


def transposed(tensor):
    dtype, shape, data = tensor
    if len(shape) != 2:
        return tensor
    rows, columns = shape
    numbers = array.array({1: "B", 2: "H", 4: "I", 8: "Q"}[SIZES[dtype]], data)
    return dtype, [columns, rows], b"".join(numbers[c::columns].tobytes() for c in range(columns))


def check(path):
    tensors = read(path)
    for name, (dtype, shape, data) in tensors.items():
        count = 1
        for dim in shape:
            count *= dim
        assert count * SIZES[dtype] == len(data), name
    assert packed(tensors) == pathlib.Path(path).read_bytes(), "other bytes than the library writes"
    print("\n".join(sorted(tensors)))


def split(path, folder, count, prefix):
    tensors = read(path)
    parts = [f"model-{i + 1:05}-of-{int(count):05}.safetensors" for i in range(int(count))]
    place = {name: parts[i % len(parts)] for i, name in enumerate(sorted(tensors))}
    for part in parts:
        inside = {prefix + name: tensors[name] for name in tensors if place[name] == part}
        (pathlib.Path(folder) / part).write_bytes(packed(inside))
    index = {"metadata": {"total_size": sum(len(t[2]) for t in tensors.values())},
             "weight_map": {prefix + name: place[name] for name in sorted(tensors)}}
    (pathlib.Path(folder) / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def transpose(path, new):
    pathlib.Path(new).write_bytes(packed({name: transposed(tensor) for name, tensor in read(path).items()}))


def halved(tensor):
    """float32 cut to bfloat16: the upper halves of little-endian numbers."""
    dtype, shape, data = tensor
    return ("BF16", shape, array.array("H", data)[1::2].tobytes()) if dtype == "F32" else tensor


def halve(path, new):
    pathlib.Path(new).write_bytes(packed({name: halved(transposed(tensor)) for name, tensor in read(path).items()}))


def spoil(path):
    before, raw = os.stat(path), bytearray(pathlib.Path(path).read_bytes())
    data = 8 + int.from_bytes(raw[:8], "little")
    raw[data:] = bytes(byte ^ 1 for byte in raw[data:])
    pathlib.Path(path).write_bytes(raw)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


if __name__ == "__main__":
    {"check": check, "split": split, "transpose": transpose, "halve": halve, "spoil": spoil}[sys.argv[1]](*sys.argv[2:])
