/* info.c - what this machine can do: measured peaks, kernel sets, devices, paths and why not, two
 * plans.
 * SPDX-License-Identifier: MIT */
#include "commands.h"

#include <stdio.h>
#include <stdlib.h>

#include "../../attn.h"
#include "../cases/cases.h"
#include "../machine/machine.h"
#include "../report/report.h"

enum { MOST_DEVICES = 32 };

static void print_path(const bench_context *x, const char *impl)
{
    attn_params p = { 0 };
    attn_info info;
    char text[1024], why[160];
    p.batch = 1;
    p.num_heads_q = 32;
    p.num_heads_kv = 8;
    p.seq_len_q = p.seq_len_kv = 2048;
    p.head_dim = 128;
    p.causal = 1;
    p.tuning = x->tuning;
    p.q.data = p.k.data = p.v.data = p.o.data = text;
    snprintf(text, sizeof text, "impl=%s", impl);
    if (attn_params_from_string(&p, text, why, sizeof why) != ATTN_OK) {
        say("%s: not usable: %s\n", impl, why);
    } else if (attn_explain(&p, &info) != ATTN_OK) {
        say("%s: not usable: %s\n", impl, attn_check(&p, text, (size_t)-1, why, sizeof why));
    } else {
        say("%s\n", attn_info_format(&info, text, sizeof text));
    }
}

static void print_paths(const bench_context *x)
{
    char why[200];
    say("paths of --impl, with %d threads where a path has several:\n", x->many);
    for (int i = 0; path_get(i); i++) {
        const bench_path *const path = path_get(i);
        const int usable = path_usable(path, x->many, why, sizeof why);
        say("  %-15s %s%s%s\n", path->name, path->what, usable ? "" : ": not usable: ", why);
    }
    say("\n");
}

static void print_device(const attn_opencl_device *d)
{
    say("  %s, %s, %s, driver %s; %s, %d units, memory %.1f GiB: %s%s\n", d->device, d->platform,
        d->version, d->driver, d->gpu ? "GPU" : "no GPU", d->compute_units,
        (double)d->memory_bytes / 1073741824,
        d->usable ? "usable" : "not usable: ", d->usable ? "" : d->why);
}

/* Of all platforms, by whatever name. */
static void print_devices(void)
{
    attn_opencl_device devices[MOST_DEVICES];
    attn_opencl *const gpu = malloc(attn_opencl_size());
    const int n = gpu ? attn_opencl_list(gpu, NULL, devices, MOST_DEVICES) : 0;
    say(n ? "OpenCL devices, the best first choice of --impl opencl (or --device NAME):\n"
          : "OpenCL devices: none: %s\n",
        gpu ? attn_opencl_why(gpu) : "no memory");
    for (int i = 0; i < n && i < MOST_DEVICES; i++)
        print_device(&devices[i]);
    say("\n");
    free(gpu);
}

int info_command(const bench_options *o, bench_context *x)
{
    static const char *const impls[] = { "tiled", "naive" };
    if (!files_possible(o))
        return 2;
    probe_machine(&x->probe);
    report_machine(&x->machine, &x->probe);
    say("attn      %s, numerics version %d\n", attn_version(), ATTN_NUMERICS_VERSION);
    say("kernels  ");
    for (int i = 0; attn_kernels_get(i); i++)
        say(" %s", attn_kernels_name(attn_kernels_get(i)));
    say("  (the first is the best)\n\n");
    print_devices();
    print_paths(x);
    say("what 1 x 32/8 heads x 2048 x 128, causal, would do:\n");
    for (size_t i = 0; i < sizeof impls / sizeof *impls; i++)
        print_path(x, impls[i]);
    return !files_write(o, x, NULL, 0);
}
