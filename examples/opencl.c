/* opencl.c - attention on a GPU where there is one, on the CPU where there is none, by one
 * program. ATTN_DEVICE is a part of the name of the device. ATTN_PROGRAMS names a file that keeps
 * its compiled programs, so that the next start is quick.
 * SPDX-License-Identifier: MIT
 */
#include "../attn.h"
#include "../attn_opencl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 8, KV_HEADS = 2, TOKENS = 300, DIM = 64 };

static float *numbers(int count, float step)
{
    float *x = malloc((size_t)count * sizeof *x);
    for (int i = 0; x != NULL && i < count; i++)
        x[i] = sinf((float)i * step);
    return x;
}

/* Runs p and frees its workspace. Returns 1 on success. */
static int attend(const attn_params *p)
{
    char why[200];
    size_t need = 0;
    void *workspace;
    int done;
    attn_workspace_size(p, &need);
    workspace = malloc(need);
    done = attn_forward(p, workspace, need) == ATTN_OK;
    if (!done)
        puts(attn_check(p, workspace, need, why, sizeof why));
    free(workspace);
    return done;
}

/* Returns the bytes of a file, or NULL if there is none. */
static void *read_file(const char *name, size_t *bytes)
{
    FILE *f = name != NULL ? fopen(name, "rb") : NULL;
    const int there = f != NULL && fseek(f, 0, SEEK_END) == 0;
    const long end = there ? ftell(f) : -1;
    char *all = end > 0 ? malloc((size_t)end) : NULL;
    *bytes = 0;
    if (all != NULL && fseek(f, 0, SEEK_SET) == 0)
        *bytes = fread(all, 1, (size_t)end, f);
    if (f != NULL)
        fclose(f);
    return all;
}

/* Writes the compiled programs, unless all of them came from the file. */
static void keep_programs(const attn_opencl *gpu, const char *name)
{
    attn_opencl_info device;
    const size_t bytes = attn_opencl_binaries_get(gpu, NULL, 0);
    void *all = malloc(bytes);
    FILE *f;
    if (name != NULL && all != NULL && attn_opencl_info_get(gpu, &device) == ATTN_OK &&
        device.built > 0 && attn_opencl_binaries_get(gpu, all, bytes) == bytes &&
        (f = fopen(name, "wb")) != NULL) {
        fwrite(all, 1, bytes, f); /* a truncated file is noticed when it is given back */
        fclose(f);
    }
    free(all);
}

/* Opens a device, gives it the programs that were kept, and says what comes next. Returns 1 if
 * there is a device. */
static int open_device(attn_opencl *gpu, attn_opencl_info *device, const void *programs,
                       size_t bytes)
{
    attn_opencl_options options = {0};
    options.device = getenv("ATTN_DEVICE"); /* NULL chooses the best */
    if (attn_opencl_open(gpu, &options) != ATTN_OK) {
        printf("no device: %s\n", attn_opencl_why(gpu)); /* no error: the CPU computes it */
        return 0;
    }
    /* Those of another device or driver are not taken, and kernels are compiled again. */
    if (programs != NULL)
        attn_opencl_binaries_set(gpu, programs, bytes);
    attn_opencl_info_get(gpu, device);
    printf("device: %s (%s), which says that it is %s\n", device->device, device->platform,
           device->gpu ? "a GPU" : "not a GPU");
    if (programs != NULL)
        printf("kept programs: %s\n", device->binaries_why);
    printf("compiling: the driver compiles what it has not kept; the first time may take a "
           "minute\n");
    fflush(stdout);
    return 1;
}

/* Says how a device that need not be here would run the call. Returns 1 if it would. */
static int tell_plan(const attn_params *p)
{
    attn_opencl_info device = {0};
    attn_opencl_plan_info plan;
    device.compute_units = 24;
    device.local_bytes = 48 << 10;
    device.allocation_bytes = (size_t)1 << 30;
    if (attn_opencl_plan(&device, p, &plan) != ATTN_OK || !plan.runs) {
        printf("a device of 24 compute units would refuse: %s\n", plan.why);
        return 0;
    }
    printf("a device of 24 compute units would take %d work-groups, tiles of %d rows and %d bytes "
           "of local memory\n",
           (int)plan.groups, plan.tile_rows, (int)plan.local_bytes);
    return 1;
}

int main(void)
{
    const int rows = HEADS * TOKENS * DIM, keys = KV_HEADS * TOKENS * DIM;
    float *q = numbers(rows, 0.37f), *k = numbers(keys, 0.11f), *v = numbers(keys, 0.73f);
    float *on_cpu = numbers(rows, 0), *on_device = numbers(rows, 0);
    attn_opencl *gpu = malloc(attn_opencl_size());
    attn_opencl_info device;
    const char *file = getenv("ATTN_PROGRAMS");
    size_t bytes;
    void *programs = read_file(file, &bytes);
    attn_backend backend;
    attn_params p = {0};
    attn_info info;
    double worst = 0;
    int done;
    if (!q || !k || !v || !on_cpu || !on_device || !gpu)
        return 1;
    p.batch = 1;
    p.num_heads_q = HEADS;
    p.num_heads_kv = KV_HEADS;
    p.seq_len_q = p.seq_len_kv = TOKENS;
    p.head_dim = DIM;
    p.causal = 1;
    p.q.data = q;
    p.k.data = k;
    p.v.data = v;
    p.o.data = on_cpu;
    done = attend(&p) && tell_plan(&p);

    if (open_device(gpu, &device, programs, bytes)) {
        backend = attn_opencl_backend(gpu, NULL);
        p.backend = &backend;
    }
    p.o.data = on_device;
    done = done && attend(&p) && attn_explain(&p, &info) == ATTN_OK;
    for (int i = 0; i < rows; i++)
        worst = fmax(worst, fabs((double)on_device[i] - (double)on_cpu[i]));
    if (done)
        printf("ran on: %s\n", strcmp(info.backend_name, "cpu") ? device.device : "this CPU");
    printf("%d heads, %d tokens: %s\n", HEADS, TOKENS,
           done && worst < 1e-5 ? "the CPU's results, but for 1e-5 at most" : "other results");
    keep_programs(gpu, file);
    attn_opencl_close(gpu);
    free(programs);
    free(gpu);
    free(on_device);
    free(on_cpu);
    free(v);
    free(k);
    free(q);
    return !(done && worst < 1e-5);
}
