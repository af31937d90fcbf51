/* src/opencl/pool.c - device memory that calls leave for later ones.
 * SPDX-License-Identifier: MIT
 *
 * A driver finds memory for a buffer when a kernel first uses it. That takes NVIDIA's 80 us for each
 * (H100, driver 580), where a kernel whose buffers have memory takes 12 us from launch to end.
 * Any thread may take and give: whoever locks a slot has it alone.
 */
#pragma once

#include "programs.c"

/* With -DATTN_EXACT_MEMORY tools see a kernel that goes beyond the end of an array. */
#ifdef ATTN_EXACT_MEMORY
enum { LEAST_POOLED = 0 };
#else
enum { LEAST_POOLED = 4096 };
#endif

/* pooled_bytes rounds up to a power of two, so that calls of about one size share memory. */
static int64_t pooled_bytes(int64_t bytes)
{
    int64_t all = LEAST_POOLED;
    while (all && all < bytes)
        all *= 2;
    return all ? all : bytes;
}

/* is_pooled returns whether a call gives such memory to the pool: the whole pool is at most a
 * sixteenth of the device's memory. */
static int is_pooled(const attn_opencl *gpu, int64_t bytes)
{
    return bytes <= (int64_t)(gpu->info.memory_bytes / (16 * POOL_SLOTS));
}

/* lock_slot returns whether the slot was in this state and now belongs to the caller. */
static int lock_slot(pool_slot *slot, int state)
{
    return LOAD(&slot->state) == state && STORE_FIRST(&slot->state, &state, SLOT_LOCKED);
}

/* unlock_slot hands the slot on, with memory or NULL. Commands of `queue`, where not NULL, may still
 * use the memory. */
static void unlock_slot(pool_slot *slot, cl_handle memory, int64_t bytes, cl_handle queue)
{
    slot->memory = memory;
    slot->queue = queue;
    STORE(&slot->bytes, bytes);
    STORE(&slot->state, memory ? SLOT_FULL : SLOT_EMPTY);
}

/* take_pooled gives memory of just these bytes to commands of the queue, or NULL: there is none. */
static cl_handle take_pooled(attn_opencl *gpu, int64_t bytes, cl_handle queue)
{
    int i;
    for (i = 0; i < POOL_SLOTS; i++) {
        pool_slot *slot = &gpu->pool[i];
        const cl_handle memory = lock_slot(slot, SLOT_FULL) ? slot->memory : NULL;
        if (memory && slot->bytes == bytes && (!slot->queue || slot->queue == queue)) {
            release(gpu->cl.clReleaseCommandQueue, slot->queue);
            unlock_slot(slot, NULL, 0, NULL);
            return memory;
        }
        if (memory)
            unlock_slot(slot, memory, slot->bytes, slot->queue);
    }
    return NULL;
}

static void release_slot(attn_opencl *gpu, const pool_slot *slot)
{
    release(gpu->cl.clReleaseMemObject, slot->memory);
    release(gpu->cl.clReleaseCommandQueue, slot->queue);
}

/* give_pooled keeps the memory in an empty slot or in place of other memory. The queue, where not
 * NULL, is kept as well: otherwise another one could get its handle while its commands run. */
static void give_pooled(attn_opencl *gpu, cl_handle memory, int64_t bytes, cl_handle queue)
{
    const int turn = (int)((unsigned)COUNT_ONE(&gpu->pool_turn) % POOL_SLOTS);
    int i, locked = -1;
    for (i = 0; i < POOL_SLOTS && locked < 0; i++)
        if (lock_slot(&gpu->pool[i], SLOT_EMPTY))
            locked = i;
    if (locked < 0 && lock_slot(&gpu->pool[turn], SLOT_FULL))
        locked = turn;
    if (locked < 0) {
        release(gpu->cl.clReleaseMemObject, memory);
        return;
    }
    release_slot(gpu, &gpu->pool[locked]);
    if (queue)
        gpu->cl.clRetainCommandQueue(queue);
    unlock_slot(&gpu->pool[locked], memory, bytes, queue);
}

static size_t pool_bytes(const attn_opencl *gpu)
{
    int64_t bytes = 0;
    int i;
    for (i = 0; i < POOL_SLOTS; i++)
        bytes += LOAD(&gpu->pool[i].bytes);
    return (size_t)bytes;
}
