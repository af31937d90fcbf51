# timing.py - the machine's clock and peak, and the timing of several calls in turn.
# SPDX-License-Identifier: MIT
#
# A repetition counts clock cycles, which are seconds times the clock measured right before and
# after it, because the clocks of shared machines wander. Processor time is read beside the wall
# clock: less of it means that other work had the core, more that a peer used a second thread.
import collections
import ctypes
import statistics
import time

from .library import load_library
from .peer import GEMM_SIZE, Wrong
from .shapes import array_of, floats, number_of

GEMM_ROUNDS = 7
TRIES = 3  # runs of each variant before one is chosen
BUSY_BELOW, THREADS_ABOVE = 0.97, 1.10  # processor time over wall time
WALL_TIME, CPU_TIME = "wall time", "processor time"

# Seconds of one call by the wall clock and of processor time, and the clock's rate beside it
Sample = collections.namedtuple("Sample", "wall cpu hertz")


class Machine:
    """The C library, and what it says of the machine."""

    def __init__(self, path, cpu_time):
        self.path, self.lib, self.cpu_time = path, load_library(path), cpu_time
        text = ctypes.create_string_buffer(2048)
        self.lib.compare_machine(text, len(text))
        self.facts = dict(line.split("=", 1) for line in text.value.decode().splitlines())
        self.flops_per_cycle = self.lib.compare_flops_per_cycle(text, len(text))
        self.facts["unit"] = text.value.decode()

    def measure(self, call):
        """Returns the Sample of one call."""
        before = self.lib.clock_hertz()
        start, cpu_start = self.lib.clock_seconds(), time.process_time()
        call()
        cpu, wall = time.process_time() - cpu_start, self.lib.clock_seconds() - start
        return Sample(wall, cpu, 0.5 * (before + self.lib.clock_hertz()))

    def median(self, samples):
        """Returns the median of cycles, by the clock that --cpu-time chooses."""
        return statistics.median(s[self.cpu_time] * s.hertz for s in samples)

    def milliseconds(self, samples):
        """Returns the median time, by the same clock."""
        return 1e3 * statistics.median(s[self.cpu_time] for s in samples)

    def quickest(self, call):
        """Returns cycles by processor time, so that a disturbance cannot choose a slow variant."""
        return min(s.cpu * s.hertz for s in (self.measure(call) for _ in range(TRIES)))

    def share(self, flops, cycles):
        return flops / (cycles * self.flops_per_cycle)

    def random(self, n, which, storage="f32"):
        """Returns n standard normal numbers, those of bench/cases/data.c."""
        data = array_of(storage, n)
        self.lib.data_fill(data, number_of(storage), n, which, 1, 1)
        return data

    def as_floats(self, address, n, storage):
        out = floats(n)
        self.lib.attn_convert(out, 0, address, number_of(storage), n)
        return out


def gemm_share(machine, peer, matrices):
    n = GEMM_SIZE
    product = peer.gemm(*matrices)
    product()
    cycles = machine.median([machine.measure(product) for _ in range(GEMM_ROUNDS)])
    return machine.share(2.0 * n * n * n, cycles)


def time_in_turn(machine, entrants, rounds, led_in):
    """Medians by entrant: clock cycles, milliseconds, and the processor's share of the wall time.
    led_in: an untimed call before each timed one, so that caches are as its own repetition leaves
    them."""
    samples = {name: [] for name in entrants}
    for _ in range(rounds):
        for name, variant in entrants.items():
            if led_in:
                variant.run()
            samples[name].append(machine.measure(variant.run))
    cycles = {name: machine.median(s) for name, s in samples.items()}
    ms = {name: machine.milliseconds(s) for name, s in samples.items()}
    core = {n: statistics.median(x.cpu / x.wall for x in s) for n, s in samples.items()}
    for name, share in core.items():
        if share > THREADS_ABOVE:
            raise Wrong("%s (%s) takes %.2f s of processor time a second: more than one thread"
                        % (name, entrants[name].name, share))
    return cycles, ms, core
