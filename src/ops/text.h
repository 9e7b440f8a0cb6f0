/* SPDX-License-Identifier: Apache-2.0 */
/* text.h: text as Prometheus wants it quoted. */
#ifndef OPS_TEXT_H
#define OPS_TEXT_H

#include "support/buffer.h"

/* The inside of a label's quotes: backslash, quote and newline escaped. */
void text_put_label(struct buffer *out, const char *text);

#endif
