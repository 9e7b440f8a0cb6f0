/* SPDX-License-Identifier: Apache-2.0 */
#include "services/delivery/mls/commit_roster.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "services/delivery/convo/acts.h"
#include "services/delivery/convo/roster.h"

/* ---- the tree ------------------------------------------------------------------------------- */

static int compare_spans(struct span a, struct span b)
{
    size_t size = a.size < b.size ? a.size : b.size;
    int order = memcmp(a.at, b.at, size);

    return order != 0 ? order : (a.size > b.size) - (a.size < b.size);
}

static int compare_leaves(const void *a, const void *b)
{
    return compare_spans(
        ((const struct commit_leaf *)a)->did, ((const struct commit_leaf *)b)->did);
}

static bool did_of(const struct mls_leaf *leaf, struct span *ret_did)
{
    *ret_did = mls_identity_did(leaf->identity, NULL);
    return leaf->credential == MLS_CREDENTIAL_BASIC && span_starts(*ret_did, "did:");
}

static void sort_and_unite(struct commit_leaf *leaves, uint32_t *count)
{
    uint32_t kept = 0;

    qsort(leaves, *count, sizeof *leaves, compare_leaves);
    for (uint32_t i = 0; i < *count; i++)
        if (kept == 0 || compare_leaves(&leaves[kept - 1], &leaves[i]) != 0)
            leaves[kept++] = leaves[i];
    *count = kept;
}

/* Reads the DIDs of a tree, sorted, each once. *ret_leaves is NULL if the tree has none, or
 * identities that are no DIDs. */
static int read_leaves(
    struct span ratchet_tree, struct commit_leaf **ret_leaves, uint32_t *ret_count)
{
    struct commit_leaf *leaves = NULL;
    uint32_t index, count = 0, leaf_count;
    struct mls_tree tree;
    struct mls_leaf leaf;

    *ret_leaves = NULL;
    if (ratchet_tree.at == NULL || mls_tree_check(ratchet_tree, &leaf_count) != NULL)
        return 0;
    leaves = base_calloc((leaf_count + 1) * sizeof *leaves);
    if (leaves == NULL)
        return TR_ENOMEM;
    tree = mls_tree_of(ratchet_tree);
    while (count < leaf_count && mls_tree_next(&tree, &index, &leaf)) {
        if (!did_of(&leaf, &leaves[count++].did)) {
            base_free(leaves);
            return 0;
        }
    }
    tr_assert(count == leaf_count); /* the check has counted them */
    sort_and_unite(leaves, &count);
    *ret_leaves = leaves;
    *ret_count = count;
    return 0;
}

/* ---- changes between two trees --------------------------------------------------------------- */

/* Compares two sorted lists. The DIDs that are gone are copied, because the old tree is freed. */
static void find_changes(
    struct commit_roster *roster, const struct commit_leaf *before, uint32_t before_count)
{
    uint32_t at = 0;

    for (uint32_t i = 0; i < roster->count; i++)
        roster->leaves[i].is_new = true;
    for (uint32_t i = 0; i < before_count; i++) {
        while (at < roster->count && compare_spans(roster->leaves[at].did, before[i].did) < 0)
            at++;
        if (at < roster->count && span_equal(roster->leaves[at].did, before[i].did)) {
            roster->leaves[at].is_new = false;
            continue;
        }
        tr_assert(roster->gone_count < before_count);
        roster->gone[roster->gone_count++].size = before[i].did.size;
        buffer_span(&roster->bytes, before[i].did);
    }
    for (size_t i = 0, from = 0; roster->bytes.failed == 0 && i < roster->gone_count; i++) {
        roster->gone[i].at = roster->bytes.bytes + from;
        from += roster->gone[i].size;
    }
}

