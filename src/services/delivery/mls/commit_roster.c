/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/mls/commit_roster.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "services/delivery/convo/acts.h"
#include "services/delivery/convo/roster.h"

/* ---- the trees ------------------------------------------------------------------------------- */

static int compare_leaves(const void *a, const void *b)
{
    return span_compare(((const struct commit_leaf *)a)->did, ((const struct commit_leaf *)b)->did);
}

/* Appends the leaves of a checked tree. Returns false, and appends none, if one is no DID's. */
static bool add_leaves(struct commit_roster *roster, struct span ratchet_tree, bool is_after)
{
    struct mls_tree tree = mls_tree_of(ratchet_tree);
    uint32_t index, count = roster->count;
    struct mls_leaf leaf;

    while (mls_tree_next(&tree, &index, &leaf)) {
        struct span did = mls_identity_did(leaf.identity, NULL);

        if (leaf.credential != MLS_CREDENTIAL_BASIC || !span_starts(did, "did:"))
            return false;
        roster->leaves[count++] =
            (struct commit_leaf){ .did = did, .is_before = !is_after, .is_after = is_after };
    }
    roster->count = count;
    return true;
}

static void sort_and_unite(struct commit_roster *roster)
{
    struct commit_leaf *leaves = roster->leaves;
    uint32_t kept = 0;

    qsort(leaves, roster->count, sizeof *leaves, compare_leaves);
    for (uint32_t i = 0; i < roster->count; i++) {
        struct commit_leaf leaf = leaves[i];

        if (kept > 0 && compare_leaves(&leaves[kept - 1], &leaf) == 0) {
            const struct commit_leaf *same = &leaves[--kept];

            /* A span into the new tree stays valid, one into the old tree does not. */
            leaf.did = same->is_after ? same->did : leaf.did;
            leaf.is_after = leaf.is_after || same->is_after;
            leaf.is_before = leaf.is_before || same->is_before;
        }
        leaves[kept++] = leaf;
    }
    roster->count = kept;
}

/* Copies the DIDs that are gone, because the old tree is freed. */
static int copy_gone(struct commit_roster *roster)
{
    size_t at = 0;

    for (uint32_t i = 0; i < roster->count; i++)
        if (!roster->leaves[i].is_after)
            buffer_span(&roster->gone, roster->leaves[i].did);
    for (uint32_t i = 0; roster->gone.failed == 0 && i < roster->count; i++)
        if (!roster->leaves[i].is_after) {
            roster->leaves[i].did.at = roster->gone.bytes + at;
            at += roster->leaves[i].did.size;
        }
    return roster->gone.failed;
}

int commit_roster_create(const struct mls_group_info *after, const struct mls_group_info *before,
    struct commit_roster **ret_roster)
{
    /* A group from before a reset is unrelated and is not compared. */
    bool has_before = before != NULL &&
                      span_equal(before->context.group_id, after->context.group_id) &&
                      before->ratchet_tree.at != NULL;
    uint32_t count, before_count = 0;
    struct commit_roster *roster;
    int rc = 0;

    *ret_roster = NULL;
    if (after->ratchet_tree.at == NULL || mls_tree_check(after->ratchet_tree, &count) != NULL)
        return 0;
    if (has_before && mls_tree_check(before->ratchet_tree, &before_count) != NULL)
        has_before = false;
    roster = base_calloc(sizeof *roster + ((size_t)count + before_count) * sizeof *roster->leaves);
    if (roster == NULL)
        return TR_ENOMEM;
    if (add_leaves(roster, after->ratchet_tree, true)) {
        tr_assert(roster->count == count); /* the check has counted them */
        roster->has_before = has_before && add_leaves(roster, before->ratchet_tree, false);
        sort_and_unite(roster);
        rc = copy_gone(roster);
        if (rc == 0)
            *ret_roster = roster;
    }
    if (*ret_roster == NULL)
        commit_roster_destroy(roster);
    return rc;
}

void commit_roster_destroy(struct commit_roster *roster)
{
    if (roster == NULL)
        return;
    buffer_free(&roster->gone);
    base_free(roster);
}

/* ---- the request against the trees ----------------------------------------------------------- */

static bool has_leaf(const struct commit_roster *roster, struct span did)
{
    const struct commit_leaf key = { .did = did };
    const struct commit_leaf *leaf =
        bsearch(&key, roster->leaves, roster->count, sizeof key, compare_leaves);

    return leaf != NULL && leaf->is_after;
}

static bool is_added(const struct act *act, const struct act_members *changes, struct span did)
{
    if (act_has(act, ACT_CREATES) && span_equal(did, act->claims->issuer))
        return true;
    for (uint32_t i = 0; i < changes->add_count; i++)
        if (span_equal(changes->adds[i].did, did))
            return true;
    return false;
}

static bool is_removed(const struct act_members *changes, struct span did)
{
    for (uint32_t i = 0; i < changes->remove_count; i++)
        if (span_equal(changes->removes[i], did))
            return true;
    return false;
}

const char *commit_roster_check(
    const struct commit_roster *roster, const struct roster *members, const struct act *act)
{
    static const struct act_members none;
    const struct act_members *changes = act->members == NULL ? &none : act->members;

    for (uint32_t i = 0; i < roster->count; i++) {
        const struct commit_leaf *leaf = &roster->leaves[i];
        const struct member *member = roster_find(members, leaf->did);
        /* A former member's leaf may be left over. */
        bool may_stay =
            roster->has_before ? leaf->is_before : member != NULL && member_has_left(member);

        if (leaf->is_after && (member == NULL || !member->will_be_in) && !may_stay &&
            !is_added(act, changes, leaf->did))
            return "The new tree has an account that is no member and that the request does not "
                   "add.";
    }
    /* Accounts named at the creation may join later. */
    for (uint32_t i = 0; !act_has(act, ACT_CREATES) && i < changes->add_count; i++)
        if (!has_leaf(roster, changes->adds[i].did))
            return "The request adds an account that is not in the new tree.";
    for (uint32_t i = 0; i < changes->remove_count; i++)
        /* A commit cannot remove its own committer: another member's commit has to. */
        if (!span_equal(changes->removes[i], act->claims->issuer) &&
            has_leaf(roster, changes->removes[i]))
            return "The request removes an account that is still in the new tree.";
    for (uint32_t i = 0; i < roster->count; i++) {
        const struct member *member = roster_find(members, roster->leaves[i].did);

        if (!roster->leaves[i].is_after && member != NULL && member->will_be_in &&
            !is_removed(changes, roster->leaves[i].did))
            return "The commit removes an account that the request does not name in removes.";
    }
    return NULL;
}
