/* SPDX-License-Identifier: Apache-2.0 */
/* owner.h: what the calls about a caller's own things (key packages, welcomes, devices) share. */
#ifndef SERVICES_DELIVERY_OWNER_H
#define SERVICES_DELIVERY_OWNER_H

#include "json/json_write.h"
#include "services/delivery/api.h"
#include "services/delivery/errand.h"

enum { DEVICE_SIZE_MAX = 64, DID_SIZE_MIN = 8, DID_SIZE_MAX = 255, WHY_SIZE_MAX = 256 };

/* What a caller owns changes in one order: this is the key of its units. */
uint64_t owner_key(struct tr_span did);
/* A unit that changes something: it begins with the caller's token. */
struct sql_unit *owner_unit(const struct http_request *request, uint64_t key);
int64_t owner_now_s(const struct delivery *delivery);

/* The body as JSON. False: it has been answered. */
bool owner_begin(struct http_request *request, struct api_body *ret_body);
/* After the last member was read: false, and 400 was answered, if anything was wrong. */
bool owner_is_good(struct http_request *request, struct api_body *body);
void owner_end(struct api_body *body);

/* 1 to 64 letters, digits and - . _ : so that it can stand behind the # of an identity. */
bool owner_is_device(struct tr_span device);
/* A device the body names; "" if it names none and none is needed. */
struct tr_span owner_may_device(struct api_body *body);
struct tr_span owner_need_device(struct api_body *body);
/* A parameter of the query: 1 there, 0 absent, -1 malformed or there twice and answered. What is
 * there twice must not count as absent. */
int owner_query(struct http_request *request, const char *name, struct tr_span *ret_value);
/* The same of the query. False: it has been answered. */
bool owner_query_device(struct http_request *request, struct tr_span *ret_device);
bool owner_query_convo(struct http_request *request, struct tr_span *ret_convo);
bool owner_query_number(
    struct http_request *request, const char *name, uint64_t max, uint64_t *value);

/* 200 with the JSON that was written; frees the buffer. */
void owner_respond(struct http_request *request, struct tr_buffer *answer);
/* Left out past the year 9999. */
void owner_put_time_s(struct json_writer *writer, const char *key, int64_t unix_s);
void owner_put_hex(struct json_writer *writer, const char *key, struct tr_span bytes);
/* A cipher suite by its registered name. */
void owner_put_suite(struct json_writer *writer, const char *key, int64_t suite);
/* "mlsDid": DID#device, or the DID alone. */
void owner_put_mls_did(struct json_writer *writer, struct tr_span did, struct tr_span device);

#endif
