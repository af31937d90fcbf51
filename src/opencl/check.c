/* src/opencl/check.c - whether the elementary operations of the device give the bits of the CPU.
 * SPDX-License-Identifier: MIT
 *
 * IEEE 754 and OpenCL promise most of them; compilers that fuse or drivers that flush do not keep
 * it.
 */
#pragma once

#include "../halves.c"
#include "programs.c"

static uint32_t mixed(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

/* check_number makes a number with a random significand, 2^low <= |x| < 2^high; some have all bits
 * set. */
static float check_number(uint32_t seed, int low, int high)
{
    const uint32_t u = mixed(seed), exponent = (uint32_t)(127 + low) + u % (uint32_t)(high - low);
    const uint32_t bits = u % 7 == 0 ? 0x7fffffu : mixed(u) & 0x7fffffu;
    return float_of((u & 0x80000000u) | exponent << 23 | bits);
}

/* A check_kind is an operation whose first number x is made so that 2^low <= |x| < 2^high. */
typedef struct check_kind {
    const char *wrong; /* what is said where the bits differ */
    int low, high;
    int sign; /* of x: -1, 1, or 0 for any */
} check_kind;

static const check_kind check_kinds[CHECK_KINDS] = {
    [CHECK_PRODUCT_SUM] = { "a product and a sum are fused", -12, 12, 0 },
    [CHECK_FMA] = { "fma is not rounded once", -12, 12, 0 },
    [CHECK_RECIPROCAL] = { "1 / x is not correctly rounded", -12, 12, 0 },
    [CHECK_EXP2] = { "2^x", -6, 7, -1 },
    [CHECK_LOG2] = { "log2", -12, 12, 1 },
    [CHECK_TANH] = { "tanh", -12, 5, 0 },
    [CHECK_LOAD_F16] = { "f16 is not read exactly", -12, 12, 0 },
    [CHECK_LOAD_BF16] = { "bf16 is not read exactly", -12, 12, 0 },
    [CHECK_STORE_F16] = { "f16 is not rounded to nearest even", -26, 16, 0 },
    [CHECK_STORE_BF16] = { "bf16 is not rounded to nearest even", -12, 12, 0 },
};

static void fill_checks(check_data *d)
{
    uint32_t i;
    for (i = 0; i < CL_CHECKS; i++) {
        const uint32_t kind = i % CHECK_KINDS;
        const check_kind *k = &check_kinds[kind];
        float *x = &d->in[3 * i];
        x[0] = check_number(3 * i, k->low, k->high);
        x[1] = check_number(3 * i + 1, -4, 4);
        x[2] = check_number(3 * i + 2, -12, 12);
        if (x[0] * (float)k->sign < 0)
            x[0] = -x[0];
        if (kind == CHECK_FMA && i % 2) /* nearly cancels: only one rounding leaves what remains */
            x[2] = -(x[0] * x[1]);
        if (kind == CHECK_LOAD_F16 || kind == CHECK_LOAD_BF16) /* no infinities, no NaN */
            x[0] = float_of(mixed(i) & 0xbbffu);
    }
}

static float product_sum(float x, float y, float z)
{
    float r = x * y;
    r = r + z;
    return r;
}

/* right_answer gives the bits that operation i must give. */
static uint32_t right_answer(const check_data *d, int i)
{
    const float *x = &d->in[3 * i];
    const uint32_t low = bits_of(x[0]) & 0xffffu;
    uint32_t half;
    switch (i % CHECK_KINDS) {
    case CHECK_PRODUCT_SUM:
        return bits_of(product_sum(x[0], x[1], x[2]));
    case CHECK_FMA:
        return bits_of(fma32(FMA_BASE, x[0], x[1], x[2]));
    case CHECK_RECIPROCAL:
        return bits_of(1.0f / x[0]);
    case CHECK_EXP2:
        return bits_of(exp2_canon(x[0]));
    case CHECK_LOG2:
        return bits_of(log2_canon(x[0]));
    case CHECK_TANH:
        return bits_of(tanh_with(FMA_BASE, x[0]));
    case CHECK_LOAD_F16:
        return bits_of(f16_to_f32((uint16_t)low));
    case CHECK_LOAD_BF16:
        return bits_of(bf16_to_f32((uint16_t)low));
    case CHECK_STORE_F16:
        half = f16_from_f32(x[0]);
        return half == 0x8000u ? 0 : half;
    default:
        return bf16_from_f32(x[0]);
    }
}

static void compare_checks(attn_opencl *gpu, const check_data *d)
{
    text why = text_in(gpu->info.exact_why, sizeof gpu->info.exact_why);
    int i;
    gpu->info.exact = 1;
    for (i = 0; i < CL_CHECKS && gpu->info.exact; i++)
        if (bits_of(d->out[i]) != right_answer(d, i)) {
            gpu->info.exact = 0;
            put(&why, "the device's arithmetic differs from the CPU's: ");
            put(&why, check_kinds[i % CHECK_KINDS].wrong);
            put(&why, ", at ");
            put_float(&why, d->in[3 * i]);
        }
}

/* check_device fills in info.exact. */
static void check_device(attn_opencl *gpu)
{
    check_data *d = &gpu->check;
    const variant v = { PART_CHECK, 1, MIXED, 64, 64, 1, 0 };
    const size_t global = CL_CHECKS, local = CL_ROW_GROUP;
    cl_handle program, kernel = NULL, in = NULL, out = NULL, queue = NULL; /* see try_program */
    cl_int error = CL_SUCCESS;
    text why = text_in(gpu->info.exact_why, sizeof gpu->info.exact_why);
    fill_checks(d);
    program = find_program(gpu, &v, &error);
    if (!error)
        queue = gpu->cl.clCreateCommandQueue(gpu->context, gpu->device, 0, &error);
    if (!error)
        kernel = gpu->cl.clCreateKernel(program, "check", &error);
    if (!error)
        in = gpu->cl.clCreateBuffer(gpu->context, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR,
                                    sizeof d->in, d->in, &error);
    if (!error)
        out = gpu->cl.clCreateBuffer(gpu->context, CL_MEM_READ_WRITE, sizeof d->out, NULL, &error);
    if (!error)
        error = gpu->cl.clSetKernelArg(kernel, 0, sizeof in, &in);
    if (!error)
        error = gpu->cl.clSetKernelArg(kernel, 1, sizeof out, &out);
    if (!error)
        error =
            gpu->cl.clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &global, &local, 0, NULL, NULL);
    if (!error)
        error = gpu->cl.clEnqueueReadBuffer(queue, out, 1, 0, sizeof d->out, d->out, 0, NULL, NULL);
    if (error)
        explain_error(&why, "the check of the device's arithmetic did not run", error);
    else
        compare_checks(gpu, d);
    release(gpu->cl.clReleaseCommandQueue, queue);
    release(gpu->cl.clReleaseKernel, kernel);
    release(gpu->cl.clReleaseMemObject, in);
    release(gpu->cl.clReleaseMemObject, out);
}
