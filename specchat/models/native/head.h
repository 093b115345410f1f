/* The head: logits, the highest of them, and what log-probabilities lack. */

#pragma once

#include "best.h"
#include "check.h"
#include "totals.h"

typedef struct {
    Multiply multiply;
    Best *best; /* (threads, rows) */
} Head;

static void head_blocks(void *job, int from, int to, int thread) {
    const Head *head = job;
    const Multiply *m = &head->multiply;
    Best *best = head->best + (size_t)thread * (size_t)m->rows;
    for (int block = from; block < to; block++) {
        int at = block * LANES, valid = m->width - at;
        for (int first = 0; first < m->rows; first += TILE) {
            int count = m->rows - first < TILE ? m->rows - first : TILE;
            float logits[TILE][LANES] __attribute__((aligned(64)));
            block_of(m->products, block, m->x, first / TILE, count, logits);
            for (int r = 0; r < count; r++) {
                float *to = m->out + (size_t)(first + r) * (size_t)m->width + at;
                for (int i = 0; i < LANES; i += REGISTER) {
                    store_lanes(to + i, load(logits[r] + i), valid - i);
                    consider(&best[first + r], load(logits[r] + i), at + i, valid - i);
                }
            }
        }
    }
}

/* Whether as many tokens were named as there are: one with a logit that is no number never is. */
static bool all_named(const int32_t *tokens, int rows, int vocab_size) {
    int last = (vocab_size < BEST ? vocab_size : BEST) - 1;
    for (int row = 0; row < rows; row++)
        if (tokens[(size_t)row * BEST + (size_t)last] == INT32_MAX) return false;
    return true;
}

/* Bytes of the best tokens that each thread found, and of the sums. */
static size_t head_lists(const Team *team, int rows) {
    return up_to_64((size_t)team->threads * (size_t)rows * sizeof(Best));
}

static size_t head_sums(const Decoder *decoder, int rows) {
    return up_to_64((size_t)rows * (size_t)stretches_of(decoder->head.out) * sizeof(float));
}

/* Final norm and head: (rows, hidden) → (rows, vocab_size); of each row the BEST tokens with the highest logits, (rows,
 * BEST), the highest first, of equals the one with the lower number; and, unless NULL, those logits, (rows, BEST), and the
 * logarithm of the sum of the exponentials of all, (rows). An Outcome: logits that are no numbers are refused. */
int decoder_head(Team *team, const Decoder *decoder, const float *hidden, int rows, float *logits, int32_t *tokens,
                 float *highest, float *totals) {
    if (head_check(decoder, rows)) return REFUSED;
    Rows few = {.rows = rows};
    Pass p = {.team = team, .decoder = decoder, .rows = &few};
    size_t bytes;
    lay_out(&p, NULL, &bytes);
    size_t lists = head_lists(team, rows);
    char *memory = aligned_alloc(64, bytes + lists + head_sums(decoder, rows));
    if (memory == NULL) return NO_MEMORY;
    lay_out(&p, memory, &bytes);
    Head head = {.multiply = {&decoder->head, 1, rows, &p.x, logits, decoder->head.out, false},
                 .best = (Best *)(memory + bytes)};
    for (int i = 0; i < team->threads * rows; i++) begin(&head.best[i]);
    round_rows(team, hidden, decoder->norm, decoder->epsilon, rows, decoder->hidden, &p.x);
    together(team, HEAD, head_blocks, &head, blocks_of(&decoder->head), 4);
    for (int row = 0; row < rows; row++) {
        for (int i = 1; i < team->threads; i++) join(&head.best[row], &head.best[i * rows + row]);
        memcpy(tokens + (size_t)row * BEST, head.best[row].token, sizeof head.best[row].token);
        if (highest) memcpy(highest + (size_t)row * BEST, head.best[row].score, sizeof head.best[row].score);
    }
    if (totals) {
        Totals t = {logits, decoder->head.out, NULL, head.best->score, sizeof(Best) / sizeof(float), (float *)(memory + bytes + lists)};
        find_totals(team, &t, rows, totals);
    }
    bool finite = all_named(tokens, rows, decoder->vocab_size);
    free(memory);
    return finite ? DONE : refuse("logits that are no numbers: weights or what was read are damaged");
}
