/* SPDX-License-Identifier: Apache-2.0 */
/* roster.h: the members of one conversation, as stored (is_in) and as they will be when what is on
 * its way to the database has arrived (will_be_in). Answers come from the first, plans from the
 * second. */
#ifndef SERVICES_DELIVERY_CONVO_ROSTER_H
#define SERVICES_DELIVERY_CONVO_ROSTER_H

#include <stdbool.h>
#include <stdint.h>

#include "support/buffer.h"

struct member {
    char *did;
    uint16_t did_size;
    bool is_admin;
    bool is_moderator;
    bool is_in;
    bool will_be_in;
    bool was_removed;  /* by somebody else; of who is not in */
    bool has_reported; /* the commit that made the current epoch */
    uint64_t join_seq;
    int64_t joined_ms;
    uint64_t read_seq;
    int64_t left_ms; /* of who is not in; 0 if the commit it came by was taken back */
    int64_t quarantined_until_ms;
};

/* A member now, and still one when the units in flight are stored. */
static inline bool member_stays(const struct member *member)
{
    return member != NULL && member->is_in && member->will_be_in;
}

/* By itself, and not removed. */
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

void roster_free(struct roster *roster); /* leaves it empty and usable */
/* So many will come: an empty roster takes no more memory than they need. */
void roster_expect(struct roster *roster, uint32_t count);
/* NULL if nobody of that name was ever added to it. */
struct member *roster_find(const struct roster *roster, struct span did);
/* The entry of that name, made if need be. NULL when out of memory. Pointers to members are good
 * until the next call. */
struct member *roster_get(struct roster *roster, struct span did);
/* Change one of the two states and the count that goes with it. */
void roster_plan(struct roster *roster, struct member *member, bool will_be_in);
void roster_apply(struct roster *roster, struct member *member, bool is_in);

static inline struct span member_did(const struct member *member)
{
    return (struct span){ member->did, member->did_size };
}

#endif
