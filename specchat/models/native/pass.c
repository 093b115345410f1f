/* One pass of a Llama-like decoder over a few rows, on a processor.
 *
 * Weights are whole numbers of 4 or 8 bits with a scale (and perhaps a minimum) per 32 of a row; activations are rounded
 * to 8 bits with a scale per 32 of a row. Products of whole numbers are exact, and what is left is added in an order that
 * depends on the row alone: a row's result has the same bits however many rows are read with it, whichever of them it
 * does not see, and wherever in the cache its ancestors lie. That is what makes a tree's pass equal to plain decoding.
 *
 * Compiled on the user's machine for its own processor; specchat/models/native/build.py says how.
 */

#include "attention.h"
#include "best.h"
#include "check.h"

typedef struct {
    Team *team;
    const Decoder *decoder;
    const Rows *rows;
    const Layer *layer;
    const float *norm;
    uint16_t *keys, *values; /* of this layer */
    const View *view; /* of this layer */
    Rounded x, inner;
    float *qkv, *mixed, *hidden;
    float *added; /* (rows, hidden), what a norm goes over before it is added to the state */
    float *gates; /* (rows, 2 · inter), what adapters add to gate and up; NULL where there are none */
    float *weights; /* (threads, SET, room for weights) */
} Pass;

static int room_for_weights(const Pass *p) { return (p->rows->end + LANES - 1) / LANES * LANES; }

static float mean_square(const float *x, int length) {
    vf sum = {0};
    int i = 0;
    for (; i + LANES <= length; i += LANES) sum = fma16(load(x + i), load(x + i), sum);
    float rest = 0;
    for (; i < length; i++) rest += x[i] * x[i];
    return (sum_of(sum) + rest) / (float)length;
}

static void norm_row(const float *x, const float *weight, int length, float epsilon, float *to) {
    float factor = 1.0f / sqrtf(mean_square(x, length) + epsilon);
    int i = 0;
    for (; i + LANES <= length; i += LANES) store(to + i, load(x + i) * factor * load(weight + i));
    for (; i < length; i++) to[i] = x[i] * factor * weight[i];
}

/* Add what was computed to a row's state, normalised. */
static void add_normed(Pass *p, int row) {
    int length = p->decoder->hidden;
    float *state = p->hidden + (size_t)row * length, *added = p->added + (size_t)row * length;
    norm_row(added, p->norm, length, p->decoder->epsilon, added);
    for (int i = 0; i < length; i++) state[i] += added[i];
}

static void norm_and_round(Pass *p, int row) {
    int length = p->decoder->hidden;
    float normed[length + LANES];
    norm_row(p->hidden + (size_t)row * length, p->norm, length, p->decoder->epsilon, normed);
    round_row(normed, length, &p->x, row);
}

static void turn(float *head, const float *turns, int head_dim) {
    for (int i = 0; i < head_dim; i += 2) {
        float a = head[i], b = head[i + 1], cosine = turns[i], sine = turns[i + 1];
        head[i] = a * cosine - b * sine;
        head[i + 1] = a * sine + b * cosine;
    }
}

/* Write a row's values of a head, `apart` from one to the next. */
static inline __attribute__((always_inline)) void keep_half(uint16_t *to, const float *from, int length, int apart) {
    int i = 0;
    for (; i + LANES <= length; i += LANES) {
        uint16_t narrow[LANES];
        store_half(apart == 1 ? to + i : narrow, load(from + i));
        for (int j = 0; j < LANES && apart > 1; j++) to[(i + j) * apart] = narrow[j];
    }
    for (; i < length; i++) to[i * apart] = _cvtss_sh(from[i], 0);
}

/* Rotate a row's queries and keys by its position, and write its keys and values. */
static void turn_and_write(Pass *p, int row) {
    const Decoder *d = p->decoder;
    int size = d->head_dim;
    float *qkv = p->qkv + (size_t)row * (d->heads + 2 * d->kv_heads) * size;
    const float *turns = p->view->turns ? p->view->turns + (size_t)row * size : NULL;
    for (int h = 0; h < d->heads + d->kv_heads; h++) {
        const float *weight = h < d->heads ? p->layer->q_norm : p->layer->k_norm;
        if (weight) norm_row(qkv + h * size, weight, size, d->epsilon, qkv + h * size);
        if (turns) turn(qkv + h * size, turns, size);
    }
    int place = p->rows->places[row];
    for (int h = 0; h < d->kv_heads; h++) {
        size_t head = (size_t)h * (size_t)p->rows->capacity * (size_t)size;
        uint16_t *key = p->keys + head + (size_t)(place / LANES * LANES) * (size_t)size + place % LANES;
        keep_half(key, qkv + (d->heads + h) * size, size, LANES);
        keep_half(p->values + head + (size_t)place * (size_t)size, qkv + (d->heads + d->kv_heads + h) * size, size, 1);
    }
}

