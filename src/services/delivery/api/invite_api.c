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

enum { INVITE_CONVO, INVITE_HASH, INVITE_TARGET, INVITE_USES, INVITE_END };

const struct call call_create_invite = {
    .params = PARAMS([INVITE_CONVO] = PARAM_CONVO,
        [INVITE_HASH] = { "pskHash", PARAM_HEX, PARAM_REQUIRED, .min = HASH_SIZE,
            .max = HASH_SIZE },
        [INVITE_TARGET] = PARAM_MAY_TEXT("targetDid", DID_SIZE_MIN, DID_SIZE_MAX),
        [INVITE_USES] = { "maxUses", PARAM_INT, .min = 1, .max = INVITE_USES_MAX },
        [INVITE_END] = { "expiresAt", PARAM_TIME, .max = INVITE_DAYS_MAX,
            .fallback = INVITE_DAYS }),
    .role_of = &role_in_convo,
    .role = ROLE_ADMIN,
    .steps =
        CALL_STEPS({ STEP(invite_put, 1, ARG_ID, ARG_PARAM(INVITE_CONVO), ARG_PARAM(INVITE_HASH),
                         ARG_PARAM(INVITE_TARGET), ARG_PARAM(INVITE_USES), ARG_CALLER,
                         ARG_NOW_MS(0), ARG_PARAM(INVITE_END), ARG_INT(INVITES_MAX)),
                       .conflict = REFUSE(409, "InviteExists",
                           "There is an invite with this secret; choose another secret."),
                       .refusal = REFUSE_MANY(INVITES_RETRY_S, "TooManyInvites",
                           "This conversation has 100 open invites, which is the most; revoke "
                           "one first.") },
            AUDIT("createInvite", ARG_PARAM(INVITE_CONVO), ARG_PARAM(INVITE_TARGET))),
    .fields = FIELDS({ "inviteId", FIELD_TEXT, FIELD_ID },
        { "convoId", FIELD_TEXT, FIELD_PARAM(INVITE_CONVO) },
        { "pskHash", FIELD_HEX, FIELD_PARAM(INVITE_HASH) },
        { "createdBy", FIELD_TEXT, FIELD_CALLER },
        { "targetDid", FIELD_TEXT, FIELD_PARAM(INVITE_TARGET), OPTIONAL },
        { "maxUses", FIELD_INT, FIELD_PARAM(INVITE_USES), OPTIONAL },
        { "usesCount", FIELD_INT, FIELD_NUMBER(0) }, { "createdAt", FIELD_TIME_MS, FIELD_NOW(0) },
        { "expiresAt", FIELD_TIME_MS, FIELD_PARAM(INVITE_END) }),
};

const struct call call_list_invites = {
    .params = PARAMS(PARAM_CONVO, { "includeRevoked", PARAM_BOOL, .fallback = false }),
    .role_of = &role_in_convo,
    .role = ROLE_ADMIN,
    .steps = CALL_STEPS({ STEP(invite_list, SQL_ROWS_ANY, ARG_PARAM(0), ARG_PARAM(1)) }),
    .fields = FIELDS({ "invites", FIELD_LIST,
        ROWS(0, { "inviteId", FIELD_TEXT, .at = 0 }, { "convoId", FIELD_TEXT, FIELD_PARAM(0) },
            { "pskHash", FIELD_HEX, .at = 1 }, { "createdBy", FIELD_TEXT, .at = 5 },
            { "targetDid", FIELD_TEXT, .at = 2, OPTIONAL },
            { "maxUses", FIELD_INT, .at = 3, OPTIONAL }, { "usesCount", FIELD_INT, .at = 4 },
            { "createdAt", FIELD_TIME_MS, .at = 6 }, { "expiresAt", FIELD_TIME_MS, .at = 7 },
            { "revokedAt", FIELD_TIME_MS, .at = 8, OPTIONAL }) }),
};

const struct call call_revoke_invite = {
    .params = PARAMS(PARAM_NEED_TEXT("inviteId", 1, 64)),
    .role_of = &role_of_invite,
    .role = ROLE_ADMIN,
    .steps = CALL_STEPS({ STEP(invite_revoke, 1, ARG_PARAM(0), ARG_NOW_MS(0)),
                            .refusal = REFUSE(409, "AlreadyRevoked", "This invite is revoked.") },
        { STEP(audit_put_invite, 1, ARG_RANDOM_ID, ARG_CALLER, ARG_TEXT("revokeInvite"),
            ARG_PARAM(0), ARG_NULL, ARG_NOW_MS(0)) }),
    .fields = SUCCESS,
};
