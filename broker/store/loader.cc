#include "broker/store/loader.h"

#include <charconv>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "broker/store/columns.h"
#include "broker/store/run_plan.h"

namespace weft::broker {
namespace {

// "30,10"; empty: none.
bool parse_shares(const std::string& text, std::vector<uint64_t>& shares) {
  for (const char *at = text.data(), *end = at + text.size(); at != end;) {
    const auto [rest, error] = std::from_chars(at, end, shares.emplace_back());
    if (error != std::errc() || shares.back() < 1 || shares.back() > replicas::kShareMax ||
        shares.size() > replicas::kReplicasMax || (rest != end && (*rest != ',' || rest + 1 == end)))
      return false;
    at = rest == end ? end : rest + 1;
  }
  return true;
}

// Rounds and codec of its replicas, from columns 15 and 16; false: damaged.
bool read_terms(const Statement& row, replicas::ChosenTerms& chosen) {
  const int64_t every = row.integer(15);
  if (every < 0 || static_cast<uint64_t>(every) > replicas::kEveryMax) return false;
  chosen.every = static_cast<uint64_t>(every);
  if (every == 0) return true;
  const auto codec = compress::parse(row.text(16));
  if (codec) chosen.codec = *codec;
  return codec.has_value();
}

class Loader {
 public:
  // `job`: that one alone, whether it has ended or not; nothing: all that have not, and everything else.
  Loader(Database& database, std::optional<proto::JobNumber> job) : database_(database), job_(job) {}

  Result<StoredState> load() {
    if (!job_) {
      WEFT_TRY_STATUS(principals());
      WEFT_TRY_STATUS(bans());
      // What was forgotten keeps its number.
      WEFT_TRY(const int64_t last,
               database_.integer("SELECT MAX((SELECT COALESCE(MAX(job), 0) FROM jobs), "
                                 "(SELECT COALESCE(MAX(value), 0) FROM meta WHERE name = 'last_job'))"));
      state_.next_job = static_cast<proto::JobNumber>(last) + 1;
    }
    WEFT_TRY_STATUS(jobs());
    WEFT_TRY_STATUS(checkpoints());
    WEFT_TRY_STATUS(predictions());
    WEFT_TRY_STATUS(results());
    WEFT_TRY_STATUS(plans());
    WEFT_TRY_STATUS(scripts());
    return std::move(state_);
  }

 private:
  template <typename Body>
  Status each(const char* sql, const Body& body) {
    WEFT_TRY(Statement statement, database_.prepare(sql));
    return for_each_row(statement, body);
  }

  Result<StoredJob*> job_of(const Statement& row) {
    const auto at = state_.jobs.find(static_cast<proto::JobNumber>(row.integer(0)));
    if (at == state_.jobs.end())
      return damaged(database_, "a record of job " + std::to_string(row.integer(0)) + ", which is gone");
    return &at->second;
  }

  // Rows of one table, of the jobs that are loaded.
  template <typename Body>
  Status each_of_jobs(const std::string& select, const std::string& table, const std::string& order,
                      const Body& body) {
    const std::string jobs = job_ ? std::to_string(*job_) : "SELECT job FROM jobs WHERE state < 6";
    return each((select + " WHERE " + table + ".job IN (" + jobs + ")" + order).c_str(), body);
  }

  Status principals();
  Status bans();
  Status jobs();
  Status checkpoints();
  Status predictions();
  Status results();
  Status plans();
  Status scripts();
  Result<std::vector<proto::Encoded<proto::AssignStage>>> assignments(proto::JobNumber job);

