/* The state of a running pass, and the memory that it takes. */

#pragma once

#include "attention.h"
#include "decoder.h"

/* Cache rows that a row sees lie between these two; `first` begins a block of keys. */
typedef struct { int first, end; } Span;

typedef struct {
    Team *team;
    const Decoder *decoder;
    const Rows *rows;
    const Layer *layer;
    const float *norm;
    int place; /* of this layer in the cache */
    const AttentionKind *kind; /* of this layer */
    float query_scale; /* scores are powers of two */
    Rounded x, inner;
    float *qkv, *mixed, *hidden;
    float *added;      /* (rows, hidden), what a norm goes over before it is added to the state */
    float *gates;      /* (rows, 2 · inter), what adapters add to gate and up; NULL where there are none */
    uint32_t *queries; /* (rows, heads, head_dim / 2) */
    Span *spans;       /* (kinds, rows) */
    float *weights;    /* (threads, AT_ONCE, room for weights) */
} Pass;

/* Cache rows of a head of keys. */
typedef struct { uint32_t *keys, *values; } HeadRows;

/* Cache rows that the text of a row has room for. */
static inline size_t capacity_of(const Rows *r, int row) {
    return (size_t)(r->text_of ? r->text[r->text_of[row]].capacity : r->capacity);
}

/* Where the rows of a head of keys lie, in this layer, of the text that a row belongs to. */
static inline HeadRows head_rows(const Pass *p, int row, int head) {
    const Rows *r = p->rows;
    const Text *text = r->text_of ? &r->text[r->text_of[row]] : NULL;
    size_t heads = (size_t)p->place * (size_t)p->decoder->kv_heads + (size_t)head;
    size_t before = heads * capacity_of(r, row) * (size_t)p->decoder->head_dim / 2;
    return (HeadRows){(text ? text->keys : r->keys) + before, (text ? text->values : r->values) + before};
}

/* So many of the first cache rows a row surely sees, with those that are read with it. */
static inline int common_of(const Rows *r, const AttentionKind *kind, int row) {
    return r->text_of ? r->text[r->text_of[row]].common : kind->common;
}

static int room_for(int rows) { return (rows + KEYS - 1) / KEYS * KEYS; }

static size_t up_to_64(size_t bytes) { return (bytes + 63) / 64 * 64; }

/* Cuts one piece of memory into parts; with base NULL it only counts. */
static void *part(char *base, size_t *at, size_t bytes) {
    void *here = base ? base + *at : NULL;
    *at += up_to_64(bytes);
    return here;
}

static Rounded rounded_part(char *base, size_t *at, size_t rows, size_t groups) {
    Rounded x = {.groups = (int)groups};
    x.numbers = part(base, at, rows * groups * GROUP);
    x.scales = part(base, at, rows * groups * sizeof(float));
    x.sums = part(base, at, rows * groups * sizeof(int32_t));
    x.offsets = part(base, at, rows * groups * sizeof(float));
    return x;
}

static void lay_out(Pass *p, char *base, size_t *bytes) {
    const Decoder *d = p->decoder;
    size_t rows = (size_t)p->rows->rows;
    size_t wide = (size_t)(d->hidden > d->heads * d->head_dim ? d->hidden : d->heads * d->head_dim);
    size_t tiles = (rows + TILE - 1) / TILE * TILE;
    *bytes = 0;
    p->x = rounded_part(base, bytes, tiles, (wide + GROUP - 1) / GROUP);
    p->inner = rounded_part(base, bytes, tiles, ((size_t)d->inter + GROUP - 1) / GROUP);
    p->qkv = part(base, bytes, rows * (size_t)(d->heads + 2 * d->kv_heads) * (size_t)d->head_dim * sizeof(float));
    p->mixed = part(base, bytes, rows * (size_t)d->heads * (size_t)d->head_dim * sizeof(float));
    p->added = part(base, bytes, rows * (size_t)d->hidden * sizeof(float));
    p->gates = p->rows->adapters ? part(base, bytes, rows * 2 * (size_t)d->inter * sizeof(float)) : NULL;
    p->queries = part(base, bytes, rows * (size_t)d->heads * (size_t)d->head_dim * sizeof(uint16_t));
    p->spans = part(base, bytes, (size_t)d->kinds * rows * sizeof(Span));
    p->weights = part(base, bytes, (size_t)p->team->threads * AT_ONCE * (size_t)room_for(p->rows->end) * sizeof(float));
}
