/* Rows of the cache copied onto others: what a round keeps of a tree closes up with the text, and a part of a text is put
 * into a cache of its own. */

#pragma once

#include "check.h"

static inline size_t key_at(int size, int row) {
    return (size_t)(row / KEYS * KEYS) * (size_t)(size / 2) + (size_t)(row % 2 * LANES + row % KEYS / 2);
}

static void copy_key(uint32_t *to, const uint32_t *from, int size, int to_row, int from_row) {
    uint32_t *target = to + key_at(size, to_row);
    const uint32_t *source = from + key_at(size, from_row);
    for (int i = 0; i < size / 2; i++) target[i * KEYS] = source[i * KEYS];
}

static void copy_value(uint16_t *to, const uint16_t *from, int size, int to_row, int from_row) {
    uint16_t *target = to + (size_t)(to_row / 2) * 2 * (size_t)size + (to_row + 1) % 2;
    const uint16_t *source = from + (size_t)(from_row / 2) * 2 * (size_t)size + (from_row + 1) % 2;
    for (int i = 0; i < size; i++) target[2 * i] = source[2 * i];
}

static int capacity_check(int capacity, int head_dim) {
    if (in_range("the cache's rows", capacity, KEYS, MOST_CAPACITY) || capacity % KEYS)
        return refuse("a cache of %d rows", capacity);
    if (in_range("head size", head_dim, 2, MOST_WIDTH) || head_dim % 2) return refuse("a head size of %d", head_dim);
    return DONE;
}

/* Copy rows one after another, in all heads of all layers; `moves` is (count, 2): to, from. An Outcome. */
int cache_move(uint32_t *keys, uint32_t *values, int heads, int capacity, int head_dim, const int32_t *moves, int count) {
    if (capacity_check(capacity, head_dim)) return REFUSED;
    for (int i = 0; i < 2 * count; i++)
        if (in_range("a row that moves", moves[i], 0, capacity - 1)) return REFUSED;
    size_t of_head = (size_t)capacity * (size_t)head_dim / 2;
    for (int head = 0; head < heads; head++, keys += of_head, values += of_head)
        for (int i = 0; i < count; i++) {
            copy_key(keys, keys, head_dim, moves[2 * i], moves[2 * i + 1]);
            copy_value((uint16_t *)values, (const uint16_t *)values, head_dim, moves[2 * i], moves[2 * i + 1]);
        }
    return DONE;
}

/* A cache's heads, one after another. */
typedef struct {
    uint32_t *keys, *values;
    int32_t capacity;
} Heads;

/* Copy rows of another cache, in all heads; row i becomes a copy of `rows[i]`, from row `first` on. An Outcome. */
int cache_copy(const Heads *to, const Heads *from, int heads, int head_dim, const int32_t *rows, int first, int count) {
    if (capacity_check(to->capacity, head_dim) || capacity_check(from->capacity, head_dim)) return REFUSED;
    if (in_range("rows that are copied", count, first, to->capacity) || in_range("the first of them", first, 0, count))
        return REFUSED;
    for (int i = first; i < count; i++)
        if (in_range("a row that is copied", rows[i], 0, from->capacity - 1)) return REFUSED;
    size_t size = (size_t)head_dim;
    for (int head = 0; head < heads; head++) {
        size_t before = (size_t)head * (size_t)to->capacity * size / 2, theirs = (size_t)head * (size_t)from->capacity * size / 2;
        for (int i = first; i < count; i++) {
            copy_key(to->keys + before, from->keys + theirs, head_dim, i, rows[i]);
            uint32_t *values = to->values + before;
            const uint32_t *source = from->values + theirs;
            if (i % 2 == 0 && i + 1 < count && rows[i] % 2 == 0 && rows[i + 1] == rows[i] + 1) {
                memcpy(values + (size_t)(i / 2) * size, source + (size_t)(rows[i] / 2) * size, size * sizeof(uint32_t));
                copy_key(to->keys + before, from->keys + theirs, head_dim, i + 1, rows[i + 1]);
                i++;
            } else
                copy_value((uint16_t *)values, (const uint16_t *)source, head_dim, i, rows[i]);
        }
    }
    return DONE;
}
