/* SPDX-License-Identifier: Apache-2.0 */
/* calls.h: the list of all calls, and what their tables share. */
#ifndef SERVICES_DELIVERY_API_CALLS_H
#define SERVICES_DELIVERY_API_CALLS_H

#include "services/delivery/api/api.h"
#include "services/delivery/mls/mls_check.h"
#include "services/delivery/store/audit.h"
#include "services/delivery/store/role_store.h"

static inline struct delivery *call_delivery(const struct call_run *run)
{
    return http_service(run->request);
}

/* clang-format off */
/* A field with a cipher suite's number, shown as its registered name. */
#define FIELD_SUITE FIELD_NAMED, .name_of = mls_suite_name
#define SUITE_AT(name_, column) { name_, FIELD_SUITE, .at = (column) }
/* The caller did `action` in a conversation (a word) to an account (a word). */
#define AUDIT(action, convo, target)                                                               \
    STEP_ROWS(1, audit_put, "@random_id @caller '" action "' " convo " " target " @now")
/* The id of a message in a list whose column 0 has the seq: the id that its sender gave, in the column
 * `given` (0: there is none), or one that is made of the seq. */
#define MESSAGE_ID(given) { "id", FIELD_TEXT, .put = call_put_message_id, .number = (given) }
/* The role that the caller needs in the conversation of the first parameter. */
#define IN_CONVO(role_) .role_of = &role_in_convo, .role = (role_)
/* clang-format on */

#define REFUSE_NO_CONVO                                                                            \
    REFUSE(404, "ConvoNotFound", "There is no conversation with this id; check it.")
#define REFUSE_STRANGER REFUSE(403, "NotMember", "You are not a member of this conversation.")

/* Every call but the streams: method, name, table, largest body. An ACT goes to its conversation; a
 * CALL needs none. */
