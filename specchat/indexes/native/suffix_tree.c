/* Creates and extends suffix trees, and removes texts. Memory is reserved before anything changes, so a tree is whole even where that fails. */

#include "suffix_tree.h"

static Text *new_text(int32_t room) {
    Text *text = calloc(1, sizeof *text);
    int32_t *tokens = malloc((size_t)room * sizeof *tokens);
    if (text == NULL || tokens == NULL) {
        free(text);
        free(tokens);
        return NULL;
    }
    *text = (Text){.tokens = tokens, .room = room, .users = 1};
    return text;
}

static void free_content(Tree *tree) {
    free_nodes(&tree->nodes);
    while (tree->oldest) {
        Text *text = tree->oldest;
        tree->oldest = text->next;
        leave_text(text);
    }
    if (tree->text) leave_text(tree->text);
}

/* Forget all texts. */
int suffix_clear(Tree *tree) {
    Tree fresh = {.depth = tree->depth, .slots = tree->slots, .runs = tree->runs};
    fresh.growing = tree->growing;
    fresh.room = tree->room;
    fresh.text = new_text(256);
    Text *none = new_text(1);
    if (fresh.text == NULL || none == NULL || reserve_nodes(&fresh.nodes, 1)) {
        if (none) leave_text(none);
        free_content(&fresh);
        return NO_MEMORY;
    }
    fresh.root = new_node(&fresh.nodes, NULL, none, 0, 0, 0);
    leave_text(none);
    free_content(tree);
    *tree = fresh;
    return DONE;
}

void suffix_free(Tree *tree) {
    free_content(tree);
    free(tree->runs);
    free(tree->growing);
    free(tree);
}

/* An empty tree for runs of up to `depth` tokens; NULL without memory. */
Tree *suffix_new(int32_t depth) {
    Tree *tree = calloc(1, sizeof *tree);
    if (tree == NULL) return NULL;
    tree->depth = depth;
    for (tree->slots = 1; tree->slots <= depth;) tree->slots *= 2;
    tree->runs = malloc((size_t)tree->slots * sizeof *tree->runs);
    if (tree->runs && suffix_clear(tree) == DONE) return tree;
    free(tree->runs);
    free(tree);
    return NULL;
}

/* A run goes on into a node's label. */
static void enter(Tree *tree, Node *node, int32_t begin) {
    *run_of(tree, begin) = (Run){node, -1};
    if (node->inside_first < 0)
        node->inside_first = begin;
    else
        run_of(tree, node->inside_last)->next = begin;
    node->inside_last = begin;
}

/* The longest of the runs inside went through the label to its end. */
static void take_out(Tree *tree, Node *node) {
    node->count++;
    node->inside_first = run_of(tree, node->inside_first)->next;
}

/* Cut a node after `length` tokens of its label, where its longest run is; returns the upper part. */
static Node *split(Tree *tree, Node *node, int32_t length) {
    Node *upper = new_node(&tree->nodes, node->parent, node->text, node->start, length, node->top);
    upper->count = node->count;
    replace_child(&tree->nodes, node, upper);
    node->start += length;
    node->length -= length;
    node->top += length;
    node->parent = upper;
    add_child(&tree->nodes, node);
    int32_t begin = node->inside_first;
    node->inside_first = node->inside_last = -1;
    while (begin >= 0) { /* all of them: none reaches further than the longest */
        int32_t next = run_of(tree, begin)->next;
        enter(tree, upper, begin);
        begin = next;
    }
    return upper;
}

/* The node at which the longest run ends, made where there is none: it moves no further. */
static Node *end_run(Tree *tree, int32_t begin, int32_t end) {
    if (begin == end) return tree->root;
    Node *node = run_of(tree, begin)->node;
    int32_t into = end - begin - node->top;
    if (into < node->length) node = split(tree, node, into);
    take_out(tree, node);
    return node;
}

/* Whether this token follows the run anywhere else. */
static bool goes_on(const Tree *tree, int32_t begin, int32_t end, int32_t token) {
    const Node *node = begin < end ? run_of(tree, begin)->node : tree->root;
    int32_t into = end - begin - node->top;
    if (into < node->length) return node->text->tokens[node->start + into] == token;
    return child_of(&tree->nodes, node, token) != NULL;
}

/* What the growing text alone goes on with, from `start` on. */
static void add_leaf(Tree *tree, Node *node, int32_t start) {
    Node *leaf = new_node(&tree->nodes, node, tree->text, start, tree->depth - end_of(node), end_of(node));
    leaf->count = leaf->ends = 1;
    add_child(&tree->nodes, leaf);
    tree->growing[tree->leaves++] = leaf;
}

/* Room for what one token may add: a leaf and a cut for every run that ends the text. */
static int reserve(Tree *tree) {
    int64_t runs = tree->depth + 1;
    if (tree->leaves + runs > tree->room) {
        int64_t room = 2 * tree->room + runs;
        Node **growing = realloc(tree->growing, (size_t)room * sizeof *growing);
        if (growing == NULL) return NO_MEMORY;
        tree->growing = growing;
        tree->room = room;
    }
    Text *text = tree->text;
    if (text->length == text->room) {
        int32_t *tokens = realloc(text->tokens, 2 * (size_t)text->room * sizeof *tokens);
        if (tokens == NULL) return NO_MEMORY;
        text->tokens = tokens;
        text->room *= 2;
    }
    return reserve_nodes(&tree->nodes, 2 * runs);
}

