# Makefile of attn, for GNU make. `make help` lists the targets and settings.
# SPDX-License-Identifier: MIT
#
# Nothing here selects an instruction set, because attn.c asks the CPU at run time. make, make test
# and make bench need only `cc` and `make`; `make check` uses clang and python3 too where they exist.

# A variable to GNU make, and an end with this sentence to bmake, the make of BSD:
.error = this Makefile is for GNU make: call gmake, from the package of that name

BUILD   ?= build
$(if $(word 2,$(BUILD)),$(error BUILD: '$(BUILD)' has a space, which make would take for the end of the name))
CFLAGS  ?= -O2 -g
LDFLAGS ?=
PREFIX  ?= /usr/local
LIBDIR  ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
DATADIR ?= $(PREFIX)/share
CASES   ?=
CSV     ?=
RUN     ?=
PYTHON  ?= python3
export PYTHON
GGML    ?=
ONEDNN  ?=

ifeq ($(origin CC),default)
CC := $(if $(CROSS_COMPILE),$(CROSS_COMPILE)gcc,cc)
endif
ifeq ($(origin AR),default)
AR := $(CROSS_COMPILE)ar
endif
NM ?= $(CROSS_COMPILE)nm
STRIP ?= $(CROSS_COMPILE)strip

Q := $(if $(V),,@)
# Windows: by mingw, or by clang for it. The compiler writes NAME.exe where NAME is asked for, and
# libraries are loaded without -ldl.
WINDOWS := $(filter %-mingw32 %-windows-gnu,$(shell $(CC) -dumpmachine 2> /dev/null))
# WebAssembly: clang with the C library of WASI, which emulates signals and clocks where it is asked to.
# Its linker gives a stack of 64 KiB otherwise.
WASM := $(filter wasm32-%,$(shell $(CC) -dumpmachine 2> /dev/null))
DL := $(if $(WASM),-lwasi-emulated-signal -lwasi-emulated-process-clocks,$(if $(WINDOWS),,-ldl))
, := ,
VERSION := $(shell sed -n 's/^.define ATTN_VERSION_STRING "\(.*\)".*/\1/p' attn.h)
REVISION := $(shell git describe --always --dirty 2>/dev/null || echo none)

# The user's flags come last, so that CFLAGS can override the required ones on purpose.
REQUIRED := -std=c99 -ffp-contract=off
WARNINGS := -pedantic -Wall -Wextra -Wconversion -Wshadow
OMP      := $(if $(OPENMP),-fopenmp)
# The C library of Windows knows neither %zu nor %lld; mingw's isnan narrows where it is not used.
CLIB     := $(if $(WINDOWS),-D__USE_MINGW_ANSI_STDIO=1 $(if $(findstring clang,$(CC)),,-DPRINTF_STYLE=gnu_printf) -Wno-float-conversion)
CLIB     += $(if $(WASM),-D_WASI_EMULATED_SIGNAL -D_WASI_EMULATED_PROCESS_CLOCKS)
COMPILE  := $(CC) $(REQUIRED) $(WARNINGS) $(CLIB) $(OMP) $(CPPFLAGS)
LINK     := $(CC) $(OMP) $(CFLAGS) $(LDFLAGS) $(if $(WINDOWS),-static) $(if $(WASM),-Wl$(,)-z$(,)stack-size=8388608)

LIB     := $(BUILD)/libattn.a
# Shared libraries of other systems are for CMakeLists.txt. Before version 1.0 every minor version may
# change structs, so its number belongs to the soname.
SHARED  ?= $(if $(WINDOWS)$(WASM),,$(if $(filter Linux %BSD,$(shell uname -s)),yes))
ABI     := $(if $(filter 0.%,$(VERSION)),$(basename $(VERSION)),$(basename $(basename $(VERSION))))
SHARED_LIB := $(if $(SHARED),$(BUILD)/libattn.so.$(VERSION))
SHARED_LINKS := $(if $(SHARED),libattn.so.$(ABI) libattn.so)
# Both libraries hold the same objects. They show only what headers declare as ATTN_API.
PIC     ?= -fPIC -fvisibility=hidden '-DATTN_API=__attribute__((visibility("default")))'
# A project copies these files; tools/amalgamate.sh makes them from src/, and they are committed.
PORTABLE := attn.c
HEADERS  := attn.h attn_simd.h attn_opencl.h
MADE     := attn.h attn.c attn_simd.h attn_opencl.c
ROOMS    := $(wildcard src/*.[ch] src/*/*.[ch])
# Devices need an operating system that loads libraries; libOpenCL is looked for at run time.
DEVICES  := attn_opencl.c
# Every SIMD file is compiled for every machine and is a stub where it does not belong. SIMD= leaves
# all of them out.
SIMD_KNOWN := avx512 avx2 neon rvv sse2 wasm
SIMD    ?= $(SIMD_KNOWN)
$(if $(filter-out $(SIMD_KNOWN),$(SIMD)),$(error SIMD: no kernels '$(filter-out $(SIMD_KNOWN),$(SIMD))'; there are $(SIMD_KNOWN)))
SIMD_SOURCES := $(SIMD:%=attn_simd_%.c)
SIMD_DEFINES := $(if $(filter avx512,$(SIMD)),-DATTN_SIMD_AVX512) \
                $(if $(filter avx2,$(SIMD)),-DATTN_SIMD_AVX2) \
                $(if $(filter neon,$(SIMD)),-DATTN_SIMD_NEON) \
                $(if $(filter rvv,$(SIMD)),-DATTN_SIMD_RVV) \
                $(if $(filter sse2,$(SIMD)),-DATTN_SIMD_SSE2) \
                $(if $(filter wasm,$(SIMD)),-DATTN_SIMD_WASM)
