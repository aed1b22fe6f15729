"""vmhost.ray where Ray is not installed. With Ray: tests/ray_cluster/."""

import importlib
import sys

import pytest


def test_one_line_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "ray" or name.startswith("vmhost.ray")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"^vmhost.ray needs Ray: pip install 'vmhost\[ray\]'$"):
        importlib.import_module("vmhost.ray")
