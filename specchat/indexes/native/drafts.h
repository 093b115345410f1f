/* The continuation that suffix trees make likely, as draft.c finds it. */

#pragma once

#include "suffix_tree.h"

int32_t suffix_draft(Tree *const *trees, int32_t count, const int32_t *path, int32_t size, const int32_t *limits,
                     double probability, int32_t *above, int32_t *tokens, double *chances);