# Code that this CPU cannot run shows nothing in programs that are built to be run, and under sanitizers
# costs a minute. check-werror compiles all of it.
RUNNABLE_SIMD = $(filter-out $(shell test -r /proc/cpuinfo && ! grep -qw avx512f /proc/cpuinfo && \
                  echo avx512),$(SIMD))
# The second implementation of docs/canon.md contains nothing of the library.
CANON   := tests/canon.c tests/canon_backward.c tests/canon_index.c
# The bench checks what it times with these.
BENCH_CHECKS := $(sort $(wildcard tests/sampled*.c)) tests/kernel_tiles.c tests/tuned_bits.c
# These are programs of their own; everything else in tests/ is the test program.
NOT_TESTS := $(CANON) $(BENCH_CHECKS) tests/cl_on_cuda.c tests/fake_cuda.c tests/dropout_mask.c tests/mpi.c \
             tests/peak_rss.c tests/stack_use.c tests/every_function.c
# Harnesses of the fuzzer run in the test program, too, with the inputs that are kept; two read what
# the bench reads.
FUZZER  := fuzz/fuzzer.c
FUZZED  := $(filter-out $(FUZZER),$(wildcard fuzz/*.c)) bench/commands/json_read.c bench/report/load.c
TESTS   := test.c $(filter-out $(NOT_TESTS),$(sort $(wildcard tests/*.c))) $(FUZZED) \
           examples/virtual_ranks.c
# bench/suite.c is left out because it serves programs outside the bench: see MEASURE.
# team_mpi.c needs an MPI: see bench_mpi.
TEAM_MPI := bench/machine/team_mpi.c
BENCH   := $(filter-out bench/suite.c $(TEAM_MPI),$(sort $(wildcard bench/*.c bench/*/*.c))) tests/oracle.c \
           tests/system.c $(BENCH_CHECKS) examples/virtual_ranks.c
