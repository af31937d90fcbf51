"""make_quantised.py - numbers, and the bytes that the Python package gguf quantises them to.
SPDX-License-Identifier: MIT

    python3 tests/make_quantised.py > tests/quantised_bytes.h     needs gguf (and numpy) from PyPI
"""
import gguf
import numpy as np

TYPES = ("Q8_0", "Q5_0", "Q4_0")


def units():
    """Units of 32 numbers: ordinary ones, and those at the edges of the rules. Zeros are +0: for a
    unit that begins with -0 gguf has another sign of the scale than ggml's C code."""
    rng = np.random.default_rng(24)
    yield from rng.standard_normal((8, 32))
    yield from rng.standard_normal((4, 32)) * np.array([[1e-3], [1e3], [1e-6], [60000.0]])
    yield np.zeros(32)
    yield np.where(np.arange(32) == 17, 100.0, rng.standard_normal(32))  # an outlier
    yield np.where(np.arange(32) == 31, -100.0, rng.standard_normal(32))
    yield np.linspace(-127, 127, 32)
    yield np.append(127, np.arange(31) - 15.5)  # ties, with a factor of 1
    yield np.append(-8, (np.arange(31) - 15) / 2)  # the same of q4_0
    yield np.append(-16, (np.arange(31) - 15) + 0.5)  # and of q5_0
    yield np.where(np.arange(32) % 2, -3.0, 3.0)  # the first of equal magnitudes decides
    yield np.where(np.arange(32) % 2, 3.0, -3.0)
    yield np.full(32, 1e-30)  # scales below the smallest f16
    yield np.full(32, 7.0)


def table(kind, name, rows, spec):
    print(f"\nstatic const {kind} {name}[][{len(rows[0])}] = {{")
    for row in rows:
        print("    { " + ", ".join(format(int(x), spec) for x in row) + " },")
    print("};")


def main():
    numbers = np.array(list(units()), dtype=np.float32)
    print("/* quantised_bytes.h - made by tests/make_quantised.py, gguf " + VERSION + ".\n"
          " * SPDX-License-Identifier: MIT\n */\n/* clang-format off */\n\n#include <stdint.h>")
    table("uint32_t", "quantised_numbers", numbers.view(np.uint32), "#010x")
    for name in TYPES:
        kind = gguf.GGMLQuantizationType[name]
        made = gguf.quants.quantize(numbers, kind)
        table("uint8_t", "quantised_" + name.lower(), made, "d")
        read = gguf.quants.dequantize(made, kind).astype(np.float32)
        table("uint32_t", "read_" + name.lower(), read.view(np.uint32), "#010x")


if __name__ == "__main__":
    from importlib.metadata import version
    VERSION = version("gguf")
    main()
