"""Debian's Chromium (tools/chromium.sh unpacks it), driven by Playwright."""

import os
import subprocess
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@contextmanager
def chromium():
    from playwright.sync_api import sync_playwright

    found = subprocess.run(["sh", ROOT / "tools" / "chromium.sh"], capture_output=True, text=True, check=True)
    program = Path(found.stdout.strip())
    root = next(folder for folder in program.parents if folder.name == "root")
    libraries = [str(path) for at in root.glob("usr/lib/*-linux-gnu") for path in (at, at / "pulseaudio")]
    environment = os.environ | {"LD_LIBRARY_PATH": ":".join(libraries)}
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=program, env=environment, args=["--no-sandbox"])
        yield launched
        launched.close()
