/* Products and heads by themselves, for small networks that are put together in Python. */

#pragma once

#include "head.h"
#include "norm.h"
#include "stored.h"

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

/* A product with rows of a table, each of which is brought to a mean square of 1 first: (rows, out). An Outcome. */
int linear_of_stored(Team *team, const Stored *table, float epsilon, const Product *product, float *out) {
    if (in_range("rows", table->rows, 1, MOST_QUERIES)) return REFUSED;
    if (!(epsilon > 0 && epsilon < 1)) return refuse("no epsilon");
    if (table->length != product->in) return refuse("rows of %d numbers, not %d", table->length, product->in);
    size_t length = (size_t)table->length;
    float *x = aligned_alloc(64, ((size_t)table->rows * length * sizeof *x + 63) / 64 * 64);
    if (x == NULL) return NO_MEMORY;
    int outcome = unpack_rows(table, x);
    for (int row = 0; outcome == DONE && row < table->rows; row++) {
        float *at = x + (size_t)row * length;
        norm_row(at, NULL, table->length, epsilon, at);
    }
    if (outcome == DONE) outcome = linear(team, product, x, table->rows, out);
    free(x);
    return outcome;
}
