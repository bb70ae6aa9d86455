#!/usr/bin/python3
"""Writes model.onnx: a small GPT over bytes, 4 layers, width 128, 4 heads, 128 positions.

    /usr/bin/python3 export.py            writes model.onnx beside this script

Put the text to learn from beside the script as corpus.txt: any text of a few hundred kilobytes will do.
Needs python3-torch and python3-onnx.
"""
import argparse
import os

import onnx
import torch
from torch import nn
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))


class Block(nn.Module):
    def __init__(self, width, heads, length, dropout):
        super().__init__()
        self.heads = heads
        self.head_width = width // heads
        self.scale = self.head_width ** -0.5
        self.ln_1 = nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.c_fc = nn.Linear(width, 4 * width)
        self.m_proj = nn.Linear(4 * width, width)
        self.attn_dropout = nn.Dropout(dropout)
        self.proj_dropout = nn.Dropout(dropout)
        self.mlp_dropout = nn.Dropout(dropout)

    def forward(self, x, mask):
        b, t, c = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).split(c, dim=2)
        q = q.view(b, t, self.heads, self.head_width).transpose(1, 2)
        k = k.view(b, t, self.heads, self.head_width).transpose(1, 2)
        v = v.view(b, t, self.heads, self.head_width).transpose(1, 2)
        scores = (q @ k.transpose(-2, -1)) * self.scale
        scores = scores.masked_fill(mask[:, :, :t, :t] == 0, float("-inf"))
        weights = self.attn_dropout(F.softmax(scores, dim=-1))
        y = (weights @ v).transpose(1, 2).reshape(b, t, c)
        x = x + self.proj_dropout(self.c_proj(y))
        return x + self.mlp_dropout(self.m_proj(F.gelu(self.c_fc(self.ln_2(x)))))


class GPT(nn.Module):
    def __init__(self, vocabulary=256, length=128, layers=4, heads=4, width=128, dropout=0.1):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(length, width)
        self.dropout = nn.Dropout(dropout)
        self.h = nn.ModuleList(Block(width, heads, length, dropout) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        # A buffer becomes an ordinary initializer of the ONNX file: job.yaml must freeze it.
        self.register_buffer("mask", torch.tril(torch.ones(length, length)).view(1, 1, length, length))
        for name, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0.0, 0.02 / (2 * layers) ** 0.5 if name.endswith("proj.weight") else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, tokens):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.wte(tokens) + self.wpe(positions))
        for block in self.h:
            x = block(x, self.mask)
        return F.linear(self.ln_f(x), self.wte.weight)  # the head is tied to the embedding


def export(path):
    torch.manual_seed(0)
    torch.onnx.export(
        GPT().train(), torch.zeros(2, 128, dtype=torch.int64), path,
        input_names=["tokens"], output_names=["logits"],
        dynamic_axes={"tokens": {0: "batch"}, "logits": {0: "batch"}},
        # Training mode keeps Dropout and the parameters' names, and folding would tie or rename them.
        training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, opset_version=13)
    onnx.checker.check_model(onnx.load(path))


if __name__ == "__main__":
    argparse.ArgumentParser(description="Writes model.onnx beside this script.").parse_args()
    export(os.path.join(HERE, "model.onnx"))
