/* One pass of a Llama-like decoder over a few rows, on a processor.
 *
 * Weights are whole numbers of 4 or 8 bits with a scale (and perhaps a minimum) per 32 of a row; activations are rounded
 * to 8 bits with a scale per 32 of a row. Products of whole numbers are exact, and what is left is added in an order that
 * depends on the row alone: a row's result has the same bits however many rows are read with it, whichever of them it
 * does not see, and wherever in the cache its ancestors lie. That is what makes a tree's pass equal to plain decoding.
 *
 * Compiled on the user's machine for its own processor; specchat/models/cpu_kernels/build.py says how.
 */

#include "cache.h"
#include "check.h"
#include "chunk_scores.h"
#include "floor.h"
#include "gather.h"
#include "hydra.h"
#include "linear.h"
#include "qkv.h"
#include "recurrence.h"
#include "selector.h"
#include "whole_pass.h"

/* The stretch of the cache that each row sees, once for a pass: texts that are read together lie far apart. */
static void find_spans(Pass *p) {
    int rows = p->rows->rows, end = p->rows->end;
    for (int i = 0; i < p->decoder->kinds * rows; i++) {
        const AttentionKind *kind = &p->rows->kind[i / rows];
        int common = common_of(p->rows, kind, i % rows);
        const uint8_t *mask = kind->mask + (size_t)(i % rows) * (size_t)end;
        const uint8_t *seen = common > 0 ? mask : memchr(mask, 1, (size_t)end);
        Span span = {seen ? (int)(seen - mask) / KEYS * KEYS : 0, end};
        while (span.end > common && !mask[span.end - 1]) span.end--;
        p->spans[i] = span;
    }
}

static int queries_of(const Pass *p) { return p->rows->rows * (p->decoder->heads / p->decoder->kv_heads); }

/* How many queries that share a head of keys are one piece of work. */
static int queries_at_once(const Pass *p) {
    int sets = (queries_of(p) + SET - 1) / SET, wanted = sets * p->decoder->kv_heads / (3 * p->team->threads);
    return SET * (wanted < 1 ? 1 : wanted < AT_ONCE / SET ? wanted : AT_ONCE / SET);
}

static int parts_of(const Pass *p) { return (queries_of(p) + queries_at_once(p) - 1) / queries_at_once(p); }

static bool same_text(const Rows *r, int row, int other) { return !r->text_of || r->text_of[row] == r->text_of[other]; }

/* Whether a row sees some of what others see; then all of them see no more than the wider span. */
static bool overlap(Span *span, const Span *other) {
    if (other->first >= span->end || span->first >= other->end) return false;
    if (other->first < span->first) span->first = other->first;
    if (other->end > span->end) span->end = other->end;
    return true;
}

/* Pieces are queries that share a head of keys, row by row and head by head. Rows of different texts see nothing in
 * common, and are looked at text by text. */
static void attend_pieces(void *job, int from, int to, int thread) {
    Pass *p = job;
    const Decoder *d = p->decoder;
    int parts = parts_of(p), most = queries_at_once(p), size = d->head_dim, group = d->heads / d->kv_heads;
    const Span *spans = p->spans + (p->kind - p->rows->kind) * p->rows->rows;
    for (int piece = from; piece < to; piece++) {
        int shared = piece / parts, first = piece % parts * most;
        Query queries[AT_ONCE];
        float highest[AT_ONCE][LANES] __attribute__((aligned(64)));
        int last = queries_of(p) < first + most ? queries_of(p) : first + most;
        for (int next; first < last; first = next) {
            Span span = spans[first / group];
            for (next = first; next < last && same_text(p->rows, first / group, next / group) &&
                               overlap(&span, &spans[next / group]); next++) {
                size_t row = (size_t)(next / group), head = (size_t)(shared * group + next % group);
                size_t at = (row * (size_t)d->heads + head) * (size_t)size;
                queries[next - first] = (Query){p->queries + at / 2, p->kind->mask + row * (size_t)p->rows->end, p->mixed + at};
            }
            Looking l = {.queries = queries, .count = next - first, .most = highest, .size = size,
                         .common = common_of(p->rows, p->kind, first / group)};
            for (int n = 0; n < l.count; n++) queries[n].mask += span.first;
            l.end = span.end - span.first;
            l.room = room_for(l.end);
            l.weights = p->weights + (size_t)thread * AT_ONCE * (size_t)room_for(p->rows->end);
            HeadRows of_head = head_rows(p, first / group, shared);
            l.keys = of_head.keys + (size_t)span.first * (size_t)size / 2;
            l.values = of_head.values + (size_t)span.first * (size_t)size / 2;
            attend(&l);
        }
    }
}

