# The commands of the project. Each sets up what is missing, builds, and runs; a second call does nothing twice.
#   make demo        answers questions about a long document on the embedded model, through the real server
#   make test        every test that needs no GPU; ends with "N passed, N failed"
#   make bench       the benchmark suites; ARGS="attention --json -" for one of them
#   make format      formats all C++ files          make lint       clang-tidy over all sources
#   make goldens     makes the golden files of the tests again (needs the heavy peers)
#   make test-peers  compares live with the heavy peers (PyTorch, transformers)
#   make test-page   the server's page in headless Chromium (installs it); screenshots in build/page
#   make gpu-bundle  packs what a GPU machine needs, kernels compiled; make gpu-test and make gpu-bench run it there
#                    (PROFILE=1: also what ncu sees of the figures that fall short)
#   make soak        twenty minutes of misbehaving clients, overload and faults; prints the table of docs/measurements/server.md
#   make release     a tarball and a Python wheel for any Linux with glibc 2.31, in build/dist; make release-test tries
#                    them in a bare Debian 11
#   make install     installs under PREFIX (/usr/local)
#   make clean       removes everything that was built
.DEFAULT_GOAL := build
.PHONY: demo test bench build format lint goldens test-peers test-page gpu-bundle gpu-test gpu-bench soak release release-test install clean

# Objects of one checkout serve another one.
export CCACHE_BASEDIR ?= $(CURDIR)
export CCACHE_NOHASHDIR ?= 1

PREFIX ?= /usr/local
# Python with the heavy peers (tools/requirements-peers.txt) installed.
PEERS_PYTHON ?= python3
ARGS ?=

build:
	@tools/setup.sh build
	@tools/build.sh release

demo:
	@tools/demo.sh $(ARGS)

test:
	@tools/setup.sh test
	@tools/setup.sh clients
	@python3 tools/run_tests.py $(ARGS)

bench: build
	@tools/bench.sh $(ARGS)

format:
	@tools/setup.sh test
	@python3 tools/check_format.py --fix

lint: build
	@tools/setup.sh test
	@python3 tools/lint.py

goldens: build
	@tools/goldens.sh $(PEERS_PYTHON)

test-peers: build
	@$(PEERS_PYTHON) -m unittest discover -v -s tests/peers_live -p '*_test.py' $(ARGS)

test-page: build
	@tools/setup.sh page
	@.venv-page/bin/python -m pytest -q -p no:cacheprovider tests/page $(ARGS)

gpu-bundle:
	@tools/setup.sh test
	@tools/gpu_bundle.sh

gpu-test:
	@python3 tools/gpu_test.py $(ARGS)

gpu-bench:
	@python3 tools/gpu_bench.py $(ARGS)

soak: build
	@python3 tests/soak/soak.py $(ARGS)

release:
	@tools/release/make.sh

release-test: release
	@tools/release/try.sh

install: build
	@cmake --install build/release --prefix $(PREFIX)

clean:
	@rm -rf build
