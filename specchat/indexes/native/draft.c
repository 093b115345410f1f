/* The likeliest continuations of a text, as suffix_draft.py in the folder above finds them: the same, in the same order. */

#include <math.h>

#include "drafts.h"

typedef struct {
    double value; /* of the whole path: the product of shares */
    double chance;
    int64_t order;
    int32_t token, above, matched;
    Place place;
} Option;

typedef struct {
    Option *options;
    size_t count, room;
    int64_t order;
} Heap;

/* What was drafted: for each token the entry it follows (0 is the end of the text, the first token is 1), and how likely. */
typedef struct {
    int32_t *above, *tokens;
    double *chances;
    int32_t count;
    double saved; /* sum of path probabilities */
} Draft;

typedef struct {
    int32_t limit, matched; /* tokens that may be drafted; the match's length */
    Place place;
} Start;

static inline bool better(const Option *a, const Option *b) {
    return a->value != b->value ? a->value > b->value : a->order < b->order;
}

static int push(Heap *heap, Option option) {
    if (heap->count == heap->room) {
        size_t room = heap->room ? 2 * heap->room : 64;
        Option *options = realloc(heap->options, room * sizeof *options);
        if (options == NULL) return NO_MEMORY;
        heap->options = options;
        heap->room = room;
    }
    option.order = heap->order++;
    size_t at = heap->count++;
    for (; at && better(&option, &heap->options[(at - 1) / 2]); at = (at - 1) / 2)
        heap->options[at] = heap->options[(at - 1) / 2];
    heap->options[at] = option;
    return DONE;
}

static Option pop(Heap *heap) {
    Option best = heap->options[0], last = heap->options[--heap->count];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < heap->count; at = child) {
        if (child + 1 < heap->count && better(&heap->options[child + 1], &heap->options[child])) child++;
        if (!better(&heap->options[child], &last)) break;
        heap->options[at] = heap->options[child];
    }
    if (heap->count) heap->options[at] = last;
    return best;
}

/* How likely what followed a match of so many tokens `count` of `times` times follows it once more. */
static inline double chance_of(double count, double times, double matched) {
    double odds = count * count * matched / (3.0 + 6.0 * matched * (times - count));
    return fmin(count / times, odds / (1.0 + odds));
}

/* Put what follows a path on the heap, as `longer` says, if it followed often enough. */
static int push_often(const Tree *tree, Heap *heap, Option path, int32_t above, int32_t token, Place longer, double probability) {
    double times = (double)followed(tree, path.place), count = (double)occurrences(tree, longer);
    if (count < times * probability / path.value) return DONE;
    double chance = chance_of(count, times, path.matched);
    return push(heap, (Option){path.value * (count / times), chance, 0, token, above, path.matched + 1, longer});
}

/* Put everything on the heap that follows a path often enough; `above` is its entry in the draft. */
static int push_next(const Tree *tree, Heap *heap, Option path, int32_t above, double probability) {
    Place at = path.place;
    const Node *node = at.node;
    if (at.into < written(node)) {
        int32_t token = node->text->tokens[node->start + at.into];
        return push_often(tree, heap, path, above, token, (Place){node, at.into + 1}, probability);
    }
    for (const Node *child = node->first_child; child; child = child->after)
        if (push_often(tree, heap, path, above, child->token, (Place){child, 1}, probability)) return NO_MEMORY;
    return DONE;
}

/* The `limit` likeliest continuations of a place, best first. */
static int continue_from(const Tree *tree, Heap *heap, Start start, double probability, Draft *draft) {
    heap->count = 0;
    heap->order = 0;
    draft->count = 0;
    draft->saved = 0;
    if (push_next(tree, heap, (Option){.value = 1.0, .matched = start.matched, .place = start.place}, 0, probability)) return NO_MEMORY;
    while (heap->count && draft->count < start.limit) {
        Option option = pop(heap);
        int32_t at = draft->count++;
        draft->above[at] = option.above;
        draft->tokens[at] = option.token;
        draft->chances[at] = option.chance;
        draft->saved += option.value;
        if (push_next(tree, heap, option, at + 1, probability)) return NO_MEMORY;
    }
    return DONE;
}

/* Where to draft from, the most room first. Matches that occur equally often go on equally: only the one with the most
 * room is of interest. `limits` holds the room of a match by its length. */
static int32_t find_starts(const Tree *tree, const int32_t *text, int32_t size, const int32_t *limits, Start *starts) {
    int32_t longest = size < tree->depth - 1 ? size : tree->depth - 1, found = 0, count = 0;
    Start matches[longest + 1];
    for (; found < longest; found++) {
        Place place = find(tree, text + size - found - 1, found + 1);
        if (place.node == NULL || followed(tree, place) == 0) break;
        matches[found] = (Start){limits[found + 1], found + 1, place};
    }
    for (int32_t at = found - 1, before; at >= 0; at = before) {
        Start best = matches[at];
        for (before = at - 1; before >= 0 && followed(tree, matches[before].place) == followed(tree, best.place); before--)
            if (matches[before].limit > best.limit) best = matches[before];
        int32_t place = count++;
        for (; place && starts[place - 1].limit < best.limit; place--) starts[place] = starts[place - 1];
        starts[place] = best;
    }
    return count;
}

/* The continuation, by any of the trees, that should save most tokens. How many tokens it has, or -1 without memory.
 *
 * The text is the end of the first tree's growing text, and `path` after it; all trees have one depth. `limits` holds, by
 * the length of a match, how many tokens it may draft, up to `depth`. The results have room for `depth` tokens. */
int32_t suffix_draft(Tree *const *trees, int32_t count, const int32_t *path, int32_t size, const int32_t *limits,
                     double probability, int32_t *above, int32_t *tokens, double *chances) {
    int32_t depth = trees[0]->depth, length = trees[0]->text->length, known = length < depth ? length : depth;
    int32_t *text = malloc((size_t)(known + size) * sizeof *text + (size_t)depth * 2 * sizeof *text);
    double *likely = malloc((size_t)depth * sizeof *likely);
    Start starts[depth];
    Heap heap = {0};
    int32_t best = text && likely ? 0 : -1;
    double most = 0;
    if (best == 0) {
        memcpy(text, trees[0]->text->tokens + length - known, (size_t)known * sizeof *text);
        if (size) memcpy(text + known, path, (size_t)size * sizeof *text);
    }
    for (int32_t which = 0; which < count && best >= 0; which++) {
        int32_t found = find_starts(trees[which], text, known + size, limits, starts);
        for (int32_t i = 0; i < found && (double)starts[i].limit > most; i++) {
            Draft draft = {.above = text + known + size, .tokens = text + known + size + depth, .chances = likely};
            if (continue_from(trees[which], &heap, starts[i], probability, &draft)) {
                best = -1;
                break;
            }
            if (draft.saved <= most) continue;
            most = draft.saved;
            best = draft.count;
            memcpy(above, draft.above, (size_t)best * sizeof *above);
            memcpy(tokens, draft.tokens, (size_t)best * sizeof *tokens);
            memcpy(chances, draft.chances, (size_t)best * sizeof *chances);
        }
    }
    free(heap.options);
    free(likely);
    free(text);
    return best;
}
