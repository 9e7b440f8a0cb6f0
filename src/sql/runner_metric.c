/* SPDX-License-Identifier: Apache-2.0 */
#include "sql/runner_metric.h"

#include "sql/sql.h"

static struct metric_histogram commit_histogram, batch_histogram;
#define UNITS_HELP "Units of work by outcome"
struct metric sql_metrics[METRIC_COUNT] = {
    [METRIC_OK] = { "troupe_sql_units_total", "end=\"stored\"", UNITS_HELP, METRIC_COUNTER, 0, NULL,
        NULL },
    [METRIC_REFUSED] = { "troupe_sql_units_total", "end=\"refused\"", UNITS_HELP, METRIC_COUNTER, 0,
        NULL, NULL },
    [METRIC_UNKNOWN] = { "troupe_sql_units_total", "end=\"unknown\"", UNITS_HELP, METRIC_COUNTER, 0,
        NULL, NULL },
    [METRIC_SHED] = { "troupe_sql_units_total", "end=\"shed\"", UNITS_HELP, METRIC_COUNTER, 0, NULL,
        NULL },
    [METRIC_EXPIRED] = { "troupe_sql_units_total", "end=\"expired\"", UNITS_HELP, METRIC_COUNTER, 0,
        NULL, NULL },
    [METRIC_DISK] = { "troupe_sql_units_total", "end=\"disk\"", UNITS_HELP, METRIC_COUNTER, 0, NULL,
        NULL },
    [METRIC_AWAY] = { "troupe_sql_units_total", "end=\"away\"", UNITS_HELP, METRIC_COUNTER, 0, NULL,
        NULL },
    [METRIC_READS] = { "troupe_sql_reads_total", NULL, "Units of reads that ended", METRIC_COUNTER,
        0, NULL, NULL },
    [METRIC_COMMITS] = { "troupe_sql_commits_total", NULL, "Durable commits", METRIC_COUNTER, 0,
        NULL, NULL },
    [METRIC_RECONNECTS] = { "troupe_sql_reconnects_total", NULL,
        "Lost connections that were replaced", METRIC_COUNTER, 0, NULL, NULL },
    [METRIC_WAITING] = { "troupe_sql_waiting", NULL, "Units waiting for a connection", METRIC_GAUGE,
        0, NULL, NULL },
    [METRIC_SECONDS] = { "troupe_sql_commit_seconds", NULL, "Duration of a batch with its commit",
        METRIC_HISTOGRAM, 0, &commit_histogram, NULL },
    [METRIC_BATCH] = { "troupe_sql_batch_bytes", NULL, "Bytes of values in a batch",
        METRIC_HISTOGRAM, 0, &batch_histogram, NULL },
};

void sql_count_end(bool is_writer, int status)
{
    unsigned which = METRIC_REFUSED;

    if (!is_writer)
        which = METRIC_READS;
    else if (status == 0)
        which = METRIC_OK;
    else if (status == SQL_EUNKNOWN)
        which = METRIC_UNKNOWN;
    else if (status == SQL_EDISK)
        which = METRIC_DISK;
    else if (status == SQL_EAWAY)
        which = METRIC_AWAY;
    else if (status == TR_ETIMEOUT || status == TR_ECANCELLED)
        which = METRIC_EXPIRED;
    metric_add(&sql_metrics[which], 1);
}
