#!/usr/bin/python3
"""Decodes with PyTorch and a cache: for each line "BEFORE TOKENS" of its input one with milliseconds a token.

    /usr/bin/python3 decode_torch.py MODEL THREADS
"""
import sys
import time

import torch

from cached_models import SIZES, WithCache, make_model


def main():
    name, threads = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(threads)
    sizes = SIZES[name]
    cached = WithCache(make_model(name))
    shape = (1, sizes["heads"], 0, sizes["width"] // sizes["heads"])
    generator = torch.Generator().manual_seed(1)
    print("ready", flush=True)
    for line in sys.stdin:
        before, count = map(int, line.split())
        past = [torch.randn(*shape[:2], before, shape[3], generator=generator) for _ in range(2 * sizes["layers"])]
        tokens = torch.zeros(1, 1, dtype=torch.int64)
        with torch.inference_mode():
            _, *kept = cached(tokens, torch.tensor([[before]]), *past)  # warm
            begin = time.perf_counter()
            for i in range(count):
                logits, *past = cached(tokens, torch.tensor([[before + i]]), *past)
                tokens = logits[:, -1].argmax(-1, keepdim=True)
            print((time.perf_counter() - begin) * 1000 / count, flush=True)


if __name__ == "__main__":
    main()
