/* The tree that a sequential MLP drafts, and which rows of it are read next. */

#pragma once

#include <math.h>

#include "best.h"
#include "check.h"

/* A tree while it is read, row by row: a row is a token behind the text (parent −1) or behind another row. */
typedef struct {
    int32_t room, known;     /* rows that there is room for, rows that were read */
    const float *features;   /* the target's states at the end of the text: those of each tap, `apart` numbers apart, */
    int64_t apart;
    const float *fused;      /* or (hidden) what was made of them */
    int32_t *parents;        /* (room) */
    int32_t *tokens;         /* (room) */
    float *states;           /* (room, hidden) */
    const float *inputs;     /* (input_rows, hidden), what steps take of tokens */
    int32_t input_rows;
    const int32_t *input_of; /* (tokens_known), a token's row in it, −1 where it has none */
    int32_t tokens_known;
    const int64_t *names;    /* (vocabulary of the head), the token that each of its rows stands for */
    float *logits;           /* (room, vocabulary of the head) */
    int32_t *best;           /* (room, BEST) the likeliest tokens, best first */
    float *logprobs;         /* (room, BEST) theirs */
    float *logsumexp;        /* (room) what was taken from logits to make them */
} HydraTree;

/* What the rows below are chosen by, without asking Python after each level: as the policy best_first does (trees/growth.py,
 * trees/growth.py). What is asked for otherwise is read later, and what is not asked for was read for nothing. */
typedef struct {
    int32_t nodes, depth, width, prices;
    const double *price; /* (prices), never falling; the last holds for all that follow */
} Search;

typedef struct { int32_t parent, token; double worth; } Place;

typedef struct {
    double *ranked; /* (nodes) the largest worths, the largest first */
    double *value;  /* (room) of each row: what a sure child of it would be worth */
    Place *places;  /* (room · width) of a level */
    int ranks, level, first; /* the row that the level begins with */
} Found;

static int search_check(const Search *s) {
    if (in_range("nodes", s->nodes, 1, MOST_QUERIES) || in_range("depth", s->depth, 1, MOST_QUERIES)) return REFUSED;
    if (in_range("width", s->width, 1, BEST) || in_range("prices", s->prices, 0, MOST_QUERIES)) return REFUSED;
    return s->prices && s->price == NULL ? refuse("no prices") : DONE;
}

static void end_search(Found *f) {
    free(f->ranked);
    free(f->value);
    free(f->places);
}

/* Below this row, which was read last. Whether there is memory. */
static bool begin_search(Found *f, const HydraTree *t, const Search *s, int row) {
    *f = (Found){.ranked = malloc((size_t)s->nodes * sizeof(double)), .value = malloc((size_t)t->room * sizeof(double)),
                 .places = malloc((size_t)t->room * (size_t)s->width * sizeof(Place)), .first = row};
    if (f->ranked == NULL || f->value == NULL || f->places == NULL) return false;
    f->value[row] = 1;
    return true;
}

/* Whether a place of this worth could be among the best and earn its row, if nothing better came any more. */
static bool pays(const Found *f, const Search *s, double worth) {
    int rank = 0;
    while (rank < f->ranks && f->ranked[rank] >= worth) rank++;
    return rank < s->nodes && (s->prices == 0 || worth >= s->price[rank < s->prices ? rank : s->prices - 1]);
}

static void take_rank(Found *f, const Search *s, double worth) {
    int at = f->ranks < s->nodes ? f->ranks++ : s->nodes - 1;
    for (; at > 0 && f->ranked[at - 1] < worth; at--) f->ranked[at] = f->ranked[at - 1];
    f->ranked[at] = worth;
}

/* Write down which rows are to be read below the level that was read last; how many. */
static int next_level(Found *f, HydraTree *t, const Search *s, int named) {
    int places = 0, rows = 0;
    for (int row = f->first; row < t->known; row++)
        for (int i = row * BEST; i < row * BEST + (s->width < named ? s->width : named); i++) {
            double worth = f->value[row] * fmin(1, exp((double)t->logprobs[i]));
            if (!pays(f, s, worth)) continue;
            take_rank(f, s, worth);
            f->places[places++] = (Place){row, t->best[i], worth};
        }
    f->first = t->known;
    if (++f->level >= s->depth) return 0;
    for (const Place *place = f->places; place < f->places + places && t->known + rows < t->room; place++) {
        bool has_input = place->token < t->tokens_known && t->input_of[place->token] >= 0;
        if (!has_input || !pays(f, s, place->worth)) continue;
        t->parents[t->known + rows] = place->parent;
        t->tokens[t->known + rows] = place->token;
        f->value[t->known + rows++] = place->worth;
    }
    return rows;
}
