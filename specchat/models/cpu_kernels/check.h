/* Checks of what Python hands over: nothing is read or written before the numbers agree with one another.
 *
 * How long the buffers are is checked in Python; what is said to lie in them, here. */

#pragma once

#include <stdio.h>

#include "attention.h"
#include "decoder.h"
#include "refuse.h"

/* Bounds that keep every product of two sizes within 32 bits, and a row within a thread's stack. */
enum { MOST_WIDTH = 1 << 16, MOST_LAYERS = 1 << 12, MOST_TOKENS = 1 << 23, MOST_CAPACITY = 1 << 24, MOST_QUERIES = 1 << 16 };

static int in_range(const char *what, int value, int least, int most) {
    return value >= least && value <= most ? DONE : refuse("%s is %d, not %d to %d", what, value, least, most);
}

static int product_check(const char *where, const Product *p, int in, int out) {
    if (p->in != in || p->out != out)
        return refuse("%s: %d inputs and %d outputs, not %d and %d", where, p->in, p->out, in, out);
    if (p->bits != 8 && p->bits != 4) return refuse("%s: %d bits, not 4 or 8", where, p->bits);
    if (p->minima != 0 && (p->minima != 1 || p->bits != 4))
        return refuse("%s: minima %d of %d bits", where, p->minima, p->bits);
    if (p->data == NULL) return refuse("%s: no numbers", where);
    int64_t groups = (in + GROUP - 1) / GROUP, blocks = (out + LANES - 1) / LANES;
    int64_t wanted = blocks * groups * (LANES * GROUP / 8 * p->bits + (p->minima ? 2 : 1) * LANES * 2);
    if (p->bytes != wanted)
        return refuse("%s: %lld bytes, not %lld", where, (long long)p->bytes, (long long)wanted);
    return DONE;
}

static int layer_check(const Decoder *d, int index) {
    const Layer *l = &d->layer[index];
    int queries = d->heads * d->head_dim, keys = d->kv_heads * d->head_dim, hidden = d->hidden, inter = d->inter;
    if (l->input_norm == NULL || l->mlp_norm == NULL) return refuse("layer %d: no norm", index);
    if ((l->q_norm == NULL) != (l->k_norm == NULL)) return refuse("layer %d: one norm of queries and keys, not both", index);
    if (l->kind < 0 || l->kind >= d->kinds) return refuse("layer %d: kind %d of %d", index, l->kind, d->kinds);
    if ((l->post_attention_norm == NULL) != (l->post_mlp_norm == NULL)) return refuse("layer %d: one of two norms", index);
    struct { const char *name; const Product *product; int in, out; } each[] = {
        {"q", &l->qkv[0], hidden, queries},      {"k", &l->qkv[1], hidden, keys},
        {"v", &l->qkv[2], hidden, keys},         {"o", &l->o, queries, hidden},
        {"gate", &l->gate_up[0], hidden, inter}, {"up", &l->gate_up[1], hidden, inter},
        {"down", &l->down, inter, hidden},
    };
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        char where[40];
        snprintf(where, sizeof where, "layer %d, %s", index, each[i].name);
        if (product_check(where, each[i].product, each[i].in, each[i].out)) return REFUSED;
    }
    return DONE;
}

/* Whether all sizes of a decoder agree: asked once, when it is built. */
int decoder_check(const Decoder *d) {
    if (in_range("the number of layers", d->layers, 1, MOST_LAYERS)) return REFUSED;
    if (in_range("hidden size", d->hidden, 1, MOST_WIDTH)) return REFUSED;
    if (in_range("heads", d->heads, 1, MOST_WIDTH)) return REFUSED;
    if (in_range("head size", d->head_dim, 2, MOST_WIDTH / d->heads)) return REFUSED;
    if (in_range("key heads", d->kv_heads, 1, d->heads)) return REFUSED;
    if (in_range("MLP size", d->inter, 1, 4 * MOST_WIDTH)) return REFUSED;
    if (in_range("vocabulary", d->vocab_size, 1, MOST_TOKENS)) return REFUSED;
    if (in_range("kinds", d->kinds, 1, KINDS) || in_range("gelu", d->gelu, 0, 1)) return REFUSED;
    if (d->head_dim % 2) return refuse("head size %d is odd", d->head_dim);
    if (d->heads % d->kv_heads) return refuse("%d heads are not a multiple of %d key heads", d->heads, d->kv_heads);
    if (!(d->epsilon > 0 && d->epsilon < 1)) return refuse("epsilon of the norms is %g, not between 0 and 1", (double)d->epsilon);
    if (d->layer == NULL || d->norm == NULL) return refuse("no layers, or no last norm");
    for (int i = 0; i < d->layers; i++)
        if (layer_check(d, i)) return REFUSED;
    return product_check("head", &d->head, d->hidden, d->vocab_size);
}

