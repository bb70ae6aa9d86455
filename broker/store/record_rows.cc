#include "broker/store/record_rows.h"

#include <algorithm>
#include <span>
#include <string>

#include "broker/store/columns.h"
#include "broker/store/run_plan.h"

namespace weft::broker {
namespace {

Status done(Statement& statement) {
  return statement.run().map([](int) {});
}

struct Prepared {
  Statement& statement;
  const char* sql;
};

Status prepare_all(Database& database, std::span<const Prepared> all) {
  for (const Prepared& each : all) {
    WEFT_TRY(each.statement, database.prepare(each.sql));
  }
  return {};
}

}  // namespace

// ---- the keys that tokens admitted

Status PrincipalRows::prepare(Database& database) {
  const Prepared all[] = {
      {use_token_,
       "UPDATE tokens SET uses = uses + 1 WHERE id = ? AND (uses_max IS NULL OR uses < uses_max)"},
      {find_principal_, "SELECT token FROM principals WHERE principal = ? AND role = ?"},
      {rename_principal_, "UPDATE principals SET name = ?, token = ? WHERE principal = ? AND role = ?"},
      {insert_principal_, "INSERT INTO principals VALUES (?, ?, ?, ?, ?)"},
      {forget_principal_, "DELETE FROM principals WHERE principal = ? AND role = ?"},
  };
  return prepare_all(database, all);
}

Status PrincipalRows::write(const PrincipalAdmitted& record) {
  const auto principal = as_bytes(record.principal.digest);
  const auto role = static_cast<int64_t>(record.role);
  WEFT_TRY(const bool known, find_principal_.bind(principal).bind(role).step());
  // It may have come by another token before, which was revoked.
  const bool by_this = known && static_cast<uint64_t>(find_principal_.integer(0)) == record.token;
  find_principal_.reset();
  if (!by_this) {
    WEFT_TRY(const int used, use_token_.bind(record.token).run());
    if (used != 1)
      return fail(ErrorCode::PermissionDenied,
                  "the token has no use left; ask the broker's owner for another");
  }
  if (known) return done(rename_principal_.bind(record.name).bind(record.token).bind(principal).bind(role));
  return done(
      insert_principal_.bind(principal).bind(role).bind(record.name).bind(record.token).bind(record.unix_ms));
}

Status PrincipalRows::write(const PrincipalForgotten& record) {
  return done(
      forget_principal_.bind(as_bytes(record.principal.digest)).bind(static_cast<int64_t>(record.role)));
}

// ---- peers that are kept out

Status BanRows::prepare(Database& database) {
  const Prepared all[] = {
      {ban_, "INSERT OR REPLACE INTO bans VALUES (?, ?)"},
      {lift_ban_, "DELETE FROM bans WHERE peer = ?"},
  };
  return prepare_all(database, all);
}

Status BanRows::write(const PeerBanned& record) {
  const auto peer = as_bytes(record.peer.digest);
  return record.banned ? done(ban_.bind(peer).bind(record.name)) : done(lift_ban_.bind(peer));
}

// ---- jobs, how far each has come, and what is kept of those that have ended

Status JobRows::prepare(Database& database) {
  database_ = &database;
  const Prepared all[] = {
      {insert_job_, "INSERT INTO jobs VALUES (?, ?, ?, ?, ?, x'', 0, 0, 0, 0)"},
      {insert_progress_, "INSERT INTO progress (job, committed_step, evaluated_step) VALUES (?, 0, 0)"},
      {change_job_,
       "UPDATE jobs SET state = ?, reason = ?, plan_version = ?, step = ?, steps = ?, "
       "planned = ? WHERE job = ?"},
      {insert_event_, "INSERT INTO events VALUES (?, ?, ?)"},
      {commit_step_, "UPDATE progress SET committed_step = ? WHERE job = ?"},
      {commit_evaluation_, "UPDATE progress SET evaluated_step = ? WHERE job = ?"},
      {insert_ended_, "INSERT OR REPLACE INTO ended VALUES (?, ?, ?)"},
      {erase_ended_, "DELETE FROM ended WHERE job = ?"},
  };
  return prepare_all(database, all);
}

Status JobRows::write(const JobSubmitted& record) {
  WEFT_TRY(const auto submission, encoded(*database_, record.submission));
  WEFT_TRY_STATUS(insert_job_.bind(record.job)
                      .bind(as_bytes(record.submitter.digest))
                      .bind(submission.bytes)
                      .bind(record.unix_ms)
                      .bind(static_cast<int64_t>(proto::JobState::Queued))
                      .run());
  return done(insert_progress_.bind(record.job));
}

Status JobRows::write(const JobChanged& record) {
  WEFT_TRY(const int changed, change_job_.bind(static_cast<int64_t>(record.state))
                                  .bind(record.reason)
                                  .bind(record.plan_version)
                                  .bind(record.step)
                                  .bind(record.steps)
                                  .bind(static_cast<int64_t>(record.planned))
                                  .bind(record.job)
                                  .run());
  if (changed != 1) return contradiction(*database_, "there is no job " + std::to_string(record.job));
  return record.state < proto::JobState::Finished ? done(erase_ended_.bind(record.job)) : Status{};
}

Status JobRows::write(const proto::JobEvent& record) {
  WEFT_TRY(const auto event, encoded(*database_, record));
  WEFT_TRY_STATUS(insert_event_.bind(record.job).bind(record.sequence).bind(event).run());
  if (record.kind == proto::JobEventKind::Step) return done(commit_step_.bind(record.step).bind(record.job));
  if (record.kind == proto::JobEventKind::Evaluation)
    return done(commit_evaluation_.bind(record.step).bind(record.job));
  return {};
}

Status JobRows::write(const JobEnded& record) {
  WEFT_TRY(const auto status, encoded(*database_, record.status));
  return done(insert_ended_.bind(record.status.job).bind(as_bytes(record.submitter.digest)).bind(status));
}

// ---- what jobs leave: checkpoints, predictions, results

Status OutcomeRows::prepare(Database& database) {
  database_ = &database;
  const Prepared all[] = {
      {insert_checkpoint_, "INSERT INTO checkpoints (job, report) VALUES (?, ?)"},
      {trim_checkpoints_,
       "DELETE FROM checkpoints WHERE job = ?1 AND number NOT IN "
       "(SELECT number FROM checkpoints WHERE job = ?1 ORDER BY number DESC LIMIT 2)"},
      {insert_prediction_, "INSERT OR REPLACE INTO predictions VALUES (?, ?, ?, ?)"},
      {insert_result_, "INSERT OR REPLACE INTO results VALUES (?, ?)"},
  };
  return prepare_all(database, all);
}

Status OutcomeRows::write(const CheckpointCommitted& record) {
  WEFT_TRY(const auto report,
           encoded(*database_, proto::CheckpointReport{.run = record.job,
                                                       .plan_version = 0,
                                                       .step = record.step,
                                                       .tensors = record.tensors,
                                                       .skipped_steps = record.skipped_steps,
                                                       .local = record.local}));
  WEFT_TRY_STATUS(insert_checkpoint_.bind(record.job).bind(report).run());
  return done(trim_checkpoints_.bind(record.job));
}

Status OutcomeRows::write(const PredictionCommitted& record) {
  WEFT_TRY(const auto report, encoded(*database_, record.report));
  const auto& outputs = record.report.outputs;
  const std::string output = outputs.empty() ? std::string() : outputs.front().key.name;
  return done(insert_prediction_.bind(record.job)
                  .bind(record.report.microbatch)
                  .bind(std::string_view(output))
                  .bind(report));
}

Status OutcomeRows::write(const ResultCommitted& record) {
  WEFT_TRY(const auto result, encoded(*database_, record.result));
  return done(insert_result_.bind(record.job).bind(result));
}

namespace {

std::string text_of(const std::vector<uint64_t>& shares) {
  std::string text;
  for (const uint64_t share : shares) text += (text.empty() ? "" : ",") + std::to_string(share);
  return text;
}

}  // namespace

// ---- the plan of each job that runs, and what of its script is not settled

Status RunRows::prepare(Database& database) {
  database_ = &database;
  const Prepared all[] = {
      {insert_plan_, "INSERT INTO plans VALUES (?, ?, ?)"},
      {insert_stage_, "INSERT INTO plan_stages VALUES (?, ?, ?)"},
      {keep_size_, "UPDATE progress SET microbatch_size = ?, shares = ?, every = ?, codec = ? WHERE job = ?"},
      {insert_command_, "INSERT INTO script SELECT job, ?, ? FROM plans WHERE job = ? AND plan_version = ?"},
      {settle_commands_, "DELETE FROM script WHERE job = ? AND sequence <= ?"},
      {erase_commands_, "DELETE FROM script WHERE job = ?"},
      {erase_stages_, "DELETE FROM plan_stages WHERE job = ?"},
      {erase_plan_, "DELETE FROM plans WHERE job = ?"},
  };
  return prepare_all(database, all);
}

Status RunRows::write(const RunStarted& record) {
  const bool whole = record.plan && !record.plan->stages.empty() &&
                     std::all_of(record.plan->stages.begin(), record.plan->stages.end(),
                                 [](const PlannedStage& stage) { return stage.assignment != nullptr; });
  if (!whole)
    return contradiction(*database_, "the plan of job " + std::to_string(record.job) + " has no assignments");
  WEFT_TRY_STATUS(erase(record.job));
  proto::RunPlan message = to_message(*record.plan);
  message.diverged_at = record.diverged_at;
  WEFT_TRY(const auto plan, encoded(*database_, message));
  WEFT_TRY_STATUS(insert_plan_.bind(record.job).bind(record.plan_version).bind(plan).run());
  for (size_t s = 0; s < record.plan->stages.size(); ++s) {
    WEFT_TRY(const auto assignment, encoded(*database_, record.plan->stages[s].assignment));
    WEFT_TRY_STATUS(insert_stage_.bind(record.job).bind(uint64_t{s}).bind(assignment.bytes).run());
  }
  // It may begin before steps that the plan before had committed: they are done again.
  const replicas::ChosenTerms chosen = chosen_by(*record.plan);
  return done(keep_size_.bind(uint64_t{record.plan->training.microbatch_size})
                  .bind(text_of(chosen.shares))
                  .bind(chosen.every)
                  .bind(chosen.every > 0 ? compress::name(chosen.codec) : std::string())
                  .bind(record.job));
}

Status RunRows::write(const CommandIssued& record) {
  const proto::Command& command = record.command;
  WEFT_TRY(const auto bytes, encoded(*database_, command));
  WEFT_TRY(
      const int added,
      insert_command_.bind(command.sequence).bind(bytes).bind(record.job).bind(command.plan_version).run());
  if (added != 1)
    return contradiction(*database_, "job " + std::to_string(record.job) + " has no plan " +
                                         std::to_string(command.plan_version) + " that runs");
  if (command.settled == 0) return {};
  return done(settle_commands_.bind(record.job).bind(command.settled));
}

Status RunRows::write(const RunEnded& record) { return erase(record.job); }

Status RunRows::erase(proto::JobNumber job) {
  WEFT_TRY_STATUS(erase_commands_.bind(job).run());
  WEFT_TRY_STATUS(erase_stages_.bind(job).run());
  return done(erase_plan_.bind(job));
}

}  // namespace weft::broker
