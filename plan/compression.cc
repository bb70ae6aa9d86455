#include "plan/compression.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>

#include "plan/explain.h"
#include "plan/noise.h"

namespace weft::plan {
namespace {

constexpr int64_t kCountMin = 256;     // elements; a header is longer than what less would save
constexpr double kWorthACodec = 1.05;  // a ratio below it stays dense
constexpr uint32_t kMillion = 1'000'000;
constexpr size_t kUsualCount = size_t{1} << 20;

// From gentle to strong.
constexpr std::array kLadder = {compress::Codec{.kind = compress::Kind::Float16},
                                compress::Codec{.kind = compress::Kind::Blocks, .bits = 8},
                                compress::Codec{.kind = compress::Kind::Blocks, .bits = 6},
                                compress::Codec{.kind = compress::Kind::Blocks, .bits = 5},
                                compress::Codec{.kind = compress::Kind::Blocks, .bits = 4}};

double ratio_of(const compress::Codec& codec) {
  return static_cast<double>(kUsualCount * sizeof(float)) /
         static_cast<double>(compress::wire_bytes(codec, kUsualCount));
}

using Direction = std::tuple<uint32_t, uint32_t, bool>;  // from, to, backward
Direction direction_of(const Message& message) {
  return {message.from_stage, message.to_stage, message.backward};
}

int64_t wire_bytes(const Message& message, const compress::Codec& codec) {
  int64_t bytes = message.dense.value;
  for (const int64_t count : message.floats)
    bytes += static_cast<int64_t>(compress::wire_bytes(codec, static_cast<size_t>(count))) -
             count * static_cast<int64_t>(sizeof(float));
  return bytes;
}

// Seconds that a microbatch's bytes take from one device to another, latency aside.
double transfer_seconds(int64_t bytes, const ClusterView& cluster, uint32_t from, uint32_t to) {
  const auto& devices = cluster.devices();
  return static_cast<double>(bytes) /
         std::min({cluster.link(from, to).bytes_per_second, devices[from].uplink, devices[to].downlink});
}

}  // namespace

compress::Codec top_k_of(double ratio, compress::Values values, size_t count) {
  compress::Codec codec{.kind = compress::Kind::TopK, .values = values, .per_million = 1};
  const double most = static_cast<double>(count * sizeof(float)) / ratio;
  uint32_t low = 1, high = kMillion;
  while (low < high) {
    codec.per_million = low + (high - low + 1) / 2;
    if (static_cast<double>(compress::wire_bytes(codec, count)) <= most)
      low = codec.per_million;
    else
      high = codec.per_million - 1;
  }
  codec.per_million = low;
  return codec;
}

namespace {

struct DirectionTraffic {
  int64_t bytes = 0;   // of tensors that may have a codec, a microbatch
  size_t largest = 0;  // of them, in elements
};
std::map<Direction, DirectionTraffic> traffic_of(const Pipeline& pipeline) {
  std::map<Direction, DirectionTraffic> traffic;
  for (const Message& message : pipeline.messages)
    for (const int64_t count : message.floats) {
      DirectionTraffic& one = traffic[direction_of(message)];
      one.bytes += count * static_cast<int64_t>(sizeof(float));
      one.largest = std::max(one.largest, static_cast<size_t>(count));
    }
  return traffic;
}

std::vector<LinkCodec> uniform_codecs(const Compression& compression, const Pipeline& pipeline) {
  std::vector<LinkCodec> codecs;
  for (const auto& [direction, traffic] : traffic_of(pipeline)) {
    const auto& [from, to, backward] = direction;
    codecs.push_back(
        {from, to, backward,
         compression.codec.value_or(top_k_of(compression.ratio, compression.values, traffic.largest))});
  }
  return codecs;
}

std::vector<LinkCodec> adaptive_codecs(const Compression& compression, const Pipeline& pipeline,
                                       const ClusterView& cluster, std::span<const uint32_t> devices) {
  const std::map<Direction, DirectionTraffic> all = traffic_of(pipeline);
  const auto seconds_of = [&](const Direction& direction, const DirectionTraffic& traffic) {
    const auto& [from, to, backward] = direction;
    return transfer_seconds(traffic.bytes, cluster, devices[from], devices[to]);
  };
  double slowest = 0;
  for (const auto& [direction, traffic] : all) slowest = std::max(slowest, seconds_of(direction, traffic));
  std::vector<LinkCodec> codecs;
  for (const auto& [direction, traffic] : all) {
    const auto& [from, to, backward] = direction;
    const double ratio = slowest > 0 ? compression.ratio * seconds_of(direction, traffic) / slowest : 1;
    if (ratio >= kWorthACodec)
      codecs.push_back({from, to, backward, top_k_of(ratio, compression.values, traffic.largest)});
  }
  return codecs;
}

// A link of Auto, which climbs down to gentler codecs.
struct Climber {
  LinkCodec link;
  double takes = 0;  // seconds a microbatch, dense: alone on what lies between, or with all else on a line
  size_t rung = 0;   // of kLadder