# The bench with planted faults, which its self-checks must notice.
BENCH_TEST := $(filter-out tests/bench/measure_test.c,$(sort $(wildcard tests/bench/*.c)))
ERROR_TABLE := tools/error_table.c tests/error_table.c tests/oracle.c
# Python calls these from a shared library in `make compare-peers`.
PEER_SOURCES := tools/compare_peers.c tools/peer_openblas.c bench/clock.c bench/machine/probe.c \
                bench/machine/reading.c bench/stats.c bench/machine/machine.c bench/cases/data.c
# The measuring core is usable without the rest of the bench.
MEASURE := bench/measure.c bench/suite.c bench/clock.c bench/stats.c
MEASURE_TEST := tests/bench/measure_test.c $(MEASURE)
EXAMPLES := minimal replace_naive_loop mask_callback thread_pool custom_bench decode prompt_cache llm gradients \
            train multi_expert opencl out_of_core longnet ring ring_decode parts logits evict sparse indexer skip \
            keyword

objects = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
MAIN_OBJECTS := $(call objects,$(sort $(PORTABLE) $(DEVICES) $(SIMD_SOURCES) $(TESTS) bench.c $(BENCH) $(BENCH_TEST) $(ERROR_TABLE) \
  $(FUZZER) $(MEASURE_TEST) $(EXAMPLES:%=examples/%.c) examples/ring_rank.c ports/print.c ports/board_os.c tests/dropout_mask.c))
EXAMPLE_PROGRAMS := $(EXAMPLES:%=$(BUILD)/%)
LIB_OBJECTS := $(call objects,$(PORTABLE) $(DEVICES) $(SIMD_SOURCES))
PEER_OBJECTS := $(PEER_SOURCES:%.c=$(BUILD)/pic/%.o)

CHECKS := check-house check-format check-werror check-canon check-bench check-math check-numerics check-subsets check-size check-memory \
          check-stack check-hot-loops check-avx512 check-single check-package check-opencl check-mpi check-threads \
          check-sanitize check-hash check-pytorch check-mutants

.PHONY: all test fuzz fuzz-coverage bench boards prove-fma plot tune performance examples single check conformance install uninstall help \
        clean force programs compare-peers numerics list-checks opencl-gate \
        list-test-objects list-tests $(CHECKS)
.DELETE_ON_ERROR:

all: $(LIB) $(SHARED_LIB) ## the library, build/libattn.a and build/libattn.so.VERSION (default)

# ---- compiling

# This file changes with the command line, so objects of different compilers or flags never mix.
$(BUILD)/flags: export FLAGS_TEXT = $(COMPILE) $(PIC) $(CFLAGS) $(LDFLAGS) ASSERT=$(ASSERT) SIMD=$(SIMD) RELAXED=$(RELAXED)
$(BUILD)/flags: force
	@mkdir -p $(BUILD)
	@echo "$$FLAGS_TEXT" | cmp -s - $@ || echo "$$FLAGS_TEXT" > $@

# What is made from the rooms is there before anything is compiled.
$(MAIN_OBJECTS) $(PEER_OBJECTS): | $(MADE)
$(MAIN_OBJECTS): $(BUILD)/obj/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(if $(V),,@echo "  CC   $<")
	$(Q)$(COMPILE) $(DEFINES) $(FOR_LIB) -MMD -MP $(CFLAGS) -c $< -o $@

# Debug information would name the folder of the build, and two builds would differ.
$(LIB_OBJECTS): FOR_LIB = $(PIC) '-fdebug-prefix-map=$(CURDIR)=.'

$(PEER_OBJECTS): $(BUILD)/pic/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(if $(V),,@echo "  CC   $< (shared)")
	$(Q)$(COMPILE) $(DEFINES) -MMD -MP $(CFLAGS) -fPIC $(TUNED) -c $< -o $@

# The peer gets every optimisation, including those that attn.c does without.
$(BUILD)/pic/tools/peer_openblas.o: TUNED = -O3 -march=native -ffast-math -ffp-contract=fast

$(BUILD)/obj/bench/machine/machine.o $(BUILD)/pic/bench/machine/machine.o: DEFINES = -DBENCH_CFLAGS='"$(CFLAGS)"' \
  -DBENCH_REVISION='"$(REVISION)"'

# Only attn.c is compiled so, because assert.h would fix the feature macros that tests choose.
$(BUILD)/obj/attn.o: DEFINES = $(SIMD_DEFINES) \
  $(if $(ASSERT),-include assert.h '-DATTN_ASSERT(x)=assert(x)')

# Everywhere else clang 22 would make maxima by relaxed SIMD, of which engines differ where there is a NaN.
$(BUILD)/obj/attn_simd_wasm.o: DEFINES = $(if $(RELAXED),-mrelaxed-simd)

# The scalar paths of `bench rank` use the portable kernels without vectorisation.
$(BUILD)/obj/bench/machine/scalar.o: DEFINES = -fno-tree-vectorize -fno-tree-slp-vectorize -I$(BUILD)/kernels
$(BUILD)/obj/bench/machine/scalar.o: $(BUILD)/kernels/attn.c
$(BUILD)/kernels/attn.c: tools/amalgamate.sh $(ROOMS)
	@mkdir -p $(@D)
	$(Q)LEVELS=select sh tools/amalgamate.sh $(@D)

# This object is the one of a project that copies only the two files.
$(BUILD)/obj/attn_alone.o: attn.c attn.h $(BUILD)/flags
	@mkdir -p $(@D)
	$(Q)$(COMPILE) $(CFLAGS) -c $< -o $@

# The groups that tests/ defines, for the table of test.c.
$(BUILD)/groups.inc: $(TESTS)
	@mkdir -p $(@D)
	@sed -n '/^TEST_GROUP(.*)$$/p' $^ | sort | cmp -s - $@ || \
	  sed -n '/^TEST_GROUP(.*)$$/p' $^ | sort > $@

$(BUILD)/obj/test.o: DEFINES = -I$(BUILD) $(if $(FUZZ),-Dmain=test_main)
$(BUILD)/obj/test.o: $(BUILD)/groups.inc

# The harnesses that tests/ and fuzz/ define, and their inputs, for the tables of fuzz/corpus.c.
$(BUILD)/harnesses.inc: $(TESTS)
	@mkdir -p $(@D)
	@sed -n '/^FUZZ_HARNESS(.*)$$/p' $^ | sort | cmp -s - $@ || \
	  sed -n '/^FUZZ_HARNESS(.*)$$/p' $^ | sort > $@
CORPUS = $(sort $(patsubst fuzz/corpus/%,%,$(wildcard fuzz/corpus/*/*)))
$(BUILD)/corpus.inc: force
	@mkdir -p $(@D)
	@printf '"%s",\n' $(CORPUS) | cmp -s - $@ || printf '"%s",\n' $(CORPUS) > $@
$(BUILD)/obj/fuzz/corpus.o $(BUILD)/obj/fuzz/binaries.o: DEFINES = -I$(BUILD)
$(BUILD)/obj/fuzz/corpus.o: $(BUILD)/harnesses.inc $(BUILD)/corpus.inc
$(BUILD)/obj/fuzz/binaries.o: $(BUILD)/kernels_cl.inc

$(BUILD)/obj/bench/machine/machine.o $(BUILD)/pic/bench/machine/machine.o: $(BUILD)/revision

$(BUILD)/revision: force
	@mkdir -p $(BUILD)
	@echo '$(REVISION)' | cmp -s - $@ || echo '$(REVISION)' > $@

$(BUILD)/kernels_cl.inc: kernels.cl $(BUILD)/flags
	$(if $(V),,@echo "  GEN  $@")
	$(Q)od -An -v -tu1 $< | sed 's|[0-9][0-9]*|&,|g' > $@

