/* Threads that share out the pieces of a job, and sleep when there is none. */

#pragma once

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lanes.h"

/* A job is a number of consecutive pieces. Each thread has its own share of them and takes some at a time, towards the end
 * of a share fewer; a thread that has finished its share takes from the others'. Shares are the same from pass to pass, so
 * a thread finds what it wrote in its own cache. A thread that the system suspends delays the pass only by the pieces it
 * has taken: with the app drawing beside it a pass slows down, but does not stop. */

typedef void Work(void *job, int from, int to, int thread);

/* What the time of a pass goes into, as its first thread sees it. */
typedef enum { ROUNDING, PRODUCTS, ATTENTION, HEAD, WAITING, PHASES } Phase;

typedef struct {
    _Atomic uint64_t left; /* job's number (24 bits), next piece (20), end (20) */
    _Atomic int32_t done;
    char apart[48];
} __attribute__((aligned(64))) Share;

/* Memory that is read after the work at hand. Threads without work fetch it meanwhile. */
typedef struct { _Atomic(const uint8_t *) data; _Atomic int64_t bytes; } Soon;

enum { SOON = 8, FETCHED = 4096 };

typedef struct Team {
    Work *work;
    void *job;
    uint64_t few, most, number;
    int threads;
    Share *shares;
    _Atomic int32_t asleep;
    _Atomic bool quit;
    pthread_t *others;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    Soon soon[SOON];
    int soon_parts;
    _Atomic int64_t soon_at; /* how much of it was fetched; −1 where there is nothing to fetch */
    bool timed;
    double spent_s[PHASES];
} Team;

typedef struct { Team *team; int thread; } Member;

/* A thread without work spins, then lets others run who want to, and then sleeps: waking it takes as long as a step of a
 * small network, and between two passes there is less than a millisecond. */
enum { SPINS = 4000, YIELDS = 2000, PATIENCE = 400, MOST_PIECES = 1 << 20 };

static bool take_from(Team *team, int whose, int thread) {
    Share *share = &team->shares[whose];
    uint64_t left = atomic_load_explicit(&share->left, memory_order_acquire);
    for (;;) {
        uint64_t next = left >> 20 & (MOST_PIECES - 1), end = left & (MOST_PIECES - 1);
        if (next >= end) return false;
        uint64_t few = team->few, half = (end - next + 1) / 2, some = half < team->most ? half : team->most;
        uint64_t to = next + (some + few - 1) / few * few;
        if (to > end) to = end;
        if (atomic_compare_exchange_weak_explicit(&share->left, &left, left + ((to - next) << 20), memory_order_acq_rel,
                                                  memory_order_acquire)) {
            team->work(team->job, (int)next, (int)to, thread);
            atomic_fetch_add_explicit(&team->shares[thread].done, (int)(to - next), memory_order_release);
            return true;
        }
    }
}

static bool take(Team *team, int thread) {
    for (int i = 0; i < team->threads; i++)
        if (take_from(team, (thread + i) % team->threads, thread)) return true;
    return false;
}

static bool has_share(Team *team, int thread) {
    uint64_t left = atomic_load(&team->shares[thread].left);
    return (left >> 20 & (MOST_PIECES - 1)) < (left & (MOST_PIECES - 1));
}

/* Name memory that will be read after the pass that follows. */
static void read_soon(Team *team, const uint8_t *data, int64_t bytes) {
    if (team->soon_parts == SOON) return;
    for (int i = 0; team->soon_parts == 0 && i < SOON; i++) atomic_store(&team->soon[i].bytes, 0);
    atomic_store(&team->soon[team->soon_parts].data, data);
    atomic_store(&team->soon[team->soon_parts++].bytes, (bytes + FETCHED - 1) / FETCHED * FETCHED);
}

/* From now on that memory is fetched; once. */
static void begin_fetching(Team *team) {
    if (team->soon_parts) atomic_store(&team->soon_at, 0);
    team->soon_parts = 0;
}

static bool fetch_some(Team *team) {
    if (atomic_load_explicit(&team->soon_at, memory_order_relaxed) < 0) return false;
    int64_t at = atomic_fetch_add(&team->soon_at, FETCHED);
    for (int i = 0; i < SOON; i++) {
        int64_t bytes = atomic_load(&team->soon[i].bytes);
        if (at < bytes) {
            const uint8_t *data = atomic_load(&team->soon[i].data);
            for (int64_t end = at + FETCHED; at < end; at += 64) fetch(data + at);
            return true;
        }
        at -= bytes;
    }
    atomic_store(&team->soon_at, -1);
    return false;
}

