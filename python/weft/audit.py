"""What an export of a PyTorch module loses, found by running it once and looking at it."""

from __future__ import annotations

import contextlib
import os
import re
import traceback
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Sequence, Set, Tuple

if TYPE_CHECKING:
    import torch

_NAMED_MAX = 5     # names in a warning
_TRACED_MAX = 8    # warnings of the tracer
_HOOKED_PREVIOUSLY = ("WeightNorm", "SpectralNorm")  # hooks of PyTorch that compute with tensors, which is exported


def listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:_NAMED_MAX])
    return shown + (f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else "")


class Audit:
    """Looks at a module before, while and after it is run. What concerns gradients is nothing to one that is served."""

    def __init__(self, model: "torch.nn.Module", *, trains: bool = True) -> None:
        self.model = model
        self._trains = trains
        self.warnings: List[str] = []
        self.unreached: Set[str] = set()
        if trains:
            self._look_at_modes()
            self._look_at_hooks()
            self._look_at_types()

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)

    def _look_at_modes(self) -> None:
        if not self.model.training:
            self._warn("the model is in eval mode; it is trained in training mode, with Dropout and BatchNorm at work. "
                       "Call model.train() first, and eval() on the parts that are to stay in eval mode")
        for name, module in self.model.named_modules():
            if getattr(module, "track_running_stats", False) and getattr(module, "momentum", 0) is None:
                self._warn(f"'{name}' has momentum=None, a running mean over all steps; the exported one has a fixed "
                           "momentum: say momentum=0.1")

    def _look_at_hooks(self) -> None:
        forward, backward = [], []
        for name, module in self.model.named_modules():
            hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
            if any(type(hook).__name__ not in _HOOKED_PREVIOUSLY for hook in hooks):
                forward.append(name or type(module).__name__)
            if module._backward_hooks or getattr(module, "_backward_pre_hooks", None):
                backward.append(name or type(module).__name__)
        backward += [name for name, p in self.model.named_parameters() if getattr(p, "_backward_hooks", None)]
        if forward:
            self._warn(f"{listed(forward)} has forward hooks: what they compute with tensors for the output is "
                       "exported, whatever else they do happens once, at the export. Remove those that only look")
        if backward:
            self._warn(f"{listed(backward)} has backward hooks: the exported model has no gradient but the one of its "
                       "formulas. Remove them, or clip by clip_norm")

    def _look_at_types(self) -> None:
        import torch

        half = [name for name, p in self.model.named_parameters() if p.dtype in (torch.float16, torch.bfloat16)]
        double = [name for name, p in self.model.named_parameters() if p.dtype == torch.float64]
        if half:
            self._warn(f"{listed(half)} are stored in 16 bits: weft trains float32 copies of them and rounds in each "
                       "pass. model.float() trains in float32 throughout")
        if double:
            self._warn(f"{listed(double)} are in float64, which weft does not train: call model.float() first")

    # ---- while it runs

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Around one run of the module: sees what it changes, and where it keeps gradients from flowing."""
        versions = self._buffer_versions()
        numbers = self._plain_attributes()
        with _watch_mode(self._warn) if self._trains else contextlib.nullcontext():
            yield
        statistics = self._statistics()
        changed = [name for name, version in self._buffer_versions().items()
                   if versions.get(name) != version and name not in statistics]
        if changed:
            self._warn(f"{listed(changed)} changes in each run of the model (a running estimate, spectral_norm, a "
                       "cache): in the exported one it keeps its value. Leave that out, or fold it into the weights first")
        moved = [name for name, value in self._plain_attributes().items() if numbers.get(name, value) != value]
        if moved:
            self._warn(f"{listed(moved)} changes in each run of the model: the exported one has the value of the first. "
                       "Compute it from the inputs, or leave it out")

    def _buffer_versions(self) -> Dict[str, Tuple[int, int]]:
        return {name: (id(buffer), buffer._version) for name, buffer in self.model.named_buffers()}

    def _plain_attributes(self) -> Dict[str, Any]:
        return {f"{name}.{key}" if name else key: value
                for name, module in self.model.named_modules()
                for key, value in module.__dict__.items()
                if not key.startswith("_") and isinstance(value, (bool, int, float)) and key != "training"}

    def _statistics(self) -> Set[str]:
        """The buffers of BatchNorm, which weft moves, too."""
        return {f"{owner}.{key}" if owner else key
                for owner, module in self.model.named_modules() if getattr(module, "track_running_stats", False)
                for key in ("running_mean", "running_var", "num_batches_tracked")}

    def look_at_gradients(self, outputs: "Sequence[torch.Tensor]") -> None:
        """Walks the graph that autograd has made: which parameters it reaches, and by whose formulas."""
        import torch

        seen, reached, own = set(), set(), set()  # type: Set[Any], Set[int], Set[str]
        waiting = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            variable = getattr(node, "variable", None)
            if variable is not None:
                reached.add(id(variable))
            name = re.sub("Backward$", "", type(node).__name__)
            if isinstance(node, torch.autograd.function.BackwardCFunction) and name != "BackwardHookFunction":
                own.add(name)
            waiting += [parent for parent, _ in node.next_functions if parent is not None]
        reached |= {id(tensor) for tensor in outputs}
        self.unreached = {name for name, p in self.model.named_parameters()
                          if p.requires_grad and id(p) not in reached}
        if own and self._trains:
            self._warn(f"the model has gradients of its own ({listed(sorted(own))}, autograd.Function): the exported "
                       "one has those of its forward formulas. Write it with PyTorch's operators")

    # ---- after it was exported

    def look_at_tracing(self, said: Sequence[Any]) -> None:
        """What the tracer has warned of: what the model computes in Python from the values of tensors."""
        shown = 0
        for warning in said:
            if not issubclass(warning.category, _tracer_warning()):
                continue
            place = f"{os.path.basename(warning.filename)}:{warning.lineno}"
            text = str(warning.message).strip().split("\n")[0].split(". We can't")[0]
            if _is_of_torch(warning.filename):
                continue
            shown += 1
            if shown > _TRACED_MAX:
                break
            self._warn(f"{place}: {text}. What depends on the values or the number of the samples there is fixed to "
                       "that of the example: write it with tensor operations, as torch.where")

    def look_at_file(self, names: Set[str]) -> None:
        """Compares the names of the file with the parameters: those that are missing are not trained."""
        if not self._trains:
            return
        present = {id(p) for name, p in named(self.model) if name in names}
        missing = [name for name, p in self.model.named_parameters() if p.requires_grad and id(p) not in present]
        if missing:
            self._warn(f"{listed(missing)} has no part in what forward computes: it is not in the exported model, and "
                       "stays as it is")
        cut = sorted(name for name in self.unreached if name in names)
        if cut:
            self._warn(f"{listed(cut)} is cut off from every output (detach, no_grad): it is frozen")
        self.unreached = set(cut)


def named(model: Any) -> Iterator[Tuple[str, Any]]:
    """The parameters under all of their names."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield (f"{prefix}.{name}" if prefix else name), parameter


