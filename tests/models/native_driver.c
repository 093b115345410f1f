/* Runs the kernels on numbers that it makes up itself, the same on every processor, and prints a checksum of each result. */

#include "../../specchat/models/cpu_kernels/pass.c"
#include "../../specchat/models/cpu_kernels/pack.c"
#include "../../specchat/models/cpu_kernels/refuse.c"

#include <stdio.h>

enum { LAYERS = 2, HIDDEN = 96, HEADS = 4, KV_HEADS = 2, SIZE = 64, INTER = 100, VOCAB = 1003, CAPACITY = 576 };
enum { PROMPT = 537, NODES = 5, END = PROMPT + NODES };

static uint64_t state = 1;

static uint32_t next(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

/* −1 to 1, in steps of 2^−15. */
static float number(void) { return (float)((int)(next() % 65536) - 32768) / 32768.0f; }

static void *room(size_t bytes) {
    void *memory = aligned_alloc(64, (bytes + 8191) / 64 * 64);
    memset(memory, 0, (bytes + 8191) / 64 * 64);
    return memory;
}

static float *numbers(size_t count) {
    float *all = room(count * sizeof(float));
    for (size_t i = 0; i < count; i++) all[i] = number();
    return all;
}

/* A product of random weights: of 8 bits, of 4 with minima, or of 4 without, as a file holds them. */
static Product product(int out, int in, int bits, bool minima) {
    int groups = (in + GROUP - 1) / GROUP;
    size_t step = (size_t)(LANES * GROUP / 8 * bits + (minima ? 2 : 1) * LANES * 2);
    size_t bytes = (size_t)((out + LANES - 1) / LANES * groups) * step;
    uint8_t *data = room(bytes);
    Stored stored = {.rows = out, .there = out, .length = in, .kind = F32, .row_bytes = in * 4, .data = (uint8_t *)numbers((size_t)(out * in))};
    if (bits == 4 && !minima) {
        stored.kind = Q4_0;
        stored.row_bytes = groups * 18;
        uint8_t *blocks = room((size_t)(out * groups * 18));
        for (int i = 0; i < out * groups; i++) {
            uint16_t scale = as_half(0.05f + 0.05f * number());
            memcpy(blocks + i * 18, &scale, 2);
            for (int j = 2; j < 18; j++) blocks[i * 18 + j] = (uint8_t)next();
        }
        stored.data = blocks;
    }
    if (pack(&stored, bits, data, (int64_t)bytes)) exit(3);
    return (Product){.in = in, .out = out, .bits = bits, .minima = minima, .bytes = (int64_t)bytes, .data = data, .bias = bits == 8 ? numbers((size_t)out) : NULL};
}

static void print(const char *name, const void *data, size_t bytes) {
    uint64_t sum = 14695981039346656037u;
    for (size_t i = 0; i < bytes; i++) sum = (sum ^ ((const uint8_t *)data)[i]) * 1099511628211u;
    printf("%s %016llx\n", name, (unsigned long long)sum);
}

/* End where the kernels refuse what they are given. */
static void must(int outcome) {
    if (outcome == DONE) return;
    fprintf(stderr, "%s\n", refusal());
    exit(1);
}

/* Rows of every kind that files hold, as numbers and packed. Scales are small, as files have them: what comes of random bytes
 * may be no number. */
static void print_kinds(void) {
    enum { ROWS = 19, LENGTH = 512 };
    for (int kind = 0; kind < KINDS_END; kind++) {
        if (!packs(kind)) continue;
        const StoredBlock *block = &BLOCK[kind];
        int bytes = LENGTH / block->numbers * block->bytes, scale = kind == Q6_K ? 208 : 0, second = kind == F32 ? -1 : 2;
        uint8_t *data = room((size_t)(ROWS * bytes));
        for (int at = 0; at < ROWS * bytes; at++) data[at] = (uint8_t)next();
        for (int at = 0; at < ROWS * bytes; at += block->bytes) {
            float value = number();
            uint16_t half = as_half(0.01f + 0.005f * value), brain = (uint16_t)(as_half(value) & 0x3fff);
            if (kind == F32) memcpy(data + at, &value, sizeof value);
            else memcpy(data + at + scale, kind == BF16 ? &brain : &half, sizeof half);
            if (second > 0 && block->bytes > 2 && kind != Q6_K && kind != Q8_0 && kind != Q4_0 && kind != Q5_0)
                memcpy(data + at + second, &half, sizeof half);
        }
        Stored stored = {.rows = ROWS, .there = ROWS, .length = LENGTH, .kind = kind, .row_bytes = bytes, .data = data};
        float *unpacked = room(ROWS * LENGTH * sizeof(float));
        must(unpack_rows(&stored, unpacked));
        print("unpacked", unpacked, ROWS * LENGTH * sizeof(float));
        for (int bits = 4; bits <= 8; bits += 4) {
            uint8_t *packed = room(2 * LANES * LENGTH * 2);
            must(pack(&stored, bits, packed, 2 * LANES * LENGTH * 2));
            print("packed", packed, 2 * LANES * LENGTH * 2);
        }
    }
}

/* A text and then a tree behind it, each read in one call. */
static void print_whole_passes(Team *team, const Decoder *decoder, const float *turns) {
    enum { TEXT = 141, TREE = 6 };
    const int32_t above_tree[TREE] = {-1, 0, 0, 1, 2, 2};
    int groups = HIDDEN / GROUP;
    uint8_t *table = room((size_t)(VOCAB * groups * 34));
    for (int i = 0; i < VOCAB * groups; i++) {
        uint16_t scale = as_half(0.01f + 0.005f * number());
        memcpy(table + i * 34, &scale, 2);
        for (int j = 2; j < 34; j++) table[i * 34 + j] = (uint8_t)next();
    }
    Stored embedding = {.data = table, .row_bytes = groups * 34, .length = HIDDEN, .kind = Q8_0, .there = VOCAB};
    size_t cache = (size_t)LAYERS * KV_HEADS * CAPACITY * SIZE * sizeof(uint16_t);
    Rows about = {.capacity = CAPACITY, .keys = room(cache), .values = room(cache), .kept = LAYERS,
                  .kind = {{.positions = END, .rotations = turns}}};
    int32_t numbers_of_text[2 * TEXT], numbers_of_tree[2 * TREE], tokens[TREE * BEST];
    for (int i = 0; i < TEXT; i++) numbers_of_text[i] = (int32_t)(next() % VOCAB), numbers_of_text[TEXT + i] = i - 1;
    for (int i = 0; i < TREE; i++) numbers_of_tree[i] = (int32_t)(next() % VOCAB), numbers_of_tree[TREE + i] = above_tree[i];
    float highest[TREE * BEST], logsumexp[TREE], *logits = room(TREE * VOCAB * sizeof(float)), states[TREE * HIDDEN];
    HeadAsked asked = {tokens, BEST, BEST, highest, logits, logsumexp};
    WholePass text = {.rows = TEXT, .missing = TEXT - 1, .count = 2 * TEXT, .numbers = numbers_of_text, .embedding = &embedding, .scale = 1, .asked = asked};
    WholePass tree = {.rows = TREE, .start = TEXT, .common = TEXT, .first = TEXT, .count = 2 * TREE, .numbers = numbers_of_tree,
                      .embedding = &embedding, .scale = 1, .states = states, .asked = asked};
    must(decoder_read(team, decoder, &about, &text));
    must(decoder_read(team, decoder, &about, &tree));
    print("states of a tree", states, sizeof states);
    print("logits of a tree", logits, TREE * VOCAB * sizeof(float));
    print("logsumexp of a tree", logsumexp, sizeof logsumexp);
    print("likeliest of a tree", tokens, sizeof tokens);
    const int32_t moves[] = {TEXT + 1, TEXT + 2, TEXT + 2, TEXT + 5};
    must(cache_move(about.keys, about.values, LAYERS * KV_HEADS, CAPACITY, SIZE, moves, 2));
    print("moved keys", about.keys, cache);
    print("moved values", about.values, cache);
}

/* Rows of which some have an adapter. */
static void print_adapted(Team *team, const Decoder *decoder, const Rows *prompt) {
    enum { ROWS = 21, RANK = 3 };
    LowRank adapter[LAYERS * ADAPTED];
    for (int i = 0; i < LAYERS * ADAPTED; i++) {
        const Layer *l = &decoder->layer[i / ADAPTED];
        const Product *each[ADAPTED] = {&l->qkv[0], &l->qkv[1], &l->qkv[2], &l->o, &l->gate_up[0], &l->gate_up[1], &l->down};
        const Product *p = each[i % ADAPTED];
        adapter[i] = (LowRank){RANK, p->in, p->out, numbers((size_t)(RANK * p->in)), numbers((size_t)(p->out * RANK))};
    }
    int32_t adapter_of[ROWS];
    for (int row = 0; row < ROWS; row++) adapter_of[row] = row % 3 - 1 ? 0 : -1;
    Rows rows = *prompt;
    rows.rows = ROWS;
    rows.hidden = numbers(ROWS * HIDDEN);
    rows.adapters = 1;
    rows.low_rank = adapter;
    rows.adapter_of = adapter_of;
    must(decoder_layers(team, decoder, &rows, 0, LAYERS));
    print("adapted states", rows.hidden, ROWS * HIDDEN * sizeof(float));
}

/* Some outputs of the head as a head of their own: the logits that the whole head has. */
static void check_gathered(Team *team, const Decoder *decoder, const float *hidden, const float *logits) {
    enum { FIRST = 5, MORE = 32, ALL = FIRST + MORE, ROWS = 9 };
    int32_t outputs[ALL], tokens[ROWS];
    int groups = HIDDEN / GROUP, bytes = (ALL + LANES - 1) / LANES * groups * LANES * (GROUP + 2);
    for (int i = 0; i < ALL; i++) outputs[i] = (int32_t)(next() % VOCAB);
    uint8_t *data = room((size_t)bytes);
    must(gather_outputs(&decoder->head, outputs, FIRST, data, bytes, 0));
    must(gather_outputs(&decoder->head, outputs + FIRST, MORE, data, bytes, FIRST));
    float found[ROWS * ALL], bias[ALL];
    for (int i = 0; i < ALL; i++) bias[i] = decoder->head.bias[outputs[i]];
    Decoder few = *decoder;
    few.vocab_size = ALL;
    few.head = (Product){.in = HIDDEN, .out = ALL, .bits = 8, .bytes = bytes, .data = data, .bias = bias};
    must(decoder_head(team, &few, hidden, ROWS, &(HeadAsked){tokens, 1, 1, NULL, found, NULL}));
    for (int i = 0; i < ROWS * ALL; i++)
        if (found[i] != logits[i / ALL * VOCAB + outputs[i % ALL]]) exit(5);
}

/* The tree that a network drafts by itself. */
static void print_drafted(Team *team, const Decoder *decoder) {
    enum { ROOM = 40, TAPS = 2, INNER = 100 };
    Hydra hydra = {.mlp = {.hidden = HIDDEN, .inner = INNER, .taps = TAPS, .epsilon = 1e-5f, .mlp_norm = numbers(HIDDEN),
                           .fuse = product(HIDDEN, TAPS * HIDDEN, 8, false), .gate_up = product(2 * INNER, HIDDEN, 4, true),
                           .down = product(HIDDEN, INNER, 4, true)},
                   .back = product(HIDDEN, HIDDEN, 8, false)};
    must(hydra_check(&hydra));
    int32_t parents[ROOM] = {-1}, tokens[ROOM] = {17}, best[ROOM * BEST], input_of[VOCAB];
    float states[ROOM * HIDDEN] = {0}, logprobs[ROOM * BEST], logsumexp[ROOM];
    int64_t names[VOCAB];
    for (int i = 0; i < VOCAB; i++) input_of[i] = i, names[i] = (i + 7) % VOCAB;
    HydraTree tree = {.room = ROOM, .features = numbers(TAPS * HIDDEN), .apart = HIDDEN, .parents = parents, .tokens = tokens, .states = states,
                      .inputs = numbers(VOCAB * HIDDEN), .input_rows = VOCAB, .input_of = input_of, .tokens_known = VOCAB, .names = names,
                      .logits = room(ROOM * VOCAB * sizeof(float)), .best = best, .logprobs = logprobs, .logsumexp = logsumexp};
    must(hydra_read(team, decoder, &hydra, &tree, 1, &(Search){.nodes = 30, .depth = 4, .width = 4}));
    if (tree.known < 10) exit(6);
    print("drafted tokens", tokens, (size_t)tree.known * sizeof *tokens);
    print("drafted parents", parents, (size_t)tree.known * sizeof *parents);
    print("drafted states", states, sizeof states);
    for (int row = 0; row < tree.known; row++) print("drafted logprobs", logprobs + row * BEST, BEST * sizeof *logprobs);
}

/* What heads that guess all depths say of a tree's rows. */
static void print_selected(Team *team, const Decoder *decoder) {
    enum { HEADS = 3, TAPS = 2, INNER = 100, RANK = 20, ROWS = 4, ROOM = 2 * ROWS };
    Selector selector = {.mlp = {.hidden = HIDDEN, .inner = INNER, .taps = TAPS, .epsilon = 1e-5f, .mlp_norm = numbers(HIDDEN),
                                 .fuse = product(HIDDEN, TAPS * HIDDEN, 8, false), .gate_up = product(2 * INNER, HIDDEN, 8, false),
                                 .down = product(HIDDEN, INNER, 8, false)},
                         .heads = HEADS, .rank = RANK, .candidates = 30, .mix = numbers(RANK * RANK),
                         .blocks = product(HEADS * HIDDEN, HIDDEN, 8, false), .gates = product(HEADS * RANK, HIDDEN, 8, false)};
    must(selector_check(&selector));
    int32_t parents[HEADS + 1], tokens[HEADS + 1], best[(HEADS + 1) * BEST], input_of[VOCAB], depths[ROOM];
    float states[(HEADS + 1) * HIDDEN], logits[(HEADS + 1) * BEST], sums[HEADS + 1], rows[ROOM * RANK], gates[HEADS * RANK];
    int64_t names[VOCAB];
    for (int i = 0; i < VOCAB; i++) input_of[i] = VOCAB - 1 - i, names[i] = (i + 7) % VOCAB;
    SelectorTree tree = {.heads = {.room = HEADS + 1, .features = numbers(TAPS * HIDDEN), .apart = HIDDEN, .parents = parents,
                                   .tokens = tokens, .states = states, .inputs = numbers(VOCAB * HIDDEN), .input_rows = VOCAB,
                                   .input_of = input_of, .tokens_known = VOCAB, .names = names,
                                   .logits = room((HEADS + 1) * VOCAB * sizeof(float)), .best = best, .logprobs = logits,
                                   .logsumexp = sums},
                         .room = ROOM, .depths = depths, .rows = rows, .gates = gates, .pairs = numbers(VOCAB * 2 * RANK), .pair_rows = VOCAB, .pair_of = input_of};
    SelectorReader reader = {team, decoder, &selector, &tree};
    int32_t said[ROWS * SEARCHED_WIDTH];
    float logprobs[ROWS * SEARCHED_WIDTH], logsumexp[ROWS];
    must(selector_read_rows(&reader, 1, (int32_t[]){-1}, (int32_t[]){17}, 8, said, logprobs, logsumexp));
    must(selector_read_rows(&reader, ROWS, (int32_t[]){0, 0, 0, 0}, (int32_t[]){3, 0, 9, VOCAB - 1}, 8, said, logprobs, logsumexp));
    for (int row = 0; row < ROWS; row++) {
        print("selected tokens", said + row * SEARCHED_WIDTH, 8 * sizeof *said);
        print("selected logprobs", logprobs + row * SEARCHED_WIDTH, 8 * sizeof *logprobs);
    }
    must(selector_read_rows(&reader, 2, (int32_t[]){1, 2}, (int32_t[]){5, 6}, 8, said, logprobs, logsumexp));
    must(selector_read_rows(&reader, 1, (int32_t[]){5}, (int32_t[]){5}, 8, said, logprobs, logsumexp));
    if (said[0] != -1) exit(7);
}

/* A recurrent layer over a tree, and the state after a path of it. */
static void print_recurrence(Team *team) {
    enum { BEFORE = 2, NEW = 11, ALL = BEFORE + NEW, CHANNELS = 300, KERNEL = 4, STATE_HEADS = 4, KEY_HEADS = 2, K = 40, V = 33 };
    const int32_t above[ALL] = {-1, 0, 0, 1, 2, 2, -1, 6, 4, 8, 9, 10, 3}, path[] = {0, 2, 4, 8, 9, 10, 11};
    float *out = room(NEW * CHANNELS * sizeof *out), *read = room(NEW * STATE_HEADS * V * sizeof *read);
    Below below = {BEFORE, NEW, above};
    Convolution convolution = {.channels = CHANNELS, .kernel = KERNEL, .silu = 1, .below = below, .last = numbers((KERNEL - 1) * CHANNELS),
                               .inputs = numbers(ALL * CHANNELS), .weight = numbers(CHANNELS * KERNEL), .bias = numbers(CHANNELS), .out = out};
    must(recurrent_convolve(team, &convolution));
    print("convolution of a tree", out, NEW * CHANNELS * sizeof *out);
    StateSizes sizes = {STATE_HEADS, KEY_HEADS, K, V};
    float *state = numbers(STATE_HEADS * K * V), *after = room(STATE_HEADS * K * V * sizeof *after), *decay = numbers(NEW * STATE_HEADS);
    double *totals = room(ALL * STATE_HEADS * sizeof *totals);
    for (int i = 0; i < NEW * STATE_HEADS; i++) decay[i] = -fabsf(decay[i]);
    for (int delta = 0; delta < 2; delta++) {
        Scan scan = {.sizes = sizes, .delta = delta, .normalise = delta, .scale = 0.25f, .below = below, .state = state,
                     .q = numbers(NEW * KEY_HEADS * K), .k = numbers(NEW * KEY_HEADS * K), .x = numbers(NEW * STATE_HEADS * V), .decay = decay,
                     .rate = numbers(NEW * STATE_HEADS), .skip = delta ? NULL : numbers(STATE_HEADS), .kept_keys = numbers(ALL * KEY_HEADS * K),
                     .kept_values = numbers(ALL * STATE_HEADS * V), .kept_totals = totals, .out = read,
                     .queries = room(NEW * KEY_HEADS * K * sizeof(float)),
                     .read = room((size_t)team->threads * 2 * NEW * V * sizeof(float))};
        must(recurrent_scan(team, &scan));
        print("scan of a tree", read, NEW * STATE_HEADS * V * sizeof *read);
        Following following = {.sizes = sizes, .kept = ALL, .length = sizeof path / sizeof *path, .path = path, .state = state,
                               .kept_keys = scan.kept_keys, .kept_values = scan.kept_values, .kept_totals = totals, .out = after};
        must(recurrent_follow(team, &following));
        print("state after a path", after, STATE_HEADS * K * V * sizeof *after);
    }
}

int main(void) {
    Layer layers[LAYERS];
    int width = HEADS * SIZE, kv_width = KV_HEADS * SIZE;
    for (int i = 0; i < LAYERS; i++) {
        layers[i] = (Layer){
            .input_norm = numbers(HIDDEN), .mlp_norm = numbers(HIDDEN), 
            .q_norm = i ? numbers(SIZE) : NULL, .k_norm = i ? numbers(SIZE) : NULL,
            .qkv = {product(width, HIDDEN, 4, true), product(kv_width, HIDDEN, 8, false), product(kv_width, HIDDEN, 4, false)},
            .o = product(HIDDEN, width, 4, false),
            .gate_up = {product(INTER, HIDDEN, 4, true), product(INTER, HIDDEN, 8, false)},
            .down = product(HIDDEN, INTER, 8, false),
        };
    }
    Decoder decoder = {LAYERS, HIDDEN, HEADS, KV_HEADS, SIZE, INTER, VOCAB, 1, 0, 1e-5f, layers, numbers(HIDDEN),
                       product(VOCAB, HIDDEN, 8, false)};
    size_t cache = (size_t)LAYERS * KV_HEADS * CAPACITY * SIZE * sizeof(uint16_t);
    uint32_t *keys = room(cache), *values = room(cache);
    int32_t places[END], positions[END] = {0};
    static uint8_t seen[END * END];
    for (int row = 0; row < END; row++) {
        places[row] = row;
        positions[row] = row < PROMPT ? row : PROMPT + (row - PROMPT) / 2;
        for (int at = 0; at <= row; at++) seen[row * END + at] = at < PROMPT || at == row || at == PROMPT;
    }
    static uint8_t prompt_seen[PROMPT * PROMPT];
    for (int row = 0; row < PROMPT; row++) memcpy(prompt_seen + row * PROMPT, seen + row * END, PROMPT);
    float *turns = numbers(END * SIZE), *hidden = numbers(END * HIDDEN);
    Team *team = team_new(3);
    Rows prompt = {PROMPT, PROMPT, CAPACITY, hidden, positions, places, keys, values, {{0, END, turns, prompt_seen}}, .kept = LAYERS};
    Rows tree = {NODES, END, CAPACITY, hidden + PROMPT * HIDDEN, positions + PROMPT, places + PROMPT, keys, values,
                 {{PROMPT, END, turns, seen + PROMPT * END}}, .kept = LAYERS};
    if (decoder_check(&decoder)) return 4;
    if (decoder_layers(team, &decoder, &prompt, 0, LAYERS) || decoder_layers(team, &decoder, &tree, 0, LAYERS)) return 1;
    print("states", hidden, END * HIDDEN * sizeof(float));
    print("keys", keys, cache);
    print("values", values, cache);
    float *logits = room(END * VOCAB * sizeof(float)), logsumexp[END];
    int32_t tokens[END * BEST];
    HeadAsked everything = {tokens, BEST, BEST, NULL, logits, logsumexp};
    if (decoder_head(team, &decoder, hidden, END, &everything)) return 1;
    for (int i = 0; i < END * VOCAB; i++)
        if (!isfinite(logits[i])) return 2;
    print("logits", logits, END * VOCAB * sizeof(float));
    print("likeliest", tokens, sizeof tokens);
    print("logsumexp", logsumexp, sizeof logsumexp);
    int32_t few[END * BEST];
    float highest[END * BEST];
    for (int named = 1; named <= BEST; named += 7) {
        HeadAsked asked = {few, named, BEST, highest, NULL, NULL};
        if (decoder_head(team, &decoder, hidden, END, &asked)) return 1;
        for (int i = 0; i < END * BEST; i++)
            if (i % BEST < named && (few[i] != tokens[i] || highest[i] != logits[i / BEST * VOCAB + few[i]])) return 3;
    }
    const int32_t row_of[] = {0, 0, 2, END - 1}, asked[] = {0, VOCAB - 1, 5, 700};
    float found[4];
    if (log_probabilities(team, logits, tokens, BEST, END, VOCAB, 4, row_of, asked, found)) return 1;
    print("log-probabilities", found, sizeof found);
    float scores[LAYERS * HEADS * 67];
    Rows asked_row = {1, END, CAPACITY, hidden, positions + END - 1, places + END - 1, keys, values,
                      {{PROMPT, END, turns, seen + (END - 1) * END}}, .kept = LAYERS, .chunks = 67, .chunk_rows = 8, .chunk_scores = scores};
    if (decoder_layers(team, &decoder, &asked_row, 0, LAYERS)) return 1;
    print("chunk scores", scores, sizeof scores);
    uint32_t *other_keys = room(cache), *other_values = room(cache);
    Heads of = {keys, values, CAPACITY}, to = {other_keys, other_values, CAPACITY};
    if (cache_copy(&to, &of, LAYERS * KV_HEADS, SIZE, places + 5, 2, 300)) return 1;
    print("copied keys", other_keys, cache);
    print("copied values", other_values, cache);
    print_kinds();
    print_whole_passes(team, &decoder, turns);
    print_adapted(team, &decoder, &prompt);
    check_gathered(team, &decoder, hidden + HIDDEN, logits + VOCAB); /* the first row was read again meanwhile */
    print_drafted(team, &decoder);
    print_selected(team, &decoder);
    print_recurrence(team);
    team_free(team);
    return 0;
}
