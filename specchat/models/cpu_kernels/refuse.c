#include "refuse.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char reason[200];

int refuse(const char *why, ...) {
    va_list values;
    va_start(values, why);
    vsnprintf(reason, sizeof reason, why, values);
    va_end(values);
    return REFUSED;
}

const char *refusal(void) { return reason; }
