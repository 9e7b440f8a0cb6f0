/* SPDX-License-Identifier: Apache-2.0 */
/* import_tables.h: the known tables of a Catbird server. A row that the source gives has the
 * columns of its table in this order, and they are named by these constants. The first column of a
 * table is the one it is selected by. The import names an unknown table and does not read it. */
#ifndef SERVICES_DELIVERY_IMPORT_IMPORT_TABLES_H
#define SERVICES_DELIVERY_IMPORT_IMPORT_TABLES_H

#include <stdbool.h>

enum source_type {
    SOURCE_TEXT,
    SOURCE_INT,
    SOURCE_FLAG,  /* 0 or 1 */
    SOURCE_TIME,  /* timestamp, or its text: as milliseconds since 1970 */
    SOURCE_BYTES, /* bytea, nothing else */
    SOURCE_HEX,   /* bytea, or text: as text */
};

/* A column: its constant, name and type, and whether it is needed. The table cannot be read without
 * a needed one; another one that is missing is NULL. */
#define CATBIRD_CONVERSATION_COLUMNS(COLUMN)                                                       \
    COLUMN(CONVO_ID, "id", SOURCE_TEXT, true)                                                      \
    COLUMN(CONVO_CREATOR, "creator_did", SOURCE_TEXT, false)                                       \
    COLUMN(CONVO_EPOCH, "current_epoch", SOURCE_INT, true)                                         \
    COLUMN(CONVO_NAME, "name", SOURCE_TEXT, false)                                                 \
    COLUMN(CONVO_TEXT, "description", SOURCE_TEXT, false)                                          \
    COLUMN(CONVO_SUITE, "cipher_suite", SOURCE_TEXT, false)                                        \
    COLUMN(CONVO_INFO, "group_info", SOURCE_BYTES, false)                                          \
    COLUMN(CONVO_IS_REMOTE, "is_remote", SOURCE_FLAG, false)                                       \
    COLUMN(CONVO_CREATED, "created_at", SOURCE_TIME, false)                                        \
    COLUMN(CONVO_UPDATED, "updated_at", SOURCE_TIME, false)
#define CATBIRD_POLICY_COLUMNS(COLUMN)                                                             \
    COLUMN(RULE_CONVO, "convo_id", SOURCE_TEXT, true)                                              \
    COLUMN(RULE_MEMBERS_MAX, "max_members", SOURCE_INT, false)                                     \
    COLUMN(RULE_EXTERNAL, "allow_external_commits", SOURCE_FLAG, false)                            \
    COLUMN(RULE_INVITE, "require_invite_for_join", SOURCE_FLAG, false)                             \
    COLUMN(RULE_REJOIN_DAYS, "rejoin_window_days", SOURCE_INT, false)
#define CATBIRD_MEMBER_COLUMNS(COLUMN)                                                             \
    COLUMN(MEMBER_CONVO, "convo_id", SOURCE_TEXT, true)                                            \
    COLUMN(MEMBER_DID, "member_did", SOURCE_TEXT, true)                                            \
    COLUMN(MEMBER_USER, "user_did", SOURCE_TEXT, false)                                            \
    COLUMN(MEMBER_JOINED, "joined_at", SOURCE_TIME, false)                                         \
    COLUMN(MEMBER_LEFT, "left_at", SOURCE_TIME, true)                                              \
    COLUMN(MEMBER_IS_ADMIN, "is_admin", SOURCE_FLAG, false)                                        \
    COLUMN(MEMBER_IS_MODERATOR, "is_moderator", SOURCE_FLAG, false)                                \
    COLUMN(MEMBER_UNREAD, "unread_count", SOURCE_INT, false)                                       \
    COLUMN(MEMBER_READ, "last_read_at", SOURCE_TIME, false)
#define CATBIRD_CURSOR_COLUMNS(COLUMN)                                                             \
    COLUMN(CURSOR_CONVO, "convo_id", SOURCE_TEXT, true)                                            \
    COLUMN(CURSOR_USER, "user_did", SOURCE_TEXT, true)                                             \
    COLUMN(CURSOR_SEEN, "last_seen_cursor", SOURCE_TEXT, true)
#define CATBIRD_MESSAGE_COLUMNS(COLUMN)                                                            \
    COLUMN(MESSAGE_CONVO, "convo_id", SOURCE_TEXT, true)                                           \
    COLUMN(MESSAGE_ID, "id", SOURCE_TEXT, true)                                                    \
    COLUMN(MESSAGE_SENDER, "sender_did", SOURCE_TEXT, false)                                       \
    COLUMN(MESSAGE_TYPE, "message_type", SOURCE_TEXT, false)                                       \
    COLUMN(MESSAGE_EPOCH, "epoch", SOURCE_INT, true)                                               \
    COLUMN(MESSAGE_SEQ, "seq", SOURCE_INT, true)                                                   \
    COLUMN(MESSAGE_BYTES, "ciphertext", SOURCE_BYTES, true)                                        \
    COLUMN(MESSAGE_GIVEN_ID, "msg_id", SOURCE_TEXT, false)                                         \
    COLUMN(MESSAGE_CREATED, "created_at", SOURCE_TIME, false)                                      \
    COLUMN(MESSAGE_BUCKET, "received_bucket_ts", SOURCE_INT, false)
