"""`make docs` builds the reference of lms3d's public names, without warnings, and the pages load nothing from elsewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import lms3d
from docs.build_reference import MODULES, listed

ROOT = Path(__file__).parent.parent


def test_arguments_become_a_list():
    docstring = "Does it.\n\ntier: where tensors go,\n    such as host.\nlow, high: bounds.\nRaises ValueError: never."
    assert listed(docstring) == (
        "Does it.\n\n\n- **tier**: where tensors go,\n    such as host.\n- **low, high**: bounds.\n\nRaises ValueError: never."
    )


def test_the_reference_is_built_without_warnings(tmp_path):
    pytest.importorskip("pdoc", reason="pdoc is not installed; `make venv` installs it")
    words = [sys.executable, "-W", "error::UserWarning", "-m", "docs.build_reference", "--output", tmp_path]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    pages = {module: (tmp_path / f"{module.replace('.', '/')}.html").read_text() for module in MODULES}
    assert all(f'id="{name}"' in pages["lms3d"] for name in lms3d.__all__)
    assert "<strong>memory_limit</strong>" in pages["lms3d"]
    assert "Subclasses should override" not in pages["lms3d"]
    assert not [
        loaded for page in pages.values() for loaded in re.findall(r'(?:src|rel="stylesheet" href)="(http[^"]+)"', page)
    ]
