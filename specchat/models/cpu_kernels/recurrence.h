/* Recurrent layers over a token tree: the convolution over each row's own ancestors, and the scan of Mamba-2 and of gated
 * delta nets.
 *
 * A scan adds to a state S, (keys, values) of each head,
 *
 *     S_v = exp(g_v) S_parent + k_v ⊗ u_v,    output_v = scale · q_v S_v,
 *
 * where u_v is rate_v · x_v for Mamba-2, and rate_v · (x_v − exp(g_v) k_v S_parent) for a delta net. No state is kept for a
 * row: with G_v the sum of g from the text on,
 *
 *     output_v = scale · (exp(G_v) q_v S_0 + Σ_{u above or at v} exp(G_v − G_u) (q_v · k_u) u_u),
 *
 * and k_v S_parent likewise, so that the state after the text is read once for all rows, and each row walks up its own
 * path. What a row gets is added in an order that its path alone says. */

#pragma once

#include "adapter.h"
#include "check.h"
#include "team.h"

/* Rows of a tree behind a text: `before` of them were read by earlier passes, `rows` are of this one. */
typedef struct {
    int32_t before, rows;
    const int32_t *above; /* (before + rows), the row that each follows; −1: the text */
} Below;

static int below_check(const Below *b) {
    if (in_range("rows", b->rows, 1, MOST_QUERIES) || in_range("earlier rows", b->before, 0, MOST_QUERIES)) return REFUSED;
    for (int row = 0; row < b->before + b->rows; row++)
        if (in_range("the row above", b->above[row], -1, row - 1)) return REFUSED;
    return DONE;
}

typedef struct {
    int32_t channels, kernel, silu;
    Below below;
    const float *last;   /* (kernel − 1, channels) the text's last inputs; NULL: zeros */
    const float *inputs; /* (before + rows, channels) */
    const float *weight; /* (channels, kernel) */
    const float *bias;   /* (channels), or NULL */
    float *out;          /* (rows, channels) */
} Convolution;

enum { MOST_KERNEL = 16, CHANNELS_AT_ONCE = 16 * LANES };

/* Inputs that a row looks at, itself last; NULL before the text's beginning. */
static void looked_at(const Convolution *c, int row, const float **inputs) {
    int at = c->kernel - 1;
    size_t channels = (size_t)c->channels;
    for (; at >= 0 && row >= 0; row = c->below.above[row]) inputs[at--] = c->inputs + (size_t)row * channels;
    for (int last = c->kernel - 2; at >= 0; last--, at--) inputs[at] = c->last ? c->last + (size_t)last * channels : NULL;
}

/* Pieces are stretches of channels, whose weights are turned once for all rows. */
static void convolve_stretches(void *job, int from, int to, int thread) {
    (void)thread;
    const Convolution *c = job;
    for (int first = from * CHANNELS_AT_ONCE; first < c->channels && first < to * CHANNELS_AT_ONCE; first += CHANNELS_AT_ONCE) {
        int count = c->channels - first < CHANNELS_AT_ONCE ? c->channels - first : CHANNELS_AT_ONCE;
        float weight[MOST_KERNEL][CHANNELS_AT_ONCE];
        for (int channel = 0; channel < count; channel++)
            for (int k = 0; k < c->kernel; k++) weight[k][channel] = c->weight[(size_t)(first + channel) * (size_t)c->kernel + (size_t)k];
        for (int row = 0; row < c->below.rows; row++) {
            const float *inputs[MOST_KERNEL];
            looked_at(c, c->below.before + row, inputs);
            float *out = c->out + (size_t)row * (size_t)c->channels + first;
            for (int i = 0; i < count; i += REGISTER) {
                int valid = count - i;
                vf sum = c->bias ? load_lanes(c->bias + first + i, valid) : (vf){0};
                for (int k = 0; k < c->kernel; k++)
                    if (inputs[k]) sum = multiply_add(load_lanes(inputs[k] + first + i, valid), load_lanes(weight[k] + i, valid), sum);
                store_lanes(out + i, c->silu ? silu(sum) : sum, valid);
            }
        }
    }
}

