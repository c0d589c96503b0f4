"""The file formats that models can be exported to."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


def free_rows() -> Any:
    """Return the dynamic dimension of the only input. A function, because ``torch.export`` is slow to import."""
    return ({0: torch.export.Dim("rows")},)


def torch_program(
    module: nn.Module, x: Tensor, outputs: tuple[str, ...], labels: tuple[str, ...], notes: dict[str, str]
) -> bytes:
    """Return a torch exported program, ``.pt2``. Text classes are exported as numbers; the metadata holds their names.

    Args:
        module: The module, whose ``forward`` takes one argument, ``x``.
        x: Two example inputs.
        outputs: Names of the outputs; not part of this format.
        labels: Names of the classes if the first output is a class index; otherwise empty.
        notes: Metadata of the file.
    """
    with quiet():
        program = torch.export.export(module, (x,), dynamic_shapes=free_rows())
        file = io.BytesIO()
        named = {"anode.classes": "\n".join(labels)} if labels else {}
        torch.export.save(program, file, extra_files={**notes, **named})
    return file.getvalue()


def onnx(
    module: nn.Module, x: Tensor, outputs: tuple[str, ...], labels: tuple[str, ...], notes: dict[str, str]
) -> bytes:
    """Return an ONNX file, for onnxruntime and other programs. The arguments are those of :func:`torch_program`."""
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
    """Replace the class indices in the first output by the names of the classes."""
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


WRITERS = {".onnx": onnx, ".pt2": torch_program}
"""Functions that return the content of a file, by its suffix."""
