/* SPDX-License-Identifier: Apache-2.0 */
/* authz_table.h: permissions: every route of the delivery service against every kind of
 * caller. test_authz.c asks each cell of a real server; test/integration/api_description.py reads
 * the names. A route without a row here does not compile (test_authz.c counts). */
#ifndef TEST_UNIT_DELIVERY_AUTHZ_TABLE_H
#define TEST_UNIT_DELIVERY_AUTHZ_TABLE_H

#include "authz_site.h"

/* The columns: callers that run, are in, were in or may enter the conversation $g; an account's
 * second device, which is not in it; and bad tokens of a caller who may call with a good one.
 */
enum authz_column {
    ANONYMOUS,
    STRANGER,
    INVITED, /* an invite names it; not joined yet */
    MEMBER,
    REMOVED,
    MODERATOR,
    ADMIN,
    OTHER_DEVICE, /* of the member; calls that name a device name this one */
    EXPIRED,
    WRONG_AUD,
    WRONG_LXM,
    AUTHZ_COLUMNS
};

struct authz_cell {
    unsigned status;
    const char *label; /* of the error; NULL: none */
    bool is_blind;     /* 200, but what the row `shows` is not in it */
};

/* Texts as in authz_site.h. */
struct authz_row {
    const char *call;
    const char *body; /* NULL: GET */
    const char *shows;
    const struct authz_step *given; /* ends with a NULL call */
    struct authz_cell cells[AUTHZ_COLUMNS];
};

#define OK                                                                                         \
    {                                                                                              \
        200, NULL, false                                                                           \
    }
#define BLIND                                                                                      \
    {                                                                                              \
        200, NULL, true                                                                            \
    }
#define NO(status, label)                                                                          \
    {                                                                                              \
        status, label, false                                                                       \
    }
#define NO_TOKEN NO(401, "TokenMissing")
#define NOT_MEMBER NO(403, "NotMember")
#define NOT_ADMIN NO(403, "NotAdmin")

#define BAD_TOKENS                                                                                 \
    [EXPIRED] = NO(401, "TokenExpired"), [WRONG_AUD] = NO(401, "AudienceMismatch"),                \
    [WRONG_LXM] = NO(401, "MethodMismatch")
#define CELLS(stranger, invited, member, removed, moderator, admin, other_device)                  \
    {                                                                                              \
        [ANONYMOUS] = NO_TOKEN, [STRANGER] = stranger, [INVITED] = invited, [MEMBER] = member,     \
        [REMOVED] = removed, [MODERATOR] = moderator, [ADMIN] = admin,                             \
        [OTHER_DEVICE] = other_device, BAD_TOKENS                                                  \
    }
#define EVERYBODY CELLS(OK, OK, OK, OK, OK, OK, OK)
#define MEMBERS CELLS(NOT_MEMBER, NOT_MEMBER, OK, NOT_MEMBER, OK, OK, OK)
#define MODERATORS CELLS(NOT_MEMBER, NOT_MEMBER, NOT_ADMIN, NOT_MEMBER, OK, OK, NOT_ADMIN)
#define ADMINS CELLS(NOT_MEMBER, NOT_MEMBER, NOT_ADMIN, NOT_MEMBER, NOT_ADMIN, OK, NOT_ADMIN)
/* Everybody gets an answer, members see the conversation in it. */
#define MEMBERS_SEE CELLS(BLIND, BLIND, OK, BLIND, OK, OK, OK)
/* The account bob, on whatever device; the same with an answer for everybody; its phone alone. */
#define OWNER(status, label)                                                                       \
    CELLS(NO(status, label), NO(status, label), OK, NO(status, label), NO(status, label),          \
        NO(status, label), OK)
#define OWNER_SEES CELLS(BLIND, BLIND, OK, BLIND, BLIND, BLIND, OK)
#define PHONE(status, label)                                                                       \
    CELLS(NO(status, label), NO(status, label), OK, NO(status, label), NO(status, label),          \
        NO(status, label), NO(status, label))

/* ---- history before the test ---------------------------------------------------------------- */

