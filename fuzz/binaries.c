/* binaries.c - harness of kept device programs (attn_opencl_binaries_set), without a device.
 * SPDX-License-Identifier: MIT
 *
 * The room of the library is included, because what it checks lies behind a sum and a key that no
 * input would have by chance: the harness writes both into most inputs.
 */
#if defined __GNUC__ || defined __clang__ /* a room serves others, which are not here */
#pragma GCC diagnostic ignored "-Wunused-function"
#endif

#include "../src/opencl/kept.c"

#include "../tests/test.h"

static const unsigned char *kept_begin, *kept_end;
static int64_t programs_taken;

/* A driver that reads every byte and takes none. */
static cl_handle CL_CALL refuse_program(cl_handle context, cl_uint devices, const cl_handle *list,
                                        const size_t *bytes, const unsigned char **binaries,
                                        cl_int *statuses, cl_int *error)
{
    (void)context;
    (void)list;
    (void)statuses;
    programs_taken++;
    CHECK(devices == 1 && binaries[0] >= kept_begin && binaries[0] <= kept_end &&
              *bytes <= (size_t)(kept_end - binaries[0]),
          "a program that is not within the bytes");
    *error = -42;
    return NULL;
}

FUZZ_HARNESS(binaries, "kept programs of a device: damaged ones are refused, others lie within")
{
    static attn_opencl gpu;
    static uint64_t key; /* of a sum over all of kernels.cl */
    unsigned char *kept = test_alloc_at(count, PLACE_PAGE_AFTER);
    uint64_t head[KEPT_HEAD];
    attn_status status;
    memset(&gpu, 0, sizeof gpu);
    key = key == 0 ? key_of_programs(&gpu) : key;
    gpu.cl.clCreateProgramWithBinary = refuse_program;
    memcpy(kept, bytes, count);
    if (count >= sizeof head && kept[count - 1] % 8 != 0) { /* seven of eight are let through */
        memcpy(head, kept, sizeof head);
        head[KEPT_MARK] = KEPT_MARK_1;
        head[KEPT_BYTES] = count;
        head[KEPT_KEY] = key;
        memcpy(kept, head, sizeof head);
        head[KEPT_SUM] = sum_of_kept(kept, count);
        memcpy(kept, head, sizeof head);
    }
    kept_begin = kept;
    kept_end = kept + count;
    programs_taken = 0;
    status = take_programs(&gpu, kept, count);
    CHECK((status == ATTN_OK) == (strcmp(gpu.info.binaries_why, "ok") == 0), "status %d: '%s'",
          (int)status, gpu.info.binaries_why);
    CHECK(status == ATTN_OK || programs_taken == 0, "programs of refused bytes");
}
