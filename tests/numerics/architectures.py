"""The architectures that people train, small, for make_references.py: what torchvision has by its own classes, the rest
written here as its papers have it. `width` and `depth` make them narrow and shallow; full_size() says what they are
in earnest.
"""
import math

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
from torchvision.models import densenet, efficientnet, mobilenetv2, resnet, vision_transformer


def exact(model):
    """Attributes that ONNX stores as float32 become those very numbers, so that float64 computes what the file says."""
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm2d, nn.LayerNorm)):
            module.eps = float(np.float32(module.eps))
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1 - float(np.float32(1 - module.momentum))
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


# ---- images ----------------------------------------------------------------------------------------------------------

class ResNet50(nn.Module):
    """torchvision's ResNet-50 with a first width of its own."""

    def __init__(self, width=8, blocks=(3, 4, 6, 3), classes=10):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inputs = width
        for i, count in enumerate(blocks):
            planes, stride = width << i, 1 if i == 0 else 2
            layer = []
            for k in range(count):
                down = None
                if k == 0:
                    down = nn.Sequential(nn.Conv2d(inputs, 4 * planes, 1, stride, bias=False), nn.BatchNorm2d(4 * planes))
                layer.append(resnet.Bottleneck(inputs, planes, stride if k == 0 else 1, down))
                inputs = 4 * planes
            self.add_module(f"layer{i + 1}", nn.Sequential(*layer))
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x):
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class StochasticDepth(nn.Module):
    """A branch survives, sample by sample, where a uniform draw says so: RandomUniform, which a graph can hold."""

    def __init__(self, survival):
        super().__init__()
        self.survival = survival

    def forward(self, x):
        draw = torch.rand_like(x[:, :1, :1, :1])
        return x / self.survival * torch.floor(draw + self.survival)


def efficientnet_b0(width, depth, survival=1.0, classes=10):
    settings, last = efficientnet._efficientnet_conf("efficientnet_b0", width_mult=width, depth_mult=depth)
    model = efficientnet.EfficientNet(settings, dropout=0.0, num_classes=classes, last_channel=last)
    for module in model.modules():
        if isinstance(module, efficientnet.MBConv):
            module.stochastic_depth = StochasticDepth(survival)
    return model


class UNet(nn.Module):
    """Three ways up: a transposed convolution, nearest and bilinear upsampling."""

    def __init__(self, width=8, classes=5):
        super().__init__()

        def pair(inputs, outputs):
            return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
                                 nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())

        self.down1, self.down2, self.down3 = pair(3, width), pair(width, 2 * width), pair(2 * width, 4 * width)
        self.bottom = pair(4 * width, 8 * width)
        self.up3, self.join3 = nn.ConvTranspose2d(8 * width, 4 * width, 2, 2), pair(8 * width, 4 * width)
        self.up2, self.join2 = nn.Conv2d(4 * width, 2 * width, 1), pair(4 * width, 2 * width)
        self.up1, self.join1 = nn.Conv2d(2 * width, width, 1), pair(2 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.down3(F.max_pool2d(b, 2))
        x = self.bottom(F.max_pool2d(c, 2))
        x = self.join3(torch.cat([self.up3(x), c], 1))
        x = self.join2(torch.cat([self.up2(F.interpolate(x, scale_factor=2.0, mode="nearest")), b], 1))
        x = F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
        return self.head(self.join1(torch.cat([self.up1(x), a], 1)))


class TwoHeads(nn.Module):
    """One trunk and two classifiers of different sizes."""

    def __init__(self, width=12, classes=(10, 5)):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, width, 3, 2, 1), nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.bn = nn.BatchNorm2d(2 * width)
        self.fine, self.coarse = nn.Linear(2 * width, classes[0]), nn.Linear(2 * width, classes[1])

    def forward(self, x):
        x = F.gelu(self.bn(self.conv2(F.gelu(self.conv1(x))))).mean((2, 3))
        return self.fine(x), self.coarse(x)


# ---- text ------------------------------------------------------------------------------------------------------------

