"""The three workloads of target S1, as PyTorch modules. export.py and torch_step.py use the same ones."""
import torch
from torch import nn
import torch.nn.functional as F

WORKLOADS = {
    "resnet18": dict(batch=8, optimizer=dict(type="sgd", learning_rate=0.01, momentum=0.9)),
    "gpt2-small": dict(batch=2, gpt=dict(vocabulary=50257, layers=12, heads=12, width=768, positions=1024), length=128,
                       optimizer=dict(type="adamw", learning_rate=1e-4, weight_decay=0.01)),
    "gpt-tiny": dict(batch=8, gpt=dict(vocabulary=256, layers=4, heads=4, width=128, positions=128), length=128,
                     optimizer=dict(type="adamw", learning_rate=1e-3, weight_decay=0.01)),
}


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.head_width, self.scale = heads, width // heads, (width // heads) ** -0.5
        self.ln_1 = nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.c_fc = nn.Linear(width, 4 * width)
        self.m_proj = nn.Linear(4 * width, width)

    def forward(self, x, mask):
        b, t, c = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).split(c, dim=2)
        q = q.view(b, t, self.heads, self.head_width).transpose(1, 2)
        k = k.view(b, t, self.heads, self.head_width).transpose(1, 2)
        v = v.view(b, t, self.heads, self.head_width).transpose(1, 2)
        scores = (q @ k.transpose(-2, -1)) * self.scale
        weights = F.softmax(scores.masked_fill(mask[:, :, :t, :t] == 0, float("-inf")), dim=-1)
        x = x + self.c_proj((weights @ v).transpose(1, 2).reshape(b, t, c))
        return x + self.m_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    """GPT-2 with the head tied to the embedding and without dropout."""

    def __init__(self, vocabulary, layers, heads, width, positions):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(positions, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.register_buffer("mask", torch.tril(torch.ones(positions, positions)).view(1, 1, positions, positions))
        for name, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0.0, 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            x = block(x, self.mask)
        return F.linear(self.ln_f(x), self.wte.weight)


def make_model(name):
    torch.manual_seed(0)
    workload = WORKLOADS[name]
    if "gpt" in workload:
        return GPT(**workload["gpt"]).train()
    import torchvision
    return torchvision.models.resnet18(weights=None).train()


def make_data(name, batches):
    """Random samples: (input column, input, label column, labels)."""
    workload = WORKLOADS[name]
    generator = torch.Generator().manual_seed(1)
    samples = workload["batch"] * batches
    if "gpt" in workload:
        vocabulary, length = workload["gpt"]["vocabulary"], workload["length"]
        text = torch.randint(vocabulary, (samples, length + 1), generator=generator)
        return "tokens", text[:, :-1].contiguous(), "targets", text[:, 1:].contiguous()
    return ("image", torch.randn(samples, 3, 224, 224, generator=generator),
            "label", torch.randint(1000, (samples,), generator=generator))


def make_optimizer(name, parameters):
    o = WORKLOADS[name]["optimizer"]
    if o["type"] == "sgd":
        return torch.optim.SGD(parameters, lr=o["learning_rate"], momentum=o["momentum"])
    return torch.optim.AdamW(parameters, lr=o["learning_rate"], weight_decay=o["weight_decay"])
