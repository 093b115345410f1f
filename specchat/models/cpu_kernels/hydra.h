/* A step of the sequential MLP that drafts (models/draft_heads/hydra.py), from what a level of a tree follows to what probably
 * comes after it. */

#pragma once

#include "head.h"
#include "hydra_search.h"

enum { MOST_TAPS = 64 };

/* The text's states made into one, and an MLP on that and a token. */
typedef struct {
    int32_t hidden, inner, taps;
    float epsilon;
    const float *mlp_norm; /* (hidden) */
    Product fuse, gate_up, down;
} StateMlp;

typedef struct {
    StateMlp mlp;
    Product back;
} Hydra;

static int state_mlp_check(const StateMlp *m) {
    if (in_range("hidden size", m->hidden, 1, MOST_WIDTH)) return REFUSED;
    if (in_range("MLP size", m->inner, 1, 4 * MOST_WIDTH)) return REFUSED;
    if (in_range("taps", m->taps, 1, MOST_TAPS)) return REFUSED;
    if (!(m->epsilon > 0 && m->epsilon < 1) || m->mlp_norm == NULL) return refuse("no norm, or no epsilon");
    if (product_check("fuse", &m->fuse, m->taps * m->hidden, m->hidden)) return REFUSED;
    if (product_check("gate and up", &m->gate_up, m->hidden, 2 * m->inner)) return REFUSED;
    return product_check("down", &m->down, m->inner, m->hidden);
}

/* Whether a network's sizes agree: asked once, when it is made. */
int hydra_check(const Hydra *h) {
    if (state_mlp_check(&h->mlp)) return REFUSED;
    return product_check("back", &h->back, h->mlp.hidden, h->mlp.hidden);
}

static int hydra_rows_check(const HydraTree *t, int rows) {
    bool text = t->parents[t->known] < 0;
    if (text && (rows != 1 || (t->features != NULL) + (t->fused != NULL) != 1)) return refuse("a level that follows no text, or two");
    for (int row = t->known; row < t->known + rows; row++) {
        int token = t->tokens[row];
        if (!text && in_range("a row's parent", t->parents[row], 0, t->known - 1)) return REFUSED;
        if (in_range("a row's token", token, 0, t->tokens_known - 1)) return REFUSED;
        if (in_range("a token's row", t->input_of[token], 0, t->input_rows - 1)) return REFUSED;
    }
    return DONE;
}

static int hydra_tree_check(const Decoder *head, const StateMlp *m, const HydraTree *t, int rows) {
    if (head->hidden != m->hidden) return refuse("a head for states of %d, not %d", head->hidden, m->hidden);
    if (in_range("room", t->room, 1, MOST_QUERIES) || in_range("rows known", t->known, 0, t->room)) return REFUSED;
    if (in_range("rows", rows, 1, t->room - t->known)) return REFUSED;
    if (t->names == NULL) return refuse("a head whose rows stand for no tokens");
    return hydra_rows_check(t, rows) ? REFUSED : head_check(head, t->room);
}

/* Rows at work: x holds what goes into the product that comes next. */
typedef struct {
    Team *team;
    const StateMlp *mlp;
    int rows;
    Rounded x;
    float *out, *inner, *normed;
} Stepping;

static void round_states(Stepping *p, const float *weight) {
    int d = p->mlp->hidden;
    for (int row = 0; row < p->rows; row++)
        norm_row(p->out + (size_t)row * (size_t)d, weight, d, p->mlp->epsilon, p->normed + (size_t)row * (size_t)d);
    round_all(p->normed, (size_t)d, p->rows, d, &p->x);
}

