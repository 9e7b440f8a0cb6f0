/* SPDX-License-Identifier: Apache-2.0 */
/* calls.h: the calls that need no conversation; routes.c lists them. */
#ifndef SERVICES_DELIVERY_API_CALLS_H
#define SERVICES_DELIVERY_API_CALLS_H

#include "services/common/call.h"
#include "services/delivery/delivery.h"
#include "services/delivery/mls/mls_check.h"
#include "services/delivery/store/audit.h"
#include "services/delivery/store/role_store.h"

static inline struct delivery *call_delivery(const struct call_run *run)
{
    return (struct delivery *)run->service;
}

/* A field with a cipher suite's number, shown as its registered name. */
#define FIELD_SUITE FIELD_NAMED, .name_of = mls_suite_name
/* clang-format off */
/* The caller did `action` in a conversation (an argument) to an account (an argument). */
#define AUDIT(action, convo, target)                                                               \
    { STEP(audit_put, 1, ARG_RANDOM_ID, ARG_CALLER, ARG_TEXT(action), convo, target, ARG_NOW_MS(0)) }
/* clang-format on */

/* consent_api.c */
extern const struct call call_opt_in;
extern const struct call call_opt_out;
extern const struct call call_get_opt_in_status;
extern const struct call call_check_blocks;
extern const struct call call_get_block_status;
extern const struct call call_handle_block_change;
/* invite_api.c */
extern const struct call call_create_invite;
extern const struct call call_list_invites;
extern const struct call call_revoke_invite;
/* report_api.c */
extern const struct call call_report_member;
extern const struct call call_get_reports;
extern const struct call call_resolve_report;
extern const struct call call_warn_member;
extern const struct call call_list_warnings;
extern const struct call call_get_admin_stats;
/* request_api.c */
extern const struct call call_send_chat_request;
extern const struct call call_accept_chat_request;
extern const struct call call_decline_chat_request;
extern const struct call call_list_chat_requests;
extern const struct call call_get_request_count;
/* status_api.c */
extern const struct call call_get_delivery_status;
/* unread_api.c */
extern const struct call call_get_unread;
/* package_api.c */
extern const struct call call_publish_key_package;
extern const struct call call_publish_key_packages;
extern const struct call call_get_key_packages;
/* package_stock_api.c */
extern const struct call call_get_key_package_stats;
extern const struct call call_get_key_package_status;
extern const struct call call_sync_key_packages;
extern const struct call call_delete_key_packages;
/* welcome_api.c */
extern const struct call call_get_welcome;
extern const struct call call_get_pending_welcomes;
extern const struct call call_confirm_welcome;
extern const struct call call_invalidate_welcome;
extern const struct call call_reissue_welcome;
extern const struct call call_validate_welcome;
/* rejoin_api.c */
extern const struct call call_rejoin;
/* device_api.c */
extern const struct call call_register_device;
extern const struct call call_list_devices;
extern const struct call call_delete_device;
extern const struct call call_validate_device_state;
extern const struct call call_get_expected_conversations;
/* addition_api.c */
extern const struct call call_get_pending_device_additions;
extern const struct call call_claim_pending_device_addition;
extern const struct call call_complete_pending_device_addition;
/* convo_list_api.c */
extern const struct call call_get_convos;
/* history_api.c */
extern const struct call call_get_messages;
extern const struct call call_get_commits;
/* receipt_api.c */
extern const struct call call_get_receipts;
/* push_api.c */
extern const struct call call_register_device_token;
extern const struct call call_unregister_device_token;

#endif
