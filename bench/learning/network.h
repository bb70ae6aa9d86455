// The emulated setting of a convergence run: stages on devices of the catalogue, a slow link at each cut. It
// cuts the job, chooses each policy's codecs as the planner does, and tells how long a step takes with the
// bytes that were really sent. Nothing is waited for: the time is predicted.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "bench/learning/job_graphs.h"
#include "bench/learning/stages.h"
#include "plan/compression.h"
#include "plan/model.h"
#include "plan/request.h"

namespace weft::learning {

struct Setting {
  std::string device = "rtx3080";   // of every stage, by its name in the catalogue
  double bytes_per_second = 2.5e6;  // of the slowest link, each way
  // The i-th cut's link is so many times as fast, over and over; 1 is the slowest.
  std::vector<double> spread = {1, 2, 4, 5};
  double round_trip_ms = 40;
  std::string strategy = "equal-ops-joining";  // how the job is cut, by its name in plan/strategy.h
};

// What a run does with its links, as --codecs names it:
//   none | auto | adatopk:RATIO | CODEC (all links alike) | CODEC/CODEC (activations / cotangents)
struct Policy {
  std::string name;  // as given
  plan::CompressionPolicy kind = plan::CompressionPolicy::None;
  compress::Codec forward{}, backward{};  // Uniform
  double ratio = 100;                     // AdaTopK
  std::string_view kind_name() const;
};
Result<Policy> parse_policy(std::string_view text);

class Network {
 public:
  // Cuts the training graph into cuts + 1 stages, planned with dense links. `graphs` must outlive this.
  static Result<Network> create(const JobGraphs& graphs, uint32_t cuts, const Setting& setting);

  const std::vector<uint32_t>& stage_of_op() const { return stage_of_op_; }
  uint32_t stages() const { return cuts_ + 1; }

  std::vector<plan::LinkCodec> codecs(const Policy& policy) const;
  // `sent`: in so many microbatches of training. As many microbatches under way as make the step shortest.
  double step_seconds(std::span<const plan::LinkCodec> codecs, const std::map<Direction, Sent>& sent,
                      uint64_t microbatches) const;
  double alone_seconds() const { return alone_seconds_; }  // a step on one of the machines, without links
  const std::vector<std::string>& plan_lines() const { return plan_lines_; }  // for people, of dense links
  std::string describe() const;  // "3 stages on rtx3080, links of 20 and 40 Mbit/s, 40 ms round trip"

 private:
  plan::PlanRequest request() const;

  const JobGraphs* graphs_ = nullptr;
  uint32_t cuts_ = 0;
  Setting setting_;
  std::shared_ptr<const dag::Lowered> lowered_;  // as devices of the catalogue run it
  plan::Model model_;
  plan::ClusterView cluster_;
  std::vector<uint32_t> stage_of_op_, devices_;
  plan::Pipeline pipeline_;  // dense
  double alone_seconds_ = 0;
  std::vector<std::string> plan_lines_;
};

// "activations / cotangents", each by its distinct codecs in the order of links.
std::string describe_codecs(std::span<const plan::LinkCodec> codecs);

}  // namespace weft::learning
