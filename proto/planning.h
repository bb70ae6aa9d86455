// What the broker and the process that plans a job for it say to each other, over a pipe between the two
// (broker/service/plan_worker.h). Nobody else says or hears any of it. A question is a PlanQuestion, a
// SubmitJob and, where it says so, a CheckpointReport with the tensors to go on from; an answer is a
// PlanAnswer and an AssignStage for each stage of its plan.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dag/loss.h"
#include "plan/cluster.h"
#include "proto/messages.h"
#include "replicas/chosen_terms.h"

namespace weft::proto {

enum class PlanTask : uint8_t {
  Check,  // whether the submission is a job
  Open,   // what feeds a run of it that goes on
  Plan,   // a run of it
};

// A peer that may be used.
struct PlanCandidate {
  PeerId peer{};
  std::string name{};
  DeviceReport device{};
  // In which it had a part, and what it learnt it holds still: of those that the job goes on from.
  std::optional<uint32_t> replica{};
};

struct PlanQuestion {
  PlanTask task = PlanTask::Check;
  JobNumber job = 0;
  PlanVersion plan_version = 0;
  uint32_t microbatch_size = 0;    // of a run before; 0: none has run
  replicas::ChosenTerms chosen{};  // by a plan of a run before
  uint32_t gentler = 0;
  bool is_first = false;  // it was never planned before
  bool has_checkpoint = false;
  bool may_follow = false;  // who lacks what it has may follow those that have it
  std::vector<PlanCandidate> candidates{};
  plan::ClusterView cluster{};  // of the candidates, in that order
};

// Where samples come from (data/data_spec.h); paths as the submission names its files.
enum class DataFormat : uint8_t { Idx, Npz, Text };
// As data::Transform, of a column by its name.
struct ColumnTransform {
  std::string column{};
  double scale = 1;
  std::vector<double> mean{}, deviation{};  // deviations are not zero
  bool flip = false;
  uint32_t crop = 0;
};
struct DataSource {
  DataFormat format = DataFormat::Npz;
  std::string path{};    // of idx, the images
  std::string labels{};  // idx
  double scale = 1, mean = 0, deviation = 1;
  int64_t sequence_length = 0;  // text
  uint32_t token_bytes = 1;     // text: 1, 2 or 4
  double validation = 0;
  bool is_validation = false;
  std::vector<std::string> columns{};         // npz: those that are read
  std::vector<ColumnTransform> transforms{};  // npz
};
struct InputFeed {
  std::string input{};
  uint32_t column = 0;
  std::optional<dag::TensorSpec> sample{};  // where the graph takes another than the column's
};
// The values that an integer input may hold, both ends included, and one more.
struct InputBounds {
  std::string input{};
  int64_t low = 0, high = 0;
  std::optional<int64_t> also{};
};
// What the loss of a step is divided by (data/divisor.h).
struct StepDivisor {
  std::string input{};
  std::optional<uint32_t> labels{}, weights{};  // columns
  dag::CountRule rule{};
};
struct ProgramFeed {
  ProgramKind program = ProgramKind::Train;
  DataSource data{};
  std::vector<InputFeed> inputs{};
  std::vector<InputBounds> bounds{};
  std::vector<StepDivisor> divisors{};  // of training
};
// What the broker keeps of a job that it does not import itself: how to feed its stages, and where their
// first values are.
struct JobFeed {
  uint64_t steps = 0;  // 0: prediction
  uint32_t batch_size = 1, microbatch_size = 1;
  bool shuffle = true;
  uint64_t seed = 0;
  std::vector<ProgramFeed> programs{};  // each kind once
  std::vector<TensorReference> initial{};
  uint32_t loss_terms = 0;
  bool serves = false;  // then it has neither steps nor programs
};

struct PlanAnswer {
  std::optional<Error> error{};  // then nothing else counts
  bool compresses = false;       // of a Check
  dag::Arithmetic arithmetic = dag::Arithmetic::F32;
  bool skips_steps = false;
  uint32_t peer_minor = 0;  // of the oldest protocol whose peers can serve it
  std::string serves{};     // under which name; empty: it does not
  std::optional<JobFeed> feed{};
  std::optional<RunPlan> plan{};
};

}  // namespace weft::proto
