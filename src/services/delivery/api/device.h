/* SPDX-License-Identifier: Apache-2.0 */
/* device.h: a device that wants to be in a conversation its DID is in. A member claims the wish for
 * a minute, adds the device by a commit, and says so:
 *
 *   pending ──claim──▶ claimed ──complete──▶ completed
 *      ▲──60 s passed─────┘        pending ──the device joined by itself──▶ completed
 */
#ifndef SERVICES_DELIVERY_API_DEVICE_H
#define SERVICES_DELIVERY_API_DEVICE_H

#include "services/delivery/api/api_query.h"

enum { DEVICES_MAX = 20, DEVICE_CLAIM_MS = 60000, DEVICE_PACKAGES_MAX = 200 };
enum { ADDITION_PENDING = 0, ADDITION_CLAIMED = 1, ADDITION_COMPLETED = 2 };
/* DID#device/convo */
enum { ADDITION_ID_SIZE_MAX = DID_SIZE_MAX + 1 + DEVICE_SIZE_MAX + 1 + ACT_CONVO_SIZE_MAX };
enum { ADDITION_NEW_DEVICE = 0, ADDITION_REISSUE = 1 };

struct device_request {
    struct span convo, did, device, why;
    int64_t now_ms;
};
/* One step: the device asks to be added again; nothing happens if its DID is no member, or while
 * somebody is at it. */
void device_add_request(struct sql_unit *unit, const struct device_request *request);
/* One step: the Welcomes that wait for a device, and (of its rows) their JSON: the first 20 of at
 * most 64 KiB each; getPendingWelcomes names them all. */
void welcome_add_waiting(struct sql_unit *unit, struct span did, struct span device);
void welcome_put_waiting(struct json_writer *writer, const struct sql_unit *unit, uint32_t step);

#endif
