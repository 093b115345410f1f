/* Why a call was refused, as every entry point tells Python. */

#pragma once

/* What every entry point returns. Those that read for a search have some of their own: see hydra.h. */
enum Outcome { DONE = 0, NO_MEMORY = 1, REFUSED = 2, NOT_NUMBERS = 5 };

/* Note down why, as printf would, for this thread. Returns REFUSED. */
int refuse(const char *why, ...) __attribute__((format(printf, 1, 2)));

/* Why the last refused call of this thread was refused. */
const char *refusal(void);
