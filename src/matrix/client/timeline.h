/* SPDX-License-Identifier: Apache-2.0 */
/* timeline.h: gaps in the timelines of rooms, closed by walks with /messages.
 *
 * 1. A gap stays a row until the server says that no event is missing: its answer has no `end`, or
 *    reaches the other end. A budget ends a round and never the gap: the walk goes on after a pause,
 *    and after a restart from the last page that was stored.
 * 2. A walk goes forward from the older end. A server that refuses this is asked backward from the
 *    newer end. The unit that stores a page's events also shrinks the gap by the page.
 * 3. An event of a walk is stored like one of /sync (mxclient_intake_event), and once: an event that
 *    is stored already stays as it is.
 * 4. `seq` is the order in which events are applied, not the order of the room. The events of a gap
 *    come after those of the answer that left it. Among each other they have the room's order if the
 *    walk is forward; of a backward walk the newest page comes first, each page in the room's order.
 *    A reader that must not apply an event before an older one waits for mxclient_timeline_is_whole;
 *    for display events are sorted by origin_ms.
 * 5. No answer makes a walk spin. A page without events whose `end` is the token asked with is the
 *    last. A page with events and that `end`, or an `end` met before, stalls the walk: it goes on
 *    after an hour, from the other end.
 * 6. Both ends of a gap fit into the target of a request. Former versions stored longer ones: their
 *    walk names no end, and goes on until the server has no further page.
 * 7. One request at a time for all rooms; gaps of rooms that we are not in wait. */
#ifndef MATRIX_CLIENT_TIMELINE_H
#define MATRIX_CLIENT_TIMELINE_H

#include "matrix/client/client.h"

enum {
    MXCLIENT_WALK_PAGE_EVENTS = 100, /* asked for in one request */
    /* The budgets of a round. */
    MXCLIENT_WALK_PAGES = 500,
    MXCLIENT_WALK_EVENTS = 10000,
    MXCLIENT_WALK_BYTES = 64 << 20,
    MXCLIENT_WALK_MS = 5 * 60 * 1000,
    MXCLIENT_WALK_PAUSE_MS = 10 * 1000, /* after a round that found events, or only took long */
    MXCLIENT_WALK_STALL_MS = 60 * 60 * 1000,
};

struct mxclient_gap {
    struct mxclient_entry entry; /* the room's id and from_token */
    struct buffer room_id;
    struct buffer from_token;  /* the newer end */
    struct buffer until_token; /* the older end; empty: the start of the room */
    int64_t created_ms;
    int64_t next_ms; /* the earliest time for a request */
    bool is_backward;
    bool is_refused; /* from the other end, just before */
    /* The round. */
    int64_t started_ms;
    uint32_t pages;
    uint32_t events;
    uint64_t bytes;
    /* A token met before, kept at page 1, 2, 4 and so on: a circle of tokens returns to it. */
    uint32_t walked; /* pages since the start */
    struct buffer met;
};

void mxclient_gap_fini(void *object);
/* Take a stored row. TR_ENOMEM. */
int mxclient_timeline_load(struct mxclient *client, const struct mxstore_gap *row);
/* Note a gap and add the step that stores it; a known one stays as it is. TR_ENOMEM. */
int mxclient_timeline_add(
    struct mxclient *client, const struct mxstore_gap *row, struct sql_unit *unit);

/* Return whether a room has no gap. */
bool mxclient_timeline_is_whole(const struct mxclient *client, const struct mxclient_room *room);
/* Return the time at which a request is due; INT64_MAX: there is no gap to walk now. */
int64_t mxclient_timeline_due_ms(const struct mxclient *client);
/* Write the next request of a walk; false if none is due or one is under way. A request that fails
 * (mxclient_request_error) is passed to mxclient_timeline_take as refused. */
bool mxclient_timeline_next(
    struct mxclient *client, int64_t now_ms, struct mxclient_request *request);

enum mxclient_walk {
    MXCLIENT_WALK_ON,      /* the next page is due at once */
    MXCLIENT_WALK_CLOSED,  /* the gap is filled */
    MXCLIENT_WALK_BUDGET,  /* incomplete: the round has used its budget */
    MXCLIENT_WALK_STALLED, /* incomplete: the server gives no further page, or refuses */
};
struct mxclient_walk_news {
    enum mxclient_walk state;
    uint32_t events; /* received events in the unit */
    uint32_t held;   /* of them without a key */
};
/* The answer to a request of a walk. */
struct mxclient_page {
    enum mxclient_verdict verdict; /* MXCLIENT_DONE or MXCLIENT_REFUSED */
    const struct json *body;       /* with MXCLIENT_DONE */
    size_t bytes;                  /* of the body */
};
/* Take the answer and add the steps that store it. TR_ENOMEM: drop the client and load it. */
int mxclient_timeline_take(struct mxclient *client, const struct mxclient_page *page,
    int64_t now_ms, struct sql_unit *unit, struct mxclient_walk_news *ret_news);

#endif
