"""Wheels that tests write, and a folder of wheels as the only index."""

import base64
import hashlib
import os
import zipfile


def write_wheel(folder, name, version, files, requires=(), licence="MIT"):
    """A wheel of these files, {path: text}, in `folder`."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    head = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\nLicense-Expression: {licence}\n"
    head += "".join(f"Requires-Dist: {each}\n" for each in requires)
    contents = dict(files)
    contents[f"{info}/METADATA"] = head + "\nA long description.\n"
    contents[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = []
    for path, text in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record.append(f"{path},sha256={digest},{len(text.encode())}\n")
    contents[f"{info}/RECORD"] = "".join(record) + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in contents.items():
            archive.writestr(zipfile.ZipInfo(path, (2026, 1, 1, 0, 0, 0)), text)


def folder_of_wheels(tmp_path, monkeypatch):
    """A folder of wheels, the only place where packages are found from now on; with a cache of its own."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name in os.environ:
        if name.startswith(("UV_", "PIP_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    (tmp_path / "index").mkdir()
    monkeypatch.setenv("UV_DEFAULT_INDEX", (tmp_path / "index").as_uri())
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder
