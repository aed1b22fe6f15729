# Each target first makes what it needs: a Python, .venv with the pinned dependencies, the native core (tools/setup.sh).
# ARGS goes on to the command:  make test ARGS="tests/vmhost -k host"
.DEFAULT_GOAL := help
.PHONY: help build wheels device-libraries demo test pages lint format docs browser-tests notebook-tests ray-tests cuda gpu-tests stress mutations mutants fuzz fuzz-address environments differential conformance conformance-quick conformance-image executor-tests numpy-tests packages package-tests sanitize sanitize-memory sanitize-address sanitize-undefined sanitize-thread sanitize-python polls bench bench-peers training-peers real-stream mosquitto postgresql promtool tuf-conformance cep-oracle lock clean distclean
PYTHON := .venv/bin/python
# Where an environment forbids .pyc files, each of the many processes of tests and benchmarks would compile all that it
# imports. They lie in .venv and in folders that git ignores.
unexport PYTHONDONTWRITEBYTECODE

help:             ## this list
	@sed -n 's/^\([a-z-]*\): .*## /\1|/p; s/^\([a-z-]*\):  *## /\1|/p' Makefile | awk -F '|' '{printf "make %-20s %s\n", $$1, $$2}'

build:            ## set up everything: Python, .venv, dependencies, native core, standard-library bundle
	@sh tools/setup.sh

wheels: build     ## wheels for every Python that is here, in dist/: they install without a compiler (ARGS="PYTHON...")
	@$(PYTHON) tools/wheels.py $(ARGS)

device-libraries: ## fetch the static libraries that device images are linked with (Debian's, unpacked privately)
	@sh tools/device_libraries.sh

demo: build       ## compile the shipped tasks and run them side by side in VMs
	@.venv/bin/vmhost demo $(ARGS)

test: build       ## the test suite
	@$(PYTHON) -m pytest -q -n auto $(ARGS)

pages: build      ## follow all pages of the docs from a wheel, each in an empty folder (some minutes)
	@$(PYTHON) -m pytest -q -m "stress or not stress" tests/test_pages_from_a_wheel.py $(ARGS)

lint:             ## hold the sources to the rules: ruff (pyproject.toml), clang-format (.clang-format)
	@sh tools/setup.sh lint && sh tools/lint.sh $(ARGS)

format:           ## lay out Python and C as `make lint` wants them
	@sh tools/setup.sh lint && sh tools/lint.sh --fix $(ARGS)

docs: build       ## the docs as a site, in build/docs (the first time: 30 MB from PyPI)
	@sh tools/setup.sh docs && $(PYTHON) -m sphinx -q -W --keep-going -j 2 docs build/docs $(ARGS) && echo "build/docs/index.html"

browser-tests: build  ## the dashboard in Debian's Chromium, unpacked privately (the first time: 130 MB)
	@sh tools/setup.sh browser && $(PYTHON) -m pytest -q -m browser $(ARGS)

notebook-tests: build ## VMExecutor in a notebook's cells, run by nbclient in a kernel of IPython
	@sh tools/setup.sh notebook && $(PYTHON) -m pytest -q -m notebook $(ARGS)

ray-tests: build  ## ClusterExecutor on a Ray cluster of two nodes on this machine (the first time: 80 MB from PyPI)
	@sh tools/setup.sh ray && $(PYTHON) -m pytest -q -m ray -n 0 $(or $(ARGS),tests/ray_cluster)

cuda:             ## the engine's library for NVIDIA GPUs, engine/libvme_cuda.so (needs nvcc)
	@sh tools/cuda.sh

gpu-tests: build cuda ## networks and tables on an NVIDIA GPU against those on the CPU
	@$(PYTHON) -m pytest -q -m gpu tests/engine tests/serving $(ARGS)

stress: build     ## the long runs: many hosts and VMs in several processes
	@$(PYTHON) -m pytest -q -m stress -n auto -o faulthandler_timeout=3600 $(ARGS)

sanitize: sanitize-memory sanitize-thread  ## the native core under all three sanitizers

sanitize-memory: build     ## the native core under the address and undefined-behaviour sanitizers, both in one build
	@sh tests/native/sanitize_core.sh address,undefined && $(PYTHON) tests/native/run.py core address,undefined && $(PYTHON) tests/native/run.py engine address,undefined && $(PYTHON) tests/native/run.py triggers address,undefined && $(PYTHON) tests/native/run.py patterns address,undefined && $(PYTHON) tests/native/run.py features address,undefined

sanitize-address: build    ## the native core under the address sanitizer
	@sh tests/native/sanitize_core.sh address && $(PYTHON) tests/native/run.py core address && $(PYTHON) tests/native/run.py engine address && $(PYTHON) tests/native/run.py triggers address && $(PYTHON) tests/native/run.py patterns address && $(PYTHON) tests/native/run.py features address

sanitize-undefined: build  ## the native core under the undefined-behaviour sanitizer
	@sh tests/native/sanitize_core.sh undefined && $(PYTHON) tests/native/run.py core undefined && $(PYTHON) tests/native/run.py engine undefined && $(PYTHON) tests/native/run.py triggers undefined && $(PYTHON) tests/native/run.py patterns undefined && $(PYTHON) tests/native/run.py features undefined

sanitize-thread: build     ## the parts that build without CPython, or with a stub of it, under the thread sanitizer
	@$(PYTHON) tests/native/run.py core thread && $(PYTHON) tests/native/run.py engine thread && $(PYTHON) tests/native/run.py triggers thread && $(PYTHON) tests/native/run.py patterns thread && $(PYTHON) tests/native/run.py features thread

sanitize-python: build     ## a guest's locks, threads and waits under the thread sanitizer, CPython too (PYTHON_SOURCE=FOLDER)
	@PYTHON_SOURCE="$(PYTHON_SOURCE)" sh tests/native/sanitize_python.sh $(ARGS)

