"""weft and PyTorch train the same models from one seed: after 20 steps they have the same weights.

Each model is trained by both, without Dropout, from the same values and on the same batches. Of each tensor, running
statistics included, the norm of the difference is at most 1e-4 of the norm; so is each step's loss.
"""

import copy
import unittest
import warnings

import torch
import torch.nn.functional as F
from support import Case, weft
from torch import nn

STEPS, BATCH, SAMPLES, TOLERANCE = 20, 16, 96, 1e-4


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)

    def forward(self, x):
        return F.relu(x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


class ResNet(nn.Module):
    def __init__(self, width=8, classes=10):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.fc = nn.Linear(width, classes)

    def forward(self, image):
        return self.fc(self.blocks(self.stem(image)).mean((2, 3)))


class Transformer(nn.Module):
    """Over tokens, with a head that is tied to the embedding, and a parameter that weft alone takes for a constant."""

    def __init__(self, tokens=32, length=12, width=16):
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(width, tokens, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("mask", torch.triu(torch.full((length, length), float("-inf")), 1))

    def forward(self, tokens):
        hidden = self.encoder(self.embedding(tokens) + self.positions, mask=self.mask)
        return self.head(hidden) * self.scale


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(12, 24), nn.Tanh())
        self.kind, self.size = nn.Linear(24, 5), nn.Linear(24, 3)

    def forward(self, x):
        hidden = self.trunk(x)
        return {"kind": self.kind(hidden), "size": self.size(hidden)}


def batches(samples):
    for step in range(STEPS):
        rows = [samples[(step * BATCH + i) % len(samples)] for i in range(BATCH)]
        yield [torch.stack([torch.as_tensor(row[i]) for row in rows]) for i in range(len(rows[0]))]


def difference(ours, theirs):
    norm = float(theirs.double().norm())
    return float((ours.double() - theirs.double()).norm()) / max(norm, 1e-6)


class Training(Case):
    def compare(self, model, samples, loss, optimizer, *, weft_loss, **terms):
        """Trains a copy by each; `optimizer` makes one for a model."""
        theirs, ours = copy.deepcopy(model), copy.deepcopy(model)
        losses = []
        theirs_optimizer = optimizer(theirs)
        for values in batches(samples):
            theirs_optimizer.zero_grad(set_to_none=True)
            step_loss = loss(theirs, *values)
            step_loss.backward()
            theirs_optimizer.step()
            losses.append(float(step_loss))
        terms.setdefault("batch_size", BATCH)
        with weft.local(ours, samples, loss=weft_loss, optimizer=optimizer(ours), steps=STEPS, shuffle=False, threads=1,
                        **terms) as run:
            steps = [event for event in run.events() if event.kind == "step"]
            run.load_into(ours)
        self.assertEqual([event.step for event in steps], list(range(1, STEPS + 1)))
        for event, expected in zip(steps, losses):
            self.assertLessEqual(abs(event.loss - expected), TOLERANCE * abs(expected), f"the loss of step {event.step}")
        self.assert_same(ours, theirs)
        moved = [n for n, p in theirs.named_parameters() if not torch.equal(p, dict(model.named_parameters())[n])]
        self.assertTrue(moved)
        self.assertEqual(self.left_behind(), [])
        return ours, theirs, moved

    def assert_same(self, ours, theirs):
        for name, tensor in theirs.state_dict().items():
            if tensor.is_floating_point() and not torch.isinf(tensor).any():
                self.assertLessEqual(difference(ours.state_dict()[name], tensor), TOLERANCE, name)

    def setUp(self):
        super().setUp()
        torch.manual_seed(5)
        torch.set_num_threads(1)
        warnings.simplefilter("error", weft.ExportWarning)

    def test_mlp(self):
        model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 5))
        samples = [(torch.randn(12), i % 5) for i in range(SAMPLES)]
        self.compare(model, samples, lambda m, x, y: F.cross_entropy(m(x), y, label_smoothing=0.1),
                     lambda m: torch.optim.AdamW(m.parameters(), lr=3e-3),
                     weft_loss=nn.CrossEntropyLoss(label_smoothing=0.1), microbatch_size=4)

    def test_cnn_with_batchnorm(self):
        model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
                              nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8, momentum=0.3), nn.ReLU(), nn.Flatten(),
                              nn.Linear(8 * 16, 5))
        samples = [(torch.randn(1, 12, 12), i % 5) for i in range(SAMPLES)]
        self.compare(model, samples, lambda m, x, y: F.cross_entropy(m(x), y),
                     lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, nesterov=True),
                     weft_loss="cross_entropy")

    def test_frozen_resnet(self):
        """Some is frozen, with statistics that move; some is in eval mode, with statistics that do not."""
        model = ResNet()
        for parameter in [*model.stem.parameters(), *model.blocks[0].parameters()]:
            parameter.requires_grad = False
        with torch.no_grad():
            for buffer in model.blocks[0].buffers():
                if buffer.is_floating_point():
                    buffer.uniform_(0.5, 1.5)
        model.blocks[0].eval()
        samples = [(torch.randn(3, 10, 10), i % 10) for i in range(SAMPLES)]

        def optimizer(m):
            return torch.optim.SGD([{"params": m.blocks.parameters()},
                                    {"params": m.fc.parameters(), "lr": 0.1, "weight_decay": 0.01}], lr=0.02, momentum=0.9)
        warnings.simplefilter("ignore", weft.ExportWarning)
        ours, theirs, moved = self.compare(model, samples, lambda m, x, y: F.cross_entropy(m(x), y), optimizer,
                                           weft_loss="cross_entropy")
        self.assertEqual({name.split(".")[0] for name in moved}, {"blocks", "fc"})
        for name, before in model.state_dict().items():
            after = ours.state_dict()[name]
            if name.startswith("blocks.0") or (name.startswith("stem") and "running" not in name):
                self.assertTrue(name.endswith("num_batches_tracked") or torch.equal(after, before), name)
        self.assertFalse(torch.equal(ours.stem[1].running_mean, model.stem[1].running_mean))
        self.assertTrue(model.training and not model.blocks[0].training)  # as it was

    def test_transformer_with_a_tied_head(self):
        model = Transformer()
        samples = []
        for i in range(SAMPLES):
            tokens = torch.randint(0, 32, (13,))
            samples.append({"tokens": tokens[:-1], "targets": tokens[1:]})
        rows = [(sample["tokens"], sample["targets"]) for sample in samples]
        theirs, ours = copy.deepcopy(model), copy.deepcopy(model)
        # The gradient of a key's bias is rounding alone, which Adam without a large epsilon makes into whole steps.
        optimizer = torch.optim.Adam(theirs.parameters(), lr=2e-3, betas=(0.9, 0.98), eps=1e-4)
        for tokens, targets in batches(rows):
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(theirs(tokens).transpose(1, 2), targets).backward()
            optimizer.step()
        with weft.local(ours, samples, loss="cross_entropy", batch_size=BATCH, steps=STEPS, shuffle=False, threads=1,
                        optimizer={"type": "adam", "betas": (0.9, 0.98), "epsilon": 1e-4}, learning_rate=2e-3) as run:
            run.load_into(ours)
        self.assert_same(ours, theirs)
        self.assertIs(ours.head.weight, ours.embedding.weight)
        self.assertNotEqual(float(theirs.scale), float(model.scale))
        self.assertLess(abs(float(ours.scale) - float(theirs.scale)), 1e-4)
        self.assertTrue(torch.equal(ours.mask, model.mask))

    def test_two_losses(self):
        model = TwoHeads()
        samples = [(torch.randn(12), i % 5, torch.randn(3)) for i in range(SAMPLES)]

        def loss(m, x, kind, size):
            out = m(x)
            return F.cross_entropy(out["kind"], kind) + 0.5 * F.mse_loss(out["size"], size)
        self.compare(model, samples, loss, lambda m: torch.optim.SGD(m.parameters(), lr=0.1, weight_decay=0.01),
                     weft_loss=["cross_entropy", {"type": "mse", "weight": 0.5}])

    def test_what_the_optimizer_leaves_out_stays(self):
        model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 1))
        samples = [(torch.randn(12), torch.randn(1)) for _ in range(SAMPLES)]
        ours, _, moved = self.compare(model, samples, lambda m, x, y: F.l1_loss(m(x), y),
                                      lambda m: torch.optim.SGD(m[2].parameters(), lr=0.1), weft_loss=nn.L1Loss())
        self.assertEqual(moved, ["2.weight", "2.bias"])
        self.assertTrue(torch.equal(ours[0].weight, model[0].weight))


if __name__ == "__main__":
    unittest.main()
