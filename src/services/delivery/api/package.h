/* SPDX-License-Identifier: Apache-2.0 */
/* package.h: key packages on their way into the pool. A package is checked on the blocking pool and
 * stored by the unit of the call that brought it; calls that bring several say for each what became
 * of it. */
#ifndef SERVICES_DELIVERY_API_PACKAGE_H
#define SERVICES_DELIVERY_API_PACKAGE_H

#include "services/delivery/api/api.h"
#include "services/delivery/mls/mls_check.h"

enum {
    PACKAGES_FREE_MAX = 100,   /* that nobody claimed, of a DID */
    PACKAGES_DEVICE_MAX = 200, /* not consumed, of a device */
    PACKAGES_UPLOAD_MAX = 100, /* in one publishKeyPackages */
    PACKAGE_THRESHOLD = 20,    /* fewer: the owner should bring more */
    PACKAGE_LEASES_MAX = 20,   /* of one DID's packages that one claimer may have at a time */
    PACKAGE_DEVICES_MAX = 32,  /* devices of a DID that one claim serves */
    PACKAGES_RETRY_S = 3600,   /* when to look again whether some were used */
    PACKAGE_SKEW_S = 3600,
    PACKAGE_SPAN_S_MAX = 90 * 86400 + 3600,
};

/* Claims run on one writer, in one order: two that meet at one DID never choose the same row, and
 * two that name the same DIDs in another order cannot wait for each other. */
enum { PACKAGE_CLAIMS_KEY = 0x6b70 };

struct package_upload {
    /* as it came */
    struct span bytes;
    struct span suite; /* its name; absent: whatever is inside */
    int64_t expires_s; /* 0: not said */
    bool is_last_resort;
    /* what it is */
    struct mls_key_package package;
    struct span device; /* into the package or the rule; "" if it has none */
    unsigned char ref[MLS_REFERENCE_SIZE_MAX];
    size_t ref_size;
    int64_t not_after_s;
    uint32_t step; /* where its unit has it */
    /* what became of it: label NULL is fine */
    const char *label;
    const char *why;
    unsigned status;
};

struct package_rule {
    struct span did;           /* whose they must be */
    struct span device;        /* that the request named; "" for none */
    struct span signature_key; /* they must carry it; absent: any */
    enum delivery_mode mode;
    struct mls_lifetime_rule lifetime;
};

/* Of the caller's packages, now; `device` may be "". */
struct package_rule package_rule_of(
    const struct delivery *delivery, struct span did, struct span device);

/* Read keyPackage, cipherSuite, expires and lastResort of an object of the body. */
void package_read(struct json_expect *expect, struct package_upload *ret_upload);
/* Decide whether it may be stored; sets label and why if not. Checks signatures: on the pool. */
void package_check(struct package_upload *upload, const struct package_rule *rule);

/* Steps that store it, in a unit with the key of its owner. `is_registered`: only if its device is
 * registered with its signature key. */
void package_add_steps(struct sql_unit *unit, struct package_upload *upload,
    const struct package_rule *rule, uint64_t lease_s, bool is_registered);
/* Of a unit that came back well: sets label and why if it was not stored. */
void package_stored(struct package_upload *upload, const struct sql_unit *unit);

/* Of one that has a label: the answer that says so. */
void package_respond_refused(struct http_request *request, const struct package_upload *upload);

/* One lease on a package of one device, in a unit of claims; `addition` must be claimed by the
 * claimer, and what it names is taken, unless it was used. Returns ref, bytes, is_last_resort. */
struct package_lease {
    struct span did, device, claimer, addition;
    int64_t suite;
    int64_t now_s;
    int64_t until_s;
    int64_t now_ms;
};
void package_add_lease(struct sql_unit *unit, const struct package_lease *lease);

#endif
