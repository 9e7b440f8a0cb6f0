/* SPDX-License-Identifier: Apache-2.0 */
#include <troupe/version.h>

const char *tr_version(void)
{
    return TR_VERSION;
}