def _tracer_warning() -> Any:
    from torch.jit._trace import TracerWarning

    return TracerWarning


def _is_of_torch(path: str) -> bool:
    import torch

    return os.path.abspath(path).startswith(os.path.dirname(os.path.abspath(torch.__file__)) + os.sep)


def _place() -> str:
    """The line outside of PyTorch that is at work."""
    here = os.path.dirname(os.path.abspath(__file__))
    for frame in reversed(traceback.extract_stack()):
        if not _is_of_torch(frame.filename) and not os.path.abspath(frame.filename).startswith(here + os.sep):
            return f"{os.path.basename(frame.filename)}:{frame.lineno}"
    return "the model"


def _watch_mode(warn: Any) -> Any:
    """Sees each function of PyTorch that is called: a context; one that sees nothing where PyTorch has none."""
    try:
        from torch.overrides import TorchFunctionMode
    except ImportError:
        return contextlib.nullcontext()
    import torch

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = getattr(func, "__name__", "")
            given = args[0] if args and torch.is_tensor(args[0]) else None
            if getattr(func, "__self__", None) is torch.Tensor.data and given is not None:
                warn(f"{_place()}: `.data` of a tensor is fixed to that of the example: write detach()")
            elif name in ("detach", "detach_") and given is not None and given.requires_grad:
                warn(f"{_place()}: a gradient is cut here (detach): the exported model lets it through. What that "
                     "concerns is trained otherwise than by PyTorch; where it is whole parameters, "
                     "requires_grad=False freezes them")
            elif not torch.is_grad_enabled() and name not in ("__get__", "requires_grad_", "size", "dim") and any(
                    torch.is_tensor(arg) and arg.requires_grad for arg in args):
                warn(f"{_place()}: the model computes under no_grad: the exported one lets gradients through. Where "
                     "that is whole parameters, requires_grad=False freezes them")
            return func(*args, **(kwargs or {}))

    return Watch()
