/* What a search for the guesses of most worth is given, as indexes/guess_search.py declares it, and what it keeps. */

#pragma once

#include "drafts.h"
#include "joined_guesses.h"
#include "network_guesses.h"

enum { MISSING_INPUT = 3, NO_ROOM = 4 };

/* Let a network read `count` more rows, each behind an earlier row of its own (−1: the text), and name up to `width`
 * tokens after each, −1 where there are no more: (count, MOST_WIDTH); in `logsumexp` what makes logits of the log-probabilities
 * of a row. An outcome; MISSING_INPUT with a token's number in `said` where the network was not told what it takes of it. */
typedef int32_t ReadRows(void *network, int32_t count, const int32_t *behind, const int32_t *tokens, int32_t width,
                         int32_t *said, float *logprobs, float *logsumexp);

/* Who is asked: suffix trees, a table of successors, or a network. */
typedef struct {
    Tree *const *trees;        /* NULL for the others */
    const int32_t *limits;     /* see suffix_draft */
    const int32_t *successors; /* (tokens, count) of every token, from −1 on nothing more is known of it; NULL for the others */
    const double *by_rank;     /* (count) their log-probabilities */
    double probability;
    ReadRows *read; /* NULL for a network without the states that it needs */
    void *network;
    int32_t count;  /* trees, or successors of a token */
    int32_t tokens; /* that have successors */
    int32_t logits; /* whether a network names logits instead of log-probabilities */
    int32_t one_pass; /* whether a network answers for all nodes of a tree by one pass, that of its first answer */
} Asked;

/* Whose guesses get children, and how many, in a static tree: nodes of a shape, the root first. */
typedef struct {
    const int32_t *widths; /* of each its children; NULL: any guess may have `width` */
    const int32_t *begins; /* of each where those stand in `below` */
    const int32_t *below;  /* the node of the shape that a guess of this rank is, −1 for one that gets no children */
} Shape;

typedef struct {
    int32_t parent, token, depth, cell, shape; /* `shape`: its node there */
    int32_t first, end;         /* what was said after it lies there among the candidates; −1 before it is asked about */
    int32_t draft[MOST_MEMBERS], draft_end[MOST_MEMBERS]; /* the entries of the draft of suffix trees that it is in, */
    int32_t place[MOST_MEMBERS]; /* and its number there, 0 for the end of the text; or a network's row, −1 for none */
    int32_t link; /* the guess with the same last tokens whose continuations are copied below it; 0 for none */
    double worth, logprob, path; /* `path`: the sum of the log-probabilities down to it */
} Guess;

/* A guess that competes for a place. */
typedef struct {
    int32_t parent, rank, token, cell;
    double logprob;
} Offer;

typedef struct {
    int32_t members, nodes, depth, width, batch, prices; /* `width`: in a static tree it follows the level */
    int32_t calls;        /* how often members may be asked */
    int32_t levels;       /* whether a node skipped at its level stays skipped (else it may be asked about later) */
    int32_t beams;        /* guesses of a level that may get places, those of the likeliest paths; 0: all */
    int32_t repeat, tail; /* a guess that ends in so many of another's last tokens copies what follows that; 0: none does. */
    int32_t passes;       /* whether networks may be asked */
    int32_t missing;      /* result: the token that a network does not know */
    int32_t found;        /* result: how many guesses stay */
    int32_t apart;        /* whether each member is asked about the root and below its own guesses alone */
    int32_t top;          /* of other members' guesses those stay that the first has among so many; 0: all */
    int32_t first_come;   /* whether guesses get places as long as there are some, in the order in which they are found */
    const int32_t *text;  /* (tail) its last tokens, which stand before those of a path */
    const double *price;  /* (prices), never falling; the last holds for all that follow */
    double floor, decay, pass_price, sure;
    double fallback;      /* where no guess is so likely, none is taken */
    Shape shape;
    Rates rates;          /* of one member they may be left out: its guesses are as likely as it says */
    Sampled sampled;
    Asked asked[MOST_MEMBERS];
    int32_t reads[MOST_MEMBERS]; /* results: how many times each network read */
    int32_t *parents, *tokens, *cells; /* results, (nodes): parents count from 1, 0 is the root */
    double *logprobs;
} Search;

/* Buffers of a kind that grow. */
#define GROWING(type) struct { type *all; int32_t count, room; }

/* A tree while it grows. It is kept for learning until the next one begins. */
typedef struct {
    bool passes;            /* whether networks may still be asked */
    GROWING(Guess) guesses; /* the root first */
    GROWING(Candidate) candidates;
    GROWING(int32_t) above; /* of drafts, one behind the other; see suffix_draft */
    GROWING(int32_t) tokens;
    GROWING(double) chances;
    GROWING(double) ranked; /* the largest worths, the largest first */
    GROWING(int32_t) unasked;
    GROWING(int32_t) frontier;
    GROWING(int32_t) chosen;
    GROWING(int32_t) drafted; /* guesses that members were asked about: of each end the one of most worth */
    GROWING(Offer) offers;
    GROWING(int32_t) rows; /* to be read */
    GROWING(Said) said;    /* (frontier, members) */
    GROWING(int32_t) named; /* (rows, MOST_WIDTH) */
    GROWING(float) logprobs;
    GROWING(float) logsumexp; /* (rows) */
} Growing;

static inline bool room_for(void **all, int32_t *room, int64_t count, size_t size) {
    if (count <= *room) return true;
    int64_t more = count > 2 * (int64_t)*room ? count : 2 * (int64_t)*room;
    void *grown = more < INT32_MAX / 2 ? realloc(*all, (size_t)more * size) : NULL;
    if (grown == NULL) return false;
    *all = grown;
    *room = (int32_t)more;
    return true;
}

/* Whether there is memory for so many. */
#define ROOM(buffer, many) room_for((void **)&(buffer).all, &(buffer).room, (many), sizeof *(buffer).all)
