/* A suffix tree with counts, as suffix_tree.py in the folder above describes it: the same nodes, counts and order of
 * children. */

#pragma once

#include "nodes.h"

/* A run that ends the growing text and occurs elsewhere too. */
typedef struct {
    Node *node;   /* that it is inside of */
    int32_t next; /* where the next shorter run inside the same node begins, or -1 */
} Run;

typedef struct {
    int32_t depth;
    Nodes nodes;
    Node *root;
    Text *text;               /* the growing one */
    Text *oldest, *newest;    /* complete ones */
    int64_t tokens, finished; /* of all texts; complete texts */
    int32_t longest;          /* where the longest run begins */
    Run *runs;                /* (slots), by where they begin, in turn; never more than `depth` */
    int32_t slots;            /* a power of two */
    Node **growing;           /* leaves that only the growing text has reached */
    int64_t leaves, room;
} Tree;

static inline Run *run_of(const Tree *tree, int32_t begin) { return &tree->runs[begin & (tree->slots - 1)]; }

/* A run that occurs in a tree: `into` tokens into a node's label. */
typedef struct {
    const Node *node;
    int32_t into;
} Place;

/* How many of the runs inside the label reach so far. */
static inline int64_t reaching(const Tree *tree, const Node *node, int32_t into) {
    int32_t last = tree->text->length - node->top - into;
    int64_t count = 0;
    for (int32_t begin = node->inside_first; begin >= 0 && begin <= last; begin = run_of(tree, begin)->next) count++;
    return count;
}

/* How often the run occurs. */
static inline int64_t occurrences(const Tree *tree, Place place) {
    return place.node->count + reaching(tree, place.node, place.into);
}

/* How many of its occurrences something follows. */
static inline int64_t followed(const Tree *tree, Place place) {
    const Node *node = place.node;
    return node->count - (place.into == written(node) ? node->ends : 0) + reaching(tree, node, place.into + 1);
}

/* Where a run is; its node is NULL if it never occurred. */
static inline Place find(const Tree *tree, const int32_t *run, int32_t size) {
    Place place = {tree->root, 0};
    for (int32_t at = 0; at < size;) {
        if (place.into == place.node->length) {
            place = (Place){child_of(&tree->nodes, place.node, run[at]), 0};
            if (place.node == NULL) return place;
        }
        int32_t left = written(place.node) - place.into, step = place.node->length - place.into;
        if (step > size - at) step = size - at;
        const int32_t *label = place.node->text->tokens + place.node->start + place.into;
        if (step > left || memcmp(label, run + at, (size_t)step * sizeof *run)) return (Place){NULL, 0};
        place.into += step;
        at += step;
    }
    return place;
}
