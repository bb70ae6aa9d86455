#include "peer/machine/train_commands.h"

#include <algorithm>
#include <string>

namespace weft::peer {

using proto::AssignStage;
using proto::Command;
using proto::CommandKind;
using proto::ProgramKind;

const proto::StageProgram* find_program(const AssignStage& assign, ProgramKind kind) {
  for (const proto::StageProgram& program : assign.programs)
    if (program.kind == kind) return &program;
  return nullptr;
}

namespace {

constexpr uint64_t kLocalStepsAtOnceMax = uint64_t{1} << 16;  // each is looked at

tl::unexpected<Error> out_of_turn(const std::string& what) { return fail(ErrorCode::InvalidArgument, what); }

Status check_forward(const Command& command, uint64_t granted) {
  if (command.microbatches == 0 || command.microbatches > 4096 ||
      command.first_microbatch > UINT32_MAX - command.microbatches)
    return out_of_turn("a forward pass over no or too many microbatches");
  if (command.kind == CommandKind::Evaluate && command.step != granted)
    return out_of_turn("an evaluation after a step that is not the last one granted");
  return {};
}

// The round whose end is the last step granted.
bool ends_last(const AssignStage& assign, const Command& command, uint64_t granted) {
  return assign.local && command.step == granted && command.step > assign.local->steps.begun_after &&
         ends_round(assign, command.step);
}

Status check_settle(const AssignStage& assign, const Command& command, uint64_t granted) {
  if (!ends_last(assign, command, granted) || agrees_after(assign, command.step))
    return out_of_turn("a round that is to be waited for, and is not the next or is anyway");
  return {};
}

Status check_of_mean(const AssignStage& assign, const Command& command, uint64_t granted) {
  if (!assign.local || command.step != granted || command.check.agreement > granted ||
      command.check.agreement <= assign.local->steps.begun_after ||
      !ends_round(assign, command.check.agreement))
    return out_of_turn("a piece of a mean on which no replicas have agreed");
  return {};
}

Status check_leave_out(const AssignStage& assign, const Command& command, uint64_t granted) {
  if (!ends_last(assign, command, granted))
    return out_of_turn("replicas that are left out, but not of the agreement that is next");
  const replicas::LeftOut& left_out = command.left_out;
  if (left_out.replicas.empty() || left_out.has(assign.seat.replica) ||
      std::max(left_out.replicas.back(), left_out.owner) >= assign.local->steps.terms.count)
    return out_of_turn("replicas that are left out and cannot be");
  return {};
}

// A replica has no data in a step in which it makes none of its own.
std::vector<Arrivals::Range> data_of_steps(const AssignStage& assign, uint64_t first, uint64_t last) {
  const proto::MicrobatchShare share = microbatches_of(assign);
  const Arrivals::Range all{ProgramKind::Train, first, last, share.first, share.count};
  if (!assign.local) return {all};
  std::vector<Arrivals::Range> ranges;
  for (uint64_t step = first; step <= last; ++step) {
    if (!step_of_run(assign, step)) continue;
    if (ranges.empty() || ranges.back().last_step + 1 < step) {
      ranges.push_back(all);
      ranges.back().first_step = step;
    }
    ranges.back().last_step = step;
  }
  return ranges;
}

}  // namespace

bool is_empty_step(const AssignStage& assign, uint64_t step) {
  if (assign.training.empty_steps.empty()) return false;
  const auto at = step_of_run(assign, step);
  return at && assign.training.is_empty(at->step);
}

bool is_idle_step(const AssignStage& assign, uint64_t step) {
  return assign.local && !step_of_run(assign, step) && !ends_round(assign, step);
}

bool is_elsewhere(const AssignStage& assign, const Command& command) {
  if (command.kind == CommandKind::CheckMean) {
    const auto& tensors = assign.local->tensors;
    return is_follower(assign) || std::none_of(tensors.begin(), tensors.end(), [&](const auto& tensor) {
             return tensor.number == command.check.tensor;
           });
  }
  return is_forward(command) && find_program(assign, program_of(command)) == nullptr;
}

bool is_of_agreement(const Command& command) {
  return command.kind == CommandKind::LeaveOut || command.kind == CommandKind::Settle;
}

Status check_command(const AssignStage& assign, const Command& command, uint64_t granted,
                     std::optional<uint64_t> settled) {
  if (is_forward(command)) return check_forward(command, granted);
  if (command.kind == CommandKind::Finish) return {};
  if (command.kind == CommandKind::LeaveOut) return check_leave_out(assign, command, granted);
  if (command.kind == CommandKind::Settle) return check_settle(assign, command, granted);
  if (command.kind == CommandKind::CheckMean) return check_of_mean(assign, command, granted);
  if (find_program(assign, ProgramKind::Train) == nullptr)
    return out_of_turn("a command for a program that was not assigned");
  if (command.kind == CommandKind::Advance) {
    if (command.step <= granted || command.step > assign.training.steps || settled)
      return out_of_turn("a grant up to step " + std::to_string(command.step) + " after " +
                         std::to_string(granted));
    if (assign.local && command.step - granted > kLocalStepsAtOnceMax)
      return out_of_turn("a grant of more than " + std::to_string(kLocalStepsAtOnceMax) + " steps at once");
  } else if (command.kind == CommandKind::Compare) {
    if (command.step != granted || command.step >= assign.training.steps)
      return out_of_turn("a comparison on a step that does not follow the last one granted");
    if (assign.training.microbatches() < 2)
      return out_of_turn("a comparison where a step has one microbatch");
    if (assign.local || assign.exact) return out_of_turn("a comparison of one of several replicas");
  } else if (command.step != granted) {
    return out_of_turn("a snapshot of a step that is not the last one granted");
  } else if (assign.local && command.step != settled && !agrees_after(assign, command.step)) {
    return out_of_turn("a snapshot of a step after which replicas do not agree");
  }
  return {};
}

std::vector<Arrivals::Range> data_of_command(const AssignStage& assign, const Command& command,
                                             uint64_t granted) {
  if (command.kind == CommandKind::Advance) return data_of_steps(assign, granted + 1, command.step);
  if (command.kind == CommandKind::Compare)
    return {{ProgramKind::Train, command.step + 1, command.step + 1, proto::kComparisonMicrobatch,
             proto::kComparisonPasses}};
  if (is_forward(command))
    return {
        {program_of(command), command.step, command.step, command.first_microbatch, command.microbatches}};
  return {};
}

}  // namespace weft::peer
