/* SPDX-License-Identifier: Apache-2.0 */
/* generate.h: generate texts for parsers to compare. Equal generators give equal texts. */
#ifndef TEST_ORACLE_GENERATE_H
#define TEST_ORACLE_GENERATE_H

#include "base/random.h"
#include "support/buffer.h"

/* Append a JSON text: valid, with all kinds of numbers, escapes, scripts and spaces. */
void generate_json(struct base_random *random, struct buffer *text);
/* Append a JSON text whose numbers are nearly all integers with a canonical form. */
void generate_integer_json(struct base_random *random, struct buffer *text);
/* Change a few bytes: flip, insert, delete, repeat a piece, or insert a piece that parsers often
 * get wrong. Never leaves the text empty. */
void generate_mutation(struct base_random *random, struct buffer *text);

#endif
