/* SPDX-License-Identifier: Apache-2.0 */
/* sync.h: /sync. One answer becomes one unit.
 *
 * 1. The unit has everything of the answer and the move of next_batch from the token that was asked
 *    with: all is stored or nothing. The next request is written after the COMMIT.
 * 2. A member of the answer that is not valid is skipped and counted. Only an answer without a
 *    next_batch is refused as a whole. An event that is too long or nests too deep is stored without
 *    its body (MX_ETOOBIG): every stored body can be written into an answer.
 * 3. Ciphertext is stored as it came, held, and lowers the room's floor in the same unit. A
 *    plaintext event in an encrypted room is stored and never handed out (MX_ESIGNATURE).
 * 4. A limited timeline leaves a gap row, from its prev_batch back to the token asked with.
 * 5. Answers that come at once and bring nothing are followed by a pause that grows. */
#ifndef MATRIX_CLIENT_SYNC_H
#define MATRIX_CLIENT_SYNC_H

#include "matrix/client/client.h"

enum {
    MXCLIENT_SYNC_TIMEOUT_MS = 30 * 1000,
    MXCLIENT_SYNC_QUICK_MS = 1000, /* an empty answer sooner than this is followed by a pause */
    MXCLIENT_SYNC_PAUSE_MAX_MS = 30 * 1000,
    MXCLIENT_SYNC_TOKEN_BYTES_MAX = 1024, /* both ends of a gap fit into one target (timeline.c) */
};

/* Write the request. `is_first`: after a start or a lost connection, the server answers at once. */
void mxclient_sync_request(
    const struct mxclient *client, bool is_first, struct mxclient_request *request);

/* Read a token of a timeline; false if it is no text of 1 to MXCLIENT_SYNC_TOKEN_BYTES_MAX bytes. */
bool mxclient_read_token(const struct json *value, struct span *ret_token);

/* Track the devices of everyone in an encrypted room, after its members were read. TR_ENOMEM. */
int mxclient_sync_track(
    struct mxclient *client, const struct mxclient_room *room, struct sql_unit *unit);

struct mxclient_sync_news {
    uint64_t pause_ms; /* before the next request; 0: none */
    bool is_still;     /* the token is the former one */
    uint32_t events;   /* received events in the unit */
    uint32_t held;     /* of them without a key */
    uint32_t gaps;
};

/* Events on their way into a unit. */
struct mxclient_intake {
    struct mxclient *client;
    struct sql_unit *unit;
    int64_t now_ms;
    bool takes_state; /* state events change the room; else they are passed over */
    bool is_limited;  /* there is a gap before these events */
    struct mxclient_sync_news news;
};
/* Take one event of a timeline, whichever request brought it: decrypt and store it, or hold it. Our
 * own event that comes back is stored as such. An invalid one is skipped and counted. TR_ENOMEM. */
int mxclient_intake_event(
    struct mxclient_intake *intake, struct mxclient_room *room, const struct json *value);

/* Take an answer that came `took_ms` after its request, and add the steps of the unit. TR_EPROTO:
 * there is no usable next_batch, and no step was added; wait, then ask again. TR_ENOMEM: drop the
 * client and load it. */
int mxclient_sync_take(struct mxclient *client, const struct json *body, int64_t now_ms,
    uint64_t took_ms, struct sql_unit *unit, struct mxclient_sync_news *ret_news);

#endif
