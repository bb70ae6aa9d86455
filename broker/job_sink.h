// A run's wishes, in the name of its job. For the files of the core alone.
#pragma once

#include <cstring>

#include "broker/broker.h"

namespace weft::broker {

// Why a job is planned, as its records say: what a broker that was restarted counts by. Nothing: the first
// time.
inline constexpr const char* kPlannedOnceMore =
    "planned once more, for the broker ended while it was planned";
inline constexpr const char* kPlacedAgain = "others take its stages";

class Broker::Sink final : public RunSink {
 public:
  Sink(Broker& broker, Job& job)
      : broker_(broker),
        job_(job),
        before_(job.run->committed_step()),
        repeats_(job.run->repeats_dropped()) {}
  // What ends the run is done after the run has returned, for it destroys it.
  ~Sink() override;
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;

  void issue(const proto::Command& command) override;
  void send_to_stage(uint32_t stage, proto::Message message) override;
  void emit(proto::JobEvent event) override;
  void step_repeated(uint64_t step, double loss) override;
  void commit_checkpoint(CheckpointCommitted checkpoint) override;
  void commit_round(CheckpointCommitted round, bool direct) override;
  bool copies_go_direct() const override { return job_.copies_go_direct; }
  void direct_copy_changed() override { broker_.stand_bys_dirty_ = true; }
  void direct_copies_failed(const std::string& why) override;
  void upload_failed(uint32_t stage, uint64_t step, const Error& error) override;
  void commit_prediction(proto::PredictionReport report) override;
  void compared(const proto::LinkComparison& comparison) override;
  void finished(uint64_t step) override;
  void stopped(uint64_t step) override;
  void diverged(const std::string& what) override;

 private:
  void new_recovery_point(uint64_t step);

  Broker& broker_;
  Job& job_;
  uint64_t before_, repeats_;
  bool finished_ = false, stopped_ = false, came_forward_ = false;
  uint64_t step_ = 0;
  std::optional<std::string> diverged_;
};

}  // namespace weft::broker
