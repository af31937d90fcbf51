/* pool.c - threads for p.parallel_for.
 * SPDX-License-Identifier: MIT
 *
 * Between calls a worker first spins, so that the lists of one call and calls in a row begin at
 * once, and sleeps only then. The caller waits for those who have joined: a worker that wakes too
 * late finds the call closed. Two threads, two CPUs, medians in microseconds: two empty tasks take
 * 0.06 (22 when all slept at once and the caller waited for all), two tasks of 10 take 10.2 (33);
 * after 200 without a call, when the worker sleeps, 6.6 and 24 (27 and 37). */
#if defined __unix__ || defined __APPLE__ || defined __MINGW32__
#define _POSIX_C_SOURCE 200809L
#define POOL_THREADS 1
#endif
#include "machine.h"

#include <stdlib.h>

#ifdef POOL_THREADS
#include <pthread.h>
#include <sched.h>

#include "../clock.h"

#define SPIN_SECONDS 50e-6
enum { PAUSES = 64 }; /* between two looks at the clock */

typedef struct pool_worker {
    pool *owner;
    int number;
    pthread_t thread;
} pool_worker;

struct pool {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    int num_workers, started, stop;
    unsigned round;  /* counts the calls; read without the lock, too */
    int open;        /* whether a worker may join the call */
    unsigned active; /* workers that have; read without the lock, too */
    int asleep;      /* workers in wait for `work` */
    int waiting;     /* whether the caller is in wait for `done` */
    int64_t next, n;
    attn_task_fn task;
    void *arg;
    pool_worker *workers; /* [1 .. num_workers-1] are threads; the caller is worker 0 */
    pool *other;          /* of another size: a list; see pool_of */
};

/* ---- by compiler: the next index; a number that others read without the lock; a short wait */

#if defined __GNUC__ && __GCC_ATOMIC_LLONG_LOCK_FREE == 2
#if defined __x86_64__ || defined __i386__
#define PAUSE() __builtin_ia32_pause()
#elif defined __aarch64__
#define PAUSE() __asm__ volatile("yield")
#else
#define PAUSE() (void)0
#endif

static int64_t next_index(pool *p)
{
    return __atomic_fetch_add(&p->next, 1, __ATOMIC_RELAXED);
}

static void set(unsigned *at, unsigned value)
{
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
}

/* Until *at is value (equal 1) or is not (equal 0): 1; or SPIN_SECONDS: 0. With more threads than
 * CPUs the one that is waited for may need this CPU. */
static int spin(const unsigned *at, unsigned value, int equal)
{
    const double start = clock_seconds();
    do {
        for (int i = 0; i < PAUSES; i++) {
            if ((__atomic_load_n(at, __ATOMIC_ACQUIRE) == value) == equal)
                return 1;
            PAUSE();
        }
        sched_yield();
    } while (clock_seconds() - start < SPIN_SECONDS);
    return 0;
}

#else /* the lock for each index, and no spinning */

static int64_t next_index(pool *p)
{
    pthread_mutex_lock(&p->lock);
    const int64_t index = p->next++;
    pthread_mutex_unlock(&p->lock);
    return index;
}

static void set(unsigned *at, unsigned value)
{
    *at = value;
}

static int spin(const unsigned *at, unsigned value, int equal)
{
    (void)at, (void)value, (void)equal;
    return 0;
}
#endif

/* ---- the pool */

static void run_indices(pool *p, int worker)
{
    int64_t index;
    while ((index = next_index(p)) < p->n)
        p->task(p->arg, index, worker);
}

/* Waits for a call after `seen`, joins it if it is still open; 1 = joined. Leaves with the lock. */
static int join_call(pool *p, unsigned seen)
{
    spin(&p->round, seen, 0);
    pthread_mutex_lock(&p->lock);
    p->asleep++;
    while (p->round == seen)
        pthread_cond_wait(&p->work, &p->lock);
    p->asleep--;
    if (p->open)
        set(&p->active, p->active + 1);
    return p->open;
}

