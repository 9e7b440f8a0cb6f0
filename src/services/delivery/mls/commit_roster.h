/* SPDX-License-Identifier: Apache-2.0 */
/* commit_roster.h: who has a leaf in the ratchet tree a commit leads to, held against whom the
 * request names. A server cannot read an encrypted commit, but the group info that comes with it
 * shows what the commit did: somebody who is added or removed without being named, or named
 * without being added or removed, would be a member here and not in the group, or the reverse.
 *
 * People count, not leaves: a DID may have several (its devices). Who was a member and never had a
 * leaf (named at the creation, before joining) may stay without one, and who has left may still
 * have one, until somebody's commit removes it: neither is this commit's doing. */
#ifndef SERVICES_DELIVERY_MLS_COMMIT_ROSTER_H
#define SERVICES_DELIVERY_MLS_COMMIT_ROSTER_H

#include "services/delivery/mls/mls_message.h"

struct act;
struct roster;

struct commit_leaf {
    struct span did;
    bool is_new; /* not in the tree before */
};

struct commit_roster {
    struct commit_leaf *leaves; /* one for each DID, in order */
    uint32_t count;
    bool has_before;   /* the tree before is known */
    struct span *gone; /* who is in that and not in this */
    uint32_t gone_count;
    struct buffer bytes; /* what `gone` points into */
};

/* NULL in *ret_roster if there is nothing to compare: no tree, or credentials that are no DIDs.
 * `before` is the stored group info of the epoch the commit was made in, empty if there is none; it
 * is copied. `after` must outlive the result. TR_ENOMEM. For the pool: a tree may be large. */
int commit_roster_new(
    const struct mls_group_info *after, struct span before, struct commit_roster **ret_roster);
void commit_roster_free(struct commit_roster *roster); /* NULL is fine */

/* Is it what the act says, with these members as they will be? NULL, or what is wrong. */
const char *commit_roster_check(
    const struct commit_roster *roster, const struct roster *members, const struct act *act);

#endif