/* silu(gate) · up, or with gelu, of LANES outputs from `column` on; with what adapters add to both. */
static void gate_lanes(const Pass *p, int row, int column, const float *gate, const float *up, float *to) {
    int inter = p->decoder->inter;
    bool adapted = p->gates && p->rows->adapter_of[row] >= 0;
    const float *added = adapted ? p->gates + (size_t)row * 2 * (size_t)inter : NULL;
    for (int i = 0; i < LANES; i += REGISTER) {
        vf a = load(gate + i), b = load(up + i);
        if (adapted) {
            a += load_lanes(added + column + i, inter - column - i);
            b += load_lanes(added + inter + column + i, inter - column - i);
        }
        store(to + i, (p->decoder->gelu ? gelu(a) : silu(a)) * b);
    }
}

/* Gate and up for whole groups of outputs, silu(gate) · up, and rounded for the product that follows. */
static void gate_groups(void *job, int from, int to, int thread) {
    (void)thread;
    Pass *p = job;
    const Product *gate = &p->layer->gate_up[0], *up = &p->layer->gate_up[1];
    for (int g = from, groups; g < to; g += groups) {
        groups = taken_together(p->rows->rows, to - g);
        int left = gate->out - g * GROUP, valid = left < groups * GROUP ? left : groups * GROUP;
        int block = 2 * g, blocks = (valid + LANES - 1) / LANES;
        for (int first = 0, count; first < p->rows->rows; first += count) {
            count = rows_at_once(p->rows->rows - first);
            float a[2 * TOGETHER][MOST_ROWS][LANES] __attribute__((aligned(64)));
            float b[2 * TOGETHER][MOST_ROWS][LANES] __attribute__((aligned(64)));
            float inner[MOST_ROWS][TOGETHER * GROUP] __attribute__((aligned(64)));
            some_blocks(gate, block, blocks, &p->x, first / TILE, count, a);
            some_blocks(up, block, blocks, &p->x, first / TILE, count, b);
            for (int r = 0; r < count; r++)
                for (int i = 0; i < blocks; i++)
                    gate_lanes(p, first + r, (block + i) * LANES, a[i][r], b[i][r], inner[r] + i * LANES);
            for (int r = 0; r < count; r += TILE)
                round_groups(inner[r], TOGETHER * GROUP, count - r < TILE ? count - r : TILE, valid, NULL, NULL, &p->inner,
                             (first + r) / TILE, g);
        }
    }
}

/* Add to products what adapters make of their input; rows without one are left alone. */
static void adapt(Pass *p, int first, int count, const Rounded *x, float *out, int width) {
    if (p->rows->adapters == 0) return;
    Adapt job = {p->rows->low_rank, p->rows->adapter_of, p->decoder->layers, (int)(p->layer - p->decoder->layer),
                 first, count, x, out, width};
    together(p->team, PRODUCTS, adapt_rows, &job, p->rows->rows, 1);
}

/* Add a product to the states; with a norm, the product normalised. `adapted` is its number among adapted products. */
static void add_product(Pass *p, const Product *product, int adapted, const Rounded *x, const float *norm) {
    int rows = p->rows->rows;
    float *to = norm ? p->added : p->hidden;
    multiply(p->team, product, 1, x, rows, to, norm == NULL);
    adapt(p, adapted, 1, x, to, product->out);
    p->norm = norm;
    if (norm) together(p->team, ROUNDING, add_rows, p, rows, FEW_ROWS);
}

/* Queries, keys and values. Where products are all that there is to them, they go where attention reads them at once. */
static void make_qkv(Pass *p) {
    const Decoder *d = p->decoder;
    int rows = p->rows->rows, pieces = 2 * d->kv_heads;
    if (d->head_dim % LANES == 0 && p->layer->q_norm == NULL && p->rows->adapters == 0) {
        int blocks = blocks_of(&p->layer->qkv[QUERY]) + 2 * blocks_of(&p->layer->qkv[KEY]);
        together(p->team, PRODUCTS, qkv_blocks, p, blocks, taken_together(rows, TOGETHER));
        return;
    }
    multiply(p->team, p->layer->qkv, 3, &p->x, rows, p->qkv, false);
    adapt(p, FIRST_QKV, 3, &p->x, p->qkv, (d->heads + 2 * d->kv_heads) * d->head_dim);
    together(p->team, ATTENTION, put_pieces, p, pieces, rows <= FEW_ROWS ? pieces : 1);
}

