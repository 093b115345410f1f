/* Asking the members of a search: suffix trees and tables node by node, networks a level of the tree at a time. */

#pragma once

#include "growing_tree.h"

/* Whether a member is asked about this guess. */
static bool may_ask(const Search *s, int32_t member, const Guess *guess) {
    int32_t digits = guess->cell;
    for (int32_t i = 0; i < member; i++) digits /= SURENESSES;
    return !s->apart || guess->depth == 0 || digits % SURENESSES;
}

/* How many guesses a member is asked for. */
static int32_t wanted_of(const Search *s, int32_t member) {
    int32_t wanted = member == 0 && s->top > s->width ? s->top : s->width;
    return wanted < MOST_WIDTH ? wanted : MOST_WIDTH;
}

/* Leave out what the first member does not hold likely, if it says anything, and what it was asked for beyond the width. */
static void prune(const Search *s, Said *said) {
    int32_t top = s->top < said->count ? s->top : said->count;
    for (Said *other = said + 1; top && other < said + s->members; other++) {
        int32_t kept = 0;
        for (int32_t i = 0; i < other->count; i++) {
            int32_t rank = 0;
            while (rank < top && said->tokens[rank] != other->tokens[i]) rank++;
            if (rank == top) continue;
            other->tokens[kept] = other->tokens[i];
            other->logprobs[kept++] = other->logprobs[i];
        }
        other->count = kept;
    }
    if (said->count > s->width) said->count = s->width;
}

/* Draft anew from the end of the text and the path to this guess. */
static int32_t draft_from(const Search *s, Growing *g, int32_t member, Guess *guess) {
    const Asked *asked = &s->asked[member];
    int32_t longest = asked->trees[0]->depth, room = g->tokens.count + longest, path[guess->depth + 1];
    if (!ROOM(g->above, room) || !ROOM(g->tokens, room) || !ROOM(g->chances, room)) return NO_MEMORY;
    const Guess *at = guess;
    for (int32_t i = guess->depth; i > 0; i--, at = &g->guesses.all[at->parent]) path[i - 1] = at->token;
    int32_t begin = g->tokens.count, count = suffix_draft(asked->trees, asked->count, path, guess->depth, asked->limits,
                                                          asked->probability, g->above.all + begin, g->tokens.all + begin,
                                                          g->chances.all + begin);
    if (count < 0) return NO_MEMORY;
    g->tokens.count += count;
    guess->draft[member] = begin;
    guess->draft_end[member] = begin + count;
    guess->place[member] = 0;
    return DONE;
}

/* What suffix trees draft after a guess: they go on with the draft that it is in, or begin one. */
static int32_t look_up(const Search *s, Growing *g, int32_t member, int32_t node, Said *said) {
    Guess *guess = &g->guesses.all[node];
    bool drafted = false;
    if (node) {
        const Guess *above = &g->guesses.all[guess->parent];
        for (int32_t i = above->draft[member]; i < above->draft_end[member] && !drafted; i++)
            if (g->above.all[i] == above->place[member] && g->tokens.all[i] == guess->token) {
                guess->draft[member] = above->draft[member];
                guess->draft_end[member] = above->draft_end[member];
                guess->place[member] = i - above->draft[member] + 1;
                drafted = true;
            }
    }
    if (!drafted && draft_from(s, g, member, guess)) return NO_MEMORY;
    said->count = 0;
    for (int32_t i = guess->draft[member]; i < guess->draft_end[member] && said->count < wanted_of(s, member); i++)
        if (g->above.all[i] == guess->place[member]) {
            said->tokens[said->count] = g->tokens.all[i];
            said->logprobs[said->count++] = log(g->chances.all[i]);
        }
    return DONE;
}

/* The successors of a guess's token, up to the first that is no token. */
static void follow_token(const Search *s, const Growing *g, int32_t member, int32_t node, Said *said) {
    const Asked *asked = &s->asked[member];
    int32_t token = g->guesses.all[node].token;
    if (token < 0 || token >= asked->tokens) return;
    const int32_t *successors = asked->successors + (size_t)token * (size_t)asked->count;
    for (int32_t i = 0; i < asked->count && i < wanted_of(s, member); i++) {
        if (successors[i] < 0 || successors[i] >= asked->tokens) return;
        said->tokens[said->count] = successors[i];
        said->logprobs[said->count++] = asked->by_rank[i];
    }
}

/* What a network says after a guess, whose row is the `row`-th of those read last. */
static void hear(const Search *s, const Growing *g, int32_t member, int32_t node, int32_t row, int32_t width, Said *said) {
    const Guess *guess = &g->guesses.all[node], *at = guess;
    double total = s->asked[member].logits ? (double)g->logsumexp.all[row] : 0;
    for (said->count = 0; said->count < width; said->count++) {
        int32_t place = row * MOST_WIDTH + said->count;
        if (g->named.all[place] < 0 || g->logprobs.all[place] == -INFINITY) break;
        said->tokens[said->count] = g->named.all[place];
        said->logprobs[said->count] = (double)g->logprobs.all[place] - total;
    }
    if (takes_likeliest(&s->sampled)) return;
    int32_t path[guess->depth + 1];
    for (int32_t i = guess->depth; i > 0; i--, at = &g->guesses.all[at->parent]) path[i - 1] = at->token;
    guess_as_sampled(&s->sampled, (double)g->logsumexp.all[row], path, guess->depth, wanted_of(s, member), said);
}

