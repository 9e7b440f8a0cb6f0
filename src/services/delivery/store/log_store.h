/* SPDX-License-Identifier: Apache-2.0 */
/* log_store.h: statements that read the log of a conversation for a caller. */
#ifndef SERVICES_DELIVERY_STORE_LOG_STORE_H
#define SERVICES_DELIVERY_STORE_LOG_STORE_H

#include "sql/sql.h"

/* How far the message that $3 sent as $2 came. Columns: seq, epoch, created_ms, members at that
 * time without the sender, those of them that have read it. */
extern const struct sql_statement log_find_status;

/* What $1 has not read: messages of others behind its cursor, or 1 for a conversation that it has
 * marked. Columns: convo, count; of one conversation of $2: count. */
extern const struct sql_statement log_count_unread;
extern const struct sql_statement log_count_unread_in;

/* Receipts of a conversation. Columns: seq, chain, kept_chain, kept_from; 1, if $2 is a member; seq
 * of the newest receipt that is kept; the receipt before seq $2; and from $2 on: seq, kind,
 * base_epoch, sha256, receipt. */
extern const struct sql_statement receipt_find_head;
extern const struct sql_statement receipt_find_member;
extern const struct sql_statement receipt_find_newest;
extern const struct sql_statement receipt_find_previous;
extern const struct sql_statement receipt_list;

#endif
