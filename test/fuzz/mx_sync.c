/* SPDX-License-Identifier: Apache-2.0 */
/* mx_sync.c: two /sync answers in a row, separated by a zero byte. Whatever they have, they are
 * taken or refused as a whole, and the client goes on. */
#include <string.h>

#include <troupe/error.h>

#include "base/assert.h"
#include "matrix/client/sync.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void count_up(void *data, void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        ((uint8_t *)bytes)[i] = (*(uint8_t *)data)++;
}

static const struct mx_pickle_key key = { { 1 } };
static uint8_t counter;
static const struct mx_random counting = { count_up, &counter };

static void set_up(struct mxclient *client)
{
    int rc;

    mxclient_session_init(&client->session, &counting, &key);
    rc = mx_account_create(&counting, &client->session.account);
    rc |= buffer_text(&client->session.user_id, "@ada:x");
    rc |= buffer_text(&client->session.device_id, "A");
    tr_assert(rc == 0);
    client->session.state = MXCLIENT_ACTIVE;
    mxclient_start(client);
    rc = mxclient_devices_track(&client->devices, SPAN("@bob:y"), NULL);
    tr_assert(rc == 0);
}

static void take(struct mxclient *client, struct span body)
{
    struct mxclient_request request = { .call = MXCLIENT_SYNC };
    struct mxclient_answer answer = { .status = 200, .body = body };
    struct mxclient_sync_news news = { 0 };
    struct mxclient_outcome outcome;
    struct sql_unit *unit = sql_unit_create(0);
    struct json_doc doc = { 0 };
    size_t before = client->next_batch.size;
    int64_t seq = client->seq_next;
    int rc;

    mxclient_request_judge(&request, &answer, &counting, &doc, &outcome);
    tr_assert(outcome.verdict == MXCLIENT_DONE || outcome.wait_ms > 0 ||
              outcome.verdict == MXCLIENT_REFUSED);
    if (outcome.verdict == MXCLIENT_DONE) {
        rc = mxclient_sync_take(client, json_root(&doc), 1, 0, unit, &news);
        tr_assert(rc == 0 || rc == TR_EPROTO);
        tr_assert(rc == 0 || (client->next_batch.size == before && client->seq_next == seq));
        tr_assert(rc != 0 || client->next_batch.size > 0);
        tr_assert(client->seq_next == seq + news.events);
    }
    sql_unit_destroy(unit);
    json_doc_free(&doc);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mxclient client = { 0 };
    const uint8_t *cut = size == 0 ? NULL : memchr(data, 0, size);
    size_t first = cut == NULL ? size : (size_t)(cut - data);

    set_up(&client);
    take(&client, (struct span){ (const char *)data, first });
    if (cut != NULL)
        take(&client, (struct span){ (const char *)cut + 1, size - first - 1 });
    mxclient_fini(&client);
    return 0;
}