$(BUILD)/obj/attn_opencl.o: DEFINES = -I$(BUILD)
$(BUILD)/obj/attn_opencl.o: $(BUILD)/kernels_cl.inc

# D leaves dates and owners out; not every ar knows it.
$(LIB): $(LIB_OBJECTS)
	$(if $(V),,@echo "  AR   $@")
	@rm -f $@
	$(Q)$(AR) rcsD $@ $^ 2> /dev/null || $(AR) rcs $@ $^

$(BUILD)/libattn.so.$(VERSION): $(LIB_OBJECTS)
	$(if $(V),,@echo "  LINK $@")
	$(Q)$(LINK) -shared -Wl,-soname,libattn.so.$(ABI) $^ -o $@ $(DL)

# Projects that prefer one file get it here, with the headers beside it for their programs.
$(BUILD)/attn_single.c: tools/amalgamate.sh $(HEADERS) $(PORTABLE) $(SIMD_SOURCES) $(BUILD)/flags
	$(if $(V),,@echo "  GEN  $@")
	$(Q)sh tools/amalgamate.sh --single $@ $(SIMD_SOURCES)
	$(Q)cp $(HEADERS) $(BUILD)

# An edit of src/ reaches the files of the root; an edit of those files alone is left as it is.
$(firstword $(MADE)): tools/amalgamate.sh $(ROOMS)
	$(if $(V),,@echo "  GEN  $(MADE)")
	$(Q)sh tools/amalgamate.sh
$(wordlist 2,9,$(MADE)): $(firstword $(MADE))

# A build with other flags for the library alone takes the test objects of another build.
TEST_OBJECTS ?= $(call objects,$(TESTS))

$(BUILD)/test: $(TEST_OBJECTS) $(LIB)
$(BUILD)/bench: $(call objects,bench.c $(BENCH)) $(LIB)
$(BUILD)/bench_test: $(call objects,$(BENCH_TEST) $(BENCH)) $(LIB)
$(BUILD)/error_table: $(call objects,$(ERROR_TABLE)) $(LIB)
$(BUILD)/dropout_mask: $(BUILD)/obj/tests/dropout_mask.o $(LIB)
$(BUILD)/measure_test: $(call objects,$(MEASURE_TEST))
$(BUILD)/custom_bench: $(call objects,$(MEASURE))
$(BUILD)/ring: $(call objects,examples/ring_rank.c examples/virtual_ranks.c)
$(BUILD)/ring_decode: $(call objects,examples/virtual_ranks.c)
$(BUILD)/keyword: $(call objects,ports/print.c ports/board_os.c)
$(EXAMPLE_PROGRAMS): $(BUILD)/%: $(BUILD)/obj/examples/%.o $(LIB)
PROGRAMS := $(BUILD)/test $(BUILD)/bench $(BUILD)/bench_test $(BUILD)/error_table $(BUILD)/measure_test \
            $(BUILD)/dropout_mask $(EXAMPLE_PROGRAMS)
$(PROGRAMS):
	$(if $(V),,@echo "  LINK $@")
	$(Q)$(LINK) $^ -o $@ -lm -lpthread $(DL)
	$(if $(WINDOWS),$(Q)[ $@ -ef $@.exe ] || ln -f $@.exe $@)

# UBSan sees nothing in vector operations, but clang takes minutes for what it adds to them.
$(call objects,$(SIMD_SOURCES)): override CFLAGS += $(if $(FUZZ),-fno-sanitize=undefined)
# libFuzzer has the main function.
$(BUILD)/fuzzer: $(call objects,$(FUZZER)) $(TEST_OBJECTS) $(LIB)
	$(if $(V),,@echo "  LINK $@")
	$(Q)$(LINK) -fsanitize=fuzzer $^ -o $@ -lm -lpthread $(DL)

# The bench over processes (--mpi). build/bench starts it in its place, so only this needs an MPI.
MPICC ?= mpicc
MPI_OBJECTS := $(TEAM_MPI:%.c=$(BUILD)/mpi/obj/%.o) $(BUILD)/mpi/obj/attn_mpi.o
$(MPI_OBJECTS): $(BUILD)/mpi/obj/%.o: %.c $(BUILD)/flags | $(MADE)
	@command -v '$(MPICC)' > /dev/null || { echo "bench_mpi needs an MPI, and there is no $(MPICC):" \
	  "apt-get install openmpi-bin libopenmpi-dev, or MPICC=..."; exit 1; }
	@mkdir -p $(@D)
	$(if $(V),,@echo "  CC   $< ($(MPICC))")
	$(Q)OMPI_CC='$(CC)' MPICH_CC='$(CC)' $(MPICC) $(REQUIRED) $(WARNINGS) $(CPPFLAGS) -MMD -MP $(CFLAGS) \
	  -c $< -o $@
$(BUILD)/bench_mpi: $(call objects,bench.c)
$(BUILD)/bench_test_mpi: $(call objects,$(BENCH_TEST))
MPI_PROGRAMS := $(BUILD)/bench_mpi $(BUILD)/bench_test_mpi
$(MPI_PROGRAMS): $(call objects,$(filter-out bench/machine/team_none.c,$(BENCH))) $(MPI_OBJECTS) $(LIB)
	$(if $(V),,@echo "  LINK $@")
	$(Q)OMPI_CC='$(CC)' MPICH_CC='$(CC)' $(MPICC) $(OMP) $(CFLAGS) $(LDFLAGS) $^ -o $@ -lm -lpthread $(DL)

