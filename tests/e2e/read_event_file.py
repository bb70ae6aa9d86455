#!/usr/bin/env python3
"""Reads a TensorBoard event file by its definition, with nothing of weft: checks each frame's two CRCs and prints
"step tag value" for each scalar.    read_event_file.py FILE"""
import struct
import sys


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def unmask(value):
    rotated = (value - 0xA282EAD8) & 0xFFFFFFFF
    return ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF


def fields(data):
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            value = varint()
        elif kind == 1:
            value, at = data[at:at + 8], at + 8
        elif kind == 5:
            value, at = data[at:at + 4], at + 4
        else:
            size = varint()
            value, at = data[at:at + size], at + size
        yield key >> 3, value


def main():
    data = open(sys.argv[1], "rb").read()
    at = count = 0
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        (of_size,) = struct.unpack_from("<I", data, at + 8)
        assert unmask(of_size) == crc32c(data[at:at + 8]), "the length's CRC"
        event = data[at + 12:at + 12 + size]
        (of_event,) = struct.unpack_from("<I", data, at + 12 + size)
        assert len(event) == size and unmask(of_event) == crc32c(event), "the event's CRC"
        at += 16 + size
        found = dict(fields(event))
        if count == 0:
            assert found[3] == b"brain.Event:2", "the file's version"
        for number, summary in fields(event):
            if number != 5:
                continue
            for _, value in fields(summary):
                scalar = dict(fields(value))
                print(found.get(2, 0), scalar[1].decode(), "%.6g" % struct.unpack("<f", scalar[2]))
        count += 1


main()
