/* SPDX-License-Identifier: Apache-2.0 */
/* bundle.h: a commit and the messages that go with it: proposals, Welcomes, a GroupInfo, an
 * application message. They are members of a JSON object, or MLSMessages one after another in a body
 * of type message/mls. */
#ifndef SERVICES_DELIVERY_API_BUNDLE_H
#define SERVICES_DELIVERY_API_BUNDLE_H

#include "services/delivery/api/api.h"

/* `raw` of the calls that take a bundle: no member has this name. */
#define BUNDLE_RAW "bundle"

/* Reads the parameters welcomes, proposals and appMessage of submitCommit. */
void bundle_read_json(struct api_body *body);
/* Reads all messages of a body of type message/mls. */
void bundle_read_mls(struct api_body *body);
/* Adds a Welcome; an empty span adds none. */
void bundle_add_welcome(struct api_body *body, struct span welcome);
/* Checks group and epoch of the messages against the commit, which was read before, and hashes the
 * proposals. NULL, or what is wrong. */
const char *bundle_check(const struct commit_act *commit);
/* Are all proposals public messages? */
bool bundle_is_public(const struct commit_act *commit);

#endif
