#!/usr/bin/env python3
"""Writes the distinct convolutions of torchvision's models to list.txt, which weft_bench_convolutions reads.

One line each: x's shape, w's shape, strides, pads (begins, then ends), dilations, groups, and the first model that has
it. Images are 224x224 (299x299 for Inception), videos 16 frames of 112x112 or 224x224, four samples; models of at most
100 M parameters. Runs on the meta device, shapes without numbers, where the model can.
"""
import argparse
import copy
import pathlib

import torch
import torchvision.models as models

SAMPLES = 4
PARAMETERS_MAX = 100e6
SHAPES = {"video": [(SAMPLES, 3, 16, 112, 112), (SAMPLES, 3, 16, 224, 224)],
          "image": [(SAMPLES, 3, 224, 224), (SAMPLES, 3, 299, 299)]}


def model_names():
    detection = set(models.list_models(module=models.detection))
    optical_flow = set(models.list_models(module=models.optical_flow))
    quantized = set(models.list_models(module=models.quantization))
    return [name for name in models.list_models() if name not in detection | optical_flow | quantized]


def fresh_model(name):
    builder = models.get_model_builder(name)
    extra = {"weights_backbone": None} if "weights_backbone" in builder.__annotations__ else {}
    return builder(weights=None, **extra).train()


def convolutions_of(name, video):
    """The convolutions of the model in order, on the first kind of input that it takes."""
    model = fresh_model(name)
    if sum(parameter.numel() for parameter in model.parameters()) > PARAMETERS_MAX:
        return []
    found = []

    def note(module, operands, _result):
        found.append(((SAMPLES, *operands[0].shape[1:]), tuple(module.weight.shape), tuple(module.stride),
                      tuple(module.padding) * 2, tuple(module.dilation), module.groups))

    for module in model.modules():
        if isinstance(module, (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)):
            module.register_forward_hook(note)
    reasons = []
    shapes = SHAPES["video" if video else "image"]
    for shape, device in [(shape, "meta") for shape in shapes] + [((2, *shape[1:]), "cpu") for shape in shapes]:
        try:
            found.clear()
            with torch.no_grad():
                copy.deepcopy(model).to(device)(torch.empty(shape, device=device))
            return found
        except (RuntimeError, AssertionError, ValueError) as error:
            reasons.append(str(error).splitlines()[0][:80])
    print(f"{name}: left out: {reasons}")
    return []


def line(convolution, name):
    numbers = [",".join(map(str, part)) for part in convolution[:-1]]
    return " ".join(numbers + [str(convolution[-1]), name])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="MODEL", help="these alone; all when none is given")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).with_name("list.txt"))
    arguments = parser.parse_args()
    video = set(models.list_models(module=models.video))
    first_user = {}
    for name in sorted(arguments.names or model_names()):
        for convolution in convolutions_of(name, name in video):
            first_user.setdefault(convolution, name)
    lines = sorted(line(convolution, name) for convolution, name in first_user.items())
    arguments.out.write_text("\n".join(lines) + "\n")
    print(f"{len(lines)} convolutions in {arguments.out}")


if __name__ == "__main__":
    main()
