/* SPDX-License-Identifier: Apache-2.0 */
/* sync_held.c: the events that cannot be read, and why, as answers of the link. The engine does not
 * list them, so the link reads the store. */
#include <ctype.h>

#include "cli/sync_link.h"

bool sync_held_read(const struct json *request, struct sql_unit **ret_unit)
{
    struct span verb = { "", 0 };
    int64_t after = 0;

    (void)json_string(json_get(request, "do"), &verb);
    (void)json_int(json_get(request, "after"), &after);
    if (!span_is(verb, "held") && !span_is(verb, "unread"))
        return false;
    *ret_unit = sql_unit_create(0);
    if (span_is(verb, "unread"))
        mxstore_count_unread(*ret_unit);
    else
        mxstore_get_unread(*ret_unit, after, SYNC_EVENTS_MAX);
    return true;
}

/* ---- reasons as sentences --------------------------------------------------------------------- */

/* Append a sentence that says why an event cannot be read, and what can help. */
static void held_explain(bool is_abandoned, int reason, struct buffer *out)
{
    const char *text = mx_error_text(reason);

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

static void held_put_event(const struct sql_unit *unit, uint32_t row, struct json_writer *writer)
{
    struct mxstore_unread event;

    mxstore_row(unit, 0, row, MXSTORE_IS_unread, &event);
    json_put_object(writer, NULL);
    json_put_int(writer, "seq", event.seq);
    json_put_string(writer, "roomId", event.room_id);
    json_put_string(writer, "eventId", event.event_id);
    json_put_string(writer, "sender", event.sender);
    json_put_text(writer, "type", "m.room.encrypted");
    json_put_int(writer, "originMs", event.origin_ms);
    held_put_reason(event.status == MXSTORE_ABANDONED, (int)event.reason, writer);
    json_put_end(writer);
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

int sync_held_write(const struct sql_unit *unit, bool is_count, int64_t id, struct buffer *out)
{
    struct json_writer writer = json_writer(out);
    int status = sql_unit_status(unit), rc;

    json_put_object(&writer, NULL);
    json_put_int(&writer, "id", id);
    json_put_bool(&writer, "ok", status == 0);
    if (status != 0) {
        json_put_int(&writer, "code", status);
        json_put_text(&writer, "text", mx_error_text(status));
    } else {
        json_put_array(&writer, is_count ? "unread" : "held");
        for (uint32_t row = 0; row < sql_unit_rows(unit, 0); row++)
            if (is_count)
                held_put_count(unit, row, &writer);
            else
                held_put_event(unit, row, &writer);
        json_put_end(&writer);
    }
    json_put_end(&writer);
    rc = json_writer_end(&writer);
    return rc != 0 ? rc : buffer_append(out, "\n", 1);
}
