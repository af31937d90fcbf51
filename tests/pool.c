/* pool.c - the parallel_for of pool.h.
 * SPDX-License-Identifier: MIT
 */
#include "pool.h"
#include "system.h"

#include <string.h>

const int pool_has_threads = HAVE_THREADS;

/* The loop that runs. */
static struct {
    int64_t n, next;
    int64_t index[POOL_MAX_ITEMS];     /* in the order in which they are handed out */
    unsigned char ran[POOL_MAX_ITEMS]; /* how often each index has run */
    attn_task_fn task;
    void *arg;
} loop;

static void run_index(int64_t index, int worker)
{
    loop.ran[index]++;
    loop.task(loop.arg, index, worker);
}

#if HAVE_THREADS

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t started = PTHREAD_COND_INITIALIZER;
static int waiting; /* threads that have not yet come to the start */

typedef struct thread {
    int worker;
    pthread_t id;
} thread;

/* The next index, or -1. The first call of each thread waits for the others: work overlaps. */
static int64_t take(int is_first)
{
    int64_t at;
    pthread_mutex_lock(&lock);
    if (is_first && --waiting == 0)
        pthread_cond_broadcast(&started);
    while (waiting > 0)
        pthread_cond_wait(&started, &lock);
    at = loop.next < loop.n ? loop.index[loop.next++] : -1;
    pthread_mutex_unlock(&lock);
    return at;
}

static void *work(void *of)
{
    const thread *t = of;
    for (int64_t i = take(1); i >= 0; i = take(0))
        run_index(i, t->worker);
    return NULL;
}

static int run_threads(int workers)
{
    thread threads[POOL_MAX_WORKERS];
    int count = 0, failed = 0;
    waiting = workers;
    for (; count < workers && !failed; count += !failed) {
        threads[count].worker = count;
        failed = pthread_create(&threads[count].id, NULL, work, &threads[count]) != 0;
    }
    if (failed) { /* let those that run come to an end */
        pthread_mutex_lock(&lock);
        waiting = 0;
        loop.next = loop.n;
        pthread_cond_broadcast(&started);
        pthread_mutex_unlock(&lock);
    }
    for (int i = 0; i < count; i++)
        pthread_join(threads[i].id, NULL);
    return failed;
}

#else

static int run_threads(int workers)
{
    (void)workers;
    return 1;
}

#endif

/* The caller as every worker in turn, in steps that have nothing to do with the index. */
static void run_alone(int workers)
{
    for (; loop.next < loop.n; loop.next++)
        run_index(loop.index[loop.next], (int)((loop.next * 5 + 2) % workers));
}

static void put_in_order(int order)
{
    for (int64_t i = 0; i < loop.n; i++)
        loop.index[i] = order == POOL_DESCENDING ? loop.n - 1 - i : i;
    for (int64_t i = loop.n - 1; order == POOL_SHUFFLED && i > 0; i--) {
        const int64_t j = rng_int(0, i), keep = loop.index[i];
        loop.index[i] = loop.index[j];
        loop.index[j] = keep;
    }
}

pool pool_of(int workers, int order, int threads)
{
    pool p = { 0 };
    p.workers = workers;
    p.order = order;
    p.threads = threads && pool_has_threads;
    p.fail_at = -1;
    return p;
}

int pool_for(void *user, int64_t n, attn_task_fn task, void *arg)
{
    pool *p = user;
    const int fails = p->loops++ == p->fail_at;
    int failed = 0, wrong = 0;
    if (n < 0 || n > POOL_MAX_ITEMS)
        return 1;
    loop.n = n, loop.next = 0, loop.task = task, loop.arg = arg;
    memset(loop.ran, 0, (size_t)n);
    put_in_order(p->order);
    if (fails)
        loop.n = n * p->fail_percent / 100;
    if (p->threads)
        failed = run_threads(p->workers);
    else
        run_alone(p->workers);
    for (int64_t i = 0; i < loop.n; i++)
        wrong |= loop.ran[loop.index[i]] != 1;
    p->wrong += wrong;
    p->items += loop.n;
    return failed || fails;
}