/* Read guesses of one depth, whose parents were read; those that stand in the frontier are said something about. */
static int32_t read_level(Search *s, Growing *g, int32_t member, const int32_t *level, int32_t count, int32_t row) {
    const Asked *asked = &s->asked[member];
    int32_t behind[count], tokens[count], width = takes_likeliest(&s->sampled) ? wanted_of(s, member) : MOST_WIDTH;
    if (!ROOM(g->named, (int64_t)count * MOST_WIDTH) || !ROOM(g->logprobs, (int64_t)count * MOST_WIDTH)) return NO_MEMORY;
    if (!ROOM(g->logsumexp, count)) return NO_MEMORY;
    for (int32_t i = 0; i < count; i++) {
        const Guess *guess = &g->guesses.all[level[i]];
        behind[i] = level[i] ? g->guesses.all[guess->parent].place[member] : -1;
        tokens[i] = guess->token;
        g->guesses.all[level[i]].place[member] = row + i;
    }
    int32_t outcome = asked->read(asked->network, count, behind, tokens, width, g->named.all, g->logprobs.all,
                                   g->logsumexp.all);
    if (outcome == MISSING_INPUT) s->missing = g->named.all[0];
    if (outcome) return outcome;
    s->reads[member]++;
    for (int32_t i = 0; i < count; i++)
        for (int32_t at = 0; at < g->frontier.count; at++)
            if (g->frontier.all[at] == level[i]) hear(s, g, member, level[i], i, width, &g->said.all[at * s->members + member]);
    return DONE;
}

/* Let a network read the chosen guesses of the frontier, and whatever above them it has not read, level by level. */
static int32_t read_chosen(Search *s, Growing *g, int32_t member, int32_t *rows_read) {
    int32_t depth = 0, deepest = 0;
    g->rows.count = 0;
    for (int32_t i = 0; i < g->chosen.count; i++)
        for (int32_t node = g->chosen.all[i]; node >= 0 && g->guesses.all[node].place[member] == -1;) {
            Guess *guess = &g->guesses.all[node];
            if (!ROOM(g->rows, 2 * ((int64_t)g->rows.count + 1))) return NO_MEMORY;
            g->rows.all[g->rows.count++] = node;
            guess->place[member] = -2; /* wanted */
            if (guess->depth > deepest) deepest = guess->depth;
            node = node ? guess->parent : -1;
        }
    for (; depth <= deepest; depth++) {
        int32_t count = 0, *level = g->rows.all + g->rows.count;
        if (!ROOM(g->rows, 2 * (int64_t)g->rows.count)) return NO_MEMORY;
        level = g->rows.all + g->rows.count;
        for (int32_t i = 0; i < g->rows.count; i++)
            if (g->guesses.all[g->rows.all[i]].depth == depth) level[count++] = g->rows.all[i];
        int32_t outcome = count ? read_level(s, g, member, level, count, *rows_read) : DONE;
        if (outcome) return outcome;
        *rows_read += count;
    }
    return DONE;
}

/* Ask a network about those of the frontier where no other member is sure. */
static int32_t ask_network(Search *s, Growing *g, int32_t member, Candidate *scratch, int32_t *rows_read) {
    g->chosen.count = 0;
    if (!ROOM(g->chosen, g->frontier.count)) return NO_MEMORY;
    for (int32_t at = 0; at < g->frontier.count; at++) {
        if (!may_ask(s, member, &g->guesses.all[g->frontier.all[at]])) continue;
        int32_t found = join(&g->said.all[at * s->members], s->members, scratch);
        if (!any_as_likely(&s->rates, scratch, found, s->sure)) g->chosen.all[g->chosen.count++] = g->frontier.all[at];
    }
    const Asked *asked = &s->asked[member];
    bool paid = asked->one_pass && s->reads[member];
    return asked->read && (g->passes || paid) ? read_chosen(s, g, member, rows_read) : DONE;
}

static bool looks_up(const Asked *asked) { return asked->trees || asked->successors; }

/* Ask all members about the frontier: those that look up first. */
static int32_t ask_members(Search *s, Growing *g, int32_t *rows_read) {
    Candidate scratch[MOST_MEMBERS * MOST_WIDTH];
    if (!ROOM(g->said, (int64_t)g->frontier.count * s->members)) return NO_MEMORY;
    for (int32_t i = 0; i < g->frontier.count * s->members; i++) g->said.all[i].count = 0;
    for (int32_t member = 0; member < s->members; member++)
        for (int32_t at = 0; at < g->frontier.count && looks_up(&s->asked[member]); at++) {
            Said *said = &g->said.all[at * s->members + member];
            if (!may_ask(s, member, &g->guesses.all[g->frontier.all[at]])) continue;
            if (s->asked[member].successors)
                follow_token(s, g, member, g->frontier.all[at], said);
            else if (look_up(s, g, member, g->frontier.all[at], said))
                return NO_MEMORY;
        }
    for (int32_t member = 0; member < s->members; member++) {
        if (looks_up(&s->asked[member])) continue;
        int32_t outcome = ask_network(s, g, member, scratch, &rows_read[member]);
        if (outcome) return outcome;
    }
    for (int32_t at = 0; at < g->frontier.count && s->top; at++) prune(s, &g->said.all[at * s->members]);
    return DONE;
}
