/* SPDX-License-Identifier: Apache-2.0 */
/* The cases of test_removed.c on PostgreSQL. */
#define SITE_ON_POSTGRES 1
#include "test_removed.c"