static void attention_half(Pass *p) {
    Team *team = p->team;
    const Decoder *d = p->decoder;
    int rows = p->rows->rows;
    round_rows(team, p->hidden, p->layer->input_norm, d->epsilon, rows, d->hidden, &p->x);
    make_qkv(p);
    if (p->rows->chunks) together(team, ATTENTION, score_heads, p, d->heads, 1);
    together(team, ATTENTION, attend_pieces, p, parts_of(p) * d->kv_heads, 1);
    round_rows(team, p->mixed, NULL, 0, rows, d->heads * d->head_dim, &p->x);
    add_product(p, &p->layer->o, FIRST_O, &p->x, p->layer->post_attention_norm);
}

static void mlp_half(Pass *p) {
    Team *team = p->team;
    int rows = p->rows->rows, inter = p->decoder->inter;
    round_rows(team, p->hidden, p->layer->mlp_norm, p->decoder->epsilon, rows, p->decoder->hidden, &p->x);
    if (p->gates) memset(p->gates, 0, (size_t)rows * 2 * (size_t)inter * sizeof(float));
    adapt(p, FIRST_GATE, 2, &p->x, p->gates, 2 * inter);
    together(team, PRODUCTS, gate_groups, p, p->inner.groups, taken_together(rows, TOGETHER));
    add_product(p, &p->layer->down, FIRST_DOWN, &p->inner, p->layer->post_mlp_norm);
}

/* Some layers over rows; an Outcome. The decoder was checked when it was built. */
int decoder_layers(Team *team, const Decoder *decoder, const Rows *rows, int first, int last) {
    if (rows_check(decoder, rows, first, last)) return REFUSED;
    Pass p = {.team = team, .decoder = decoder, .rows = rows, .hidden = rows->hidden,
              .query_scale = 1.44269504f / sqrtf((float)decoder->head_dim)};
    size_t bytes;
    lay_out(&p, NULL, &bytes);
    char *memory = aligned_alloc(64, bytes);
    if (memory == NULL) return NO_MEMORY;
    lay_out(&p, memory, &bytes);
    find_spans(&p);
    for (int i = first; i < last; i++) {
        p.layer = &decoder->layer[i];
        p.kind = &rows->kind[p.layer->kind];
        p.place = rows->place_of ? rows->place_of[i] : i;
        if (p.place >= 0) attention_half(&p);
        if (rows->mlp == NULL || rows->mlp[i]) mlp_half(&p);
        if (rows->tapped && rows->tap_of[i] >= 0) {
            size_t states = (size_t)rows->rows * (size_t)decoder->hidden;
            memcpy(rows->taps + (size_t)rows->tap_of[i] * states, p.hidden, states * sizeof(float));
        }
        for (const Text *t = rows->text; t < rows->text + rows->texts; t++)
            if (t->tapped && t->tap_of[i] >= 0) {
                size_t states = (size_t)t->rows * (size_t)decoder->hidden, before = (size_t)t->first * (size_t)decoder->hidden;
                memcpy(t->taps + (size_t)t->tap_of[i] * states, p.hidden + before, states * sizeof(float));
            }
    }
    if (last == decoder->layers) begin_fetching(team);
    free(memory);
    return DONE;
}

/* What layers and head work in, in a pass of so many rows over so many cache rows: whichever takes more. */
size_t decoder_bytes(int threads, const Decoder *decoder, int rows, int seen) {
    Team team = {.threads = threads};
    Rows read = {.rows = rows, .end = seen}, few = {.rows = rows};
    Pass layers = {.team = &team, .decoder = decoder, .rows = &read}, head = {.team = &team, .decoder = decoder, .rows = &few};
    size_t of_layers, of_head;
    lay_out(&layers, NULL, &of_layers);
    lay_out(&head, NULL, &of_head);
    of_head += head_lists(&team, rows) + head_sums(decoder, rows);
    return of_layers > of_head ? of_layers : of_head;
}

