/* SPDX-License-Identifier: Apache-2.0 */
/* event.h: the events of subscribers, as server-sent event (JSON) or WebSocket frame (DAG-CBOR). */
#ifndef SERVICES_DELIVERY_CONVO_EVENT_H
#define SERVICES_DELIVERY_CONVO_EVENT_H

#include "http/http.h"

/* Kinds that are never stored: a client that resumes with a cursor does not hear them, and can
 * query what they tell. */
enum {
    DELIVERY_FORK = 64, /* two members confirmed different hashes of `epoch` */
    DELIVERY_ROLE,
    DELIVERY_POLICY,
    DELIVERY_PACKAGES_LOW, /* only the streams of `did` hear it */
    DELIVERY_MEMBERS,      /* `dids` joined, left or were removed, by `actor` */
    DELIVERY_READ,         /* `did` has read up to `read_seq` */
    DELIVERY_NEW_DEVICE,   /* `did` has another `device`, which waits to be added */
    DELIVERY_READDITION,   /* the `device` of `did` asks to be added again */
    DELIVERY_REFRESH,      /* `did` asks for a fresh GroupInfo */
};

/* A larger message is announced without its bytes; getMessages has them. A message that does not
 * fit into what a stream may hold would cut the stream each time the client resumes. */
enum { EVENT_BYTES_MAX = 256 << 10 };

/* A row of the log, or an event that is not stored (seq 0). */
struct delivery_event {
    struct span convo;
    uint64_t seq;
    int64_t kind; /* enum mls_content, LOG_REVOKE, LOG_RESET, DELIVERY_… */
    uint64_t base_epoch;
    uint64_t epoch;
    struct span id; /* chosen by the sender; absent: see delivery_message_id */
    struct span bytes;
    uint64_t omitted_bytes; /* size of `bytes` that are too large to send */
    int64_t created_ms;
    struct span did;
    int64_t is_admin, is_moderator; /* DELIVERY_ROLE: the roles `did` has now */
    int64_t available, threshold;   /* DELIVERY_PACKAGES_LOW */
    const struct span *dids;
    uint32_t did_count;
    struct span action;
    struct span actor; /* absent: not known */
    uint64_t read_seq;
    struct span device; /* absent: none was named */
};

/* Sends an event with `did` and `device` to the subscribers of a conversation, and copies its texts.
 * A conversation that is not in memory has no subscribers. A full mailbox or missing memory loses
 * the event: clients can query what it tells. */
struct delivery;
void notice_tell(
    const struct delivery *delivery, struct span convo, const struct delivery_event *event);
/* Frames have one reference and are marked with their seq; NULL when out of memory. */
struct http_frame *delivery_event_frame(const struct delivery_event *event, bool is_websocket);
/* An infoEvent: why a stream ends, and the seq at which to resume. With a message it is an error:
 * over WebSocket it has the form of event streams (op -1). */
struct delivery_info {
    const char *name, *message;
    uint16_t close_code; /* of a WebSocket; 0: the stream goes on */
    bool moves_cursor;   /* an EventSource resumes at the seq by itself */
};
struct http_frame *delivery_info_frame(
    const struct delivery_info *info, struct span convo, uint64_t seq, bool is_websocket);
/* The last frame for a client that is too slow: it has everything up to `seq`. */
struct http_frame *delivery_slow_frame(struct span convo, uint64_t seq, bool is_websocket);
/* The id of a row of the log: `given`, or (absent) 32 hex digits made of the conversation and the
 * number. */
enum { DELIVERY_ID_SIZE = 33 };
struct span delivery_message_id(
    struct span given, struct span convo, uint64_t seq, char text[DELIVERY_ID_SIZE]);

#endif