#define CATBIRD_WELCOME_COLUMNS(COLUMN)                                                            \
    COLUMN(TO_CONVO, "convo_id", SOURCE_TEXT, true)                                                \
    COLUMN(TO_WHOM, "recipient_did", SOURCE_TEXT, true)                                            \
    COLUMN(TO_BYTES, "welcome_data", SOURCE_BYTES, true)                                           \
    COLUMN(TO_REF, "key_package_hash", SOURCE_HEX, false)                                          \
    COLUMN(TO_IS_CONSUMED, "consumed", SOURCE_FLAG, true)                                          \
    COLUMN(TO_WHY, "error_reason", SOURCE_TEXT, false)                                             \
    COLUMN(TO_CREATED, "created_at", SOURCE_TIME, false)
#define CATBIRD_PACKAGE_COLUMNS(COLUMN)                                                            \
    COLUMN(PACKAGE_OWNER, "owner_did", SOURCE_TEXT, true)                                          \
    COLUMN(PACKAGE_DEVICE, "device_id", SOURCE_TEXT, false)                                        \
    COLUMN(PACKAGE_BYTES, "key_package", SOURCE_BYTES, true)                                       \
    COLUMN(PACKAGE_EXPIRES, "expires_at", SOURCE_TIME, false)                                      \
    COLUMN(PACKAGE_USED, "consumed_at", SOURCE_TIME, true)                                         \
    COLUMN(PACKAGE_CREATED, "created_at", SOURCE_TIME, false)
/* This table's shape is a guess. If it is missing, devices register again. */
#define CATBIRD_DEVICE_COLUMNS(COLUMN)                                                             \
    COLUMN(DEVICE_USER, "user_did", SOURCE_TEXT, false)                                            \
    COLUMN(DEVICE_ID, "device_id", SOURCE_TEXT, false)                                             \
    COLUMN(DEVICE_NAME, "device_name", SOURCE_TEXT, false)                                         \
    COLUMN(DEVICE_KEY, "signature_public_key", SOURCE_HEX, false)                                  \
    COLUMN(DEVICE_CREATED, "registered_at", SOURCE_TIME, false)

/* A table: its constant, name and columns, whether it is needed, and its known columns that are
 * not, each between spaces. The tables from the policies to the Welcomes belong to conversations.
 */
#define IMPORT_TABLES(TABLE)                                                                       \
    TABLE(CATBIRD_CONVERSATIONS, "conversations", CATBIRD_CONVERSATION_COLUMNS, true,              \
        " idempotency_key group_info_epoch group_info_updated_at sequencer_ds ")                   \
    TABLE(CATBIRD_POLICIES, "conversation_policy", CATBIRD_POLICY_COLUMNS, false,                  \
        " created_at updated_at ")                                                                 \
    TABLE(CATBIRD_MEMBERS, "members", CATBIRD_MEMBER_COLUMNS, true,                                \
        " device_id device_name leaf_index needs_rejoin rejoin_requested_at"                       \
        " rejoin_key_package_hash promoted_at promoted_by ")                                       \
    TABLE(CATBIRD_CURSORS, "cursors", CATBIRD_CURSOR_COLUMNS, false, " updated_at ")               \
    TABLE(CATBIRD_MESSAGES, "messages", CATBIRD_MESSAGE_COLUMNS, true,                             \
        " padded_size expires_at idempotency_key ")                                                \
    TABLE(                                                                                         \
        CATBIRD_WELCOMES, "welcome_messages", CATBIRD_WELCOME_COLUMNS, false, " id consumed_at ")  \
    TABLE(CATBIRD_PACKAGES, "key_packages", CATBIRD_PACKAGE_COLUMNS, false,                        \
        " id credential_did cipher_suite key_package_hash consumed_for_convo_id"                   \
        " reserved_at reserved_by_convo ")                                                         \
    TABLE(CATBIRD_DEVICES, "devices", CATBIRD_DEVICE_COLUMNS, false,                               \
        " id credential_did last_seen_at ")

/* clang-format off */
#define COLUMN_CONSTANT(constant, ...) constant,
#define COLUMN_CONSTANTS(constant, name, columns, ...) enum { columns(COLUMN_CONSTANT) };
#define TABLE_CONSTANT(constant, ...) constant,
IMPORT_TABLES(COLUMN_CONSTANTS)
enum import_table { IMPORT_TABLES(TABLE_CONSTANT) CATBIRD_TABLES, IMPORT_NO_TABLE = CATBIRD_TABLES };
/* clang-format on */

enum { IMPORT_COLUMNS_MAX = 10 };
struct source_table {
    const char *name;
    struct source_column {
        const char *name; /* NULL ends the columns */
        enum source_type type;
        bool is_needed;
    } columns[IMPORT_COLUMNS_MAX + 1];
    bool is_needed;
    const char *ignored;
};
extern const struct source_table import_tables[CATBIRD_TABLES];

#endif
