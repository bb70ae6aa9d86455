// Says in lines for people what a plan does and why. First a summary of at most kSummaryLines: the stages (of
// many, the ranges), the bottleneck, the prediction; first of all, that fewer stages would be faster, where
// they would. Then, each behind two spaces, all that is known of every
// stage, and what the neighbours of each cut would have cost; of a ring also why it is one.
#pragma once

#include <string>
#include <vector>

#include "plan/model.h"
#include "plan/pipeline.h"
#include "plan/predict.h"
#include "plan/proposal.h"
#include "plan/request.h"

namespace weft::plan {

struct Explained {
  const PlanRequest* request = nullptr;
  const Model* model = nullptr;
  const Plan* plan = nullptr;
  const Pipeline* pipeline = nullptr;
  const Prediction* prediction = nullptr;
  const Proposal* proposal = nullptr;
};
inline constexpr size_t kSummaryLines = 4;  // who passes them on has one more for a word of its own
std::vector<std::string> explain(const Explained& what);

// "83.2 ms", "1.30 MiB", "100 Mbit/s 20 ms".
// What `policy: auto` would bring a job that is not compressed, in one line; empty: too little to speak of.
std::string describe_gain(const Plan& dense, const Plan& compressed);

std::string show(Duration duration);
std::string show(Bytes bytes);
std::string show(const LinkView& link);

}  // namespace weft::plan
