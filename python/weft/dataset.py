"""A data set of PyTorch, written to files that weft reads; a sample at a time, whatever its size."""

from __future__ import annotations

import os
import zipfile
from typing import IO, TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from .errors import InvalidArgument, NotFound, Unsupported

if TYPE_CHECKING:
    import numpy

_HEADER_BYTES = 256        # of a .npy: room for the count, which is known at the end
_CHUNK_BYTES = 1 << 20
_COLUMNS_MAX = 64
_NOT_IN_NAMES = "/\\:*?\"<>|"

Sample = List[Tuple[str, Any]]


# ---- samples ---------------------------------------------------------------------------------------------------


class Samples:
    """The samples of a data set, in order, each flattened to values; the first can be looked at beforehand."""

    def __init__(self, dataset: Any, what: str = "dataset") -> None:
        self.what = what
        refuse_what_is_no_dataset(dataset, what)
        self._columns = array_columns(dataset)
        self.count: Optional[int] = None
        if self._columns is not None:
            self.count = len(next(iter(self._columns.values())))
        elif is_map_style(dataset):
            self.count = len(dataset)
        self._dataset = dataset
        if self.count == 0:
            raise InvalidArgument(f"{what} has no samples")
        self._iterator = iter(self._all())
        try:
            self.first = next(self._iterator)
        except StopIteration:
            raise InvalidArgument(f"{what} has no samples") from None

    def keys(self) -> Optional[List[str]]:
        """The names of its values where a sample is a mapping; None where it is a sequence."""
        return list(self.first) if isinstance(self.first, Mapping) else None

    def __iter__(self) -> Iterator[Any]:
        yield self.first
        yield from self._iterator

    def _all(self) -> Iterator[Any]:
        if self._columns is not None:
            assert self.count is not None
            for index in range(self.count):
                yield {name: column[index] for name, column in self._columns.items()}
        elif self.count is not None:
            for index in range(self.count):
                yield self._dataset[index]
        else:
            yield from self._dataset


def is_map_style(dataset: Any) -> bool:
    return hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")


def refuse_what_is_no_dataset(dataset: Any, what: str) -> None:
    if type(dataset).__name__ == "DataLoader":
        raise InvalidArgument(f"{what} is a DataLoader: pass the Dataset that it reads; weft makes batches itself, in "
                              "an order that every machine knows")
    if isinstance(dataset, (str, bytes)) or not (is_map_style(dataset) or hasattr(dataset, "__iter__")):
        raise InvalidArgument(f"{what} is a {type(dataset).__name__}; it has to be a torch Dataset, a list of samples, "
                              "a mapping of names to arrays, or an .npz file")


def array_columns(dataset: Any) -> Optional[Dict[str, Any]]:
    """A mapping of names to arrays, each with its samples on the first axis; None for anything else."""
    if not isinstance(dataset, Mapping):
        return None
    columns = {str(name): column for name, column in dataset.items()}
    lengths = {}
    for name, column in columns.items():
        if not hasattr(column, "__len__") or not hasattr(column, "shape"):
            raise InvalidArgument(f"'{name}' is a {type(column).__name__}; a mapping of names to data holds arrays or "
                                  "tensors, each with its samples on the first axis")
        lengths[name] = len(column)
    if not columns:
        raise InvalidArgument("the mapping holds no arrays")
    if len(set(lengths.values())) > 1:
        raise InvalidArgument(f"the arrays have different numbers of samples: {lengths}")
    return columns


def flatten(sample: Any) -> List[Any]:
    """The values of a sample that is a sequence, of sequences perhaps: ((a, b), y) has three."""
    if isinstance(sample, (tuple, list)) and not _is_numbers(sample):
        return [value for part in sample for value in flatten(part)]
    return [sample]


def _is_numbers(sample: Sequence[Any]) -> bool:
    """A list of plain numbers is one value."""
    return isinstance(sample, list) and len(sample) > 0 and all(isinstance(n, (int, float, bool)) for n in sample)


# ---- columns ---------------------------------------------------------------------------------------------------


def to_array(value: Any, name: str, index: int) -> "numpy.ndarray[Any, Any]":
    """A value of a sample as an array that weft reads."""
    import numpy as np

    array: "numpy.ndarray[Any, Any]"
    if hasattr(value, "detach"):
        value = value.detach()
        if str(value.dtype) == "torch.bfloat16":
            value = value.float()
        array = value.cpu().numpy()
    elif type(value).__module__.startswith("PIL."):
        raise InvalidArgument(f"'{name}' of sample {index} is a PIL image: give the data set a transform that makes a "
                              "tensor of it, as torchvision.transforms.ToTensor()")
    elif value is None or isinstance(value, (str, bytes, Mapping)):
        raise InvalidArgument(f"'{name}' of sample {index} is a {type(value).__name__}; it has to be a tensor, an "
                              "array or a number")
    else:
        array = np.asarray(value)
    if array.dtype == np.float64:
        array = array.astype(np.float32)  # as weft would on reading
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        raise InvalidArgument(f"'{name}' of sample {index} holds {array.dtype}; it has to hold floats, integers or "
                              "booleans")
    return array if array.dtype.byteorder != ">" else array.astype(array.dtype.newbyteorder("<"))