#define AUTHZ_SUITE "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519"
#define IN_G "'convoId':'$g'"
#define A_PACKAGE(of) "{'keyPackage':'" of "','cipherSuite':'" AUTHZ_SUITE "'}"
#define BOB_HAS_A_PHONE                                                                            \
    {                                                                                              \
        BOB, "registerDevice",                                                                     \
            "{'deviceName':'the phone of bob','deviceUUID':'phone','signaturePublicKey':'$key',"   \
            "'keyPackages':[" A_PACKAGE("$phone") "]}",                                            \
            NULL                                                                                   \
    }
#define ADA_CLAIMS_ITS_PACKAGE                                                                     \
    {                                                                                              \
        ADA, "getKeyPackages?dids=$bob", NULL, NULL                                                \
    }
#define END                                                                                        \
    {                                                                                              \
        EVE, NULL, NULL, NULL                                                                      \
    }

static const struct authz_step authz_info[] = {
    { ADA, "updateGroupInfo", "{" IN_G ",'groupInfo':'$info','epoch':2}", NULL },
    END,
};
static const struct authz_step authz_message[] = {
    { BOB, "sendMessage", "{" IN_G ",'msgId':'m1','ciphertext':{'$bytes':'$message'},'epoch':2}",
        NULL },
    END,
};
static const struct authz_step authz_phone[] = { BOB_HAS_A_PHONE, END };
static const struct authz_step authz_claimed[] = { BOB_HAS_A_PHONE, ADA_CLAIMS_ITS_PACKAGE, END };
static const struct authz_step authz_welcome[] = {
    BOB_HAS_A_PHONE,
    ADA_CLAIMS_ITS_PACKAGE,
    { ADA, "submitCommit", "{" IN_G ",'commit':'$commit','welcomes':['$welcome']}", NULL },
    END,
};
static const struct authz_step authz_addition[] = {
    BOB_HAS_A_PHONE,
    { MAX, "claimPendingDeviceAddition", "{'pendingAdditionId':'$bob#phone/$g'}", NULL },
    END,
};
static const struct authz_step authz_cyd_is_admin[] = {
    { ADA, "promoteAdmin", "{" IN_G ",'targetDid':'$cyd'}", NULL },
    END,
};
static const struct authz_step authz_cyd_is_moderator[] = {
    { ADA, "promoteModerator", "{" IN_G ",'targetDid':'$cyd'}", NULL },
    END,
};
static const struct authz_step authz_invite[] = {
    { ADA, "createInvite",
        "{" IN_G ",'pskHash':'00000000000000000000000000000000000000000000000000000000000000bb'}",
        "inviteId" },
    END,
};
static const struct authz_step authz_report[] = {
    { BOB, "reportMember",
        "{" IN_G ",'reportedDid':'$cyd','category':'spam','encryptedContent':{'$bytes':'AAAA'}}",
        "reportId" },
    END,
};
static const struct authz_step authz_warning[] = {
    { ADA, "warnMember", "{" IN_G ",'memberDid':'$bob','reason':'manners'}", "warningId" },
    END,
};
static const struct authz_step authz_request[] = {
    { ADA, "sendChatRequest", "{'recipientDid':'$bob'}", "requestId" },
    END,
};

/* ---- the table ------------------------------------------------------------------------------ */

