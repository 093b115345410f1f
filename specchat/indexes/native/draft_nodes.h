/* The tree that a draft model reads: its own tokens, and what it said after them. */

#pragma once

#include "growing_tree.h"

typedef struct {
    int32_t parent, token, depth, child, sibling; /* 0 where there is no child or sibling */
    int32_t row; /* its number in the order in which nodes were read; −1 before */
    bool wanted;
} DraftNode;

typedef struct {
    GROWING(DraftNode) all; /* the root first */
    int32_t room;           /* depth of the last nodes in the draft model's context */
    int32_t rows;           /* that were read */
    ReadRows *read;
    void *network;
    GROWING(int32_t) named; /* (rows, MOST_WIDTH) */
    GROWING(float) logits;
    GROWING(float) logsumexp; /* (rows) */
    GROWING(int32_t) asked; /* of the rows of one pass what they stand behind, then their tokens */
} DraftNodes;

static int32_t draft_child(const DraftNodes *d, int32_t node, int32_t token) {
    int32_t at = d->all.all[node].child;
    while (at && d->all.all[at].token != token) at = d->all.all[at].sibling;
    return at;
}

/* The node of this token below another, put there if need be; −1 where there is no memory. */
static int32_t grow_draft(DraftNodes *d, int32_t node, int32_t token) {
    int32_t found = draft_child(d, node, token), at = d->all.count;
    if (found) return found;
    if (!ROOM(d->all, (int64_t)at + 1)) return -1;
    DraftNode *above = &d->all.all[node];
    d->all.all[at] = (DraftNode){.parent = node, .token = token, .depth = above->depth + 1, .sibling = above->child, .row = -1};
    above->child = at;
    return d->all.count++;
}

static int32_t begin_draft(DraftNodes *d, int32_t root, int32_t room, ReadRows *read, void *network) {
    if (!ROOM(d->all, 1)) return NO_MEMORY;
    d->all.all[0] = (DraftNode){.parent = -1, .token = root, .row = -1};
    d->all.count = 1;
    d->rows = 0;
    d->room = room;
    d->read = read;
    d->network = network;
    return DONE;
}

/* Let the next pass read a node and whatever lies unread above it, as far as the context goes. */
static void want(DraftNodes *d, int32_t node) {
    if (d->all.all[node].depth > d->room) return;
    for (; node >= 0 && d->all.all[node].row < 0; node = d->all.all[node].parent) d->all.all[node].wanted = true;
}

/* One pass over what is wanted, if anything is; parents come first, since nodes do. */
static int32_t read_wanted(DraftNodes *d) {
    int32_t count = 0, most = d->all.count;
    if (!ROOM(d->asked, 2 * (int64_t)most)) return NO_MEMORY;
    int32_t *behind = d->asked.all, *tokens = behind + most;
    for (int32_t i = 0; i < most; i++) {
        DraftNode *node = &d->all.all[i];
        if (!node->wanted) continue;
        behind[count] = i ? d->all.all[node->parent].row : -1;
        tokens[count] = node->token;
        node->row = d->rows + count++;
        node->wanted = false;
    }
    if (count == 0) return DONE;
    int64_t rows = (int64_t)d->rows + count, begin = (int64_t)d->rows * MOST_WIDTH;
    if (!ROOM(d->named, rows * MOST_WIDTH) || !ROOM(d->logits, rows * MOST_WIDTH) || !ROOM(d->logsumexp, rows)) return NO_MEMORY;
    d->rows += count;
    return d->read(d->network, count, behind, tokens, MOST_WIDTH, d->named.all + begin, d->logits.all + begin,
                   d->logsumexp.all + begin / MOST_WIDTH);
}

static bool was_read(const DraftNodes *d, int32_t node) { return d->all.all[node].row >= 0; }

/* The place of what was said after a node that was read. */
static size_t said_after(const DraftNodes *d, int32_t node) { return (size_t)d->all.all[node].row * MOST_WIDTH; }
