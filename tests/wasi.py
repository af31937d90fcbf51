#!/usr/bin/env python3
"""wasi.py MODULE ARGUMENT...: runs a program of WebAssembly by PyPI's wasmtime, in this folder.

SPDX-License-Identifier: MIT

--fuel before the module prints last how many instructions of WebAssembly ran. --no-fma compiles it, on x86-64,
for a CPU without that instruction, where relaxed SIMD rounds products.
"""

import os
import sys

import wasmtime


def main(arguments):
    counts = arguments[0] == "--fuel"
    without_fma = arguments[0] == "--no-fma"
    arguments = arguments[counts or without_fma:]
    config = wasmtime.Config()
    config.consume_fuel = counts
    if without_fma:
        wasmtime._ffi.wasmtime_config_cranelift_flag_set(config.ptr(), b"has_fma", b"false")
    config.cache = True
    engine = wasmtime.Engine(config)
    linker = wasmtime.Linker(engine)
    linker.define_wasi()
    store = wasmtime.Store(engine)
    fuel = 1 << 60
    if counts:
        store.set_fuel(fuel)
    system = wasmtime.WasiConfig()
    system.argv = arguments
    system.env = list(os.environ.items())
    system.inherit_stdin()
    system.inherit_stdout()
    system.inherit_stderr()
    system.preopen_dir(".", ".")
    store.set_wasi(system)
    module = wasmtime.Module.from_file(engine, arguments[0])
    status = 0
    try:
        linker.instantiate(store, module).exports(store)["_start"](store)
    except wasmtime.ExitTrap as end:
        status = end.code
    if counts:
        print("instructions:", fuel - store.get_fuel())
    return status


sys.exit(main(sys.argv[1:]))
