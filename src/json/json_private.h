/* SPDX-License-Identifier: Apache-2.0 */
/* json_private.h: declarations shared by the files of this folder. */
#ifndef JSON_JSON_PRIVATE_H
#define JSON_JSON_PRIVATE_H

#include "json/json.h"

/* Return the number of cells from one value to the next. */
static inline size_t json__extent(const struct json *value)
{
    return value->kind >= JSON_ARRAY ? value->size : 1;
}

static inline struct span json__text(const struct json *value)
{
    return (struct span){ value->as.text, value->size };
}

/* Make room for at least one more cell. Fails with TR_ENOMEM. */
int json__grow(struct json_doc *doc);
/* Borrow scratch memory of the document; valid until the next call. NULL when out of memory. */
void *json__scratch(struct json_doc *doc, size_t bytes);
uint32_t json__depth_max(const struct json_doc *doc);

/* Sort keys (cells of strings). `spare` has room for `count` more. The sort is stable and makes at
 * most n log2 n comparisons. */
typedef int json__compare_fn(const struct json *a, const struct json *b);
void json__sort_keys(
    const struct json **keys, const struct json **spare, size_t count, json__compare_fn *compare);
/* Compare by bytes; a prefix comes first. Returns <0, 0 or >0. */
int json__compare_keys(const struct json *a, const struct json *b);
/* Compare in the order of DAG-CBOR: shorter first, then by bytes. */
int json__compare_cbor_keys(const struct json *a, const struct json *b);
/* Find the second of two equal keys; NULL if all keys differ. *ret_rc is 0, or TR_ENOMEM when the
 * search found no memory. */
const struct json *json__find_twin(struct json_doc *doc, const struct json *object, int *ret_rc);

#endif
