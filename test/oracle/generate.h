/* SPDX-License-Identifier: Apache-2.0 */
/* generate.h: texts to disagree about. Equal generators give equal texts. */
#ifndef TEST_ORACLE_GENERATE_H
#define TEST_ORACLE_GENERATE_H

#include "base/random.h"
#include "support/buffer.h"

/* Append a JSON text: valid, with all kinds of numbers, escapes, scripts and spaces. */
void generate_json(struct base_random *random, struct buffer *text);
/* The same, but nearly all numbers are integers that canonical JSON has a form for. */
void generate_integer_json(struct base_random *random, struct buffer *text);
/* Change a few bytes: flip, insert, delete, repeat a piece, or put in a piece that parsers trip
 * over. Never leaves it empty. */
void generate_mutation(struct base_random *random, struct buffer *text);

#endif
