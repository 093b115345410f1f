/* Heads that guess all depths of a tree at once, and scores of pairs of neighbouring tokens that say which of their guesses
 * go together (models/draft_heads/selector.py). */

#pragma once

#include "hydra.h"

enum { MOST_HEADS = 64 };

typedef struct {
    StateMlp mlp;
    int32_t heads, rank;
    int32_t candidates; /* the likeliest tokens of a depth whose pairs are scored */
    const float *mix;   /* (rank, rank) */
    Product blocks, gates;
} Selector;

/* A tree while it is read. The rows of `heads` are depths, the first of them the root's, and its states have one more: what
 * the heads begin with. The tree's own rows are tokens of these depths. */
typedef struct {
    HydraTree heads;
    int32_t room, known;    /* rows that there is room for, rows that were read */
    int32_t *depths;        /* (room) */
    float *rows;            /* (room, rank), what candidates are scored with behind the token of a row */
    float *gates;           /* (heads, rank), what the heads add to the rows of their depths */
    const float *pairs;     /* (pair_rows, 2 · rank), what tokens are scored with as the first and as the second of a pair */
    int32_t pair_rows;
    const int32_t *pair_of; /* (tokens_known of `heads`), a token's row in it, −1 where it has none */
} SelectorTree;

/* Whether a network's sizes agree: asked once, when it is made. */
int selector_check(const Selector *s) {
    if (state_mlp_check(&s->mlp)) return REFUSED;
    if (in_range("heads", s->heads, 1, MOST_HEADS) || in_range("rank", s->rank, 1, MOST_RANK)) return REFUSED;
    if (in_range("candidates", s->candidates, 1, BEST)) return REFUSED;
    if (s->mix == NULL) return refuse("no matrix between rows");
    if (product_check("gates", &s->gates, s->mlp.hidden, s->heads * s->rank)) return REFUSED;
    return product_check("blocks", &s->blocks, s->mlp.hidden, s->heads * s->mlp.hidden);
}

/* The states of all depths, and the candidates of each. */
static int read_heads(Team *team, const Decoder *head, const Selector *s, SelectorTree *tree) {
    HydraTree *t = &tree->heads;
    size_t d = (size_t)s->mlp.hidden;
    float *entry = t->states + (size_t)s->heads * d;
    Stepping p = {.team = team, .mlp = &s->mlp, .rows = 1, .out = entry};
    char *memory = room_to_step(&p, 1);
    if (memory == NULL) return NO_MEMORY;
    follow(&p, t, NULL);
    add_tokens(&p, t);
    add_mlp(&p);
    round_states(&p, NULL);
    multiply(team, &s->blocks, 1, &p.x, 1, t->states, false);
    multiply(team, &s->gates, 1, &p.x, 1, tree->gates, false);
    free(memory);
    for (float *state = t->states; state < entry; state += d)
        for (size_t i = 0; i < d; i += REGISTER) {
            int valid = (int)(d - i);
            store_lanes(state + i, load_lanes(entry + i, valid) + silu(load_lanes(state + i, valid)), valid);
        }
    HeadAsked asked = {t->best, s->candidates, BEST, t->logprobs, t->logits, t->logsumexp};
    int outcome = decoder_head(team, head, t->states, s->heads, &asked);
    for (int depth = 0; outcome == DONE && depth < s->heads; depth++)
        for (int i = depth * BEST; i < depth * BEST + s->candidates && i < depth * BEST + head->vocab_size; i++)
            t->best[i] = (int32_t)t->names[t->best[i]];
    return outcome;
}

/* The sum of exp(x + more) over `count` numbers. */
static float sum_of_exponentials(const float *x, int count, float more) {
    vf sum[PARTS] = {{0}};
    for (int i = 0; i < count; i += REGISTER) {
        vf some = load_lanes(x + i, count - i) + more;
        if (count - i < REGISTER) some = either(first_lanes(count - i), some, all(-INFINITY));
        sum[0] += exponential(some);
    }
    return sum_of(sum);
}

/* What candidates are scored with behind a token: of the token, the row before it and the depth's state. Nothing behind the
 * root, which the heads know. */
static void make_row(const Selector *s, const SelectorTree *t, int depth, int behind, int token, float *row) {
    size_t rank = (size_t)s->rank;
    if (depth == 0) {
        memset(row, 0, rank * sizeof *row);
        return;
    }
    const float *first = t->pairs + (size_t)t->pair_of[token] * 2 * rank, *before = t->rows + (size_t)behind * rank;
    for (size_t i = 0; i < rank; i++) row[i] = dot(s->mix + i * rank, before, s->rank);
    for (int i = 0; i < s->rank; i += REGISTER) {
        int valid = s->rank - i;
        vf gate = load_lanes(t->gates + (size_t)depth * rank + i, valid);
        store_lanes(row + i, silu(gate + load_lanes(first + i, valid) + load_lanes(row + i, valid)), valid);
    }
}

/* What follows a token of a depth: up to `width` of the depth's candidates in the order of logit and score together. Tokens
 * that are no candidates keep their mass. */
