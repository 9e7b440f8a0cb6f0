/* SPDX-License-Identifier: Apache-2.0 */
/* owner.h: what the calls about a caller's own things (key packages, welcomes, devices) share. */
#ifndef SERVICES_DELIVERY_API_API_QUERY_H
#define SERVICES_DELIVERY_API_API_QUERY_H

#include "json/json_write.h"
#include "services/delivery/api/api.h"
#include "services/delivery/api/param.h"
#include "services/delivery/store/db_query.h"

enum { OWNER_ID_SIZE = 32 };

/* What a caller owns changes in one order: this is the key of its units. */
uint64_t api_query_key(struct span did);
/* A unit that changes something: it begins with the caller's token. */
struct sql_unit *api_query_unit(const struct http_request *request, uint64_t key);
int64_t api_query_now_s(const struct delivery *delivery);

/* The body as JSON. False: it has been answered. */
bool api_query_begin(struct http_request *request, struct api_body *ret_body);
/* After the last member was read: false, and 400 was answered, if anything was wrong. */
bool api_query_is_good(struct http_request *request, struct api_body *body);
void api_query_end(struct api_body *body);

/* 1 to 64 letters, digits and - . _ : so that it can stand behind the # of an identity. */
bool api_query_is_device(struct span device);
/* A device the body names; "" if it names none and none is needed. */
struct span api_query_may_device(struct api_body *body);
struct span api_query_need_device(struct api_body *body);
/* A parameter of the query: 1 there, 0 absent, -1 malformed or there twice and answered. What is
 * there twice must not count as absent. */
int api_query_query(struct http_request *request, const char *name, struct span *ret_value);
/* One of a few words, which becomes its place among them: 1, 0 or -1 as above. */
int api_query_query_choice(struct http_request *request, const char *name,
    const char *const *choices, int64_t choice_count, int64_t *ret_choice);
/* A list of different ids (ASCII, no spaces): name=a&name=b, or name=a,b. False: it has been
 * answered. */
struct query_list {
    uint32_t count;
    struct span items[100];
};
bool api_query_query_list(
    struct http_request *request, const char *name, size_t size_min, struct query_list *ret_list);
/* The same of the query. False: it has been answered. */
bool api_query_query_device(struct http_request *request, struct span *ret_device);
bool api_query_query_convo(struct http_request *request, struct span *ret_convo);
bool api_query_query_number(
    struct http_request *request, const char *name, uint64_t max, uint64_t *value);
bool api_query_query_range(
    struct http_request *request, const char *name, uint64_t min, uint64_t max, uint64_t *value);

/* 200 with the JSON that was written; frees the buffer. */
void api_query_respond(struct http_request *request, struct buffer *answer);
/* In `then` of an db_query: 200 with {name: [rows of its first step], "cursor": column 0 of the
 * last}; no cursor when there is no row. */
typedef void (*api_query_put_fn)(
    struct json_writer *writer, const struct sql_unit *unit, uint32_t row);
void api_query_respond_list(struct http_request *request, const struct tr_event *event,
    const char *name, api_query_put_fn put);
/* 429 with Retry-After, for a quota that time frees. */
void api_query_refuse_many(
    struct http_request *request, uint32_t retry_after_s, const char *label, const char *text);

/* What a call that makes something with a name answers: the name, and when. It lives as long as the
 * request: api_query_keep is what to drop it with. NULL: it has been answered. */
struct api_query_made {
    char id[OWNER_ID_SIZE];
    int64_t now_ms;
};
struct api_query_made *api_query_make(struct http_request *request);
void api_query_keep(void *made);
struct span api_query_made_id(const struct api_query_made *made);
/* {id_name: its name, time_name: when}. */
void api_query_respond_made(struct http_request *request, const struct api_query_made *made,
    const char *id_name, const char *time_name);

/* A text, or NULL when it is absent. */
void api_query_may_text(struct sql_unit *unit, struct span text);
/* Left out past the year 9999. */
void api_query_put_time_s(struct json_writer *writer, const char *key, int64_t unix_s);
void api_query_put_hex(struct json_writer *writer, const char *key, struct span bytes);
/* A cipher suite by its registered name. */
void api_query_put_suite(struct json_writer *writer, const char *key, int64_t suite);
/* "mlsDid": DID#device, or the DID alone. */
void api_query_put_mls_did(struct json_writer *writer, struct span did, struct span device);

#endif