$(BUILD)/libpeers.so: $(LIB_OBJECTS) $(PEER_OBJECTS)
	$(if $(V),,@echo "  LINK $@")
	$(Q)$(LINK) -shared $^ -o $@ -lm -lpthread $(DL)

# Peers that need headers of their own are libraries of their own, so that the others load without
# them. `force`: the prefix may be another one. DT_RPATH also finds what the peer itself needs.
PREFIX_ggml = $(abspath $(GGML))
PREFIX_onednn = $(abspath $(ONEDNN))
LIBS_ggml := -lggml -lggml-cpu -lggml-base
LIBS_onednn := -ldnnl
HEADED_PEERS = $(if $(and $(GGML),$(wildcard $(GGML)/include/ggml.h)),$(BUILD)/libpeer_ggml.so) \
  $(if $(and $(ONEDNN),$(wildcard $(ONEDNN)/include/oneapi/dnnl/dnnl_graph.h)),$(BUILD)/libpeer_onednn.so)

$(BUILD)/libpeer_%.so: tools/peer_%.c force
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LINK $@")
	$(Q)$(COMPILE) $(CFLAGS) $(LDFLAGS) -isystem $(PREFIX_$*)/include -fPIC -shared $< -o $@ \
	  -L$(PREFIX_$*)/lib -Wl,-rpath,$(PREFIX_$*)/lib -Wl,--disable-new-dtags $(LIBS_$*) -lm

# tools/cl_on_cuda.c provides OpenCL on top of the CUDA driver API.
$(BUILD)/cl_on_cuda/libOpenCL.so.1: tools/cl_on_cuda.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LINK $@")
	$(Q)$(COMPILE) $(CFLAGS) $(LDFLAGS) -fPIC -shared $< -o $@ -lpthread $(DL)

$(BUILD)/canon: $(CANON) $(wildcard tests/canon.h tests/golden.h tests/bits_data.h) $(BUILD)/flags
	$(if $(V),,@echo "  LINK $@")
	$(Q)$(COMPILE) $(CFLAGS) $(LDFLAGS) $(CANON) -o $@

$(BUILD)/prove_fma: tools/prove_fma.c $(MADE) $(SIMD_KNOWN:%=attn_simd_%.c) $(BUILD)/flags
	$(if $(V),,@echo "  LINK $@")
	$(Q)$(COMPILE) $(CFLAGS) $(LDFLAGS) $< -o $@

-include $(MAIN_OBJECTS:.o=.d) $(PEER_OBJECTS:.o=.d) $(MPI_OBJECTS:.o=.d)

# ---- using

programs: $(LIB) $(PROGRAMS) $(BUILD)/canon

test: $(BUILD)/test $(BUILD)/canon $(EXAMPLE_PROGRAMS) $(BUILD)/obj/attn_alone.o ## the tests, two to three minutes
	$(Q)CC='$(LINK)' RUN='$(RUN)' NM='$(NM)' sh tests/all.sh $(BUILD)

# As many compilations at a time as there are CPUs, unless the command line says how many; the
# library, whose files take longest, first. The first line comes before anything else is done.
CPUS = $(shell nproc 2>/dev/null || echo 1)
BENCH_OBJECTS := $(call objects,bench.c $(BENCH)) $(LIB_OBJECTS)
NOT_COMPILED = $(filter-out $(wildcard $(BENCH_OBJECTS)),$(BENCH_OBJECTS))

bench: ## naive against tiled on this machine, under a minute
	@echo "bench: $(if $(NOT_COMPILED),compiling $(words $(NOT_COMPILED)) files on $(CPUS) CPUs \
	(all of them: 45 s of CPU time); then )measuring, about 20 s"
	+$(Q)$(MAKE) --no-print-directory $(if $(filter -j%,$(MAKEFLAGS)),,-j$(CPUS)) $(LIB) $(BUILD)/bench
	$(RUN) $(BUILD)/bench --quick

plot: $(BUILD)/bench ## pictures in build/plot/, from CSV='FILE...' or from a measurement of minutes
	RUN='$(RUN)' sh tools/plot.sh $(BUILD)/bench $(BUILD)/plot $(CSV)

tune: $(BUILD)/bench ## build/tuning.txt, sizes for this machine for p.tuning, under a minute
	$(RUN) $(BUILD)/bench tune --output-dir $(BUILD)

compare-peers: $(BUILD)/libpeers.so $(HEADED_PEERS) ## attn next to OpenBLAS, PyTorch, ONNX Runtime, oneDNN, ggml, where found (PYTHON, ONEDNN, GGML, ARGS)
	sh tools/compare_peers $(BUILD)/libpeers.so $(ARGS)

performance: $(BUILD)/bench ## a page of docs/performance from a measurement, minutes for each kernel set (PEERS=FILE)
	RUN='$(RUN)' PEERS='$(PEERS)' sh tools/performance.sh $(BUILD)

