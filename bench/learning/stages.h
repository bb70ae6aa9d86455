// A job's stages in one process, run one after another for each microbatch. What crosses a cut is encoded and
// decoded by the functions that peers use, with the random numbers of its seed, step, microbatch and edge:
// the weights are those of the same plan between peers.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "base/result.h"
#include "bench/learning/job_graphs.h"
#include "compress/codec.h"
#include "peer/service/stage_runner.h"
#include "plan/compression.h"

namespace weft::learning {

// What one stage sent another in one phase of training.
using Direction = std::tuple<uint32_t, uint32_t, bool>;  // from, to, backward
struct Sent {
  int64_t wire = 0, dense = 0;  // bytes
};

class Stages {
 public:
  // `stage_of_op`: as dag::split takes it, of the training graph. `graphs` must outlive this.
  // Errors: those of dag::split and StageRunner::create.
  static Result<std::unique_ptr<Stages>> create(const JobGraphs& graphs,
                                                const std::vector<uint32_t>& stage_of_op,
                                                std::span<const plan::LinkCodec> codecs,
                                                const dag::Weights& weights, uint64_t seed,
                                                peer::Backend& backend);

  // One whole step: the mean of its microbatches' losses, before the update.
  Result<double> step(uint64_t step, data::Loader& loader);
  // On the held-out samples, as the broker's Evaluate after `step` does it; `dense`: links carry float32.
  Result<double> evaluate(uint64_t step, bool dense);

  const std::map<Direction, Sent>& sent() const { return sent_; }
  uint64_t microbatches_sent() const { return microbatches_sent_; }
  // Weights, optimizer slots and running statistics.
  Result<std::map<dag::StateKey, dag::Tensor>> state(uint64_t step);

 private:
  struct Edge {
    uint32_t from_stage = 0, to_stage = 0;
    uint32_t from_segment = 0, to_segment = 0;
    uint32_t receive = 0;  // index in StageProgram::receives of to_stage
    bool backward = false;
    compress::Codec codec{};
  };
  struct Program {
    std::vector<Edge> edges;
    std::vector<std::vector<uint32_t>> sends;            // by stage: edge of each of StageProgram::sends
    std::vector<uint32_t> segments;                      // by stage
    std::vector<std::pair<uint32_t, uint32_t>> order{};  // stage, segment: each after all that it receives
  };
  struct Numbers {
    std::vector<double> loss, counted, correct;
  };

  Stages(const JobGraphs& graphs, uint64_t seed) : graphs_(graphs), seed_(seed) {}
  Status add_program(proto::ProgramKind kind, const train::Prepared& prepared, const dag::Lowered& lowered,
                     const std::vector<uint32_t>& stage_of_op, std::span<const plan::LinkCodec> codecs,
                     std::vector<proto::AssignStage>& stages);
  Result<Numbers> run(const peer::MicrobatchKey& key, const std::map<std::string, dag::Tensor>& data,
                      bool dense);
  Result<dag::Tensor> carry(const peer::MicrobatchKey& key, uint32_t edge, const dag::Tensor& tensor,
                            bool dense);
  Status update(uint64_t step);

  const JobGraphs& graphs_;
  uint64_t seed_;
  std::map<proto::ProgramKind, Program> programs_;
  std::vector<std::unique_ptr<peer::StageRunner>> runners_;
  std::vector<std::vector<uint32_t>> parameters_;  // by stage: which of the whole graph's its squares are of
  uint32_t parameter_count_ = 0;
  compress::Scratch scratch_;
  std::map<Direction, Sent> sent_;
  uint64_t microbatches_sent_ = 0;
};

}  // namespace weft::learning
