/* SPDX-License-Identifier: Apache-2.0 */
/* invite_api.c: invites. An admin makes a secret and gives the server its SHA-256. A holder of the
 * secret joins by an external commit, as often and as long as the invite allows; the unit that stores
 * the commit counts the use. The hash alone lets its holder read the group info that such a commit
 * needs. */
#include "services/delivery/api/calls.h"
#include "services/delivery/store/moderation_store.h"

enum { INVITES_MAX = 100, INVITE_USES_MAX = 10000 }; /* open ones of a conversation; uses of one */
enum { INVITES_RETRY_S = 3600 };                     /* of a client that meets INVITES_MAX */
enum { INVITE_DAYS = 30, INVITE_DAYS_MAX = 365, HASH_SIZE = 32 };

const struct call call_create_invite = {
    .params = PARAMS(PARAM_CONVO,
        { "pskHash", PARAM_HEX, PARAM_REQUIRED, .min = HASH_SIZE, .max = HASH_SIZE },
        PARAM_MAY_TEXT("targetDid", DID_SIZE_MIN, DID_SIZE_MAX),
        { "maxUses", PARAM_INT, .min = 1, .max = INVITE_USES_MAX },
        { "expiresAt", PARAM_TIME, .max = INVITE_DAYS_MAX, .fallback = INVITE_DAYS }),
    IN_CONVO(ROLE_ADMIN),
    .steps = CALL_STEPS(
        STEP_ROWS(1, invite_put, "@id convoId pskHash targetDid maxUses @caller @now expiresAt #",
            WITH(INVITES_MAX),
            .conflict = REFUSE(
                409, "InviteExists", "There is an invite with this secret; choose another secret."),
            .refusal = REFUSE_MANY(INVITES_RETRY_S, "TooManyInvites",
                "This conversation has 100 open invites, which is the most; revoke "
                "one first.")),
        AUDIT("createInvite", "convoId", "targetDid")),
    .fields = FIELDS({ "inviteId", FIELD_TEXT, FIELD_ID }, SAME_TEXT("convoId"),
        { "pskHash", FIELD_HEX, FIELD_PARAM("pskHash") }, { "createdBy", FIELD_TEXT, FIELD_CALLER },
        { "targetDid", FIELD_TEXT, FIELD_PARAM("targetDid"), OPTIONAL },
        { "maxUses", FIELD_INT, FIELD_PARAM("maxUses"), OPTIONAL },
        { "usesCount", FIELD_INT, FIELD_NUMBER(0) }, TIME_NOW("createdAt", 0),
        { "expiresAt", FIELD_TIME_MS, FIELD_PARAM("expiresAt") }),
};

const struct call call_list_invites = {
    .params = PARAMS(PARAM_CONVO, { "includeRevoked", PARAM_BOOL, .fallback = false }),
    IN_CONVO(ROLE_ADMIN),
    .steps = CALL_STEPS(STEP(invite_list, "convoId includeRevoked")),
    .fields = FIELDS(ROWS("invites", 0, TEXT_AT("inviteId", 0), SAME_TEXT("convoId"),
        HEX_AT("pskHash", 1), TEXT_AT("createdBy", 5), TEXT_AT("targetDid", 2, OPTIONAL),
        INT_AT("maxUses", 3, OPTIONAL), INT_AT("usesCount", 4), TIME_AT("createdAt", 6),
        TIME_AT("expiresAt", 7), TIME_AT("revokedAt", 8, OPTIONAL))),
};

const struct call call_revoke_invite = {
    .params = PARAMS(PARAM_NEED_TEXT("inviteId", 1, 64)),
    .role_of = &role_of_invite,
    .role = ROLE_ADMIN,
    .steps = CALL_STEPS(STEP_ROWS(1, invite_revoke, "inviteId @now",
                            .refusal = REFUSE(409, "AlreadyRevoked", "This invite is revoked.")),
        STEP_ROWS(1, audit_put_invite, "@random_id @caller 'revokeInvite' inviteId @null @now")),
    .fields = SUCCESS,
};