numerics: $(BUILD)/error_table ## the error up to 1M keys, compared with docs/numerics.md, minutes (WRITE=1)
	RUN='$(RUN)' WRITE='$(WRITE)' sh tools/numerics.sh $(BUILD)

prove-fma: $(BUILD)/prove_fma ## multiply-adds without the instruction next to it, a few minutes (COUNT=1000000000)
	$(RUN) $(BUILD)/prove_fma $(COUNT)

boards: $(MADE) ## a row of docs/boards.md for each board and machine that is emulated, ten minutes (TARGETS=, WRITE=1)
	WRITE='$(WRITE)' sh tools/boards.sh $(BUILD) $(TARGETS)

examples: $(EXAMPLE_PROGRAMS) ## the programs of examples/, in build/
	@echo "built: $(EXAMPLE_PROGRAMS)"

single: $(BUILD)/attn_single.c ## build/attn_single.c: the library and all kernels in one file

conformance: $(BUILD)/test ## conformance cases of other projects, from CASES="DIR..." (STORAGE=TYPE)
	@for dir in $(or $(CASES),none); do \
	  if [ -d "$$dir" ]; then \
	    $(RUN) $(BUILD)/test $(STORAGE:%=--storage %) --cases "$$dir" || exit 1; \
	  else echo "conformance skipped: no folder '$$dir'; CASES=DIR names folders of cases in" \
	    "the format of tests/cases/README.md, e.g. made from the ONNX backend tests"; fi; \
	done

# ---- everything that takes long

check: test $(CHECKS) ## everything: sanitizers, mutants, hash matrix, proofs (two hours)
	@echo "check: all parts passed"

list-checks:
	@echo $(CHECKS)

list-test-objects:
	@echo $(TEST_OBJECTS)

list-tests:
	@echo $(TESTS)

# $(call submake,FOLDER,COMPILER,FLAGS,TARGETS): the same build elsewhere with other flags.
submake = +$(MAKE) --no-print-directory BUILD=$(BUILD)/$(1) CC='$(2)' CFLAGS="$(3)" $(4)
SANITIZE := -fno-sanitize-recover=all -fno-omit-frame-pointer
HAVE_CLANG := $(shell command -v clang)
HAVE_CXX   := $(shell command -v c++)

check-werror: ## gcc and clang without a warning; no flags; the headers as C++
	$(call submake,werror-cc,$(CC),-O2 -Werror,programs $(BUILD)/werror-cc/libpeers.so)
	$(if $(HAVE_CLANG),$(call submake,werror-clang,clang,-O2 -Werror,\
	  programs $(PEER_OBJECTS:$(BUILD)/%=$(BUILD)/werror-clang/%)),@echo "no clang")
	for file in $(PORTABLE:.c=); do $(CC) -c $$file.c -o $(BUILD)/plain.o || exit 1; done
	$(if $(HAVE_CXX),printf '#include "%s"\n' $(HEADERS) | c++ -std=c++98 -Wall -Wextra -pedantic \
	  -Wno-long-long -Werror -x c++ -fsyntax-only -I. -,@echo "no C++ compiler")

check-house: $(BUILD)/kernels_cl.inc ## the files in the root are made from src/, every room of which compiles alone
	$(Q)CC='$(CC)' sh tests/house.sh $(BUILD)

# What src/ makes keeps the style of its rooms. The examples are set by hand, as README shows them.
FORMATTED := $(filter-out $(MADE),$(wildcard *.[ch])) $(ROOMS) $(wildcard tests/*.[ch] tests/*/*.[ch] tools/*.[ch] fuzz/*.[ch]) \
             $(wildcard ports/*.[ch] ports/*/*.[ch]) \
             $(wildcard bench/*.[ch] bench/*/*.[ch])
check-format: ## clang-format changes nothing, where it is installed
	@if command -v clang-format > /dev/null; then \
	  clang-format --dry-run --Werror $(FORMATTED) && \
	  echo "format: $(words $(FORMATTED)) files as clang-format sets them"; \
	else echo "format: skipped, there is no clang-format"; fi

check-canon: $(BUILD)/canon $(BUILD)/dropout_mask ## the golden hashes by a second, independent program
	$(RUN) $(BUILD)/canon
	RUN='$(RUN)' sh tests/dropout_mask.sh $(BUILD)

# Where the shell has ulimit, a broken guard of memory ends the bench and not the machine. Emulators
# and sanitizers have no limit, because they reserve far more addresses than they use.
LIMIT := $(if $(strip $(RUN) $(findstring -fsanitize,$(CFLAGS))),,ulimit -v 4000000 2> /dev/null;)

# Python can load the library of `make compare-peers` where that runs here and has no sanitizers.
LOADABLE_PEERS := $(if $(strip $(RUN) $(findstring -fsanitize,$(CFLAGS))),,$(BUILD)/libpeers.so)

check-bench: $(BUILD)/bench $(BUILD)/bench_test $(BUILD)/measure_test $(LOADABLE_PEERS) ## the bench refuses wrong results, writes what its schema says
	$(RUN) $(BUILD)/measure_test
	$(LIMIT) $(NO_DEVICE) $(RUN) $(BUILD)/bench_test selfcheck
	RUN='$(RUN)' sh tests/bench_files.sh $(BUILD)
	sh tools/performance_test.sh
	RUN='$(RUN)' sh tools/plot_test.sh $(BUILD)
	RUN='$(RUN)' sh docs/check.sh $(BUILD)/bench

