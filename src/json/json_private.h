/* SPDX-License-Identifier: Apache-2.0 */
/* json_private.h: what the files of this folder share. */
#ifndef JSON_JSON_PRIVATE_H
#define JSON_JSON_PRIVATE_H

#include "json/json.h"

/* Cells from one value to the one after it. */
static inline size_t json__extent(const struct json *value)
{
    return value->kind >= JSON_ARRAY ? value->size : 1;
}

static inline struct span json__text(const struct json *value)
{
    return (struct span){ value->as.text, value->size };
}

/* Make room for at least one more cell; 0 or TR_ENOMEM. */
int json__grow(struct json_doc *doc);
/* Memory of the document for short use: valid until the next call. NULL when out of memory. */
void *json__scratch(struct json_doc *doc, size_t bytes);
uint32_t json__depth_max(const struct json_doc *doc);

/* Put keys (cells of strings) into order. `spare` has room for as many. Equal keys keep theirs. At
 * most n log2 n comparisons. */
typedef int json__compare_fn(const struct json *a, const struct json *b);
void json__sort_keys(
    const struct json **keys, const struct json **spare, size_t count, json__compare_fn *compare);
/* <0, 0, >0: the order of the bytes; a prefix comes first. */
int json__compare_keys(const struct json *a, const struct json *b);
/* The order of DAG-CBOR: shorter first, then by bytes. */
int json__compare_cbor_keys(const struct json *a, const struct json *b);
/* The key that is there for the second time, or NULL; *ret_rc is TR_ENOMEM if it could not be
 * found out. */
const struct json *json__find_twin(struct json_doc *doc, const struct json *object, int *ret_rc);

#endif
