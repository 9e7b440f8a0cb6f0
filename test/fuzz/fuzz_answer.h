/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_answer.h: the promises to a client of a service, whatever bytes it sends: an answer comes, it
 * is no 500, and a refusal is JSON with a documented label and a sentence. */
#ifndef TEST_FUZZ_FUZZ_ANSWER_H
#define TEST_FUZZ_FUZZ_ANSWER_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz_check.h"
#include "json/json.h"
#include "support/buffer.h"
#include "web.h"

/* The pages of docs/api that list labels, one after another. */
static struct buffer fuzz_labels;

static inline void fuzz_labels_read(const char *path)
{
    FILE *file = fopen(path, "r");
    char part[4096];
    size_t size;

    CHECK_MSG(file != NULL, "run this in the root of the repository: there is no %s", path);
    while ((size = fread(part, 1, sizeof part, file)) > 0)
        buffer_append(&fuzz_labels, part, size);
    (void)fclose(file);
    CHECK_EQ_INT(fuzz_labels.failed, 0);
}

static inline bool fuzz_is_documented(struct span label)
{
    char quoted[96];
    int size;

    if (label.size == 0 || label.size > sizeof quoted - 3)
        return false;
    size = snprintf(quoted, sizeof quoted, "`%.*s`", (int)label.size, label.at);
    return memmem(fuzz_labels.bytes, fuzz_labels.size, quoted, (size_t)size) != NULL;
}

static inline struct span fuzz_body(const struct web_answer *answer)
{
    return (struct span){ answer->body, answer->size - (size_t)(answer->body - answer->text) };
}

/* An object, with a label if the status says that it is a refusal and without one if not. */
static inline void fuzz_check_json(const char *name, const struct web_answer *answer)
{
    struct json_doc doc = { 0 };
    struct span label = { NULL, 0 }, text;
    int rc = json_parse_copy(&doc, fuzz_body(answer), 0);
    const struct json *error;

    CHECK_MSG(rc == 0 && json_kind(json_root(&doc)) == JSON_OBJECT, "%s: no JSON: %s", name,
        answer->text);
    error = json_get(json_root(&doc), "error");
    if (answer->status < 400) {
        CHECK_MSG(error == NULL, "%s: %s", name, answer->text);
    } else {
        CHECK_MSG(json_string(error, &label) && fuzz_is_documented(label),
            "%s: an unknown label: %s", name, answer->text);
        CHECK_MSG(json_string(json_get(json_root(&doc), "message"), &text) && text.size > 0,
            "%s: no sentence: %s", name, answer->text);
    }
    json_doc_free(&doc);
}

static inline void fuzz_check_status(const char *name, const struct web_answer *answer)
{
    CHECK_MSG(answer->status >= 200 && (answer->status < 500 || answer->status == 503), "%s: %s",
        name, answer->text == NULL ? "nothing" : answer->text);
}

/* Escapes bytes that a request line must not hold: another target tests lines. */
static inline void fuzz_put_target(struct buffer *out, struct span text)
{
    for (size_t i = 0; i < text.size; i++) {
        unsigned char c = (unsigned char)text.at[i];

        if (c <= ' ' || c >= 0x7f || c == '#')
            buffer_format(out, "%%%02x", c);
        else
            buffer_append(out, text.at + i, 1);
    }
}

#endif
