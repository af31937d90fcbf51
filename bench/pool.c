/* pool.c - threads for p.parallel_for.
 * SPDX-License-Identifier: MIT
 *
 * Workers sleep between calls. One lock guards everything: taking an index costs about 0.1
 * microseconds, and an index is at least some hundred. */
#if defined __unix__ || defined __APPLE__
#define _POSIX_C_SOURCE 200809L
#define POOL_THREADS 1
#endif
#include "pool.h"

#include <stdlib.h>

#ifdef POOL_THREADS
#include <pthread.h>

typedef struct pool_worker {
    pool *owner;
    int number;
    pthread_t thread;
} pool_worker;

struct pool {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    int num_workers, started, busy, stop;
    unsigned long round; /* counts the calls of pool_parallel_for */
    int64_t next, n;
    attn_task_fn task;
    void *arg;
    pool_worker *workers; /* [1 .. num_workers-1] are threads; the caller is worker 0 */
};

/* Runs indices until none is left. The lock is held on entry and on return. */
static void take_indices(pool *p, int worker)
{
    while (p->next < p->n) {
        const int64_t index = p->next++;
        pthread_mutex_unlock(&p->lock);
        p->task(p->arg, index, worker);
        pthread_mutex_lock(&p->lock);
    }
}

static void *worker_main(void *argument)
{
    pool_worker *const self = argument;
    pool *const p = self->owner;
    unsigned long seen = 0;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->stop && p->round == seen) pthread_cond_wait(&p->work, &p->lock);
        if (p->stop) break;
        seen = p->round;
        take_indices(p, self->number);
        if (--p->busy == 0) pthread_cond_signal(&p->done);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

pool *pool_create(int n)
{
    pool *p = calloc(1, sizeof *p);
    if (!p) return NULL;
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
        if (pthread_create(&w->thread, NULL, worker_main, w)) break;
    }
    if (p->started == n && p->workers) return p;
    pool_destroy(p);
    return NULL;
}

void pool_destroy(pool *p)
{
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->stop = 1;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int i = 1; p->workers && i < p->started; i++) pthread_join(p->workers[i].thread, NULL);
    pthread_cond_destroy(&p->done);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    free(p->workers);
    free(p);
}

int pool_parallel_for(void *user, int64_t n, attn_task_fn task, void *arg)
{
    pool *const p = user;
    pthread_mutex_lock(&p->lock);
    p->task = task;
    p->arg = arg;
    p->next = 0;
    p->n = n;
    p->busy = p->num_workers - 1;
    p->round++;
    pthread_cond_broadcast(&p->work);
    take_indices(p, 0);
    while (p->busy > 0) pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
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

void pool_destroy(pool *p)
{
    free(p);
}

int pool_parallel_for(void *user, int64_t n, attn_task_fn task, void *arg)
{
    (void)user;
    for (int64_t i = 0; i < n; i++) task(arg, i, 0);
    return 0;
}
#endif
