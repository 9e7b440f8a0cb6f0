/* SPDX-License-Identifier: Apache-2.0 */
/* log_store.h: statements that read the log of a conversation for a caller. */
#ifndef SERVICES_DELIVERY_STORE_LOG_STORE_H
#define SERVICES_DELIVERY_STORE_LOG_STORE_H

#include "sql/sql.h"

enum { COMMITS_MAX = 1000 };

/* A page of the log of $1 for $2, after seq $3, from epoch $8 on, of kinds up to $4 or of the one
 * kind $4: $5 rows. It has what was said while the caller was in, with the commit that removed it,
 * and no commit that is revoked or of a former group. No call is more frequent, so it is one
 * statement: the first row describes the conversation and the caller (enum head_column), the others
 * are of the log (enum log_column). A row has its bytes if they are at most $6, or its seq is $7. */
extern const struct sql_statement log_list;
extern const struct sql_statement log_list_rare;
enum head_column { HEAD_EPOCH, HEAD_SEQ, HEAD_KEPT_FROM, HEAD_JOIN_SEQ, HEAD_IS_IN = 8 };
enum log_column {
    LOG_SEQ,
    LOG_KIND,
    LOG_BASE_EPOCH,
    LOG_EPOCH,
    LOG_NAME,
    LOG_OP,
    LOG_SENDER,
    LOG_BYTES,
    LOG_CREATED_MS,
};
/* Columns: epoch, seq, kept_from, group_info_epoch, epoch of the oldest commit that is kept. */
extern const struct sql_statement log_find_convo;
/* Of $2 as far as seq $3 is concerned. Columns: since when it was in, is it in now, when it left. */
extern const struct sql_statement log_find_member;
/* Commits that led to epochs from $3 + 1 to $4. Columns: seq, kind, base_epoch, epoch, id that the
 * sender gave, bytes, created_ms, sender, rows before the cut to $6 bytes. */
extern const struct sql_statement log_list_commits;

/* How far the message that $3 sent as $2 came. Columns: seq, epoch, created_ms, members at that
 * time without the sender, those of them that have read it. */
extern const struct sql_statement log_find_status;

/* Count the unread messages of $1: those of others behind its cursor, or 1 for a conversation that it
 * has marked. Columns: convo, count; of one conversation of $2: count. */
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
