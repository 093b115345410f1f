/* The nodes of a suffix tree, the texts their labels lie in, and the table that finds a child by its first token. */

#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum Outcome { DONE = 0, NO_MEMORY = 1 };

typedef struct Text {
    int32_t *tokens;
    int32_t length, room;
    int64_t users;     /* nodes whose labels lie here, and the tree while it holds the text */
    struct Text *next; /* the complete text after this one */
} Text;

/* A run of tokens; its label text[start .. start + length) is what it adds to its parent's run of `top` tokens. The label
 * of a leaf that only the growing text reaches may be longer than what is written of it. Inside are the runs that end the
 * growing text and end within the label, by where they begin, the longest first; -1 where there is none. */
typedef struct Node {
    struct Node *parent, *first_child, *last_child, *before, *after; /* siblings in the order in which they came */
    Text *text;
    int32_t start, length, top, token; /* `token` is the first of the label */
    int32_t inside_first, inside_last;
    int64_t count, ends;
} Node;

enum { NODES = 256 };

typedef struct Block {
    struct Block *next;
    Node nodes[NODES];
} Block;

/* Room for nodes; what was reserved can be taken without failing. */
typedef struct {
    Block *blocks;
    Node *spare; /* linked by `after` */
    int64_t spares;
    Node **children; /* by parent and first token, open addressing */
    size_t slots, used;
} Nodes;

static inline int32_t end_of(const Node *node) { return node->top + node->length; }

static inline int32_t written(const Node *node) {
    int32_t left = node->text->length - node->start;
    return node->length < left ? node->length : left;
}

static inline size_t slot_of(const Nodes *nodes, const Node *parent, int32_t token) {
    uint64_t key = ((uint64_t)(uintptr_t)parent >> 4) * 0x9E3779B97F4A7C15u ^ (uint64_t)(uint32_t)token * 0xC2B2AE3D27D4EB4Fu;
    return (size_t)((key ^ key >> 32) * 0x9E3779B97F4A7C15u >> 20) & (nodes->slots - 1);
}

/* Where this child is in the table, or the free place for it. */
static inline Node **place_of(const Nodes *nodes, const Node *parent, int32_t token) {
    size_t at = slot_of(nodes, parent, token);
    while (nodes->children[at] && (nodes->children[at]->parent != parent || nodes->children[at]->token != token))
        at = (at + 1) & (nodes->slots - 1);
    return &nodes->children[at];
}

static inline Node *child_of(const Nodes *nodes, const Node *parent, int32_t token) {
    return *place_of(nodes, parent, token);
}

/* Take a place out of the table; what was put further along because of it moves up. */
static void clear_place(Nodes *nodes, Node **place) {
    size_t hole = (size_t)(place - nodes->children), at = hole, last = nodes->slots - 1;
    nodes->children[hole] = NULL;
    nodes->used--;
    for (at = (at + 1) & last; nodes->children[at]; at = (at + 1) & last) {
        size_t wanted = slot_of(nodes, nodes->children[at]->parent, nodes->children[at]->token);
        if (((at - wanted) & last) < ((at - hole) & last)) continue;
        nodes->children[hole] = nodes->children[at];
        nodes->children[at] = NULL;
        hole = at;
    }
}

static int grow_table(Nodes *nodes, size_t slots) {
    Node **before = nodes->children;
    size_t count = nodes->slots;
    Node **children = calloc(slots, sizeof *children);
    if (children == NULL) return NO_MEMORY;
    nodes->children = children;
    nodes->slots = slots;
    for (size_t i = 0; i < count; i++)
        if (before[i]) *place_of(nodes, before[i]->parent, before[i]->token) = before[i];
    free(before);
    return DONE;
}

/* Make sure that so many nodes can be taken and put into the table. */
static int reserve_nodes(Nodes *nodes, int64_t count) {
    while (nodes->spares < count) {
        Block *block = malloc(sizeof *block);
        if (block == NULL) return NO_MEMORY;
        block->next = nodes->blocks;
        nodes->blocks = block;
        for (int i = NODES - 1; i >= 0; i--) {
            block->nodes[i] = (Node){.after = nodes->spare};
            nodes->spare = &block->nodes[i];
        }
        nodes->spares += NODES;
    }
    size_t slots = nodes->slots ? nodes->slots : 1024;
    while (slots < 2 * (nodes->used + (size_t)count)) slots *= 2;
    return slots == nodes->slots ? DONE : grow_table(nodes, slots);
}

static void leave_text(Text *text) {
    if (--text->users) return;
    free(text->tokens);
    free(text);
}

static void free_nodes(Nodes *nodes) {
    while (nodes->blocks) {
        Block *block = nodes->blocks;
        nodes->blocks = block->next;
        for (int i = 0; i < NODES; i++)
            if (block->nodes[i].text) leave_text(block->nodes[i].text);
        free(block);
    }
    free(nodes->children);
    *nodes = (Nodes){0};
}

static inline void move_to_text(Node *node, Text *text, int32_t start) {
    text->users++;
    if (node->text) leave_text(node->text);
    node->text = text;
    node->start = start;
}

static Node *new_node(Nodes *nodes, Node *parent, Text *text, int32_t start, int32_t length, int32_t top) {
    Node *node = nodes->spare;
    nodes->spare = node->after;
    nodes->spares--;
    *node = (Node){.parent = parent, .length = length, .top = top, .inside_first = -1, .inside_last = -1};
    move_to_text(node, text, start);
    return node;
}

/* Put a new node behind its parent's other children. */
static void add_child(Nodes *nodes, Node *node) {
    Node *parent = node->parent;
    node->token = node->text->tokens[node->start];
    node->before = parent->last_child;
    if (parent->last_child)
        parent->last_child->after = node;
    else
        parent->first_child = node;
    parent->last_child = node;
    *place_of(nodes, parent, node->token) = node;
    nodes->used++;
}

/* Put a node where another child of the same parent with the same first token was. */
static void replace_child(Nodes *nodes, Node *old, Node *node) {
    Node *parent = old->parent;
    *place_of(nodes, parent, old->token) = node;
    node->parent = parent;
    node->token = old->token;
    node->before = old->before;
    node->after = old->after;
    *(old->before ? &old->before->after : &parent->first_child) = node;
    *(old->after ? &old->after->before : &parent->last_child) = node;
    old->before = old->after = NULL;
}

/* Take a node, which is in the table no more, back. */
static void give_back(Nodes *nodes, Node *node) {
    leave_text(node->text);
    node->text = NULL;
    node->after = nodes->spare;
    nodes->spare = node;
    nodes->spares++;
}

/* Take a node and all below it out of the tree. */
static void drop_child(Nodes *nodes, Node *node) {
    while (node->first_child) drop_child(nodes, node->first_child);
    Node *parent = node->parent;
    clear_place(nodes, place_of(nodes, parent, node->token));
    *(node->before ? &node->before->after : &parent->first_child) = node->after;
    *(node->after ? &node->after->before : &parent->last_child) = node->before;
    give_back(nodes, node);
}
