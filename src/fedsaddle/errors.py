"""The one exception that a user's mistake raises: one line that names the thing, the rule, the value and the remedy."""

import importlib
from typing import Any


class FedsaddleError(ValueError):
    """Bad input or a run that cannot go on; the command line prints its one line and exits with code 2."""


class Diverged(FedsaddleError):
    """The iterate of a run is no longer finite."""


def optional_import(module: str, purpose: str, extra: str = "") -> Any:
    """Import a module where it is needed, with a remedy when it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = f"fedsaddle[{extra}]" if extra else module.split(".")[0]
        raise FedsaddleError(f"{purpose} needs {module.split('.')[0]}: pip install '{package}'") from error
