/* Runs the kernels on numbers that it makes up itself, the same on every processor, and prints a checksum of each result. */

#include "../../specchat/models/native/pass.c"
#include "../../specchat/models/native/pack.c"
#include "../../specchat/models/native/refuse.c"

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
    float *logits = room(END * VOCAB * sizeof(float)), totals[END];
    int32_t tokens[END * BEST];
    HeadAsked everything = {tokens, BEST, BEST, NULL, logits, totals};
    if (decoder_head(team, &decoder, hidden, END, &everything)) return 1;
    for (int i = 0; i < END * VOCAB; i++)
        if (!isfinite(logits[i])) return 2;
    print("logits", logits, END * VOCAB * sizeof(float));
    print("likeliest", tokens, sizeof tokens);
    print("totals", totals, sizeof totals);
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
    team_free(team);
    return 0;
}
