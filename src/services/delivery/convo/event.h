/* SPDX-License-Identifier: Apache-2.0 */
/* event.h: what subscribers hear, as server-sent event (JSON) or WebSocket frame (DAG-CBOR). */
#ifndef SERVICES_DELIVERY_CONVO_EVENT_H
#define SERVICES_DELIVERY_CONVO_EVENT_H

#include "http/http.h"

/* Kinds that are never stored, so who comes back with a cursor does not hear of them: what they
 * tell of can be looked up. */
enum {
    DELIVERY_FORK = 64, /* two members confirmed different states of `epoch` */
    DELIVERY_ROLE,      /* somebody's role is another now */
    DELIVERY_POLICY,    /* so is the policy */
    DELIVERY_PACKAGES_LOW,
    DELIVERY_MEMBERS,    /* `dids` joined, left or were removed, by `actor` */
    DELIVERY_READ,       /* `did` has read up to `read_seq` */
    DELIVERY_NEW_DEVICE, /* `did` has another `device`, which waits to be added */
    DELIVERY_READDITION, /* the `device` of `did` asks to be added again */
    DELIVERY_REFRESH,    /* `did` asks for a fresh group info */
};

/* A larger message is told of and not sent along: getMessages has it. One that did not fit into
 * what a stream may hold would otherwise cut it, and again when it comes back. */
enum { EVENT_BYTES_MAX = 256 << 10 };

/* A row of the log, or an ephemeral message (seq 0). */
struct delivery_event {
    struct span convo;
    uint64_t seq;
    int kind; /* enum mls_content, LOG_REVOKE, LOG_RESET, DELIVERY_… */
    uint64_t base_epoch;
    uint64_t epoch;
    struct span id; /* what its sender called it; absent: see delivery_message_id */
    struct span bytes;
    uint64_t omitted_bytes; /* `bytes` is not there, because it is so large */
    int64_t created_ms;
    struct span did; /* DELIVERY_ROLE: what it is now */
    bool is_admin, is_moderator;
    int64_t available, threshold; /* DELIVERY_PACKAGES_LOW */
    const struct span *dids;
    uint32_t did_count;
    const char *action;
    struct span actor; /* absent: not known here */
    uint64_t read_seq;
    struct span device; /* absent: none was named */
};

/* Frames: one reference, marked with their seq; NULL when out of memory. */
struct http_frame *delivery_event_frame(const struct delivery_event *event, bool is_websocket);
/* infoEvent: why a stream ends, and where to resume. */
struct http_frame *delivery_info_frame(
    struct span convo, const char *info, uint64_t seq, bool is_websocket);
/* The last that a client hears that does not keep up: it has everything up to `seq`, and resumes
 * there. An infoEvent; over WebSocket the error frame of event streams (op -1). */
struct http_frame *delivery_slow_frame(struct span convo, uint64_t seq, bool is_websocket);
/* The only one that a client hears whose cursor is not in the log, which ends at `seq`: in the same
 * form. An EventSource comes back with that as its cursor by itself. */
struct http_frame *delivery_ahead_frame(struct span convo, uint64_t seq, bool is_websocket);
/* The id of a row of the log: the one that was given, or (absent) 32 hex digits made of the
 * conversation and the number, always the same. */
enum { DELIVERY_ID_SIZE = 33 };
struct span delivery_message_id(
    struct span given, struct span convo, uint64_t seq, char text[DELIVERY_ID_SIZE]);

#endif