  void set(size_t to) { link.codec = kLadder[rung = to]; }
};

Noise noise_of(std::span<const Climber> climbers) {
  std::vector<LinkCodec> codecs;
  for (const Climber& climber : climbers) codecs.push_back(climber.link);
  return noise_of(codecs);
}

// While noise gathers beyond the bound, the link that would then take least time becomes gentler.
void stay_within(const Noise& bound, std::vector<Climber>& climbers) {
  for (const bool backward : {false, true})
    while (true) {
      const Noise noise = noise_of(climbers);
      if (backward ? noise.backward <= bound.backward : noise.forward <= bound.forward) break;
      Climber* next = nullptr;
      double least = 0;
      for (Climber& climber : climbers) {
        if (climber.link.backward != backward || climber.rung == 0) continue;
        const double then = climber.takes / ratio_of(kLadder[climber.rung - 1]);
        if (next == nullptr || then < least) next = &climber, least = then;
      }
      if (next == nullptr) break;
      next->set(next->rung - 1);
    }
}

std::vector<LinkCodec> needed_codecs(const Compression& compression, const Pipeline& pipeline,
                                     const ClusterView& cluster, std::span<const uint32_t> devices) {
  constexpr auto kMicrobatch = [](const StageWork& stage) {
    double sum = 0;
    for (const Segment& segment : stage.segments) sum += seconds(segment.compute);
    return sum;
  };
  double longest = 0;
  for (const StageWork& stage : pipeline.stages) longest = std::max(longest, kMicrobatch(stage));
  std::vector<double> up(devices.size(), 0), down(devices.size(), 0);
  for (const Message& message : pipeline.messages) {
    const auto bytes = static_cast<double>(message.dense.value);
    up[message.from_stage] += bytes / cluster.devices()[devices[message.from_stage]].uplink;
    down[message.to_stage] += bytes / cluster.devices()[devices[message.to_stage]].downlink;
  }
  std::vector<Climber> climbers;
  for (const auto& [direction, traffic] : traffic_of(pipeline)) {
    const auto& [from, to, backward] = direction;
    const double takes =
        std::max({transfer_seconds(traffic.bytes, cluster, devices[from], devices[to]), up[from], down[to]});
    if (takes > longest) climbers.push_back({{from, to, backward, kLadder.front()}, takes});
  }
  // What a microbatch takes at least: links that are faster than the slowest need not be faster than it is
  // at its strongest.
  double least = longest;
  for (const Climber& climber : climbers) least = std::max(least, climber.takes / ratio_of(kLadder.back()));
  for (Climber& climber : climbers)
    while (climber.rung + 1 < kLadder.size() && climber.takes > least * ratio_of(kLadder[climber.rung]))
      climber.set(climber.rung + 1);
  stay_within(noise_bound(compression), climbers);
  std::vector<LinkCodec> codecs;
  codecs.reserve(climbers.size());
  for (const Climber& climber : climbers) codecs.push_back(climber.link);
  return codecs;
}

}  // namespace

std::vector<LinkCodec> choose_codecs(const Compression& compression, const Pipeline& pipeline,
                                     const ClusterView& cluster, std::span<const uint32_t> devices) {
  std::vector<LinkCodec> codecs;
  switch (compression.policy) {
    case CompressionPolicy::None:
      break;
    case CompressionPolicy::Auto:
      codecs = needed_codecs(compression, pipeline, cluster, devices);
      break;
    case CompressionPolicy::AdaTopK:
      codecs = adaptive_codecs(compression, pipeline, cluster, devices);
      break;
    case CompressionPolicy::Uniform:
      codecs = uniform_codecs(compression, pipeline);
      break;
  }
  std::erase_if(codecs, [](const LinkCodec& link) { return link.codec.kind == compress::Kind::Dense; });
  return codecs;
}

void apply_codecs(std::span<const LinkCodec> codecs, Pipeline& pipeline) {
  std::map<Direction, const compress::Codec*> of;
  for (const LinkCodec& link : codecs) of[{link.from_stage, link.to_stage, link.backward}] = &link.codec;
  for (Message& message : pipeline.messages)
    if (const auto at = of.find(direction_of(message)); at != of.end()) {
      message.bytes = {wire_bytes(message, *at->second)};
      message.framing = framing_of(message.bytes);
    }
}

bool takes_codec(const dag::TensorSpec& spec) {
  return spec.dtype == dag::DType::F32 && spec.element_count() >= kCountMin &&
         spec.element_count() <= static_cast<int64_t>(compress::kMaxCount);
}

compress::Codec codec_of(std::span<const LinkCodec> codecs, uint32_t from_stage, uint32_t to_stage,
                         bool backward, const dag::TensorSpec& spec) {
  if (!takes_codec(spec)) return {};
  for (const LinkCodec& link : codecs)
    if (link.from_stage == from_stage && link.to_stage == to_stage && link.backward == backward)
      return link.codec;
  return {};
}

double expected_ratio(const Compression& compression) {
  switch (compression.policy) {
    case CompressionPolicy::None:
      return 1;
    case CompressionPolicy::Auto:
      return ratio_of(kLadder.back());
    case CompressionPolicy::AdaTopK:
      return std::max(1.0, compression.ratio);
    case CompressionPolicy::Uniform:
      return compression.codec ? ratio_of(*compression.codec) : std::max(1.0, compression.ratio);
  }
  return 1;
}

std::string describe_codecs(std::span<const LinkCodec> codecs, const Pipeline& pipeline, bool evaluates) {
  if (codecs.empty()) return {};
  std::set<Direction> all;
  int64_t dense = 0, wire = 0;
  for (const Message& message : pipeline.messages) {
    all.insert(direction_of(message));
    dense += message.dense.value;
    wire += message.bytes.value;
  }
  std::vector<std::string> names;
  for (const LinkCodec& link : codecs) {
    std::string name = compress::name(link.codec);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
  }
  std::string text = "compressed as " + names.front();
  if (names.size() > 1) text += " and " + std::to_string(names.size() - 1) + " other ways";
  const size_t left = all.size() - std::min(all.size(), codecs.size());
  return text + ": " + show(Bytes{dense}) + " to " + show(Bytes{wire}) + " a microbatch on " +
         std::to_string(codecs.size()) + (codecs.size() == 1 ? " link" : " links") +
         (left == 0 ? "" : ", " + std::to_string(left) + (left == 1 ? " stays dense" : " stay dense")) +
         (evaluates ? "; evaluations, too" : "");
}

}  // namespace weft::plan
