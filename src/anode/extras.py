"""Optional packages: which extra brings them, and the line that says what is missing."""

from __future__ import annotations

from importlib.util import find_spec

EXTRAS = {
    "sklearn": ("scikit-learn",),
    "plots": ("matplotlib", "pillow"),
    "paper": ("matplotlib", "pillow", "requests", "rich", "scikit-learn", "threadpoolctl", "typer"),
    "search": ("optuna",),
    "cluster": ("distributed",),
    "onnx": ("onnx", "onnxscript"),
    "parquet": ("pyarrow",),
    "play": ("starlette", "uvicorn", "wsproto"),
}
"""The packages that this code imports of each extra; pyproject.toml holds their versions."""

MODULES = {"pillow": "PIL", "scikit-learn": "sklearn"}
"""The packages that are imported by another name."""


class MissingPackageError(ModuleNotFoundError):
    """An optional package is not installed. The message is one line that says how to install it."""


def needs(feature: str, extra: str, *packages: str) -> None:
    """Raise an error unless optional packages are installed. They are not imported.

    Args:
        feature: What needs them, as the error names it.
        extra: The extra that they come with.
        packages: Which of the extra's packages; all of them by default.

    Raises:
        MissingPackageError: If one of them is not installed.
    """
    missing = [name for name in packages or EXTRAS[extra] if not installed(name)]
    if missing:
        line = f'{feature}: needs {", ".join(missing)}; install with: pip install "anode[{extra}]"'
        raise MissingPackageError(line, name=MODULES.get(missing[0], missing[0]))


def installed(package: str) -> bool:
    """Whether a package can be imported."""
    return find_spec(MODULES.get(package, package)) is not None
