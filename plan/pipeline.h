// What the stages of a cut do in a step: segments that run, values that travel, memory that is held.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "plan/model.h"

namespace weft::plan {

struct Segment {
  Duration compute{};  // of one microbatch
  bool backward = false;
  Duration repeated{};  // of `compute`, making forward values again
};
struct StageWork {
  std::vector<Segment> segments;
  Duration update{};  // once a step
  Bytes persistent;   // initializers, gradients, optimizer slots, constants; what one task needs at a time
  Bytes microbatch;   // each microbatch in flight: what lives from one of its tasks to another
  Bytes host;         // a copy of initializers and slots: as fetched, or on its way to a snapshot
  Bytes copied;       // of that, what copies of the state send (dag/copied_bytes.h)
  Bytes data;         // that the broker sends it for each microbatch
  uint32_t data_segment = 0;  // the first that reads any of it
  uint32_t ops = 0;           // forward ops that compute

  Duration busy(uint32_t microbatches) const;  // computing, in a step of so many
};
// What one segment sends another stage for each microbatch, of one phase. The segment that receives is the
// first that reads.
struct Message {
  uint32_t from_stage = 0, from_segment = 0;
  uint32_t to_stage = 0, to_segment = 0;
  Bytes bytes;
  Bytes framing{};  // what frames and TLS add on the way
  bool backward = false;
  Bytes dense{};                  // what `bytes` is without a codec
  std::vector<int64_t> floats{};  // elements of each tensor in it that may have one (plan/compression.h)
};
Bytes framing_of(Bytes bytes);
struct Pipeline {
  std::vector<StageWork> stages;
  std::vector<Message> messages;  // ordered by sender, receiver
};

// What lasts beside a parameter on a device, each tensor of it aligned.
int64_t bytes_beside(const dag::TensorSpec& parameter, const dag::BesideParameter& beside);

// Scores that a mask has set to -inf: a tensor of them travels dense (peer/service/encoding.h).
bool may_be_infinite(const dag::Graph& graph, dag::ValueId value);

struct StageDevice {
  Rates rates{};
  uint32_t device_class = 0;  // of the model's
  uint32_t threads = 0;       // DeviceView's
  bool recomputes = false;    // keeps nothing of forward but what it was given (dag/recompute.h)
};
struct PipelineOptions {
  uint32_t microbatches = 1;
  uint32_t optimizer_slots = 0;
  uint32_t gradient_sums = 1;
  uint32_t agreed_slots = 0;
  dag::SlotType slot_type = dag::SlotType::Float32;
  uint32_t slots_among = 1;

  dag::BesideParameter beside() const { return {optimizer_slots, slot_type, agreed_slots, slots_among}; }
};
// `stage_of_op` as dag::split takes it. The memory is an estimate on the safe side: what lives together by
// lifetimes, a fifth for gaps between blocks, and what is being sent. Errors: those of dag::cut.
Result<Pipeline> make_pipeline(const Model& model, std::span<const uint32_t> stage_of_op,
                               std::span<const StageDevice> devices, const PipelineOptions& options);

}  // namespace weft::plan
