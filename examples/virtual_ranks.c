/* virtual_ranks.c - see virtual_ranks.h.
 * SPDX-License-Identifier: MIT
 */
#define _POSIX_C_SOURCE 200112L
#include "virtual_ranks.h"

#include <string.h>

#if defined __unix__ || defined __APPLE__ || defined __MINGW32__
#include <pthread.h>
#include <time.h>
#define HAVE_THREADS 1
#else
#define HAVE_THREADS 0
typedef int pthread_mutex_t;
typedef int pthread_cond_t;
#define pthread_mutex_init(mutex, attributes) (*(mutex) = 0)
#define pthread_mutex_destroy(mutex) ((void)(mutex))
#define pthread_mutex_lock(mutex) ((void)(mutex))
#define pthread_mutex_unlock(mutex) ((void)(mutex))
#define pthread_cond_init(condition, attributes) (*(condition) = 0)
#define pthread_cond_destroy(condition) ((void)(condition))
#define pthread_cond_broadcast(condition) ((void)(condition))
#define pthread_cond_wait(condition, mutex) ((void)(condition))
#endif

struct group;

/* A rank, and the message that it offers to the next one. */
typedef struct rank {
    struct group *group;
    attn_transport transport;
    const void *send;
    void *receive;
    size_t send_bytes, receive_bytes;
    int offered; /* nonzero: send holds a message that the next rank has not taken */
} rank;

typedef struct group {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int size, broken;     /* broken: a rank did not start, so nobody waits any more */
    int waiting, highest; /* the agreement in progress */
    int agreed, round;    /* the last agreement; how many there were */
    void (*body)(void *arg, const attn_transport *transport);
    void *arg;
    rank ranks[VIRTUAL_RANKS_MAX];
} group;

static int agree(void *user, int value)
{
    group *g = ((rank *)user)->group;
    int round, agreed;
    pthread_mutex_lock(&g->lock);
    round = g->round;
    if (g->waiting == 0 || value > g->highest)
        g->highest = value;
    if (++g->waiting == g->size) {
        g->agreed = g->highest;
        g->waiting = 0;
        g->round++;
        pthread_cond_broadcast(&g->changed);
    }
    while (g->round == round && !g->broken)
        pthread_cond_wait(&g->changed, &g->lock);
    agreed = g->broken ? -1 : g->agreed;
    pthread_mutex_unlock(&g->lock);
    return agreed;
}

static int begin(void *user, const void *send, size_t send_bytes, void *receive,
                 size_t receive_bytes)
{
    rank *r = user;
    int busy;
    pthread_mutex_lock(&r->group->lock);
    busy = r->offered; /* its exchange has neither ended nor been given up */
    r->send = send;
    r->send_bytes = send_bytes;
    r->receive = receive;
    r->receive_bytes = receive_bytes;
    r->offered = 1;
    pthread_cond_broadcast(&r->group->changed);
    pthread_mutex_unlock(&r->group->lock);
    return busy;
}

/* All ranks have agreed, so all have begun, and the messages will come. */
static int end(void *user)
{
    rank *r = user;
    group *g = r->group;
    rank *from = &g->ranks[(r->transport.rank + g->size - 1) % g->size];
    int fits;
    pthread_mutex_lock(&g->lock);
    while (!from->offered)
        pthread_cond_wait(&g->changed, &g->lock);
    fits = from->send_bytes == r->receive_bytes;
    pthread_mutex_unlock(&g->lock);
    if (fits && r->receive_bytes > 0) /* the message stays where it is until it is taken */
        memcpy(r->receive, from->send, r->receive_bytes);
    pthread_mutex_lock(&g->lock);
    from->offered = 0;
    pthread_cond_broadcast(&g->changed);
    while (r->offered)
        pthread_cond_wait(&g->changed, &g->lock);
    pthread_mutex_unlock(&g->lock);
    return !fits;
}

static void cancel(void *user)
{
    rank *r = user;
    pthread_mutex_lock(&r->group->lock);
    r->offered = 0;
    pthread_mutex_unlock(&r->group->lock);
}

#if HAVE_THREADS
static double seconds(void *user)
{
    struct timespec now;
    (void)user;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}
#endif

static void open_group(group *g, int size)
{
    int i;
    memset(g, 0, sizeof *g);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->changed, NULL);
    g->size = size;
    for (i = 0; i < size; i++) {
        attn_transport *t = &g->ranks[i].transport;
        g->ranks[i].group = g;
        t->size = size;
        t->rank = i;
        t->user = &g->ranks[i];
        t->agree = agree;
        t->begin = begin;
        t->end = end;
        t->cancel = cancel;
#if HAVE_THREADS
        t->seconds = seconds;
#endif
    }
}

static void *run_rank(void *of)
{
    rank *r = of;
    r->group->body(r->group->arg, &r->transport);
    return NULL;
}

#if HAVE_THREADS

int virtual_ranks_most(void)
{
    return VIRTUAL_RANKS_MAX;
}

/* Runs ranks from 1 on in threads of their own, and rank 0 in this one. */
static int run_ranks(group *g)
{
    pthread_t threads[VIRTUAL_RANKS_MAX];
    int count = 1, failed = 0, i;
    while (count < g->size && !failed) {
        failed = pthread_create(&threads[count], NULL, run_rank, &g->ranks[count]) != 0;
        count += !failed;
    }
    if (failed) {
        pthread_mutex_lock(&g->lock);
        g->broken = 1;
        pthread_cond_broadcast(&g->changed);
        pthread_mutex_unlock(&g->lock);
    } else {
        run_rank(&g->ranks[0]);
    }
    for (i = 1; i < count; i++)
        pthread_join(threads[i], NULL);
    return failed;
}

#else

int virtual_ranks_most(void)
{
    return 1;
}

static int run_ranks(group *g)
{
    run_rank(&g->ranks[0]);
    return 0;
}

#endif

int virtual_ranks_run(int size, void (*body)(void *arg, const attn_transport *transport), void *arg)
{
    group g;
    int failed;
    if (size < 1 || size > virtual_ranks_most())
        return 1;
    open_group(&g, size);
    g.body = body;
    g.arg = arg;
    failed = run_ranks(&g);
    pthread_cond_destroy(&g.changed);
    pthread_mutex_destroy(&g.lock);
    return failed;
}
