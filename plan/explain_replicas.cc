#include "plan/explain_replicas.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include "plan/explain.h"
#include "plan/kinds.h"
#include "plan/plan.h"

namespace weft::plan {

std::string number_of(size_t count, const char* one) {
  return std::to_string(count) + " " + one + (count == 1 ? "" : "s");
}

namespace {

constexpr size_t kReplicaLines = 3;      // of more replicas the ranges are said
constexpr size_t kReplicasDetailed = 8;  // of which all is said

// Steps a second of all replicas together, over those of all devices as one pipeline.
std::optional<double> over_one_pipeline(const ReplicasRequest& request, const ReplicasPlan& plan) {
  if (!request.compares) return std::nullopt;
  PlanRequest whole = request.pipeline;
  whole.agreed_slots = 0;
  const auto one = make_plan(whole);
  if (!one) return std::nullopt;
  return static_cast<double>(plan.replicas.size()) * seconds(one->predicted_step) /
         std::max(1e-12, seconds(plan.predicted_step));
}

// "; shares: [30, 10]", as a job says them.
std::string describe_shares(const ReplicasPlan& plan) {
  std::string text;
  for (const uint64_t share : plan.shares)
    text += (text.empty() ? "; shares: [" : ", ") + std::to_string(share);
  return text.empty() ? text : text + "]";
}

// Whether anybody waits for an agreement.
std::string describe_overlap(const ReplicasRequest& request, const ReplicasPlan& plan) {
  if (request.settle_every <= 1) return {};
  const std::string others =
      ", of " + std::to_string(request.settle_every - 1) + " in " + std::to_string(request.settle_every);
  return others + (plan.agreement <= plan.round * request.fragments ? " hidden"
                                                                    : " hidden for as long as a round takes");
}

std::string describe_fragments(const ReplicasRequest& request) {
  return request.fragments > 1 ? ", in " + number_of(request.fragments, "fragment") + "," : "";
}

// " as int8"; nothing of what travels as it is.
std::string describe_codec(const ReplicasPlan& plan) {
  return plan.codec.kind == compress::Kind::Dense ? "" : " as " + compress::name(plan.codec);
}

std::string summary(const ReplicasRequest& request, const ReplicasPlan& plan) {
  size_t seats = 0;
  for (const Plan& replica : plan.replicas) seats += replica.stages.size();
  Bytes bytes;
  for (const AgreedWeight& weight : plan.agreed) bytes += weight.bytes;
  std::string text = number_of(plan.replicas.size(), "replica") + " over " + number_of(seats, "peer") + ": ";
  if (!plan.ranges.empty())
    return text + "each step's gradients, " + show(bytes) + describe_codec(plan) + ", are added up in " +
           show(plan.agreement) +
           (plan.shares_slots ? "; the optimizer's slots of a parameter lie with its owner alone" : "");
  if (const auto times = over_one_pipeline(request, plan)) {
    char number[32];
    std::snprintf(number, sizeof number, "%.1f", *times);
    text += std::string(number) + " times one pipeline; ";
  }
  return text + "an agreement of " + show(bytes) + (request.codecs.empty() ? "" : describe_codec(plan)) +
         " every " + number_of(plan.every * request.fragments, "step") + describe_fragments(request) +
         " takes " + show(plan.agreement) + describe_overlap(request, plan) + describe_shares(plan);
}

std::string line_of(const ReplicasRequest& request, const ReplicasPlan& plan, size_t replica) {
  const Plan& own = plan.replicas[replica];
  std::string names;
  for (size_t s = 0; s < std::min(own.stages.size(), kNamesShown); ++s)
    names += (s > 0 ? ", " : "") + request.pipeline.cluster.devices()[own.stages[s].devices.front()].name;
  if (own.stages.size() > kNamesShown) names += ", ...";
  const std::string share =
      !plan.ranges.empty() ? ", computes " + std::to_string(plan.ranges[replica]) + " of " +
                                 std::to_string(request.ranges) + " ranges of microbatches"
      : plan.shares.empty() ? ""
                            : ", makes " + std::to_string(plan.shares[replica]) + " in a round";
  const bool follows = std::binary_search(plan.followers.begin(), plan.followers.end(), replica);
  return "replica " + std::to_string(replica + 1) + ": a step takes " + show(own.predicted_step) + " on " +
         names + share + (follows ? ", once it has been given what the others have" : "");
}

}  // namespace

std::vector<std::string> explain_replicas(const ReplicasRequest& request, const ReplicasPlan& plan) {
  const size_t count = plan.replicas.size(), detailed = std::min(count, kReplicasDetailed);
  if (count == 1) return plan.replicas.front().explanation;
  std::vector<std::string> lines{summary(request, plan)};
  if (count > kReplicaLines) {
    const auto [least, most] =
        std::minmax_element(plan.replicas.begin(), plan.replicas.end(),
                            [](const Plan& a, const Plan& b) { return a.predicted_step < b.predicted_step; });
    const std::string from = show(least->predicted_step), to = show(most->predicted_step);
    lines.push_back("a step of a replica takes " + from + (from == to ? "" : " to " + to));
  }
  for (size_t r = 0; r < detailed; ++r)
    lines.push_back((count > kReplicaLines ? "  " : "") + line_of(request, plan, r));
  for (size_t r = 0; r < detailed; ++r)
    for (const std::string& line : plan.replicas[r].explanation)
      lines.push_back("  replica " + std::to_string(r + 1) + ": " +
                      line.substr(line.starts_with("  ") ? 2 : 0));
  return lines;
}

}  // namespace weft::plan