class Attention(nn.Module):
    """With fewer key heads than query heads where `key_heads` says so, and with rotated queries and keys."""

    def __init__(self, width, heads, key_heads, bias):
        super().__init__()
        self.heads, self.key_heads, self.size = heads, key_heads, width // heads
        self.q = nn.Linear(width, heads * self.size, bias)
        self.k, self.v = (nn.Linear(width, key_heads * self.size, bias) for _ in range(2))
        self.o = nn.Linear(width, width, bias)

    def split(self, x, heads):
        return x.view(x.shape[0], x.shape[1], heads, self.size).transpose(1, 2)

    def repeat(self, x):
        b, h, t, d = x.shape
        return x[:, :, None].expand(b, h, self.heads // h, t, d).reshape(b, self.heads, t, d)

    def forward(self, x, mask, tables=None):
        b, t, c = x.shape
        q, k, v = self.split(self.q(x), self.heads), self.split(self.k(x), self.key_heads), self.split(self.v(x), self.key_heads)
        if tables is not None:
            q, k = rotate(q, *tables), rotate(k, *tables)
        if self.key_heads != self.heads:
            k, v = self.repeat(k), self.repeat(v)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.size) + mask
        return self.o((F.softmax(scores, -1) @ v).transpose(1, 2).reshape(b, t, c))


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * cos + turned * sin


class BertBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention, self.norm1 = Attention(width, heads, heads, True), nn.LayerNorm(width, 1e-6)
        self.up, self.down, self.norm2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.LayerNorm(width, 1e-6)

    def forward(self, x, mask):
        x = self.norm1(x + self.attention(x, mask))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Bert(nn.Module):
    """A BERT encoder under a masked-language-model head whose decoder is the embedding."""

    def __init__(self, width=48, heads=3, depth=3, vocabulary=96, length=32):
        super().__init__()
        self.words, self.places, self.kinds = nn.Embedding(vocabulary, width), nn.Embedding(length, width), nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, 1e-6)
        self.blocks = nn.ModuleList(BertBlock(width, heads) for _ in range(depth))
        self.dense, self.dense_norm = nn.Linear(width, width), nn.LayerNorm(width, 1e-6)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, tokens, kinds, seen):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1])) + self.kinds(kinds)
        x = self.norm(x)
        mask = (1.0 - seen[:, None, None, :].to(x.dtype)) * -10000.0
        for block in self.blocks:
            x = block(x, mask)
        return F.linear(self.dense_norm(F.gelu(self.dense(x))), self.words.weight, self.bias)


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        # An epsilon that float32 holds exactly.
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 2.0 ** -17) * self.weight


class LlamaBlock(nn.Module):
    def __init__(self, width, heads, key_heads, inner):
        super().__init__()
        self.attention, self.norm1, self.norm2 = Attention(width, heads, key_heads, False), RmsNorm(width), RmsNorm(width)
        self.gate, self.up, self.down = (nn.Linear(width, inner, False), nn.Linear(width, inner, False),
                                         nn.Linear(inner, width, False))

    def forward(self, x, mask, tables):
        x = x + self.attention(self.norm1(x), mask, tables)
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self, width=64, heads=4, key_heads=2, depth=3, inner=112, vocabulary=96, length=32):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, key_heads, inner) for _ in range(depth))
        self.norm, self.head = RmsNorm(width), nn.Linear(width, vocabulary, False)
        size = width // heads
        angles = torch.outer(torch.arange(length).float(), 10000.0 ** (-torch.arange(0, size, 2).float() / size))
        angles = torch.cat([angles, angles], -1)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.register_buffer("mask", torch.full((length, length), -1e4).triu(1))

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.mask, (self.cos, self.sin))
        return self.head(self.norm(x))


