/* What draft tokens are among the target's, as indexes/token_translation.py knows it; asked for token by token. */

#pragma once

#include "growing_tree.h"

enum { UNASKED = -2, NO_TOKEN = -1, LONGEST_NGRAM = 4 }; /* see token_translation.py */

/* Let Python spell some tokens, a draft token by the target's or a path of the target's by draft tokens, and call
 * `translated_answer` with what it finds, if it finds anything. An outcome. */
typedef int32_t Spell(int32_t by_draft, int32_t count, const int32_t *tokens);

typedef struct {
    int32_t first; /* the target's token that it begins with */
    int32_t rest;  /* where its others stand in `own`, behind their number; 0 where there are none */
    int32_t ngram; /* of it alone; 0 where none begins with it */
} Known;

/* Draft tokens with which an n-gram begins or ends: the children of an n-gram are one token longer. */
typedef struct {
    int32_t token, merged; /* the last of them; the target's token that they are together, or NO_TOKEN */
    int32_t child, sibling;
} Ngram;

typedef struct {
    int32_t tokens, vocab_size; /* of the draft model, of the target */
    Spell *spell;
    Known *known; /* (tokens) */
    GROWING(int32_t) own;
    GROWING(Ngram) ngrams; /* the first is none */
    GROWING(int32_t) answer;
    bool answered;
} Translation;

/* What is known of a draft token; NULL of a number that is none. */
static Known *known_of(const Translation *t, int32_t token) {
    return token >= 0 && token < t->tokens ? &t->known[token] : NULL;
}

static int32_t ask_for_spelling(Translation *t, bool by_draft, int32_t count, const int32_t *tokens) {
    t->answered = false;
    t->answer.count = 0;
    return t->spell(by_draft, count, tokens);
}

/* Ask what a draft token is among the target's; an outcome. */
static int32_t ask_about(Translation *t, int32_t token, Known *known) {
    int32_t outcome = ask_for_spelling(t, false, 1, &token), valid = 0, *found;
    if (outcome) return outcome;
    if (!ROOM(t->own, (int64_t)t->own.count + t->answer.count)) return NO_MEMORY;
    found = t->answer.all;
    while (valid < t->answer.count && found[valid] >= 0 && found[valid] < t->vocab_size) valid++;
    known->first = valid ? found[0] : NO_TOKEN;
    if (valid < 2) return DONE;
    known->rest = t->own.count;
    t->own.all[t->own.count] = valid - 1;
    memcpy(t->own.all + t->own.count + 1, found + 1, (size_t)(valid - 1) * sizeof *found);
    t->own.count += valid;
    return DONE;
}

/* The n-gram that is one token longer; 0 where there is none. */
static int32_t longer(const Translation *t, int32_t ngram, int32_t token) {
    int32_t at = t->ngrams.all[ngram].child;
    while (at && t->ngrams.all[at].token != token) at = t->ngrams.all[at].sibling;
    return at;
}

/* The n-gram of these tokens, `before` being that without the last; 0 where there is none. */
static int32_t ngram_of(const Translation *t, int32_t before, int32_t token) {
    const Known *known = known_of(t, token);
    return before ? longer(t, before, token) : known ? known->ngram : 0;
}

static int32_t add_ngram(Translation *t, int32_t before, int32_t token) {
    int32_t found = ngram_of(t, before, token), at = t->ngrams.count;
    if (found) return found;
    int32_t *link = before ? &t->ngrams.all[before].child : &t->known[token].ngram;
    t->ngrams.all[at] = (Ngram){.token = token, .merged = NO_TOKEN, .sibling = *link};
    *link = at;
    return t->ngrams.count++;
}