/* Each row of itself and its own last ancestors. An Outcome. */
int recurrent_convolve(Team *team, const Convolution *c) {
    if (in_range("channels", c->channels, 1, MOST_TOKENS) || in_range("the kernel", c->kernel, 1, MOST_KERNEL)) return REFUSED;
    if (below_check(&c->below)) return REFUSED;
    together(team, ROUNDING, convolve_stretches, (void *)c, (c->channels + CHANNELS_AT_ONCE - 1) / CHANNELS_AT_ONCE, 1);
    return DONE;
}

/* Sizes of one layer's state; `heads / key_heads` heads share a head of keys. */
typedef struct { int32_t heads, key_heads, keys, values; } StateSizes;

static int state_check(const StateSizes *s) {
    if (in_range("heads", s->heads, 1, MOST_WIDTH) || in_range("key heads", s->key_heads, 1, s->heads)) return REFUSED;
    if (in_range("keys", s->keys, 1, MOST_WIDTH / 4) || in_range("values", s->values, 1, MOST_WIDTH / 4)) return REFUSED;
    return s->heads % s->key_heads ? refuse("%d heads are not a multiple of %d key heads", s->heads, s->key_heads) : DONE;
}

typedef struct {
    StateSizes sizes;
    int32_t delta;     /* whether what S holds for the key already is taken away */
    int32_t normalise; /* whether q and k are brought to length 1 */
    float scale;       /* of q */
    Below below;
    const float *state; /* (heads, keys, values) after the text; NULL: zeros */
    const float *q;     /* (rows, key_heads, keys) */
    const float *k;     /* like q */
    const float *x;     /* (rows, heads, values) */
    const float *decay; /* (rows, heads) logarithms */
    const float *rate;  /* (rows, heads) */
    const float *skip;  /* (heads), what of x is added to the output; NULL: nothing */
    /* Of all rows: those before are there, those of this pass are written. */
    float *kept_keys;    /* (before + rows, key_heads, keys) */
    float *kept_values;  /* (before + rows, heads, values) u */
    double *kept_totals; /* (before + rows, heads) G */
    float *out;          /* (rows, heads, values) */
    float *queries;      /* scratch, like q */
    float *read;         /* scratch, (threads, 2, rows, values) */
} Scan;

static float exp_of(double x) { return exponential(all((float)x))[0]; }

static void unit_or_copy(const Scan *s, const float *from, float scale, float *to) {
    int keys = s->sizes.keys;
    float factor = s->normalise ? scale / sqrtf(dot(from, from, keys) + 1e-6f) : scale;
    scale_row(from, NULL, factor, keys, to);
}

/* Pieces are rows. */
static void take_keys(void *job, int from, int to, int thread) {
    (void)thread;
    const Scan *s = job;
    size_t each = (size_t)s->sizes.key_heads * (size_t)s->sizes.keys;
    for (int row = from; row < to; row++)
        for (size_t at = (size_t)row * each, end = at + each; at < end; at += (size_t)s->sizes.keys) {
            unit_or_copy(s, s->q + at, s->scale, s->queries + at);
            unit_or_copy(s, s->k + at, 1, s->kept_keys + (size_t)s->below.before * each + at);
        }
}

