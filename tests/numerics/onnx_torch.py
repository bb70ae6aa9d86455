"""Evaluates an ONNX graph with PyTorch, node by node: slow, small, and independent of weft.

It covers the operators of the models in this repository. Autograd works through it, so that a graph can be trained
with it too.
"""
import gzip

import numpy as np
import onnx
from onnx import numpy_helper
import torch
import torch.nn.functional as F


def load(path):
    """Reads a model; a name that ends in .gz is decompressed on the way."""
    opener = gzip.open if path.endswith(".gz") else open
    with opener(path, "rb") as f:
        return onnx.load_model_from_string(f.read())


def initializers(model, dtype):
    """The initializers as tensors by name; floating-point ones take the type asked for."""
    return {t.name: _tensor(t, dtype) for t in model.graph.initializer}


def _tensor(proto, dtype):
    t = torch.from_numpy(np.array(numpy_helper.to_array(proto)))
    return t.to(dtype) if t.is_floating_point() else t


def _ints(t):
    return [int(v) for v in t.reshape(-1).tolist()]


def _pads(attributes, rank):
    """Symmetric padding only, which is all that PyTorch exports for convolutions and pooling."""
    pads = attributes.get("pads", [0] * (2 * rank))
    if attributes.get("auto_pad", b"NOTSET") != b"NOTSET" or pads[:rank] != pads[rank:]:
        raise NotImplementedError("asymmetric padding")
    return pads[:rank]


