"""The weights of an ONNX file: its initializers, read without the onnx package.

Of protobuf's wire format this needs little: a message is a sequence of fields, each a number with a kind, and either
a varint, four or eight bytes, or bytes with their length before them.
"""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

from .errors import Corrupted, InvalidArgument, NotFound, Unsupported

if TYPE_CHECKING:
    import numpy
    import torch

# Fields of onnx.proto.
_MODEL_GRAPH, _GRAPH_INITIALIZER = 7, 5
_DIMS, _DATA_TYPE, _FLOATS, _INT32S, _INT64S, _NAME, _RAW, _DOUBLES, _EXTERNAL, _LOCATION = (
    1, 2, 4, 5, 7, 8, 9, 10, 13, 14)
_KEY, _VALUE = 1, 2
_TENSORS_MAX = 1 << 20
_RANK_MAX = 32

# TensorProto.DataType: numpy's name, bytes of an element.
_TYPES: Dict[int, Tuple[str, int]] = {
    1: ("float32", 4), 2: ("uint8", 1), 3: ("int8", 1), 4: ("uint16", 2), 5: ("int16", 2), 6: ("int32", 4),
    7: ("int64", 8), 9: ("bool", 1), 10: ("float16", 2), 11: ("float64", 8), 12: ("uint32", 4), 13: ("uint64", 8),
    16: ("bfloat16", 2),
}

_Buffer = Union[memoryview, bytes]


class Initializer(NamedTuple):
    """A tensor of the file: its bytes are little-endian, in the order of its elements."""

    name: str
    dtype: str
    shape: Tuple[int, ...]
    data: _Buffer


def _varint(view: memoryview, at: int) -> Tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(view):
            break
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise Corrupted("a number of the file has no end")


