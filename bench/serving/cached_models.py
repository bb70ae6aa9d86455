"""GPT-2 small as PyTorch modules: over a whole window, and a few positions at a time with a cache.

decode.py and export.py use the same weights (torch.manual_seed(0)).
"""
import os
import sys

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "train_step"))
from models import GPT  # noqa: E402

SIZES = {
    "gpt2-small": dict(vocabulary=50257, layers=12, heads=12, width=768, positions=1024),
    "tiny": dict(vocabulary=256, layers=2, heads=2, width=64, positions=128),
}


def make_model(name):
    torch.manual_seed(0)
    return GPT(**SIZES[name]).eval()


class WithCache(nn.Module):
    """The same model over new tokens alone: keys and values of the earlier ones come in and go out."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens, positions, *past):
        model = self.model
        x = model.wte(tokens) + model.wpe(positions)
        present = []
        for i, block in enumerate(model.h):
            b, t, c = x.shape
            q, k, v = block.c_attn(block.ln_1(x)).split(c, dim=2)
            q, k, v = (y.view(b, t, block.heads, block.head_width).transpose(1, 2) for y in (q, k, v))
            k, v = torch.cat([past[2 * i], k], dim=2), torch.cat([past[2 * i + 1], v], dim=2)
            present += [k, v]
            scores = (q @ k.transpose(-2, -1)) * block.scale  # one new token sees all there are
            y = (F.softmax(scores, dim=-1) @ v).transpose(1, 2).reshape(b, t, c)
            x = x + block.c_proj(y)
            x = x + block.m_proj(F.gelu(block.c_fc(block.ln_2(x)), approximate="tanh"))
        return (F.linear(model.ln_f(x), model.wte.weight), *present)
