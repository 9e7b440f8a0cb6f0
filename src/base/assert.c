/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>

_Noreturn void tr__assert_failed(const char *what, const char *file, int line, const char *function)
{
    /* One call, so that lines of two threads that fail at once do not mix. */
    fprintf(stderr, "troupe: assertion failed: %s (%s:%d, %s)\n", what, file, line, function);
    abort();
}