polls: build               ## how long the engine's operators go without a look at the stop flag; wants a quiet machine
	@$(PYTHON) tests/native/run.py engine none

mutations: build  ## 100,000 mutated code objects through the verifier, the accepted ones run (15 minutes)
	@$(PYTHON) -m tests.properties.verifier_mutations --count 100000 $(ARGS)

mutants: build    ## mutated lines of bytecode and engine against their rooms' tests (hours; ARGS="--count 50 --seed 5")
	@$(PYTHON) tools/mutants.py map && $(PYTHON) tools/mutants.py run -o build/mutants/results.jsonl $(ARGS)

fuzz: build       ## junk into all that a VM offers, for an hour (ARGS="--seconds 600 --seed 5"; --fitting: almost fitting arguments)
	@$(PYTHON) -m tests.fuzz $(ARGS)

fuzz-address: build  ## almost fitting arguments under the address sanitizer, an hour in VMs and one without (SECONDS=60)
	@VMHOST_FITTING_SECONDS=$(or $(SECONDS),3600) sh tests/native/sanitize_core.sh address,undefined tests/fuzz/test_fitting.py -o faulthandler_timeout=0

environments: build  ## hosts under allocators, limits, policies, control groups and servers that people have (15 minutes; ARGS="--quick")
	@folder=$$(sh tools/environments.sh) && $(PYTHON) -m tests.environments --packages "$$folder" $(ARGS)

differential: build  ## random graphs of ONNX by our engine and by ONNX Runtime, for an hour (ARGS="--seconds 600 --seed 5", --fusions, --rearrangements)
	@$(PYTHON) -m tests.differential $(ARGS)

conformance: build  ## CPython's own tests in sealed VMs, beside plain CPython (30 minutes)
	@suite=$$(sh tools/cpython_tests.sh) && $(PYTHON) -m tests.conformance --suite "$$suite" $(ARGS)

conformance-quick: build  ## a part of them, held against docs/conformance.md (minutes)
	@suite=$$(sh tools/cpython_tests.sh) && $(PYTHON) -m tests.conformance --suite "$$suite" --check --list tests/conformance/quick.txt $(ARGS)

numpy-tests: build  ## NumPy's own tests with vmhost.engine.numpy in its place, held against what is filed (10 minutes; ARGS="--quick": two)
	@$(PYTHON) -m tests.numpys $(ARGS)

packages: build  ## packages' own tests in sealed VMs, beside plain Python (an hour; needs the network)
	@$(PYTHON) -m tests.packages $(ARGS)

package-tests: build  ## a real call of each of many packages in plain Python and in a VM, equal or filed (20 minutes; needs the network; ARGS="babel pint")
	@$(PYTHON) -m tests.packages.calls $(ARGS)

executor-tests: build  ## CPython's and loky's own tests of executors with VMExecutor, held against what is filed (a minute)
	@suite=$$(sh tools/cpython_tests.sh) && $(PYTHON) -m tests.conformance.executors --suite "$$suite" $(ARGS)

conformance-image: build device-libraries  ## a part of them run by a device image's vmrun, held against the same results (minutes)
	@.venv/bin/vmhost image build/device-all --module all >/dev/null
	@suite=$$(sh tools/cpython_tests.sh) && $(PYTHON) -m tests.conformance --suite "$$suite" --check --list tests/conformance/image.txt \
		--home build/conformance-image --vmrun build/device-all/vmrun $(ARGS)

bench-peers: build  ## install what models are measured against: OpenVINO, MNN (280 MB)
	@sh tools/setup.sh bench

training-peers: build  ## install what training is measured against: torch, which brings 5 GB
	@sh tools/training_peers.sh

bench: bench-peers  ## measure against threads, interpreters, processes, and models against other engines
	@.venv/bin/vmhost bench $(ARGS)

real-stream: build  ## have headless Chromium (Debian's, unpacked privately) click through a shop; its events as JSON lines
	@browser=$$(sh tools/chromium.sh) && $(PYTHON) -m tasks.ipv.browser --browser "$$browser" $(ARGS)

mosquitto:        ## have Debian's MQTT broker, unpacked privately, which the tunnel is measured against
	@sh tools/mosquitto.sh

postgresql:       ## have PostgreSQL's server programs: the machine's, or Debian's, unpacked privately (for tests of the tunnel)
	@sh tools/postgresql.sh $(ARGS)

promtool:         ## have Debian's promtool, unpacked privately, which checks what /metrics gives (for a stress test)
	@sh tools/promtool.sh

tuf-conformance: build  ## the conformance suite of The Update Framework, its results held against those that are kept (20 minutes)
	@folder=$$(sh tools/tuf_conformance.sh) && $(PYTHON) tests/deployment/tuf_conformance.py "$$folder" $(ARGS)

cep-oracle: build ## hold the matcher of patterns against Apache Flink: random rules through both (needs Java 17; 330 MB from PyPI)
	@folder=$$(sh tools/flink.sh) && $(PYTHON) -m tests.pipeline.flink "$$folder" $(ARGS)

lock:             ## pin the newest dependencies in requirements.lock and tools/bootstrap.lock (needs uv)
	@sh tools/lock.sh

clean:            ## remove what was built; keep the Python and the environment
	rm -rf build dist vmhost.egg-info vmhost/data .venv/core.stamp .venv/stdlib.stamp
	rm -f vmhost/isolation/*.so vmhost/isolation/*.so.new engine/*.so engine/*.so.new vmhost/pipeline/*/*.so vmhost/pipeline/*/*.so.new

distclean: clean  ## remove the environment and the private Python too
	rm -rf .venv .python
