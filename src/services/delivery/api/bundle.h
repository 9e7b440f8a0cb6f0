/* SPDX-License-Identifier: Apache-2.0 */
/* bundle.h: what goes with a commit: proposals, Welcomes, a group info, a message. As members of
 * JSON, or as MLSMessages one after another in a body of type message/mls. */
#ifndef SERVICES_DELIVERY_API_BUNDLE_H
#define SERVICES_DELIVERY_API_BUNDLE_H

#include "services/delivery/api/api.h"

/* Of submitCommit: welcomes, proposals, appMessage. */
void bundle_read_json(struct api_body *body);
/* The commit and all that goes with it. */
void bundle_read_mls(struct api_body *body);
/* An empty one is none. */
void bundle_add_welcome(struct api_body *body, struct span welcome);
/* When the commit was read: are the proposals of its epoch and group, and the message of the next
 * epoch? Hashes the proposals. NULL, or what is wrong. */
const char *bundle_check(const struct commit_act *commit);
/* When it was checked: are all its proposals public messages? */
bool bundle_is_public(const struct commit_act *commit);

#endif
