/* SPDX-License-Identifier: Apache-2.0 */
/* report_api.h: reports of members, warnings, and what admins see of both. Contents of reports are
 * encrypted for whoever reads them; nobody sees or resolves a report about themselves. */
#ifndef SERVICES_DELIVERY_API_REPORT_API_H
#define SERVICES_DELIVERY_API_REPORT_API_H

enum {
    REPORT_CONTENT_MAX = 50 << 10,
    REPORT_BODY_MAX = 80 << 10,
    REPORTS_PENDING_MAX = 20, /* of one reporter in one conversation */
    WARNINGS_MAX = 100,       /* that have not expired, of one member in one conversation */
    REPORTS_RETRY_S = 3600,   /* when to look again whether there is room */
    WARNING_DAYS = 30,
    WARNING_DAYS_MAX = 365,
};

#endif
