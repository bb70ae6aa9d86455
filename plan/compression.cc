#include "plan/compression.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/check.h"
#include "plan/explain.h"

namespace weft::plan {
namespace {

constexpr int64_t kCountMin = 256;     // elements; a header is longer than what less would save
constexpr double kWorthACodec = 1.05;  // a ratio below it stays dense
constexpr uint32_t kMillion = 1'000'000;
constexpr size_t kUsualCount = size_t{1} << 20;

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

std::vector<LinkCodec> choose_codecs(const Compression& compression, const Pipeline& pipeline,
                                     const ClusterView& cluster, std::span<const uint32_t> devices) {
  WEFT_CHECK(compression.policy != CompressionPolicy::Auto);
  if (compression.policy == CompressionPolicy::None) return {};
  struct Link {
    int64_t bytes = 0;
    size_t largest = 0;  // elements of a tensor
    double seconds = 0;
  };
  std::map<Direction, Link> links;
  for (const Message& message : pipeline.messages)
    for (const int64_t count : message.floats) {
      Link& link = links[direction_of(message)];
      link.bytes += count * static_cast<int64_t>(sizeof(float));
      link.largest = std::max(link.largest, static_cast<size_t>(count));
    }
  double slowest = 0;
  for (auto& [direction, link] : links) {
    const auto& [from, to, backward] = direction;
    link.seconds = transfer_seconds(link.bytes, cluster, devices[from], devices[to]);
    slowest = std::max(slowest, link.seconds);
  }
  std::vector<LinkCodec> codecs;
  for (const auto& [direction, link] : links) {
    const auto& [from, to, backward] = direction;
    const bool is_uniform = compression.policy == CompressionPolicy::Uniform;
    const double ratio =
        is_uniform || slowest == 0 ? compression.ratio : compression.ratio * link.seconds / slowest;
    const bool is_named = is_uniform && compression.codec;
    if (!is_named && ratio < kWorthACodec) continue;
    const compress::Codec codec =
        is_named ? *compression.codec : top_k_of(ratio, compression.values, link.largest);
    if (codec.kind != compress::Kind::Dense) codecs.push_back({from, to, backward, codec});
  }
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
  if (compression.policy == CompressionPolicy::None) return 1;
  if (compression.policy != CompressionPolicy::Uniform || !compression.codec)
    return std::max(1.0, compression.ratio);
  return static_cast<double>(kUsualCount * sizeof(float)) /
         static_cast<double>(compress::wire_bytes(*compression.codec, kUsualCount));
}

std::string describe_codecs(std::span<const LinkCodec> codecs, const Pipeline& pipeline) {
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
         (left == 0 ? "" : ", " + std::to_string(left) + (left == 1 ? " stays dense" : " stay dense"));
}

}  // namespace weft::plan
