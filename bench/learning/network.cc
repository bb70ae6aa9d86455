#include "bench/learning/network.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "configs/catalogue.h"
#include "dag/op_table.h"
#include "dag/state.h"
#include "plan/pipeline.h"
#include "plan/plan.h"
#include "plan/predict.h"

namespace weft::learning {

using plan::CompressionPolicy;

namespace {

constexpr compress::Codec kSixBits{.kind = compress::Kind::Blocks, .bits = 6};
constexpr double kNearlyAsFast = 1.05;  // plan/plan.cc's

}  // namespace

std::string_view Policy::kind_name() const {
  switch (kind) {
    case CompressionPolicy::None:
      return "none";
    case CompressionPolicy::Auto:
      return "auto";
    case CompressionPolicy::AdaTopK:
      return "adatopk";
    case CompressionPolicy::Uniform:
      return "uniform";
  }
  return "";
}

Result<Policy> parse_policy(std::string_view text) {
  constexpr std::string_view kAdaptive = "adatopk:";
  Policy policy{.name = std::string(text)};
  if (text == "none" || text == "dense") return policy;
  if (text == "auto") {
    policy.kind = CompressionPolicy::Auto;
  } else if (text.starts_with(kAdaptive)) {
    policy.kind = CompressionPolicy::AdaTopK;
    const std::string_view number = text.substr(kAdaptive.size());
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), policy.ratio);
    if (error != std::errc() || end != number.data() + number.size() || !(policy.ratio >= 1))
      return fail(ErrorCode::InvalidArgument,
                  "adatopk takes a ratio of at least 1, as adatopk:100, not '" + std::string(text) + "'");
  } else {
    policy.kind = CompressionPolicy::Uniform;
    const size_t slash = text.find('/');
    WEFT_TRY(policy.forward, compress::parse(text.substr(0, slash)));
    policy.backward = policy.forward;
    if (slash != std::string_view::npos) {
      WEFT_TRY(policy.backward, compress::parse(text.substr(slash + 1)));
    }
  }
  return policy;
}

Result<Network> Network::create(const JobGraphs& graphs, uint32_t cuts, const Setting& setting) {
  Network network;
  network.graphs_ = &graphs;
  network.cuts_ = cuts;
  network.setting_ = setting;
  network.lowered_ = std::make_shared<const dag::Lowered>(
      dag::lower_traced(graphs.training.graph, dag::op_table(),
                        {.fuse_elementwise = true, .convolution_layout = dag::Layout::Plain}));
  WEFT_TRY(const configs::CatalogueDevice device, configs::find_device(setting.device));
  std::vector<plan::DeviceView> devices;
  for (uint32_t s = 0; s <= cuts; ++s)
    devices.push_back({.name = device.name + "-" + std::to_string(s + 1),
                       .rates = configs::rates_of(device.peak_fp32_flops, device.memory_bandwidth),
                       .memory = device.memory,
                       .fingerprint = device.name,
                       .site = s});
  network.cluster_ = plan::ClusterView(devices);
  const Duration latency(static_cast<int64_t>(setting.round_trip_ms / 2 * 1e6));
  const auto rate_of_cut = [&](uint32_t cut) {
    return setting.bytes_per_second * setting.spread[cut % setting.spread.size()];
  };
  // What two stages that are not neighbours send each other, a tied weight, passes every cut between them.
  for (uint32_t a = 0; a <= cuts; ++a)
    for (uint32_t b = 0; b <= cuts; ++b) {
      double rate = std::numeric_limits<double>::infinity();
      for (uint32_t cut = std::min(a, b); cut < std::max(a, b); ++cut)
        rate = std::min(rate, rate_of_cut(cut));
      if (a != b) network.cluster_.set_link(a, b, {rate, latency});
    }
  // The backend's own lowering is a class beside, so that no cut goes through one of its groups.
  const std::shared_ptr<const dag::Lowered> classes[] = {network.lowered_, graphs.lowered_training};
  network.model_ = plan::make_model(graphs.training.graph, classes);
  WEFT_TRY(const plan::Plan plan, plan::make_plan(network.request()));
  network.stage_of_op_ = plan.stage_of_op;
  network.plan_lines_ = plan.explanation;
  network.alone_seconds_ = seconds(plan.predicted_alone);
  std::vector<plan::StageDevice> on;
  for (const plan::StagePlan& stage : plan.stages) {
    network.devices_.push_back(stage.devices.front());
    on.push_back({.rates = devices[stage.devices.front()].rates});
  }
  const plan::PlanRequest request = network.request();
  WEFT_TRY(network.pipeline_,
           plan::make_pipeline(network.model_, network.stage_of_op_, on,
                               {request.microbatches, request.optimizer_slots, request.gradient_sums}));
  return network;
}

plan::PlanRequest Network::request() const {
  const configs::Job& job = graphs_->job;
  return {.graph = &graphs_->training.graph,
          .classes = {lowered_, graphs_->lowered_training},
          .microbatches = graphs_->microbatches(),
          .stages = cuts_ + 1,
          .optimizer_slots = static_cast<uint32_t>(optimizer_slots(job.optimizer).size()),
          .gradient_sums = job.gradient_ranges > 1 ? 2u : 1u,
          .clips_norm = job.clip_norm > 0,
          .evaluates = true,
          .cluster = cluster_,
          .strategy = setting_.strategy};
}

