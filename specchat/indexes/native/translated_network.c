/* A draft model with tokens of its own as a network that reads the target's: what drafters/cross_vocabulary.py does level
 * by level, with a call into Python for each of the draft model's passes. */

#include "draft_nodes.h"
#include "translation.h"

enum { CANDIDATES = 16 }; /* of the draft model's likeliest tokens; cross_vocabulary.py has the same number */

/* A guess after a row, and the draft tokens that it comes from: one below a node. */
typedef struct {
    int32_t token, node, draft, rest; /* `rest`: see Known */
    double value, likeliest;          /* a logit; that of the draft tokens it comes from, where several are the same guess */
} Translated;

/* A token of the target behind others, and where it stands in the draft model's tree. */
typedef struct {
    int32_t parent, token, depth;
    int32_t node;        /* −1 where it stands nowhere */
    int32_t owed, left;  /* the target's tokens that the draft token still stands for: so many from there in `own` */
    int32_t first, end;  /* its guesses */
} Row;

typedef struct {
    int32_t node, ngram;
} End;

typedef struct {
    Translation translation;
    DraftNodes draft;
    GROWING(Row) rows;
    GROWING(Translated) guesses;
    GROWING(int32_t) path;
    GROWING(End) ends;
} TranslatedNetwork;

/* Nothing read. Of (tokens) draft tokens the target's token that each begins with, or UNASKED where that is not known yet or
 * where there are more. */
TranslatedNetwork *translated_new(const int32_t *first, int32_t tokens, int32_t vocab_size, Spell *spell) {
    TranslatedNetwork *t = calloc(1, sizeof *t);
    Known *known = calloc((size_t)tokens + 1, sizeof *known);
    if (t == NULL || known == NULL || !ROOM(t->translation.own, 1) || !ROOM(t->translation.ngrams, 1)) {
        free(known);
        if (t) free(t->translation.own.all);
        free(t);
        return NULL;
    }
    for (int32_t token = 0; token < tokens; token++) known[token].first = first[token] < vocab_size ? first[token] : NO_TOKEN;
    t->translation.tokens = tokens;
    t->translation.vocab_size = vocab_size;
    t->translation.spell = spell;
    t->translation.known = known;
    t->translation.own.all[t->translation.own.count++] = 0;
    t->translation.ngrams.all[t->translation.ngrams.count++] = (Ngram){.token = NO_TOKEN, .merged = NO_TOKEN};
    return t;
}

void translated_free(TranslatedNetwork *t) {
    free(t->translation.known);
    free(t->translation.own.all);
    free(t->translation.ngrams.all);
    free(t->translation.answer.all);
    free(t->draft.all.all);
    free(t->draft.named.all);
    free(t->draft.logits.all);
    free(t->draft.logsumexp.all);
    free(t->draft.asked.all);
    free(t->rows.all);
    free(t->guesses.all);
    free(t->path.all);
    free(t->ends.all);
    free(t);
}

/* The answer to what `spell` asked. */
int32_t translated_answer(TranslatedNetwork *t, const int32_t *tokens, int32_t count) {
    Translation *translation = &t->translation;
    if (!ROOM(translation->answer, (int64_t)count + 1)) return NO_MEMORY;
    if (count) memcpy(translation->answer.all, tokens, (size_t)count * sizeof *tokens);
    translation->answer.count = count;
    translation->answered = true;
    return DONE;
}

/* These draft tokens together are a token of the target from now on; numbers that are not tokens do not make an n-gram. */
int32_t translated_learn(TranslatedNetwork *t, const int32_t *tokens, int32_t count, int32_t merged) {
    Translation *translation = &t->translation;
    bool valid = count > 1 && count <= LONGEST_NGRAM && merged >= 0 && merged < translation->vocab_size;
    for (int32_t i = 0; valid && i < count; i++) valid = known_of(translation, tokens[i]) != NULL;
    if (!valid) return DONE;
    if (!ROOM(translation->ngrams, (int64_t)translation->ngrams.count + count)) return NO_MEMORY;
    int32_t ngram = 0;
    for (int32_t i = 0; i < count; i++) ngram = add_ngram(translation, ngram, tokens[i]);
    translation->ngrams.all[ngram].merged = merged;
    return DONE;
}

/* Begin a tree below a text that ends in this draft token. */
int32_t translated_begin(TranslatedNetwork *t, int32_t root, int32_t room, ReadRows *read, void *network) {
    t->rows.count = t->guesses.count = 0;
    return begin_draft(&t->draft, root, room, read, network);
}

