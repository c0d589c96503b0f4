"""Optional packages: which extra installs them, and the error if one is missing."""

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
"""The packages of each extra that anode imports; pyproject.toml holds their versions."""

MODULES = {"pillow": "PIL", "scikit-learn": "sklearn"}
"""The import names of packages that differ from their package names."""


class MissingPackageError(ModuleNotFoundError):
    """An optional package is not installed. The message says how to install it, on one line."""


def needs(feature: str, extra: str, *packages: str) -> None:
    """Raise an error unless optional packages are installed. Does not import them.

    Args:
        feature: The feature that needs them, for the error message.
        extra: The extra that installs them.
        packages: The packages of the extra to check. Defaults to all.

    Raises:
        MissingPackageError: If a package is not installed.
    """
    missing = [name for name in packages or EXTRAS[extra] if not installed(name)]
    if missing:
        line = f'{feature}: needs {", ".join(missing)}; install with: pip install "anode[{extra}]"'
        raise MissingPackageError(line, name=MODULES.get(missing[0], missing[0]))


def installed(package: str) -> bool:
    """Whether a package can be imported."""
    return find_spec(MODULES.get(package, package)) is not None