/* The first row that one of these queries sees, or some before it: whole blocks of keys. */
static int start_of(const Set *s, int count) {
    int start = s->common > 0 ? 0 : s->end;
    for (int n = 0; n < count && start > 0; n++) {
        const uint8_t *seen = memchr(s->mask[n], 1, (size_t)start);
        if (seen) start = (int)(seen - s->mask[n]);
    }
    return start / LANES * LANES;
}

/* The last row that one of these queries sees, and one more. */
static int end_of(const Set *s, int count, int end) {
    for (; end > s->common; end--)
        for (int n = 0; n < count; n++)
            if (s->mask[n][end - 1]) return end;
    return end;
}

static int sets_of(const Pass *p) { return (p->rows->rows * (p->decoder->heads / p->decoder->kv_heads) + SET - 1) / SET; }

/* Pieces are sets of queries that share a head of keys, row by row and head by head. */
static void attend_sets(void *job, int from, int to, int thread) {
    Pass *p = job;
    const Decoder *d = p->decoder;
    int sets = sets_of(p), size = d->head_dim, group = d->heads / d->kv_heads, queries = p->rows->rows * group;
    Set s = {.room = room_for_weights(p), .common = p->view->common};
    s.weights = p->weights + (size_t)thread * SET * (size_t)s.room;
    for (int piece = from; piece < to; piece++) {
        int shared = piece / sets, set = piece % sets;
        int first = queries * set / sets, count = queries * (set + 1) / sets - first;
        for (int n = 0; n < count; n++) {
            int row = (first + n) / group, head = shared * group + (first + n) % group;
            s.query[n] = p->qkv + ((size_t)row * (size_t)(d->heads + 2 * d->kv_heads) + (size_t)head) * (size_t)size;
            s.mask[n] = p->view->mask + (size_t)row * (size_t)p->rows->end;
            s.to[n] = p->mixed + ((size_t)row * (size_t)d->heads + (size_t)head) * (size_t)size;
        }
        s.end = end_of(&s, count, p->rows->end);
        int start = start_of(&s, count);
        for (int n = 0; n < count; n++) s.mask[n] += start;
        s.end -= start;
        size_t before = ((size_t)shared * (size_t)p->rows->capacity + (size_t)start) * (size_t)size;
        attend(&s, count, p->keys + before, p->values + before, size);
    }
}

static void round_mixed(Pass *p, int row) {
    int length = p->decoder->heads * p->decoder->head_dim;
    round_row(p->mixed + (size_t)row * length, length, &p->x, row);
}

/* What adapters add to LANES outputs of gate and up. */
static void add_to_gates(const Pass *p, int first, int count, int column, vf *gate, vf *up) {
    int inter = p->decoder->inter;
    for (int r = 0; r < count; r++) {
        if (p->rows->adapter_of[first + r] < 0) continue;
        const float *added = p->gates + (size_t)(first + r) * 2 * (size_t)inter + column;
        gate[r] += load_lanes(added, inter - column);
        up[r] += load_lanes(added + inter, inter - column);
    }
}

/* Gate and up for whole groups of outputs, silu(gate) · up, and rounded for the product that follows. */
static void gate_groups(void *job, int from, int to, int thread) {
    (void)thread;
    Pass *p = job;
    const Product *gate = &p->layer->gate_up[0], *up = &p->layer->gate_up[1];
    for (int g = from; g < to; g++) {
        int valid = gate->out - g * GROUP < GROUP ? gate->out - g * GROUP : GROUP;
        for (int first = 0; first < p->rows->rows; first += TILE) {
            int count = p->rows->rows - first < TILE ? p->rows->rows - first : TILE;
            float inner[TILE][GROUP] __attribute__((aligned(64)));
            for (int half = 0; half < 2 && half * LANES < valid; half++) {
                vf a[TILE], b[TILE];
                block_of(gate, 2 * g + half, &p->x, first / TILE, count, a);
                block_of(up, 2 * g + half, &p->x, first / TILE, count, b);
                if (p->gates) add_to_gates(p, first, count, g * GROUP + half * LANES, a, b);
                for (int r = 0; r < count; r++)
                    store(inner[r] + half * LANES, (p->decoder->gelu ? gelu16(a[r]) : silu16(a[r])) * b[r]);
            }
            for (int r = 0; r < count; r++) round_group(inner[r], valid, &p->inner, first + r, g);
        }
    }
}