/* Vectors of so many rows, `apart` apart, times a matrix (keys, values): (rows, values). Rows take their sums key by key. */
static void times_state(const float *vectors, size_t apart, int rows, const float *state, int keys, int values, float *out) {
    for (int column = 0; column < values; column += LANES)
        for (int first = 0; first < rows; first += ROWS_AT_ONCE) {
            int count = rows - first < ROWS_AT_ONCE ? rows - first : ROWS_AT_ONCE, valid = values - column;
            vf sum[ROWS_AT_ONCE][PARTS];
            const float *of[ROWS_AT_ONCE];
            UNROLLED
            for (int r = 0; r < ROWS_AT_ONCE; r++) {
                of[r] = vectors + (size_t)(first + (r < count ? r : 0)) * apart;
                UNROLLED
                for (int part = 0; part < PARTS; part++) sum[r][part] = (vf){0};
            }
            for (int key = 0; key < keys; key++) {
                const float *at = state + (size_t)key * (size_t)values + column;
                UNROLLED
                for (int part = 0; part < PARTS; part++) {
                    vf here = load_lanes(at + part * REGISTER, valid - part * REGISTER);
                    UNROLLED
                    for (int r = 0; r < ROWS_AT_ONCE; r++) sum[r][part] = multiply_add(all(of[r][key]), here, sum[r][part]);
                }
            }
            for (int r = 0; r < count; r++)
                for (int part = 0; part < PARTS; part++)
                    store_lanes(out + (size_t)(first + r) * (size_t)values + column + part * REGISTER, sum[r][part], valid - part * REGISTER);
        }
}

static void add_times(float factor, const float *from, int length, float *to) {
    for (int i = 0; i < length; i += REGISTER)
        store_lanes(to + i, multiply_add(all(factor), load_lanes(from + i, length - i), load_lanes(to + i, length - i)), length - i);
}

/* A row's place in what is kept of all rows, for one head. */
static size_t kept_at(int row, int heads, int head, int length) {
    return ((size_t)row * (size_t)heads + (size_t)head) * (size_t)length;
}

/* What a vector reads of the rows from `at` up, seen from a row whose total is `total`: added to `to`. */
static void read_path(const Scan *s, int head, const float *vector, double total, int at, float *to) {
    const StateSizes *z = &s->sizes;
    int key_head = head / (z->heads / z->key_heads);
    for (; at >= 0; at = s->below.above[at]) {
        float product = dot(vector, s->kept_keys + kept_at(at, z->key_heads, key_head, z->keys), z->keys);
        float factor = product * exp_of(total - s->kept_totals[kept_at(at, z->heads, head, 1)]);
        add_times(factor, s->kept_values + kept_at(at, z->heads, head, z->values), z->values, to);
    }
}

/* Pieces are heads. */
static void scan_heads(void *job, int from, int to, int thread) {
    const Scan *s = job;
    const StateSizes *z = &s->sizes;
    int rows = s->below.rows, before = s->below.before, keys = z->keys, values = z->values;
    size_t all_values = (size_t)rows * (size_t)values, apart = (size_t)z->key_heads * (size_t)keys;
    float *by_query = s->read + (size_t)thread * 2 * all_values, *by_key = by_query + all_values;
    for (int head = from; head < to; head++) {
        int key_head = head / (z->heads / z->key_heads);
        const float *queries = s->queries + (size_t)key_head * (size_t)keys;
        const float *own_keys = s->kept_keys + kept_at(before, z->key_heads, key_head, keys);
        const float *state = s->state ? s->state + (size_t)head * (size_t)keys * (size_t)values : NULL;
        if (state) times_state(queries, apart, rows, state, keys, values, by_query);
        if (state && s->delta) times_state(own_keys, apart, rows, state, keys, values, by_key);
        for (int row = 0; row < rows; row++) {
            int at = before + row, above = s->below.above[at];
            size_t own = kept_at(row, z->heads, head, 1), first = (size_t)row * (size_t)values;
            double total = (above < 0 ? 0 : s->kept_totals[kept_at(above, z->heads, head, 1)]) + (double)s->decay[own];
            s->kept_totals[kept_at(at, z->heads, head, 1)] = total;
            float left = state ? exp_of(total) : 0, rate = s->rate[own];
            const float *x = s->x + own * (size_t)values;
            float *u = s->kept_values + kept_at(at, z->heads, head, values), *out = s->out + own * (size_t)values;
            if (s->delta) {
                memset(u, 0, (size_t)values * sizeof *u);
                if (state) add_times(left, by_key + first, values, u);
                read_path(s, head, own_keys + (size_t)row * apart, total, above, u);
                for (int i = 0; i < values; i++) u[i] = rate * (x[i] - u[i]);
            } else {
                scale_row(x, NULL, rate, values, u);
            }
            if (s->skip) scale_row(x, NULL, s->skip[head], values, out);
            else memset(out, 0, (size_t)values * sizeof *out);
            if (state) add_times(left, by_query + first, values, out);
            read_path(s, head, queries + (size_t)row * apart, total, at, out);
        }
    }
}

