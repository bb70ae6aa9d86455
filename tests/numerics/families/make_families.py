#!/usr/bin/python3
"""Small forms of every family of torchvision's models, and what PyTorch makes of two steps of each.

    /usr/bin/python3 tests/numerics/families/make_families.py [NAME ...]

Writes NAME.onnx.gz (training-mode export) and losses.json: the losses of two steps of SGD in float64 and float32, for
the images and labels that families_test.cc makes from the same formula. Channels are divided by 8 or 16, weights are
multiples of 1/128, so that a file takes some tens of kilobytes.
"""

import copy
import functools
import gzip
import json
import os
import sys
import tempfile
import warnings

import numpy as np
import torch
import torchvision
from torch import nn

warnings.filterwarnings("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))
CLASSES = 13
RATE = 0.05


def shrunk(build, factor):
    """What `build` makes, with all channels divided: layers without a knob for their width."""

    def small(channels):
        return channels if channels in (1, 3, CLASSES) else max(1, channels // factor)

    kept = nn.Conv2d.__init__, nn.Conv3d.__init__, nn.Linear.__init__, nn.BatchNorm2d.__init__, nn.BatchNorm3d.__init__

    def convolution(original):
        def init(self, cin=None, cout=None, *args, **kwargs):
            cin, cout = kwargs.pop("in_channels", cin), kwargs.pop("out_channels", cout)
            if kwargs.get("groups", 1) > 1:
                kwargs["groups"] = small(kwargs["groups"]) if kwargs["groups"] == cin else 2
            original(self, small(cin), small(cout), *args, **kwargs)

        return init

    def linear(original):
        return lambda self, cin, cout, *args, **kwargs: original(self, small(cin), small(cout), *args, **kwargs)

    def norm(original):
        return lambda self, channels, *args, **kwargs: original(self, small(channels), *args, **kwargs)

    nn.Conv2d.__init__, nn.Conv3d.__init__ = convolution(kept[0]), convolution(kept[1])
    nn.Linear.__init__ = linear(kept[2])
    nn.BatchNorm2d.__init__, nn.BatchNorm3d.__init__ = norm(kept[3]), norm(kept[4])
    try:
        return build()
    finally:
        (nn.Conv2d.__init__, nn.Conv3d.__init__, nn.Linear.__init__, nn.BatchNorm2d.__init__,
         nn.BatchNorm3d.__init__) = kept


def zoo(name, factor=8, **options):
    return shrunk(functools.partial(torchvision.models.get_model, name, weights=None, num_classes=CLASSES, **options),
                  factor)


def vit():
    return torchvision.models.VisionTransformer(image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=24,
                                                mlp_dim=48, num_classes=CLASSES)


def swin():
    return torchvision.models.SwinTransformer([4, 4], 16, [2, 2], [2, 4], [4, 4], num_classes=CLASSES)


def convnext():
    config = torchvision.models.convnext.CNBlockConfig
    return torchvision.models.ConvNeXt([config(16, 24, 1), config(24, None, 1)], num_classes=CLASSES)


def maxvit():
    return torchvision.models.MaxVit((64, 64), 8, 4, [8, 16], [1, 1], 8, 0.0, num_classes=CLASSES)


def regnet(groups):
    module = torchvision.models.regnet
    parameters = module.BlockParams.from_init_params(depth=4, w_0=16, w_a=8.0, w_m=2.0, group_width=groups,
                                                     se_ratio=0.25)
    return torchvision.models.RegNet(parameters, num_classes=CLASSES, stem_width=8)


def mvit():
    module = torchvision.models.video.mvit
    blocks = [
        module.MSBlockConfig(num_heads=1, input_channels=16, output_channels=32, kernel_q=[3, 3, 3],
                             kernel_kv=[3, 3, 3], stride_q=[1, 1, 1], stride_kv=[1, 2, 2]),
        module.MSBlockConfig(num_heads=2, input_channels=32, output_channels=32, kernel_q=[3, 3, 3],
                             kernel_kv=[3, 3, 3], stride_q=[1, 2, 2], stride_kv=[1, 1, 1]),
    ]
    return module.MViT((32, 32), 4, blocks, residual_pool=True, residual_with_cls_embed=False, rel_pos_embed=True,
                       proj_after_attn=True, num_classes=CLASSES)


IMAGE, LARGE, VIDEO = (4, 3, 32, 32), (4, 3, 80, 80), (4, 3, 4, 32, 32)
FAMILIES = {
    "alexnet": (lambda: zoo("alexnet", 16), (2, 3, 224, 224)),
    "convnext": (convnext, IMAGE),
    "densenet": (lambda: zoo("densenet121"), IMAGE),
    "efficientnet": (lambda: zoo("efficientnet_b0"), IMAGE),
    "efficientnet_v2": (lambda: zoo("efficientnet_v2_s", 16), IMAGE),
    "googlenet": (lambda: zoo("googlenet", aux_logits=False, init_weights=True), (4, 3, 64, 64)),
    "inception": (lambda: zoo("inception_v3", 16, aux_logits=False, init_weights=True), LARGE),
    "maxvit": (maxvit, (4, 3, 64, 64)),
    "mnasnet": (lambda: zoo("mnasnet1_0"), IMAGE),
    "mobilenet_v2": (lambda: zoo("mobilenet_v2"), IMAGE),
    "mobilenet_v3": (lambda: zoo("mobilenet_v3_small"), IMAGE),
    "regnet_8": (lambda: regnet(8), IMAGE),
    "regnet_12": (lambda: regnet(12), IMAGE),
    "resnet50": (lambda: zoo("resnet50", 16), IMAGE),
    "resnext": (lambda: zoo("resnext50_32x4d", 16), IMAGE),
    "shufflenet": (lambda: zoo("shufflenet_v2_x1_0", 2), IMAGE),
    "squeezenet": (lambda: zoo("squeezenet1_1"), (4, 3, 64, 64)),
    "swin": (swin, IMAGE),
    "vgg": (lambda: zoo("vgg11_bn", 16), (2, 3, 224, 224)),
    "vit": (vit, IMAGE),
    "fcn": (lambda: zoo("fcn_resnet50", 16, weights_backbone=None), IMAGE),
    "deeplab": (lambda: zoo("deeplabv3_mobilenet_v3_large", weights_backbone=None), IMAGE),
    "lraspp": (lambda: zoo("lraspp_mobilenet_v3_large", weights_backbone=None), IMAGE),
    "r3d": (lambda: zoo("r3d_18", 16), VIDEO),
    "mc3": (lambda: zoo("mc3_18", 16), VIDEO),
    "r2plus1d": (lambda: zoo("r2plus1d_18", 16), VIDEO),
    "s3d": (lambda: zoo("s3d", 16), (2, 3, 16, 224, 224)),
    "mvit": (mvit, VIDEO),
}


class First(nn.Module):
    """Models that return several results: the one that counts."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        y = self.model(x)
        if isinstance(y, dict):
            return y["out"]
        return y if torch.is_tensor(y) else y[0]


def pattern(shape):
    """Images by a formula that C++ repeats exactly: multiples of 1/16 in [-2, 2)."""
    index = np.arange(int(np.prod(shape)), dtype=np.uint64)
    mixed = (index * np.uint64(2654435761) + (index >> np.uint64(5)) * np.uint64(40503)) % np.uint64(2**32)
    return ((mixed >> np.uint64(26)).astype(np.float64) / 16 - 2).reshape(shape)


def label_pattern(count):
    return np.array([(7 * i + i // 5) % CLASSES for i in range(count)], dtype=np.int64)


def train(model, x, labels):
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


def make(name):
    build, shape = FAMILIES[name]
    torch.manual_seed(0)
    model = First(build())
    for part in model.modules():
        for probability in ("p", "dropout"):
            if isinstance(getattr(part, probability, None), float):
                setattr(part, probability, 0.0)
        if isinstance(getattr(part, "eps", None), float):
            part.eps = 2.0**-10  # a file holds it as float32: 0.001 would be another number there
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((parameter * 128).round() / 128)
    model.train()
    state = copy.deepcopy(model.state_dict())
    x = torch.tensor(pattern(shape), dtype=torch.float32)
    with torch.no_grad():
        y = model(x)
    model.load_state_dict(state)
    shape_of_labels = (y.shape[0],) + tuple(y.shape[2:])
    labels = torch.tensor(label_pattern(int(np.prod(shape_of_labels)))).reshape(shape_of_labels)
    with tempfile.TemporaryDirectory() as folder:
        torch.onnx.export(model, x, f"{folder}/m.onnx", input_names=["x"], output_names=["logits"], opset_version=17,
                          training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)
        with open(f"{folder}/m.onnx", "rb") as file, open(f"{HERE}/{name}.onnx.gz", "wb") as out:
            out.write(gzip.compress(file.read(), 9, mtime=0))
    model.load_state_dict(state)
    in_f32 = train(model, x, labels)
    model.load_state_dict(state)
    in_f64 = train(model.double(), x.double(), labels)
    return {"input": list(shape), "labels": list(labels.shape), "float64": in_f64, "float32": in_f32,
            "parameters": sum(p.numel() for p in model.parameters())}


def main():
    path = f"{HERE}/losses.json"
    made = json.load(open(path)) if os.path.exists(path) else {}
    for name in sys.argv[1:] or FAMILIES:
        try:
            made[name] = make(name)
        except Exception as error:  # noqa: BLE001
            print(f"{name}: {' '.join(str(error).split())[:300]}", flush=True)
            continue
        print(f"{name}: {made[name]['parameters']} parameters, {made[name]['float64']} "
              f"{os.path.getsize(f'{HERE}/{name}.onnx.gz') // 1024} KiB", flush=True)
    with open(path, "w") as file:
        json.dump(made, file, indent=1, sort_keys=True)
        file.write("\n")


if __name__ == "__main__":
    main()
