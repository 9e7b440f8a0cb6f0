/* SPDX-License-Identifier: Apache-2.0 */
/* mx_sync.h: a client with a database in memory that takes answers which a case writes. */
#ifndef TEST_LIB_MX_SYNC_H
#define TEST_LIB_MX_SYNC_H

#include "../unit/sql/place.h"
#include "matrix/client/sync.h"
#include "mx_client.h"

struct mx_sync {
    struct mxclient client;
    struct place place;
    struct json_doc doc;
    struct mxclient_sync_news news;
    uint64_t forgotten; /* rooms */
};

static inline void mx_sync_init(struct mx_sync *stage)
{
    struct sql_unit *unit = sql_unit_create(0);
    struct sql_options options;

    *stage = (struct mx_sync){ 0 };
    place_init_in_memory(&stage->place);
    place_system(&stage->place);
    options = (struct sql_options){ .url = stage->place.url,
        .migrations = mxstore_migrations,
        .migration_count = MXSTORE_MIGRATIONS };
    CHECK_EQ_INT(place_try_open(&stage->place, &options), 0);
    mx_client_discover(&stage->client.session);
    CHECK_EQ_INT(mx_client_login(&stage->client.session, "@ada:x", "", 0), 0);
    mxclient_start(&stage->client);
    CHECK_EQ_INT(mxclient_session_put(&stage->client.session, unit), 0);
    CHECK_EQ_INT(sql_write_wait(stage->place.sql, unit), 0);
    sql_unit_destroy(unit);
}

static inline void mx_sync_fini(struct mx_sync *stage)
{
    mxclient_fini(&stage->client);
    json_doc_free(&stage->doc);
    place_finish(&stage->place);
}

/* Text that was read must not be read again. */
static inline void mx_sync_forget(void *data, struct span text)
{
    struct mx_sync *stage = data;

    memset(stage->doc.copy.bytes + (text.at - stage->doc.copy.bytes), 0, text.size);
    stage->forgotten++;
}

/* Take an answer that took `took_ms` and store it. */
static inline int mx_sync_take(struct mx_sync *stage, struct span body, uint64_t took_ms)
{
    struct sql_unit *unit = sql_unit_create(0);
    int rc;

    stage->client.forget = (struct mxclient_forget){ mx_sync_forget, stage };
    stage->doc.depth_max = JSON_DEPTH_MAX;
    CHECK_EQ_INT(json_parse_copy(&stage->doc, body, 0), 0);
    rc = mxclient_sync_take(&stage->client, json_root(&stage->doc), 5, took_ms, unit, &stage->news);
    if (rc == 0)
        rc = sql_write_wait(stage->place.sql, unit);
    CHECK_MSG(rc == 0 || rc == TR_EPROTO, "%s: %s", sql_error_text(rc), sql_unit_why(unit));
    sql_unit_destroy(unit);
    return rc;
}

static inline int mx_sync_take_text(struct mx_sync *stage, const char *body)
{
    return mx_sync_take(stage, span_of(body), 5000);
}

/* Read the first row with this key; the caller destroys the unit. NULL: there is none. */
static inline struct sql_unit *mx_sync_get(
    struct mx_sync *stage, enum mxstore_kind kind, const char *key, void *ret_row)
{
    struct sql_unit *unit = sql_unit_create(0);

    mxstore_get(unit, kind, span_of(key));
    CHECK_EQ_INT(sql_read_wait(stage->place.sql, unit), 0);
    if (sql_unit_rows(unit, 0) == 0) {
        sql_unit_destroy(unit);
        return NULL;
    }
    mxstore_row(unit, 0, 0, kind, ret_row);
    return unit;
}

static inline void mx_sync_check_event(
    struct mx_sync *stage, const char *id, enum mxstore_status status, int reason)
{
    struct mxstore_event row;
    struct sql_unit *unit = mx_sync_get(stage, MXSTORE_IS_event, id, &row);

    CHECK_MSG(unit != NULL, "there is no event %s", id);
    CHECK_EQ_INT(row.status, status);
    CHECK_EQ_INT(row.reason, reason);
    sql_unit_destroy(unit);
}

#define MX_SYNC_EVENT(id, type)                                                                    \
    "{\"event_id\":\"" id "\",\"type\":\"" type                                                    \
    "\",\"sender\":\"@bob:y\",\"origin_server_ts\":7,\"content\":{}}"
#define MX_SYNC_CIPHER(id)                                                                         \
    "{\"event_id\":\"" id "\",\"type\":\"m.room.encrypted\",\"sender\":\"@bob:y\","                \
    "\"origin_server_ts\":7,\"content\":{\"algorithm\":\"m.megolm.v1.aes-sha2\","                  \
    "\"session_id\":\"s\",\"ciphertext\":\"AwgA\"}}"
#define MX_SYNC_MEMBER(user, membership)                                                           \
    "{\"event_id\":\"$m" user membership "\",\"type\":\"m.room.member\",\"state_key\":\"" user     \
    "\",\"sender\":\"" user "\",\"content\":{\"membership\":\"" membership "\"}}"
#define MX_SYNC_ENCRYPTION                                                                         \
    "{\"event_id\":\"$e\",\"type\":\"m.room.encryption\",\"state_key\":\"\",\"sender\":\"@bob:"    \
    "y\","                                                                                         \
    "\"content\":{\"algorithm\":\"m.megolm.v1.aes-sha2\",\"rotation_period_msgs\":99999999}}"
#define MX_SYNC_ROOM(state, timeline)                                                              \
    "\"rooms\":{\"join\":{\"!r:x\":{\"state\":{\"events\":[" state                                 \
    "]},\"timeline\":{\"events\":[" timeline "]}}}}"

#endif
