/* SPDX-License-Identifier: Apache-2.0 */
/* sync_emoji.c: the names of emoji in other languages, from a file of the Matrix specification
 * (data-definitions/sas-emoji.json):
 *
 *     [{"number":0,"emoji":"…","description":"Dog","translated_descriptions":{"de":"Hund",…}},…] */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#include "cli/packs_command.h"
#include "cli/sync_command.h"

enum { EMOJI_FILE_BYTES_MAX = 1 << 20, EMOJI_LOCALE_BYTES = 32 };

/* Return the entry of a number; NULL without one. */
static const struct json *emoji_find(const struct json *table, int64_t wanted)
{
    int64_t number;

    for (struct json_iter it = json_iterate(table); json_next(&it);)
        if (json_int(json_get(it.value, "number"), &number) && number == wanted)
            return it.value;
    return NULL;
}

bool sync_emoji_read(const char *path, struct json_doc *ret_doc)
{
    struct buffer file;
    struct span text;
    bool is_good = true;

    if (!packs_read(AT_FDCWD, path, EMOJI_FILE_BYTES_MAX, &file)) {
        (void)sync_fail("The file of --emoji %s cannot be read: %s.", path, strerror(errno));
        return false;
    }
    is_good = json_parse_copy(ret_doc, mxclient_span(&file), 0) == 0 &&
              json_kind(json_root(ret_doc)) == JSON_ARRAY;
    /* A file of another table could give an emoji the name of another one. */
    for (int i = 0; is_good && i < MX_SAS_EMOJIS; i++) {
        const struct json *entry = emoji_find(json_root(ret_doc), i);

        is_good =
            json_string(json_get(entry, "emoji"), &text) && span_is(text, mx_sas_emojis[i].emoji);
    }
    buffer_free(&file);
    if (!is_good)
        (void)sync_fail("The file of --emoji %s is not the table of emoji of the Matrix "
                        "specification (sas-emoji.json, 64 entries).",
            path);
    return is_good;
}

/* Copy the locale of messages without its character set: "de_DE". */
static void emoji_locale(char locale[EMOJI_LOCALE_BYTES])
{
    static const char *const names[] = { "LC_ALL", "LC_MESSAGES", "LANG" };
    const char *value = NULL;
    size_t size;

    for (size_t i = 0; i < sizeof names / sizeof names[0] && (value == NULL || *value == 0); i++)
        value = getenv(names[i]);
    size = value == NULL ? 0 : strcspn(value, ".@");
    size = size < EMOJI_LOCALE_BYTES ? size : 0;
    memcpy(locale, value == NULL ? "" : value, size);
    locale[size] = 0;
}

struct span sync_emoji_name(const struct json *table, int64_t number)
{
    const struct json *names =
        table == NULL ? NULL : json_get(emoji_find(table, number), "translated_descriptions");
    struct span name = span_of(mx_sas_emojis[number].name);
    char locale[EMOJI_LOCALE_BYTES];

    emoji_locale(locale);
    if (names == NULL || json_string(json_get(names, locale), &name))
        return name;
    locale[strcspn(locale, "_")] = 0; /* the language of any country */
    (void)json_string(json_get(names, locale), &name);
    return name;
}
