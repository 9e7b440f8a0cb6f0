/* SPDX-License-Identifier: Apache-2.0 */
/* The same cases on PostgreSQL, with four writers. */
#define DECIDE_ON_POSTGRES 1
#include "test_decide.c"