/* A group from before a reset is unrelated and is not compared. */
static int compare_before(struct commit_roster *roster, const struct mls_group_info *after,
    const struct mls_group_info *stored)
{
    struct commit_leaf *before;
    uint32_t count = 0;
    int rc;

    if (stored == NULL || !span_equal(stored->context.group_id, after->context.group_id))
        return 0;
    rc = read_leaves(stored->ratchet_tree, &before, &count);
    if (rc < 0 || before == NULL)
        return rc;
    roster->gone = base_calloc((count + 1) * sizeof *roster->gone);
    if (roster->gone != NULL) {
        find_changes(roster, before, count);
        roster->has_before = true;
        rc = roster->bytes.failed;
    } else {
        rc = TR_ENOMEM;
    }
    base_free(before);
    return rc;
}

int commit_roster_create(const struct mls_group_info *after, const struct mls_group_info *before,
    struct commit_roster **ret_roster)
{
    struct commit_roster *roster = base_calloc(sizeof *roster);
    int rc;

    *ret_roster = NULL;
    if (roster == NULL)
        return TR_ENOMEM;
    rc = read_leaves(after->ratchet_tree, &roster->leaves, &roster->count);
    if (rc == 0 && roster->leaves != NULL)
        rc = compare_before(roster, after, before);
    if (rc == 0 && roster->leaves != NULL)
        *ret_roster = roster;
    else
        commit_roster_destroy(roster);
    return rc;
}

void commit_roster_destroy(struct commit_roster *roster)
{
    if (roster == NULL)
        return;
    base_free(roster->leaves);
    base_free(roster->gone);
    buffer_free(&roster->bytes);
    base_free(roster);
}

/* ---- the request against the tree ------------------------------------------------------------ */

static bool has_leaf(const struct commit_roster *roster, struct span did)
{
    const struct commit_leaf key = { .did = did };

    return bsearch(&key, roster->leaves, roster->count, sizeof key, compare_leaves) != NULL;
}

static bool is_added(const struct act *act, struct span did)
{
    if (act->members == NULL)
        return false;
    if (act_has(act, ACT_CREATES) && span_equal(did, act->claims->issuer))
        return true;
    for (uint32_t i = 0; i < act->members->add_count; i++)
        if (span_equal(act->members->adds[i].did, did))
            return true;
    return false;
}

static bool is_removed(const struct act *act, struct span did)
{
    if (act->members == NULL)
        return false;
    for (uint32_t i = 0; i < act->members->remove_count; i++)
        if (span_equal(act->members->removes[i], did))
            return true;
    return false;
}

/* May this leaf exist although its owner is no member and the request does not add it? */
static bool is_left_over(
    const struct commit_roster *roster, const struct commit_leaf *leaf, const struct member *member)
{
    if (roster->has_before)
        return !leaf->is_new;
    return member != NULL && member_has_left(member);
}

const char *commit_roster_check(
    const struct commit_roster *roster, const struct roster *members, const struct act *act)
{
    uint32_t add_count = act->members == NULL ? 0 : act->members->add_count;
    uint32_t remove_count = act->members == NULL ? 0 : act->members->remove_count;

    for (uint32_t i = 0; i < roster->count; i++) {
        const struct commit_leaf *leaf = &roster->leaves[i];
        const struct member *member = roster_find(members, leaf->did);

        if ((member == NULL || !member->will_be_in) && !is_left_over(roster, leaf, member) &&
            !is_added(act, leaf->did))
            return "The new tree has an account that is no member and that the request does not "
                   "add.";
    }
    /* Accounts named at the creation may join later. */
    for (uint32_t i = 0; !act_has(act, ACT_CREATES) && i < add_count; i++)
        if (!has_leaf(roster, act->members->adds[i].did))
            return "The request adds an account that is not in the new tree.";
    for (uint32_t i = 0; i < remove_count; i++)
        /* A commit cannot remove its own committer: another member's commit has to. */
        if (!span_equal(act->members->removes[i], act->claims->issuer) &&
            has_leaf(roster, act->members->removes[i]))
            return "The request removes an account that is still in the new tree.";
    for (uint32_t i = 0; i < roster->gone_count; i++) {
        const struct member *member = roster_find(members, roster->gone[i]);

        if (member != NULL && member->will_be_in && !is_removed(act, roster->gone[i]))
            return "The commit removes an account that the request does not name in removes.";
    }
    return NULL;
}
