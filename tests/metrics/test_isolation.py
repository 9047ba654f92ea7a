import subprocess
import sys

MODULES = ("scores", "six", "matrix", "aggregate", "plasticity", "advantages", "summary", "curves")


def test_metrics_import_no_learner_and_nothing_heavy():
    code = (
        "import sys\n"
        "for name in ('jax', 'torch'): sys.modules[name] = None\n"
        f"for name in {MODULES!r}: __import__('perdure.metrics.' + name)\n"
        "heavy = {'scipy', 'pydantic', 'pyarrow', 'gymnasium', 'rich', 'pandas', 'matplotlib'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