/* Whether each text has a cache, and each row is one of its rows. */
static int texts_check(const Decoder *d, const Rows *r) {
    if (in_range("texts", r->texts, 0, r->rows)) return REFUSED;
    if (r->texts && (r->text == NULL || r->text_of == NULL)) return refuse("no texts");
    if (r->texts == 0) return r->text_of ? refuse("rows of no text") : DONE;
    if (r->place_of || r->chunks) return refuse("texts that are read together are read by all layers, and not scored");
    int row = 0;
    for (int i = 0; i < r->texts; i++) {
        const Text *t = &r->text[i];
        if (t->keys == NULL || t->values == NULL) return refuse("text %d has no cache", i);
        if (in_range("a cache's rows", t->capacity, KEYS, MOST_CAPACITY) || t->capacity % KEYS)
            return refuse("a cache of %d rows", t->capacity);
        if (in_range("rows of a text", t->rows, 1, r->rows - row) || in_range("its first row", t->first, row, row)) return REFUSED;
        if (in_range("rows that all of a text see", t->common, 0, r->end < t->capacity ? r->end : t->capacity)) return REFUSED;
        for (int last = row + t->rows; row < last; row++) {
            if (r->text_of[row] != i) return refuse("row %d is of text %d, not %d", row, r->text_of[row], i);
            if (in_range("a row's place in its cache", r->places[row], 0, t->capacity - 1)) return REFUSED;
            for (int k = 0; k < d->kinds && t->capacity < r->end; k++) {
                const uint8_t *mask = r->kind[k].mask + (size_t)row * (size_t)r->end + (size_t)t->capacity;
                if (memchr(mask, 1, (size_t)(r->end - t->capacity))) return refuse("row %d sees what its cache does not have", row);
            }
        }
        if (in_range("tapped layers", t->tapped, 0, d->layers)) return REFUSED;
        if (t->tapped && (t->tap_of == NULL || t->taps == NULL)) return refuse("no room for tapped states");
        for (int layer = 0; layer < d->layers && t->tapped; layer++)
            if (in_range("a tapped layer's place", t->tap_of[layer], -1, t->tapped - 1)) return REFUSED;
    }
    return in_range("rows of texts", row, r->rows, r->rows);
}

/* Whether every row sees itself, and is where it can be rotated. */
static int kind_check(const Rows *r, const AttentionKind *kind) {
    if (in_range("rows that all see", kind->common, 0, r->end)) return REFUSED;
    if (kind->mask == NULL) return refuse("no mask");
    for (int row = 0; row < r->rows; row++) {
        int place = r->places[row];
        if (place < 0 || place >= r->end || !kind->mask[(size_t)row * (size_t)r->end + (size_t)place])
            return refuse("row %d does not see itself at %d of %d", row, place, r->end);
        if (kind->rotations && (r->positions[row] < 0 || r->positions[row] >= kind->positions))
            return refuse("row %d is at position %d of %d", row, r->positions[row], kind->positions);
    }
    return DONE;
}

/* Whether what is left out, added and tapped names layers, products and rows that there are. */
static int parts_check(const Decoder *d, const Rows *r) {
    if (r->place_of == NULL && r->kept != d->layers) return refuse("a cache of %d layers of %d", r->kept, d->layers);
    for (int i = 0; i < d->layers && r->place_of; i++)
        if (in_range("a layer's place in the cache", r->place_of[i], -1, r->kept - 1)) return REFUSED;
    if (in_range("adapters", r->adapters, 0, r->rows)) return REFUSED;
    for (int row = 0; row < r->rows && r->adapters; row++)
        if (in_range("a row's adapter", r->adapter_of[row], -1, r->adapters - 1)) return REFUSED;
    for (int i = 0; i < r->adapters * d->layers * ADAPTED; i++) {
        const Layer *l = &d->layer[i / ADAPTED % d->layers];
        const Product *each[ADAPTED] = {&l->qkv[0], &l->qkv[1], &l->qkv[2], &l->o, &l->gate_up[0], &l->gate_up[1], &l->down};
        const LowRank *a = &r->low_rank[i];
        if (in_range("an adapter's rank", a->rank, 0, MOST_RANK)) return REFUSED;
        if (a->inputs != each[i % ADAPTED]->in || a->outputs != each[i % ADAPTED]->out)
            return refuse("an adapter of %d inputs and %d outputs, not %d and %d", a->inputs, a->outputs,
                          each[i % ADAPTED]->in, each[i % ADAPTED]->out);
        if (a->rank && (a->down == NULL || a->up == NULL)) return refuse("an adapter without factors");
    }
    if (in_range("tapped layers", r->tapped, 0, d->layers)) return REFUSED;
    if (r->tapped && (r->tap_of == NULL || r->taps == NULL)) return refuse("no room for tapped states");
    for (int i = 0; i < d->layers && r->tapped; i++)
        if (in_range("a tapped layer's place", r->tap_of[i], -1, r->tapped - 1)) return REFUSED;
    if (in_range("chunks", r->chunks, 0, r->end)) return REFUSED;
    if (r->chunks && in_range("rows of a chunk", r->chunk_rows, 1, r->end / r->chunks)) return REFUSED;
    if (r->chunks && r->rows != 1) return refuse("chunks scored for %d rows, not for one", r->rows);
    if (r->chunks && r->chunk_scores == NULL) return refuse("no room for scores of chunks");
    return DONE;
}

/* Whether a pass over these rows and layers stays within its buffers: asked at every pass, in no time that counts. */
static int rows_check(const Decoder *d, const Rows *r, int first, int last) {
    if (first < 0 || first > last || last > d->layers) return refuse("layers %d to %d of %d", first, last, d->layers);
    int most = MOST_QUERIES / (d->heads / d->kv_heads), pieces = (MOST_PIECES - 1) / d->heads;
    if (in_range("rows", r->rows, 1, most < pieces ? most : pieces)) return REFUSED;
    if (in_range("the cache's rows", r->capacity, KEYS, MOST_CAPACITY) || r->capacity % KEYS)
        return refuse("a cache of %d rows", r->capacity);
    if (in_range("rows to look at", r->end, 1, r->texts ? MOST_CAPACITY : r->capacity)) return REFUSED;
    for (int i = 0; i < d->kinds; i++)
        if (kind_check(r, &r->kind[i])) return REFUSED;
    if (texts_check(d, r)) return REFUSED;
    return parts_check(d, r);
}

/* Whether one call can give so many rows of logits. */
static int head_check(const Decoder *d, int rows) {
    int most = (MOST_PIECES - 1) / stretches_of(d->vocab_size);
    return in_range("rows", rows, 1, most < MOST_QUERIES ? most : MOST_QUERIES);
}
