// One stage at work: what has come for it (arrivals.h, agreements.h, gradient_sums.h) and its script
// (train_script.h, or serve_script.h), which says which task comes next. Told which commands, tensors and
// microbatches of data have come and which task is done, it says what to run, what to fetch and what to
// report. It holds no tensor: those lie with whoever runs the tasks, under the same keys. Pure. Bounds: those
// of its parts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "peer/machine/agreements.h"
#include "peer/machine/arrivals.h"
#include "peer/machine/gradient_sums.h"
#include "peer/machine/serve_script.h"
#include "peer/machine/task.h"
#include "peer/machine/train_script.h"
#include "proto/messages.h"

namespace weft::peer {

// Of the run: whose samples the microbatch has.
inline uint64_t step_of_data(const proto::AssignStage& assign, const MicrobatchKey& key) {
  return key.program == proto::ProgramKind::Train ? step_of_run(assign, key.step).value().step : key.step;
}

class StageMachine {
 public:
  struct Options {
    TrainScript::Options script{};
    Arrivals::Options data{};
    ServeScript::Options serve{};
  };
  explicit StageMachine(std::shared_ptr<const proto::AssignStage> assignment)
      : StageMachine(std::move(assignment), Options{}) {}
  StageMachine(std::shared_ptr<const proto::AssignStage> assignment, const Options& options)
      : assignment_(std::move(assignment)),
        arrivals_(assignment_, options.data),
        agreements_(assignment_),
        sums_(assignment_),
        script_(assignment_, {arrivals_, agreements_, sums_}, options.script) {
    if (assignment_->serve && ServeScript::check(*assignment_)) serve_.emplace(assignment_, options.serve);
  }
  StageMachine(const StageMachine&) = delete;
  StageMachine& operator=(const StageMachine&) = delete;

  // What comes. Errors: as Arrivals and TrainScript say, of a broker or neighbour that breaks the protocol.
  Status on_command(const proto::Command& command) { return script_.on_command(command); }
  Status on_norm(const proto::GradientNorm& norm) { return script_.on_norm(norm); }
  Status on_tensor(const plan::Seat& from, const proto::TensorHeader& header) {
    if (serve_) return serve_->on_tensor(from, header);
    if (header.program == proto::ProgramKind::Agree)
      return agreements_.on_tensor(from, header, script_.completed_step());
    if (header.program == proto::ProgramKind::Sum)
      return sums_.on_tensor(from, header, script_.completed_step());
    return arrivals_.on_tensor(from, header, script_.completed_step());
  }
  // Nothing is expected of it any more: its replica was lost, and the others go on without it.
  bool is_left_out(const plan::Seat& seat) const {
    return agreements_.left_out() != nullptr && agreements_.left_out()->has(seat.replica);
  }
  // A tensor that is nobody's fault and of no use: of one that was left out, or for another attempt at what
  // the stage has agreed on, as it says.
  bool passes_over(const plan::Seat& from, const proto::TensorHeader& header) const {
    return is_left_out(from) || agreements_.is_over(header);
  }
  bool refuse_not_finite(const plan::Seat& from, uint64_t steps_before) {
    return script_.refuse_not_finite(from.replica, steps_before);
  }
  void on_data(const MicrobatchKey& key, uint64_t sample_position) {
    arrivals_.on_data(key, sample_position);
  }
  void on_task_done(Instant now, const Task& task, const TaskOutcome& outcome) {
    serve_ ? serve_->on_task_done(now, task, outcome) : script_.on_task_done(now, task, outcome);
  }

  // What to do.
  std::optional<Task> next_task(Instant now, bool may_copy = true) {
    return serve_ ? serve_->next_task() : script_.next_task(now, may_copy);
  }
  bool copies_next() const { return script_.copies_next(); }
  std::vector<MicrobatchKey> fetches() { return arrivals_.fetches(); }
  std::vector<proto::Message> take_reports() { return script_.take_reports(); }
  std::vector<MicrobatchKey> take_finished() { return arrivals_.take_finished(); }
  ServeScript* serve() { return serve_ ? &*serve_ : nullptr; }  // of one that has its place in a ring
  const ServeScript* serve() const { return serve_ ? &*serve_ : nullptr; }

  // Where it is.
  const proto::AssignStage& assignment() const { return *assignment_; }
  uint64_t completed_step() const { return script_.completed_step(); }
  uint64_t last_sequence() const { return script_.last_sequence(); }  // of the commands that came
  // What the broker will never ask about again, by the newest command (proto::Command).
  uint64_t committed() const { return script_.committed(); }
  uint64_t settled() const { return script_.settled(); }
  uint64_t keep_from() const { return script_.keep_from(); }
  // How far the training program's segments have come, the one that runs now included; nothing without one.
  std::optional<proto::StageWork> work(Instant now) const { return script_.work(now); }
  bool is_idle() const { return script_.is_idle() && (!serve_ || serve_->is_idle()); }
  size_t snapshots_ahead() const { return script_.snapshots_ahead(); }  // handed out and not done

 private:
  std::shared_ptr<const proto::AssignStage> assignment_;
  Arrivals arrivals_;
  Agreements agreements_;
  GradientSums sums_;
  TrainScript script_;
  std::optional<ServeScript> serve_;
};

}  // namespace weft::peer
