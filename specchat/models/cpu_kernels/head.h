/* The head: logits, the highest of them, and what log-probabilities lack. */

#pragma once

#include "best.h"
#include "check.h"
#include "logsumexp.h"

/* What is asked of the head, and where it goes; NULL where it is not asked for. */
typedef struct {
    int32_t *tokens; /* (rows, apart), of which `named` are written: those with the highest logits, the highest first, */
    int32_t named, apart; /* of equals the one with the lower number */
    float *highest;  /* (rows, apart): their logits */
    float *logits;   /* (rows, vocab_size) */
    float *logsumexp;   /* (rows): the logarithm of the sum of the exponentials of all; only with logits */
} HeadAsked;

typedef struct {
    Multiply multiply; /* nothing is written where it has no room for logits */
    Best *best;        /* (threads, rows) */
} Head;

static void head_blocks(void *job, int from, int to, int thread) {
    const Head *head = job;
    const Multiply *m = &head->multiply;
    Best *best = head->best + (size_t)thread * (size_t)m->rows;
    for (int block = from; block < to; block++) {
        int at = block * LANES, valid = m->width - at;
        for (int first = 0, count; first < m->rows; first += count) {
            count = rows_at_once(m->rows - first);
            float logits[MOST_ROWS][LANES] __attribute__((aligned(64)));
            some_blocks(m->products, block, 1, m->x, first / TILE, count, &logits);
            for (int r = 0; r < count; r++) {
                float *to = m->out ? m->out + (size_t)(first + r) * (size_t)m->width + at : NULL;
                for (int i = 0; i < LANES; i += REGISTER) {
                    if (to) store_lanes(to + i, load(logits[r] + i), valid - i);
                    consider(&best[first + r], load(logits[r] + i), at + i, valid - i);
                }
            }
        }
    }
}

/* Whether as many tokens were named as there are: a row with a logit that is not a number never is. */
static bool all_named(const HeadAsked *asked, int rows, int vocab_size) {
    int last = (vocab_size < asked->named ? vocab_size : asked->named) - 1;
    for (int row = 0; row < rows; row++)
        if (asked->tokens[(size_t)row * (size_t)asked->apart + (size_t)last] == INT32_MAX) return false;
    return true;
}

static int asked_of_head_check(const HeadAsked *asked) {
    if (asked->tokens == NULL) return refuse("no room for the likeliest tokens");
    if (in_range("likeliest tokens", asked->named, 1, BEST)) return REFUSED;
    if (in_range("room for likeliest tokens", asked->apart, asked->named, BEST)) return REFUSED;
    return asked->logsumexp && asked->logits == NULL ? refuse("sums of logits that are not asked for") : DONE;
}

/* Write what all threads together found likeliest in a row. */
static void name_likeliest(const Head *head, int threads, int row, const HeadAsked *asked) {
    size_t at = (size_t)row * (size_t)asked->apart, size = (size_t)asked->named * sizeof(int32_t);
    Best *best = &head->best[row];
    for (int i = 1; i < threads; i++) join(best, &head->best[i * head->multiply.rows + row]);
    memcpy(asked->tokens + at, best->token, size);
    if (asked->highest) memcpy(asked->highest + at, best->score, size);
}

/* Bytes of the best tokens that each thread found, and of the sums. */
static size_t head_lists(const Team *team, int rows) {
    return up_to_64((size_t)team->threads * (size_t)rows * sizeof(Best));
}

static size_t head_sums(const Decoder *decoder, int rows) {
    return up_to_64((size_t)rows * (size_t)stretches_of(decoder->head.out) * sizeof(float));
}

/* Final norm and head of (rows, hidden): what is asked of them. An Outcome: NOT_NUMBERS where a logit is not a number, because
 * weights or what was read are damaged. */
int decoder_head(Team *team, const Decoder *decoder, const float *hidden, int rows, const HeadAsked *asked) {
    if (head_check(decoder, rows) || asked_of_head_check(asked)) return REFUSED;
    Rows few = {.rows = rows};
    Pass p = {.team = team, .decoder = decoder, .rows = &few};
    size_t bytes;
    lay_out(&p, NULL, &bytes);
    size_t lists = head_lists(team, rows);
    char *memory = aligned_alloc(64, bytes + lists + head_sums(decoder, rows));
    if (memory == NULL) return NO_MEMORY;
    lay_out(&p, memory, &bytes);
    Head head = {.multiply = {&decoder->head, 1, rows, &p.x, asked->logits, decoder->head.out, false},
                 .best = (Best *)(memory + bytes)};
    for (int i = 0; i < team->threads * rows; i++) begin(&head.best[i], asked->named);
    round_rows(team, hidden, decoder->norm, decoder->epsilon, rows, decoder->hidden, &p.x);
    together(team, HEAD, head_blocks, &head, blocks_of(&decoder->head), 4);
    for (int row = 0; row < rows; row++) name_likeliest(&head, team->threads, row, asked);
    if (asked->logsumexp) {
        LogSumExp t = {asked->logits, decoder->head.out, NULL, head.best->score, sizeof(Best) / sizeof(float),
                    (float *)(memory + bytes + lists)};
        find_logsumexp(team, &t, rows, asked->logsumexp);
    }
    bool finite = all_named(asked, rows, decoder->vocab_size);
    free(memory);
    return finite ? DONE : NOT_NUMBERS;
}