/* Where the draft tokens of the path to a row lead. */
static int32_t encode_anew(TranslatedNetwork *t, Row *row) {
    if (!ROOM(t->path, row->depth)) return NO_MEMORY;
    const Row *at = row;
    for (int32_t i = row->depth; i > 0; i--, at = &t->rows.all[at->parent]) t->path.all[i - 1] = at->token;
    int32_t outcome = ask_for_spelling(&t->translation, true, row->depth, t->path.all);
    if (outcome || !t->translation.answered) return outcome;
    row->node = 0;
    for (int32_t i = 0; i < t->translation.answer.count; i++)
        if ((row->node = grow_draft(&t->draft, row->node, t->translation.answer.all[i])) < 0) return NO_MEMORY;
    return DONE;
}

/* Find where a row stands: what others guessed is encoded anew. */
static int32_t find_place(TranslatedNetwork *t, Row *row) {
    const Row *above = &t->rows.all[row->parent];
    if (above->left && t->translation.own.all[above->owed] == row->token) {
        row->node = above->node;
        row->owed = above->owed + 1;
        row->left = above->left - 1;
        return DONE;
    }
    for (int32_t at = above->first; at < above->end; at++) {
        const Translated *guess = &t->guesses.all[at];
        if (guess->token != row->token) continue;
        row->node = grow_draft(&t->draft, guess->node, guess->draft);
        row->owed = guess->rest + 1;
        row->left = t->translation.own.all[guess->rest];
        return row->node < 0 ? NO_MEMORY : DONE;
    }
    return encode_anew(t, row);
}

static int32_t add_row(TranslatedNetwork *t, int32_t behind, int32_t token) {
    if (!ROOM(t->rows, (int64_t)t->rows.count + 1)) return NO_MEMORY;
    Row *row = &t->rows.all[t->rows.count];
    *row = (Row){.parent = behind, .token = token, .node = -1};
    if (behind < 0) row->node = 0;
    else row->depth = t->rows.all[behind].depth + 1;
    int32_t outcome = behind < 0 ? DONE : find_place(t, row);
    if (outcome) return outcome;
    if (row->node >= 0 && !row->left) want(&t->draft, row->node);
    t->rows.count++;
    return DONE;
}

/* Whether a row's guesses are what the draft model said. */
static bool is_translated(const TranslatedNetwork *t, const Row *row) {
    return row->node >= 0 && !row->left && was_read(&t->draft, row->node);
}

/* Read on where n-grams may begin: one pass more for each of their further tokens. */
static int32_t read_on(TranslatedNetwork *t, int32_t first) {
    int32_t count = 0;
    if (!ROOM(t->ends, t->rows.count)) return NO_MEMORY;
    for (int32_t at = first; at < t->rows.count; at++)
        if (is_translated(t, &t->rows.all[at])) t->ends.all[count++] = (End){t->rows.all[at].node, 0};
    for (int32_t length = 1; count && length < LONGEST_NGRAM; length++) {
        int32_t kept = 0;
        for (int32_t i = 0; i < count; i++) {
            End end = t->ends.all[i];
            if (!was_read(&t->draft, end.node)) continue;
            int32_t best = t->draft.named.all[said_after(&t->draft, end.node)];
            end.ngram = ngram_of(&t->translation, end.ngram, best);
            if (end.ngram == 0 || t->translation.ngrams.all[end.ngram].child == 0) continue;
            if ((end.node = grow_draft(&t->draft, end.node, best)) < 0) return NO_MEMORY;
            want(&t->draft, end.node);
            t->ends.all[kept++] = end;
        }
        count = kept;
        int32_t outcome = read_wanted(&t->draft);
        if (outcome) return outcome;
    }
    return DONE;
}

/* The longest n-gram along the likeliest tokens after a node; its value is a log-probability. */
static Translated longest_ngram(const TranslatedNetwork *t, int32_t node) {
    Translated longest = {.token = NO_TOKEN};
    double logprob = 0;
    int32_t ngram = 0;
    for (int32_t at = node; was_read(&t->draft, at);) {
        size_t said = said_after(&t->draft, at);
        int32_t best = t->draft.named.all[said];
        logprob += (double)t->draft.logits.all[said] - (double)t->draft.logsumexp.all[said / MOST_WIDTH];
        if ((ngram = ngram_of(&t->translation, ngram, best)) == 0) break;
        int32_t merged = t->translation.ngrams.all[ngram].merged;
        if (merged != NO_TOKEN) longest = (Translated){.token = merged, .node = at, .draft = best, .value = logprob};
        if ((at = draft_child(&t->draft, at, best)) == 0) break;
    }
    return longest;
}

