/* SPDX-License-Identifier: Apache-2.0 */
/* import_tables.c: the known tables of a Catbird server. The import names an unknown table and does
 * not read it. */
#include "services/delivery/import/import_run.h"

static const struct source_column conversations[] = {
    [CONVO_ID] = { "id", SOURCE_TEXT, true },
    [CONVO_CREATOR] = { "creator_did", SOURCE_TEXT, false },
    [CONVO_EPOCH] = { "current_epoch", SOURCE_INT, true },
    [CONVO_NAME] = { "name", SOURCE_TEXT, false },
    [CONVO_TEXT] = { "description", SOURCE_TEXT, false },
    [CONVO_SUITE] = { "cipher_suite", SOURCE_TEXT, false },
    [CONVO_INFO] = { "group_info", SOURCE_BYTES, false },
    [CONVO_IS_REMOTE] = { "is_remote", SOURCE_FLAG, false },
    [CONVO_CREATED] = { "created_at", SOURCE_TIME, false },
    [CONVO_UPDATED] = { "updated_at", SOURCE_TIME, false },
};
static const struct source_column policies[] = {
    [OF_CONVO] = { "convo_id", SOURCE_TEXT, true },
    [RULE_MEMBERS_MAX] = { "max_members", SOURCE_INT, false },
    [RULE_EXTERNAL] = { "allow_external_commits", SOURCE_FLAG, false },
    [RULE_INVITE] = { "require_invite_for_join", SOURCE_FLAG, false },
    [RULE_REJOIN_DAYS] = { "rejoin_window_days", SOURCE_INT, false },
};
static const struct source_column members[] = {
    [OF_CONVO] = { "convo_id", SOURCE_TEXT, true },
    [MEMBER_DID] = { "member_did", SOURCE_TEXT, true },
    [MEMBER_USER] = { "user_did", SOURCE_TEXT, false },
    [MEMBER_JOINED] = { "joined_at", SOURCE_TIME, false },
    [MEMBER_LEFT] = { "left_at", SOURCE_TIME, true },
    [MEMBER_IS_ADMIN] = { "is_admin", SOURCE_FLAG, false },
    [MEMBER_IS_MODERATOR] = { "is_moderator", SOURCE_FLAG, false },
    [MEMBER_UNREAD] = { "unread_count", SOURCE_INT, false },
    [MEMBER_READ] = { "last_read_at", SOURCE_TIME, false },
};
static const struct source_column cursors[] = {
    [OF_CONVO] = { "convo_id", SOURCE_TEXT, true },
    [CURSOR_USER] = { "user_did", SOURCE_TEXT, true },
    [CURSOR_SEEN] = { "last_seen_cursor", SOURCE_TEXT, true },
};
static const struct source_column messages[] = {
    [OF_CONVO] = { "convo_id", SOURCE_TEXT, true },
    [MESSAGE_ID] = { "id", SOURCE_TEXT, true },
    [MESSAGE_SENDER] = { "sender_did", SOURCE_TEXT, false },
    [MESSAGE_TYPE] = { "message_type", SOURCE_TEXT, false },
    [MESSAGE_EPOCH] = { "epoch", SOURCE_INT, true },
    [MESSAGE_SEQ] = { "seq", SOURCE_INT, true },
    [MESSAGE_BYTES] = { "ciphertext", SOURCE_BYTES, true },
    [MESSAGE_GIVEN_ID] = { "msg_id", SOURCE_TEXT, false },
    [MESSAGE_CREATED] = { "created_at", SOURCE_TIME, false },
    [MESSAGE_BUCKET] = { "received_bucket_ts", SOURCE_INT, false },
};
static const struct source_column welcomes[] = {
    [OF_CONVO] = { "convo_id", SOURCE_TEXT, true },
    [TO_WHOM] = { "recipient_did", SOURCE_TEXT, true },
    [TO_BYTES] = { "welcome_data", SOURCE_BYTES, true },
    [TO_REF] = { "key_package_hash", SOURCE_HEX, false },
    [TO_IS_CONSUMED] = { "consumed", SOURCE_FLAG, true },
    [TO_WHY] = { "error_reason", SOURCE_TEXT, false },
    [TO_CREATED] = { "created_at", SOURCE_TIME, false },
};
static const struct source_column packages[] = {
    [PACKAGE_OWNER] = { "owner_did", SOURCE_TEXT, true },
    [PACKAGE_DEVICE] = { "device_id", SOURCE_TEXT, false },
    [PACKAGE_BYTES] = { "key_package", SOURCE_BYTES, true },
    [PACKAGE_EXPIRES] = { "expires_at", SOURCE_TIME, false },
    [PACKAGE_USED] = { "consumed_at", SOURCE_TIME, true },
    [PACKAGE_CREATED] = { "created_at", SOURCE_TIME, false },
};
/* This table's shape is a guess. If it is missing, devices register again. */
static const struct source_column devices[] = {
    [DEVICE_USER] = { "user_did", SOURCE_TEXT, false },
    [DEVICE_ID] = { "device_id", SOURCE_TEXT, false },
    [DEVICE_NAME] = { "device_name", SOURCE_TEXT, false },
    [DEVICE_KEY] = { "signature_public_key", SOURCE_HEX, false },
    [DEVICE_CREATED] = { "registered_at", SOURCE_TIME, false },
};

#define COLUMNS(list) .columns = (list), .column_count = sizeof(list) / sizeof((list)[0])

const struct source_table import_tables[CATBIRD_TABLES] = {
    [CATBIRD_CONVERSATIONS] = { "conversations", COLUMNS(conversations),
        .ignored = " idempotency_key group_info_epoch group_info_updated_at sequencer_ds ",
        .is_needed = true },
    [CATBIRD_POLICIES] = { "conversation_policy", COLUMNS(policies),
        .ignored = " created_at updated_at " },
    [CATBIRD_MEMBERS] = { "members", COLUMNS(members),
        .ignored = " device_id device_name leaf_index needs_rejoin rejoin_requested_at"
                   " rejoin_key_package_hash promoted_at promoted_by ",
        .is_needed = true },
    [CATBIRD_CURSORS] = { "cursors", COLUMNS(cursors), .ignored = " updated_at " },
    [CATBIRD_MESSAGES] = { "messages", COLUMNS(messages),
        .ignored = " padded_size expires_at idempotency_key ", .is_needed = true },
    [CATBIRD_WELCOMES] = { "welcome_messages", COLUMNS(welcomes), .ignored = " id consumed_at " },
    [CATBIRD_PACKAGES] = { "key_packages", COLUMNS(packages),
        .ignored = " id credential_did cipher_suite key_package_hash consumed_for_convo_id"
                   " reserved_at reserved_by_convo " },
    [CATBIRD_DEVICES] = { "devices", COLUMNS(devices),
        .ignored = " id credential_did last_seen_at " },
};
