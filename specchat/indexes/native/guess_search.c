/* The tree of what some members guess, as the policies in `trees` and trees/growth.py grow it from what their drafter
 * proposes: the same guesses, in the same order. Without Python's work for each level. */

#include "frontiers.h"
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
    free(g->drafted.all);
    free(g->offers.all);
    free(g->rows.all);
    free(g->said.all);
    free(g->named.all);
    free(g->logprobs.all);
    free(g->logsumexp.all);
    free(g);
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

/* Give a guess a place below its parent, where it is not beaten already. */
static int32_t place(const Search *s, Growing *g, const Offer *offer) {
    const Guess *above = &g->guesses.all[offer->parent];
    double worth = above->worth * s->decay * fmin(1.0, exp(offer->logprob));
    bool beaten = g->ranked.count == s->nodes && worth <= g->ranked.all[s->nodes - 1];
    if (beaten || !pays(s, g, worth)) return DONE;
    take_rank(s, g, worth);
    return add_guess(g, (Guess){
        .parent = offer->parent, .token = offer->token, .depth = above->depth + 1, .cell = offer->cell,
        .shape = s->shape.widths ? s->shape.below[s->shape.begins[above->shape] + offer->rank] : 0,
        .worth = worth, .logprob = offer->logprob, .path = above->path + offer->logprob,
    });
}

static void add_offer(Growing *g, Offer offer) { g->offers.all[g->offers.count++] = offer; }

/* Offer what was said about a guess. */
static int32_t offer_joined(const Search *s, Growing *g, int32_t node, const Said *said) {
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
        add_offer(g, (Offer){node, i, candidate->token, candidate->cell, log(probable[i])});
    }
    return DONE;
}

/* The same for the guesses of one member, as likely as it says. */
static void offer_as_said(const Search *s, Growing *g, int32_t node, const Said *said) {
    int32_t width = width_at(s, &g->guesses.all[node]);
    if (said->count && exp(said->logprobs[0]) < s->fallback) return;
    for (int32_t i = 0; i < said->count && i < width; i++)
        add_offer(g, (Offer){node, i, said->tokens[i], 1, said->logprobs[i]});
}

static double score_of(const Growing *g, const Offer *offer) { return g->guesses.all[offer->parent].path + offer->logprob; }

/* Keep the offers with the likeliest paths, of equals the earlier ones, in their order; as many as there is room for. */
static int32_t keep_beams(const Search *s, Growing *g) {
    int32_t room = room_left(s, g), most = s->beams < room ? s->beams : room, kept = 0;
    if (!ROOM(g->rows, (int64_t)g->offers.count + 1)) return NO_MEMORY;
    int32_t *best = g->rows.all;
    for (int32_t i = 0; i < g->offers.count; i++) {
        double score = score_of(g, &g->offers.all[i]);
        int32_t at = kept < most ? kept++ : most;
        for (; at && score_of(g, &g->offers.all[best[at - 1]]) < score; at--)
            if (at < most) best[at] = best[at - 1];
        if (at < most) best[at] = i;
    }
    for (int32_t i = 0; i < kept; i++) g->offers.all[best[i]].rank = -1;
    int32_t count = 0;
    for (int32_t i = 0; i < g->offers.count; i++)
        if (g->offers.all[i].rank < 0) g->offers.all[count++] = g->offers.all[i];
    g->offers.count = count;
    return DONE;
}

/* Give what was said about the frontier places. */
static int32_t consider(const Search *s, Growing *g) {
    if (!ROOM(g->offers, (int64_t)g->frontier.count * MOST_MEMBERS * MOST_WIDTH)) return NO_MEMORY;
    g->offers.count = 0;
    for (int32_t at = 0; at < g->frontier.count; at++) {
        const Said *said = &g->said.all[at * s->members];
        if (s->rates.hits == NULL)
            offer_as_said(s, g, g->frontier.all[at], said);
        else if (offer_joined(s, g, g->frontier.all[at], said))
            return NO_MEMORY;
    }
    if (s->beams && keep_beams(s, g)) return NO_MEMORY;
    for (int32_t i = 0; i < g->offers.count && (room_left(s, g) || !s->first_come); i++)
        if (place(s, g, &g->offers.all[i])) return NO_MEMORY;
    return DONE;
}

/* Copy below every linked guess what was guessed below the one it is linked to, links included. */
static int32_t unfold(const Search *s, Growing *g) {
    g->rows.count = 0; /* those to copy below; their links say from where */
    if (!ROOM(g->rows, g->guesses.count)) return NO_MEMORY;
    for (int32_t node = 1; node < g->guesses.count; node++)
        if (g->guesses.all[node].link) g->rows.all[g->rows.count++] = node;
    for (int32_t i = 0; i < g->rows.count; i++) {
        int32_t node = g->rows.all[i], source = g->guesses.all[node].link, drafted = g->guesses.count;
        if (!may_have_children(s, g, node)) continue;
        for (int32_t below = source + 1; below < drafted; below++) {
            Guess from = g->guesses.all[below];
            if (from.parent != source) continue;
            int32_t before = g->guesses.count;
            if (place(s, g, &(Offer){node, 0, from.token, from.cell, from.logprob})) return NO_MEMORY;
            if (g->guesses.count == before) continue;
            g->guesses.all[before].link = from.link ? from.link : below;
            if (!ROOM(g->rows, (int64_t)g->rows.count + 1)) return NO_MEMORY;
            g->rows.all[g->rows.count++] = before;
        }
    }
    return DONE;
}

static void forbid_passes_below_price(const Search *s, Growing *g) {
    double most = 0;
    for (int32_t i = 0; i < g->frontier.count; i++) most = fmax(most, g->guesses.all[g->frontier.all[i]].worth);
    if (most < s->pass_price) g->passes = false;
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
    int32_t rows_read[MOST_MEMBERS] = {0}, few = s->batch, calls = s->calls;
    g->guesses.count = g->candidates.count = g->tokens.count = g->ranked.count = g->unasked.count = 0;
    s->found = 0;
    g->passes = s->passes;
    memset(s->reads, 0, sizeof s->reads);
    g->drafted.count = 0;
    if (!ROOM(g->ranked, s->nodes) || add_guess(g, (Guess){.token = root, .worth = 1.0})) return NO_MEMORY;
    for (drop_hopeless(s, g); g->unasked.count && calls--; drop_hopeless(s, g)) {
        if (s->repeat ? link_repeats(s, g) : choose_frontier(s, g, few)) return NO_MEMORY;
        fit_into_room(s, g);
        if (g->frontier.count == 0) break;
        follow_shape(s, g);
        forbid_passes_below_price(s, g);
        int32_t outcome = ask_members(s, g, rows_read);
        if (outcome == DONE) outcome = consider(s, g);
        if (outcome) return outcome;
        int32_t reads = 0;
        for (int32_t member = 0; member < s->members; member++) reads += s->reads[member];
        if (reads == 0 && !s->levels) few = s->batch ? s->batch : 4; /* asking costs no pass; trees/growth.py has the same number */
    }
    if (s->repeat && unfold(s, g)) return NO_MEMORY;
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
