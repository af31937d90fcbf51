/* spy.h - a kernel set as seen by a test or the bench: every kernel of the copy counts its calls and
 * tells what it is called with before it calls the set's own.
 * SPDX-License-Identifier: MIT
 *
 * One set is spied on at a time by each file that includes this, and only while one thread calls.
 */
#ifndef SPY_H
#define SPY_H

#include "../attn_simd.h"

#include <string.h>

/* SPY_qk, SPY_pv, ... */
#define SPY_NUMBER(result, name, parameters, arguments) SPY_##name,
enum { ATTN_KERNELS(SPY_NUMBER) SPY_KERNELS };

static struct {
    const attn_kernels *set;
    int64_t calls[SPY_KERNELS];
    /* Either may be NULL. first: the kernel's first argument, a pointer; the kernel gets what
     * `before` returns instead. */
    void *(*before)(int kernel, void *first);
    void (*after)(int kernel, void *first);
} spy;

static inline void *spy_before(int kernel, const void *first)
{
    void *const given = (void *)(uintptr_t)first;
    spy.calls[kernel]++;
    return spy.before ? spy.before(kernel, given) : given;
}

static inline void spy_after(int kernel, const void *first)
{
    if (spy.after)
        spy.after(kernel, (void *)(uintptr_t)first);
}

#define SPY_FIRST_(first, ...) first
#define SPY_FIRST(...) SPY_FIRST_(__VA_ARGS__, 0)
#define SPY_void(call) call
#define SPY_int(call) const int returned = call
#define SPY_RETURN_void
#define SPY_RETURN_int return returned;
#define SPY_KERNEL(result, name, parameters, arguments)                                            \
    static result spy_##name parameters                                                            \
    {                                                                                              \
        SPY_FIRST arguments = spy_before(SPY_##name, SPY_FIRST arguments);                         \
        SPY_##result(spy.set->name arguments);                                                     \
        spy_after(SPY_##name, SPY_FIRST arguments);                                                \
        SPY_RETURN_##result                                                                        \
    }
ATTN_KERNELS(SPY_KERNEL)

/* The copy of the set; nothing is counted yet. */
#define SPY_PLACE(result, kernel, parameters, arguments)                                           \
    if (copy.kernel)                                                                               \
        copy.kernel = spy_##kernel;
static attn_kernels spy_on(const attn_kernels *set, void *(*before)(int kernel, void *first))
{
    attn_kernels copy = *set;
    memset(&spy, 0, sizeof spy);
    spy.set = set;
    spy.before = before;
    ATTN_KERNELS(SPY_PLACE)
    return copy;
}

#endif
