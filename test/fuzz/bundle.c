/* SPDX-License-Identifier: Apache-2.0 */
/* bundle.c: any bytes as a request of type message/mls: a query up to the first line feed, then the
 * body. The query becomes JSON that can be read, or is refused; the body's messages lie one after
 * another without gaps; a tree in it agrees with itself. */
#include "services/delivery/api/bundle.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "services/delivery/mls/commit_roster.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_query(struct span query, struct api_body *body)
{
    static const struct param params[] = { { "didList", PARAM_DIDS, .max = 0 },
        { "removes", PARAM_DIDS, .max = 0 }, { "epoch", PARAM_INT, .max = 0 },
        { "paddedSize", PARAM_INT, .max = 0 }, PARAM_LAST };
    struct buffer text = { 0 };
    char *scratch = malloc(query.size + 1);
    int rc;

    tr_assert(scratch != NULL);
    if (api_put_query(&text, params, query, scratch)) {
        tr_assert(text.failed == 0);
        rc = json_parse_copy(&body->reader.doc, (struct span){ text.bytes, text.size }, 0);
        tr_assert(rc == 0 && json_kind(json_root(&body->reader.doc)) == JSON_OBJECT);
    } else {
        tr_assert(json_parse_copy(&body->reader.doc, SPAN("{}"), 0) == 0);
    }
    body->reader.expect = json_expect(json_root(&body->reader.doc));
    buffer_free(&text);
    free(scratch);
}

/* Messages one after another: each begins where the last one ended. */
static size_t walk(struct span bytes, bool *ret_is_whole)
{
    struct mls_reader reader = mls_reader_of(bytes);
    struct mls_message message;
    const char *at = bytes.at;
    struct span part;
    size_t count = 0;

    while (mls_more(&reader) && mls_message_next(&reader, &message, &part) == NULL) {
        tr_assert(part.at == at && part.size >= 4);
        tr_assert(part.at + part.size <= bytes.at + bytes.size);
        tr_assert(mls_message_read(part, &message) == NULL);
        at = part.at + part.size;
        count++;
    }
    *ret_is_whole = reader.fault == NULL && at == bytes.at + bytes.size;
    return count;
}

static void walk_roster(const struct commit_act *commit)
{
    struct commit_roster *roster = NULL;
    struct mls_group_info info;

    if (commit->info.bytes.size == 0 || mls_group_info_read(commit->info.bytes, &info) != NULL)
        return;
    tr_assert(commit_roster_create(&info, &info, &roster) == 0);
    if (roster == NULL)
        return;
    tr_assert(roster->has_before && roster->gone.size == 0 && roster->count > 0);
    for (uint32_t i = 0; i < roster->count; i++)
        tr_assert(roster->leaves[i].is_before && roster->leaves[i].is_after);
    commit_roster_destroy(roster);
}

static size_t part_count(const struct commit_act *commit)
{
    size_t count = (size_t)commit->members.welcome_count + commit->proposal_count;

    count += commit->content.bytes.size > 0 ? 1 : 0;
    count += commit->info.bytes.size > 0 ? 1 : 0;
    return count + (commit->app_bytes.size > 0 ? 1 : 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size == 0 ? NULL : memchr(data, '\n', size);
    size_t query_size = end == NULL ? 0 : (size_t)(end - data);
    char *query = malloc(query_size + 1);
    struct api_body body = { .act = act_create(&commit_act_type, NULL),
        .reader = { .raw_name = BUNDLE_RAW } };
    size_t from = end == NULL ? 0 : query_size + 1, count;
    bool is_whole;

    tr_assert(query != NULL && body.act != NULL);
    if (query_size > 0)
        memcpy(query, data, query_size);
    read_query((struct span){ query, query_size }, &body);
    free(query);
    body.act->body = base_alloc(size - from + 1);
    tr_assert(body.act->body != NULL);
    if (size > from)
        memcpy(body.act->body, data + from, size - from);
    body.reader.raw = (struct span){ body.act->body, size - from };
    count = walk(body.reader.raw, &is_whole);
    bundle_read_mls(&body);
    if (!body.reader.expect.failed) {
        tr_assert(is_whole);
        tr_assert(part_count(act_commit(body.act)) == count);
        if (body.act->content->bytes.size > 0) {
            tr_assert(mls_message_read(body.act->content->bytes, &body.act->content->mls) == NULL);
            (void)bundle_check(act_commit(body.act));
        }
        walk_roster(act_commit(body.act));
    }
    json_doc_free(&body.reader.doc);
    act_unref(body.act);
    return 0;
}
