// Internal to broker/store: the tables that records are written to, by what they are about. The caller holds
// the transaction, and prepares each once, before any write, with a database that outlives it.
#pragma once

#include "broker/records.h"
#include "broker/store/sqlite.h"

namespace weft::broker {

// The keys that tokens admitted.
class PrincipalRows {
 public:
  Status prepare(Database& database);
  Status write(const PrincipalAdmitted& record);
  Status write(const PrincipalForgotten& record);

 private:
  Statement use_token_, find_principal_, rename_principal_, insert_principal_, forget_principal_;
};

// Peers that are kept out.
class BanRows {
 public:
  Status prepare(Database& database);
  Status write(const PeerBanned& record);

 private:
  Statement ban_, lift_ban_;
};

// Jobs, how far each has come, and what is kept of those that have ended.
class JobRows {
 public:
  Status prepare(Database& database);
  Status write(const JobSubmitted& record);
  Status write(const JobChanged& record);
  Status write(const proto::JobEvent& record);
  Status write(const JobEnded& record);

 private:
  Database* database_ = nullptr;
  Statement insert_job_, insert_progress_, change_job_, insert_event_, commit_step_, commit_evaluation_,
      insert_ended_, erase_ended_;
};

// What jobs leave: checkpoints, predictions, results.
class OutcomeRows {
 public:
  Status prepare(Database& database);
  Status write(const CheckpointCommitted& record);
  Status write(const PredictionCommitted& record);
  Status write(const ResultCommitted& record);

 private:
  Database* database_ = nullptr;
  Statement insert_checkpoint_, trim_checkpoints_, insert_prediction_, insert_result_;
};

// The plan of each job that runs, and what of its script is not settled.
class RunRows {
 public:
  Status prepare(Database& database);
  Status write(const RunStarted& record);
  Status write(const CommandIssued& record);
  Status write(const RunEnded& record);

 private:
  Status erase(proto::JobNumber job);

  Database* database_ = nullptr;
  Statement insert_plan_, insert_stage_, keep_size_, insert_command_, settle_commands_, erase_commands_,
      erase_stages_, erase_plan_;
};

}  // namespace weft::broker
