// Internal to broker/store: one record into the tables. The caller holds the transaction.
#pragma once

#include "broker/records.h"
#include "broker/store/sqlite.h"

namespace weft::broker {

class RecordWriter {
 public:
  // The database must outlive this.
  explicit RecordWriter(Database& database) : database_(database) {}
  Status prepare();  // once, before any write

  Status write(const PrincipalAdmitted& record);
  Status write(const PrincipalForgotten& record);
  Status write(const PeerBanned& record);
  Status write(const JobSubmitted& record);
  Status write(const JobChanged& record);
  Status write(const CheckpointCommitted& record);
  Status write(const PredictionCommitted& record);
  Status write(const ResultCommitted& record);
  Status write(const proto::JobEvent& record);
  Status write(const RunStarted& record);
  Status write(const CommandIssued& record);
  Status write(const RunEnded& record);
  Status write(const JobEnded& record);

 private:
  Status erase_plan(proto::JobNumber job);

  Database& database_;
  Statement use_token_, find_principal_, rename_principal_, insert_principal_, forget_principal_;
  Statement ban_, lift_ban_;
  Statement insert_job_, insert_progress_, change_job_;
  Statement insert_checkpoint_, trim_checkpoints_, insert_prediction_, insert_result_;
  Statement insert_event_, commit_step_, commit_evaluation_, keep_size_;
  Statement insert_plan_, insert_stage_, insert_command_, settle_commands_;
  Statement erase_commands_, erase_stages_, erase_plan_, insert_ended_, erase_ended_;
};

}  // namespace weft::broker