class Graph:
    def __init__(self, model, dtype=torch.float64, training=False):
        """With training false, BatchNormalization uses its running statistics and Dropout does nothing, whatever
        the file says. With training true, the file decides."""
        self.model, self.dtype, self.training = model, dtype, training
        self.opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
        self.attributes = [{a.name: onnx.helper.get_attribute_value(a) for a in n.attribute} for n in model.graph.node]

    def run(self, inputs, values):
        """inputs and values: tensors by name, for graph inputs and initializers. Returns (outputs by name, new running
        statistics by initializer name)."""
        env = dict(values)
        env.update(inputs)
        self.statistics = {}
        for node, attributes in zip(self.model.graph.node, self.attributes):
            function = getattr(self, "op_" + node.op_type, None)
            if function is None or node.domain not in ("", "ai.onnx"):
                raise NotImplementedError(f"operator {node.domain}{node.op_type}")
            args = [env[name] if name else None for name in node.input]
            results = function(node, attributes, *args)
            if not isinstance(results, (tuple, list)):
                results = [results]
            for name, value in zip(node.output, results):
                env[name] = value
        return {o.name: env[o.name] for o in self.model.graph.output}, self.statistics

    # Values and shapes.
    def op_Constant(self, node, a):
        if "value" in a:
            return _tensor(a["value"], self.dtype)
        for key, value in a.items():
            return torch.tensor(value, dtype=self.dtype if "float" in key else torch.int64)

    def op_ConstantOfShape(self, node, a, shape):
        fill = _tensor(a["value"], self.dtype) if "value" in a else torch.zeros(1, dtype=self.dtype)
        return fill.reshape(()).expand(_ints(shape)).clone()

    def op_Shape(self, node, a, x):
        return torch.tensor(x.shape[a.get("start", 0):a.get("end", x.dim())], dtype=torch.int64)

    def op_Cast(self, node, a, x):
        to = {1: self.dtype, 11: self.dtype, 6: torch.int32, 7: torch.int64, 9: torch.bool}[a["to"]]
        return x.to(to)

    def op_Range(self, node, a, start, limit, delta):
        return torch.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype)

    def op_Identity(self, node, a, x):
        return x

    def op_Reshape(self, node, a, x, shape):
        sizes = _ints(shape)
        return x.reshape([x.shape[i] if s == 0 and not a.get("allowzero", 0) else s for i, s in enumerate(sizes)])

    def op_Flatten(self, node, a, x):
        axis = a.get("axis", 1)
        return x.reshape(int(np.prod(x.shape[:axis])), -1)

    def op_Transpose(self, node, a, x):
        return x.permute(a.get("perm", list(reversed(range(x.dim())))))

    def op_Expand(self, node, a, x, shape):
        return x.expand(torch.broadcast_shapes(x.shape, tuple(_ints(shape))))

    def op_Squeeze(self, node, a, x, axes=None):
        axes = _ints(axes) if axes is not None else a.get("axes", [i for i, s in enumerate(x.shape) if s == 1])
        for axis in sorted((i % x.dim() for i in axes), reverse=True):
            x = x.squeeze(axis)
        return x

    def op_Unsqueeze(self, node, a, x, axes=None):
        axes = _ints(axes) if axes is not None else a["axes"]
        rank = x.dim() + len(axes)
        for axis in sorted(i % rank for i in axes):
            x = x.unsqueeze(axis)
        return x

    def op_Concat(self, node, a, *xs):
        return torch.cat(xs, a["axis"])

    def op_Split(self, node, a, x, sizes=None):
        axis = a.get("axis", 0)
        sizes = _ints(sizes) if sizes is not None else a.get("split", [x.shape[axis] // len(node.output)] * len(node.output))
        return x.split(sizes, axis)

    def op_Slice(self, node, a, x, starts, ends, axes=None, steps=None):
        starts, ends = _ints(starts), _ints(ends)
        axes = _ints(axes) if axes is not None else range(len(starts))
        steps = _ints(steps) if steps is not None else [1] * len(starts)
        index = [slice(None)] * x.dim()
        for start, end, axis, step in zip(starts, ends, axes, steps):
            if step < 1:
                raise NotImplementedError("Slice with a negative step")
            index[axis] = slice(start, end, step)
        return x[tuple(index)]

    def op_Gather(self, node, a, x, index):
        axis = a.get("axis", 0) % x.dim()
        index = torch.where(index < 0, index + x.shape[axis], index)
        result = x.index_select(axis, index.reshape(-1))
        return result.reshape(x.shape[:axis] + index.shape + x.shape[axis + 1:])

    # Element-wise.
    def op_Add(self, node, a, x, y):
        return x + y

    def op_Sub(self, node, a, x, y):
        return x - y

    def op_Mul(self, node, a, x, y):
        return x * y

    def op_Div(self, node, a, x, y):
        return x / y if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc")

    def op_Pow(self, node, a, x, y):
        return torch.pow(x, y).to(x.dtype)

    def op_Sqrt(self, node, a, x):
        return torch.sqrt(x)

    def op_Neg(self, node, a, x):
        return -x

    def op_Exp(self, node, a, x):
        return torch.exp(x)

    def op_Log(self, node, a, x):
        return torch.log(x)

    def op_Erf(self, node, a, x):
        return torch.erf(x)

    def op_Tanh(self, node, a, x):
        return torch.tanh(x)

    def op_Sigmoid(self, node, a, x):
        return torch.sigmoid(x)

    def op_Relu(self, node, a, x):
        return torch.relu(x)

    def op_Clip(self, node, a, x, low=None, high=None):
        return torch.clamp(x, a.get("min", low), a.get("max", high))

    def op_Floor(self, node, a, x):
        return torch.floor(x)

    def op_RandomUniformLike(self, node, a, x):
        # Any draw: what is trained with it survives whatever is drawn.
        return torch.rand_like(x)

    def op_Equal(self, node, a, x, y):
        return x == y

    def op_Not(self, node, a, x):
        return ~x

    def op_Where(self, node, a, condition, x, y):
        return torch.where(condition, x, y)

    def op_Pad(self, node, a, x, pads=None, value=None):
        pads = _ints(pads) if pads is not None else a["pads"]
        rank = x.dim()
        sides = [side for d in reversed(range(rank)) for side in (pads[d], pads[d + rank])]
        return F.pad(x, sides, a.get("mode", b"constant").decode(), 0.0 if value is None else value.item())

    def op_Resize(self, node, a, x, roi=None, scales=None, sizes=None):
        """Upsampling by whole numbers, as F.interpolate writes it."""
        mode, place = a.get("mode", b"nearest").decode(), a.get("coordinate_transformation_mode", b"half_pixel").decode()
        size = _ints(sizes) if sizes is not None else [int(n * s) for n, s in zip(x.shape, scales.tolist())]
        if mode == "nearest" and place == "asymmetric":
            return F.interpolate(x, size[2:], mode="nearest")
        if mode == "linear" and place in ("half_pixel", "pytorch_half_pixel"):
            return F.interpolate(x, size[2:], mode="bilinear", align_corners=False)
        raise NotImplementedError(f"Resize {mode}, {place}")

    # Recurrent layers: ONNX's equations, step by step, one direction.
    def op_LSTM(self, node, a, x, w, r, b, lengths=None, h=None, c=None):
        size, ys = a["hidden_size"], []
        h, c = h[0], c[0]
        for t in range(x.shape[0]):
            i, o, f, g = (x[t] @ w[0].t() + h @ r[0].t() + b[0, :4 * size] + b[0, 4 * size:]).split(size, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            ys.append(h)
        return torch.stack(ys)[:, None], h[None], c[None]

    def op_GRU(self, node, a, x, w, r, b, lengths=None, h=None):
        if not a.get("linear_before_reset", 0):
            raise NotImplementedError("GRU that resets before its product")
        size, ys, h = a["hidden_size"], [], h[0]
        for t in range(x.shape[0]):
            xz, xr, xh = (x[t] @ w[0].t() + b[0, :3 * size]).split(size, 1)
            hz, hr, hh = (h @ r[0].t() + b[0, 3 * size:]).split(size, 1)
            z = torch.sigmoid(xz + hz)
            h = (1 - z) * torch.tanh(xh + torch.sigmoid(xr + hr) * hh) + z * h
            ys.append(h)
        return torch.stack(ys)[:, None], h[None]

    # Layers.
    def op_MatMul(self, node, a, x, y):
        return x @ y

    def op_Gemm(self, node, a, x, y, c=None):
        x = x.t() if a.get("transA", 0) else x
        y = y.t() if a.get("transB", 0) else y
        result = a.get("alpha", 1.0) * (x @ y)
        return result if c is None else result + a.get("beta", 1.0) * c

    def op_Conv(self, node, a, x, w, b=None):
        rank = w.dim() - 2
        function = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[rank]
        return function(x, w, b, a.get("strides", [1] * rank), _pads(a, rank), a.get("dilations", [1] * rank),
                        a.get("group", 1))

    def op_ConvTranspose(self, node, a, x, w, b=None):
        return F.conv_transpose2d(x, w, b, a.get("strides", [1, 1]), _pads(a, 2), a.get("output_padding", [0, 0]),
                                  a.get("group", 1), a.get("dilations", [1, 1]))

    def op_MaxPool(self, node, a, x):
        return F.max_pool2d(x, a["kernel_shape"], a.get("strides", [1, 1]), _pads(a, 2), a.get("dilations", [1, 1]),
                            bool(a.get("ceil_mode", 0)))

    def op_AveragePool(self, node, a, x):
        return F.avg_pool2d(x, a["kernel_shape"], a.get("strides", [1, 1]), _pads(a, 2), bool(a.get("ceil_mode", 0)),
                            bool(a.get("count_include_pad", 0)))

    def op_GlobalAveragePool(self, node, a, x):
        return x.mean(tuple(range(2, x.dim())), keepdim=True)

    def op_BatchNormalization(self, node, a, x, scale, bias, mean, var):
        # Before opset 14 there is no attribute: more than one output means training.
        training = self.training and (bool(a.get("training_mode", 0)) if self.opset >= 14 else len(node.output) > 1)
        epsilon, momentum = a.get("epsilon", 1e-5), a.get("momentum", 0.9)
        if not training:
            return F.batch_norm(x, mean, var, scale, bias, False, 0.0, epsilon)
        mean, var = mean.clone(), var.clone()
        y = F.batch_norm(x, mean, var, scale, bias, True, 1 - momentum, epsilon)
        self.statistics[node.input[3]], self.statistics[node.input[4]] = mean, var
        return (y, mean, var, mean, var)[:max(1, len(node.output))]

    def op_LayerNormalization(self, node, a, x, scale, bias=None):
        axis = a.get("axis", -1) % x.dim()
        return F.layer_norm(x, x.shape[axis:], scale, bias, a.get("epsilon", 1e-5))

    def op_Gelu(self, node, a, x):
        return F.gelu(x, approximate=a.get("approximate", b"none").decode())

    def op_Softmax(self, node, a, x):
        return torch.softmax(x, a.get("axis", -1))

    def op_LogSoftmax(self, node, a, x):
        return torch.log_softmax(x, a.get("axis", -1))

    def op_ReduceMean(self, node, a, x):
        axes = a.get("axes", list(range(x.dim())))
        return x.mean(axes, keepdim=bool(a.get("keepdims", 1)))

    def op_Dropout(self, node, a, x, ratio=None, training=None):
        on = self.training and training is not None and bool(training)
        if on and (ratio is None or ratio.item() != 0):
            raise NotImplementedError("Dropout that drops")
        return x, torch.ones_like(x, dtype=torch.bool)
