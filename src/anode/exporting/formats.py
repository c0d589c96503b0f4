"""The file formats that models can be exported to."""

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
    """Return the dynamic dimension of the only input. A function, because ``torch.export`` is slow to import."""
    return ({0: torch.export.Dim("rows")},)


class Writer(Protocol):
    """A file format."""

    def check(self) -> None:
        """Raise an error if a required package is not installed."""

    def content(
        self, module: nn.Module, x: Tensor, outputs: tuple[str, ...], labels: tuple[str, ...], notes: dict[str, str]
    ) -> bytes:
        """Return the content of the file.

        Args:
            module: The module, whose ``forward`` takes one argument, ``x``.
            x: Two example inputs.
            outputs: Names of the outputs.
            labels: Names of the classes if the first output is a class number; otherwise empty.
            notes: Metadata of the file.
        """


class TorchProgram:
    """``.pt2``, a torch exported program. Text classes are exported as numbers; the metadata holds their names."""

    def check(self) -> None:
        """Do nothing: only torch is required."""

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
    """``.onnx``, for onnxruntime and other programs that read ONNX."""

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
    """Replace the class numbers in the first output by the names of the classes."""
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
    """Suppress the output of torch's exporters in the body.

    Raises:
        ValueError: If torch cannot export the model.
    """
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            yield
        except Exception as error:  # torch raises errors of many types, with long texts about its own code
            cause = error.__cause__ or error
            what = (
                f"{type(cause).__name__}: {str(cause).strip().splitlines()[0]}" if str(cause).strip() else repr(cause)
            )
            raise ValueError(f"model: torch cannot export it ({what})") from error
        finally:
            logging.disable(before)


WRITERS: dict[str, Writer] = {".onnx": Onnx(), ".pt2": TorchProgram()}
"""The file formats by suffix."""
