"""A PyTorch module as an ONNX file that weft trains: its parameters under their own names, in training mode.

What the export loses is said, each with what to do about it (ExportWarning).
"""

from __future__ import annotations

import contextlib
import inspect
import os
import warnings
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from .errors import ExportError, InvalidArgument, Unsupported
from .weights import bare_module, named_state, patch_initializers

if TYPE_CHECKING:
    import torch

OPSET = 17

# What to do about what the exporters of some versions lack, by a word of what they say.
_ADVICE = {
    "bernoulli": "Stochastic depth cannot be exported at work: leave it out, or call eval() on those modules while the "
                 "model is in training mode",
    "adaptive": "A pooling to a size that does not divide its input's has no operator: pool to a divisor, or take other "
                "sizes of input",
}


class Exported:
    """What an export comes to."""

    def __init__(self, inputs: List[str], outputs: List[str], warnings: List[str]) -> None:
        self.inputs, self.outputs, self.warnings = inputs, outputs, warnings
        self.unreached: Set[str] = set()
        """Parameters that are to be trained and that no gradient reaches in PyTorch."""


# ---- inputs and outputs ------------------------------------------------------------------------------------------


def forward_names(model: Any) -> List[str]:
    """The names of what forward takes, without *args and **kwargs."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD,
             inspect.Parameter.KEYWORD_ONLY)
    return [name for name, parameter in inspect.signature(bare_module(model).forward).parameters.items()
            if parameter.kind in kinds]


def example_inputs(model: Any, example: Any) -> "Dict[str, torch.Tensor]":
    """The example as tensors by the names of forward's arguments, on the model's device, of two samples or more."""
    import torch

    if isinstance(example, Mapping):
        named = {str(name): value for name, value in example.items()}
    else:
        values = list(example) if isinstance(example, (tuple, list)) else [example]
        names = forward_names(model)
        names += [f"x{i}" for i in range(len(names), len(values))]  # forward(*args)
        named = dict(zip(names, values))
    if not named:
        raise InvalidArgument("the example has no inputs")
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    tensors = {}
    for name, value in named.items():
        tensor = value if torch.is_tensor(value) else torch.as_tensor(value)
        if tensor.dim() == 0:
            raise InvalidArgument(f"the example for '{name}' is one number; it has to be a batch, with its samples on "
                                  "the first axis")
        tensors[name] = tensor.detach().to(device)
    lengths = {name: len(tensor) for name, tensor in tensors.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise InvalidArgument(f"the example has different numbers of samples: {lengths}")
    if 1 in lengths.values():  # a batch of one is taken for a size that is always 1
        tensors = {name: torch.cat([tensor, tensor]) for name, tensor in tensors.items()}
    return tensors


def flatten_outputs(value: Any, name: str = "") -> "List[Tuple[str, torch.Tensor]]":
    """What forward returns, as tensors with names: those of a mapping, or `output`, or `output0`, `output1`."""
    import torch

    if torch.is_tensor(value):
        return [(name or "output", value)]
    if isinstance(value, Mapping):
        return [pair for key, part in value.items()
                for pair in flatten_outputs(part, f"{name}_{key}" if name else str(key))]
    if isinstance(value, (tuple, list)):
        fields = getattr(value, "_fields", None) or [f"{name or 'output'}{i}" for i in range(len(value))]
        if len(value) == 1 and not getattr(value, "_fields", None):
            return flatten_outputs(value[0], name)
        return [pair for key, part in zip(fields, value) for pair in flatten_outputs(part, key)]
    if value is None:
        return []
    raise Unsupported(f"forward returns a {type(value).__name__}; it has to return tensors, or tuples or dicts of them")


def _unique_names(names: Sequence[str], taken: Sequence[str]) -> List[str]:
    seen, unique = set(taken), []
    for name in names:
        while name in seen:
            name += "_out"
        seen.add(name)
        unique.append(name)
    return unique


# ---- the model, as it is exported --------------------------------------------------------------------------------


@contextlib.contextmanager
def _kept_as_it_is(model: Any) -> Iterator[None]:
    """Whatever happens inside, the module's modes, buffers and numbers and PyTorch's random numbers are as before."""
    import torch

    numbers = [(module, {key: value for key, value in module.__dict__.items() if isinstance(value, (bool, int, float))})
               for module in model.modules()]
    owned = [(module, dict(module._buffers)) for module in model.modules()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    grads = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        with torch.random.fork_rng():
            yield
    finally:
        for module, values in numbers:
            module.__dict__.update(values)  # `training` is one of them
        for module, named_buffers in owned:
            module._buffers.update(named_buffers)
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        for parameter, grad in grads:
            parameter.grad = grad


@contextlib.contextmanager
def _flat_forward(model: Any, call: Callable[..., Any]) -> Iterator[None]:
    """forward takes tensors in the order of the inputs and returns a tuple of tensors; names of parameters stay."""
    own = model.__dict__.get("forward")
    model.forward = call
    try:
        yield
    finally:
        if own is None:
            del model.__dict__["forward"]
        else:
            model.forward = own


def _caller(forward: Callable[..., Any], names: Sequence[str], by_name: bool) -> Callable[..., Any]:
    def call(*tensors: Any) -> Any:
        value = forward(**dict(zip(names, tensors))) if by_name else forward(*tensors)
        return tuple(tensor for _, tensor in flatten_outputs(value))
    return call


def export_arguments(export: Callable[..., Any], *, inputs: Sequence[str], outputs: Sequence[str],
                     axes: Mapping[str, Mapping[int, str]], training: Any) -> Dict[str, Any]:
    """The arguments for torch.onnx.export, by what this version of it takes.

    The exporter that traces is asked for wherever there is one: it keeps names and BatchNorm in training form.
    """
    parameters = inspect.signature(export).parameters
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    arguments: Dict[str, Any] = {"input_names": list(inputs), "output_names": list(outputs), "opset_version": OPSET}
    if "dynamic_axes" in parameters or open_ended:
        arguments["dynamic_axes"] = {name: dict(of) for name, of in axes.items()}
        if "dynamo" in parameters:
            arguments["dynamo"] = False
    else:  # no tracing any more
        arguments["dynamic_shapes"] = (tuple(dict(axes.get(name, {})) for name in inputs),)
        if "dynamo" in parameters:
            arguments["dynamo"] = True
        if "optimize" in parameters:
            arguments["optimize"] = False  # it would fold weights
        if "external_data" in parameters:
            arguments["external_data"] = False
    if "do_constant_folding" in parameters or open_ended:
        arguments["do_constant_folding"] = False
    if ("training" in parameters or open_ended) and "dynamic_axes" in arguments:
        arguments["training"] = training
    return arguments


def export_model(model: "torch.nn.Module", example: Any, path: "str | os.PathLike[str]", *,
                 outputs: Optional[Sequence[str]] = None,
                 dynamic: Optional[Mapping[str, Mapping[int, str]]] = None, trains: bool = True) -> Exported:
    """Writes the module as an ONNX file in training mode; `example` is a batch of what forward takes.

    Modules of it that are in eval mode while it is in training mode stay so: a BatchNorm keeps its statistics then.
    `outputs` names what forward returns. `dynamic` leaves open more than the number of samples, as
    {"tokens": {1: "positions"}}. `trains=False` says nothing of what only training loses.
    """
    import torch

    model = bare_module(model)
    if not isinstance(model, torch.nn.Module) or type(model).__name__.endswith("ScriptModule"):
        raise InvalidArgument(f"the model is a {type(model).__name__}; it has to be a torch.nn.Module, or the path of "
                              "an ONNX file")
    tensors = example_inputs(model, example)
    from .audit import Audit
    audit = Audit(model, trains=trains)
    call = _caller(model.forward, list(tensors), isinstance(example, Mapping))
    with _kept_as_it_is(model):
        if not model.training:
            model.train()
        with audit.watching():
            produced = _run(model, list(tensors), list(tensors.values()), isinstance(example, Mapping))
        audit.look_at_gradients([tensor for _, tensor in produced])
        names = _output_names([name for name, _ in produced], outputs, [*tensors, *model.state_dict()])
        axes = _axes(dict(tensors), dict(zip(names, (t for _, t in produced))), dynamic)
        del produced
        with _flat_forward(model, call):
            _write(model, tuple(tensors.values()), os.fspath(path), audit, list(tensors), names, axes)
    # Tracing runs the module, which moves BatchNorm's statistics: the file gets what the module has.
    written = patch_initializers(path, named_state(model))
    audit.look_at_file(written)
    exported = Exported(list(tensors), names, audit.warnings)
    exported.unreached = audit.unreached
    return exported


def _run(model: Any, names: List[str], tensors: List[Any], by_name: bool) -> "List[Tuple[str, torch.Tensor]]":
    import torch

    try:
        with torch.enable_grad():
            value = model(**dict(zip(names, tensors))) if by_name else model(*tensors)
    except Exception as problem:
        raise InvalidArgument(f"the model does not take the example: {type(problem).__name__}: {problem}") from problem
    produced = flatten_outputs(value)
    if not produced:
        raise InvalidArgument("forward returns nothing")
    return produced


def _output_names(found: List[str], wanted: Optional[Sequence[str]], taken: Sequence[str]) -> List[str]:
    if wanted is None:
        return _unique_names(found, taken)
    if len(wanted) != len(found):
        raise InvalidArgument(f"forward returns {len(found)} tensors, and outputs names {len(wanted)}")
    clash = [name for name in wanted if name in taken]
    if clash:
        raise InvalidArgument(f"'{clash[0]}' is the name of an input or a parameter, and outputs has it, too")
    return list(wanted)


def _axes(inputs: "Mapping[str, torch.Tensor]", outputs: "Mapping[str, torch.Tensor]",
          dynamic: Optional[Mapping[str, Mapping[int, str]]]) -> Dict[str, Dict[int, str]]:
    samples = len(next(iter(inputs.values())))
    axes: Dict[str, Dict[int, str]] = {name: {0: "batch"} for name in inputs}
    axes.update({name: {0: "batch"} for name, tensor in outputs.items() if tensor.dim() and len(tensor) == samples})
    for name, more in (dynamic or {}).items():
        if name not in inputs and name not in outputs:
            raise InvalidArgument(f"dynamic speaks of '{name}'; there are {', '.join([*inputs, *outputs])}")
        axes.setdefault(name, {}).update({int(axis): str(symbol) for axis, symbol in more.items()})
    return axes


def _write(model: Any, tensors: Tuple[Any, ...], path: str, audit: Any, inputs: List[str], outputs: List[str],
           axes: Mapping[str, Mapping[int, str]]) -> None:
    import torch

    export = torch.onnx.export
    arguments = export_arguments(export, inputs=inputs, outputs=outputs, axes=axes,
                                 training=torch.onnx.TrainingMode.PRESERVE)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            export(model, tensors, path, **arguments)
        except Exception as problem:
            raise ExportError(_why_not(problem, audit.warnings)) from problem
    audit.look_at_tracing(said)


def _why_not(problem: Exception, warnings: Sequence[str]) -> str:
    import torch

    said = str(problem).strip().split("\n")[0].split(" [Caused by")[0][:400]
    text = f"PyTorch {torch.__version__} cannot export the model: {type(problem).__name__}: {said}"
    text += "".join(f"\n{advice}" for word, advice in _ADVICE.items() if word in said.lower())
    return text + "".join(f"\nIt may be that {warning}" for warning in warnings)
