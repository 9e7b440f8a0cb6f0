/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/convo/roster.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/siphash.h"

enum { FEW = 8 }; /* members without a hash table */

void roster_free(struct roster *roster)
{
    for (uint32_t i = 0; i < roster->count; i++)
        base_free(roster->members[i].did);
    base_free(roster->members);
    base_free(roster->slots);
    *roster = (struct roster){ 0 };
}

/* Callers choose DIDs, but a roster is bounded and its table at most half full; a fixed key is
 * enough to spread them. */
static uint32_t *slot_of(const struct roster *roster, struct span did)
{
    const struct base_siphash_key key = { UINT64_C(0x726f73746572), (uintptr_t)roster->slots };
    uint32_t at = (uint32_t)base_siphash(key, did.at, did.size) & (roster->slot_count - 1);

    while (roster->slots[at] != 0 &&
           !span_equal(member_did(&roster->members[roster->slots[at] - 1]), did))
        at = (at + 1) & (roster->slot_count - 1);
    return &roster->slots[at];
}

struct member *roster_find(const struct roster *roster, struct span did)
{
    uint32_t index = roster->slots == NULL ? 0 : *slot_of(roster, did);

    /* Comparing a few names is quicker than hashing one. */
    for (uint32_t i = 0; roster->slots == NULL && index == 0 && i < roster->count; i++)
        if (span_equal(member_did(&roster->members[i]), did))
            index = i + 1;
    return index == 0 ? NULL : &roster->members[index - 1];
}

void roster_expect(struct roster *roster, uint32_t count)
{
    tr_assert(roster->capacity == 0);
    roster->expected = count;
}

static bool roster_grow(struct roster *roster)
{
    uint32_t first = roster->expected > 0 ? roster->expected : 2;
    uint32_t capacity = roster->capacity == 0 ? first : roster->capacity * 2;
    uint32_t slot_count = FEW * 2;
    struct member *members;
    uint32_t *slots = NULL;

    while (slot_count < capacity * 2)
        slot_count *= 2;
    if (capacity > FEW)
        slots = base_calloc((size_t)slot_count * sizeof *slots);
    members = base_realloc(roster->members, capacity * sizeof *members);
    if (members != NULL)
        roster->members = members;
    if (members == NULL || (capacity > FEW && slots == NULL)) {
        base_free(slots);
        return false;
    }
    roster->capacity = capacity;
    base_free(roster->slots);
    roster->slots = slots;
    roster->slot_count = slot_count;
    for (uint32_t i = 0; slots != NULL && i < roster->count; i++)
        *slot_of(roster, member_did(&roster->members[i])) = i + 1;
    return true;
}

struct member *roster_get(struct roster *roster, struct span did)
{
    struct member *member = roster_find(roster, did);
    char *copy;

    if (member != NULL)
        return member;
    tr_assert(did.size <= UINT16_MAX);
    copy = base_alloc(did.size + 1);
    if (copy == NULL || (roster->count == roster->capacity && !roster_grow(roster))) {
        base_free(copy);
        return NULL;
    }
    tr_assert(roster->members != NULL);
    memcpy(copy, did.at, did.size);
    copy[did.size] = '\0';
    if (roster->slots != NULL)
        *slot_of(roster, did) = roster->count + 1;
    member = &roster->members[roster->count++];
    *member = (struct member){ .did = copy, .did_size = (uint16_t)did.size };
    return member;
}

void roster_plan(struct roster *roster, struct member *member, bool will_be_in)
{
    if (member->will_be_in == will_be_in)
        return;
    member->will_be_in = will_be_in;
    roster->will_count += will_be_in ? 1 : UINT32_MAX;
}

void roster_apply(struct roster *roster, struct member *member, bool is_in)
{
    if (member->is_in == is_in)
        return;
    member->is_in = is_in;
    roster->in_count += is_in ? 1 : UINT32_MAX;
}
