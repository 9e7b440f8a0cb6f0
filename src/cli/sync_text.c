/* SPDX-License-Identifier: Apache-2.0 */
/* sync_text.c: the texts of `troupe sync` for people. A text of the network, of a file or of a path may
 * have any bytes: all that is printed for people goes through sync_text_put, which leaves no character
 * that moves the cursor, ends a line or turns the order of the others round. */
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "cli/sync_command.h"
#include "sql/sql.h"

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

/* Characters that are not shown as they are. */
static const struct {
    uint32_t first, last;
    const char *shown;
} text_rules[] = {
    { 0x00, 0x08, REPLACEMENT }, { 0x09, 0x0d, " " },         /* tabs and line breaks */
    { 0x0e, 0x1f, REPLACEMENT }, { 0x7f, 0x9f, REPLACEMENT }, /* DEL and C1 */
    { 0x61c, 0x61c, REPLACEMENT },                            /* marks of direction */
    { 0x200e, 0x200f, REPLACEMENT },                          /* the same */
    { 0x2028, 0x2029, " " },         /* separators of lines and paragraphs */
    { 0x202a, 0x202e, REPLACEMENT }, /* embeddings and overrides of direction */
    { 0x2066, 0x2069, REPLACEMENT }, /* isolates of direction */
};

/* Read the character at the start of a text. Returns its size; 0 for bytes that are no UTF-8. */
static size_t text_read(struct span text, uint32_t *ret_code)
{
    static const uint8_t first_bits[] = { 0, 0x7f, 0x1f, 0x0f, 0x07 };
    size_t size = 1;

    while (size < text.size && size < 4 && ((unsigned char)text.at[size] & 0xc0) == 0x80)
        size++;
    while (size > 0 && !json_is_utf8((struct span){ text.at, size }))
        size--; /* also bytes that continue nothing */
    *ret_code = size == 0 ? 0 : (unsigned char)text.at[0] & first_bits[size];
    for (size_t i = 1; i < size; i++)
        *ret_code = *ret_code << 6 | ((unsigned char)text.at[i] & 0x3f);
    return size;
}

void sync_text_put(struct span text, struct buffer *out)
{
    while (text.size > 0) {
        uint32_t code;
        size_t size = text_read(text, &code);
        const char *shown = size == 0 ? REPLACEMENT : NULL;

        for (size_t i = 0; size > 0 && i < sizeof text_rules / sizeof text_rules[0]; i++)
            if (code >= text_rules[i].first && code <= text_rules[i].last)
                shown = text_rules[i].shown;
        if (shown != NULL)
            (void)buffer_text(out, shown);
        else
            (void)buffer_append(out, text.at, size);
        size = size == 0 ? 1 : size;
        text.at += size;
        text.size -= size;
    }
}

/* ---- output ----------------------------------------------------------------------------------- */

static void text_print(FILE *file, struct span text)
{
    struct buffer safe = { 0 };

    sync_text_put(text, &safe);
    (void)fwrite(safe.bytes == NULL ? "" : safe.bytes, 1, safe.size, file);
    buffer_free(&safe);
}

/* Print a formatted text and the end of a line. */
__attribute__((format(printf, 2, 0))) static void text_print_line(
    FILE *file, const char *format, va_list args)
{
    struct buffer text = { 0 };
    va_list again;
    int size;

    va_copy(again, args);
    size = vsnprintf(NULL, 0, format, args);
    if (size >= 0 && buffer_reserve(&text, (size_t)size + 1) != NULL) {
        (void)vsnprintf(text.bytes, (size_t)size + 1, format, again);
        text_print(file, (struct span){ text.bytes, (size_t)size });
    }
    va_end(again);
    fputc('\n', file);
    buffer_free(&text);
}

void sync_print_safe(struct span text)
{
    text_print(stdout, text);
}

void sync_print_cell(struct span text, int width)
{
    sync_print_safe(text);
    printf("%*s ", text.size < (size_t)width ? width - (int)text.size : 0, "");
}

bool sync_say(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    text_print_line(stdout, format, args);
    va_end(args);
    return fflush(stdout) == 0 && ferror(stdout) == 0;
}

__attribute__((format(printf, 1, 0))) static void text_warn(const char *format, va_list args)
{
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr); /* over a line of progress */
    fputs("troupe sync: ", stderr);
    text_print_line(stderr, format, args);
}

void sync_warn(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    text_warn(format, args);
    va_end(args);
}

int sync_fail(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    text_warn(format, args);
    va_end(args);
    return CLI_FAILED;
}

/* ---- codes ------------------------------------------------------------------------------------ */

const char *sync_error_text(int rc)
{
    return rc <= SQL_EROWS && rc >= SQL_ELOST ? sql_error_text(rc) : mx_error_text(rc);
}
