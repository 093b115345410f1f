/* The head: logits, the highest of them, and what log-probabilities lack. */

#pragma once

#include "best.h"
#include "check.h"
#include "totals.h"

/* What is asked of the head, and where it goes; NULL where it is not asked for. */
typedef struct {
    int32_t *tokens; /* (rows, named): those with the highest logits, the highest first, of equals the one with the lower number */
    int32_t named;   /* 1 or BEST */
    float *highest;  /* (rows, named): their logits */
    float *logits;   /* (rows, vocab_size) */
    float *totals;   /* (rows): the logarithm of the sum of the exponentials of all; only with logits */
} HeadAsked;

typedef struct {
    Multiply multiply; /* nothing is written where it has no room for logits */
    Best *best;        /* (threads, list); NULL where the first of each row is enough */
    First *first;      /* likewise, where it is */
    size_t list;       /* rows, or more, so that no two threads write to one line */
} Head;

static inline void note(const Head *head, size_t row, size_t listed, vf logits, int at, int valid) {
    const Multiply *m = &head->multiply;
    if (m->out) store_lanes(m->out + row * (size_t)m->width + at, logits, valid);
    if (head->best) consider(&head->best[listed], logits, at, valid);
    else consider_for_first(&head->first[listed], logits, at, valid);
}

static void head_blocks(void *job, int from, int to, int thread) {
    const Head *head = job;
    const Multiply *m = &head->multiply;
    for (int block = from; block < to; block++) {
        int at = block * LANES, valid = m->width - at;
        for (int first = 0; first < m->rows; first += TILE) {
            int count = m->rows - first < TILE ? m->rows - first : TILE;
            float logits[TILE][LANES] __attribute__((aligned(64)));
            block_of(m->products, block, m->x, first / TILE, count, logits);
            for (int r = 0; r < count; r++) {
                size_t row = (size_t)(first + r), listed = (size_t)thread * head->list + row;
                for (int i = 0; i < LANES; i += REGISTER) note(head, row, listed, load(logits[r] + i), at + i, valid - i);
            }
        }
    }
}

/* Whether as many tokens were named as there are: one with a logit that is no number never is. */
static bool all_named(const HeadAsked *asked, int rows, int vocab_size) {
    int last = (vocab_size < asked->named ? vocab_size : asked->named) - 1;
    for (int row = 0; row < rows; row++)
        if (asked->tokens[(size_t)row * (size_t)asked->named + (size_t)last] == INT32_MAX) return false;
    return true;
}

static int asked_of_head_check(const HeadAsked *asked) {
    if (asked->tokens == NULL || (asked->named != 1 && asked->named != BEST)) return refuse("%d likeliest tokens", asked->named);
    return asked->totals && asked->logits == NULL ? refuse("sums of logits that are not asked for") : DONE;
}

/* Begin lists of what is likeliest in so much memory. */
static void begin_lists(Head *head, int threads, char *memory, int named) {
    size_t rows = (size_t)head->multiply.rows, line = 64 / sizeof(First);
    if (named == BEST) head->best = (Best *)memory;
    else head->first = (First *)memory;
    head->list = head->best ? rows : (rows + line - 1) / line * line;
    for (size_t i = 0; i < (size_t)threads * head->list; i++)
        if (head->best) begin(&head->best[i]);
        else head->first[i] = (First){-INFINITY, INT32_MAX};
}

/* Write what all threads together found likeliest in a row. */
static void name_likeliest(const Head *head, size_t threads, size_t row, const HeadAsked *asked) {
    size_t at = row * (size_t)asked->named, size = (size_t)asked->named * sizeof(int32_t), end = threads * head->list;
    const int32_t *tokens;
    const float *scores;
    if (head->best) {
        Best *best = &head->best[row];
        for (size_t other = row + head->list; other < end; other += head->list) join(best, &head->best[other]);
        tokens = best->token, scores = best->score;
    } else {
        First *first = &head->first[row];
        for (size_t other = row + head->list; other < end; other += head->list) join_first(first, head->first[other]);
        tokens = &first->token, scores = &first->score;
    }
    memcpy(asked->tokens + at, tokens, size);
    if (asked->highest) memcpy(asked->highest + at, scores, size);
}

/* Bytes of the best tokens that each thread found, and of the sums. */
static size_t head_lists(const Team *team, int rows) {
    return up_to_64((size_t)team->threads * (size_t)rows * sizeof(Best));
}

static size_t head_sums(const Decoder *decoder, int rows) {
    return up_to_64((size_t)rows * (size_t)stretches_of(decoder->head.out) * sizeof(float));
}

/* Final norm and head of (rows, hidden): what is asked of them. An Outcome: logits that are no numbers are refused. */
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
    Head head = {.multiply = {&decoder->head, 1, rows, &p.x, asked->logits, decoder->head.out, false}};
    begin_lists(&head, team->threads, memory + bytes, asked->named);
    round_rows(team, hidden, decoder->norm, decoder->epsilon, rows, decoder->hidden, &p.x);
    together(team, HEAD, head_blocks, &head, blocks_of(&decoder->head), 4);
    for (int row = 0; row < rows; row++) name_likeliest(&head, (size_t)team->threads, (size_t)row, asked);
    if (asked->totals) {
        size_t step = (head.best ? sizeof(Best) : sizeof(First)) / sizeof(float);
        const float *tops = head.best ? head.best->score : &head.first->score;
        Totals t = {asked->logits, decoder->head.out, NULL, tops, step, (float *)(memory + bytes + lists)};
        find_totals(team, &t, rows, asked->totals);
    }
    bool finite = all_named(asked, rows, decoder->vocab_size);
    free(memory);
    return finite ? DONE : refuse("logits that are no numbers: weights or what was read are damaged");
}
