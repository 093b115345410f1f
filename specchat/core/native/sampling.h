/* How a chat samples. core/target_draw.py has the same structure; core/sampling.py says what each of these does. */

#pragma once

#include <stdint.h>

typedef struct {
    double temperature; /* 0: the likeliest token */
    double top_p, log_min_p; /* 1, −∞: all survive */
    double repetition, presence, frequency;
    int32_t top_k; /* 0: all survive */
    int32_t penalised; /* whether a penalty changes any logits */
} Sampling;

/* How many of so many tokens top-k leaves; 0: all. */
static inline int32_t top_k_of(const Sampling *s, int32_t count) { return s->top_k < count ? s->top_k : 0; }
