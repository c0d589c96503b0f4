"""The formats that models are exported to."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from anode.extras import needs


def free_rows() -> Any:
    """Of the only input, the dimension whose size is free. A function, as ``torch.export`` is slow to import."""
    return ({0: torch.export.Dim("rows")},)


class Writer(Protocol):
    """A format."""

    def check(self) -> None:
        """Raise an error if something that it needs is not installed."""

    def content(
        self, module: nn.Module, x: Tensor, outputs: tuple[str, ...], labels: tuple[str, ...], notes: dict[str, str]
    ) -> bytes:
        """The content of the file.

        Args:
            module: Its ``forward`` takes one argument, ``x``.
            x: Two inputs.
            outputs: What its outputs are called.
            labels: The names of the classes whose numbers the first output has; empty if it has none.
            notes: What the file says about itself.
        """


class TorchProgram:
    """``.pt2``, an exported program of torch. Classes that are texts are numbers in it; its notes name them."""

    def check(self) -> None:
        """Nothing beside torch is needed."""

    def content(
        self, module: nn.Module, x: Tensor, outputs: tuple[str, ...], labels: tuple[str, ...], notes: dict[str, str]
    ) -> bytes:
        with quiet():
            program = torch.export.export(module, (x,), dynamic_shapes=free_rows())
            file = io.BytesIO()
            named = {"anode.classes": "\n".join(labels)} if labels else {}
            torch.export.save(program, file, extra_files={**notes, **named})
        return file.getvalue()


class Onnx:
    """``.onnx``, for onnxruntime and everything that reads ONNX."""

    def check(self) -> None:
        needs("anode.export to ONNX", "onnx")

    def content(
        self, module: nn.Module, x: Tensor, outputs: tuple[str, ...], labels: tuple[str, ...], notes: dict[str, str]
    ) -> bytes:
        with quiet():
            program = torch.onnx.export(
                module,
                (x,),
                dynamo=True,
                dynamic_shapes=free_rows(),
                input_names=["x"],
                output_names=list(outputs),
                verbose=False,
            )
        assert program is not None, "torch returns it if it is given no file"
        model = program.model_proto
        if labels:
            name_classes(model, labels)
        for name, value in notes.items():
            model.metadata_props.add(key=name, value=value)
        content: bytes = model.SerializeToString()
        return content


def name_classes(model: Any, labels: tuple[str, ...]) -> None:
    """Replace the numbers of classes, the first output, by their names."""
    from onnx import TensorProto, helper

    output = model.graph.output[0]
    numbers = f"{output.name}_number"
    for node in model.graph.node:
        node.output[:] = [numbers if name == output.name else name for name in node.output]
        node.input[:] = [numbers if name == output.name else name for name in node.input]
    names: Any = [label.encode() for label in labels]
    model.graph.initializer.append(helper.make_tensor("class_names", TensorProto.STRING, [len(labels)], names))
    model.graph.node.append(helper.make_node("Gather", ["class_names", numbers], [output.name]))
    output.type.tensor_type.elem_type = TensorProto.STRING


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the pages that torch's exporters write about themselves.

    Raises:
        ValueError: Torch cannot export the model.
    """
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            yield
        except Exception as error:  # torch raises many kinds, with pages of advice about its own code
            cause = error.__cause__ or error
            what = (
                f"{type(cause).__name__}: {str(cause).strip().splitlines()[0]}" if str(cause).strip() else repr(cause)
            )
            raise ValueError(f"model: torch cannot export what it computes ({what})") from error
        finally:
            logging.disable(before)


WRITERS: dict[str, Writer] = {".onnx": Onnx(), ".pt2": TorchProgram()}
"""By the suffix of the file."""
