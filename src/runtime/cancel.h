/* SPDX-License-Identifier: Apache-2.0 */
/* cancel.h: a token that ends asks when it is fired, and fires its children.
 *
 * `fired` and `refs` are atomics; the lists are under the token's lock, `sibling` under the
 * parent's. A token's lock is taken with no other lock held except a parent's or a box's: ends are
 * delivered after it is released. */
#ifndef RUNTIME_CANCEL_H
#define RUNTIME_CANCEL_H

#include <stdbool.h>

#include <troupe/ask.h>

struct tr__ask;

void tr__cancel_ref(struct tr_cancel *cancel);
void tr__cancel_unref(struct tr_cancel *cancel);
/* List an ask, with a reference of the list's. False if the token has fired: it is not listed. */
bool tr__cancel_list(struct tr_cancel *cancel, struct tr__ask *ask);
/* Take an ask off its token's list and release the list's reference. The token's lock decides
 * between this and firing. */
void tr__cancel_unlist(struct tr__ask *ask);

#endif
