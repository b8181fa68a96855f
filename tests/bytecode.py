"""Writes the bytecode of the library and of the tests, as pytest rewrites them, without running it.

``python -m tests.bytecode 0 2`` does the first half of the files. Workers that begin with a clean
checkout would each do all of it, or wait for the one that does.
"""

from __future__ import annotations

import sys
from compileall import compile_file
from pathlib import Path

from _pytest.assertion import AssertionState, rewrite
from _pytest.config import Config, get_config

TESTS = Path(__file__).parent
LIBRARY = TESTS.with_name("spark_bookkeeper")
PLUGINS = (TESTS / "parallel.py", TESTS / "worlds.py")


def is_rewritten(path: Path) -> bool:
    """Tell whether pytest rewrites the assertions of this module."""
    return path.name.startswith("test_") or path.name == "conftest.py" or path in PLUGINS


def pyc_of(path: Path) -> Path:
    """Where pytest looks for the bytecode of a module that it rewrites."""
    return Path(rewrite.get_cache_dir(path)) / (path.name[:-3] + rewrite.PYC_TAIL)


def write(path: Path, config: Config) -> None:
    """Write the bytecode of one module."""
    if not is_rewritten(path):
        compile_file(path, quiet=2)
        return
    pyc = pyc_of(path)
    pyc.parent.mkdir(exist_ok=True)
    source, code = rewrite._rewrite_test(path, config)
    rewrite._write_pyc(AssertionState(config, "rewrite"), code, source, pyc)


def main(number: int, processes: int) -> None:
    """Write one of so many parts of the files."""
    config = get_config()
    files = sorted([*LIBRARY.rglob("*.py"), *TESTS.rglob("*.py")])
    for path in files[number::processes]:
        write(path, config)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
