#include "broker/store/ended_rows.h"

#include <string>

#include "broker/store/columns.h"

namespace weft::broker {

Result<std::vector<proto::JobNumber>> ended_before(Database& database, int64_t unix_ms) {
  std::vector<proto::JobNumber> jobs;
  WEFT_TRY(Statement select,
           database.prepare("SELECT job, (SELECT event FROM events WHERE events.job = ended.job "
                            "ORDER BY sequence DESC LIMIT 1) FROM ended ORDER BY job"));
  WEFT_TRY_STATUS(for_each_row(select, [&](const Statement& row) -> Status {
    WEFT_TRY(const auto event, decoded<proto::JobEvent>(database, row, 1));
    if (event.unix_ms < unix_ms) jobs.push_back(static_cast<proto::JobNumber>(row.integer(0)));
    return {};
  }));
  return jobs;
}

Status erase_jobs(Database& database, const std::vector<proto::JobNumber>& jobs) {
  // What refers to others goes first.
  constexpr const char* kTables[] = {"script",      "plan_stages", "plans",    "results", "predictions",
                                     "checkpoints", "events",      "progress", "ended",   "jobs"};
  WEFT_TRY_STATUS(
      database.execute("INSERT OR REPLACE INTO meta SELECT 'last_job', MAX(COALESCE((SELECT value FROM meta "
                       "WHERE name = 'last_job'), 0), COALESCE(MAX(job), 0)) FROM jobs"));
  for (const char* table : kTables) {
    WEFT_TRY(Statement erase,
             database.prepare(("DELETE FROM " + std::string(table) + " WHERE job = ?").c_str()));
    for (const proto::JobNumber job : jobs) WEFT_TRY_STATUS(erase.bind(job).run());
  }
  return {};
}

}  // namespace weft::broker