/* Add a guess to those from `first` on; where it is among them, their probabilities add up and the likeliest goes on. */
static void join_guess(TranslatedNetwork *t, int32_t first, Translated guess) {
    if (guess.token < 0 || !(guess.value > -INFINITY)) return;
    int32_t at = first;
    while (at < t->guesses.count && t->guesses.all[at].token != guess.token) at++;
    guess.likeliest = guess.value;
    if (at == t->guesses.count) {
        t->guesses.all[t->guesses.count++] = guess;
        return;
    }
    Translated *same = &t->guesses.all[at];
    double most = fmax(same->value, guess.value), together = most + log1p(exp(fmin(same->value, guess.value) - most));
    if (guess.likeliest > same->likeliest) *same = guess;
    same->value = together;
}

/* The likeliest first, of equals the one that came first. */
static void sort_guesses(Translated *guesses, int32_t count) {
    for (int32_t i = 1; i < count; i++) {
        Translated guess = guesses[i];
        int32_t at = i;
        for (; at && (float)guesses[at - 1].value < (float)guess.value; at--) guesses[at] = guesses[at - 1];
        guesses[at] = guess;
    }
}

/* Guess after a row what the draft model said, of its `count` likeliest tokens; the first of an n-gram lacks what that has. */
static int32_t translate(TranslatedNetwork *t, Row *row, int32_t count) {
    if (!ROOM(t->guesses, (int64_t)t->guesses.count + count + 1)) return NO_MEMORY;
    size_t said = said_after(&t->draft, row->node);
    double total = (double)t->draft.logsumexp.all[said / MOST_WIDTH];
    Translated merged = longest_ngram(t, row->node);
    row->first = t->guesses.count;
    for (int32_t i = 0; i < count; i++) {
        int32_t token = t->draft.named.all[said + (size_t)i];
        Known *known = known_of(&t->translation, token);
        int32_t outcome = known && known->first == UNASKED ? ask_about(&t->translation, token, known) : DONE;
        if (outcome) return outcome;
        if (known == NULL) continue;
        double value = (double)t->draft.logits.all[said + (size_t)i];
        if (i == 0 && merged.token != NO_TOKEN) value += log(fmax(1e-9, -expm1(merged.value - (value - total))));
        join_guess(t, row->first, (Translated){known->first, row->node, token, known->rest, value, value});
    }
    merged.value += total;
    join_guess(t, row->first, merged);
    row->end = t->guesses.count;
    sort_guesses(t->guesses.all + row->first, row->end - row->first);
    return DONE;
}

/* `ReadRows` of growing_tree.h. */
int32_t translated_read(void *network, int32_t count, const int32_t *behind, const int32_t *tokens, int32_t width,
                        int32_t *said, float *logits, float *logsumexp) {
    TranslatedNetwork *t = network;
    int32_t first = t->rows.count, wanted = width + 2 < CANDIDATES ? width + 2 : CANDIDATES, outcome = DONE;
    for (int32_t i = 0; i < count && !outcome; i++) outcome = add_row(t, behind[i], tokens[i]);
    if (!outcome) outcome = read_wanted(&t->draft);
    if (!outcome) outcome = read_on(t, first);
    for (int32_t i = 0; i < count && !outcome; i++, said += MOST_WIDTH, logits += MOST_WIDTH) {
        Row *row = &t->rows.all[first + i];
        int32_t found = 0;
        logsumexp[i] = 0;
        if (row->left) {
            logits[found] = 0;
            said[found++] = t->translation.own.all[row->owed];
        } else if (is_translated(t, row)) {
            outcome = translate(t, row, wanted);
            logsumexp[i] = t->draft.logsumexp.all[said_after(&t->draft, row->node) / MOST_WIDTH];
            for (int32_t at = row->first; at < row->end; at++) {
                logits[found] = (float)t->guesses.all[at].value;
                said[found++] = t->guesses.all[at].token;
            }
        }
        said[found] = NO_TOKEN; /* there are fewer than MOST_WIDTH */
    }
    return outcome;
}