static void *help(void *argument) {
    Member *self = argument;
    Team *team = self->team;
    int thread = self->thread;
    free(self);
    pthread_mutex_lock(&team->mutex); /* free once all are there, and counted */
    pthread_mutex_unlock(&team->mutex);
    int idle = 0;
    while (!atomic_load_explicit(&team->quit, memory_order_acquire)) {
        if (take(team, thread)) {
            idle = 0;
        } else if (fetch_some(team)) {
            idle = 0;
        } else if (++idle < SPINS) {
            rest();
        } else if (idle < SPINS + YIELDS) {
            sched_yield();
        } else {
            pthread_mutex_lock(&team->mutex);
            atomic_fetch_add(&team->asleep, 1);
            while (!atomic_load(&team->quit) && !has_share(team, thread)) pthread_cond_wait(&team->wake, &team->mutex);
            atomic_fetch_sub(&team->asleep, 1);
            pthread_mutex_unlock(&team->mutex);
            idle = 0;
        }
    }
    return NULL;
}

static void wake_all(Team *team) {
    pthread_mutex_lock(&team->mutex);
    pthread_cond_broadcast(&team->wake);
    pthread_mutex_unlock(&team->mutex);
}

static int done_of(const Team *team) {
    int done = 0;
    for (int i = 0; i < team->threads; i++)
        done += atomic_load_explicit(&team->shares[i].done, memory_order_acquire);
    return done;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void wait_for(const Team *team, int pieces) {
    for (int waited = 0; done_of(team) < pieces; waited++) {
        if (waited < PATIENCE) rest();
        else sched_yield();
    }
}

static void share_out(Team *team, Work *work, void *job, int pieces, int few) {
    int threads = team->threads;
    team->work = work;
    team->job = job;
    team->few = (uint64_t)few;
    team->most = (uint64_t)(pieces / (threads * 4)) + 1;
    team->number++;
    for (int i = 0; i < threads; i++) atomic_store_explicit(&team->shares[i].done, 0, memory_order_relaxed);
    for (int i = threads - 1; i >= 0; i--) {
        uint64_t from = (uint64_t)pieces * (uint64_t)i / (uint64_t)threads;
        uint64_t end = (uint64_t)pieces * (uint64_t)(i + 1) / (uint64_t)threads;
        atomic_store(&team->shares[i].left, team->number << 40 | from << 20 | end);
    }
    if (atomic_load(&team->asleep)) wake_all(team);
    while (take(team, 0)) {}
}

/* Do `pieces` of a job, a multiple of `few` at a time, but for the last of a share. */
static void together(Team *team, Phase phase, Work *work, void *job, int pieces, int few) {
    double began = team->timed ? seconds() : 0;
    bool alone = team->threads == 1 || pieces <= few;
    if (alone) work(job, 0, pieces, 0);
    else share_out(team, work, job, pieces, few);
    double worked = team->timed ? seconds() : 0;
    if (!alone) wait_for(team, pieces);
    if (!team->timed) return;
    team->spent_s[phase] += worked - began;
    team->spent_s[WAITING] += seconds() - worked;
}

/* Time what follows, or no longer; forget what was timed. */
void team_time(Team *team, bool timed) {
    team->timed = timed;
    memset(team->spent_s, 0, sizeof team->spent_s);
}

/* Seconds by phase since then; their number. */
int team_spent(const Team *team, double *seconds_of) {
    memcpy(seconds_of, team->spent_s, sizeof team->spent_s);
    return PHASES;
}

void team_free(Team *team) {
    if (team == NULL) return;
    atomic_store(&team->quit, true);
    wake_all(team);
    for (int i = 1; i < team->threads; i++) pthread_join(team->others[i - 1], NULL);
    pthread_mutex_destroy(&team->mutex);
    pthread_cond_destroy(&team->wake);
    free(team->others);
    free(team->shares);
    free(team);
}

enum { MOST_THREADS = 1024 };

/* NULL where there is no memory or the number makes no sense; fewer threads than asked for where the system gives fewer. */
Team *team_new(int threads) {
    Team *team = threads < 1 || threads > MOST_THREADS ? NULL : calloc(1, sizeof(Team));
    if (team == NULL) return NULL;
    team->others = calloc((size_t)threads, sizeof(pthread_t));
    team->shares = aligned_alloc(64, (size_t)threads * sizeof(Share));
    if (team->others == NULL || team->shares == NULL) {
        free(team->others);
        free(team->shares);
        free(team);
        return NULL;
    }
    memset(team->shares, 0, (size_t)threads * sizeof(Share));
    atomic_store(&team->soon_at, -1);
    pthread_mutex_init(&team->mutex, NULL);
    pthread_cond_init(&team->wake, NULL);
    pthread_mutex_lock(&team->mutex);
    for (team->threads = 1; team->threads < threads; team->threads++) {
        Member *member = malloc(sizeof(Member));
        if (member == NULL) break;
        *member = (Member){team, team->threads};
        if (pthread_create(&team->others[team->threads - 1], NULL, help, member)) {
            free(member);
            break;
        }
    }
    pthread_mutex_unlock(&team->mutex);
    return team;
}
