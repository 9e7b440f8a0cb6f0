/* SPDX-License-Identifier: Apache-2.0 */
/* user_push.c: read the body of a push into a job. A row is stored as the members that its device
 * sent, sorted by name, so that equal rows are equal texts. The members that the server adds to a
 * pulled row are dropped when a device pushes them back. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "json/json_write.h"
#include "services/users/user_job.h"

enum { MEMBERS_MAX = 64, AHEAD_MS_MAX = 300000 };

const char *const user_lists[USER_KINDS + 1] = {
    [USER_SETTING] = "settings",
    [USER_MEMORY_STATE] = "memory_states",
    [USER_SESSION] = "sessions",
    [USER_SESSION_ITEM] = "session_items",
};
const char *const user_items[USER_KINDS] = {
    [USER_SETTING] = "key",
    [USER_MEMORY_STATE] = "node_id",
    [USER_SESSION] = "id",
    [USER_SESSION_ITEM] = "id",
};

struct member {
    struct span key;
    const struct json *value;
};

static int by_key(const void *a, const void *b)
{
    return span_compare(((const struct member *)a)->key, ((const struct member *)b)->key);
}

/* True for members that name the row or describe it; they have columns of their own. */
static bool is_about_row(enum user_kind kind, struct span key)
{
    static const char *const names[] = { "client_updated_at", "server_updated_at", "deleted",
        "seq" };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (span_is(key, names[i]))
            return true;
    return span_is(key, user_items[kind]);
}

/* Append a text. user_push_read has reserved room for all texts, so the buffer never moves. */
static struct span push_copy_text(struct user_job *job, struct span text)
{
    const char *at = job->texts.bytes + job->texts.size;

    if (text.at == NULL)
        return text;
    buffer_span(&job->texts, text);
    return (struct span){ at, text.size };
}

/* Read the name of a row: a text that can be stored. */
static struct span read_name(struct user_job *job, struct json_expect *expect, const char *name)
{
    struct span text = json_need_string(expect, name, 1, USER_ITEM_SIZE_MAX);

    if (!expect->failed && memchr(text.at, '\0', text.size) != NULL)
        json_expect_fail(expect, name, "must not contain a zero byte");
    return push_copy_text(job, text);
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
        json_expect_fail(expect, NULL, "is larger than 16,384 bytes");
    return (struct span){ job->texts.bytes + from, job->texts.size - from };
}

static void read_row(struct user_job *job, enum user_kind kind, const struct json *row,
    struct json_expect *expect, int64_t now_ms)
{
    struct user_change *change = &job->changes[job->change_count++];
    int64_t updated_ms = json_need_int(expect, "client_updated_at", 0, INT64_MAX);

    change->kind = kind;
    change->item = read_name(job, expect, user_items[kind]);
    /* A device whose clock runs far ahead would win every conflict for ever: cap it. */
    change->updated_ms = updated_ms > now_ms + AHEAD_MS_MAX ? now_ms + AHEAD_MS_MAX : updated_ms;
    change->is_deleted = json_may_bool(expect, "deleted", false);
    if (kind == USER_SESSION_ITEM && !change->is_deleted)
        change->session = read_name(job, expect, "session_id");
    change->body =
        change->is_deleted || expect->failed ? SPAN("") : write_body(job, kind, row, expect);
}

static size_t count_rows(struct json_expect *changes)
{
    size_t count = 0;

    for (int kind = 0; kind < USER_KINDS; kind++)
        count += json_count(json_may_array(changes, user_lists[kind], 0, USER_PUSH_ITEMS_MAX));
    if (count > USER_PUSH_ITEMS_MAX)
        json_expect_fail(changes, NULL,
            "has %zu rows; the most is 1000. Push the rest in another request", count);
    return count;
}

static void push_read_rows(struct user_job *job, struct json_expect *changes, int64_t now_ms)
{
    for (int kind = 0; kind < USER_KINDS; kind++) {
        const char *list = user_lists[kind];
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

enum { DEVICE, OS, MODEL, APP_VERSION, SINCE };
static const struct param push_params[] = {
    [DEVICE] = PARAM_NEED_TEXT("device_id", 1, 64),
    [OS] = PARAM_MAY_TEXT("device_os", 1, 50),
    [MODEL] = PARAM_MAY_TEXT("device_model", 1, 100),
    [APP_VERSION] = PARAM_MAY_TEXT("app_version", 1, 20),
    [SINCE] = { "since", PARAM_INT, .max = INT64_MAX, .fallback = -1 },
    PARAM_LAST,
};

/* Returns false if there is no memory. */
static bool push_alloc(struct user_job *job, size_t body_size, size_t count)
{
    /* The shortest form of a text is no longer than its form in the body. The session of a session
     * item is stored twice, by itself and as a member. */
    if (buffer_reserve(&job->texts, 2 * body_size + 64) == NULL)
        return false;
    job->changes = base_calloc((count + 1) * sizeof *job->changes);
    return job->changes != NULL;
}

void user_push_read(struct user_job *job, struct param_reader *reader, int64_t now_ms)
{
    static const struct param none[] = { PARAM_LAST };
    struct param_value values[PARAMS_MAX] = { 0 };
    struct json_expect changes;
    const char *bytes;
    size_t count;

    param_read_body(reader, none, values);
    if (reader->expect.failed || reader->is_out_of_memory)
        return;
    changes = json_expect_member(&reader->expect, "changes");
    count = count_rows(&changes);
    reader->is_out_of_memory = !push_alloc(job, http_body(reader->request).size, count);
    if (reader->is_out_of_memory)
        return;
    bytes = job->texts.bytes;
    param_read_members(reader, push_params, values);
    job->device = push_copy_text(job, values[DEVICE].text);
    job->os = push_copy_text(job, values[OS].text);
    job->model = push_copy_text(job, values[MODEL].text);
    job->app_version = push_copy_text(job, values[APP_VERSION].text);
    job->known_seq = values[SINCE].number;
    if (!reader->expect.failed)
        push_read_rows(job, &changes, now_ms);
    tr_assert(job->texts.bytes == bytes);
    tr_assert(job->change_count <= count);
}
