/* bench.c - measures attn: presets or single shapes, table, JSON, CSV.
 * SPDX-License-Identifier: MIT
 *
 *     build/bench --quick                  latency and llm, reduced, under a minute (`make bench`)
 *     build/bench latency llm              the whole presets (gemma, extreme, ...: --help)
 *     build/bench masks                    each mask and modifier against none
 *     build/bench --shape 1,32,8,512,512,128 --mask window --dtype f16 --threads 2
 *     build/bench extreme                  to a million tokens: causal, window, cells, dilated
 *     build/bench dilated                  dilated attention and masks of cells against dense
 *     build/bench --batch-size 4 --seq-length 2048        single sizes
 *     build/bench --shape 1,8,8,65536,65536,64 --segments 2048,8192 --dilations 1,4
 *     build/bench decode                   K and V of few rows against a plain loop that reads them
 *     build/bench cache                    storage types, pages and rings of a KV cache; appending
 *     build/bench --shape 1,32,8,1,4096,128 --types q8_0 --integer    quantised K and V
 *     mpirun -n 4 build/bench dilated --mpi    a sequence among processes and hosts
 *     build/bench threads                  1, 2, ... threads: speed-up and efficiency
 *     build/bench backward                 gradients; --backward: those of other cases
 *     build/bench rank --quick             every path on a few cases, and which is the fastest
 *     build/bench llm --quick --phases     where the time goes: Q K^T, softmax, P V, merge
 *     build/bench llm --impl all           every path on other cases
 *     build/bench device                   the OpenCL device, its paths
 *     build/bench llm --impl tiled,opencl  against the CPU
 *     build/bench prefill                  each kernel set against its goals (`make performance`)
 *     build/bench kernels                  the single kernels of each set
 *     build/bench tune                     sizes for this machine (`make tune`): build/tuning.txt
 *     build/bench memory                   peak memory over the length, naive and tiled
 *     build/bench info                     what this machine can do
 *
 * --baseline FILE compares with the JSON of an older run; exit status 3 = slower.
 *
 * Parts, in bench/:
 *   measure, suite, clock, stats   the measuring core, which knows nothing of attention
 *   options, choose, program       the command line, the cases and paths that it asks for, commands
 *   run, phases, stop              one case by one path; where its time goes; Ctrl-C
 *   cases/      what is measured: lists, masks, paths, inputs, FLOPs and bytes on paper
 *   machine/    on what: its description, measured peaks, peak memory, threads
 *   report/     what is said and written: table, winners, ranking, verdicts, progress, JSON, CSV
 *   commands/   kernels, tune, memory, --baseline
 *
 * That the bench would notice what is wrong is shown by tests/bench/. */
#include "bench/bench.h"

int main(int argc, char **argv)
{
    return bench_main(argc, argv, NULL);
}
