"""The reader of ONNX files, on files that are written here byte by byte; without PyTorch and the onnx package."""

import unittest

from support import Case, needs_numpy, weft
from weft.weights import read_initializers


def varint(number):
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def number(field, value):
    return varint(field << 3) + varint(value & (1 << 64) - 1)


def sized(field, body):
    return varint(field << 3 | 2) + varint(len(body)) + body


def tensor(name, kind, dims, *more):
    return b"".join([*(number(1, dim) for dim in dims), number(2, kind), sized(8, name.encode()), *more])


def model(*tensors):
    return number(1, 8) + sized(7, sized(2, b"g") + b"".join(sized(5, t) for t in tensors)) + sized(8, number(2, 17))


class Reading(Case):
    def read(self, *tensors):
        path = self.file("model.onnx")
        with open(path, "wb") as file:
            file.write(model(*tensors))
        return list(read_initializers(path))

    def test_raw_bytes(self):
        raw = bytes(range(24))
        first, second = self.read(tensor("a.weight", 1, [2, 3], sized(9, raw)), tensor("mask", 9, [1], sized(9, b"\1")))
        self.assertEqual((first.name, first.dtype, first.shape, bytes(first.data)), ("a.weight", "float32", (2, 3), raw))
        self.assertEqual((second.dtype, second.shape), ("bool", (1,)))

    def test_dims_that_are_packed_and_numbers_that_are_typed(self):
        packed, floats, scalar = self.read(
            sized(1, varint(2) + varint(1)) + number(2, 7) + sized(8, b"n") + sized(7, varint(5) + varint((1 << 64) - 1)),
            tensor("f", 1, [2], varint(4 << 3 | 5) + b"\0\0\x80\x3f", varint(4 << 3 | 5) + b"\0\0\0\x40"),
            tensor("s", 6, [], number(5, 3)))
        self.assertEqual((packed.shape, bytes(packed.data)), ((2, 1), (5).to_bytes(8, "little") + b"\xff" * 8))
        self.assertEqual(bytes(floats.data), b"\0\0\x80\x3f\0\0\0\x40")
        self.assertEqual((scalar.shape, bytes(scalar.data)), ((), b"\3\0\0\0"))

    def test_data_beside_the_file(self):
        with open(self.file("model.data"), "wb") as file:
            file.write(b"....abcdefgh")

        def where(**entries):
            return b"".join(sized(13, sized(1, key.encode()) + sized(2, value.encode()))
                            for key, value in entries.items()) + number(14, 1)
        found, = self.read(tensor("w", 1, [2], where(location="model.data", offset="4", length="8")))
        self.assertEqual(bytes(found.data), b"abcdefgh")
        for entries, text in (({"location": "/etc/passwd"}, "outside its folder"), ({}, "outside its folder"),
                              ({"location": "a/../../b"}, "outside its folder"),
                              ({"location": "model.data", "offset": "8"}, "beyond the end"),
                              ({"location": "model.data", "offset": "-4"}, "beyond the end"),
                              ({"location": "model.data", "offset": "x"}, "no number")):
            with self.raises(weft.Corrupted, text):
                self.read(tensor("w", 1, [2], where(**entries)))
        with self.raises(weft.NotFound, "cannot be read"):
            self.read(tensor("w", 1, [2], where(location="none.data")))

    def test_what_is_not_whole(self):
        for bad, text in ((tensor("w", 1, [3], sized(9, b"12345678")), "'w' has 8 bytes"),
                          (tensor("w", 1, [-1], sized(9, b"")), "the shape of 'w'"),
                          (tensor("w", 1, [1 << 62, 4], sized(9, b"")), "'w' has 0 bytes"),
                          (varint(9 << 3 | 2) + varint(1 << 40), "longer than what holds it"),
                          (varint(9 << 3 | 3), "a field of kind 3"), (b"\xff" * 12, "has no end"),
                          (number(8, 3), "a number stands where bytes are to be")):
            with self.raises(weft.Corrupted, text) as caught:
                self.read(bad)
            self.assertIn("model.onnx", str(caught.exception))
        with self.raises(weft.Unsupported, "data type 8"):
            self.read(tensor("w", 8, [1]))

    def test_an_empty_file_has_none(self):
        self.write("model.onnx", "")
        self.assertEqual(list(read_initializers(self.file("model.onnx"))), [])

    @needs_numpy
    def test_arrays(self):
        self.read(tensor("b", 16, [2], sized(9, b"\x80\x3f\x00\xc0")), tensor("s", 11, [], sized(9, b"\0" * 8)))
        arrays = weft.read_arrays(self.file("model.onnx"))
        self.assertEqual((arrays["b"].tolist(), str(arrays["b"].dtype)), ([1.0, -2.0], "float32"))
        self.assertEqual(arrays["s"].shape, ())


if __name__ == "__main__":
    unittest.main()
