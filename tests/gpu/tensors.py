"""The float32 initializers of an ONNX file, without the onnx package, which machines with GPUs seldom have."""
import struct

FLOAT = 1


def _varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(data):
    """(number, value) of a message's fields; a value is a number or a piece of `data`."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
        elif kind == 1:
            value, at = data[at:at + 8], at + 8
        elif kind == 2:
            size, at = _varint(data, at)
            value, at = data[at:at + size], at + size
        elif kind == 5:
            value, at = data[at:at + 4], at + 4
        else:
            raise ValueError(f"field of kind {kind}")
        yield key >> 3, value


def _tensor(data):
    """TensorProto: (name, array), or None for other dtypes."""
    import numpy as np
    name, dims, dtype, raw, floats = "", [], 0, None, []
    for number, value in _fields(data):
        if number == 1 and isinstance(value, int):
            dims.append(value)
        elif number == 1:
            at = 0
            while at < len(value):
                dim, at = _varint(value, at)
                dims.append(dim)
        elif number == 2:
            dtype = value
        elif number == 4:  # packed, or one by one
            floats += struct.unpack(f"<{len(value) // 4}f", value)
        elif number == 8:
            name = bytes(value).decode()
        elif number == 9:
            raw = value
        elif number == 13:
            raise ValueError(f"{name}: external data")
    if dtype != FLOAT:
        return None
    values = np.frombuffer(raw, "<f4") if raw is not None else np.array(floats, np.float32)
    return name, values.reshape(dims)


def read_initializers(data):
    """`data`: the bytes of a ModelProto. By name, float32 arrays."""
    found = {}
    for number, value in _fields(memoryview(data)):
        if number != 7:  # ModelProto.graph
            continue
        for inner, tensor in _fields(value):
            if inner == 5:  # GraphProto.initializer
                read = _tensor(tensor)
                if read:
                    found[read[0]] = read[1]
    return found