/* A whole pass over tokens in one call: embeddings, what rows see, layers, head. `about` gives the checked places of cache
 * and rotations and what is left out; `whole` gives the rest. An Outcome. */
int decoder_read(Team *team, const Decoder *decoder, const Rows *about, const WholePass *whole) {
    if (whole_check(decoder, about, whole)) return REFUSED;
    int count = whole->rows, said = count - whole->missing;
    size_t states = up_to_64((size_t)count * (size_t)decoder->hidden * sizeof(float));
    size_t numbers = up_to_64((size_t)(count + behind(whole)) * sizeof(int32_t));
    char *memory = aligned_alloc(64, states + numbers + up_to_64((size_t)count * (size_t)end_of(whole)));
    if (memory == NULL) return NO_MEMORY;
    float *hidden = (float *)memory;
    int32_t *places = (int32_t *)(memory + states), *positions = places + count;
    uint8_t *mask = (uint8_t *)memory + states + numbers;
    see(whole, mask, end_of(whole), places, positions);
    Rows rows = rows_of(about, whole, decoder->kinds, hidden, mask, places, positions);
    int outcome = embed(whole, hidden);
    if (outcome == DONE) outcome = decoder_layers(team, decoder, &rows, 0, decoder->layers);
    const float *last = hidden + (size_t)whole->missing * (size_t)decoder->hidden;
    if (outcome == DONE && whole->states) memcpy(whole->states, last, (size_t)said * (size_t)decoder->hidden * sizeof(float));
    if (outcome == DONE) outcome = decoder_head(team, decoder, last, said, &whole->asked);
    free(memory);
    return outcome;
}

/* The same for several texts in one pass, each with `about` and `whole` of its own. What is asked of the head and its states
 * are those of the first `whole`, for the rows of all that have logits, text by text. Where `ready` is given, it is called
 * before each layer, whose weights are there once it returns 0; anything else ends the pass. An Outcome. */
int decoder_read_together(Team *team, const Decoder *decoder, const Rows *const *about, const WholePass *whole, int texts,
                          LayerReady *ready) {
    JointSizes sizes;
    if (joint_check(decoder, about, whole, texts, &sizes)) return REFUSED;
    size_t count = (size_t)sizes.rows, width = (size_t)decoder->hidden * sizeof(float);
    size_t states = up_to_64(count * width), numbers = up_to_64(3 * count * sizeof(int32_t));
    char *memory = aligned_alloc(64, 2 * states + numbers + up_to_64(count * (size_t)sizes.end));
    if (memory == NULL) return NO_MEMORY;
    float *hidden = (float *)memory, *last = (float *)(memory + states);
    int32_t *places = (int32_t *)(memory + 2 * states), *positions = places + count, *text_of = positions + count;
    uint8_t *mask = (uint8_t *)memory + 2 * states + numbers;
    Text text[MOST_TEXTS];
    int outcome = DONE;
    for (int i = 0, first = 0; i < texts && outcome == DONE; first += whole[i++].rows) {
        text[i] = text_of_pass(about[i], &whole[i], first);
        for (int row = first; row < first + whole[i].rows; row++) text_of[row] = i;
        see(&whole[i], mask + (size_t)first * (size_t)sizes.end, sizes.end, places + first, positions + first);
        outcome = embed(&whole[i], hidden + (size_t)first * (size_t)decoder->hidden);
    }
    Rows rows = joint_rows(about, texts, decoder->kinds, &sizes, hidden, mask, places, positions);
    rows.text = text;
    rows.text_of = text_of;
    if (outcome == DONE && !ready) outcome = decoder_layers(team, decoder, &rows, 0, decoder->layers);
    for (int i = 0; outcome == DONE && ready && i < decoder->layers; i++)
        outcome = ready(i) ? REFUSED : decoder_layers(team, decoder, &rows, i, i + 1);
    float *to = last;
    for (int i = 0; i < texts; i++) {
        size_t first = (size_t)(text[i].first + whole[i].missing), said = (size_t)(whole[i].rows - whole[i].missing);
        memcpy(to, hidden + first * (size_t)decoder->hidden, said * width);
        to += said * (size_t)decoder->hidden;
    }
    if (outcome == DONE && whole->states) memcpy(whole->states, last, (size_t)sizes.said * width);
    if (outcome == DONE) outcome = decoder_head(team, decoder, last, sizes.said, &whole->asked);
    free(memory);
    return outcome;
}
