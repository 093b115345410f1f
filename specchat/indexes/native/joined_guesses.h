/* What several members guess after one node as one list: equal tokens joined, weighed by how often their like were right,
 * as drafters/combine.py does it in Python: the same numbers, in the same order. */

#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

enum { MOST_MEMBERS = 3, MOST_WIDTH = 64, MOST_DOUBLINGS = 6, SURENESSES = 2 * MOST_DOUBLINGS + 2 };

/* Who guessed a token and how surely, as a number: for each member a digit, 0 where it did not. Of all digits there are
 * hits and trials. */
typedef struct {
    double *hits, *trials;
} Rates;

typedef struct {
    int32_t token, cell;
    double claim; /* what the members make its probability */
} Candidate;

/* What a member says after a node, best first. */
typedef struct {
    int32_t count;
    int32_t tokens[MOST_WIDTH];
    double logprobs[MOST_WIDTH];
} Said;

/* How often the odds double from even ones, as a digit from 1 on. */
static int32_t sureness(double probability) {
    if (probability >= 1.0 - 1.0 / (1 << MOST_DOUBLINGS)) return 2 * MOST_DOUBLINGS + 1;
    int doublings;
    frexp(probability / (1.0 - probability), &doublings);
    return (doublings - 1 > -MOST_DOUBLINGS ? doublings - 1 : -MOST_DOUBLINGS) + MOST_DOUBLINGS + 1;
}

/* How often such guesses are right; running_estimates.py gives the claim the same weight. */
static double rate_of(const Rates *rates, const Candidate *candidate) {
    return (rates->hits[candidate->cell] + 8.0 * candidate->claim) / (rates->trials[candidate->cell] + 8.0);
}

/* Each token that some of the members say, in the order in which they were first said; how many. */
static int32_t join(const Said *said, int32_t members, Candidate *into) {
    int32_t found = 0, digit = 1;
    for (int32_t member = 0; member < members; member++, digit *= SURENESSES)
        for (int32_t i = 0; i < said[member].count; i++) {
            int32_t token = said[member].tokens[i], at = 0;
            double claim = fmin(1.0, exp(said[member].logprobs[i]));
            while (at < found && into[at].token != token) at++;
            if (at == found) into[found++] = (Candidate){token, 0, claim};
            into[at].cell += digit * sureness(claim);
            into[at].claim = fmax(into[at].claim, claim);
        }
    return found;
}

/* Whether one of them is at least so likely. */
static bool any_as_likely(const Rates *rates, const Candidate *candidates, int32_t count, double least) {
    for (int32_t i = 0; i < count; i++)
        if (rate_of(rates, &candidates[i]) >= least) return true;
    return false;
}

/* Their places, the most probable first, of equals the one said first; and how probable each is. */
static void order(const Rates *rates, const Candidate *candidates, int32_t count, int32_t *places, double *probable) {
    for (int32_t i = 0; i < count; i++) {
        double rate = rate_of(rates, &candidates[i]);
        int32_t at = i;
        for (; at && probable[at - 1] < rate; at--) {
            places[at] = places[at - 1];
            probable[at] = probable[at - 1];
        }
        places[at] = i;
        probable[at] = rate;
    }
}