/* (rows, hidden) what the level follows, as the step takes it. */
static void follow(Stepping *p, const HydraTree *t, const Product *back) {
    const StateMlp *m = p->mlp;
    bool text = t->parents[t->known] < 0;
    int d = m->hidden, inputs = text ? m->taps * d : d;
    if (text && t->fused) {
        memcpy(p->out, t->fused, (size_t)d * sizeof(float));
        return;
    }
    for (int row = 0; row < p->rows; row++) {
        const float *from = text ? t->features : t->states + (size_t)t->parents[t->known + row] * (size_t)d;
        float *normed = p->normed + (size_t)row * (size_t)inputs;
        for (int at = 0; at < inputs; at += d, from += t->apart) norm_row(from, NULL, d, m->epsilon, normed + at);
    }
    round_all(p->normed, (size_t)inputs, p->rows, inputs, &p->x);
    multiply(p->team, text ? &m->fuse : back, 1, &p->x, p->rows, p->out, false);
}

/* Add what steps take of the level's tokens. */
static void add_tokens(Stepping *p, const HydraTree *t) {
    size_t d = (size_t)p->mlp->hidden;
    for (size_t row = 0; row < (size_t)p->rows; row++) {
        const float *token = t->inputs + (size_t)t->input_of[t->tokens[(size_t)t->known + row]] * d;
        for (size_t i = 0; i < d; i++) p->out[row * d + i] += token[i];
    }
}

static void add_mlp(Stepping *p) {
    const StateMlp *m = p->mlp;
    round_states(p, m->mlp_norm);
    multiply(p->team, &m->gate_up, 1, &p->x, p->rows, p->inner, false);
    for (int row = 0; row < p->rows; row++) {
        float *gate = p->inner + (size_t)row * 2 * (size_t)m->inner, *up = gate + m->inner;
        for (int i = 0; i < m->inner; i += REGISTER) {
            int valid = m->inner - i;
            store_lanes(gate + i, silu(load_lanes(gate + i, valid)) * load_lanes(up + i, valid), valid);
        }
    }
    round_all(p->inner, 2 * (size_t)m->inner, p->rows, m->inner, &p->x);
    multiply(p->team, &m->down, 1, &p->x, p->rows, p->out, true);
}

/* What decoder_head says of places and logits, said of tokens and log-probabilities. */
static void name(const HydraTree *t, int rows, int named) {
    for (int row = t->known; row < t->known + rows; row++)
        for (int i = row * BEST; i < row * BEST + named; i++) {
            t->best[i] = (int32_t)t->names[t->best[i]];
            t->logprobs[i] -= t->logsumexp[row];
        }
}

/* Memory for `rows` rows at work; NULL where there is none. */
static char *room_to_step(Stepping *p, size_t rows) {
    size_t d = (size_t)p->mlp->hidden, inner = (size_t)p->mlp->inner, taps = (size_t)p->mlp->taps, bytes = 0;
    size_t widest = taps * d > inner ? taps * d : inner;
    size_t tiles = (rows + TILE - 1) / TILE * TILE, groups = (widest + GROUP - 1) / GROUP;
    char *memory = NULL;
    for (int laid = 0; laid < 2; laid++) {
        if (laid && (memory = aligned_alloc(64, bytes)) == NULL) return NULL;
        bytes = 0;
        p->x = rounded_part(memory, &bytes, tiles, groups);
        p->inner = part(memory, &bytes, rows * 2 * inner * sizeof(float));
        p->normed = part(memory, &bytes, rows * widest * sizeof(float));
    }
    return memory;
}

/* The next rows of a tree: their states, and so many tokens that follow each. */
static int read_rows(Team *team, const Decoder *head, const Hydra *hydra, HydraTree *t, int count, int named) {
    size_t first = (size_t)t->known;
    Stepping p = {.team = team, .mlp = &hydra->mlp, .rows = count, .out = t->states + first * (size_t)hydra->mlp.hidden};
    char *memory = room_to_step(&p, (size_t)count);
    if (memory == NULL) return NO_MEMORY;
    follow(&p, t, &hydra->back);
    add_tokens(&p, t);
    add_mlp(&p);
    HeadAsked asked = {t->best + first * BEST, named, BEST, t->logprobs + first * BEST,
                       t->logits + first * (size_t)head->vocab_size, t->logsumexp + first};
    int outcome = decoder_head(team, head, p.out, count, &asked);
    if (outcome == DONE) {
        name(t, count, named < head->vocab_size ? named : head->vocab_size);
        t->known += count;
    }
    free(memory);
    return outcome;
}

