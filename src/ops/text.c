/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/text.h"

void text_put_label(struct tr_buffer *out, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '\\' || *text == '"')
            tr_buffer_format(out, "\\%c", *text);
        else if (*text == '\n')
            tr_buffer_text(out, "\\n");
        else
            tr_buffer_append(out, text, 1);
    }
}
