/* SPDX-License-Identifier: Apache-2.0 */
/* commit_roster.h: compares the accounts in the ratchet tree after a commit with the accounts that
 * the request names. A server cannot read an encrypted commit, but the group info beside it shows
 * the effect. An account that is added or removed but not named, or named but neither added nor
 * removed, would be a member here and not in the group, or the reverse.
 *
 * Accounts count, not leaves: a DID may have several leaves, one per device. A member without a
 * leaf (named at the creation, before joining) may stay without one. A former member may keep its
 * leaf until another member's commit removes it. Neither is a fault of this commit. */
#ifndef SERVICES_DELIVERY_MLS_COMMIT_ROSTER_H
#define SERVICES_DELIVERY_MLS_COMMIT_ROSTER_H

#include "services/delivery/mls/mls_message.h"

struct act;
struct roster;

struct commit_roster {
    bool has_before;    /* the tree before is known */
    struct buffer gone; /* the memory of DIDs that only the tree before has */
    uint32_t count;
    struct commit_leaf {
        struct span did;
        bool is_before, is_after; /* has a leaf in the tree before, after */
    } leaves[];                   /* one for each DID, in order */
};

/* Reads both trees. *ret_roster is NULL if there is nothing to compare: no tree, or credentials
 * that are no DIDs. `before` is the stored group info of the commit's epoch, or NULL; it may be
 * freed afterwards. `after` must outlive the result. TR_ENOMEM. Runs on the pool: a tree may be large. */
int commit_roster_create(const struct mls_group_info *after, const struct mls_group_info *before,
    struct commit_roster **ret_roster);
void commit_roster_destroy(struct commit_roster *roster); /* NULL is fine */

/* Compares the trees with the members before the act (will_be_in) and with the additions and removals
 * that the act names. Returns NULL, or a sentence about the difference. */
const char *commit_roster_check(
    const struct commit_roster *roster, const struct roster *members, const struct act *act);

#endif
