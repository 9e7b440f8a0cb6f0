/* SPDX-License-Identifier: Apache-2.0 */
/* sync_held.c: stored events in the order of their numbers, and why some cannot be read, as answers of
 * the link. The engine lists readable events alone, so the link reads the store. */
#include <ctype.h>

#include "cli/sync_link.h"

bool sync_held_read(const struct json *request, struct sql_unit **ret_unit)
{
    struct span verb = { "", 0 };
    int64_t after = 0;

    (void)json_string(json_get(request, "do"), &verb);
    (void)json_int(json_get(request, "after"), &after);
    if (!span_is(verb, "timeline") && !span_is(verb, "unread"))
        return false;
    *ret_unit = sql_unit_create(0);
    if (span_is(verb, "unread"))
        mxstore_count_unread(*ret_unit);
    else { /* one unit: both steps see the same moment */
        mxstore_get_events(*ret_unit, after, SYNC_EVENTS_MAX, true);
        mxstore_get_unread(*ret_unit, after, SYNC_EVENTS_MAX);
    }
    return true;
}

/* ---- reasons as sentences --------------------------------------------------------------------- */

/* Append a sentence that says why an event cannot be read, and what can help. */
static void held_explain(bool is_abandoned, int reason, struct buffer *out)
{
    const char *text = sync_error_text(reason);

    if (reason == MX_ESESSION)
        (void)buffer_text(out, "The key has not come. It may come late; `troupe sync keys import` "
                               "brings keys of another device.");
    else if (reason == MX_EINDEX)
        (void)buffer_text(
            out, is_abandoned ? "The event repeats another event's message index: it is a replay."
                              : "The key that came opens later messages alone.");
    else if (reason == MX_EUNVERIFIED)
        (void)buffer_text(out, "The sender shares keys with verified devices alone. Run `troupe "
                               "sync verify` with the sender.");
    else if (reason == MX_EDEVICE)
        (void)buffer_text(out, "The sender's device is not known, or its keys are others. It may "
                               "have been deleted.");
    else
        (void)buffer_format(out, "%c%s.", toupper((unsigned char)text[0]), text + 1);
}

static void held_put_reason(bool is_abandoned, int reason, struct json_writer *writer)
{
    struct buffer text = { 0 };

    held_explain(is_abandoned, reason, &text);
    json_put_text(writer, "unread", is_abandoned ? "abandoned" : "held");
    json_put_int(writer, "code", reason);
    json_put_string(writer, "reason", mxclient_span(&text));
    buffer_free(&text);
}

/* ---- answers ---------------------------------------------------------------------------------- */

static void held_put_event(const struct mxstore_unread *event, struct json_writer *writer)
{
    json_put_object(writer, NULL);
    json_put_int(writer, "seq", event->seq);
    json_put_string(writer, "roomId", event->room_id);
    json_put_string(writer, "eventId", event->event_id);
    json_put_string(writer, "sender", event->sender);
    json_put_text(writer, "type", "m.room.encrypted");
    json_put_int(writer, "originMs", event->origin_ms);
    held_put_reason(event->status == MXSTORE_ABANDONED, (int)event->reason, writer);
    json_put_end(writer);
}

/* Merge the events of both steps. A step with the most rows has more behind its last one, so the
 * answer ends there. */
static void held_put_timeline(
    const struct sql_unit *unit, const struct mx_pickle_key *key, struct json_writer *writer)
{
    uint32_t readable_count = sql_unit_rows(unit, 0), unread_count = sql_unit_rows(unit, 1);
    struct mxstore_readable readable;
    struct mxstore_unread unread;

    for (uint32_t i = 0, j = 0; i + j < readable_count + unread_count;) {
        bool has_readable = i < readable_count, has_unread = j < unread_count;

        if ((!has_readable && readable_count == SYNC_EVENTS_MAX) ||
            (!has_unread && unread_count == SYNC_EVENTS_MAX))
            return;
        if (has_readable)
            mxstore_row(unit, 0, i, MXSTORE_IS_readable, &readable);
        if (has_unread)
            mxstore_row(unit, 1, j, MXSTORE_IS_unread, &unread);
        if (has_readable && (!has_unread || readable.seq < unread.seq)) {
            sync_wire_put_event(&readable, key, writer);
            i++;
        } else {
            held_put_event(&unread, writer);
            j++;
        }
    }
}

static void held_put_count(const struct sql_unit *unit, uint32_t row, struct json_writer *writer)
{
    struct mxstore_unread_count count;

    mxstore_row(unit, 0, row, MXSTORE_IS_unread_count, &count);
    json_put_object(writer, NULL);
    held_put_reason(count.status == MXSTORE_ABANDONED, (int)count.reason, writer);
    json_put_int(writer, "events", count.events);
    json_put_end(writer);
}

int sync_held_write(const struct sql_unit *unit, const struct mx_pickle_key *key, bool is_count,
    int64_t id, struct buffer *out)
{
    struct json_writer writer = json_writer(out);
    int status = sql_unit_status(unit), rc;

    json_put_object(&writer, NULL);
    json_put_int(&writer, "id", id);
    json_put_bool(&writer, "ok", status == 0);
    if (status != 0) {
        json_put_int(&writer, "code", status);
        json_put_text(&writer, "text", sync_error_text(status));
    } else {
        json_put_array(&writer, is_count ? "unread" : "events");
        if (!is_count)
            held_put_timeline(unit, key, &writer);
        for (uint32_t row = 0; is_count && row < sql_unit_rows(unit, 0); row++)
            held_put_count(unit, row, &writer);
        json_put_end(&writer);
    }
    json_put_end(&writer);
    rc = json_writer_end(&writer);
    return rc != 0 ? rc : buffer_append(out, "\n", 1);
}
