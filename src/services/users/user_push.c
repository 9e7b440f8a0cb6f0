/* SPDX-License-Identifier: Apache-2.0 */
/* user_push.c: the body of a push becomes a job. A row is kept as the members its device sent, in
 * the order of their names, so that equal rows are equal texts; what the server adds to a row it
 * gives out is dropped when it comes back. */
#include "services/users/user_push.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "json/json_expect.h"
#include "json/json_write.h"

enum { MEMBERS_MAX = 64, AHEAD_MS_MAX = 300000 };

const struct user_kind_names user_kind_names[USER_KINDS] = {
    [USER_SETTING] = { "settings", "key" },
    [USER_MEMORY_STATE] = { "memory_states", "node_id" },
    [USER_SESSION] = { "sessions", "id" },
    [USER_SESSION_ITEM] = { "session_items", "id" },
};

struct member {
    struct span key;
    const struct json *value;
};

static int by_key(const void *a, const void *b)
{
    const struct member *one = a, *two = b;
    size_t size = one->key.size < two->key.size ? one->key.size : two->key.size;
    int order = size == 0 ? 0 : memcmp(one->key.at, two->key.at, size);

    return order != 0 ? order : (one->key.size > two->key.size) - (one->key.size < two->key.size);
}

/* Names the row or says something about it: not part of what is kept. */
static bool is_about_row(enum user_kind kind, struct span key)
{
    static const char *const names[] = { "client_updated_at", "server_updated_at", "deleted",
        "seq" };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (span_is(key, names[i]))
            return true;
    return span_is(key, user_kind_names[kind].item);
}

static bool has_nul(struct span text)
{
    return text.size > 0 && memchr(text.at, '\0', text.size) != NULL;
}

/* Room was made for all of it before: what was appended stays where it is. */
static struct span keep(struct user_job *job, struct span text)
{
    const char *at = job->texts.bytes + job->texts.size;

    if (text.at == NULL)
        return text;
    buffer_span(&job->texts, text);
    return (struct span){ at, text.size };
}

/* The text of a member, which must be storable: no zero byte. */
static struct span need_text(
    struct user_job *job, struct json_expect *expect, const char *name, size_t size_max)
{
    struct span text = json_need_string(expect, name, 1, size_max);

    if (has_nul(text))
        json_expect_fail(expect, name, "must not have a zero byte");
    return keep(job, text);
}

static struct span may_text(
    struct user_job *job, struct json_expect *expect, const char *name, size_t size_max)
{
    struct span text = json_may_string(expect, name, 1, size_max);

    if (has_nul(text))
        json_expect_fail(expect, name, "must not have a zero byte");
    return keep(job, text);
}

static struct span write_body(
    struct user_job *job, enum user_kind kind, const struct json *row, struct json_expect *expect)
{
    struct member members[MEMBERS_MAX];
    size_t count = 0, from = job->texts.size;

    for (struct json_iter it = json_iterate(row); json_next(&it);) {
        if (is_about_row(kind, it.key))
            continue;
        if (count == MEMBERS_MAX) {
            json_expect_fail(expect, NULL, "has more than 64 members");
            return SPAN("");
        }
        members[count++] = (struct member){ it.key, it.value };
    }
    qsort(members, count, sizeof *members, by_key);
    for (size_t i = 0; i < count; i++) {
        struct json_writer writer = json_writer(&job->texts);

        if (i > 0)
            buffer_text(&job->texts, ",");
        json_quote(&job->texts, members[i].key);
        buffer_text(&job->texts, ":");
        json_put_value(&writer, NULL, members[i].value);
    }
    if (job->texts.size - from > USER_BODY_SIZE_MAX)
        json_expect_fail(expect, NULL, "is larger than 16 KiB");
    return (struct span){ job->texts.bytes + from, job->texts.size - from };
}

static void read_row(struct user_job *job, enum user_kind kind, const struct json *row,
    struct json_expect *expect, int64_t now_ms)
{
    struct user_change *change = &job->changes[job->change_count++];
    int64_t updated_ms = json_need_int(expect, "client_updated_at", 0, INT64_MAX);

    change->kind = kind;
    change->item = need_text(job, expect, user_kind_names[kind].item, USER_ITEM_SIZE_MAX);
    /* A clock that runs far ahead would win against every other for ever. */
    change->updated_ms = updated_ms > now_ms + AHEAD_MS_MAX ? now_ms + AHEAD_MS_MAX : updated_ms;
    change->is_deleted = json_may_bool(expect, "deleted", false);
    if (kind == USER_SESSION_ITEM && !change->is_deleted)
        change->session = need_text(job, expect, "session_id", USER_ITEM_SIZE_MAX);
    change->body =
        change->is_deleted || expect->failed ? SPAN("") : write_body(job, kind, row, expect);
}

static size_t count_rows(struct json_expect *changes)
{
    size_t count = 0;

    for (int kind = 0; kind < USER_KINDS; kind++)
        count +=
            json_count(json_may_array(changes, user_kind_names[kind].list, 0, USER_PUSH_ITEMS_MAX));
    if (count > USER_PUSH_ITEMS_MAX)
        json_expect_fail(changes, NULL, "has more than 1000 rows: push the rest after this");
    return count;
}

static void read_rows(struct user_job *job, struct json_expect *changes, int64_t now_ms)
{
    for (int kind = 0; kind < USER_KINDS; kind++) {
        const char *list = user_kind_names[kind].list;
        const struct json *rows = json_may_array(changes, list, 0, USER_PUSH_ITEMS_MAX);
        size_t index = 0;

        for (struct json_iter it = json_iterate(rows); json_next(&it); index++) {
            struct json_expect row = json_expect_item(changes, list, index, it.value);

            read_row(job, (enum user_kind)kind, it.value, &row, now_ms);
            if (changes->failed)
                return;
        }
    }
}

int user_push_read(struct user_job *job, const struct json *body, size_t body_size, int64_t now_ms,
    char message[JSON_MESSAGE_BYTES])
{
    struct json_expect expect = json_expect(body);
    struct json_expect changes = json_expect_member(&expect, "changes");
    size_t count = count_rows(&changes);
    const char *bytes;

    /* No text is longer in its shortest form than it was in the body; a session item's session is
     * there twice, by itself and as a member. */
    if (buffer_reserve(&job->texts, 2 * body_size + 64) == NULL)
        return TR_ENOMEM;
    bytes = job->texts.bytes;
    job->changes = base_calloc((count + 1) * sizeof *job->changes);
    if (job->changes == NULL)
        return TR_ENOMEM;
    job->device = need_text(job, &expect, "device_id", 64);
    job->os = may_text(job, &expect, "device_os", 50);
    job->model = may_text(job, &expect, "device_model", 100);
    job->app_version = may_text(job, &expect, "app_version", 20);
    job->known_seq = json_may_int(&expect, "since", 0, INT64_MAX, -1);
    if (!expect.failed)
        read_rows(job, &changes, now_ms);
    tr_assert(job->texts.bytes == bytes);
    memcpy(message, expect.message, JSON_MESSAGE_BYTES);
    return expect.failed ? TR_EINVAL : 0;
}