static const struct authz_row authz_rows[] = {
    /* Groups and commits. The commits are of the epoch the conversation is at. */
    { "createConvo", "{'groupId':'$new','cipherSuite':'" AUTHZ_SUITE "'}", NULL, NULL, EVERYBODY },
    { "addMembers", "{" IN_G ",'didList':['did:plc:somebody'],'commit':'$commit'}", NULL, NULL,
        MEMBERS },
    { "removeMember", "{" IN_G ",'targetDid':'$cyd','idempotencyKey':'out','commit':'$commit'}",
        NULL, NULL, ADMINS },
    { "leaveConvo", "{" IN_G ",'commit':'$commit'}", NULL, NULL,
        CELLS(NOT_MEMBER, NOT_MEMBER, OK, NOT_MEMBER, OK, NO(400, "LastAdmin"), OK) },
    { "submitCommit", "{" IN_G ",'commit':'$commit'}", NULL, NULL, MEMBERS },
    { "processExternalCommit", "{" IN_G ",'externalCommit':'$external','psk':'$psk'}", NULL,
        authz_info, CELLS(NO(403, "InvalidInvite"), OK, OK, NO(403, "InvalidInvite"), OK, OK, OK) },
    { "updateGroupInfo", "{" IN_G ",'groupInfo':'$info','epoch':2}", NULL, NULL, MEMBERS },
    { "getConvo?convoId=$g", NULL, "'creator':'$ada'", NULL, MEMBERS },
    { "getConvos", NULL, "'id':'$g'", NULL, MEMBERS_SEE },
    { "getEpoch?convoId=$g", NULL, "'currentEpoch':2", NULL, MEMBERS },
    { "groupInfoRefresh", "{" IN_G "}", NULL, NULL, MEMBERS },
    { "getGroupInfo?convoId=$g&pskHash=$pskhash", NULL, "groupInfo", authz_info,
        CELLS(NO(403, "InvalidInvite"), OK, OK, NO(403, "InvalidInvite"), OK, OK, OK) },

    /* Messages. A removed member still reads messages from the time of its membership. */
    { "sendMessage", "{" IN_G ",'msgId':'m','ciphertext':{'$bytes':'$message'},'epoch':2}", NULL,
        NULL, MEMBERS },
    { "sendProposal", "{" IN_G ",'msgId':'p','proposal':'$proposal'}", NULL, NULL, MEMBERS },
    { "updateCursor", "{" IN_G ",'seq':1}", NULL, NULL, MEMBERS },
    { "markUnread", "{" IN_G "}", "'unreadCount':1", NULL, MEMBERS },
    { "getMessages?convoId=$g", NULL, "'id':'m1'", authz_message,
        CELLS(NOT_MEMBER, NOT_MEMBER, OK, BLIND, OK, OK, OK) },
    { "getCommits?convoId=$g&fromEpoch=0", NULL, "commitData", NULL,
        CELLS(NOT_MEMBER, NOT_MEMBER, OK, OK, OK, OK, OK) },
    { "getUnread", NULL, "$g", NULL, MEMBERS_SEE },
    { "getDeliveryStatus?convoId=$g&messageIds=m1", NULL, "'status':'stored'", authz_message,
        CELLS(NOT_MEMBER, NOT_MEMBER, OK, NOT_MEMBER, BLIND, BLIND, OK) },

    /* Streams: the one call that a token need not come with. */
    { "getSubscriptionTicket", "{" IN_G "}", NULL, NULL, MEMBERS },
    { "subscribeConvoEvents?convoId=$g", NULL, NULL, NULL,
        { [ANONYMOUS] = NO(401, "TicketRefused"),
            [STRANGER] = NOT_MEMBER,
            [INVITED] = NOT_MEMBER,
            [MEMBER] = OK,
            [REMOVED] = NOT_MEMBER,
            [MODERATOR] = OK,
            [ADMIN] = OK,
            [OTHER_DEVICE] = OK,
            BAD_TOKENS } },
    { "streamConvoEvents?convoId=$g", NULL, NULL, NULL,
        { [ANONYMOUS] = NO(401, "TicketRefused"),
            [STRANGER] = NOT_MEMBER,
            [INVITED] = NOT_MEMBER,
            [MEMBER] = OK,
            [REMOVED] = NOT_MEMBER,
            [MODERATOR] = OK,
            [ADMIN] = OK,
            [OTHER_DEVICE] = OK,
            BAD_TOKENS } },

    /* Key packages: an account's own, and anybody's to claim. */
    { "publishKeyPackage", A_PACKAGE("$package"), NULL, NULL, EVERYBODY },
    { "publishKeyPackages", "{'keyPackages':[" A_PACKAGE("$package") "]}", "'succeeded':1", NULL,
        EVERYBODY },
    { "getKeyPackages?dids=$bob", NULL, NULL, authz_phone, EVERYBODY },
    { "getKeyPackageStats?deviceId=phone", NULL, "'available':1", authz_phone, OWNER_SEES },
    { "getKeyPackageStatus?keyPackageHash=$hash", NULL, "$hash", authz_phone,
        OWNER(404, "KeyPackageNotFound") },
    { "syncKeyPackages", "{'deviceId':'phone','localHashes':[]}", "'deletedCount':1", authz_phone,
        OWNER_SEES },
    { "deleteKeyPackages", "{'keyPackageHashes':['$hash']}", NULL, authz_phone,
        OWNER(404, "KeyPackageNotFound") },

    /* Welcomes: of one device of one account. */
    { "getWelcome?convoId=$g&deviceId=$device", NULL, "'deviceId':'phone'", authz_welcome,
        PHONE(404, "WelcomeNotFound") },
    { "getPendingWelcomes?deviceId=$device", NULL, "$g", authz_welcome,
        CELLS(BLIND, BLIND, OK, BLIND, BLIND, BLIND, BLIND) },
    { "confirmWelcome", "{" IN_G ",'success':true,'deviceId':'$device'}", NULL, authz_welcome,
        PHONE(404, "WelcomeNotFound") },
    { "invalidateWelcome", "{" IN_G ",'deviceId':'$device'}", NULL, authz_welcome,
        PHONE(404, "WelcomeNotFound") },
    { "reissueWelcome", "{" IN_G ",'deviceId':'$device'}", NULL, authz_welcome, MEMBERS },
    { "readdition", "{" IN_G ",'deviceId':'$device'}", NULL, authz_welcome, MEMBERS },
    { "rejoin", "{" IN_G ",'keyPackage':'$package','reason':'lost'}", "'pending':true", NULL,
        MEMBERS },
    /* ada has claimed what the Welcome names: to others it is not theirs to give. */
    { "validateWelcome", "{'welcomeMessage':'$welcome'}", NULL, authz_claimed,
        CELLS(NO(409, "KeyPackageUnavailable"), NO(409, "KeyPackageUnavailable"),
            NO(409, "KeyPackageUnavailable"), NO(409, "KeyPackageUnavailable"),
            NO(409, "KeyPackageUnavailable"), OK, NO(409, "KeyPackageUnavailable")) },

    /* Devices: an account manages its own; any member may add a pending device. */
    { "registerDevice",
        "{'deviceName':'mine','deviceUUID':'$device','signaturePublicKey':'$key',"
        "'keyPackages':[]}",
        NULL, NULL, EVERYBODY },
    { "listDevices", NULL, "the phone of bob", authz_phone, OWNER_SEES },
    { "deleteDevice", "{'deviceId':'phone'}", NULL, authz_phone, OWNER(404, "DeviceNotFound") },
    { "registerDeviceToken", "{'deviceId':'phone','pushToken':'a-token','platform':'ios'}", NULL,
        authz_phone, OWNER(404, "DeviceNotFound") },
    { "unregisterDeviceToken", "{'deviceId':'phone'}", NULL, authz_phone, EVERYBODY },
    { "getPendingDeviceAdditions", NULL, "$g", authz_phone, MEMBERS_SEE },
    { "claimPendingDeviceAddition", "{'pendingAdditionId':'$bob#phone/$g'}", "'claimed':true",
        authz_phone,
        CELLS(NO(404, "PendingAdditionNotFound"), NO(404, "PendingAdditionNotFound"), OK,
            NO(404, "PendingAdditionNotFound"), OK, OK, OK) },
    { "completePendingDeviceAddition", "{'pendingAdditionId':'$bob#phone/$g'}", NULL,
        authz_addition,
        CELLS(NO(404, "PendingAdditionNotFound"), NO(404, "PendingAdditionNotFound"), OK,
            NO(404, "PendingAdditionNotFound"), OK, NO(409, "ClaimExpired"), OK) },
    { "validateDeviceState?deviceId=phone", NULL, NULL, authz_phone, OWNER(404, "DeviceNotFound") },
    { "getExpectedConversations?deviceId=$device", NULL, "$g", NULL, MEMBERS_SEE },

    /* Roles, policy, invites. */
    { "promoteAdmin", "{" IN_G ",'targetDid':'$cyd'}", NULL, NULL, ADMINS },
    { "demoteAdmin", "{" IN_G ",'targetDid':'$cyd'}", NULL, authz_cyd_is_admin, ADMINS },
    { "promoteModerator", "{" IN_G ",'targetDid':'$cyd'}", NULL, NULL, ADMINS },
    { "demoteModerator", "{" IN_G ",'targetDid':'$cyd'}", NULL, authz_cyd_is_moderator, ADMINS },
    { "getPolicy?convoId=$g", NULL, NULL, NULL, MEMBERS },
    { "updatePolicy", "{" IN_G ",'maxMembers':500}", NULL, NULL, ADMINS },
    { "createInvite",
        "{" IN_G ",'pskHash':'00000000000000000000000000000000000000000000000000000000000000aa'}",
        NULL, NULL, ADMINS },
    { "listInvites?convoId=$g", NULL, "$pskhash", NULL, ADMINS },
    { "revokeInvite", "{'inviteId':'$id'}", NULL, authz_invite, ADMINS },

    /* Reports and warnings. */
    { "reportMember",
        "{" IN_G ",'reportedDid':'$cyd','category':'spam','encryptedContent':{'$bytes':'AAAA'}}",
        NULL, NULL, MEMBERS },
    { "getReports?convoId=$g", NULL, "$id", authz_report, MODERATORS },
    { "resolveReport", "{'reportId':'$id','action':'dismissed'}", NULL, authz_report, MODERATORS },
    { "warnMember", "{" IN_G ",'memberDid':'$cyd','reason':'manners'}", NULL, NULL, MODERATORS },
    { "listWarnings?convoId=$g", NULL, "$id", authz_warning, MEMBERS },
    { "getAdminStats?convoId=$g", NULL, NULL, NULL, ADMINS },

    /* Consent: everybody's own business; blocks are public records. */
    { "optIn", "{}", NULL, NULL, EVERYBODY },
    { "optOut", "{}", NULL, NULL, EVERYBODY },
    { "getOptInStatus?dids=$bob", NULL, "$bob", NULL, EVERYBODY },
    { "checkBlocks?dids=$bob&dids=$ada", NULL, NULL, NULL, EVERYBODY },
    { "getBlockStatus?convoId=$g", NULL, NULL, NULL, MEMBERS },
    { "handleBlockChange", "{'blockerDid':'$bob','blockedDid':'$eve','action':'created'}", NULL,
        NULL, OWNER(403, "NotBlocker") },
    { "sendChatRequest", "{'recipientDid':'$cyd'}", NULL, NULL, EVERYBODY },
    { "acceptChatRequest", "{'requestId':'$id'}", NULL, authz_request,
        OWNER(404, "RequestNotFound") },
    { "declineChatRequest", "{'requestId':'$id'}", NULL, authz_request,
        OWNER(404, "RequestNotFound") },
    { "listChatRequests", NULL, "$id", authz_request, OWNER_SEES },
    { "getRequestCount", NULL, "'pendingCount':1", authz_request, OWNER_SEES },

    /* Un-wedging: ada made the newest commit, so it is not hers to report. */
    { "confirmEpoch",
        "{" IN_G ",'epoch':2,'epochAuthenticatorHash':"
        "'00000000000000000000000000000000000000000000000000000000000000cc'}",
        NULL, NULL, MEMBERS },
    { "reportInvalidCommit", "{" IN_G ",'baseEpoch':1,'sha256':'$last','reason':'no path'}", NULL,
        NULL, CELLS(NOT_MEMBER, NOT_MEMBER, OK, NOT_MEMBER, OK, NO(403, "NotEligible"), OK) },
    { "resetGroup", "{" IN_G ",'newGroupId':'$new'}", NULL, NULL, ADMINS },
    { "getReceipts?convoId=$g", NULL, "receipts", NULL, MEMBERS },
};
enum { AUTHZ_ROWS = sizeof authz_rows / sizeof authz_rows[0] };

#endif
