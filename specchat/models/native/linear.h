/* Products and heads by themselves, for small networks that are put together in Python. */

#pragma once

#include "head.h"

/* Whether a product's sizes agree with one another: asked once, when it is made. */
int linear_check(const Product *product) {
    if (in_range("inputs", product->in, 1, 4 * MOST_WIDTH)) return REFUSED;
    if (in_range("outputs", product->out, 1, MOST_TOKENS)) return REFUSED;
    return product_check("a product", product, product->in, product->out);
}

/* The same for what `decoder_head` reads of a decoder that has nothing else. */
int head_alone_check(const Decoder *decoder) {
    if (in_range("hidden size", decoder->hidden, 1, MOST_WIDTH)) return REFUSED;
    if (in_range("vocabulary", decoder->vocab_size, 1, MOST_TOKENS)) return REFUSED;
    if (!(decoder->epsilon > 0 && decoder->epsilon < 1) || decoder->norm == NULL) return refuse("no norm, or no epsilon");
    return product_check("head", &decoder->head, decoder->hidden, decoder->vocab_size);
}

/* A product with rows (rows, in) → (rows, out). An Outcome. */
int linear(Team *team, const Product *product, const float *x, int rows, float *out) {
    if (in_range("rows", rows, 1, MOST_QUERIES)) return REFUSED;
    size_t bytes = 0, tiles = ((size_t)rows + TILE - 1) / TILE * TILE, groups = ((size_t)product->in + GROUP - 1) / GROUP;
    rounded_part(NULL, &bytes, tiles, groups);
    char *memory = aligned_alloc(64, bytes);
    if (memory == NULL) return NO_MEMORY;
    bytes = 0;
    Rounded rounded = rounded_part(memory, &bytes, tiles, groups);
    round_all(x, (size_t)product->in, rows, product->in, &rounded);
    multiply(team, product, 1, &rounded, rows, out, false);
    free(memory);
    return DONE;
}
