"""Functions and modules without side effects, by name."""

from __future__ import annotations

import sys
from collections import deque
from types import BuiltinFunctionType, ModuleType
from typing import Any

from torch import Tensor

_PURE_BUILTINS = frozenset(
    [
        "__build_class__",
        "abs",
        "all",
        "any",
        "ascii",
        "bin",
        "callable",
        "chr",
        "divmod",
        "format",
        "getattr",
        "hasattr",
        "hash",
        "hex",
        "isinstance",
        "issubclass",
        "iter",
        "len",
        "max",
        "min",
        "next",
        "oct",
        "ord",
        "pow",
        "repr",
        "round",
        "sorted",
        "sum",
    ]
)
_PURE_MODULES = frozenset(
    [
        "__future__",
        "_abc",
        "_collections",
        "_collections_abc",
        "_functools",
        "_operator",
        "abc",
        "builtins",
        "cmath",
        "collections",
        "contextlib",
        "copy",
        "copyreg",
        "dataclasses",
        "enum",
        "fractions",
        "functools",
        "itertools",
        "keyword",
        "math",
        "numbers",
        "operator",
        "reprlib",
        "types",
        "typing",
    ]
)
_TORCH_EFFECTS = frozenset(
    [
        "__array__",
        "backward",
        "from_numpy",
        "load",
        "manual_seed",
        "numpy",
        "register_hook",
        "save",
        "seed",
        "set_default_device",
        "set_default_dtype",
        "set_default_tensor_type",
        "set_flush_denormal",
        "set_float32_matmul_precision",
        "set_num_interop_threads",
        "set_num_threads",
        "set_printoptions",
        "set_rng_state",
        "use_deterministic_algorithms",
    ]
)
_TORCH_READS = frozenset(
    [
        *("__dlpack__", "__format__", "__repr__", "data_ptr", "storage", "tolist", "untyped_storage"),
        *("are_deterministic_algorithms_enabled", "get_num_threads"),
        *("is_grad_enabled", "is_inference", "is_inference_mode_enabled"),
    ]
)
"""What hands values to Python without an operation, and what may tell a solve from a recording."""
_TORCH_EFFECT_MODULES = (
    "torch.distributed",
    "torch.hub",
    "torch.multiprocessing",
    "torch.random",
    "torch.serialization",
    "torch.utils.tensorboard",
)
_MUTABLE = (list, dict, set, deque, bytearray)
_MUTATORS = frozenset(
    [
        "__delitem__",
        "__iadd__",
        "__ior__",
        "__setitem__",
        "add",
        "append",
        "appendleft",
        "clear",
        "difference_update",
        "discard",
        "extend",
        "extendleft",
        "insert",
        "intersection_update",
        "move_to_end",
        "pop",
        "popitem",
        "popleft",
        "remove",
        "reverse",
        "rotate",
        "setdefault",
        "sort",
        "symmetric_difference_update",
        "update",
    ]
)
HIDDEN_WRITES = frozenset({"__delattr__", "__dict__", "__setattr__", "__setstate__"})
"""Attributes through which an object can be changed unseen."""


def is_clean(module: str | None) -> bool:
    """Whether a module belongs to torch or anode, whose functions have no side effects unless listed here.

    This includes ``opt_einsum``, which `torch.einsum` uses if it is installed, and ``einops``, which only keeps what it
    has read of its patterns.
    """
    return (module or "").partition(".")[0] in ("torch", "anode", "opt_einsum", "einops")


def is_standard(module: str | None) -> bool:
    """Whether a module of this name belongs to Python's standard library."""
    return (module or "").partition(".")[0] in sys.stdlib_module_names


def use_obstacle(module: str | None, name: str = "") -> str:
    """Return why f may not use something from a Python module; empty if it may.

    Args:
        module: The name of the module.
        name: The name that is used. Defaults to the module as a whole.
    """
    module = module or ""
    full = f"{module}.{name}".strip(".")
    if is_clean(module):
        unfit = name in _TORCH_EFFECTS | _TORCH_READS or module.startswith(_TORCH_EFFECT_MODULES)
        return f"f uses {full}" if unfit else ""
    if module.startswith("numpy.random"):
        return f"f uses {full}"
    return f"f uses {full}" if is_standard(module) and module.partition(".")[0] not in _PURE_MODULES else ""


def numpy_obstacle(module: str | None, name: str) -> str:
    """Return that f computes with NumPy if this function does; otherwise empty."""
    return f"f leaves torch for NumPy ({module}.{name})" if (module or "").partition(".")[0] == "numpy" else ""


def builtin_obstacle(function: Any) -> str:
    """Return why f may not call a function written in C that belongs to no object; empty if it may."""
    if not isinstance(function, BuiltinFunctionType):
        return ""
    name, module = function.__name__, function.__module__ or ""
    if module == "builtins":
        return "" if name in _PURE_BUILTINS else f"f calls {name}"
    if module in ("_io", "io"):
        return f"f calls {name}"
    return numpy_obstacle(module, name) or use_obstacle(module if module in _PURE_MODULES else module.lstrip("_"), name)


def method_obstacle(function: BuiltinFunctionType, existed: bool) -> str:
    """Return why f may not call a function or method written in C; empty if it may.

    Args:
        function: The function, bound to its object if it is a method.
        existed: Whether the object existed before f was called.
    """
    owner, name = function.__self__, function.__name__
    if owner is None or isinstance(owner, ModuleType):
        return builtin_obstacle(function)
    kind = owner if isinstance(owner, type) else type(owner)
    if isinstance(owner, _MUTABLE):
        verb = "appends to" if name == "append" else "changes"
        base = next(base for base in _MUTABLE if isinstance(owner, base)).__name__
        return f"f {verb} a {base} ({base}.{name})" if existed and name in _MUTATORS else ""
    if isinstance(owner, Tensor):
        return f"f calls Tensor.{name}" if name in _TORCH_EFFECTS | _TORCH_READS else ""
    full = f"{kind.__qualname__}.{name}"
    if numpy := numpy_obstacle(kind.__module__, full):
        return numpy
    if kind.__module__ in _PURE_MODULES or is_clean(kind.__module__):
        return f"f calls torch.{name}" if is_clean(kind.__module__) and name in _TORCH_EFFECTS else ""
    if owner is kind and name in ("__new__", "__init_subclass__", "__subclasshook__"):
        return ""
    return use_obstacle(kind.__module__, full) or f"f calls {kind.__module__}.{full}, which is written in C"
