"""A PyTorch model on two peers of a broker; the loss in a notebook; a module that is planned and served."""

import copy
import json
import os
import unittest
import urllib.request
import warnings

import torch
import torch.nn.functional as F
from support import PATIENCE, ROOT, Case, weft
from test_real import Broker
from torch import nn
from weft import live


class Bytes(nn.Module):
    """The next byte, from the bytes before it."""

    def __init__(self, length=16, width=16):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(256, width), nn.Embedding(length, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, 256)
        self.register_buffer("mask", torch.tril(torch.ones(length, length)))

    def forward(self, tokens):
        length = tokens.shape[1]
        x = self.wte(tokens) + self.wpe(torch.arange(length))
        q, k, v = self.qkv(x).split(x.shape[-1], dim=2)
        scores = (q @ k.transpose(1, 2) * 0.25).masked_fill(self.mask[:length, :length] == 0, float("-inf"))
        return self.out(x + F.softmax(scores, -1) @ v)


class OnPeers(Broker):
    def test_jobs(self):
        torch.manual_seed(2)
        torch.set_num_threads(1)
        model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 3))
        model[0].bias.requires_grad = False
        data = [(torch.randn(8), torch.randn(3)) for _ in range(64)]
        theirs = copy.deepcopy(model)
        optimizer = torch.optim.SGD(theirs.parameters(), lr=0.05, momentum=0.9)
        for step in range(10):
            rows = [data[(step * 16 + i) % 64] for i in range(16)]
            optimizer.zero_grad()
            F.mse_loss(theirs(torch.stack([x for x, _ in rows])), torch.stack([y for _, y in rows])).backward()
            optimizer.step()
        self.set_environment(WEFT_BROKER=self.address, WEFT_TOKEN=self.token)
        ours = copy.deepcopy(model)
        job = weft.submit(ours, data, loss="mse", optimizer=torch.optim.SGD(ours.parameters(), lr=0.05, momentum=0.9),
                          batch_size=16, microbatch_size=8, steps=10, stages=2, shuffle=False, checkpoint=4,
                          test=data[:8])
        self.assertEqual(self.left_behind(), [])  # the broker has all of it
        events = list(job.events(timeout=PATIENCE))
        self.assertEqual(len(next(event for event in events if event.kind == "plan").stages), 2)
        result = job.load_into(ours)
        self.assertEqual((result.status, result.steps), ("completed", 10))
        self.assertIn("loss", result.metrics)
        for name, tensor in theirs.state_dict().items():
            gap = float((ours.state_dict()[name] - tensor).norm() / tensor.norm())
            self.assertLessEqual(gap, 1e-4, name)
        self.assertTrue(torch.equal(ours[0].bias, model[0].bias))
        self.assertEqual(job.status().name, "Sequential")
        again = copy.deepcopy(model)
        weft.job(job.number).load_into(again, wait=False)
        self.assertTrue(torch.equal(again[4].weight, ours[4].weight))


class Planned(Case):
    def test_a_plan(self):
        plan = weft.plan(nn.Linear(8, 3), [(torch.ones(8), torch.ones(3))] * 4, loss="mse", batch_size=2, steps=2,
                         cluster=os.path.join(ROOT, "examples/plans/scattered-48.yaml"))
        self.assertEqual((plan.kind, len(plan.stages)), ("plan", 1))
        self.assertEqual(self.left_behind(), [])


class Served(Case):
    def test_a_module(self):
        warnings.simplefilter("error", weft.ExportWarning)  # in eval mode, as a model is that is served
        with weft.serve(Bytes().eval(), example=torch.zeros(2, 16, dtype=torch.int64), name="bytes", threads=1) as server:
            question = json.dumps({"model": "bytes", "prompt": "On", "max_tokens": 3, "temperature": 0}).encode()
            request = urllib.request.Request(server.url + "/completions", question, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                self.assertEqual(json.load(answer)["usage"]["completion_tokens"], 3)
        self.assertEqual(self.left_behind(), [])


@unittest.skipIf(live._pyplot(None) is None, "matplotlib is not here")
class Plotted(Case):
    def test_a_notebook_has_a_figure_that_is_replaced(self):
        import matplotlib
        matplotlib.use("Agg")
        figures = []

        class Handle:
            def __init__(self, shown):
                self.shown = shown

            def update(self, data, **_):
                if not isinstance(data, dict):
                    figures.append(data)

        def display(data, **_):
            if not isinstance(data, dict):
                figures.append(data)
            return Handle(data)
        before = live.notebook_display
        live.notebook_display = lambda: display
        self.addCleanup(setattr, live, "notebook_display", before)
        events = [weft.Event({"event": "step", "step": step, "loss": 1 / step}) for step in range(1, 30)]
        events += [weft.Event({"event": "evaluation", "after_step": 29, "metrics": {"loss": 0.04}}),
                   weft.Event({"event": "result", "status": "completed"})]
        live.watch(iter(events), plot=True)
        self.assertEqual(len(figures), 2)  # the first step, and the end
        axes = figures[-1].axes[0]
        self.assertEqual([len(line.get_xdata()) for line in axes.lines], [29, 1])
        from matplotlib import pyplot
        self.assertEqual(pyplot.get_fignums(), [])


del Broker  # its own tests are run elsewhere


if __name__ == "__main__":
    unittest.main()
