// What a run wants from the broker around it: values, in the order in which they are to be carried out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "broker/records.h"
#include "proto/messages.h"

namespace weft::broker {

// It becomes durable, and then it goes to every stage.
struct IssueCommand {
  proto::Command command{};
};
struct TellStage {
  uint32_t stage = 0;
  proto::Message message{};
};
struct SayEvent {
  proto::JobEvent event{};  // without job, sequence and time
};
// A step that the event log holds already: it was done again, after the run had gone back.
struct RepeatedStep {
  uint64_t step = 0;  // of the run
  double loss = 0;
};
// All of it is there, and its step is committed: the run can go back to it.
struct WholeSnapshot {
  CheckpointCommitted snapshot{};
  bool is_durable = false;  // a checkpoint; else it need not survive the broker
  bool is_direct = false;   // it is with peers alone
  bool stays = false;       // with the stages themselves
};
// Every stage has made its part of Run::copy_to_fetch(), which may be another one now.
struct DirectCopyChanged {};
// From now on copies go to the broker.
struct DirectCopiesFailed {
  std::string why{};
};
// A stage could not upload its part; the run goes on and tries again later.
struct UploadFailed {
  uint32_t stage = 0;
  uint64_t step = 0;  // of the run
  Error error{};
};
struct TakenPrediction {
  proto::PredictionReport report{};
};
// The run stands still until Run::go_on(): whoever looks at this may ask it to stop before.
struct Compared {
  proto::LinkComparison comparison{};
};
// A step that is not finite, and with which the run does not go on: no step from there on is committed.
struct Divergence {
  uint64_t step = 0;
  std::optional<uint32_t> stage{};  // whose numbers they are
  std::string what{};
  // It may be finite when it is done again, by somebody else; false: it was skipped, as so many before it.
  bool may_pass = true;
};
// Stages of replicas have agreed on a tensor, and hold other bytes of it: the run ends by it.
struct Disagreement {
  uint64_t step = 0;  // of the run
  uint32_t stage = 0, other = 0;
  std::string tensor{};
  std::vector<uint32_t> outvoted{};  // whose bytes none of most others has; empty: nobody can tell
};
// A mean on which replicas had agreed is another than it should be: the run ends by it.
struct WrongMean {
  uint64_t step = 0;  // of the run
  std::string tensor{};
  uint32_t owner = 0;                      // the stage that took it
  std::vector<uint32_t> wrong{}, other{};  // stages, as replicas::MeanFinding has them
};
// The stage had agreed with what a lost replica sent, and others may lack it: the run goes back.
struct TooLateToLeaveOut {
  uint32_t stage = 0;
};
// The last checkpoint is of the last step, or all predictions are there.
struct Finished {
  uint64_t step = 0;  // of the run
};
// As asked, after a snapshot.
struct Stopped {
  uint64_t step = 0;  // of the run
};

using RunEffect = std::variant<IssueCommand, TellStage, SayEvent, RepeatedStep, WholeSnapshot,
                               DirectCopyChanged, DirectCopiesFailed, UploadFailed, TakenPrediction, Compared,
                               Divergence, Disagreement, WrongMean, TooLateToLeaveOut, Finished, Stopped>;
using RunEffects = std::vector<RunEffect>;

}  // namespace weft::broker
