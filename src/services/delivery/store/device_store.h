/* SPDX-License-Identifier: Apache-2.0 */
/* device_store.h: devices of accounts, and their wishes to be added to conversations, as statements.
 *
 * A member claims the wish of a device for a minute, adds the device by a commit, and completes it:
 *
 *   pending ──claim──▶ claimed ──complete──▶ completed
 *      ▲──60 s passed─────┘        pending ──the device joined by itself──▶ completed
 */
#ifndef SERVICES_DELIVERY_STORE_DEVICE_STORE_H
#define SERVICES_DELIVERY_STORE_DEVICE_STORE_H

#include "sql/sql.h"

enum { DEVICES_MAX = 20, DEVICE_CLAIM_MS = 60000, DEVICE_PACKAGES_MAX = 200 };
enum { ADDITION_PENDING = 0, ADDITION_CLAIMED = 1, ADDITION_COMPLETED = 2 };

/* Register, unless $1 has $6 other devices. The same key again changes the name; another key
 * changes nothing. */
extern const struct sql_statement device_put;
/* Columns: signature_key, mlsDid. */
extern const struct sql_statement device_get_key;
/* A new device asks to be added wherever its account is. Column: convo. */
extern const struct sql_statement device_put_additions;
/* Columns: device, name, mlsDid, signature_key, created_ms, free key packages. */
extern const struct sql_statement device_list;
/* Delete the device, then what belongs to it. */
extern const struct sql_statement device_delete;
extern const struct sql_statement device_delete_packages;
extern const struct sql_statement device_delete_additions;
extern const struct sql_statement device_delete_push_token;
/* Only of a registered device. */
extern const struct sql_statement device_put_push_token;
extern const struct sql_statement device_end_welcomes;
/* The conversations of $1 after $3, as its device $2 sees them. Columns: convo, name, epoch,
 * active_ms, joined_ms, members, additions that wait, Welcomes that wait, Welcomes that failed and
 * were the newest, is the device in the group. */
extern const struct sql_statement device_list_expected;
enum {
    EXPECTED_CONVO,
    EXPECTED_WAITING = 7,
    EXPECTED_FAILED = 8,
    EXPECTED_IS_IN = 9,
    EXPECTED_MAX = 1000,
};
/* Columns: free key packages, last resorts. */
extern const struct sql_statement device_count_packages;

/* $3 asks to be added again. Nothing changes if its DID is no member, or while a claim runs. */
extern const struct sql_statement addition_put;
/* Column: id, if the caller is a member. */
extern const struct sql_statement addition_find_request;
/* Columns: id, convo, did, device, mlsDid, device name, kind, is claimed, claimed_by, claim until,
 * why, created_ms. */
extern const struct sql_statement addition_list;
/* If caller and owner are members. Columns: did, device, convo, suite, state. */
extern const struct sql_statement addition_find;
extern const struct sql_statement addition_claim;
/* Give the claim back if it led to no package: it would only keep others away. */
extern const struct sql_statement addition_unclaim;
extern const struct sql_statement addition_complete;

/* A rejoin brings a package: count it, find the member and the suite of its conversation, wish for
 * it, end Welcomes for older packages, find a Welcome that answers it (column: created_ms). */
extern const struct sql_statement rejoin_forget_old;
extern const struct sql_statement rejoin_put;
extern const struct sql_statement rejoin_find_member;
extern const struct sql_statement rejoin_find_suite;
extern const struct sql_statement rejoin_put_wish;
extern const struct sql_statement rejoin_end_others;
extern const struct sql_statement rejoin_find_welcome;

#endif
