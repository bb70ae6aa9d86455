#!/usr/bin/python3
"""Writes model.onnx.gz and data.npz: a small DenseNet, whose values have many readers, and random images for it.
Needs python3-torch."""
import gzip
import io
import os

import numpy as np
import torch
from torch import nn

HERE = os.path.dirname(os.path.abspath(__file__))


class DenseLayer(nn.Module):
    def __init__(self, channels, growth):
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(channels), nn.Conv2d(channels, 2 * growth, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(2 * growth), nn.Conv2d(2 * growth, growth, 3, padding=1, bias=False)

    def forward(self, features):
        x = torch.cat(features, 1)
        return self.conv2(torch.relu(self.norm2(self.conv1(torch.relu(self.norm1(x))))))


class DenseNet(nn.Module):
    def __init__(self, growth=8, blocks=(4, 4, 3), classes=10):
        super().__init__()
        self.stem = nn.Conv2d(3, 2 * growth, 3, padding=1, bias=False)
        channels, self.blocks, self.transitions = 2 * growth, nn.ModuleList(), nn.ModuleList()
        for i, layers in enumerate(blocks):
            self.blocks.append(nn.ModuleList([DenseLayer(channels + k * growth, growth) for k in range(layers)]))
            channels += layers * growth
            if i + 1 < len(blocks):
                self.transitions.append(nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(),
                                                      nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)))
                channels //= 2
        self.norm, self.head = nn.BatchNorm2d(channels), nn.Linear(channels, classes)

    def forward(self, x):
        x = self.stem(x)
        for i, block in enumerate(self.blocks):
            features = [x]
            for layer in block:
                features.append(layer(features))
            x = torch.cat(features, 1)
            if i < len(self.transitions):
                x = self.transitions[i](x)
        return self.head(torch.relu(self.norm(x)).mean((2, 3)))


torch.manual_seed(0)
model = DenseNet().train()
buffer = io.BytesIO()
torch.onnx.export(model, torch.randn(4, 3, 16, 16), buffer, input_names=["x"], output_names=["logits"],
                  dynamic_axes={"x": {0: "batch"}, "logits": {0: "batch"}}, training=torch.onnx.TrainingMode.TRAINING,
                  do_constant_folding=False, opset_version=13)
with gzip.GzipFile(os.path.join(HERE, "model.onnx.gz"), "wb", mtime=0) as out:
    out.write(buffer.getvalue())
rng = np.random.default_rng(0)
np.savez_compressed(os.path.join(HERE, "data.npz"), image=rng.standard_normal((128, 3, 16, 16)).astype(np.float32),
                    label=rng.integers(0, 10, 128).astype(np.int64))
