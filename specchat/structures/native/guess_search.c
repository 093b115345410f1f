/* The best-first tree of what several members guess, as trees/search.py and trees/growth.py grow it from drafters/merge.py:
 * the same guesses, in the same order. Without a call into Python for each level. */

#include "member_guesses.h"

Growing *guess_search_new(void) { return calloc(1, sizeof(Growing)); }

void guess_search_free(Growing *g) {
    free(g->guesses.all);
    free(g->candidates.all);
    free(g->above.all);
    free(g->tokens.all);
    free(g->chances.all);
    free(g->ranked.all);
    free(g->unasked.all);
    free(g->frontier.all);
    free(g->chosen.all);
    free(g->rows.all);
    free(g->said.all);
    free(g->named.all);
    free(g->logprobs.all);
    free(g->totals.all);
    free(g);
}

static double price_of(const Search *s, int32_t rank) {
    return s->prices ? s->price[(rank < s->prices ? rank : s->prices) - 1] : 0.0;
}

/* Whether a guess of this worth could be among the best and earn its row, if nothing better came any more. */
static bool pays(const Search *s, const Growing *g, double worth) {
    int32_t rank = 1;
    while (rank <= g->ranked.count && g->ranked.all[rank - 1] >= worth) rank++;
    return rank <= s->nodes && worth >= s->floor && worth >= price_of(s, rank);
}

static void take_rank(const Search *s, Growing *g, double worth) {
    int32_t at = g->ranked.count < s->nodes ? g->ranked.count++ : s->nodes - 1;
    for (; at && g->ranked.all[at - 1] < worth; at--) g->ranked.all[at] = g->ranked.all[at - 1];
    g->ranked.all[at] = worth;
}

static int32_t add_guess(Growing *g, Guess guess) {
    if (!ROOM(g->guesses, (int64_t)g->guesses.count + 1) || !ROOM(g->unasked, (int64_t)g->unasked.count + 1)) return NO_MEMORY;
    guess.first = -1;
    for (int32_t member = 0; member < MOST_MEMBERS; member++) guess.place[member] = -1;
    g->unasked.all[g->unasked.count++] = g->guesses.count;
    g->guesses.all[g->guesses.count++] = guess;
    return DONE;
}

/* Give a guess a place below a node, where it is not beaten already. */
static int32_t offer(const Search *s, Growing *g, int32_t node, int32_t rank, int32_t token, int32_t cell, double logprob) {
    const Guess *above = &g->guesses.all[node];
    double worth = above->worth * s->decay * fmin(1.0, exp(logprob));
    bool beaten = g->ranked.count == s->nodes && worth <= g->ranked.all[s->nodes - 1];
    if (beaten || !pays(s, g, worth)) return DONE;
    take_rank(s, g, worth);
    int32_t shape = s->shape.widths ? s->shape.below[s->shape.begins[above->shape] + rank] : 0;
    return add_guess(g, (Guess){node, token, above->depth + 1, cell, shape, .worth = worth, .logprob = logprob});
}

static int32_t width_at(const Search *s, const Guess *guess) {
    return s->shape.widths ? s->shape.widths[guess->shape] : s->width;
}

/* Give what was said about a guess places below it. */
static int32_t consider(const Search *s, Growing *g, int32_t node, const Said *said) {
    int32_t places[MOST_MEMBERS * MOST_WIDTH], first = g->candidates.count, width = width_at(s, &g->guesses.all[node]);
    double probable[MOST_MEMBERS * MOST_WIDTH];
    if (!ROOM(g->candidates, (int64_t)first + MOST_MEMBERS * MOST_WIDTH)) return NO_MEMORY;
    Candidate *candidates = g->candidates.all + first;
    int32_t found = join(said, s->members, candidates);
    g->candidates.count += found;
    g->guesses.all[node].first = first;
    g->guesses.all[node].end = first + found;
    order(&s->rates, candidates, found, places, probable);
    if (found && exp(log(probable[0])) < s->fallback) return DONE;
    for (int32_t i = 0; i < found && i < width; i++) {
        const Candidate *candidate = &candidates[places[i]];
        if (offer(s, g, node, i, candidate->token, candidate->cell, log(probable[i]))) return NO_MEMORY;
    }
    return DONE;
}

/* The same for the guesses of one member, as likely as it says. */
static int32_t consider_as_said(const Search *s, Growing *g, int32_t node, const Said *said) {
    int32_t width = width_at(s, &g->guesses.all[node]);
    if (said->count && exp(said->logprobs[0]) < s->fallback) return DONE;
    for (int32_t i = 0; i < said->count && i < width; i++)
        if (offer(s, g, node, i, said->tokens[i], 1, said->logprobs[i])) return NO_MEMORY;
    return DONE;
}