/* clang-format off */
#define DELIVERY_CALLS(ACT, CALL)                                                                  \
    ACT(POST, "createConvo", create_convo, API_COMMIT)                                             \
    ACT(POST, "addMembers", add_members, API_COMMIT)                                               \
    ACT(POST, "removeMember", remove_member, API_COMMIT)                                           \
    ACT(POST, "leaveConvo", leave_convo, API_COMMIT)                                               \
    ACT(POST, "submitCommit", submit_commit, API_COMMIT)                                           \
    ACT(POST, "processExternalCommit", process_external_commit, API_COMMIT)                        \
    ACT(POST, "updateGroupInfo", update_group_info, API_COMMIT)                                    \
    ACT(GET, "getConvo", get_convo, 0)                                                             \
    CALL(GET, "getConvos", get_convos, 0)                                                          \
    ACT(GET, "getEpoch", get_epoch, 0)                                                             \
    ACT(GET, "getGroupInfo", get_group_info, 0)                                                    \
    ACT(POST, "sendMessage", send_message, API_MESSAGE)                                            \
    ACT(POST, "sendProposal", send_proposal, API_COMMIT)                                           \
    ACT(POST, "updateCursor", update_cursor, API_SMALL)                                            \
    CALL(GET, "getMessages", get_messages, 0)                                                      \
    CALL(GET, "getCommits", get_commits, 0)                                                        \
    ACT(POST, "markUnread", mark_unread, API_SMALL)                                                \
    CALL(GET, "getUnread", get_unread, 0)                                                          \
    ACT(POST, "getSubscriptionTicket", get_subscription_ticket, API_SMALL)                         \
    CALL(POST, "publishKeyPackage", publish_key_package, 128 << 10)                                \
    CALL(POST, "publishKeyPackages", publish_key_packages, API_MESSAGE)                            \
    CALL(GET, "getKeyPackages", get_key_packages, 0)                                               \
    CALL(GET, "getKeyPackageStats", get_key_package_stats, 0)                                      \
    CALL(GET, "getKeyPackageStatus", get_key_package_status, 0)                                    \
    CALL(POST, "syncKeyPackages", sync_key_packages, 256 << 10)                                    \
    CALL(POST, "deleteKeyPackages", delete_key_packages, 256 << 10)                                \
    CALL(GET, "getWelcome", get_welcome, 0)                                                        \
    CALL(GET, "getPendingWelcomes", get_pending_welcomes, 0)                                       \
    CALL(POST, "confirmWelcome", confirm_welcome, API_SMALL)                                       \
    CALL(POST, "invalidateWelcome", invalidate_welcome, API_SMALL)                                 \
    CALL(POST, "reissueWelcome", reissue_welcome, API_SMALL)                                       \
    CALL(POST, "readdition", reissue_welcome, API_SMALL)                                           \
    CALL(POST, "rejoin", rejoin, 128 << 10)                                                        \
    ACT(POST, "groupInfoRefresh", group_info_refresh, API_SMALL)                                   \
    CALL(POST, "validateWelcome", validate_welcome, 6 << 20)                                       \
    CALL(POST, "registerDevice", register_device, API_COMMIT)                                      \
    CALL(GET, "listDevices", list_devices, 0)                                                      \
    CALL(POST, "deleteDevice", delete_device, API_SMALL)                                           \
    CALL(POST, "registerDeviceToken", register_device_token, API_SMALL)                            \
    CALL(POST, "unregisterDeviceToken", unregister_device_token, API_SMALL)                        \
    CALL(GET, "getPendingDeviceAdditions", get_pending_device_additions, 0)                        \
    CALL(POST, "claimPendingDeviceAddition", claim_pending_device_addition, API_SMALL)             \
    CALL(POST, "completePendingDeviceAddition", complete_pending_device_addition, API_SMALL)       \
    CALL(GET, "validateDeviceState", validate_device_state, 0)                                     \
    CALL(GET, "getExpectedConversations", get_expected_conversations, 0)                           \
    ACT(POST, "promoteAdmin", promote_admin, API_SMALL)                                            \
    ACT(POST, "demoteAdmin", demote_admin, API_SMALL)                                              \
    ACT(POST, "promoteModerator", promote_moderator, API_SMALL)                                    \
    ACT(POST, "demoteModerator", demote_moderator, API_SMALL)                                      \
    ACT(GET, "getPolicy", get_policy, 0)                                                           \
    ACT(POST, "updatePolicy", update_policy, API_SMALL)                                            \
    CALL(POST, "createInvite", create_invite, API_SMALL)                                           \
    CALL(GET, "listInvites", list_invites, 0)                                                      \
    CALL(POST, "revokeInvite", revoke_invite, API_SMALL)                                           \
    CALL(POST, "reportMember", report_member, API_MEDIUM)                                          \
    CALL(GET, "getReports", get_reports, 0)                                                        \
    CALL(POST, "resolveReport", resolve_report, API_SMALL)                                         \
    CALL(POST, "warnMember", warn_member, API_SMALL)                                               \
    CALL(GET, "listWarnings", list_warnings, 0)                                                    \
    CALL(GET, "getAdminStats", get_admin_stats, 0)                                                 \
    CALL(POST, "optIn", opt_in, API_SMALL)                                                         \
    CALL(POST, "optOut", opt_out, API_SMALL)                                                       \
    CALL(GET, "getOptInStatus", get_opt_in_status, 0)                                              \
    CALL(GET, "checkBlocks", check_blocks, 0)                                                      \
    CALL(GET, "getBlockStatus", get_block_status, 0)                                               \
    CALL(POST, "handleBlockChange", handle_block_change, API_SMALL)                                \
    CALL(POST, "sendChatRequest", send_chat_request, API_MEDIUM)                                   \
    CALL(POST, "acceptChatRequest", accept_chat_request, API_SMALL)                                \
    CALL(POST, "declineChatRequest", decline_chat_request, API_SMALL)                              \
    CALL(GET, "listChatRequests", list_chat_requests, 0)                                           \
    CALL(GET, "getRequestCount", get_request_count, 0)                                             \
    CALL(GET, "getDeliveryStatus", get_delivery_status, 0)                                         \
    ACT(POST, "confirmEpoch", confirm_epoch, API_SMALL)                                            \
    ACT(POST, "reportInvalidCommit", report_invalid_commit, API_SMALL)                             \
    ACT(POST, "resetGroup", reset_group, API_SMALL)                                                \
    CALL(GET, "getReceipts", get_receipts, 0)
/* clang-format on */

#define DECLARE_ACT(method, name, table, body_max) extern const struct api_call api_##table;
#define DECLARE_CALL(method, name, table, body_max) extern const struct call call_##table;
DELIVERY_CALLS(DECLARE_ACT, DECLARE_CALL)
/* Calls of operators; violations that an answer of theirs names: it counts all. */
enum { DELIVERY_ADMIN_ROUTES = 5, VERIFY_FOUND_MAX = 100 };
extern const struct http_route delivery_admin_routes[DELIVERY_ADMIN_ROUTES]; /* admin_api.c */
void api_subscribe_convo_events(struct http_request *request);
/* Tells the streams of convoId that this device of the caller waits to be added again. */
void call_tell_readdition(struct call_run *run, struct span device);
void call_put_message_id(
    struct json_writer *writer, const struct field *field, const struct field_source *source);

#endif
