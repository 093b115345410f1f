/* One token drawn from a row of logits: penalties, temperature, top-k, top-p, min-p, noise. core/sampling.py defines them. */

#include <float.h>

#include "noise.h"
#include "sampling.h"
#include "selection.h"

enum { BLOCK = 64, STRETCH = 16, SURELY = 64, REFUSED = -1 };

/* What penalties see of a text. */
typedef struct {
    const int64_t *tokens; /* (count) the different ones */
    int64_t count;
    const float *often; /* (known) how often the reply holds a token; −1 where not even the prompt does */
    int64_t known;
} Text;

/* What a draw works in. */
typedef struct {
    float *scores;  /* (whole blocks), logits after penalties over the temperature; −∞ behind the last */
    float *maxima;  /* (blocks) */
    float *near;    /* the scores that are looked at */
    float *weights; /* their exponentials, the highest being 1 */
    int32_t *token; /* whose they are, ascending */
    int width, blocks, looked_at;
    float top;
} Row;

static Row row_in(void *room, int width) {
    int blocks = (width + BLOCK - 1) / BLOCK;
    size_t wide = (size_t)blocks * BLOCK;
    float *at = room;
    return (Row){.scores = at, .near = at + wide, .weights = at + 2 * wide, .token = (int32_t *)(at + 3 * wide),
                 .maxima = at + 4 * wide, .width = width, .blocks = blocks};
}

/* Bytes of room for a draw from so many logits. */
int64_t draw_bytes(int width) {
    int64_t blocks = (width + BLOCK - 1) / BLOCK;
    return (4 * blocks * BLOCK + blocks) * (int64_t)sizeof(float);
}

/* Put the penalised score of a token that occurs so often in its place; whether it has a logit. */
static bool penalise(Row *row, const float *logits, float temperature, const Sampling *s, int64_t token, float often) {
    if (token < 0 || token >= row->width) return false;
    float logit = logits[token], repetition = (float)s->repetition;
    if (repetition != 1.0f) logit = logit > 0 ? logit / repetition : logit * repetition;
    if (often > 0) logit -= (float)s->presence + (float)s->frequency * often;
    row->scores[token] = logit / temperature;
    return true;
}

/* The same for all tokens of a text, and then, in their place, for those of a path behind it. */
static bool penalise_all(Row *row, const float *logits, float temperature, const Sampling *s, const Text *text,
                         const int64_t *path, int depth) {
    for (int64_t i = 0; i < text->count; i++) {
        int64_t token = text->tokens[i];
        float often = token >= 0 && token < text->known ? text->often[token] : 0;
        if (!penalise(row, logits, temperature, s, token, often)) return false;
    }
    for (int i = 0; i < depth; i++) {
        float often = path[i] >= 0 && path[i] < text->known && text->often[path[i]] > 0 ? text->often[path[i]] : 0;
        for (int j = 0; j < depth; j++) often += path[j] == path[i];
        if (!penalise(row, logits, temperature, s, path[i], often)) return false;
    }
    return true;
}

/* Fill in scores and their maxima; whether there is a highest that is a number. */
static bool score(Row *row, const float *logits, const Sampling *s, const Text *text, const int64_t *path, int depth) {
    float temperature = (float)s->temperature > 0 ? (float)s->temperature : 1.0f;
    int at = 0;
    for (; at + LANES <= row->width; at += LANES) store(row->scores + at, load(logits + at) / temperature);
    for (; at < row->width; at++) row->scores[at] = logits[at] / temperature;
    for (; at < row->blocks * BLOCK; at++) row->scores[at] = -INFINITY;
    if (!penalise_all(row, logits, temperature, s, text, path, depth)) return false;
    vi not_numbers = {0};
    row->top = -INFINITY;
    for (int block = 0; block < row->blocks; block++) {
        vf most = all(-INFINITY);
        for (int i = 0; i < BLOCK; i += LANES) {
            vf scores = load(row->scores + block * BLOCK + i);
            not_numbers |= scores != scores;
            most = larger(scores, most);
        }
        row->maxima[block] = max_of(most);
        if (row->maxima[block] > row->top) row->top = row->maxima[block];
    }
    return isfinite(row->top) && !any(not_numbers);
}

/* Look at the scores that are at least this high. */
static void look_at(Row *row, float least) {
    row->looked_at = 0;
    for (int block = 0; block < row->blocks; block++) {
        if (row->maxima[block] < least) continue;
        int end = (block + 1) * BLOCK < row->width ? (block + 1) * BLOCK : row->width;
        for (int token = block * BLOCK; token < end; token++) {
            row->near[row->looked_at] = row->scores[token];
            row->token[row->looked_at] = token;
            row->looked_at += row->scores[token] >= least;
        }
    }
}

/* The sum of the exponentials of all scores, the highest being 1. */
static double total_of(const Row *row) {
    double total = 0;
    for (int block = 0; block < row->blocks; block += STRETCH) {
        int end = (block + STRETCH < row->blocks ? block + STRETCH : row->blocks) * BLOCK;
        vf sum = {0};
        for (int i = block * BLOCK; i < end; i += LANES) sum += exponential(load(row->scores + i) - row->top);
        total += sum_of(sum);
    }
    return total;
}