class ColumnWriter:
    """A column as a .npy file that grows; the first sample says what all are like."""

    def __init__(self, path: str, name: str, first: "numpy.ndarray[Any, Any]") -> None:
        self.path, self.name = path, name
        self.shape, self.dtype = first.shape, first.dtype
        self.count = 0
        self._file: IO[bytes] = open(path, "wb", buffering=_CHUNK_BYTES)
        self._file.write(b"\0" * _HEADER_BYTES)

    def add(self, array: "numpy.ndarray[Any, Any]") -> None:
        import numpy as np

        if array.shape != self.shape:
            raise InvalidArgument(f"'{self.name}' of sample {self.count} has the shape {list(array.shape)}, and that of "
                                  f"the samples before it {list(self.shape)}: crop or pad them to one shape")
        if array.dtype != self.dtype:
            if not np.can_cast(array.dtype, self.dtype, "safe"):
                raise InvalidArgument(f"'{self.name}' of sample {self.count} holds {array.dtype}, and the samples before "
                                      f"it {self.dtype}: make them of one type")
            array = array.astype(self.dtype)
        self._file.write(array.tobytes())
        self.count += 1

    def finish(self) -> None:
        text = repr({"descr": self.dtype.str, "fortran_order": False, "shape": (self.count, *self.shape)}).encode()
        body = _HEADER_BYTES - 10
        self._file.seek(0)
        self._file.write(b"\x93NUMPY\x01\x00" + body.to_bytes(2, "little") + text.ljust(body - 1) + b"\n")
        self._file.close()

    def remove(self) -> None:
        self._file.close()
        os.unlink(self.path)


def check_column_name(name: str) -> None:
    if not name or len(name) > 128 or name.startswith(".") or any(c in _NOT_IN_NAMES or c < " " for c in name):
        raise InvalidArgument(f"{name!r} cannot be the name of a column")


def write_columns(samples: Samples, columns: Sequence[str], folder: str, stem: str) -> Dict[str, Any]:
    """Writes the columns of the samples; what the job file says of them.

    `columns` names the values of a sample that is a sequence, in their order, or takes those of a mapping.
    """
    if len(columns) > _COLUMNS_MAX:
        raise Unsupported(f"a sample has {len(columns)} values; at most {_COLUMNS_MAX} are written")
    for name in columns:
        check_column_name(name)
    writers: List[ColumnWriter] = []
    try:
        for index, sample in enumerate(samples):
            values = named_values(sample, columns, index, samples.what)
            for at, (name, value) in enumerate(zip(columns, values)):
                array = to_array(value, name, index)
                if index == 0:
                    writers.append(ColumnWriter(os.path.join(folder, f"{stem}.{name}.npy"), name, array))
                writers[at].add(array)
        for writer in writers:
            writer.finish()
    except BaseException:
        for writer in writers:
            writer.remove()
        raise
    return {"type": "npy", "arrays": {writer.name: os.path.basename(writer.path) for writer in writers}}


def named_values(sample: Any, columns: Sequence[str], index: int, what: str) -> List[Any]:
    """What a sample has for the columns, in their order."""
    if isinstance(sample, Mapping):
        missing = [name for name in columns if name not in sample]
        if missing:
            raise InvalidArgument(f"sample {index} of {what} has no '{missing[0]}'; it has "
                                  f"{', '.join(map(repr, list(sample)[:16]))}")
        return [sample[name] for name in columns]
    values = flatten(sample)
    if len(values) != len(columns):
        raise InvalidArgument(f"sample {index} of {what} has {len(values)} values, and the model and its losses read "
                              f"{len(columns)}: {', '.join(columns)}")
    return values


# ---- data that is in files already -------------------------------------------------------------------------------


def data_in_files(dataset: Any) -> Optional[Dict[str, Any]]:
    """What a job file says of data that is in files; None for a data set that has to be written."""
    if isinstance(dataset, (str, os.PathLike)):
        path = os.path.abspath(os.fspath(dataset))
        if not path.endswith(".npz"):
            raise InvalidArgument(f"{path}: say what it is, as {{'type': 'text', 'path': ..., 'sequence_length': 128}}; "
                                  "only an .npz file tells by itself")
        dataset = {"type": "npz", "path": path}
    if not isinstance(dataset, Mapping) or not isinstance(dataset.get("type"), str):
        return None
    fields = {str(key): value for key, value in dataset.items()}
    for key, value in fields.items():
        fields[key] = _absolute(key, value)
    return fields


def _absolute(key: str, value: Any) -> Any:
    if key == "arrays" and isinstance(value, Mapping):
        return {str(name): _absolute("path", path) for name, path in value.items()}
    if key in ("path", "images", "labels") and isinstance(value, (str, os.PathLike)):
        path = os.path.abspath(os.fspath(value))
        if not os.path.exists(path):
            raise NotFound(f"{path} is not there")
        return path
    return value


def columns_in_files(data: Mapping[str, Any]) -> Optional[List[str]]:
    """The columns of such data, where its type tells; None where only weft knows."""
    if data["type"] in ("idx", "images"):
        return ["image", "label"]
    if data["type"] == "text":
        return ["tokens", "targets"]
    if data["type"] in ("npy", "csv"):
        return [str(name) for name in data.get("arrays" if data["type"] == "npy" else "columns") or {}]
    if data["type"] == "npz":
        with zipfile.ZipFile(data["path"]) as archive:
            return [name[:-4] for name in archive.namelist() if name.endswith(".npy")]
    return None
