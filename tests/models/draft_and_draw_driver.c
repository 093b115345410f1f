/* Draws tokens and drafts from suffix trees with numbers that it makes up itself, and prints a checksum of each. */

#include "../../specchat/core/native/draw.c"

#include <stdio.h>
#include <stdlib.h>

typedef struct Tree Tree;
Tree *suffix_new(int32_t depth);
void suffix_free(Tree *tree);
int suffix_extend(Tree *tree, const int32_t *tokens, int64_t count);
int suffix_end_text(Tree *tree);
int suffix_forget_oldest(Tree *tree);
int32_t suffix_draft(Tree *const *trees, int32_t count, const int32_t *path, int32_t size, const int32_t *limits,
                     double probability, int32_t *above, int32_t *tokens, double *chances);

static uint64_t state = 1;

static uint32_t next(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

static uint64_t sum = 14695981039346656037u;

static void add(const void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) sum = (sum ^ ((const uint8_t *)data)[i]) * 1099511628211u;
}

static int draw_tokens(void) {
    enum { WIDTH = 5003, SEEN = 40 };
    static float logits[WIDTH], often[WIDTH];
    int64_t seen[SEEN], path[3] = {7, 4999, 7};
    char *room = malloc((size_t)draw_bytes(WIDTH));
    for (int i = 0; i < WIDTH; i++) often[i] = -1;
    for (int i = 0; i < SEEN; i++) often[seen[i] = next() % WIDTH] = (float)(i % 3);
    for (int i = 0; i < WIDTH; i++) logits[i] = (float)((int)(next() % 65536) - 32768) / 3000.0f;
    for (int turn = 0; turn < 400; turn++) {
        Sampling s = {.temperature = turn % 5 * 0.4, .top_p = turn % 3 ? 0.9 : 1, .log_min_p = turn % 4 ? -4 : -INFINITY,
                      .repetition = turn % 2 ? 1.1 : 1, .frequency = turn % 7 * 0.1, .top_k = turn % 6 ? 0 : 20};
        Text text = {seen, turn % 2 ? SEEN : 0, often, WIDTH};
        int token = draw(&s, logits, WIDTH, &text, path, turn % 4, turn * 0x9E3779B97F4A7C15u, room);
        if (token < 0) return 1;
        add(&token, sizeof token);
        logits[token] -= 1;
    }
    free(room);
    printf("draws %016llx\n", (unsigned long long)sum);
    return 0;
}

static int draft_tokens(void) {
    enum { DEPTH = 16 };
    Tree *tree = suffix_new(DEPTH);
    int32_t limits[DEPTH + 1], above[DEPTH], tokens[DEPTH];
    double chances[DEPTH];
    for (int i = 0; i <= DEPTH; i++) limits[i] = 2 * i < DEPTH ? 2 * i : DEPTH;
    int drafted = 0;
    for (int turn = 0; turn < 3000; turn++) {
        int32_t token = (int32_t)(next() % (turn % 40 < 30 ? 3 : 50));
        if (suffix_extend(tree, &token, 1)) return 2;
        int32_t path = (int32_t)(next() % 3); /* a drafted token, at every other turn */
        int32_t found = suffix_draft(&tree, 1, &path, turn % 2, limits, 0.05, above, tokens, chances);
        if (found < 0) return 3;
        drafted += found;
        add(above, (size_t)found * sizeof *above);
        add(tokens, (size_t)found * sizeof *tokens);
        add(chances, (size_t)found * sizeof *chances);
        if (turn % 500 == 499 && suffix_end_text(tree)) return 4;
        if (turn == 1999 && suffix_forget_oldest(tree)) return 5;
    }
    suffix_free(tree);
    printf("%d drafts %016llx\n", drafted, (unsigned long long)sum);
    return drafted < 1000;
}

int main(void) {
    int outcome = draw_tokens();
    return outcome ? outcome : draft_tokens();
}
