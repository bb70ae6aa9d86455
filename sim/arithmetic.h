// What the simulated stages compute instead of tensors: every value is a 64-bit hash of its op and its
// operands, so that a wrong order, a stale value, one too many or too few changes everything after it. Works
// on any graph; `Alone` is the plain loop over the whole graph that the cluster is compared with.
#pragma once

#include <bit>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dag/graph.h"
#include "proto/messages.h"
#include "sim/world.h"

namespace weft::sim {

// The content of a tensor is its hash, and so is its name.
Digest digest_of(uint64_t value);
uint64_t value_of(const Digest& digest);

uint64_t initial_value(uint64_t job_seed, const std::string& initializer);
uint64_t data_value(uint64_t job_seed, proto::ProgramKind program, const std::string& input,
                    uint64_t sample_position);
// A scalar output's number: small and whole, so that sums are exact.
inline double scalar_of(uint64_t value) { return 1 + static_cast<double>(value % 1000); }
inline double square_of(uint64_t gradient) { return static_cast<double>(gradient % 4096); }

// A trained tensor with its optimizer's slots.
struct TensorState {
  uint64_t value = 0;
  uint64_t slots[2] = {0, 0};  // zero at the start
  bool operator==(const TensorState&) const = default;
};
// Of a replica with local steps, in place of the step.
inline uint64_t number_of_local_update(uint64_t update, uint64_t scheduled) { return mix(update, scheduled); }
TensorState updated(const TensorState& before, uint32_t slot_count, uint64_t gradient, double norm,
                    uint64_t step);

// A graph ready to be computed, segment by segment.
class HashProgram {
 public:
  HashProgram(std::shared_ptr<const dag::Graph> graph, const std::vector<uint32_t>& segment_of_op,
              uint32_t segment_count);

  struct Output {
    dag::OutputRole role;
    uint32_t value;  // index
    uint32_t segment;
    std::string name;
  };
  const dag::Graph& graph() const { return *graph_; }
  uint32_t segment_count() const { return static_cast<uint32_t>(ops_of_segment_.size()); }
  uint32_t ops_in(uint32_t segment) const { return ops_of_segment_[segment].kernels; }
  const std::vector<Output>& outputs() const { return outputs_; }
  // Initializers in the graph's order.
  const std::vector<std::string>& initializers() const { return initializers_; }
  // By value of the graph. Inputs and initializers must be there.
  void run(uint32_t segment, std::vector<uint64_t>& values) const;
  size_t value_count() const { return value_count_; }
  uint32_t initializer_value(size_t index) const { return initializer_values_[index]; }

 private:
  struct Op {
    uint64_t kind;
    uint32_t first_operand, operands, first_output, outputs;
  };
  struct Segment {
    std::vector<Op> ops;
    uint32_t kernels = 0;
  };
  std::shared_ptr<const dag::Graph> graph_;
  size_t value_count_ = 0;
  std::vector<Segment> ops_of_segment_;
  std::vector<uint32_t> operands_, results_;
  std::vector<std::pair<uint32_t, uint64_t>> constants_;  // by value
  std::vector<Output> outputs_;
  std::vector<std::string> initializers_;
  std::vector<uint32_t> initializer_values_;
};

}  // namespace weft::sim
