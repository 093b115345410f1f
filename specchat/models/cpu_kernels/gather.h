/* Some rows of a head as a head of their own: their bytes are copied, so that their logits have the same bits. */

#pragma once

#include "check.h"

/* One output's part of every group: its numbers, four inputs at a time, its scale, and its minimum if there are minima. */
static void copy_output(const Product *from, int output, uint8_t *to, int place) {
    size_t groups = (size_t)(from->in + GROUP - 1) / GROUP, numbers = (size_t)(GROUP / 8 * from->bits);
    size_t step = LANES * numbers + (from->minima ? 2 : 1) * LANES * 2;
    const uint8_t *source = from->data + (size_t)(output / LANES) * groups * step;
    uint8_t *target = to + (size_t)(place / LANES) * groups * step;
    size_t lane = (size_t)(output % LANES), room = (size_t)(place % LANES);
    for (size_t g = 0; g < groups; g++, source += step, target += step) {
        for (size_t at = 0; at < LANES * numbers; at += LANES * 4) memcpy(target + at + 4 * room, source + at + 4 * lane, 4);
        for (size_t at = LANES * numbers; at < step; at += LANES * 2)
            memcpy(target + at + 2 * room, source + at + 2 * lane, 2);
    }
}

/* Copy outputs of a checked product behind the first `place` of another in blocks of the same kind. An Outcome.
 *
 * `to` has room for `bytes`, which are whole blocks; what no output was copied to holds zeros. */
int gather_outputs(const Product *from, const int32_t *outputs, int count, uint8_t *to, int64_t bytes, int place) {
    if (product_check("a product", from, from->in, from->out)) return REFUSED;
    if (in_range("outputs", count, 1, MOST_TOKENS) || in_range("a place", place, 0, MOST_TOKENS)) return REFUSED;
    int64_t groups = (from->in + GROUP - 1) / GROUP, blocks = ((int64_t)place + count + LANES - 1) / LANES;
    int64_t wanted = blocks * groups * (LANES * GROUP / 8 * from->bits + (from->minima ? 2 : 1) * LANES * 2);
    if (to == NULL || bytes < wanted)
        return refuse("room for outputs: %lld bytes, not %lld", (long long)bytes, (long long)wanted);
    for (int i = 0; i < count; i++)
        if (in_range("an output", outputs[i], 0, from->out - 1)) return REFUSED;
    for (int i = 0; i < count; i++) copy_output(from, outputs[i], to, place + i);
    return DONE;
}