  Database& database_;
  std::optional<proto::JobNumber> job_;
  StoredState state_;
};

Status Loader::principals() {
  return each(
      "SELECT principal, principals.role, name, token, unix_ms FROM principals "
      "JOIN tokens ON tokens.id = principals.token WHERE NOT revoked ORDER BY unix_ms, principal",
      [&](const Statement& row) -> Status {
        PrincipalAdmitted principal;
        WEFT_TRY(principal.principal.digest, digest_in(database_, row, 0));
        WEFT_TRY(principal.role, enumerator_in(database_, row, 1, proto::Role::Peer, proto::Role::Admin));
        principal.name = row.text(2);
        principal.token = static_cast<uint64_t>(row.integer(3));
        principal.unix_ms = row.integer(4);
        state_.principals.push_back(std::move(principal));
        return {};
      });
}

Status Loader::bans() {
  return each("SELECT peer, name FROM bans", [&](const Statement& row) -> Status {
    PeerBanned ban;
    WEFT_TRY(ban.peer.digest, digest_in(database_, row, 0));
    ban.name = row.text(1);
    state_.bans.push_back(std::move(ban));
    return {};
  });
}

Status Loader::jobs() {
  return each_of_jobs(
      "SELECT jobs.job, submitter, submission, unix_ms, state, reason, plan_version, step, steps, "
      "(SELECT MAX(sequence) FROM events WHERE events.job = jobs.job), committed_step, evaluated_step, "
      "microbatch_size, planned, shares, every, codec "
      "FROM jobs LEFT JOIN progress ON progress.job = jobs.job",
      "jobs", "", [&](const Statement& row) -> Status {
        StoredJob job;
        job.submitted.job = job.last.job = static_cast<proto::JobNumber>(row.integer(0));
        WEFT_TRY(job.submitted.submitter.digest, digest_in(database_, row, 1));
        WEFT_TRY(job.submitted.submission, decoded_with_bytes<proto::SubmitJob>(database_, row, 2));
        job.submitted.unix_ms = row.integer(3);
        WEFT_TRY(job.last.state,
                 enumerator_in(database_, row, 4, proto::JobState::Queued, proto::JobState::Failed));
        job.last.reason = row.text(5);
        job.last.plan_version = static_cast<proto::PlanVersion>(row.integer(6));
        job.last.step = static_cast<uint64_t>(row.integer(7));
        job.last.steps = static_cast<uint64_t>(row.integer(8));
        job.last_event = static_cast<uint64_t>(row.integer(9));  // 0 when there is none
        if (!row.optional_integer(10))
          return damaged(database_, "the progress of job " + std::to_string(job.last.job) + " is gone");
        job.committed_step = static_cast<uint64_t>(row.integer(10));
        job.evaluated_step = static_cast<uint64_t>(row.integer(11));
        job.microbatch_size = static_cast<uint32_t>(row.integer(12));
        WEFT_TRY(job.last.planned, enumerator_in(database_, row, 13, Planned::Anew, Planned::PlacedAgain));
        if (!parse_shares(row.text(14), job.chosen.shares))
          return damaged(database_, "the shares of job " + std::to_string(job.last.job));
        if (!read_terms(row, job.chosen))
          return damaged(database_, "how the replicas of job " + std::to_string(job.last.job) + " agree");
        state_.jobs.emplace(job.last.job, std::move(job));
        return {};
      });
}

Status Loader::checkpoints() {
  return each_of_jobs("SELECT job, report FROM checkpoints", "checkpoints", " ORDER BY job, number",
                      [&](const Statement& row) -> Status {
                        WEFT_TRY(StoredJob * job, job_of(row));
                        WEFT_TRY(proto::CheckpointReport report,
                                 decoded<proto::CheckpointReport>(database_, row, 1));
                        job->checkpoints.push_back({job->last.job, report.step, std::move(report.tensors),
                                                    report.skipped_steps, std::move(report.local)});
                        return {};
                      });
}

Status Loader::predictions() {
  return each_of_jobs("SELECT job, report FROM predictions", "predictions", " ORDER BY job, microbatch",
                      [&](const Statement& row) -> Status {
                        WEFT_TRY(StoredJob * job, job_of(row));
                        WEFT_TRY(proto::PredictionReport report,
                                 decoded<proto::PredictionReport>(database_, row, 1));
                        job->predictions.push_back(std::move(report));
                        return {};
                      });
}

Status Loader::results() {
  return each_of_jobs("SELECT job, result FROM results", "results", "", [&](const Statement& row) -> Status {
    WEFT_TRY(StoredJob * job, job_of(row));
    WEFT_TRY(job->result, decoded<proto::JobResult>(database_, row, 1));
    return {};
  });
}

Status Loader::plans() {
  return each_of_jobs(
      "SELECT job, plan_version, plan FROM plans", "plans", "", [&](const Statement& row) -> Status {
        WEFT_TRY(StoredJob * job, job_of(row));
        WEFT_TRY(proto::RunPlan plan, decoded<proto::RunPlan>(database_, row, 2));
        WEFT_TRY(auto stages, assignments(job->last.job));
        const uint64_t diverged_at = plan.diverged_at;
        RunStarted started{.job = job->last.job,
                           .plan_version = static_cast<proto::PlanVersion>(row.integer(1)),
                           .plan = from_message(std::move(plan), std::move(stages)),
                           .diverged_at = diverged_at};
        if (!started.plan)
          return damaged(database_,
                         "stages of the plan of job " + std::to_string(job->last.job) + " are gone");
        job->run = std::move(started);
        return {};
      });
}

Result<std::vector<proto::Encoded<proto::AssignStage>>> Loader::assignments(proto::JobNumber job) {
  std::vector<proto::Encoded<proto::AssignStage>> found;
  WEFT_TRY(Statement statement,
           database_.prepare("SELECT stage, assignment FROM plan_stages WHERE job = ? ORDER BY stage"));
  statement.bind(job);
  WEFT_TRY_STATUS(for_each_row(statement, [&](const Statement& row) -> Status {
    if (row.integer(0) != static_cast<int64_t>(found.size()))
      return damaged(database_, "a stage of the plan of job " + std::to_string(job) + " is gone");
    WEFT_TRY(found.emplace_back(), decoded_with_bytes<proto::AssignStage>(database_, row, 1));
    return {};
  }));
  return found;
}

Status Loader::scripts() {
  return each_of_jobs("SELECT job, command FROM script", "script", " ORDER BY job, sequence",
                      [&](const Statement& row) -> Status {
                        WEFT_TRY(StoredJob * job, job_of(row));
                        WEFT_TRY(proto::Command command, decoded<proto::Command>(database_, row, 1));
                        job->script.push_back(command);
                        return {};
                      });
}

}  // namespace

Result<StoredState> load_state(Database& database) { return Loader(database, std::nullopt).load(); }

Result<std::optional<StoredJob>> load_job(Database& database, proto::JobNumber job) {
  if (job > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
  WEFT_TRY(StoredState state, Loader(database, job).load());
  if (state.jobs.empty()) return std::nullopt;
  return std::move(state.jobs.begin()->second);
}

}  // namespace weft::broker
