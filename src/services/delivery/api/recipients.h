/* SPDX-License-Identifier: Apache-2.0 */
/* recipients.h: the accounts that the Welcomes of a request are for. The references in the Welcomes
 * decide; the lists of the request (didList, keyPackageHashes) must agree. */
#ifndef SERVICES_DELIVERY_API_RECIPIENTS_H
#define SERVICES_DELIVERY_API_RECIPIENTS_H

#include "services/delivery/api/api.h"

/* Reads the list of key package hashes, if it is given. */
void recipients_read_hashes(struct api_body *body);
/* Replaces the additions by the references of all Welcomes; the listed accounts become `named`.
 * NULL, or what is wrong. */
const char *recipients_read(struct act_members *members);
/* Are the listed hashes, if any, those of the Welcomes? */
bool recipients_are_hashed(const struct act_members *members);

/* How many key packages' owners must be read. */
uint32_t recipients_owner_count(const struct act *act);
/* Appends a step for each owner; a NULL unit is fine. */
void recipients_ask_owners(const struct act *act, struct sql_unit *unit);
/* Takes the owners from the unit, whose step `first` is the first owner, if they agree with the listed
 * accounts and hashes. */
struct refusal recipients_take_owners(struct act *act, const struct sql_unit *unit, uint32_t first);

#endif
