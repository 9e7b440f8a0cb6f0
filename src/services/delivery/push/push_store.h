/* SPDX-License-Identifier: Apache-2.0 */
/* push_store.h: the statements that find devices and tokens to wake. */
#ifndef SERVICES_DELIVERY_PUSH_PUSH_STORE_H
#define SERVICES_DELIVERY_PUSH_PUSH_STORE_H

#include "sql/sql.h"

extern const struct sql_statement push_find_devices;
extern const struct sql_statement push_find_token;

#endif
