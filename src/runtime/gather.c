/* SPDX-License-Identifier: Apache-2.0 */
/* gather.c: the answers to several asks, counted: complete when all have come, or the first good
 * one. Plain data in the actor's state; no other thread sees it. */
#include <troupe/ask.h>
#include <troupe/event.h>

#include "base/assert.h"

static bool gather_is_complete(const struct tr_gather *gather)
{
    return gather->ended == gather->count || (gather->first_only && gather->ended > gather->failed);
}

void tr_gather_init(struct tr_gather *gather, uint32_t tag_first, uint32_t count, bool first_only)
{
    tr_assert_use(count > 0 && count <= 64, "a gather is of 1 to 64 asks");
    *gather =
        (struct tr_gather){ .tag_first = tag_first, .count = count, .first_only = first_only };
}

bool tr_gather_take(struct tr_gather *gather, const struct tr_event *event)
{
    uint64_t bit;
    bool was_complete = gather_is_complete(gather);

    if (event->kind != TR_EVENT_REPLY || event->status == TR_ACCEPTED ||
        event->tag < gather->tag_first || event->tag - gather->tag_first >= gather->count)
        return false;
    bit = UINT64_C(1) << (event->tag - gather->tag_first);
    if (gather->seen & bit)
        return false;
    gather->seen |= bit;
    gather->ended++;
    gather->failed += event->status < 0;
    return !was_complete && gather_is_complete(gather);
}
