# The verbs; CMake does the work. `make help` lists them.
#
#   CUDA=1        setup: build llama.cpp with its CUDA backend (remembered; CUDA=0 goes back)
#   LLAMA_DIR=P   setup: use the llama.cpp installed under prefix P (remembered)
#   PREFIX=P      install: where to (default /usr/local); DESTDIR=D stages it below D
#   UPDATE=1      test-archs: write doc/architectures.md anew
#   JOBS=N        compile with N jobs (default: all cores)
#   WERROR=1      warnings are errors, as in CI
#   QUICK=1       asan: unit tests, and end-to-end ones of tiny models
#   SECONDS=N     fuzz: run each target so long (default 60)

BUILD   ?= build
PREFIX  ?= /usr/local
JOBS    ?= $(shell nproc 2>/dev/null || echo 2)
SECONDS ?= 60

# Without a line for each folder that a make below enters and leaves.
MAKEFLAGS += --no-print-directory

comma     := ,
configure  = mkdir -p $(1); cmake -S . -B $(1) -DCMAKE_INSTALL_PREFIX=$(PREFIX) $(if $(WERROR),-DTS_WERROR=ON) $(2) >$(1)/configure.log 2>&1 \
                 || { cat $(1)/configure.log; exit 1; }
compile    = @$(call configure,$(1),$(2)); cmake --build $(1) -j $(JOBS)

.DEFAULT_GOAL := build
.NOTPARALLEL:
.PHONY: help setup build demo test test-archs bench gpu-proof asan tsan valgrind fuzz fmt lint man install clean distclean

help: ## list the verbs
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | while IFS='	' read -r verb text; do \
	    printf '  make %-10s %s\n' "$$verb" "$$text"; done

setup: ## packages, llama.cpp and the default model, where missing (CUDA=1, LLAMA_DIR=P)
	@scripts/setup

build: ## library and command: $(BUILD)/bin/turbospark
	$(call compile,$(BUILD),)

demo: setup build ## generate text, capture a prompt, measure the overhead
	@scripts/demo

test: setup build ## all tests
	@scripts/test-deps
	@ctest --test-dir $(BUILD) -j 2 --output-on-failure --no-tests=error

test-archs: setup ## every architecture: the table of doc/architectures.md (UPDATE=1 writes it)
	@$(call configure,$(BUILD),); cmake --build $(BUILD) -j $(JOBS) --target test_archs >$(BUILD)/test-archs.log \
	    || { cat $(BUILD)/test-archs.log; exit 1; }
	@$(BUILD)/tests/bin/test_archs $(if $(UPDATE),--update,--check) doc/architectures.md

bench: setup build ## off, redirected and asked side by side: the ratio table
	@scripts/bench

gpu-proof: ## the promises on a GPU: identity, edits, tables (needs nvcc, or CUDA_BACKEND=FILE)
	@scripts/gpu-proof

asan: setup ## all tests but the install's under the address and undefined behaviour sanitizers (QUICK=1: tiny models)
	$(call compile,$(BUILD)/asan,-DTS_SANITIZE=address$(comma)undefined -DTS_FAULT_INJECTION=ON)
	@scripts/test-deps
	@ctest --test-dir $(BUILD)/asan $(if $(QUICK),-L 'unit|quick',-LE install) -j 2 --output-on-failure --no-tests=error

tsan: setup ## what runs beside the computation, under the thread sanitizer
	$(call compile,$(BUILD)/tsan,-DTS_SANITIZE=thread)
	@TSAN_OPTIONS=suppressions=$(CURDIR)/tests/tsan.supp ctest --test-dir $(BUILD)/tsan -L 'unit|quick' \
	    -R 'worker|ffn|direction|core_log|tiny_census|tiny_identity|tiny_packed|tiny_device|expert|router' --output-on-failure --no-tests=error

valgrind: build ## short runs of a tiny model under valgrind
	@scripts/valgrind $(BUILD)

fuzz: setup ## each reader and parser under libFuzzer, SECONDS each (needs clang)
	$(call compile,$(BUILD)/fuzz,-DTS_FUZZ=ON -DCMAKE_C_COMPILER=clang -DTS_SANITIZE=address$(comma)undefined)
	@scripts/fuzz $(BUILD)/fuzz $(SECONDS)

fmt: ## format the C files in place (needs clang-format)
	@find include src cli tests examples -name '*.[ch]' 2>/dev/null | xargs -r clang-format -i

lint: ## include directions, words, paths, file sizes; clang and cppcheck where present
	@scripts/lint

man: ## man pages: $(BUILD)/man
	@$(call configure,$(BUILD),); cmake --build $(BUILD) --target man

install: build ## under PREFIX, below DESTDIR
	@DESTDIR=$(DESTDIR) cmake --install $(BUILD)

clean: ## remove what build, asan, tsan and fuzz made; downloads and llama.cpp stay
	@! [ -d $(BUILD) ] || find $(BUILD) -mindepth 1 -maxdepth 1 ! -name 'llama*' ! -name src \
	    ! -name downloads ! -name stamps ! -name venv ! -name pip ! -name setup.lock -exec rm -rf {} +

distclean: ## remove everything that is not in the repository
	@rm -rf $(BUILD) build models
