/* Products of all rows, shared out among threads. */

#pragma once

#include "many_rows.h"
#include "team.h"

/* Products that share their input, into columns of one matrix. */
typedef struct {
    const Product *products;
    int count, rows;
    const Rounded *x;
    float *out; /* (rows, width) */
    int width;
    bool add; /* to what is there */
} Multiply;

static void multiply_blocks(void *job, int from, int to, int thread) {
    (void)thread;
    Multiply *m = job;
    int which = 0, before = 0, column = 0;
    for (int at = from, blocks; at < to; at += blocks) {
        while (at - before >= blocks_of(&m->products[which])) {
            before += blocks_of(&m->products[which]);
            column += m->products[which++].out;
        }
        const Product *p = &m->products[which];
        int block = at - before, left = blocks_of(p) - block;
        blocks = taken_together(m->rows, to - at < left ? to - at : left);
        for (int first = 0, count; first < m->rows; first += count) {
            count = rows_at_once(m->rows - first);
            float result[TOGETHER][MOST_ROWS][LANES] __attribute__((aligned(64)));
            some_blocks(p, block, blocks, m->x, first / TILE, count, result);
            for (int r = 0; r < count; r++)
                for (int b = 0; b < blocks; b++) {
                    int valid = p->out - (block + b) * LANES;
                    float *place = m->out + (size_t)(first + r) * (size_t)m->width + column + (block + b) * LANES;
                    for (int i = 0; i < LANES; i += REGISTER) {
                        vf value = load(result[b][r] + i);
                        store_lanes(place + i, m->add ? value + load_lanes(place + i, valid - i) : value, valid - i);
                    }
                }
        }
    }
}

static void multiply(Team *team, const Product *products, int count, const Rounded *x, int rows, float *out, bool add) {
    Multiply m = {products, count, rows, x, out, 0, add};
    int blocks = 0;
    for (int i = 0; i < count; i++) {
        blocks += blocks_of(&products[i]);
        m.width += products[i].out;
    }
    together(team, PRODUCTS, multiply_blocks, &m, blocks, taken_together(rows, TOGETHER));
}