/* The same of those that are looked at and not below `least`; the others weigh nothing. */
static double weigh(Row *row, float least) {
    double total = 0;
    int past = (row->looked_at + LANES - 1) / LANES * LANES;
    for (int i = row->looked_at; i < past; i++) row->near[i] = -INFINITY;
    for (int i = 0; i < past; i += LANES) store(row->weights + i, exponential(load(row->near + i) - row->top));
    for (int i = 0; i < row->looked_at; i++) {
        if (row->near[i] < least) row->weights[i] = 0;
        total += (double)row->weights[i];
    }
    return total;
}

/* The score with which a token survives; every token that does is looked at. */
static float least_score(Row *row, const Sampling *s) {
    float by_min_p = row->top + (float)s->log_min_p, by_top_k = -INFINITY, by_top_p = -INFINITY;
    int top_k = top_k_of(s, row->width);
    double total = 0;
    if (top_k) {
        /* So many blocks hold a score as high as this one, so many tokens do. */
        look_at(row, score_reaching(row->maxima, NULL, row->blocks, top_k));
        by_top_k = score_reaching(row->near, NULL, row->looked_at, top_k);
    } else if (s->top_p < 1) {
        /* Even if all tokens were as likely as this, they would not have the mass that top-p leaves out. */
        total = total_of(row);
        float surely = row->top + (float)log((1 - s->top_p) * total / row->width) - 0.01f;
        look_at(row, surely > by_min_p ? surely : by_min_p);
    } else {
        look_at(row, by_min_p);
    }
    if (s->top_p < 1) {
        double of_these = weigh(row, by_top_k), wanted = s->top_p * (top_k ? of_these : total);
        by_top_p = score_reaching(row->near, row->weights, row->looked_at, wanted > DBL_MIN ? wanted : DBL_MIN);
    }
    float least = by_min_p > by_top_k ? by_min_p : by_top_k;
    return least > by_top_p ? least : by_top_p;
}

/* The best so far, and how many bits of noise at least it takes to be better with a score of `most`: the noise of others
 * need not be computed. */
typedef struct {
    double score;
    int token;
    float most;
    uint64_t bits;
} Winner;

static void challenge(Winner *winner, float score, int token, uint64_t key) {
    if (noise_bits(key, (uint64_t)token) < winner->bits) return;
    double noisy = (double)score + gumbel(key, token);
    if (noisy <= winner->score) return;
    *winner = (Winner){noisy, token, winner->most, least_bits(noisy - (double)winner->most)};
}

/* The winner among those that are looked at and not below `least`. */
static Winner winner_near(const Row *row, float least, uint64_t key) {
    Winner winner = {-INFINITY, 0, row->top, 0};
    for (int i = 0; i < row->looked_at; i++)
        if (row->near[i] >= least) challenge(&winner, row->near[i], row->token[i], key);
    return winner;
}

/* The winner among all. Those that are not near need more noise than they nearly ever have. */
static int winner_of_all(Row *row, uint64_t key) {
    float least = score_reaching(row->maxima, NULL, row->blocks, row->blocks < SURELY ? row->blocks : SURELY);
    bool forbids_most = least == -INFINITY;
    if (forbids_most) least = -FLT_MAX;
    look_at(row, least);
    Winner winner = winner_near(row, least, key);
    if (forbids_most) return winner.token; /* all that may be drawn is near */
    winner.most = least;
    winner.bits = least_bits(winner.score - (double)least);
    for (int block = 0; block < row->blocks; block++) {
        uint64_t each[BLOCK], most = 0;
        for (int i = 0; i < BLOCK; i++) {
            each[i] = noise_bits(key, (uint64_t)(block * BLOCK + i));
            most = each[i] > most ? each[i] : most;
        }
        for (int i = 0; most >= winner.bits && i < BLOCK; i++) {
            int token = block * BLOCK + i;
            if (each[i] >= winner.bits && row->scores[token] < least) challenge(&winner, row->scores[token], token, key);
        }
    }
    return winner.token;
}

static int likeliest(const Row *row) {
    int token = 0;
    while (row->scores[token] != row->top) token++;
    return token;
}

/* The token drawn with a position's noise from (width) logits; REFUSED where a logit is not a number, or none is finite, or a
 * token that was seen has none. What penalties see are the text and the path of drafted tokens behind it. */
int draw(const Sampling *s, const float *logits, int width, const Text *text, const int64_t *path, int depth, uint64_t key,
         void *room) {
    Row row = row_in(room, width);
    if (!score(&row, logits, s, text, path, depth)) return REFUSED;
    if ((float)s->temperature == 0) return likeliest(&row);
    if (top_k_of(s, width) == 0 && s->top_p >= 1 && s->log_min_p == -INFINITY) return winner_of_all(&row, key);
    float least = least_score(&row, s);
    return winner_near(&row, least, key).token;
}