check-math: $(BUILD)/prove_fma ## exp2, log2, tanh, roots against their exact values; multiply-adds
	@mkdir -p $(BUILD)
	$(CC) $(REQUIRED) -O2 tools/prove_math.c -o $(BUILD)/prove_math -lm -lpthread
	$(BUILD)/prove_math --quick
	$(RUN) $(BUILD)/prove_fma 4000000

check-numerics: $(BUILD)/error_table ## the error up to 64K keys, and logits of 10000, equals docs/numerics.md
	RUN='$(RUN)' sh tools/numerics.sh $(BUILD) 4
	CC='$(CC)' RUN='$(RUN)' sh tools/magnitude_errors.sh
	CC='$(CC)' RUN='$(RUN)' sh tools/quantised_errors.sh

check-pytorch: $(LIB) ## the calls of docs/from_pytorch.md beside PyTorch's, where it is installed (PYTHON)
	@if $(PYTHON) -c 'import torch' 2> /dev/null; then \
	    $(PYTHON) -W ignore tests/from_pytorch.py docs/from_pytorch.md '$(CC)' '$(LIB) -lm' $(BUILD)/from_pytorch; \
	else \
	    echo "check-pytorch: skipped, since $(PYTHON) has no module torch"; \
	fi

check-subsets: ## attn.c and attn.h alone, in every way that projects include them
	sh tests/subsets.sh

check-size: ## a program with one call: what it does not use of attn.c is dropped
	sh tests/size.sh

check-memory: ## workspace and peak memory over the length
	sh tests/memory.sh

check-stack: ## stack of a call
	SIMD='$(RUNNABLE_SIMD)' sh tests/stack.sh

check-hot-loops: ## inner loops are unrolled and keep nothing on the stack, by disassembly
	sh tests/hot_loops.sh

check-avx512: $(LIB) $(call objects,$(TESTS)) ## the kernels of AVX-512 on CPUs with AVX2, by SIMDe, where it is installed
	$(Q)CC='$(CC)' LINK='$(LINK)' AR='$(AR)' sh tests/avx512.sh $(BUILD) $(call objects,$(TESTS))

check-single: single $(LIB) $(call objects,$(TESTS) $(DEVICES)) ## the one file has the same bits with every compiler
	$(Q)COMPILE='$(COMPILE) $(CFLAGS)' LINK='$(LINK)' RUN='$(RUN)' sh tests/single.sh $(BUILD) \
	  $(call objects,$(TESTS) $(DEVICES))

check-package: $(MADE) ## make install, pkg-config and CMake with programs that use them; two builds are equal
	$(Q)CC='$(CC)' NM='$(NM)' MAKE='$(MAKE)' sh tests/package.sh

check-opencl: $(BUILD)/test $(BUILD)/bench $(BUILD)/bench_test $(BUILD)/cl_on_cuda/libOpenCL.so.1 ## the device tests on PoCL, rusticl, Oclgrind, where they are installed
	$(Q)COMPILE='$(COMPILE) $(CFLAGS)' LINK='$(LINK)' CASES='$(CASES)' sh tests/opencl.sh $(BUILD) \
	  $(call objects,$(TESTS))
	$(Q)COMPILE='$(COMPILE) $(CFLAGS)' sh tests/cl_on_cuda.sh $(BUILD)

opencl-gate: ## registers, spills, local memory of kernels.cl on 16 GPUs, where compilers are installed
	$(Q)ALL=1 sh tools/opencl_gate.sh $(BUILD)/opencl_gate

# These checks load no driver, because drivers are not ours to check and some fail to load there.
NO_DEVICE := OCL_ICD_VENDORS=/nonexistent

check-mpi: $(LIB) $(BUILD)/bench $(if $(shell command -v $(MPICC)),$(MPI_PROGRAMS)) ## ranks as processes on OpenMPI and MPICH, where they are installed
	$(Q)FLAGS='$(REQUIRED) $(WARNINGS) $(CFLAGS)' sh tests/mpi.sh $(LIB) $(BUILD)/mpi
	$(Q)sh tests/bench_mpi.sh $(BUILD)

check-threads: ## real threads under ThreadSanitizer
	$(call submake,tsan,$(CC),-O1 -g1 -fsanitize=thread $(SANITIZE),\
	  $(BUILD)/tsan/test SIMD="$(RUNNABLE_SIMD)")
	$(NO_DEVICE) ATTN_TEST_QUICK=1 $(BUILD)/tsan/test threads decode backward resume ring dilated_ring ring_decode

ATTN_FUZZ ?= 1000000
check-sanitize: ## all groups and a million random calls under ASan and UBSan
	$(call submake,asan,$(CC),-O1 -g1 -fsanitize=address$(,)undefined $(SANITIZE),\
	  $(BUILD)/asan/test ASSERT=1 SIMD="$(RUNNABLE_SIMD)")
	$(NO_DEVICE) ATTN_FUZZ=$(ATTN_FUZZ) $(BUILD)/asan/test

