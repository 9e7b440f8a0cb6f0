/* SPDX-License-Identifier: Apache-2.0 */
/* calls.h: the calls that need no conversation; routes.c lists them. */
#ifndef SERVICES_DELIVERY_API_CALLS_H
#define SERVICES_DELIVERY_API_CALLS_H

#include "services/delivery/api/call.h"

/* consent_api.c */
extern const struct call call_opt_in;
extern const struct call call_opt_out;
extern const struct call call_get_opt_in_status;
extern const struct call call_check_blocks;
extern const struct call call_get_block_status;
extern const struct call call_handle_block_change;

#endif
