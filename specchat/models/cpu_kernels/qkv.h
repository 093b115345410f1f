/* Queries, keys and values: made, rotated, and put where attention reads them. */

#pragma once

#include "norm.h"

/* What queries, keys and values are called among the products that make them. */
enum { QUERY, KEY, VALUE };

/* Pairs of values rotated by angles whose cosines and sines lie side by side. */
static vf rotated(vf x, vf angles) {
    vf sign = 1.0f - 2.0f * __builtin_convertvector(~load_whole(COUNT) & 1, vf); /* −1, 1, −1, 1, … */
    return multiply_add(x, first_twice(angles), swapped(x) * (sign * second_twice(angles)));
}

/* Put a register of columns of a row, from `column` of a head on, where attention reads them: queries rotated by the row's position
 * and scaled, keys rotated and values into the cache. */
static void put_lanes(const Pass *p, int what, int row, int head, int column, vf x) {
    const Decoder *d = p->decoder;
    int size = d->head_dim, valid = size - column < REGISTER ? size - column : REGISTER, place = p->rows->places[row];
    const float *rotations = p->kind->rotations;
    if (what != VALUE && rotations)
        x = rotated(x, load_lanes(rotations + (size_t)p->rows->positions[row] * (size_t)size + column, valid));
    if (what == QUERY) x *= p->query_scale;
    if (what == VALUE) {
        float *both = (float *)(head_rows(p, row, head).values + (size_t)(place / 2) * (size_t)size + column);
        vu other = (vu)load_lanes(both, valid), upper = other & 0xffff0000, lower = other & 0xffff;
        store_lanes(both, (vf)(place % 2 ? upper | brain(x) >> 16 : (brain(x) & 0xffff0000) | lower), valid);
        return;
    }
    uint32_t pairs[REGISTER / 2];
    if (what == QUERY) {
        size_t at = ((size_t)row * (size_t)d->heads + (size_t)head) * (size_t)size + (size_t)column;
        if (valid == REGISTER) {
            store_pairs(p->queries + at / 2, x);
            return;
        }
        store_pairs(pairs, x);
        memcpy(p->queries + at / 2, pairs, (size_t)valid * sizeof(uint16_t));
        return;
    }
    store_pairs(pairs, x);
    uint32_t *key = head_rows(p, row, head).keys + (size_t)(place / KEYS * KEYS) * (size_t)(size / 2) + (size_t)(column / 2) * KEYS;
    for (int i = 0; i < valid / 2; i++) key[i * KEYS + place % 2 * LANES + place % KEYS / 2] = pairs[i];
}

/* A row's head, normalised unless `norm` is NULL. */
static void put_head(const Pass *p, int what, int row, int head, float *from, const float *norm) {
    int size = p->decoder->head_dim;
    if (norm) norm_row(from, norm, size, p->decoder->epsilon, from);
    for (int column = 0; column < size; column += REGISTER)
        put_lanes(p, what, row, head, column, load_lanes(from + column, size - column));
}

/* Pieces are heads of keys, and the queries that share one. By head, not by row: keys of neighbouring rows lie in the same
 * cache lines. */
static void put_pieces(void *job, int from, int to, int thread) {
    (void)thread;
    const Pass *p = job;
    const Decoder *d = p->decoder;
    int group = d->heads / d->kv_heads, all = d->heads + 2 * d->kv_heads;
    size_t size = (size_t)d->head_dim;
    for (int piece = from; piece < to; piece++)
        for (int row = 0; row < p->rows->rows; row++) {
            float *heads = p->qkv + (size_t)row * (size_t)all * size, *keys = heads + (size_t)d->heads * size;
            int shared = piece % d->kv_heads;
            if (piece < d->kv_heads) {
                put_head(p, KEY, row, shared, keys + (size_t)shared * size, p->layer->k_norm);
                put_head(p, VALUE, row, shared, keys + (size_t)(d->kv_heads + shared) * size, NULL);
            } else {
                for (int h = shared * group; h < (shared + 1) * group; h++)
                    put_head(p, QUERY, row, h, heads + (size_t)h * size, p->layer->q_norm);
            }
        }
}

/* Fetch one of some parts of the keys that are looked at first. */
static void fetch_keys(const Pass *p, size_t which, size_t parts) {
    size_t row_bytes = (size_t)p->decoder->head_dim * sizeof(uint16_t), bytes = SPAN * row_bytes;
    const Span *spans = p->spans + (p->kind - p->rows->kind) * p->rows->rows;
    const char *keys = (const char *)head_rows(p, 0, 0).keys + (size_t)spans->first * row_bytes;
    size_t heads = (size_t)p->decoder->kv_heads, apart = capacity_of(p->rows, 0) * row_bytes;
    for (size_t at = heads * bytes * which / parts / 64 * 64; at < heads * bytes * (which + 1) / parts; at += 64)
        fetch(keys + at / bytes * apart + at % bytes);
}

/* Queries, keys and values of all rows, put where attention reads them, LANES columns at a time. */
static void qkv_blocks(void *job, int from, int to, int thread) {
    (void)thread;
    const Pass *p = job;
    const Product *products = p->layer->qkv;
    int per_head = p->decoder->head_dim / LANES, blocks = blocks_of(&products[0]) + 2 * blocks_of(&products[1]);
    for (int at = from, taken; at < to; at += taken) {
        int what = QUERY, block = at;
        while (block >= blocks_of(&products[what])) block -= blocks_of(&products[what++]);
        int left = blocks_of(&products[what]) - block;
        taken = taken_together(p->rows->rows, to - at < left ? to - at : left);
        for (int i = 0; i < taken; i++) fetch_keys(p, (size_t)(at + i), (size_t)blocks);
        for (int first = 0, count; first < p->rows->rows; first += count) {
            count = rows_at_once(p->rows->rows - first);
            float result[TOGETHER][MOST_ROWS][LANES] __attribute__((aligned(64)));
            some_blocks(&products[what], block, taken, &p->x, first / TILE, count, result);
            for (int b = block; b < block + taken; b++)
                for (int r = 0; r < count; r++)
                    for (int i = 0; i < LANES; i += REGISTER)
                        put_lanes(p, what, first + r, b / per_head, b % per_head * LANES + i, load(result[b - block][r] + i));
        }
    }
}
