/* Which guesses of a growing tree members are asked about next. */

#pragma once

#include "growing_tree.h"

static double price_of(const Search *s, int32_t rank) {
    return s->prices ? s->price[(rank < s->prices ? rank : s->prices) - 1] : 0.0;
}

/* Whether a guess of this worth could be among the best and earn its row, if nothing better came any more. */
static bool pays(const Search *s, const Growing *g, double worth) {
    int32_t rank = 1, end = g->ranked.count + 1; /* behind all that are worth as much */
    while (rank < end) {
        int32_t middle = (rank + end) / 2;
        if (g->ranked.all[middle - 1] >= worth) rank = middle + 1;
        else end = middle;
    }
    return rank <= s->nodes && worth >= s->floor && worth >= price_of(s, rank);
}

/* Whether a child of it could stay, if nothing better came any more. */
static bool may_have_children(const Search *s, const Growing *g, int32_t node) {
    const Guess *guess = &g->guesses.all[node];
    return guess->shape >= 0 && guess->depth < s->depth && pays(s, g, guess->worth * s->decay);
}

static void drop_hopeless(const Search *s, Growing *g) {
    int32_t kept = 0;
    for (int32_t i = 0; i < g->unasked.count; i++)
        if (may_have_children(s, g, g->unasked.all[i])) g->unasked.all[kept++] = g->unasked.all[i];
    g->unasked.count = kept;
}

/* Places that are left if all that were taken stay. */
static int32_t room_left(const Search *s, const Growing *g) { return s->nodes - (g->guesses.count - 1); }

/* Which of the unasked to ask about: the `few` of most worth, in their order, or all where that is 0. The others wait,
 * unless the tree grows by levels. */
static int32_t choose_frontier(const Search *s, Growing *g, int32_t few) {
    int32_t count = g->unasked.count, wanted = few && few < count ? few : count, kept = 0;
    if (!ROOM(g->frontier, count)) return NO_MEMORY;
    g->frontier.count = 0;
    for (int32_t i = 0; i < count; i++) {
        int32_t before = 0; /* that come before this one */
        double worth = g->guesses.all[g->unasked.all[i]].worth;
        for (int32_t other = 0; wanted < count && other < count; other++) {
            double its = g->guesses.all[g->unasked.all[other]].worth;
            before += its > worth || (its == worth && other < i);
        }
        if (before < wanted) g->frontier.all[g->frontier.count++] = g->unasked.all[i];
    }
    for (int32_t i = 0, at = 0; i < count; i++)
        if (at < g->frontier.count && g->unasked.all[i] == g->frontier.all[at]) at++;
        else g->unasked.all[kept++] = g->unasked.all[i];
    g->unasked.count = s->levels ? 0 : kept;
    return DONE;
}

/* The token `back` places before the end of a path, that of the guess itself at 0; −1 before the text. `at` and `before`
 * begin as the guess and 0, and move up. */
static int32_t token_above(const Search *s, const Growing *g, int32_t *at, int32_t *before) {
    if (*at == 0) return *before < s->tail ? s->text[s->tail - 1 - (*before)++] : -1;
    const Guess *guess = &g->guesses.all[*at];
    *at = guess->parent;
    return guess->token;
}

/* Whether the paths to two guesses end in the same tokens. */
static bool end_alike(const Search *s, const Growing *g, int32_t one, int32_t other) {
    int32_t before = 0, its = 0;
    for (int32_t i = 0; i < s->repeat; i++)
        if (token_above(s, g, &one, &before) != token_above(s, g, &other, &its)) return false;
    return true;
}

static bool is_above(const Growing *g, int32_t node, int32_t other) {
    while (other > node) other = g->guesses.all[other].parent;
    return other == node;
}

/* Ask about the unasked, but for those that end like another guess, at least as likely and not above them: they are linked
 * to that. */
static int32_t link_repeats(const Search *s, Growing *g) {
    int32_t count = g->unasked.count, *level = g->unasked.all;
    if (!ROOM(g->frontier, count) || !ROOM(g->drafted, (int64_t)g->drafted.count + count)) return NO_MEMORY;
    for (int32_t i = 1; i < count; i++) { /* those of most worth first */
        int32_t node = level[i], at = i;
        for (; at && g->guesses.all[level[at - 1]].worth < g->guesses.all[node].worth; at--) level[at] = level[at - 1];
        level[at] = node;
    }
    g->frontier.count = g->unasked.count = 0;
    for (int32_t i = 0; i < count; i++) {
        int32_t node = level[i], like = 0;
        while (like < g->drafted.count && !end_alike(s, g, node, g->drafted.all[like])) like++;
        bool found = like < g->drafted.count;
        int32_t source = found ? g->drafted.all[like] : 0;
        bool worthier = !found || g->guesses.all[source].worth < g->guesses.all[node].worth;
        if (!worthier && !is_above(g, source, node)) {
            g->guesses.all[node].link = source;
            continue;
        }
        int32_t at = g->frontier.count++;
        for (; at && g->frontier.all[at - 1] > node; at--) g->frontier.all[at] = g->frontier.all[at - 1];
        g->frontier.all[at] = node;
        if (worthier) g->drafted.all[like] = node;
        g->drafted.count += !found;
    }
    return DONE;
}

/* How many children a guess may get. */
static int32_t width_at(const Search *s, const Guess *guess) {
    return s->shape.widths ? s->shape.widths[guess->shape] : s->width;
}

/* Ask about no more of the frontier than can get children. */
static void fit_into_room(const Search *s, Growing *g) {
    if (s->first_come && g->frontier.count > room_left(s, g)) g->frontier.count = room_left(s, g);
}

/* As many guesses after each as any of the frontier may get. */
static void follow_shape(Search *s, const Growing *g) {
    if (s->shape.widths == NULL) return;
    s->width = 0;
    for (int32_t i = 0; i < g->frontier.count; i++) {
        int32_t width = width_at(s, &g->guesses.all[g->frontier.all[i]]);
        if (width > s->width) s->width = width;
    }
    if (s->first_come && s->width > room_left(s, g)) s->width = room_left(s, g);
}
