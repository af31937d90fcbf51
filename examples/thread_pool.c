/* thread_pool.c - several CPUs by a custom thread pool: a prompt, then token by token.
 * SPDX-License-Identifier: MIT
 *
 *     cc -O2 examples/thread_pool.c attn.c -lpthread -o thread_pool && ./thread_pool
 *
 * The pool is started once and hands out indices until none is left. One workspace, sized for the
 * prompt, serves every call, and the result has the same bits as with one thread.
 *
 * attn_forward calls run_loop up to five times, sometimes for little work. Threads that sleep
 * between calls, as these do, cost some microseconds each time; threads that spin do not. The work
 * items of a token are its kv heads, so two of the four workers rest here. From 2^19 elements of K
 * and V on (4096 keys of 64) the keys are divided among all workers. */
#define _POSIX_C_SOURCE 200112L
#include "../attn.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORKERS = 4, HEADS = 8, HEADS_KV = 2, DIM = 64, PROMPT = 300, TOKENS = 3 };

typedef struct pool {
    pthread_mutex_t lock;
    pthread_cond_t begin, end;
    attn_task_fn task;
    void *arg;
    int64_t next, n;
    unsigned loop; /* number of the current loop, by which sleepers know a new one */
    int busy, stop;
} pool;

typedef struct worker {
    pool *in;
    int number;
} worker;

/* Takes indices until none is left. The lock is held on entry and on return. */
static void take_part(pool *p, int number)
{
    while (p->next < p->n) {
        const int64_t index = p->next++;
        pthread_mutex_unlock(&p->lock);
        p->task(p->arg, index, number);
        pthread_mutex_lock(&p->lock);
    }
}

static void *work(void *arg)
{
    const worker *me = arg;
    pool *p = me->in;
    unsigned seen = 0;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (p->loop == seen && !p->stop) pthread_cond_wait(&p->begin, &p->lock);
        if (p->stop) break;
        seen = p->loop;
        p->busy++;
        take_part(p, me->number);
        if (--p->busy == 0) pthread_cond_signal(&p->end);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* An attn_parallel_for_fn: the calling thread is worker 0. */
static int run_loop(void *user, int64_t n, attn_task_fn task, void *arg)
{
    pool *p = user;
    pthread_mutex_lock(&p->lock);
    p->task = task, p->arg = arg, p->next = 0, p->n = n;
    p->loop++;
    pthread_cond_broadcast(&p->begin);
    take_part(p, 0);
    while (p->busy > 0) pthread_cond_wait(&p->end, &p->lock);
    pthread_mutex_unlock(&p->lock);
    return 0;
}

static float *numbers(int count)
{
    float *x = malloc((size_t)count * sizeof *x);
    for (int i = 0; x && i < count; i++) x[i] = (float)(i * 37 % 101 - 50) / 50.0f;
    return x;
}

/* Computes the prompt, then single tokens, into o. Returns 0 when a call failed. */
static int generate(attn_params p, float *q, float *o, void *workspace, size_t bytes)
{
    const int64_t row = HEADS * DIM;
    int64_t i;
    for (i = 0; i < PROMPT + TOKENS; i += p.seq_len_q) {
        p.seq_len_q = i == 0 ? PROMPT : 1;
        p.seq_len_kv = i + p.seq_len_q;
        p.q.data = q + i * row;
        p.o.data = o + i * row;
        if (attn_forward(&p, workspace, bytes) != ATTN_OK) return 0;
    }
    return 1;
}

int main(void)
{
    enum { LENGTH = PROMPT + TOKENS };
    enum { SIZE = LENGTH * HEADS * DIM, SIZE_KV = LENGTH * HEADS_KV * DIM };
    static pool threads;
    pthread_t ids[WORKERS];
    worker workers[WORKERS]; /* the first is the calling thread */
    float *q = numbers(SIZE), *k = numbers(SIZE_KV), *v = numbers(SIZE_KV);
    float *alone = numbers(SIZE), *together = numbers(SIZE);
    size_t bytes = 0;
    void *workspace;
    int n, right;
    attn_params p = {0};
    pthread_mutex_init(&threads.lock, NULL);
    pthread_cond_init(&threads.begin, NULL);
    pthread_cond_init(&threads.end, NULL);
    for (n = 1; n < WORKERS; n++) {
        workers[n].in = &threads, workers[n].number = n;
        if (pthread_create(&ids[n], NULL, work, &workers[n])) return 1;
    }

    p.batch = 1;
    p.num_heads_q = HEADS, p.num_heads_kv = HEADS_KV;
    p.seq_len_q = PROMPT, p.seq_len_kv = LENGTH;
    p.head_dim = DIM;
    p.causal = 1, p.alignment = ATTN_ALIGN_BOTTOM_RIGHT;
    p.layout = ATTN_LAYOUT_BSHD; /* [seq, head, dim], as layers give it */
    p.q.data = q, p.k.data = k, p.v.data = v, p.o.data = together;

    p.num_workers = WORKERS; /* before the size is asked for */
    p.parallel_for = run_loop;
    p.parallel_user = &threads;
    if (attn_workspace_size(&p, &bytes) != ATTN_OK) return 1;
    workspace = malloc(bytes);
    right = workspace && generate(p, q, together, workspace, bytes);

    p.parallel_for = NULL;
    p.num_workers = 1;
    right = right && generate(p, q, alone, workspace, bytes);
    right = right && memcmp(alone, together, SIZE * sizeof *alone) == 0;
    printf("a prompt of %d and %d tokens: %s\n", PROMPT, TOKENS,
           right ? "four workers and one give the same bits" : "failed");

    pthread_mutex_lock(&threads.lock);
    threads.stop = 1;
    pthread_cond_broadcast(&threads.begin);
    pthread_mutex_unlock(&threads.lock);
    for (n = 1; n < WORKERS; n++) pthread_join(ids[n], NULL);
    free(workspace), free(q), free(k), free(v), free(alone), free(together);
    return !right;
}