class Recurrent(nn.Module):
    def __init__(self, cell, width=40, vocabulary=64, depth=2):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.cells = cell(width, width, depth, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        return self.head(self.cells(self.embedding(tokens))[0])


# ---- data ------------------------------------------------------------------------------------------------------------

def masked_text(samples, length, vocabulary, rng, text):
    """Tokens of which every sixth or so is to be guessed, in two kinds, with rows that end early."""
    tokens = text(samples, length, vocabulary - 1, rng)["tokens"]
    ends = rng.integers(length // 2, length + 1, (samples, 1))
    seen = (np.arange(length) < ends).astype(np.int64)
    hidden = (rng.random(tokens.shape) < 0.15) & (seen == 1)
    hidden[:, 0] = True
    return {"tokens": np.where(hidden, vocabulary - 1, tokens), "kinds": (np.arange(length) >= ends // 2).astype(np.int64),
            "seen": seen, "labels": np.where(hidden, tokens, -100)}


def segments(samples, size, classes, rng):
    """Blocks of one class each, and images in which every class has a colour under noise."""
    labels = rng.integers(0, classes, (samples, size // 4, size // 4)).repeat(4, 1).repeat(4, 2)
    colours = rng.integers(-6, 7, (classes, 3))
    noise = rng.integers(-6, 7, (samples, 3, size, size))
    return {"image": ((colours[labels].transpose(0, 3, 1, 2) + noise) / 8).astype(np.float32), "label": labels.astype(np.int64)}


def two_labels(samples, size, rng, images):
    """The fine label, and a coarse one that some samples lack."""
    data = images(samples, size, rng)
    coarse = data["label"] // 2
    data["coarse"] = np.where(rng.random(samples) < 0.2, -1, coarse)
    return data


# ---- cases -----------------------------------------------------------------------------------------------------------

SGD = dict(type="sgd", learning_rate=0.002, momentum=0.9, nesterov=True, weight_decay=5e-4)
SLOW = dict(SGD, learning_rate=5e-5)  # batch norms over few values: at more, float32 and float64 go apart
ADAMW = dict(type="adamw", learning_rate=5e-4, weight_decay=0.05, epsilon=1e-6)
CONSTANT = dict(type="constant")
WARM = dict(type="cosine", warmup_steps=5, final=0.1)
LOGITS = dict(type="cross_entropy", logits="logits", labels="label")
NEXT = dict(type="cross_entropy", logits="logits", labels="targets")


def cases(images, text, full):
    """By name. `full`: the architecture at its real width and depth, on images of 64 pixels and rows of 64 tokens."""
    def vision(model, size=64, batch=4, **more):
        return dict(dict(model=lambda: exact(model()), opset=17, variants=["dynamic"], data=lambda rng: images(16, size, rng),
                         inputs={"x": "image"}, losses=[LOGITS], batch=batch, microbatch=batch, freeze=[], optimizer=SGD,
                         schedule=CONSTANT, clip_norm=1.0, sketch=True), **more)

    def language(model, vocabulary, **more):
        length = 64 if full else 24
        return dict(dict(model=lambda: exact(model()), opset=17, variants=["dynamic"],
                         data=lambda rng: text(40, length, vocabulary, rng), inputs={"tokens": "tokens"}, losses=[NEXT], batch=8,
                         microbatch=4, freeze=[], optimizer=ADAMW, schedule=WARM, clip_norm=1.0, sketch=True), **more)

    def vit():
        shape = dict(num_layers=12, num_heads=12, hidden_dim=768, mlp_dim=3072, patch_size=16) if full else dict(
            num_layers=4, num_heads=3, hidden_dim=48, mlp_dim=96, patch_size=8)
        return vision_transformer.VisionTransformer(image_size=64 if full else 32, num_classes=10, **shape)

    words = 96
    return {
        "resnet50": vision(lambda: ResNet50(64 if full else 4), quiet=r".*\.bn3\.weight", optimizer=SLOW),
        "densenet121": vision(lambda: densenet.DenseNet(*((32, (6, 12, 24, 16), 64) if full else (4, (6, 12, 24, 16), 8)),
                                                        num_classes=10), optimizer=SLOW),
        "mobilenetv2": vision(lambda: mobilenetv2.MobileNetV2(num_classes=10, width_mult=1.0 if full else 0.25, dropout=0.0),
                              quiet=r".*\.conv\.3\.weight", optimizer=dict(SLOW, learning_rate=5e-6)),
        "efficientnet_b0": vision(lambda: efficientnet_b0(1.0 if full else 0.25, 1.0)),
        "vit_b16": vision(vit, 64 if full else 32, 8, optimizer=ADAMW, schedule=WARM),
        "unet": vision(lambda: UNet(32 if full else 6), batch=8, data=lambda rng: segments(16, 64 if full else 32, 5, rng),
                       losses=[dict(LOGITS, axis=1)]),
        "two_heads": vision(
            TwoHeads, data=lambda rng: two_labels(36, 16, rng, images), batch=8, microbatch=8, evaluate=True,
            optimizer=dict(SGD, learning_rate=0.05),
            losses=[dict(LOGITS, logits="fine"),
                    dict(type="cross_entropy", logits="coarse", labels="coarse", ignore_index=-1, weight=0.375)]),
        "bert": language(lambda: Bert(*((768, 12, 12, words, 64) if full else (48, 3, 3, words, 24))), words,
                         data=lambda rng: masked_text(40, 64 if full else 24, words, rng, text),
                         inputs={"tokens": "tokens", "kinds": "kinds", "seen": "seen"},
                         losses=[dict(type="cross_entropy", logits="logits", labels="labels")]),
        "llama": language(lambda: Llama(*((768, 12, 4, 12, 2048, words, 64) if full else (64, 4, 2, 3, 112, words, 24))), words,
                          freeze=["cos", "sin", "mask"]),
        "lstm": language(lambda: Recurrent(nn.LSTM, 512 if full else 40), 64, optimizer=dict(ADAMW, learning_rate=5e-3)),
        "gru": language(lambda: Recurrent(nn.GRU, 512 if full else 40), 64, optimizer=dict(ADAMW, learning_rate=5e-3)),
    }
