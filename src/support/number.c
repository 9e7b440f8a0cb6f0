/* SPDX-License-Identifier: Apache-2.0 */
#include "support/number.h"

#include <string.h>

const char *number_text(uint64_t value, char text[NUMBER_TEXT_SIZE])
{
    char digits[NUMBER_TEXT_SIZE];
    unsigned used = NUMBER_TEXT_SIZE - 1, count = 0;

    digits[used] = '\0';
    do {
        if (count > 0 && count % 3 == 0)
            digits[--used] = ',';
        digits[--used] = (char)('0' + value % 10);
        count++;
    } while ((value /= 10) > 0);
    memcpy(text, digits + used, NUMBER_TEXT_SIZE - used);
    return text;
}