static void norm_rows(void *job, int from, int to, int thread) {
    (void)thread;
    for (int row = from; row < to; row++) norm_and_round(job, row);
}

static void add_rows(void *job, int from, int to, int thread) {
    (void)thread;
    for (int row = from; row < to; row++) add_normed(job, row);
}

static void turn_rows(void *job, int from, int to, int thread) {
    (void)thread;
    for (int row = from; row < to; row++) turn_and_write(job, row);
}

static void mixed_rows(void *job, int from, int to, int thread) {
    (void)thread;
    for (int row = from; row < to; row++) round_mixed(job, row);
}

enum { FEW_ROWS = 8 }; /* what is done row by row is too little to share out for so many */

/* Add to products what adapters make of their input; rows without one are left alone. */
static void adapt(Pass *p, int first, int count, const Rounded *x, float *out, int width) {
    if (p->rows->adapters == 0) return;
    Adapt job = {p->rows->low_rank, p->rows->adapter_of, p->decoder->layers, (int)(p->layer - p->decoder->layer),
                 first, count, x, out, width};
    together(p->team, adapt_rows, &job, p->rows->rows, 1);
}

/* Add a product to the states; with a norm, the product normalised. `adapted` is its number among adapted products. */
static void add_product(Pass *p, const Product *product, int adapted, const Rounded *x, const float *norm) {
    int rows = p->rows->rows;
    float *to = norm ? p->added : p->hidden;
    multiply(p->team, product, 1, x, rows, to, norm == NULL);
    adapt(p, adapted, 1, x, to, product->out);
    p->norm = norm;
    if (norm) together(p->team, add_rows, p, rows, FEW_ROWS);
}

static void attention_half(Pass *p) {
    Team *team = p->team;
    const Decoder *d = p->decoder;
    int rows = p->rows->rows;
    p->norm = p->layer->input_norm;
    p->x.groups = (d->hidden + GROUP - 1) / GROUP;
    together(team, norm_rows, p, rows, FEW_ROWS);
    multiply(team, p->layer->qkv, 3, &p->x, rows, p->qkv, false);
    adapt(p, FIRST_QKV, 3, &p->x, p->qkv, (d->heads + 2 * d->kv_heads) * d->head_dim);
    together(team, turn_rows, p, rows, FEW_ROWS);
    together(team, attend_sets, p, sets_of(p) * d->kv_heads, 1);
    p->x.groups = (d->heads * d->head_dim + GROUP - 1) / GROUP;
    together(team, mixed_rows, p, rows, FEW_ROWS);
    add_product(p, &p->layer->o, FIRST_O, &p->x, p->layer->post_attention_norm);
}

static void mlp_half(Pass *p) {
    Team *team = p->team;
    int rows = p->rows->rows, inter = p->decoder->inter;
    p->norm = p->layer->mlp_norm;
    p->x.groups = (p->decoder->hidden + GROUP - 1) / GROUP;
    together(team, norm_rows, p, rows, FEW_ROWS);
    if (p->gates) memset(p->gates, 0, (size_t)rows * 2 * (size_t)inter * sizeof(float));
    adapt(p, FIRST_GATE, 2, &p->x, p->gates, 2 * inter);
    together(team, gate_groups, p, p->inner.groups, 1);
    add_product(p, &p->layer->down, FIRST_DOWN, &p->inner, p->layer->post_mlp_norm);
}

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
    p->weights = part(base, bytes, (size_t)p->team->threads * SET * (size_t)room_for_weights(p) * sizeof(float));
}

/* Some layers over rows; an Outcome. The decoder was checked when it was built. */
int decoder_layers(Team *team, const Decoder *decoder, const Rows *rows, int first, int last) {
    if (rows_check(decoder, rows, first, last)) return REFUSED;
    Pass p = {.team = team, .decoder = decoder, .rows = rows, .hidden = rows->hidden};
    size_t bytes;
    lay_out(&p, NULL, &bytes);
    char *memory = aligned_alloc(64, bytes);
    if (memory == NULL) return NO_MEMORY;
    lay_out(&p, memory, &bytes);
    size_t layer_bytes = (size_t)decoder->kv_heads * (size_t)rows->capacity * (size_t)decoder->head_dim;
    for (int i = first; i < last; i++) {
        p.layer = &decoder->layer[i];
        p.view = &rows->view[p.layer->view];
        int place = rows->place_of ? rows->place_of[i] : i;
        if (place >= 0) {
            p.keys = rows->keys + layer_bytes * (size_t)place;
            p.values = rows->values + layer_bytes * (size_t)place;
            attention_half(&p);
        }
        if (rows->mlp == NULL || rows->mlp[i]) mlp_half(&p);
    }
    free(memory);
    return DONE;
}

