// Internal to broker/store: one record into the tables. The caller holds the transaction.
#pragma once

#include "broker/store/record_rows.h"

namespace weft::broker {

class RecordWriter {
 public:
  // The database must outlive this.
  explicit RecordWriter(Database& database) : database_(database) {}
  Status prepare();  // once, before any write

  Status write(const PrincipalAdmitted& record) { return principals_.write(record); }
  Status write(const PrincipalForgotten& record) { return principals_.write(record); }
  Status write(const PeerBanned& record) { return bans_.write(record); }
  Status write(const JobSubmitted& record) { return jobs_.write(record); }
  Status write(const JobChanged& record) { return jobs_.write(record); }
  Status write(const proto::JobEvent& record) { return jobs_.write(record); }
  Status write(const JobEnded& record) { return jobs_.write(record); }
  Status write(const CheckpointCommitted& record) { return outcomes_.write(record); }
  Status write(const PredictionCommitted& record) { return outcomes_.write(record); }
  Status write(const ResultCommitted& record) { return outcomes_.write(record); }
  Status write(const RunStarted& record) { return runs_.write(record); }
  Status write(const CommandIssued& record) { return runs_.write(record); }
  Status write(const RunEnded& record) { return runs_.write(record); }

 private:
  Database& database_;
  PrincipalRows principals_;
  BanRows bans_;
  JobRows jobs_;
  OutcomeRows outcomes_;
  RunRows runs_;
};

}  // namespace weft::broker
