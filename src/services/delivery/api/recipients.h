/* SPDX-License-Identifier: Apache-2.0 */
/* recipients.h: whom the Welcomes of a request are for. Their references decide; what the request
 * lists beside them (didList, keyPackageHashes) is a hint, and must say the same. */
#ifndef SERVICES_DELIVERY_API_RECIPIENTS_H
#define SERVICES_DELIVERY_API_RECIPIENTS_H

#include "services/delivery/api/api.h"

/* The member keyPackageHashes, if it is there. */
void recipients_read_hashes(struct api_body *body);
/* The references of all Welcomes become the job's adds; whom it named is kept beside them. Whose
 * they are is asked of the database later. NULL, or what is wrong. */
const char *recipients_read(struct job *job);
/* Are the hashes, if any are listed, those of the Welcomes? */
bool recipients_are_hashed(const struct job *job);
/* When the owners are known: are they those that are named, and each hash its owner's? */
bool recipients_are_named(const struct job *job);

#endif
