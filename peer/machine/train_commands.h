// What a training stage's commands may be, and which data they will read. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "base/result.h"
#include "peer/machine/arrivals.h"
#include "proto/messages.h"

namespace weft::peer {

constexpr bool is_forward(const proto::Command& command) {
  return command.kind == proto::CommandKind::Evaluate || command.kind == proto::CommandKind::Predict;
}
// REQUIRES: is_forward().
constexpr proto::ProgramKind program_of(const proto::Command& forward) {
  return forward.kind == proto::CommandKind::Evaluate ? proto::ProgramKind::Evaluate
                                                      : proto::ProgramKind::Predict;
}
// nullptr: it was not assigned.
const proto::StageProgram* find_program(const proto::AssignStage& assign, proto::ProgramKind kind);
// In which the value is made.
inline uint32_t segment_of(const proto::StageProgram& program, dag::ValueId value) {
  return program.segment_of_op[program.graph->value(value).producer.index];
}

// Nothing of it counts in the loss.
bool is_empty_step(const proto::AssignStage& assign, uint64_t step);
// It has no task: the replica makes none of its own in it, and nobody agrees after it.
bool is_idle_step(const proto::AssignStage& assign, uint64_t step);

// The stage has no part in it: the program, or the tensor that it is about.
bool is_elsewhere(const proto::AssignStage& assign, const proto::Command& command);
// It is carried out when it comes, not in its turn.
bool is_of_agreement(const proto::Command& command);

// `granted`: the last step that commands before it let the stage make. `settled`: they said that it is the
// last one, after which all have the same weights. InvalidArgument: no broker that keeps the protocol says
// that.
Status check_command(const proto::AssignStage& assign, const proto::Command& command, uint64_t granted,
                     std::optional<uint64_t> settled = std::nullopt);
// In order; none: it reads none. REQUIRES: a command that passed.
std::vector<Arrivals::Range> data_of_command(const proto::AssignStage& assign, const proto::Command& command,
                                             uint64_t granted);

}  // namespace weft::peer
