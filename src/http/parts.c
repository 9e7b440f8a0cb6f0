/* SPDX-License-Identifier: Apache-2.0 */
/* parts.c: sends parts of a file, with checks and a rate.
 *
 * The file may change while it is sent, and sendfile sends its pages, not a copy. Two rules ensure
 * that an answer whose file has changed never becomes complete:
 *   1. The check runs before the first step of every turn, except the turn in which the handler
 *      answers: the handler has just checked.
 *   2. The last bytes of the file are not sent by sendfile. They are read into memory, the check
 *      runs once more, and only then they are sent. So everything before them was in the socket
 *      while the check still held.
 * If a check fails the connection closes. The length is promised, so the client knows that the
 * answer is incomplete. Rule 2 cannot see a page that is overwritten after the last check while it
 * waits in the socket of a slow client; objects are read-only files for that reason.
 *
 * Rate: rate_max bytes per second since the first byte, and a burst of 1/BURST_PARTS second. */
#include "http/parts.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "http/connection.h"
#include "http/request.h"

enum {
    TAIL = 4096,
    BURST_PARTS = 8,       /* a burst is this part of a second */
    BURST_MIN = 16 << 10,  /* fewer bytes are not worth a wake-up */
    SECOND_NS = 1000000000 /* fits an int */
};

void http_parts_destroy(struct http_parts *parts)
{
    if (parts == NULL)
        return;
    if (parts->done != NULL)
        parts->done(parts->data, parts->file_sent);
    base_free(parts);
}

static bool parts_check(const struct http_parts *parts)
{
    return parts->check == NULL || parts->check(parts->data, parts->file_sent, false);
}

/* Report that sending waits. */
static void parts_note_waiting(const struct http_parts *parts)
{
    if (parts->check != NULL)
        (void)parts->check(parts->data, parts->file_sent, true);
}

static uint64_t parts_burst(const struct http_parts *parts)
{
    uint64_t size = parts->rate_max / BURST_PARTS;

    return size < BURST_MIN ? BURST_MIN : size;
}

/* Returns how many bytes may be sent now. 0: wait until *ret_resume_ns. */
static uint64_t parts_allowance(struct http_parts *parts, uint64_t now_ns, uint64_t *ret_resume_ns)
{
    uint64_t passed_ns, allowed, wanted;

    if (parts->rate_max == 0)
        return UINT64_MAX;
    if (parts->began_ns == 0)
        parts->began_ns = now_ns;
    passed_ns = now_ns - parts->began_ns;
    allowed = passed_ns / SECOND_NS * parts->rate_max +
              passed_ns % SECOND_NS * parts->rate_max / SECOND_NS + parts_burst(parts);
    if (allowed > parts->sent)
        return allowed - parts->sent;
    /* Wait for half a burst, so that not every packet needs a timer. */
    wanted = parts->sent - allowed + parts_burst(parts) / 2;
    *ret_resume_ns = now_ns + wanted / parts->rate_max * SECOND_NS +
                     wanted % parts->rate_max * SECOND_NS / parts->rate_max + 1;
    return 0;
}

static bool parts_is_text_next(const struct http_parts *parts)
{
    return parts->at == parts->count || parts->text_done < parts->part[parts->at].text_size;
}

static struct span parts_next_text(const struct http_parts *parts)
{
    uint32_t begin = parts->after_begin, size = parts->after_size;

    if (parts->at < parts->count) {
        begin = parts->part[parts->at].text_begin;
        size = parts->part[parts->at].text_size;
    }
    return (struct span){ parts->text + begin + parts->text_done, size - (size_t)parts->text_done };
}

static void parts_text_sent(struct http_parts *parts, size_t size)
{
    parts->text_done += size;
    parts->sent += size;
}

static void parts_file_sent(struct http_parts *parts, size_t size)
{
    parts->part_done += size;
    parts->sent += size;
    parts->file_sent += size;
    if (parts->part_done == parts->part[parts->at].size) {
        parts->at++;
        parts->part_done = parts->text_done = 0;
    }
}

/* Read exactly `size` bytes. Returns false if that fails. */
static bool parts_read_file(const struct http_parts *parts, char *bytes, size_t size)
{
    uint64_t offset = parts->part[parts->at].offset + parts->part_done;
    size_t got = 0;

    while (got < size) {
        ssize_t step = pread(parts->fd, bytes + got, size - got, (off_t)(offset + got));

        if (step < 0 && errno == EINTR)
            continue;
        if (step <= 0)
            return false;
        got += (size_t)step;
    }
    return true;
}

static ssize_t parts_write(
    struct net_stream *stream, const char *bytes, size_t size, bool is_followed)
{
    union {
        const char *in;
        char *out;
    } pun = { .in = bytes }; /* the kernel only reads it */
    struct iovec vector = { .iov_base = pun.out, .iov_len = size };

    return net_write(stream, &vector, 1, is_followed);
}

static ssize_t parts_send_text(struct http_parts *parts, struct net_stream *stream)
{
    struct span text = parts_next_text(parts);
    ssize_t sent = parts_write(stream, text.at, text.size, parts->at < parts->count);

    if (sent > 0)
        parts_text_sent(parts, (size_t)sent);
    return sent;
}

static size_t smaller_size(uint64_t a, uint64_t b)
{
    return (size_t)(a < b ? a : b);
}

