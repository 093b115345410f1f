/* What the chat's sampling makes of a network's candidates, as drafters/point_guesses.py and drafters/point_guesses.py
 * compute it: after penalties, in the order in which they win with the target's own noise. */

#pragma once

#include "joined_guesses.h"
#include "noise.h"
#include "sampling.h"

static const double HOPELESS = 9.0; /* see point_guesses.py */

/* How the target samples behind a text. */
typedef struct {
    Sampling how;
    const float *often; /* (known) how often the reply holds a token; −1 where not even the prompt does */
    int64_t known;
    int64_t position; /* in the text, of the token that follows the root */
    uint64_t key;     /* of the target's noise: that of its stream */
} Sampled;

/* Whether a network's likeliest tokens are its guesses. */
static bool takes_likeliest(const Sampled *s) { return s->how.temperature == 0 && !s->how.penalised; }

/* The likeliest first, of equals the one that came first. */
static void sort(Said *said) {
    for (int32_t i = 1; i < said->count; i++) {
        int32_t token = said->tokens[i], at = i;
        double logprob = said->logprobs[i];
        for (; at && said->logprobs[at - 1] < logprob; at--) {
            said->tokens[at] = said->tokens[at - 1];
            said->logprobs[at] = said->logprobs[at - 1];
        }
        said->tokens[at] = token;
        said->logprobs[at] = logprob;
    }
}

static double penalised(const Sampling *s, double logit, double often) {
    if (s->repetition != 1) logit = logit > 0 ? logit / s->repetition : logit * s->repetition;
    return often > 0 ? logit - (s->presence + s->frequency * often) : logit;
}

/* Penalties for what the text or the path to the guess holds; `total` makes logits of log-probabilities. */
static void penalise(const Sampled *s, double total, const int32_t *path, int32_t depth, Said *said) {
    double mass = 1;
    for (int32_t i = 0; i < said->count; i++) {
        int32_t token = said->tokens[i];
        double before = said->logprobs[i], often = token < s->known ? (double)s->often[token] : -1;
        for (int32_t at = 0; at < depth; at++)
            if (path[at] == token) often = fmax(often, 0) + 1;
        if (often < 0) continue;
        said->logprobs[i] = penalised(&s->how, before + total, often) - total;
        mass += exp(said->logprobs[i]) - exp(before);
    }
    double more = log(fmax(mass, 1e-9));
    for (int32_t i = 0; i < said->count; i++) said->logprobs[i] -= more;
    sort(said);
}

/* The least score with which candidates, the best first, survive truncation. */
static double least_surviving(const Sampling *s, const double *scores, int32_t count) {
    int32_t top_k = top_k_of(s, count), among = 0;
    double by_top_k = top_k ? scores[top_k - 1] : -INFINITY, weights[MOST_WIDTH], total = 0, mass = 0;
    double least = fmax(scores[0] + s->log_min_p, by_top_k);
    if (s->top_p >= 1) return least;
    for (; among < count && scores[among] >= by_top_k; among++) total += weights[among] = exp(scores[among] - scores[0]);
    for (int32_t i = 0; i < among; i++)
        if ((mass += weights[i]) >= s->top_p * total) return fmax(least, scores[i]);
    return least;
}

/* Those that survive, in the order in which they win with this position's noise; and how likely the target agrees. */
static void couple(const Sampling *s, uint64_t key, Said *said) {
    double scores[MOST_WIDTH], total = 0;
    int32_t surviving = 0;
    for (int32_t i = 0; i < said->count; i++) scores[i] = said->logprobs[i] / s->temperature;
    double least = least_surviving(s, scores, said->count);
    while (said->count && scores[said->count - 1] < scores[0] - HOPELESS) said->count--;
    for (int32_t i = 0; i < said->count; i++) {
        said->logprobs[i] = (scores[i] + gumbel(key, said->tokens[i])) * s->temperature;
        total += exp(said->logprobs[i]);
        surviving += scores[i] >= least;
    }
    total = log(total);
    said->count = surviving;
    for (int32_t i = 0; i < said->count; i++) said->logprobs[i] -= total;
    sort(said);
}

/* Make up to `width` guesses of a network's candidates behind this path of drafted tokens. */
static void guess_as_sampled(const Sampled *s, double total, const int32_t *path, int32_t depth, int32_t width, Said *said) {
    bool certain = said->count == 1 && said->logprobs[0] == 0; /* whatever the chat penalises */
    if (said->count == 0 || certain) return;
    if (s->how.penalised) penalise(s, total, path, depth, said);
    if (s->how.temperature > 0) couple(&s->how, position_key(s->key, (uint64_t)(s->position + depth)), said);
    if (said->count > width) said->count = width;
    while (said->count && said->logprobs[said->count - 1] == -INFINITY) said->count--;
}
