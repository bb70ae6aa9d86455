"""Exports a small GPT-2-like and a small Llama-like model with PyTorch 1.13, each without and with a cache of its own
(past_key_values.*, present.*), in the forms that Hugging Face's modules have: masks from attention_mask, rotary
tables from position_ids, keys repeated by Expand.

    /usr/bin/python3 make_exports.py        # writes beside the script

NAME.onnx.gz is a model, NAME.logits what PyTorch makes of the tokens (7 i + 3) % 61 for 48 positions: float32,
[48, 61], little-endian.
"""
import gzip
import io
import math
import os

import torch
from torch import nn

VOCABULARY, WIDTH, HEADS, GROUPS, LAYERS, POSITIONS, LENGTH = 61, 32, 4, 2, 2, 64, 48
SIZE = WIDTH // HEADS


class Gpt2Attention(nn.Module):
    def __init__(self):
        super().__init__()
        causal = torch.tril(torch.ones(POSITIONS, POSITIONS, dtype=torch.bool)).view(1, 1, POSITIONS, POSITIONS)
        self.register_buffer("bias", causal)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def heads(self, x):
        return x.view(x.size()[:-1] + (HEADS, SIZE)).permute(0, 2, 1, 3)

    def forward(self, x, mask, past):
        q, k, v = (self.heads(t) for t in self.qkv(x).split(WIDTH, dim=2))
        if past is not None:
            k, v = torch.cat((past[0], k), dim=-2), torch.cat((past[1], v), dim=-2)
        scores = torch.matmul(q, k.transpose(-1, -2))
        scores = scores / torch.full([], v.size(-1) ** 0.5, dtype=scores.dtype)
        query_length, key_length = q.size(-2), k.size(-2)
        causal = self.bias[:, :, key_length - query_length:key_length, :key_length]
        least = torch.full([], torch.finfo(scores.dtype).min, dtype=scores.dtype)
        scores = torch.where(causal, scores, least)
        if mask is not None:
            scores = scores + mask
        weights = nn.functional.softmax(scores, dim=-1).type(v.dtype)
        y = torch.matmul(weights, v).permute(0, 2, 1, 3).contiguous()
        return self.out(y.view(y.size()[:-2] + (WIDTH,))), (k, v)


class Gpt2Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2, self.attention = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), Gpt2Attention()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, mask, past):
        y, present = self.attention(self.ln_1(x), mask, past)
        x = x + y
        h = self.up(self.ln_2(x))
        h = 0.5 * h * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (h + 0.044715 * torch.pow(h, 3.0))))
        return x + self.down(h), present


class Gpt2(nn.Module):
    kv_heads = HEADS

    def __init__(self, with_past):
        super().__init__()
        self.with_past = with_past
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.blocks = nn.ModuleList(Gpt2Block() for _ in range(LAYERS))
        self.ln = nn.LayerNorm(WIDTH)

    def forward(self, input_ids, attention_mask, *past):
        pasts = [past[2 * i:2 * i + 2] for i in range(LAYERS)] if self.with_past else [None] * LAYERS
        first = pasts[0][0].size(-2) if self.with_past else 0
        position_ids = torch.arange(first, input_ids.shape[-1] + first, dtype=torch.long).unsqueeze(0)
        mask = attention_mask.view(input_ids.shape[0], -1)[:, None, None, :].to(torch.float32)
        mask = (1.0 - mask) * torch.finfo(torch.float32).min
        x = self.wte(input_ids) + self.wpe(position_ids)
        presents = []
        for block, one in zip(self.blocks, pasts):
            x, present = block(x, mask, one)
            presents += present
        logits = nn.functional.linear(self.ln(x), self.wte.weight)
        return (logits, *presents) if self.with_past else logits


class RmsNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + 1e-6))