static ssize_t parts_send_file(struct http_parts *parts, struct net_stream *stream, size_t size_max)
{
    uint64_t left = parts->part[parts->at].size - parts->part_done;
    uint64_t offset = parts->part[parts->at].offset + parts->part_done;
    bool is_last = parts->at + 1 == parts->count;
    uint64_t tail = is_last && parts->check != NULL ? TAIL : 0;
    char bytes[TAIL];
    ssize_t sent;

    net_gather(stream, left > tail + size_max && parts->rate_max == 0);
    if (left > tail) {
        sent = net_send_file(stream, parts->fd, &offset, smaller_size(left - tail, size_max));
        if (sent == NET_END)
            return NET_GONE;
    } else {
        if (!parts_read_file(parts, bytes, (size_t)left) || !parts_check(parts))
            return NET_GONE;
        sent = parts_write(stream, bytes, (size_t)left, parts->after_size > 0);
    }
    if (sent > 0)
        parts_file_sent(parts, (size_t)sent);
    return sent;
}

ssize_t http_parts_send(struct http_parts *parts, struct net_stream *stream, size_t size_max,
    uint64_t now_ns, uint64_t *ret_resume_ns)
{
    uint64_t allowed;
    ssize_t sent;

    tr_assert(parts->sent < parts->length);
    if (parts_is_text_next(parts))
        return parts_send_text(parts, stream);
    if (parts->checked_ns != now_ns) {
        if (!parts_check(parts))
            return NET_GONE;
        parts->checked_ns = now_ns;
    }
    allowed = parts_allowance(parts, now_ns, ret_resume_ns);
    if (allowed == 0) {
        parts_note_waiting(parts);
        return HTTP_PARTS_LATER;
    }
    sent = parts_send_file(parts, stream, smaller_size(size_max, allowed));
    if (sent == NET_AGAIN)
        parts_note_waiting(parts);
    return sent;
}

ssize_t http_parts_read(
    struct http_parts *parts, void *bytes, size_t size, uint64_t now_ns, uint64_t *ret_resume_ns)
{
    uint64_t allowed;

    tr_assert(parts->sent < parts->length);
    if (parts_is_text_next(parts)) {
        struct span text = parts_next_text(parts);

        size = smaller_size(size, text.size);
        memcpy(bytes, text.at, size);
        parts_text_sent(parts, size);
        return (ssize_t)size;
    }
    parts_note_waiting(
        parts); /* for the client's window: the library does not say when it is closed */
    allowed = parts_allowance(parts, now_ns, ret_resume_ns);
    if (allowed == 0)
        return HTTP_PARTS_LATER;
    size =
        smaller_size(smaller_size(size, allowed), parts->part[parts->at].size - parts->part_done);
    /* The bytes are a copy, so one check after the read is enough. */
    if (!parts_read_file(parts, bytes, size) || !parts_check(parts))
        return NET_GONE;
    parts_file_sent(parts, size);
    return (ssize_t)size;
}

/* ---- the answer ---------------------------------------------------------------------------- */

static struct http_parts *parts_create(const struct http_sending *sending)
{
    size_t text_size = sending->after.size;
    struct http_parts *parts;
    uint32_t used = 0;

    for (uint32_t i = 0; i < sending->part_count; i++)
        text_size += sending->parts[i].before.size;
    parts = base_calloc(sizeof *parts + text_size);
    if (parts == NULL)
        return NULL;
    parts->fd = sending->fd;
    parts->check = sending->check;
    parts->done = sending->done;
    parts->data = sending->data;
    parts->rate_max = sending->rate_max;
    parts->count = sending->part_count;
    for (uint32_t i = 0; i < sending->part_count; i++) {
        const struct http_part *part = &sending->parts[i];

        parts->part[i].offset = part->offset;
        parts->part[i].size = part->size;
        parts->part[i].text_begin = used;
        parts->part[i].text_size = (uint32_t)part->before.size;
        parts->length += part->size + part->before.size;
        if (part->before.size > 0)
            memcpy(parts->text + used, part->before.at, part->before.size);
        used += (uint32_t)part->before.size;
    }
    parts->after_begin = used;
    parts->after_size = (uint32_t)sending->after.size;
    if (sending->after.size > 0)
        memcpy(parts->text + used, sending->after.at, sending->after.size);
    parts->length += sending->after.size;
    return parts;
}

void http_respond_parts(struct http_request *request, unsigned status, const char *type,
    const struct http_sending *sending)
{
    struct http_answer *answer = &request->answer;

    tr_assert(sending->part_count >= 1 && sending->part_count <= HTTP_RANGES_MAX);
    for (uint32_t i = 0; i < sending->part_count; i++)
        tr_assert(sending->parts[i].size > 0);
    answer->parts = parts_create(sending);
    if (answer->parts == NULL) {
        if (sending->done != NULL)
            sending->done(sending->data, 0);
        answer->extra = NULL; /* the headers describe the other answer */
        http_respond_no_memory(request);
        return;
    }
    answer->parts->checked_ns = request->connection->now_ns;
    answer->is_file = true;
    answer->fd = -1;
    answer->status = status;
    answer->type = type;
    answer->size = answer->parts->length;
    http_answer_deliver(request);
}

void http_respond_frame(
    struct http_request *request, unsigned status, const char *type, struct http_frame *frame)
{
    struct http_answer *answer = &request->answer;

    answer->status = status;
    answer->type = type;
    answer->frame = frame;
    answer->body = (struct span){ http_frame_bytes(frame), frame->size };
    http_answer_deliver(request);
}

void http_wake(tr_weak connection)
{
    struct http_message message = { .kind = MESSAGE_RUN };
    struct tr_send_options options = { .lane = TR_CONTROL };
    tr_sender sender;

    if (tr_weak_upgrade(connection, "http wake", &sender) < 0)
        return;
    (void)tr_try_tell_with(sender, &message, sizeof message, &options);
    tr_sender_drop(&sender);
}