def _fields(view: memoryview) -> Iterator[Tuple[int, Union[int, memoryview]]]:
    """The fields of a message: a number, and an integer or the bytes."""
    at = 0
    while at < len(view):
        key, at = _varint(view, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(view, at)
            yield number, value
            continue
        if kind == 2:
            size, at = _varint(view, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise Corrupted(f"a field of kind {kind} is in no ONNX file")
        if size > len(view) - at:
            raise Corrupted("a field is longer than what holds it")
        yield number, view[at:at + size]
        at += size


def _bytes(value: Union[int, memoryview]) -> memoryview:
    if isinstance(value, int):
        raise Corrupted("a number stands where bytes are to be")
    return value


def _integers(value: Union[int, memoryview]) -> List[int]:
    """Of a repeated field: one number, or many that are packed."""
    if isinstance(value, int):
        return [value]
    numbers, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        numbers.append(number)
    return numbers


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def _text(value: Union[int, memoryview]) -> str:
    return bytes(_bytes(value)).decode("utf-8", "replace")


class _Tensor:
    """A TensorProto as it is read."""

    def __init__(self, view: memoryview) -> None:
        self.name, self.type, self.dims = "", 0, []  # type: str, int, List[int]
        self.raw: Optional[memoryview] = None
        self.typed: List[memoryview] = []   # float_data and double_data, packed
        self.numbers: List[int] = []        # int32_data and int64_data
        self.external: Dict[str, str] = {}
        self.is_external = False
        for number, value in _fields(view):
            if number == _DIMS:
                self.dims += [_signed(n) for n in _integers(value)]
            elif number == _DATA_TYPE and isinstance(value, int):
                self.type = value
            elif number == _NAME:
                self.name = _text(value)
            elif number == _RAW:
                self.raw = _bytes(value)
            elif number in (_FLOATS, _DOUBLES):
                self.typed.append(_bytes(value))
            elif number in (_INT32S, _INT64S):
                self.numbers += [_signed(n) for n in _integers(value)]
            elif number == _EXTERNAL:
                entry = dict(_fields(_bytes(value)))
                self.external[_text(entry.get(_KEY, memoryview(b"")))] = _text(entry.get(_VALUE, memoryview(b"")))
            elif number == _LOCATION:
                self.is_external = value == 1

    def bytes_wanted(self) -> int:
        size = _TYPES[self.type][1]
        for dim in self.dims:
            size *= dim
        return size

    def data(self, files: "_Files") -> _Buffer:
        if self.is_external:
            return files.external(self.name, self.external, self.bytes_wanted())
        if self.raw is not None:
            return self.raw
        if self.numbers:
            size = 2 if _TYPES[self.type][0] in ("float16", "bfloat16") else _TYPES[self.type][1]
            mask = (1 << 8 * size) - 1
            return b"".join((n & mask).to_bytes(size, "little") for n in self.numbers)
        return b"".join(bytes(part) for part in self.typed)


class _Files:
    """The file, and those beside it that hold its data."""

    def __init__(self, path: str, *, writes: bool = False) -> None:
        self.path, self.folder = path, os.path.dirname(os.path.abspath(path))
        self._writes = writes
        self._mapped: Dict[str, memoryview] = {}

    def view(self, path: str) -> memoryview:
        if path not in self._mapped:
            try:
                with open(path, "r+b" if self._writes else "rb") as file:
                    access = mmap.ACCESS_WRITE if self._writes else mmap.ACCESS_READ
                    empty = os.fstat(file.fileno()).st_size == 0
                    self._mapped[path] = memoryview(
                        b"" if empty else mmap.mmap(file.fileno(), 0, access=access))
            except OSError as problem:
                raise NotFound(f"{path} cannot be read: {problem.strerror}") from problem
        return self._mapped[path]

    def external(self, name: str, where: Dict[str, str], size: int) -> memoryview:
        location = where.get("location", "")
        if not location or os.path.isabs(location) or ".." in location.split("/"):
            raise Corrupted(f"{self.path}: the data of '{name}' lie outside its folder")
        view = self.view(os.path.join(self.folder, location))
        try:
            offset, length = int(where.get("offset") or 0), int(where.get("length") or size)
        except ValueError:
            raise Corrupted(f"{self.path}: where the data of '{name}' lie is no number") from None
        if offset < 0 or length < 0 or offset + length > len(view):
            raise Corrupted(f"{self.path}: the data of '{name}' lie beyond the end of {location}")
        return view[offset:offset + length]


def read_initializers(path: "str | os.PathLike[str]") -> Iterator[Initializer]:
    """The initializers of an ONNX file, one after the other; their bytes stay in the file until they are used."""
    return _initializers(_Files(os.fspath(path)))


def _initializers(files: _Files) -> Iterator[Initializer]:
    name, count = files.path, 0
    try:
        for number, graph in _fields(files.view(name)):
            if number != _MODEL_GRAPH:
                continue
            for part, message in _fields(_bytes(graph)):
                if part != _GRAPH_INITIALIZER:
                    continue
                count += 1
                if count > _TENSORS_MAX:
                    raise Corrupted(f"more than {_TENSORS_MAX} tensors")
                yield _initializer(_Tensor(_bytes(message)), files)
    except Corrupted as problem:
        raise Corrupted(problem.message if problem.message.startswith(name) else f"{name}: {problem.message}") from None


def _initializer(tensor: _Tensor, files: _Files) -> Initializer:
    if tensor.type not in _TYPES:
        raise Unsupported(f"{files.path}: '{tensor.name}' is of ONNX's data type {tensor.type}, which PyTorch lacks")
    if len(tensor.dims) > _RANK_MAX or any(dim < 0 for dim in tensor.dims):
        raise Corrupted(f"the shape of '{tensor.name}' is {tensor.dims[:_RANK_MAX]}")
    data = tensor.data(files)
    if len(data) != tensor.bytes_wanted():
        raise Corrupted(f"'{tensor.name}' has {len(data)} bytes, and its shape {tensor.dims} needs "
                        f"{tensor.bytes_wanted()}")
    return Initializer(tensor.name, _TYPES[tensor.type][0], tuple(tensor.dims), data)


def read_arrays(path: "str | os.PathLike[str]") -> "Dict[str, numpy.ndarray[Any, Any]]":
    """The initializers as numpy's arrays; bfloat16, which numpy lacks, as float32."""
    import numpy as np

    arrays = {}
    for initializer in read_initializers(path):
        if initializer.dtype == "bfloat16":
            high = np.frombuffer(initializer.data, np.uint16).astype(np.uint32) << 16
            array = high.view(np.float32)
        else:
            array = np.frombuffer(initializer.data, np.dtype(initializer.dtype)).copy()
        arrays[initializer.name] = array.reshape(initializer.shape)
    return arrays


def bare_module(model: Any) -> Any:
    """The module itself, without DataParallel or torch.compile around it."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DataParallel", "DistributedDataParallel"):
            inner = model.module
        if inner is None:
            return model
        model = inner


def load_state(path: "str | os.PathLike[str]", model: "torch.nn.Module", *, strict: bool = True) -> List[str]:
    """Copies the initializers of an ONNX file into the parameters and buffers of a module, by name.

    Nothing is changed where one does not fit. Returns the names. A weight that the module has under two names is
    one tensor, and the file has one of them.
    """
    import torch

    model = bare_module(model)
    state = named_state(model)
    found: List[Tuple[torch.Tensor, Initializer]] = []
    others: List[str] = []
    for initializer in read_initializers(path):
        tensor = state.get(initializer.name)
        if tensor is None:
            if initializer.dtype in ("float32", "float16", "float64", "bfloat16"):
                others.append(initializer.name)
        elif tuple(tensor.shape) != initializer.shape:
            raise InvalidArgument(f"'{initializer.name}' is {list(initializer.shape)} in {os.fspath(path)} and "
                                  f"{list(tensor.shape)} in the model: it is not the model that was submitted")
        else:
            found.append((tensor, initializer))
    _check_names([initializer.name for _, initializer in found], others, strict, os.fspath(path))
    with torch.no_grad():
        for tensor, initializer in found:
            if tensor.numel() > 0:
                values = torch.frombuffer(bytearray(initializer.data), dtype=getattr(torch, initializer.dtype))
                tensor.copy_(values.reshape(initializer.shape))
    return [initializer.name for _, initializer in found]


def named_state(model: "torch.nn.Module") -> "Dict[str, torch.Tensor]":
    """Parameters and buffers under all of their names: a tied weight has several."""
    return {f"{prefix}.{name}" if prefix else name: tensor
            for prefix, module in model.named_modules(remove_duplicate=False)
            for name, tensor in [*module._parameters.items(), *module._buffers.items()] if tensor is not None}


def patch_initializers(path: "str | os.PathLike[str]", tensors: "Dict[str, torch.Tensor]") -> Set[str]:
    """Writes the tensors into the file where it has other values for their names; returns all names of the file."""
    import numpy as np

    files = _Files(os.fspath(path), writes=True)
    names = set()
    for initializer in _initializers(files):
        names.add(initializer.name)
        tensor = tensors.get(initializer.name)
        if tensor is None or not tensor.numel() or not isinstance(initializer.data, memoryview):
            continue
        if str(tensor.dtype) != "torch." + initializer.dtype or tuple(tensor.shape) != initializer.shape:
            continue
        raw = _raw_bytes(tensor)
        if not np.array_equal(raw, np.frombuffer(initializer.data, np.uint8)):
            initializer.data[:] = raw.data
    return names


def _raw_bytes(tensor: "torch.Tensor") -> "numpy.ndarray[Any, Any]":
    import torch

    values = tensor.detach().cpu().contiguous().reshape(-1)
    if values.dtype == torch.bfloat16:  # numpy has none
        values = values.view(torch.int16)
    array: "numpy.ndarray[Any, Any]" = values.numpy()
    return array.view("uint8")


def _check_names(found: Sequence[str], others: Sequence[str], strict: bool, path: str) -> None:
    if not found:
        raise InvalidArgument(f"{path} has none of the model's parameters: it is not the model that was submitted")
    # What the program itself computed with has names that no module has: they hold no dot, or begin with onnx::.
    foreign = [name for name in others if "." in name and not name.startswith(("onnx::", "/"))]
    if foreign and strict:
        raise InvalidArgument(f"{path} has {len(foreign)} tensors that the model lacks, as '{foreign[0]}': it is not "
                              "the model that was submitted (strict=False loads the rest)")
