"""A tensor in 32 numbers, for references that are committed: its sums under random signs. The sketch of a difference is the
difference of the sketches, and as long as the difference itself on average (within a tenth or so), so that a
tensor of any size can be compared by norm. tests/train/reference_files.cc draws the same signs.
"""
import numpy as np

SIZE = 32


def _signs(count):
    """By element, 32 signs: the low bits of SplitMix64 of the element's number."""
    z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return z


def sketch(tensor):
    """A tensor of 32 elements or fewer is its own sketch."""
    values = np.asarray(tensor, np.float64).reshape(-1)
    if values.size <= SIZE:
        return values
    z = _signs(values.size)
    rows = [np.where((z >> np.uint64(r)) & np.uint64(1), 1.0, -1.0) @ values for r in range(SIZE)]
    return np.array(rows) / np.sqrt(SIZE)
