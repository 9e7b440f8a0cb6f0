/* SPDX-License-Identifier: Apache-2.0 */
/* The cases of test_push.c on PostgreSQL. */
#define SITE_ON_POSTGRES 1
#include "test_push.c"
