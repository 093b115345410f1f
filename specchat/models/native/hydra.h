/* A step of the sequential MLP that drafts (models/learned/hydra.py), from what a level of a tree follows to what probably
 * comes after it. */

#pragma once

#include "head.h"

enum { MOST_TAPS = 64 };

typedef struct {
    int32_t hidden, inner, taps;
    float epsilon;
    const float *mlp_norm; /* (hidden) */
    Product fuse, back, gate_up, down;
} Hydra;

/* What a level follows is one of three: the target's states of a token, the same fused, or states of earlier steps. */
typedef struct {
    int32_t rows;
    const float *features;   /* (taps, hidden); one row */
    const float *fused;      /* (hidden); one row */
    const int32_t *parents;  /* (rows), which of the states each row follows */
    float *states;           /* (known + rows, hidden), the last rows written */
    int32_t known;
    const float *tokens;     /* (token_rows, hidden), what steps take of tokens */
    int32_t token_rows;
    const int32_t *token_of; /* (rows), the row of each row's token */
    const int64_t *names;    /* (vocabulary of the head), the token that each of its rows stands for */
    float *logits;           /* (rows, vocabulary of the head) */
    int32_t *best;           /* (rows, BEST) the likeliest tokens, best first */
    float *logprobs;         /* (rows, BEST) theirs */
} HydraStep;

/* Whether a network's sizes agree: asked once, when it is made. */
int hydra_check(const Hydra *h) {
    if (in_range("hidden size", h->hidden, 1, MOST_WIDTH)) return REFUSED;
    if (in_range("MLP size", h->inner, 1, 4 * MOST_WIDTH)) return REFUSED;
    if (in_range("taps", h->taps, 1, MOST_TAPS)) return REFUSED;
    if (!(h->epsilon > 0 && h->epsilon < 1) || h->mlp_norm == NULL) return refuse("no norm, or no epsilon");
    if (product_check("fuse", &h->fuse, h->taps * h->hidden, h->hidden)) return REFUSED;
    if (product_check("back", &h->back, h->hidden, h->hidden)) return REFUSED;
    if (product_check("gate and up", &h->gate_up, h->hidden, 2 * h->inner)) return REFUSED;
    return product_check("down", &h->down, h->inner, h->hidden);
}

static int hydra_step_check(const Decoder *head, const Hydra *h, const HydraStep *s) {
    bool follows = s->parents != NULL;
    if (head->hidden != h->hidden) return refuse("a head for states of %d, not %d", head->hidden, h->hidden);
    if (in_range("rows", s->rows, 1, follows ? MOST_QUERIES : 1)) return REFUSED;
    if ((s->features != NULL) + (s->fused != NULL) + follows != 1) return refuse("a level that follows nothing, or two things");
    for (int row = 0; row < s->rows; row++) {
        if (follows && in_range("a row's parent", s->parents[row], 0, s->known - 1)) return REFUSED;
        if (in_range("a row's token", s->token_of[row], 0, s->token_rows - 1)) return REFUSED;
    }
    if (s->names == NULL) return refuse("a head whose rows stand for no tokens");
    return head_check(head, s->rows);
}

/* Rows at work: x holds what goes into the product that comes next. */
typedef struct {
    Team *team;
    const Hydra *hydra;
    int rows;
    Rounded x;
    float *out, *inner, *normed;
} Stepping;

static void round_states(Stepping *p, const float *weight) {
    int d = p->hydra->hidden;
    p->x.groups = (d + GROUP - 1) / GROUP;
    for (int row = 0; row < p->rows; row++) {
        norm_row(p->out + (size_t)row * (size_t)d, weight, d, p->hydra->epsilon, p->normed);
        round_row(p->normed, d, &p->x, row);
    }
}

/* (rows, hidden) what the level follows, as the step takes it. */
static void follow(Stepping *p, const HydraStep *s) {
    const Hydra *h = p->hydra;
    int d = h->hidden, inputs = s->features ? h->taps * d : d;
    if (s->fused) {
        memcpy(p->out, s->fused, (size_t)d * sizeof(float));
        return;
    }
    p->x.groups = (inputs + GROUP - 1) / GROUP;
    for (int row = 0; row < s->rows; row++) {
        const float *from = s->features ? s->features : s->states + (size_t)s->parents[row] * (size_t)d;
        for (int at = 0; at < inputs; at += d) norm_row(from + at, NULL, d, h->epsilon, p->normed + at);
        round_row(p->normed, inputs, &p->x, row);
    }
    multiply(p->team, s->features ? &h->fuse : &h->back, 1, &p->x, s->rows, p->out, false);
}

static void add_mlp(Stepping *p) {
    const Hydra *h = p->hydra;
    round_states(p, h->mlp_norm);
    multiply(p->team, &h->gate_up, 1, &p->x, p->rows, p->inner, false);
    p->x.groups = (h->inner + GROUP - 1) / GROUP;
    for (int row = 0; row < p->rows; row++) {
        float *gate = p->inner + (size_t)row * 2 * (size_t)h->inner, *up = gate + h->inner;
        for (int i = 0; i < h->inner; i += LANES) {
            int valid = h->inner - i;
            store_lanes(gate + i, silu16(load_lanes(gate + i, valid)) * load_lanes(up + i, valid), valid);
        }
        round_row(gate, h->inner, &p->x, row);
    }
    multiply(p->team, &h->down, 1, &p->x, p->rows, p->out, true);
}

/* What decoder_head says of places and logits, said of tokens and log-probabilities. */
static void name(const HydraStep *s, int vocab_size, const float *totals) {
    int named = vocab_size < BEST ? vocab_size : BEST;
    for (int row = 0; row < s->rows; row++)
        for (int i = row * BEST; i < row * BEST + named; i++) {
            s->best[i] = (int32_t)s->names[s->best[i]];
            s->logprobs[i] -= totals[row];
        }
}

/* One level: its states, and what follows each row. An Outcome. */
int hydra_step(Team *team, const Decoder *head, const Hydra *hydra, const HydraStep *step) {
    if (hydra_step_check(head, hydra, step)) return REFUSED;
    size_t rows = (size_t)step->rows, d = (size_t)hydra->hidden, bytes = 0;
    size_t widest = (size_t)hydra->taps * d > (size_t)hydra->inner ? (size_t)hydra->taps * d : (size_t)hydra->inner;
    size_t tiles = (rows + TILE - 1) / TILE * TILE, groups = (widest + GROUP - 1) / GROUP;
    float *totals;
    Stepping p = {.team = team, .hydra = hydra, .rows = step->rows, .out = step->states + (size_t)step->known * d};
    char *memory = NULL;
    for (int laid = 0; laid < 2; laid++) {
        if (laid && (memory = aligned_alloc(64, bytes)) == NULL) return NO_MEMORY;
        bytes = 0;
        p.x = rounded_part(memory, &bytes, tiles, groups);
        p.inner = part(memory, &bytes, rows * 2 * (size_t)hydra->inner * sizeof(float));
        totals = part(memory, &bytes, rows * sizeof(float));
        p.normed = part(memory, &bytes, (widest + LANES) * sizeof(float));
    }
    follow(&p, step);
    for (size_t row = 0; row < rows; row++) {
        const float *token = step->tokens + (size_t)step->token_of[row] * d;
        for (size_t i = 0; i < d; i++) p.out[row * d + i] += token[i];
    }
    add_mlp(&p);
    int outcome = decoder_head(team, head, p.out, step->rows, step->logits, step->best, step->logprobs, totals);
    if (outcome == DONE) name(step, head->vocab_size, totals);
    free(memory);
    return outcome;
}