static void name_together(const Selector *s, const SelectorTree *t, int depth, const float *row, int count, int width,
                          int32_t *said, float *logprobs, float *logsumexp) {
    const int32_t *best = t->heads.best + depth * BEST;
    const float *logits = t->heads.logprobs + depth * BEST;
    float total = t->heads.logsumexp[depth], sums[BEST], highest = total;
    for (int i = 0; i < count; i++) {
        const float *second = t->pairs + (size_t)t->pair_of[best[i]] * 2 * (size_t)s->rank + s->rank;
        sums[i] = logits[i] + dot(row, second, s->rank);
        highest = fmaxf(highest, sums[i]);
    }
    float others = fmaxf(1.0f - sum_of_exponentials(logits, count, -total), 0.0f) * expf(total - highest);
    *logsumexp = highest + logf(fmaxf(others + sum_of_exponentials(sums, count, -highest), 1e-9f));
    int order[BEST], kept = 0;
    for (int i = 0; i < count; i++) {
        int at = kept < width ? kept++ : width;
        for (; at && sums[order[at - 1]] < sums[i]; at--)
            if (at < width) order[at] = order[at - 1];
        if (at < width) order[at] = i;
    }
    for (int i = 0; i < kept; i++) {
        said[i] = best[order[i]];
        logprobs[i] = sums[order[i]] - *logsumexp;
    }
}

/* What a search, or Python, reads with. */
typedef struct {
    Team *team;
    const Decoder *head;
    const Selector *selector;
    SelectorTree *tree;
} SelectorReader;

/* Begin a tree below this token. */
static int read_root(const SelectorReader *reader, int token) {
    HydraTree *heads = &reader->tree->heads;
    const Selector *s = reader->selector;
    heads->known = 0;
    heads->parents[0] = -1;
    heads->tokens[0] = token;
    if (in_range("room for depths", heads->room, s->heads + 1, MOST_QUERIES)) return REFUSED;
    if (hydra_tree_check(reader->head, &s->mlp, heads, 1)) return REFUSED;
    int outcome = read_heads(reader->team, reader->head, s, reader->tree);
    if (outcome) return outcome;
    const Product *again[] = {&s->mlp.fuse, &s->mlp.gate_up, &s->mlp.down, &s->blocks, &s->gates, &reader->head->head};
    for (size_t i = 0; i < sizeof again / sizeof *again; i++) read_soon(reader->team, again[i]->data, again[i]->bytes);
    return DONE;
}

/* DONE if tokens have a row for their pairs; else what is wrong, with the first that has none in `missing`. */
static int pairs_known(const SelectorTree *t, const int32_t *tokens, int count, int32_t *missing) {
    for (int i = 0; i < count; i++) {
        if (in_range("a row's token", tokens[i], 0, t->heads.tokens_known - 1)) return REFUSED;
        int row = t->pair_of[tokens[i]];
        if (row >= t->pair_rows) return refuse("a token's row of pairs is %d of %d", row, t->pair_rows);
        if (row >= 0) continue;
        *missing = tokens[i];
        return MISSING_INPUT;
    }
    return DONE;
}

/* `ReadRows` of indexes/native/growing_tree.h. */
int selector_read_rows(const SelectorReader *reader, int count, const int32_t *behind, const int32_t *tokens, int width,
                       int32_t *said, float *logprobs, float *logsumexp) {
    const Selector *s = reader->selector;
    SelectorTree *t = reader->tree;
    int candidates = s->candidates < reader->head->vocab_size ? s->candidates : reader->head->vocab_size;
    if (in_range("rows", count, 1, MOST_QUERIES) || in_range("likeliest tokens", width, 1, SEARCHED_WIDTH)) return REFUSED;
    if (behind[0] < 0) {
        if (in_range("a row's token", tokens[0], 0, t->heads.tokens_known - 1)) return REFUSED;
        if (t->heads.input_of[tokens[0]] < 0) {
            said[0] = tokens[0];
            return MISSING_INPUT;
        }
        t->known = 0;
        int outcome = read_root(reader, tokens[0]);
        if (outcome) return outcome;
    }
    if (in_range("rows known", t->known, 0, t->room)) return REFUSED;
    if (count > t->room - t->known) return NO_ROOM;
    for (int i = 0; i < count; i++) {
        if (in_range("a row's parent", behind[i], t->known ? 0 : -1, t->known - 1)) return REFUSED;
        int depth = behind[i] < 0 ? 0 : t->depths[behind[i]] + 1;
        int named = depth < s->heads ? candidates : 0, outcome = DONE;
        if (depth && named) outcome = pairs_known(t, tokens + i, 1, said);
        if (depth && named && outcome == DONE) outcome = pairs_known(t, t->heads.best + depth * BEST, named, said);
        if (outcome) return outcome;
        t->depths[t->known + i] = depth;
    }
    for (int i = 0; i < count; i++) {
        int depth = t->depths[t->known + i];
        float *row = t->rows + (size_t)(t->known + i) * (size_t)s->rank;
        if (depth < s->heads) make_row(s, t, depth, behind[i], tokens[i], row);
        int32_t *here = said + i * SEARCHED_WIDTH;
        float *theirs = logprobs + i * SEARCHED_WIDTH;
        for (int at = 0; at < width; at++) here[at] = -1;
        logsumexp[i] = depth < s->heads ? t->heads.logsumexp[depth] : 0;
        if (depth == 0)
            for (int at = 0; at < width && at < candidates; at++) {
                here[at] = t->heads.best[at];
                theirs[at] = t->heads.logprobs[at] - logsumexp[i];
            }
        else if (depth < s->heads)
            name_together(s, t, depth, row, candidates, width, here, theirs, logsumexp + i);
    }
    t->known += count;
    return DONE;
}
