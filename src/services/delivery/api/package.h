/* SPDX-License-Identifier: Apache-2.0 */
/* package.h: key packages on their way into the pool. A call that brings packages copies them into a
 * batch, which the blocking pool checks (signatures take long); the unit of the call stores those
 * that are good. Calls that bring several say of each what became of it.
 *
 *   create ──▶ read each ──▶ check (on the pool) ──▶ taken ──▶ add_steps ──▶ stored
 *
 * Until it is taken the batch belongs to the pool; from then on it lives as long as the request. */
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
    struct span device; /* into the package or the rule; "" if it has none */
    unsigned char ref[MLS_REFERENCE_SIZE_MAX];
    size_t ref_size;
    int64_t not_after_s;
    uint32_t step; /* of its unit */
    /* its error; label NULL: none */
    const char *label;
    const char *why;
    unsigned status;
};

struct package_rule {
    struct span did;           /* the owner they must have */
    struct span device;        /* that the request named; "" for none */
    struct span signature_key; /* they must carry it; absent: any */
    enum delivery_mode mode;
    struct mls_lifetime_rule lifetime;
};

struct package_batch {
    struct call_run *run;
    struct package_rule rule;
    char *text, *text_end; /* where the next copied bytes go */
    uint32_t count;
    struct package_upload list[];
};

/* Of the caller's packages, now; `device` may be "". */
struct package_rule package_rule_of(
    const struct delivery *delivery, struct span did, struct span device);
/* The parameters of one upload, first in a table, and the upload that they make. A mistake fails
 * `expect`. */
enum { UPLOAD_BYTES, UPLOAD_SUITE, UPLOAD_EXPIRES, UPLOAD_LAST_RESORT, UPLOAD_PARAMS };
/* clang-format off */
#define PARAMS_OF_UPLOAD                                                                           \
    { "keyPackage", PARAM_BYTES, PARAM_REQUIRED, .max = KEY_PACKAGE_SIZE_MAX },                    \
    PARAM_MAY_TEXT("cipherSuite", 1, 63), PARAM_MAY_TEXT("expires", 20, 40),                       \
    { "lastResort", PARAM_BOOL, .fallback = false }
/* clang-format on */
void package_read(struct json_expect *expect, const struct param_value *values,
    struct package_upload *ret_upload);
/* Decide whether it may be stored; sets label and why if not. */
void package_check(struct package_upload *upload, const struct package_rule *rule);

/* Create a batch of the caller's packages; rule and uploads are its own copies. NULL: 503 was
 * answered. */
struct package_batch *package_batch_create(
    struct call_run *run, uint32_t count, struct span device, struct span signature_key);
void package_batch_destroy(void *batch);
/* Copy an upload that was read. */
void package_batch_set(
    struct package_batch *batch, uint32_t index, const struct package_upload *upload);
/* Read an array of the body. A package that cannot be read is its own error, not the request's. */
void package_batch_read(struct package_batch *batch, const struct json *list);
/* Check it on the pool; `then` begins with package_batch_take. Always false: the request is answered
 * or will be. */
bool package_batch_check(struct package_batch *batch, http_then_fn then);
struct package_batch *package_batch_take(
    struct http_request *request, const struct tr_event *event);
uint32_t package_batch_count_good(const struct package_batch *batch);
/* Steps of a unit that store the good ones, in a unit of their owner's order, and what became of
 * them. `is_registered`: only if the device is registered with the package's signature key. */
void package_batch_add(struct package_batch *batch, struct sql_unit *unit, bool is_registered);
void package_batch_stored(struct package_batch *batch, const struct sql_unit *unit);
/* Write {index, error, message} of the others as the array `errors`; a FIELD_PUT. */
void package_put_errors(
    struct json_writer *writer, const struct field *field, const struct field_source *source);
#define PACKAGE_ERRORS                                                                             \
    {                                                                                              \
        "errors", FIELD_PUT,                                                                       \
            .put = package_put_errors,                                                             \
            .fields = FIELDS({ "errors", FIELD_LIST,                                               \
                .fields = FIELDS({ "index", FIELD_INT, .at = 0 },                                  \
                    { "error", FIELD_TEXT, .at = 0 }, { "message", FIELD_TEXT, .at = 0 }) })       \
    }

/* Answer with the error of an upload that has a label. Always false. */
bool package_refuse_upload(struct call_run *run, const struct package_upload *upload);

#endif
