// A run's wishes, in the name of its job. Internal to the rooms that speak to runs.
#pragma once

#include "broker/runs.h"

namespace weft::broker {

class Runs::Sink final : public RunSink {
 public:
  // REQUIRES: it runs.
  Sink(Runs& runs, Job& job);
  // What the run came to is said after it has returned.
  ~Sink() override;
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;

  void issue(const proto::Command& command) override;
  void send_to_stage(uint32_t stage, proto::Message message) override;
  void emit(proto::JobEvent event) override;
  void step_repeated(uint64_t step, double loss) override;
  void commit_checkpoint(CheckpointCommitted checkpoint) override;
  void commit_round(CheckpointCommitted round, bool direct) override;
  bool copies_go_direct() const override { return at_.copies_go_direct; }
  void direct_copy_changed() override { runs_.step_.stand_bys = true; }
  void direct_copies_failed(const std::string& why) override;
  void upload_failed(uint32_t stage, uint64_t step, const Error& error) override;
  void commit_prediction(proto::PredictionReport report) override;
  void compared(const proto::LinkComparison& comparison) override;
  void finished(uint64_t step) override;
  void stopped(uint64_t step) override;
  void diverged(const Divergence& divergence) override;

 private:
  void new_recovery_point(uint64_t step);

  Runs& runs_;
  Job& job_;
  phase::Running& at_;
  uint64_t before_, repeats_;
  bool came_forward_ = false;
  std::optional<Verdict> verdict_;
};

}  // namespace weft::broker