/* Have what the network reads fetched again while the target's next pass goes on. */
static void read_again_soon(Team *team, const Decoder *head, const Hydra *hydra) {
    const Product *again[] = {&hydra->mlp.fuse, &hydra->back, &hydra->mlp.gate_up, &hydra->mlp.down, &head->head};
    for (size_t i = 0; i < sizeof again / sizeof *again; i++) read_soon(team, again[i]->data, again[i]->bytes);
}

/* Read the next `rows` rows of a tree, all of which follow the text or rows that were read; and, with a search, those
 * below them that it wants. An Outcome. */
int hydra_read(Team *team, const Decoder *head, const Hydra *hydra, HydraTree *tree, int rows, const Search *search) {
    if (hydra_tree_check(head, &hydra->mlp, tree, rows)) return REFUSED;
    if (search && (in_range("rows of a search", rows, 1, 1) || search_check(search))) return REFUSED;
    int outcome = read_rows(team, head, hydra, tree, rows, BEST);
    if (search == NULL || outcome) return outcome;
    read_again_soon(team, head, hydra);
    Found found;
    outcome = begin_search(&found, tree, search, tree->known - rows) ? DONE : NO_MEMORY;
    while (outcome == DONE && (rows = next_level(&found, tree, search, head->vocab_size)) > 0)
        outcome = read_rows(team, head, hydra, tree, rows, BEST);
    end_search(&found);
    return outcome;
}

/* A network that a search of several drafters reads with. */
typedef struct {
    Team *team;
    const Decoder *head;
    const Hydra *hydra;
    HydraTree *tree;
} HydraReader;

enum { MISSING_INPUT = 3, NO_ROOM = 4, SEARCHED_WIDTH = 64 };

/* `ReadRows` of indexes/native/growing_tree.h. */
int hydra_read_rows(const HydraReader *reader, int count, const int32_t *behind, const int32_t *tokens, int width,
                    int32_t *said, float *logprobs, float *logsumexp) {
    HydraTree *t = reader->tree;
    int first = t->known, vocab_size = reader->head->vocab_size, named = width < vocab_size ? width : vocab_size;
    if (in_range("room", t->room, 1, MOST_QUERIES) || in_range("rows known", first, 0, t->room)) return REFUSED;
    if (in_range("rows", count, 1, MOST_QUERIES)) return REFUSED;
    if (count > t->room - first) return NO_ROOM;
    for (int i = 0; i < count; i++) {
        if (in_range("a row's token", tokens[i], 0, MOST_TOKENS - 1)) return REFUSED;
        if (tokens[i] >= t->tokens_known || t->input_of[tokens[i]] < 0) {
            said[0] = tokens[i];
            return MISSING_INPUT;
        }
        t->parents[first + i] = behind[i];
        t->tokens[first + i] = tokens[i];
    }
    if (hydra_tree_check(reader->head, &reader->hydra->mlp, t, count)) return REFUSED;
    int outcome = read_rows(reader->team, reader->head, reader->hydra, t, count, width);
    if (outcome) return outcome;
    if (first == 0) read_again_soon(reader->team, reader->head, reader->hydra);
    memcpy(logsumexp, t->logsumexp + first, (size_t)count * sizeof *logsumexp);
    for (int i = 0; i < count; i++)
        for (int at = 0; at < width; at++) {
            said[i * SEARCHED_WIDTH + at] = at < named ? t->best[(first + i) * BEST + at] : -1;
            logprobs[i * SEARCHED_WIDTH + at] = at < named ? t->logprobs[(first + i) * BEST + at] : 0;
        }
    return DONE;
}
