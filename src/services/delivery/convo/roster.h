/* SPDX-License-Identifier: Apache-2.0 */
/* roster.h: the members of one conversation: as stored (is_in), and as they will be when the units
 * in flight are stored (will_be_in). Answers use the first, plans the second. */
#ifndef SERVICES_DELIVERY_CONVO_ROSTER_H
#define SERVICES_DELIVERY_CONVO_ROSTER_H

#include <stdbool.h>
#include <stdint.h>

#include "support/buffer.h"

enum { MEMBER_ADMIN = 1, MEMBER_MODERATOR = 2 }; /* a member may be both */

/* convo_slot.c packs it from `did_size` on, by 64-bit words. */
struct member {
    char *did;
    uint16_t did_size;
    bool is_in;
    bool will_be_in;
    uint8_t roles;     /* MEMBER_* */
    bool was_removed;  /* by another member; of a former member */
    bool has_reported; /* the commit that made the current epoch */
    uint64_t join_seq;
    int64_t joined_ms;
    uint64_t read_seq;
    int64_t left_ms; /* of a former member; 0 if the commit that added it was revoked */
    int64_t quarantined_until_ms;
};

static inline bool member_is_admin(const struct member *member)
{
    return (member->roles & MEMBER_ADMIN) != 0;
}

static inline bool member_is_in(const struct member *member)
{
    return member != NULL && member->is_in;
}

/* A member now, and still one when the units in flight are stored. */
static inline bool member_stays(const struct member *member)
{
    return member_is_in(member) && member->will_be_in;
}

/* Did the member leave by itself? */
static inline bool member_has_left(const struct member *member)
{
    return !member->is_in && !member->was_removed && member->left_ms > 0;
}

struct roster {
    struct member *members;
    uint32_t count;
    uint32_t capacity;
    uint32_t expected;
    uint32_t *slots; /* of a hash table: index + 1, 0 is free; NULL while there are few */
    uint32_t slot_count;
    uint32_t in_count;
    uint32_t will_count;
};

/* Frees the members; the roster is empty and usable. */
void roster_free(struct roster *roster);
/* Announces the number of members to an empty roster, which then allocates no more than that. */
void roster_expect(struct roster *roster, uint32_t count);
/* Finds a member, current or former. NULL: there is none. */
struct member *roster_find(const struct roster *roster, struct span did);
/* Finds or creates an entry. NULL when out of memory. Pointers to members are valid until the next
 * call. */
struct member *roster_get(struct roster *roster, struct span did);
/* Changes one of the two states and its count. */
void roster_plan(struct roster *roster, struct member *member, bool will_be_in);
void roster_apply(struct roster *roster, struct member *member, bool is_in);

static inline struct span member_did(const struct member *member)
{
    return (struct span){ member->did, member->did_size };
}

#endif