/* What every row reads after it was added. An Outcome. */
int recurrent_scan(Team *team, const Scan *scan) {
    if (state_check(&scan->sizes) || below_check(&scan->below)) return REFUSED;
    together(team, ROUNDING, take_keys, (void *)scan, scan->below.rows, 1);
    together(team, ATTENTION, scan_heads, (void *)scan, scan->sizes.heads, 1);
    return DONE;
}

/* The state after a path of rows, each below the one before it, from what was kept of them. */
typedef struct {
    StateSizes sizes;
    int32_t kept, length;
    const int32_t *path; /* (length) rows, of `kept` */
    const float *state;  /* as a scan takes it */
    const float *kept_keys, *kept_values;
    const double *kept_totals;
    float *out; /* (heads, keys, values), another one than `state` */
} Following;

/* Pieces are heads. The state is written once for as many rows of the path as a tile has. */
static void follow_heads(void *job, int from, int to, int thread) {
    (void)thread;
    const Following *f = job;
    const StateSizes *z = &f->sizes;
    int keys = z->keys, values = z->values, last = f->path[f->length - 1];
    for (int head = from; head < to; head++) {
        double total = f->kept_totals[kept_at(last, z->heads, head, 1)];
        float left = exp_of(total);
        int key_head = head / (z->heads / z->key_heads);
        for (int first = 0; first < f->length; first += TILE) {
            int count = f->length - first < TILE ? f->length - first : TILE;
            float weight[TILE];
            const float *k[TILE], *u[TILE];
            for (int i = 0; i < count; i++) {
                int row = f->path[first + i];
                weight[i] = exp_of(total - f->kept_totals[kept_at(row, z->heads, head, 1)]);
                k[i] = f->kept_keys + kept_at(row, z->key_heads, key_head, keys);
                u[i] = f->kept_values + kept_at(row, z->heads, head, values);
            }
            const float *base = first ? f->out : f->state;
            for (int key = 0; key < keys; key++) {
                size_t at = kept_at(head, keys, key, values);
                float factor[TILE];
                for (int i = 0; i < count; i++) factor[i] = weight[i] * k[i][key];
                for (int column = 0; column < values; column += REGISTER) {
                    int valid = values - column;
                    vf sum = base ? load_lanes(base + at + column, valid) * (first ? 1 : left) : (vf){0};
                    for (int i = 0; i < count; i++) sum = multiply_add(all(factor[i]), load_lanes(u[i] + column, valid), sum);
                    store_lanes(f->out + at + column, sum, valid);
                }
            }
        }
    }
}

/* An Outcome. */
int recurrent_follow(Team *team, const Following *f) {
    if (state_check(&f->sizes) || in_range("rows kept", f->kept, 1, 2 * MOST_QUERIES)) return REFUSED;
    if (in_range("rows of a path", f->length, 1, f->kept)) return REFUSED;
    for (int step = 0; step < f->length; step++)
        if (in_range("a row of a path", f->path[step], 0, f->kept - 1)) return REFUSED;
    together(team, ATTENTION, follow_heads, (void *)f, f->sizes.heads, 1);
    return DONE;
}
