/* SPDX-License-Identifier: Apache-2.0 */
/* The same cases on PostgreSQL. */
#define STORE_ON_POSTGRES 1
#include "test_store.c"
