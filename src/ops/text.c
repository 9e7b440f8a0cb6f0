/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/text.h"

void text_put_label(struct buffer *out, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '\\' || *text == '"')
            buffer_format(out, "\\%c", *text);
        else if (*text == '\n')
            buffer_text(out, "\\n");
        else
            buffer_append(out, text, 1);
    }
}