// As make_plan chooses them, but on this cut, whatever the policy: links that are hidden, or six bits
// everywhere, or none, and of those that are nearly as fast as the fastest the gentlest.
std::vector<plan::LinkCodec> Network::codecs(const Policy& policy) const {
  if (policy.kind == CompressionPolicy::Uniform) {
    std::vector<plan::LinkCodec> codecs = plan::choose_codecs(
        {.policy = CompressionPolicy::Uniform, .codec = policy.forward}, pipeline_, cluster_, devices_);
    if (policy.backward == policy.forward) return codecs;
    codecs = plan::choose_codecs(
        {.policy = CompressionPolicy::Uniform, .codec = compress::Codec{.kind = compress::Kind::Float16}},
        pipeline_, cluster_, devices_);
    for (plan::LinkCodec& link : codecs) link.codec = link.backward ? policy.backward : policy.forward;
    std::erase_if(codecs, [](const auto& link) { return link.codec.kind == compress::Kind::Dense; });
    return codecs;
  }
  if (policy.kind == CompressionPolicy::AdaTopK)
    return plan::choose_codecs({.policy = policy.kind, .codec = {}, .ratio = policy.ratio}, pipeline_,
                               cluster_, devices_);
  std::vector<std::vector<plan::LinkCodec>> tried;
  std::vector<double> took;
  for (const plan::Compression& compression :
       {plan::Compression{}, plan::Compression{.policy = policy.kind},
        plan::Compression{.policy = CompressionPolicy::Uniform, .codec = kSixBits}}) {
    tried.push_back(plan::choose_codecs(compression, pipeline_, cluster_, devices_));
    took.push_back(step_seconds(tried.back(), {}, 0));
    if (policy.kind == CompressionPolicy::None) return tried.back();
  }
  const double fastest = *std::min_element(took.begin(), took.end());
  for (size_t i = 0; i < tried.size(); ++i)
    if (took[i] <= kNearlyAsFast * fastest) return tried[i];
  return tried.back();
}

double Network::step_seconds(std::span<const plan::LinkCodec> codecs, const std::map<Direction, Sent>& sent,
                             uint64_t microbatches) const {
  plan::Pipeline pipeline = pipeline_;
  plan::apply_codecs(codecs, pipeline);
  // A codec's length may depend on the tensor, and what is not finite goes dense: as it really was.
  std::map<Direction, double> planned;
  const auto direction_of = [](const plan::Message& message) {
    return Direction{message.from_stage, message.to_stage, message.backward};
  };
  for (const plan::Message& message : pipeline.messages)
    planned[direction_of(message)] += static_cast<double>(message.bytes.value);
  for (plan::Message& message : pipeline.messages) {
    const auto at = sent.find(direction_of(message));
    if (at == sent.end() || microbatches == 0) continue;
    const double really = static_cast<double>(at->second.wire) / static_cast<double>(microbatches);
    message.bytes = {
        std::llround(static_cast<double>(message.bytes.value) * really / planned.at(direction_of(message)))};
    message.framing = plan::framing_of(message.bytes);
  }
  plan::PredictRequest request;
  request.pipeline = &pipeline;
  request.cluster = &cluster_;
  request.devices = devices_;
  request.microbatches = graphs_->microbatches();
  if (graphs_->job.clip_norm > 0)
    request.norm_round_trip = Duration(static_cast<int64_t>(setting_.round_trip_ms * 1e6));
  double best = std::numeric_limits<double>::infinity();
  for (uint32_t extra = 0; extra < graphs_->microbatches(); ++extra) {
    request.in_flight.clear();
    for (uint32_t s = 0; s < stages(); ++s)
      request.in_flight.push_back(std::min(graphs_->microbatches(), stages() - s + extra));
    best = std::min(best, seconds(plan::predict(request).step));
  }
  return best;
}

std::string Network::describe() const {
  std::string rates;
  for (uint32_t cut = 0; cut < cuts_; ++cut) {
    char text[32];
    std::snprintf(text, sizeof text, "%g",
                  8e-6 * setting_.bytes_per_second * setting_.spread[cut % setting_.spread.size()]);
    rates += (cut ? ", " : "") + std::string(text);
  }
  char latency[32];
  std::snprintf(latency, sizeof latency, "%g", setting_.round_trip_ms);
  return std::to_string(stages()) + " stages on " + setting_.device + ", links of " + rates +
         " Mbit/s each way, " + latency + " ms round trip";
}

std::string describe_codecs(std::span<const plan::LinkCodec> codecs) {
  std::string phases[2];
  for (const bool backward : {false, true}) {
    std::vector<std::string> names;
    for (const plan::LinkCodec& link : codecs)
      if (link.backward == backward) {
        const std::string name = compress::name(link.codec);
        if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
      }
    for (const std::string& name : names) phases[backward] += (phases[backward].empty() ? "" : ", ") + name;
    if (phases[backward].empty()) phases[backward] = "dense";
  }
  return phases[0] == phases[1] ? phases[0] : phases[0] + " / " + phases[1];
}

}  // namespace weft::learning