static void leave_call(pool *p)
{
    pthread_mutex_lock(&p->lock);
    set(&p->active, p->active - 1);
    if (p->active == 0 && p->waiting)
        pthread_cond_signal(&p->done);
    pthread_mutex_unlock(&p->lock);
}

static void *worker_main(void *argument)
{
    pool_worker *const self = argument;
    pool *const p = self->owner;
    unsigned seen = 0;
    int stop = 0;
    while (!stop) {
        const int joined = join_call(p, seen);
        seen = p->round;
        stop = p->stop;
        pthread_mutex_unlock(&p->lock);
        if (!joined)
            continue;
        run_indices(p, self->number);
        leave_call(p);
    }
    return NULL;
}

/* A call of n indices, or, with n 0, none: the workers look at p->stop then. */
static void begin_call(pool *p, int64_t n, attn_task_fn task, void *arg)
{
    pthread_mutex_lock(&p->lock);
    p->task = task;
    p->arg = arg;
    p->next = 0;
    p->n = n;
    p->open = n > 0;
    p->stop = n == 0;
    set(&p->round, p->round + 1);
    const int asleep = p->asleep;
    pthread_mutex_unlock(&p->lock);
    if (asleep)
        pthread_cond_broadcast(&p->work);
}

/* Lets nobody join any more and waits for those who have. */
static void end_call(pool *p)
{
    pthread_mutex_lock(&p->lock);
    const unsigned active = p->active;
    p->open = 0;
    pthread_mutex_unlock(&p->lock);
    if (!active || spin(&p->active, 0, 1))
        return;
    pthread_mutex_lock(&p->lock);
    p->waiting = 1;
    while (p->active)
        pthread_cond_wait(&p->done, &p->lock);
    p->waiting = 0;
    pthread_mutex_unlock(&p->lock);
}

pool *pool_create(int n)
{
    pool *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->num_workers = n;
    p->started = 1;
    p->workers = calloc((size_t)n, sizeof *p->workers);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->done, NULL);
    for (; p->workers && p->started < n; p->started++) {
        pool_worker *const w = &p->workers[p->started];
        w->owner = p;
        w->number = p->started;
        if (pthread_create(&w->thread, NULL, worker_main, w))
            break;
    }
    if (p->started == n && p->workers)
        return p;
    pool_destroy(p);
    return NULL;
}

pool *pool_of(pool *p, int n)
{
    if (!p || p->num_workers == n)
        return p;
    if (!p->other)
        p->other = pool_create(n);
    return pool_of(p->other, n);
}

void pool_destroy(pool *p)
{
    if (!p)
        return;
    pool_destroy(p->other);
    begin_call(p, 0, NULL, NULL);
    for (int i = 1; p->workers && i < p->started; i++)
        pthread_join(p->workers[i].thread, NULL);
    pthread_cond_destroy(&p->done);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    free(p->workers);
    free(p);
}

int pool_parallel_for(void *user, int64_t n, attn_task_fn task, void *arg)
{
    pool *const p = user;
    if (n < 2) {
        if (n == 1)
            task(arg, 0, 0);
        return 0;
    }
    begin_call(p, n, task, arg);
    run_indices(p, 0);
    end_call(p);
    return 0;
}

#else /* no threads here: a pool of one */

struct pool {
    int unused;
};

pool *pool_create(int n)
{
    return n == 1 ? calloc(1, sizeof(pool)) : NULL;
}

pool *pool_of(pool *p, int n)
{
    return n == 1 ? p : NULL;
}

void pool_destroy(pool *p)
{
    free(p);
}

int pool_parallel_for(void *user, int64_t n, attn_task_fn task, void *arg)
{
    (void)user;
    for (int64_t i = 0; i < n; i++)
        task(arg, i, 0);
    return 0;
}
#endif
