"""The names of the package: loaded when they are asked for, in any order of imports."""

import ast
import subprocess
import sys
from pathlib import Path

import fedsaddle as fs

ORDERS = [  # each in a process that has loaded nothing of fedsaddle
    "import fedsaddle.train",
    "from fedsaddle.train import Run",
    "from fedsaddle import train",
    "import fedsaddle.convexify",
    "import fedsaddle.config",
]


def _printed(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_import_is_light() -> None:
    heavy = (
        "sklearn",
        "pandas",
        "plotly",
        "pydantic",
        "typer",
        "rich",
        "scipy",
        "tensorboard",
        "mlflow",
        "wandb",
    )
    packages = (*heavy, "onnx", "flwr")
    code = (
        "import sys, fedsaddle; assert not {'torch', 'numpy'} & set(sys.modules); "
        "fedsaddle.data, fedsaddle.AUC, fedsaddle.CODASCA, fedsaddle.Federation, fedsaddle.train; "
        f"print([m for m in {packages!r} if m in sys.modules])"
    )
    assert _printed(code) == "[]"


def test_functions_are_not_hidden_by_the_modules_of_their_name() -> None:
    code = (
        "import sys\n"
        f"for order in {ORDERS!r}:\n"
        "    for name in [m for m in sys.modules if m.split('.')[0] == 'fedsaddle']: del sys.modules[name]\n"
        "    exec(order, {})\n"
        "    import fedsaddle as fs\n"
        "    for wanted in ('train', 'convexify'):\n"
        "        found = getattr(fs, wanted)\n"
        "        assert found is getattr(sys.modules[f'fedsaddle.{wanted}'], wanted), (order, found)\n"
    )
    _printed(code)


def test_one_table_of_names() -> None:
    """What type checkers read, what is loaded and what `import *` gives are the same."""
    tree = ast.parse(Path(fs.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imports if (node.module or "").startswith("fedsaddle.")]
    checked = {alias.name: (node.module or "").split(".")[1] for node in ours for alias in node.names}
    assert checked == fs._HOMES
    assert sorted(fs.__all__) == sorted([*checked, "data"])
    assert set(fs.__all__) <= set(dir(fs))
    given: dict[str, object] = {}
    exec("from fedsaddle import *", given)
    assert {name: given[name] for name in fs.__all__} == {name: getattr(fs, name) for name in fs.__all__}


def test_other_names() -> None:
    assert fs.models.__name__ == "fedsaddle.models"
    assert not hasattr(fs, "nothing")
