/* SPDX-License-Identifier: Apache-2.0 */
/* package_store.h: the pool of key packages as statements. A claim is a lease: the package is the
 * claimer's for ten minutes. A commit whose Welcome names the package consumes it; otherwise it is
 * free again when the lease has passed. A last resort serves a device without a free package, and
 * is never used up. */
#ifndef SERVICES_DELIVERY_STORE_PACKAGE_STORE_H
#define SERVICES_DELIVERY_STORE_PACKAGE_STORE_H

#include "sql/sql.h"

enum {
    PACKAGES_FREE_MAX = 100,   /* of a DID, that are not leased */
    PACKAGES_DEVICE_MAX = 200, /* of a device, that are not consumed */
    PACKAGE_THRESHOLD = 20,    /* the owner should publish more when fewer are free */
    PACKAGE_LEASES_MAX = 20,   /* of one DID's packages that one claimer may hold at a time */
    PACKAGE_DEVICES_MAX = 32,  /* devices of a DID that one claim serves */
    PACKAGE_LOW_CONVOS = 1000, /* conversations that hear of a low stock */
};

/* All claims run on one writer, in one order: two that meet at one DID never choose the same row,
 * and two that name the same DIDs in another order cannot wait for each other. */
enum { PACKAGE_CLAIMS_KEY = 0x6b70 };

/* Store one. The limits are conditions of the INSERT, so that two uploads at once cannot pass them
 * together. */
extern const struct sql_statement package_put;
/* Columns: is it there, is the device registered with another key. */
extern const struct sql_statement package_why_not;
/* A new last resort replaces the old one, which a claimer can still use until $5. */
extern const struct sql_statement package_retire_last_resorts;

/* One package of each device of $1: the oldest free one, or the newest last resort. Columns: ref,
 * device (NULL: none), bytes, suite, is_last_resort. */
extern const struct sql_statement package_claim;
extern const struct sql_statement package_peek;
/* Lease the package of a device for the claimed addition $7. Columns: ref, bytes, is_last_resort,
 * mlsDid. */
extern const struct sql_statement package_lease;
/* The conversations of $1 if fewer than $3 packages are free. Columns: convo, free. */
extern const struct sql_statement package_find_low;
/* Lease the packages that a Welcome names until its commit is stored. Columns: ref, did, device,
 * is_last_resort, lease_until_s. */
extern const struct sql_statement package_reserve;
extern const struct sql_statement package_find;

/* Of $1 and its device $2 ("": all), at $3. Columns: suite, free; consumed in a day, in a week;
 * leased; last resorts, their uses. */
extern const struct sql_statement package_count_free;
extern const struct sql_statement package_count_consumed;
extern const struct sql_statement package_count_leased;
extern const struct sql_statement package_count_last_resorts;
/* Columns: ref, device, suite, not_after_s, is_last_resort, uses, created_s, consumed_s, status: 0
 * consumed, 1 expired, 2 leased, 3 available. Now is the last value. */
extern const struct sql_statement package_list;
extern const struct sql_statement package_get;

extern const struct sql_statement package_delete;
extern const struct sql_statement package_delete_of_device;
/* Column: ref. */
extern const struct sql_statement package_list_refs;

#endif