static void append(Tree *tree, int32_t token) {
    int32_t end = tree->text->length;
    tree->text->tokens[tree->text->length++] = token;
    tree->tokens++;
    tree->root->count++;
    for (; tree->longest <= end && !goes_on(tree, tree->longest, end, token); tree->longest++)
        add_leaf(tree, end_run(tree, tree->longest, end), end);
    for (int32_t begin = tree->longest; begin < end; begin++) {
        Node *node = run_of(tree, begin)->node;
        if (begin + end_of(node) != end) continue;
        take_out(tree, node);
        enter(tree, child_of(&tree->nodes, node, token), begin);
    }
    if (tree->longest <= end) enter(tree, child_of(&tree->nodes, tree->root, token), end);
    if (end + 1 - tree->longest == tree->depth) end_run(tree, tree->longest++, end + 1)->ends++;
}

/* Append tokens to the growing text. */
int suffix_extend(Tree *tree, const int32_t *tokens, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        if (reserve(tree)) return NO_MEMORY;
        append(tree, tokens[i]);
    }
    return DONE;
}

/* The growing text is complete; another one begins. */
int suffix_end_text(Tree *tree) {
    if (tree->text->length == 0) return DONE;
    Text *fresh = new_text(256);
    if (fresh == NULL || reserve(tree)) {
        if (fresh) leave_text(fresh);
        return NO_MEMORY;
    }
    for (int64_t i = 0; i < tree->leaves; i++) tree->growing[i]->length = written(tree->growing[i]);
    for (; tree->longest < tree->text->length; tree->longest++)
        end_run(tree, tree->longest, tree->text->length)->ends++;
    *(tree->newest ? &tree->newest->next : &tree->oldest) = tree->text;
    tree->newest = tree->text;
    tree->finished++;
    tree->text = fresh;
    tree->longest = 0;
    tree->leaves = 0;
    return DONE;
}

/* Put a node into its only child, if no text ends at it: both occur at the same places. */
static void join(Tree *tree, Node *node) {
    Node *child = node->first_child;
    if (node->ends || child == NULL || child->after || node->parent == NULL) return;
    clear_place(&tree->nodes, place_of(&tree->nodes, node, child->token));
    child->start -= node->length;
    child->length += node->length;
    child->top = node->top;
    replace_child(&tree->nodes, node, child);
    give_back(&tree->nodes, node);
}

/* Let a label that lies in a text to be forgotten lie elsewhere: before a child's label, or in a copy. */
static void point_elsewhere(Node *node, const Text *text, Text *copy) {
    if (node->text != text) return;
    if (node->first_child) {
        move_to_text(node, node->first_child->text, node->first_child->start - node->length);
        return;
    }
    copy->length = end_of(node);
    for (const Node *above = node; above->parent; above = above->parent)
        memcpy(copy->tokens + above->top, above->text->tokens + above->start, (size_t)above->length * sizeof(int32_t));
    move_to_text(node, copy, node->top);
}

/* Uncount all runs that begin at one place of a complete text; `copy` has room for one of them. */
static void uncount(Tree *tree, const Text *text, int32_t start, Text *copy) {
    int32_t end = text->length - start < tree->depth ? text->length : start + tree->depth, at = start;
    Node *node = tree->root;
    node->count--;
    while (at < end) {
        Node *child = child_of(&tree->nodes, node, text->tokens[at]);
        if (--child->count == 0) {
            drop_child(&tree->nodes, child);
            break;
        }
        node = child;
        at += child->length;
    }
    if (at >= end) node->ends--;
    while (node->parent) {
        Node *parent = node->parent;
        point_elsewhere(node, text, copy);
        join(tree, node);
        node = parent;
    }
}

/* Take the oldest complete text out; there is one, and the growing one is empty. */
int suffix_forget_oldest(Tree *tree) {
    Text *text = tree->oldest;
    for (int32_t start = 0; start < text->length; start++) {
        Text *copy = new_text(tree->depth);
        if (copy == NULL) return NO_MEMORY;
        uncount(tree, text, start, copy);
        leave_text(copy);
    }
    tree->tokens -= text->length;
    tree->finished--;
    tree->oldest = text->next;
    if (text->next == NULL) tree->newest = NULL;
    leave_text(text);
    return DONE;
}

/* Tokens of all texts; of the growing one; complete texts. */
int64_t suffix_tokens(const Tree *tree) { return tree->tokens; }
int64_t suffix_growing(const Tree *tree) { return tree->text->length; }
int64_t suffix_finished(const Tree *tree) { return tree->finished; }

/* Whether these tokens begin with the growing text. */
int suffix_begins(const Tree *tree, const int32_t *tokens, int64_t count) {
    int64_t length = tree->text->length;
    return length <= count && memcmp(tree->text->tokens, tokens, (size_t)length * sizeof *tokens) == 0;
}

/* How often a run occurs in all texts. */
int64_t suffix_count(const Tree *tree, const int32_t *run, int32_t size) {
    Place place = find(tree, run, size);
    return place.node ? occurrences(tree, place) : 0;
}
