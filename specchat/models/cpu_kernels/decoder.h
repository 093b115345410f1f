/* What Python hands over: a decoder's weights, and the rows of one pass. */

#pragma once

#include "adapter.h"
#include "multiply.h"

typedef struct {
    const float *input_norm, *mlp_norm;
    const float *q_norm, *k_norm;                     /* (head_dim), or NULL */
    const float *post_attention_norm, *post_mlp_norm; /* (hidden), or NULL: of what is added to the state */
    int32_t kind;                                     /* its kind of attention, one of those of the pass */
    Product qkv[3], o, gate_up[2], down;
} Layer;

typedef struct {
    int32_t layers, hidden, heads, kv_heads, head_dim, inter, vocab_size, kinds;
    int32_t gelu; /* whether the gate goes through gelu, by its tanh formula, rather than silu */
    float epsilon;
    const Layer *layer;
    const float *norm;
    Product head;
} Decoder;

enum { KINDS = 4 };

/* How some layers look at the text: row r sees the cache rows whose mask is set; all rows see the first `common`. */
typedef struct {
    int32_t common;
    int32_t positions;   /* that there are rotations for */
    const float *rotations;  /* (positions, head_dim / 2, 2): cosine and sine; NULL where nothing is rotated */
    const uint8_t *mask; /* (rows, end) */
} AttentionKind;

/* One of the texts whose rows a pass reads together: where its keys and values lie, which of the rows are its own, and copies
 * of their states, as Rows has them. */
typedef struct {
    uint32_t *keys, *values;
    int32_t capacity, common; /* all of its rows see the first `common` of its cache */
    int32_t first, rows, tapped;
    const int32_t *tap_of;
    float *taps;
} Text;

/* The rows of one pass. Row r is written to cache row places[r]. What lies in the cache and is not seen must be finite. */
typedef struct {
    int32_t rows, end, capacity;
    float *hidden;            /* (rows, hidden), in place */
    const int32_t *positions; /* (rows), in the text */
    const int32_t *places;    /* (rows) */
    uint32_t *keys;           /* (layers, kv_heads, capacity / KEYS, head_dim / 2, 2, LANES) pairs of bfloat16 */
    uint32_t *values;         /* (layers, kv_heads, capacity / 2, head_dim) pairs of bfloat16 */
    AttentionKind kind[KINDS];
    /* What is left out; NULL where nothing is. */
    const int32_t *place_of; /* (layers), where among the cache's layers each one's rows lie, −1 without attention */
    const uint8_t *mlp;      /* (layers), whether its MLP is computed */
    int32_t kept;            /* layers of the cache; all of them where nothing is left out */
    /* What is added to the products of some rows; none where nothing is. */
    int32_t adapters;
    const LowRank *low_rank;   /* (adapters, layers, ADAPTED) */
    const int32_t *adapter_of; /* (rows), which of them acts on it, −1 for none */
    /* Copies of the states after some layers; none where none are asked for. */
    int32_t tapped;
    const int32_t *tap_of; /* (layers), where among the copies a layer's states go, −1 for nowhere */
    float *taps;           /* (tapped, rows, hidden) */
    /* What the queries of the one row find in the mean keys of chunks of the cache's first rows; none where none are asked for. */
    int32_t chunks, chunk_rows;
    float *chunk_scores; /* (layers, heads, chunks) */
    /* Rows of several texts, each with a cache of its own, all layers of it: what places and masks count, and what is said
     * there instead of above. None where all rows are of one text. */
    int32_t texts;
    const Text *text;
    const int32_t *text_of; /* (rows) */
} Rows;

/* Exponentials of a row's logits are summed up in stretches of so many. */
enum { STRETCH = 4096 };

static inline int stretches_of(int width) { return (width + STRETCH - 1) / STRETCH; }
