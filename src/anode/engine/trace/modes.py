"""Call f under torch's modes, and leave all of them afterwards."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar

import torch
from torch import overrides
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch as dispatching
from torch.utils._python_dispatch import TorchDispatchMode

T = TypeVar("T")


def under(modes: tuple[TorchDispatchMode | TorchFunctionMode, ...], call: Callable[[], T]) -> T:
    """Call a function under some modes, with autograd switched on.

    If Ctrl-C arrives while torch enters or leaves a mode, a ``with`` statement would leave the mode active.
    """
    recording = torch.is_grad_enabled()
    try:
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            for mode in modes:
                stack.enter_context(mode)
            return call()
    finally:
        if torch.is_grad_enabled() != recording:
            torch.set_grad_enabled(recording)
        while any(each in modes for each in dispatching._get_current_dispatch_mode_stack()):
            dispatching._pop_mode()
        while any(each in modes for each in overrides._get_current_function_mode_stack()):
            overrides._pop_mode()
