/* main.c - the bench with faults on purpose, and the checks that it would notice them.
 * SPDX-License-Identifier: MIT
 *
 *     build/bench_test selfcheck [--threads N] [--device NAME]
 *     build/bench_test --plant-wrong qk|qk_units|pv|outer|gradient ...   the bench with a wrong kernel
 *     build/bench_test --plant-wrong ranks ...                   or with a rank that has wrong keys
 *     build/bench_test --plant-slowdown PERCENT ...              or with a slow one
 *     build/bench_test --plant-interrupt N [--plant-again] ...   or Ctrl-C during the N-th run or step,
 *                                                                twice
 *     build/bench_test --plant-terminate N ...                   or SIGTERM then */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../bench/bench.h"
#include "../../bench/machine/machine.h"
#include "selfcheck.h"

static int refuse(const char *what, const char *about)
{
    fprintf(stderr, "bench_test: %s \"%s\"\n", what, about);
    return 2;
}

/* Like `info`, whose options are those of the checks. */
static int command_selfcheck(int argc, char **argv)
{
    static bench_context context;
    static char info[] = "info";
    bench_options options;
    for (int i = 2; i < argc; i += 2)
        if (strcmp(argv[i], "--threads") && strcmp(argv[i], "--device"))
            return refuse("selfcheck does not take", argv[i]);
    argv[1] = info;
    if (!options_parse(&options, argc, argv) || !bench_context_make(&options, &context))
        return 2;
    device_choose(options.device, options.device != NULL);
    const int status =
        !bench_workers(&context, context.threads) || selfcheck(&context, options.device != NULL);
    bench_context_free(&context);
    return status;
}

/* Takes the faults out of the command line; returns what is left of argc. */
static int take_faults(int argc, char **argv)
{
    int left = 1;
    for (int i = 1; i < argc; i++) {
        const int wrong = !strcmp(argv[i], "--plant-wrong");
        const int slow = !strcmp(argv[i], "--plant-slowdown");
        const int terminate = !strcmp(argv[i], "--plant-terminate");
        const int interrupt = terminate || !strcmp(argv[i], "--plant-interrupt");
        if (!strcmp(argv[i], "--plant-again")) {
            faults.again = 1;
            continue;
        }
        if ((wrong || slow || interrupt) && i + 1 < argc)
            i++;
        else
            argv[left++] = argv[i];
        if (wrong)
            faults.wrong = argv[i];
        if (interrupt) {
            faults.interrupt = (int)strtol(argv[i], NULL, 10);
            faults.signal = terminate ? SIGTERM : SIGINT;
        }
        if (slow)
            faults.slowdown = strtod(argv[i], NULL);
    }
    return left;
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "selfcheck"))
        return command_selfcheck(argc, argv);
    const int left = take_faults(argc, argv);
    argv[left] = NULL;
    if (faults.wrong && !strcmp(faults.wrong, "ranks")) {
        faults.ranks = 1;
        faults.wrong = NULL;
    }
    if (faults.wrong && !plant_knows(faults.wrong))
        return refuse("--plant-wrong is qk, qk_units, pv, outer, gradient or ranks, not",
                      faults.wrong);
    return bench_main(left, argv, plant_watch);
}
