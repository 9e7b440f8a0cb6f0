/* SPDX-License-Identifier: Apache-2.0 */
/* package.h: uploads of key packages. A call that brings packages copies them into a batch, which the blocking pool checks (signatures take long); the unit of the call stores those
 * that are good. Calls that bring several say of each what became of it.
 *
 *   read each ──▶ check (on the pool) ──▶ ready ──▶ add ──▶ stored
 *
 * Until it is ready the batch belongs to the pool; from then on it is run->data. */
#ifndef SERVICES_DELIVERY_API_PACKAGE_H
#define SERVICES_DELIVERY_API_PACKAGE_H

#include "services/delivery/api/calls.h"
#include "services/delivery/mls/mls_check.h"
#include "services/delivery/store/package_store.h"

enum {
    PACKAGES_UPLOAD_MAX = 100, /* in one publishKeyPackages */
    PACKAGES_RETRY_S = 3600,   /* of an owner that has as many as it may */
};

struct package_upload {
    /* as the request has it */
    struct span bytes;
    struct span suite; /* its name; absent: whatever is inside */
    int64_t expires_s; /* 0: not said */
    bool is_last_resort;
    /* as the check found it */
    struct mls_key_package package;
    struct span device; /* into the package or the batch; "" if it has none */
    unsigned char ref[MLS_REFERENCE_SIZE_MAX];
    size_t ref_size;
    int64_t not_after_s;
    uint32_t step;          /* of its unit */
    struct refusal refusal; /* its error; status 0: none */
};

struct package_batch {
    struct call_run *run;
    bool (*ready)(struct call_run *run);
    bool is_list;
    struct span did;           /* the owner they must have */
    struct span device;        /* that the request named; "" for none */
    struct span signature_key; /* of the device that is registered with them; absent: none is */
    enum delivery_mode mode;
    struct mls_lifetime_rule lifetime;
    char *text, *text_end; /* where the next copied bytes go */
    uint32_t count;
    struct package_upload list[];
};

/* The parameters of one upload, first in a table. */
enum { UPLOAD_BYTES, UPLOAD_SUITE, UPLOAD_EXPIRES, UPLOAD_LAST_RESORT, UPLOAD_PARAMS };
/* clang-format off */
#define PARAMS_OF_UPLOAD                                                                           \
    { "keyPackage", PARAM_BYTES, PARAM_REQUIRED, .max = KEY_PACKAGE_SIZE_MAX },                    \
    PARAM_MAY_TEXT("cipherSuite", 1, 63), PARAM_MAY_TEXT("expires", 20, 40),                       \
    { "lastResort", PARAM_BOOL, .fallback = false }
/* clang-format on */

/* Check the packages of a call on the pool: those of the list keyPackages, or the one whose parameters
 * are first in its table. Then refuse the only one if it is bad; else the call goes on, if `ready` is
 * NULL or returns true. To be returned from `check`: a list item that cannot be read is its own error,
 * not the request's. */
bool package_check_all(struct call_run *run, struct span device, struct span signature_key,
    bool (*ready)(struct call_run *run));
uint32_t package_batch_count_good(const struct package_batch *batch);
/* A step's `add`: store the good ones, in a unit of their owner's order; with a signature key only
 * those whose device is registered with it. */
void package_add(struct call_run *run, struct sql_unit *unit);
/* In `decide`: note what became of them. Refuses if the only one was not stored. */
bool package_all_stored(struct call_run *run);
/* Write {index, error, message} of the others as the array `errors`; a FIELD_PUT. */
void package_put_errors(
    struct json_writer *writer, const struct field *field, const struct field_source *source);
#define PACKAGE_ERRORS                                                                             \
    LIST("errors", .put = package_put_errors,                                                      \
        .fields = FIELDS(INT_AT("index", 0), TEXT_AT("error", 0), TEXT_AT("message", 0)))

#endif