static void drop_hopeless(const Search *s, Growing *g) {
    int32_t kept = 0;
    for (int32_t i = 0; i < g->unasked.count; i++) {
        const Guess *guess = &g->guesses.all[g->unasked.all[i]];
        if (guess->shape >= 0 && guess->depth < s->depth && pays(s, g, guess->worth * s->decay)) g->unasked.all[kept++] = g->unasked.all[i];
    }
    g->unasked.count = kept;
}

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

/* As many guesses after each as any of the frontier may get. */
static void follow_shape(Search *s, const Growing *g) {
    if (s->shape.widths == NULL) return;
    s->width = 0;
    for (int32_t i = 0; i < g->frontier.count; i++) {
        int32_t width = width_at(s, &g->guesses.all[g->frontier.all[i]]);
        if (width > s->width) s->width = width;
    }
}

static void forbid_passes_below_price(Search *s, const Growing *g) {
    double most = 0;
    for (int32_t i = 0; i < g->frontier.count; i++) most = fmax(most, g->guesses.all[g->frontier.all[i]].worth);
    if (most < s->pass_price) s->passes = false;
}

/* The guesses that earn their rows, of equals the earlier ones, in the order in which they came. */
static int32_t write_best(Search *s, Growing *g) {
    int32_t count = g->guesses.count, kept = 0;
    if (!ROOM(g->rows, count) || !ROOM(g->frontier, count)) return NO_MEMORY;
    int32_t *best = g->frontier.all, *number = g->rows.all;
    for (int32_t node = 1; node < count; node++) {
        double worth = g->guesses.all[node].worth;
        int32_t at = kept < s->nodes ? kept++ : s->nodes;
        for (; at && g->guesses.all[best[at - 1]].worth < worth; at--)
            if (at < s->nodes) best[at] = best[at - 1];
        if (at < s->nodes) best[at] = node;
    }
    for (int32_t rank = 1; rank <= kept; rank++)
        if (g->guesses.all[best[rank - 1]].worth < price_of(s, rank)) kept = rank - 1;
    memset(number, 0, (size_t)count * sizeof *number);
    for (int32_t i = 0; i < kept; i++) number[best[i]] = 1;
    for (int32_t node = 1; node < count; node++) {
        const Guess *guess = &g->guesses.all[node];
        if (number[node] == 0) continue;
        s->parents[s->found] = number[guess->parent];
        s->tokens[s->found] = guess->token;
        s->cells[s->found] = guess->cell;
        s->logprobs[s->found] = guess->logprob;
        number[node] = ++s->found;
    }
    return DONE;
}

/* Grow the tree below this token; an outcome. */
int32_t guess_search(Search *s, Growing *g, int32_t root) {
    int32_t rows_read[MOST_MEMBERS] = {0}, few = s->batch;
    g->guesses.count = g->candidates.count = g->tokens.count = g->ranked.count = g->unasked.count = 0;
    s->found = 0;
    memset(s->reads, 0, sizeof s->reads);
    if (!ROOM(g->ranked, s->nodes) || add_guess(g, (Guess){.token = root, .worth = 1.0})) return NO_MEMORY;
    for (drop_hopeless(s, g); g->unasked.count && s->calls--; drop_hopeless(s, g)) {
        if (choose_frontier(s, g, few)) return NO_MEMORY;
        follow_shape(s, g);
        forbid_passes_below_price(s, g);
        int32_t outcome = ask_members(s, g, rows_read);
        for (int32_t at = 0; at < g->frontier.count && outcome == DONE; at++)
            outcome = (s->rates.hits ? consider : consider_as_said)(s, g, g->frontier.all[at], &g->said.all[at * s->members]);
        if (outcome) return outcome;
        int32_t reads = 0;
        for (int32_t member = 0; member < s->members; member++) reads += s->reads[member];
        if (reads == 0 && !s->levels) few = s->batch ? s->batch : 4; /* asking costs no pass; search.py has the same number */
    }
    return write_best(s, g);
}

/* Count which guesses were right along the tokens that were emitted, whether or not they stayed in the tree. */
void guess_search_learn(const Growing *g, double *hits, double *trials, const int32_t *emitted, int32_t count) {
    int32_t node = g->guesses.count ? 0 : -1;
    for (int32_t i = 0; i < count && node >= 0 && g->guesses.all[node].first >= 0; i++) {
        const Guess *guess = &g->guesses.all[node];
        for (int32_t at = guess->first; at < guess->end; at++) {
            const Candidate *candidate = &g->candidates.all[at];
            hits[candidate->cell] += candidate->token == emitted[i];
            trials[candidate->cell] += 1;
        }
        int32_t next = node + 1;
        while (next < g->guesses.count && (g->guesses.all[next].parent != node || g->guesses.all[next].token != emitted[i])) next++;
        node = next < g->guesses.count ? next : -1;
    }
}