typedef struct {
    Multiply multiply;
    Best *best;  /* (threads, rows) */
    float *sums; /* (rows, stretches) */
} Head;

static void head_blocks(void *job, int from, int to, int thread) {
    const Head *head = job;
    const Multiply *m = &head->multiply;
    Best *best = head->best + (size_t)thread * (size_t)m->rows;
    multiply_blocks((void *)m, from, to, thread);
    for (int row = 0; row < m->rows; row++)
        for (int at = from * LANES; at < to * LANES; at += LANES)
            consider(&best[row], load_lanes(m->out + (size_t)row * m->width + at, m->width - at), at, m->width - at);
}

/* Sums of exponentials, a stretch of a row at a time: whoever adds a stretch up, its sum is the same. */
static void total_stretches(void *job, int from, int to, int thread) {
    (void)thread;
    const Head *head = job;
    int width = head->multiply.width, stretches = stretches_of(width);
    for (int piece = from; piece < to; piece++) {
        int row = piece / stretches, at = piece % stretches * STRETCH, end = at + STRETCH < width ? at + STRETCH : width;
        const float *logits = head->multiply.out + (size_t)row * (size_t)width;
        vf sum = {0}, top = all(head->best[row].score[0]);
        for (; at + LANES <= end; at += LANES) sum += exp16(load(logits + at) - top);
        if (at < end) sum += exp16(either(first_lanes(end - at), load_lanes(logits + at, end - at), all(-INFINITY)) - top);
        head->sums[piece] = sum_of(sum);
    }
}

/* Whether as many tokens were named as there are: one with a logit that is no number never is. */
static bool all_named(const int32_t *tokens, int rows, int vocab_size) {
    int last = (vocab_size < BEST ? vocab_size : BEST) - 1;
    for (int row = 0; row < rows; row++)
        if (tokens[(size_t)row * BEST + (size_t)last] == INT32_MAX) return false;
    return true;
}

/* Final norm and head: (rows, hidden) → (rows, vocab_size); of each row the BEST tokens with the highest logits, (rows,
 * BEST), the highest first, of equals the one with the lower number; and, unless NULL, the logarithm of the sum of the
 * exponentials of its logits, (rows). An Outcome: logits that are no numbers are refused. */
int decoder_head(Team *team, const Decoder *decoder, const float *hidden, int rows, float *logits, int32_t *tokens,
                 float *totals) {
    if (head_check(decoder, rows)) return REFUSED;
    Rows few = {.rows = rows};
    Pass p = {.team = team, .decoder = decoder, .rows = &few, .hidden = (float *)hidden, .norm = decoder->norm};
    size_t bytes;
    lay_out(&p, NULL, &bytes);
    int stretches = stretches_of(decoder->head.out);
    size_t lists = up_to_64((size_t)team->threads * (size_t)rows * sizeof(Best));
    char *memory = aligned_alloc(64, bytes + lists + up_to_64((size_t)rows * (size_t)stretches * sizeof(float)));
    if (memory == NULL) return NO_MEMORY;
    lay_out(&p, memory, &bytes);
    Head head = {.multiply = {&decoder->head, 1, rows, &p.x, logits, decoder->head.out, false},
                 .best = (Best *)(memory + bytes),
                 .sums = (float *)(memory + bytes + lists)};
    for (int i = 0; i < team->threads * rows; i++) begin(&head.best[i]);
    p.x.groups = (decoder->hidden + GROUP - 1) / GROUP;
    together(team, norm_rows, &p, rows, FEW_ROWS);
    together(team, head_blocks, &head, blocks_of(&decoder->head), 4);
    for (int row = 0; row < rows; row++) {
        for (int i = 1; i < team->threads; i++) join(&head.best[row], &head.best[i * rows + row]);
        memcpy(tokens + (size_t)row * BEST, head.best[row].token, sizeof head.best[row].token);
    }
    if (totals) {
        together(team, total_stretches, &head, rows * stretches, 1);
        for (int row = 0; row < rows; row++) {
            double sum = 0;
            for (int i = 0; i < stretches; i++) sum += head.sums[row * stretches + i];
            totals[row] = head.best[row].score[0] + (float)log(sum);
        }
    }
    bool finite = all_named(tokens, rows, decoder->vocab_size);
    free(memory);
    return finite ? DONE : refuse("logits that are no numbers: weights or what was read are damaged");
}
