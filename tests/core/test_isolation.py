import subprocess
import sys

import pytest

SCRIPT = """
import importlib, pkgutil, sys
for blocked in ("jax", "jaxlib", "torch"):
    sys.modules[blocked] = None
package = importlib.import_module("perdure.{package}")
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    importlib.import_module(module.name)
heavy = {{"pydantic", "scipy", "pyarrow", "matplotlib", "rich"}} & set(sys.modules)
print(",".join(sorted(heavy)))
"""


@pytest.mark.parametrize("package", ["core", "regimes", "rewards"])
def test_every_module_imports_without_jax_torch_and_other_heavy_libraries(package):
    command = [sys.executable, "-c", SCRIPT.format(package=package)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == ""
