/* SPDX-License-Identifier: Apache-2.0 */
/* number.h: numbers as people read them, for error texts and reports. */
#ifndef SUPPORT_NUMBER_H
#define SUPPORT_NUMBER_H

#include <stdint.h>

enum { NUMBER_TEXT_SIZE = 27 }; /* of the largest uint64_t, with commas and NUL */

/* Write the value with a comma between groups of three digits ("16,777,216"). Returns `text`. */
const char *number_text(uint64_t value, char text[NUMBER_TEXT_SIZE]);

#endif