check-hash: ## the same bits from every compiler and flag at hand
	sh tools/hash_matrix.sh $(BUILD)/hash

check-mutants: ## the tests notice every planted bug
	CC='$(CC)' sh tools/mutants.sh $(BUILD)/mutants

# libFuzzer is clang's; inputs that it found stay in build/fuzz/corpus, see fuzz/run.sh.
SECONDS ?= 60
fuzz: ## each harness of fuzz/ for SECONDS=60 by libFuzzer with sanitizers (HARNESS='forward ...')
	$(call submake,fuzz,clang,-O1 -g1 -fsanitize=fuzzer-no-link$(,)address$(,)undefined \
	  -fsanitize-coverage-allowlist=fuzz/instrumented.txt $(SANITIZE),\
	  FUZZ=1 $(BUILD)/fuzz/fuzzer ASSERT=1 SIMD="$(RUNNABLE_SIMD)")
	sh fuzz/run.sh $(BUILD)/fuzz/fuzzer $(SECONDS) $(HARNESS)

# Only the library counts, so the test objects are those of the usual build. GROUPS names groups.
fuzz-coverage: $(TEST_OBJECTS) ## lines and branches of the library that tests and kept inputs reach
	$(call submake,coverage,clang,-O1 -g -fprofile-instr-generate -fcoverage-mapping,\
	  TEST_OBJECTS="$(TEST_OBJECTS)" $(BUILD)/coverage/test)
	sh fuzz/coverage.sh $(BUILD)/coverage $(GROUPS)

# ---- installing

INSTALLED_HEADERS := $(HEADERS) attn_mpi.h
# What programs link beside the library: those that link the archive, and all where it is alone.
LIBS := $(DL) $(OMP)
under_prefix = $(patsubst $(PREFIX)/%,$${prefix}/%,$(1))

install: $(LIB) $(SHARED_LIB) ## headers, libraries, attn.pc to PREFIX (DESTDIR, LIBDIR, INCLUDEDIR, DATADIR)
	install -d '$(DESTDIR)$(INCLUDEDIR)' '$(DESTDIR)$(LIBDIR)/pkgconfig' '$(DESTDIR)$(DATADIR)/attn'
	install -m 644 $(INSTALLED_HEADERS) '$(DESTDIR)$(INCLUDEDIR)'
	install -m 644 attn_mpi.c '$(DESTDIR)$(DATADIR)/attn'
	install -m 644 $(LIB) '$(DESTDIR)$(LIBDIR)'
	$(STRIP) -S '$(DESTDIR)$(LIBDIR)/libattn.a'
	for file in $(SHARED_LIB); do \
	  install -m 755 $$file '$(DESTDIR)$(LIBDIR)' && \
	  $(STRIP) -S '$(DESTDIR)$(LIBDIR)/'$${file##*/} || exit 1; done
	for link in $(SHARED_LINKS); do \
	  ln -sf libattn.so.$(VERSION) '$(DESTDIR)$(LIBDIR)/'$$link || exit 1; done
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(call under_prefix,$(LIBDIR))|' \
	  -e 's|@INCLUDEDIR@|$(call under_prefix,$(INCLUDEDIR))|' \
	  -e 's|@DATADIR@|$(call under_prefix,$(DATADIR))|' -e 's|@PROJECT_VERSION@|$(VERSION)|' \
	  -e 's|@LIBS@|$(if $(SHARED),,$(LIBS))|' -e 's|@PRIVATE_LIBS@|$(if $(SHARED),$(LIBS))|' \
	  attn.pc.in > '$(DESTDIR)$(LIBDIR)/pkgconfig/attn.pc'

uninstall: ## removes the files that install wrote
	rm -f $(INSTALLED_HEADERS:%='$(DESTDIR)$(INCLUDEDIR)/%') '$(DESTDIR)$(LIBDIR)/libattn.a' \
	  $(patsubst %,'$(DESTDIR)$(LIBDIR)/%',$(notdir $(SHARED_LIB)) $(SHARED_LINKS)) \
	  '$(DESTDIR)$(LIBDIR)/pkgconfig/attn.pc' '$(DESTDIR)$(DATADIR)/attn/attn_mpi.c'
	rmdir '$(DESTDIR)$(DATADIR)/attn' 2> /dev/null || true

clean: ## removes the build folder
	rm -rf $(BUILD)

help: ## this text
	@echo "targets of attn $(VERSION):"
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/  \1|\2/p' Makefile | \
	  awk -F'|' '{printf "  %-16s %s\n", $$1, $$2}'
	@echo "settings: CC, CFLAGS (-O2 -g), LDFLAGS, CROSS_COMPILE=prefix-, RUN=emulator, OPENMP=1,"
	@echo "  ASSERT=1 (internal checks on), SIMD='avx2 ...' (files linked), SHARED= (no shared library),"
	@echo "  RELAXED=1 (WebAssembly: relaxed SIMD in attn_simd_wasm.c),"
	@echo "  STRIP=: (install debug information), BUILD=folder, PREFIX, DESTDIR, V=1 (show commands)"