def rotate_half(x):
    return torch.cat((-x[..., x.shape[-1] // 2:], x[..., :x.shape[-1] // 2]), dim=-1)


def repeat_kv(x, count):
    batch, heads, length, size = x.shape
    x = x[:, :, None, :, :].expand(batch, heads, count, length, size)
    return x.reshape(batch, heads * count, length, size)


class LlamaLayer(nn.Module):
    def __init__(self):
        super().__init__()
        linear = lambda a, b: nn.Linear(a, b, bias=False)
        self.q, self.k, self.v = linear(WIDTH, WIDTH), linear(WIDTH, GROUPS * SIZE), linear(WIDTH, GROUPS * SIZE)
        self.o, self.gate, self.up = linear(WIDTH, WIDTH), linear(WIDTH, 3 * WIDTH), linear(WIDTH, 3 * WIDTH)
        self.down = linear(3 * WIDTH, WIDTH)
        self.norm_1, self.norm_2 = RmsNorm(), RmsNorm()

    def attend(self, x, mask, cos, sin, past):
        batch, length, _ = x.size()
        q = self.q(x).view(batch, length, HEADS, SIZE).transpose(1, 2)
        k = self.k(x).view(batch, length, GROUPS, SIZE).transpose(1, 2)
        v = self.v(x).view(batch, length, GROUPS, SIZE).transpose(1, 2)
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        keys, values = repeat_kv(k, HEADS // GROUPS), repeat_kv(v, HEADS // GROUPS)
        scores = torch.matmul(q, keys.transpose(2, 3)) / math.sqrt(SIZE) + mask
        weights = nn.functional.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        y = torch.matmul(weights, values).transpose(1, 2).contiguous()
        return self.o(y.reshape(batch, length, WIDTH)), (k, v)

    def forward(self, x, mask, cos, sin, past):
        y, present = self.attend(self.norm_1(x), mask, cos, sin, past)
        x = x + y
        h = self.norm_2(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h)), present


class Llama(nn.Module):
    kv_heads = GROUPS

    def __init__(self, with_past):
        super().__init__()
        self.with_past = with_past
        self.embed, self.norm = nn.Embedding(VOCABULARY, WIDTH), RmsNorm()
        self.layers = nn.ModuleList(LlamaLayer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        frequencies = 1.0 / (10000 ** (torch.arange(0, SIZE, 2, dtype=torch.int64).float() / SIZE))
        self.register_buffer("inv_freq", frequencies)

    def mask(self, input_ids, attention_mask, past_length):
        """As _prepare_4d_causal_attention_mask made it: a causal mask and an expanded one, filled one into the other."""
        least = torch.finfo(torch.float32).min
        batch, length = input_ids.shape
        causal = torch.full((length, length), least)
        places = torch.arange(causal.size(-1))
        causal.masked_fill_(places < (places + 1).view(causal.size(-1), 1), 0)
        if self.with_past:
            causal = torch.cat([torch.zeros(length, past_length), causal], dim=-1)
        causal = causal[None, None, :, :].expand(batch, 1, length, length + past_length)
        expanded = attention_mask[:, None, None, :].expand(batch, 1, length, attention_mask.shape[-1]).to(torch.float32)
        inverted = 1.0 - expanded
        expanded = inverted.masked_fill(inverted.to(torch.bool), least)
        return causal.masked_fill(expanded.bool(), least)

    def forward(self, input_ids, attention_mask, *rest):
        if self.with_past:
            position_ids, past = rest[0], rest[1:]
            pasts = [past[2 * i:2 * i + 2] for i in range(LAYERS)]
            past_length = pasts[0][0].shape[-2]
        else:
            position_ids = attention_mask.long().cumsum(-1) - 1
            position_ids = position_ids.masked_fill(attention_mask == 0, 1)
            pasts, past_length = [None] * LAYERS, 0
        mask = self.mask(input_ids, attention_mask, past_length)
        expanded = self.inv_freq[None, :, None].float().expand(position_ids.shape[0], -1, 1)
        angles = (expanded @ position_ids[:, None, :].float()).transpose(1, 2)
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)
        x = self.embed(input_ids)
        presents = []
        for layer, one in zip(self.layers, pasts):
            x, present = layer(x, mask, cos, sin, one)
            presents += present
        logits = self.head(self.norm(x)).float()
        return (logits, *presents) if self.with_past else logits


def export(name, model, takes_positions):
    length, past = 5, 3 if model.with_past else 0
    ids = (torch.arange(length) * 7 + 3).remainder(VOCABULARY)[None]
    inputs = {"input_ids": ids, "attention_mask": torch.ones(1, length + past, dtype=torch.long)}
    axes = {"input_ids": {0: "batch_size", 1: "sequence_length"}, "logits": {0: "batch_size", 1: "sequence_length"},
            "attention_mask": {0: "batch_size", 1: "past_sequence_length + 1" if past else "sequence_length"}}
    outputs = ["logits"]
    if takes_positions:
        inputs["position_ids"] = torch.arange(past, past + length)[None]
        axes["position_ids"] = axes["input_ids"]
    for layer in range(LAYERS if model.with_past else 0):
        for part in ("key", "value"):
            inputs[f"past_key_values.{layer}.{part}"] = torch.zeros(1, model.kv_heads, past, SIZE)
            axes[f"past_key_values.{layer}.{part}"] = {0: "batch_size", 2: "past_sequence_length"}
            outputs.append(f"present.{layer}.{part}")
            axes[outputs[-1]] = {0: "batch_size", 2: "past_sequence_length + 1"}
    file = io.BytesIO()
    torch.onnx.export(model, tuple(inputs.values()), file, input_names=list(inputs), output_names=outputs,
                      dynamic_axes=axes, opset_version=14, do_constant_folding=True)
    with open(name + ".onnx.gz", "wb") as raw, gzip.GzipFile("", "wb", 9, raw, 0) as packed:
        packed.write(file.getvalue())
    return inputs


def reference(name, model):
    ids = (torch.arange(LENGTH) * 7 + 3).remainder(VOCABULARY)[None]
    with torch.no_grad():
        logits = model(ids, torch.ones_like(ids))
    with open(name + ".logits", "wb") as file:
        file.write(logits[0].numpy().astype("<f4").tobytes())


def main():
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    for name, make in (("gpt2", Gpt2), ("llama", Llama)):
        torch.manual_seed(7)
        plain = make(False).eval()
        for weight in plain.parameters():
            nn.init.normal_(weight, mean=1.0 if weight.dim() == 1 and weight.numel() == WIDTH else 0.0, std=0.2)
            weight.data = (weight.data * 64).round() / 64  # few digits, small files
        cached = make(True).eval()
        cached.load_state_dict(plain.state_dict())
        export(name, plain, False)
        export(name + "_with_past", cached, name == "llama")
        reference(name, plain)


main()
