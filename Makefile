# A facade over meson, ninja and the scripts in tools/. `make help` lists what there is.
# `run`, `tour`, `test`, `test-long`, `ci`, `matrix*` and the benchmarks beside other programs install packages,
# and those only what is missing: tools/install-deps.sh has the list. Nothing else does.
MAKEFLAGS += --no-print-directory

PYTHON = /usr/bin/python3
SUITES = $(PYTHON) tools/run-suites.py $(if $(SUMMARY),--summary $(SUMMARY))
PREFIX ?= /usr/local
export SEEDS

# The workloads of `make bench`; W="ring ask" measures a part.
W ?= pingpong pingpong64 counting fanin ring ring64 big spawn churn idle ask askext \
	work-pingpong64 work-ring64 work-big

.DEFAULT_GOAL = debug
.PHONY: debug release run tour test test-long check unit asan tsan clang sim spin mutants integration oracle fuzz matrix \
	bench bench-race bench-delivery bench-peers bench-chassis bench-packs bench-matrix \
	lint format ci install clean help matrix-homeserver deps-build deps-test deps-matrix

## make              debug build, in build/debug
debug:
	@tools/build.sh debug

## make release      what users run, in build/release
release:
	@tools/build.sh release

## make run          set up, build and run the server on this machine; ARGS="..." are passed on
run: deps-build
	@[ -x build/release/troupe ] || { echo "Building; the first time takes less than two minutes on two idle cores."; \
		[ -t 1 ] || echo "It says nothing until it is done; build/release/.build.log grows meanwhile."; }
	@tools/build.sh release
	@build/release/troupe serve --dev --data build/run $(ARGS)

## make tour         set up, build and walk through running actors
tour: deps-build release
	@build/release/troupe tour $(ARGS)

## make check        the fast loop: unit tests of the library and tidy, under a minute, installs nothing
check:
	@$(SUITES) check

## make test         set up and run every suite within its budget, about half an hour
test: deps-test deps-matrix
	@$(SUITES) test

## make test-long    the same with the big numbers, for hours; SEEDS=n a scenario
test-long: deps-test deps-matrix
	@$(SUITES) long

## make unit         unit tests of the debug build
## make asan         unit tests under AddressSanitizer and UBSan
## make tsan         unit tests under ThreadSanitizer
## make clang        unit tests, built by clang
## make spin         models of the lock-free parts
## make mutants      planted bugs: each must be caught
## make integration  programs and examples of the release build
## make oracle       our parsers beside packaged ones
unit asan tsan clang spin mutants integration oracle:
	@$(SUITES) $@

## make matrix       real Matrix clients through a real Synapse, which is unpacked at the first run
matrix: deps-matrix
	@$(SUITES) $@

## make matrix-homeserver  that Synapse in the foreground, with the users ada and bob; its address is in build/matrix/url
matrix-homeserver:
	@tools/install-deps.sh homeserver
	@exec $(PYTHON) tools/matrix_homeserver.py $(ARGS)

## make fuzz         libFuzzer, a minute a target; TARGET="json http" chooses, SECONDS=n
fuzz:
	@tools/fuzz.py run $(if $(SECONDS),--seconds $(SECONDS)) $(TARGET)

## make sim          simulations; SEEDS=n a scenario, SCENARIO=text chooses, SEED=n replays one
sim:
	@tools/build.sh sim
	@$(if $(SEED),TROUPE_SEED=$(SEED)) $(if $(SEEDS),TROUPE_SEEDS=$(SEEDS)) $(PYTHON) tools/run-tests.py \
		$(if $(SCENARIO),--case '$(SCENARIO)') $(if $(SEED),,--regressions test/sim/regressions.txt) \
		'build/sim/test/sim_*'

## make bench        our own numbers; W="ring ask" measures a part
bench: release
	@for w in $(W); do build/release/troupe-bench $$w || [ $$? = 2 ] || exit 1; done # 2: not offered

## make bench-race   who wins an epoch: naive, direct and actor side by side
bench-race: release
	@$(PYTHON) tools/bench-delivery.py race --postgres $(ARGS)

## make bench-delivery  the delivery service against its targets; ARGS="many hot" measures a part
bench-delivery: release
	@$(PYTHON) tools/bench-delivery.py --postgres $(ARGS)

## make bench-peers  the same beside other runtimes; ARGS="-n 3" are options of bench/peers/run
bench-peers: deps-build release
	@tools/install-deps.sh bench || echo "going on without the peers that are missing"
	@mkdir -p build/peers
	@echo "troupe $(CURDIR)/build/release/troupe-bench" >build/peers/extra.txt
	@BUILD=$(CURDIR)/build/peers bench/peers/run -x build/peers/extra.txt $(ARGS)

## make bench-packs  downloads beside nginx, hashing beside openssl; ARGS="small -q" chooses
bench-packs: deps-build release
	@tools/install-deps.sh bench || echo "going on without what is missing"
	@tools/bench-packs.py $(ARGS)

## make bench-matrix  Megolm beside libolm, the engine against its targets; ARGS="catchup idle" measures a part of the engine
bench-matrix: deps-build
	@tools/install-deps.sh bench || echo "going on without what is missing"
	@tools/build.sh release
	@status=0; \
	if [ ! -x build/release/matrix-bench ]; then \
		echo "libolm is missing: Megolm is not compared; it needs libolm-dev"; status=2; \
	elif [ -z "$(ARGS)" ]; then \
		build/release/matrix-bench || status=1; echo; \
	fi; \
	build/release/matrix-engine-bench build/release/troupe $(ARGS) || status=1; \
	exit $$status

## make bench-chassis  HTTP, JSON, SQL, tokens and overload beside their yardsticks; ARGS="http sql" chooses
bench-chassis: deps-build release
	@tools/install-deps.sh bench || echo "going on without what is missing"
	@tools/bench-chassis.py $(ARGS)

## make lint         clang-format, tidy, clang-tidy, gcc -fanalyzer
lint:
	@$(SUITES) lint

## make format       apply clang-format
format:
	@$(PYTHON) tools/lint.py format --fix

## make ci           exactly what CI runs: test and lint
ci:
	@.ci/run

## make install      install the release build under PREFIX (/usr/local), DESTDIR honoured
install:
	@PREFIX="$(PREFIX)" tools/build.sh release
	@/usr/bin/meson install -C build/release --no-rebuild

## make clean        remove everything that was built, and build/run: the data and keys of make run
clean:
	@rm -rf build

## make help         this list
help:
	@sed -n 's/^## //p' Makefile

deps-build:
	@tools/install-deps.sh build

deps-test:
	@tools/install-deps.sh build test

deps-matrix:
	@for group in homeserver nio; do tools/install-deps.sh $$group || echo "going on without what is missing"; done
	@$(PYTHON) tools/matrix_homeserver.py --build-only || echo "going on without Synapse"
