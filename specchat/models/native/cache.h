/* Rows of the cache copied onto others: what a round keeps of a tree closes up with the text. */

#pragma once

#include "check.h"

static void move_key(uint32_t *keys, int size, int to, int from) {
    uint32_t *target = keys + (size_t)(to / KEYS * KEYS) * (size_t)(size / 2) + to % 2 * LANES + to % KEYS / 2;
    const uint32_t *source = keys + (size_t)(from / KEYS * KEYS) * (size_t)(size / 2) + from % 2 * LANES + from % KEYS / 2;
    for (int i = 0; i < size / 2; i++) target[i * KEYS] = source[i * KEYS];
}

static void move_value(uint16_t *values, int size, int to, int from) {
    uint16_t *target = values + (size_t)(to / 2) * 2 * (size_t)size + (to + 1) % 2;
    const uint16_t *source = values + (size_t)(from / 2) * 2 * (size_t)size + (from + 1) % 2;
    for (int i = 0; i < size; i++) target[2 * i] = source[2 * i];
}

/* Copy rows one after another, in all heads of all layers; `moves` is (count, 2): to, from. An Outcome. */
int cache_move(uint32_t *keys, uint32_t *values, int heads, int capacity, int head_dim, const int32_t *moves, int count) {
    if (in_range("the cache's rows", capacity, KEYS, MOST_CAPACITY) || capacity % KEYS)
        return refuse("a cache of %d rows", capacity);
    if (in_range("head size", head_dim, 2, MOST_WIDTH) || head_dim % 2) return refuse("a head size of %d", head_dim);
    for (int i = 0; i < 2 * count; i++)
        if (in_range("a row that moves", moves[i], 0, capacity - 1)) return REFUSED;
    size_t of_head = (size_t)capacity * (size_t)head_dim / 2;
    for (int head = 0; head < heads; head++)
        for (int i = 0; i < count; i++) {
            move_key(keys + (size_t)head * of_head, head_dim, moves[2 * i], moves[2 * i + 1]);
            move_value((uint16_t *)(values + (size_t)head * of_head), head_dim, moves[2 * i], moves[2 * i + 1]);
        }
    return DONE;
}
