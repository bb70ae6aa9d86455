#include "bench/plan_graphs.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "dag/autodiff.h"
#include "dag/op_table.h"

namespace weft::plan {
namespace {

using dag::Attr;
using dag::DType;
using dag::OpKind;
using dag::Shape;
using dag::ValueId;

dag::Graph differentiated(dag::GraphBuilder& b) {
  auto graph = dag::differentiate(b.finish(), dag::op_table());
  WEFT_CHECK(graph.has_value());
  return std::move(*graph);
}

ValueId weight(dag::GraphBuilder& b, const std::string& name, Shape shape) {
  return b.initializer(name, {DType::F32, std::move(shape)}, dag::InitializerRole::Parameter);
}
ValueId linear(dag::GraphBuilder& b, const std::string& name, ValueId x, int64_t out) {
  const ValueId product = b.add(OpKind::MatMul, {x, weight(b, name, {b.spec(x).shape.back(), out})});
  return b.add(OpKind::Add, {product, weight(b, name + ".bias", {out})});
}

// B batch, T tokens, D width, H heads
class Gpt2 {
 public:
  explicit Gpt2(int64_t batch) : batch_(batch) {}

  dag::Graph step() {
    const ValueId tokens = b_.input("tokens", {DType::I64, {batch_, kTokens}});
    const ValueId embedding = weight(b_, "wte", {50257, kWidth});
    ValueId x = b_.add(OpKind::Add, {b_.add(OpKind::Gather, {embedding, tokens}, {{Attr::Axis, int64_t{0}}}),
                                     weight(b_, "wpe", {kTokens, kWidth})});
    for (int64_t i = 0; i < 12; ++i) x = block("h" + std::to_string(i), x);
    const ValueId logits =
        b_.add(OpKind::MatMul, {norm("ln", x), embedding}, {{Attr::TransB, int64_t{1}}}, "logits");
    const ValueId labels = b_.input("labels", {DType::I64, {batch_, kTokens}});
    b_.output("loss",
              b_.add(OpKind::CrossEntropy, {logits, labels},
                     {{Attr::Axis, int64_t{2}}, {Attr::Reduction, std::string("mean")}}),
              dag::OutputRole::Loss);
    return differentiated(b_);
  }

 private:
  static constexpr int64_t kTokens = 128, kWidth = 768, kHeads = 12;

  ValueId norm(const std::string& name, ValueId x) {
    return b_.add(OpKind::LayerNorm,
                  {x, weight(b_, name + ".weight", {kWidth}), weight(b_, name + ".bias", {kWidth})},
                  {{Attr::Axis, int64_t{2}}, {Attr::Epsilon, 1e-5}});
  }
  // x[B,T,D] -> [B,H,T,D/H]
  ValueId heads(ValueId x) {
    const ValueId split =
        b_.add(OpKind::Reshape, {x}, {{Attr::Shape, Shape{batch_, kTokens, kHeads, kWidth / kHeads}}});
    return b_.add(OpKind::Transpose, {split}, {{Attr::Perm, dag::Ints{0, 2, 1, 3}}});
  }
  ValueId block(const std::string& name, ValueId x) {
    const ValueId normed = norm(name + ".ln1", x);
    const auto part = [&](const char* of) { return heads(linear(b_, name + of, normed, kWidth)); };
    const ValueId scores = b_.add(OpKind::MatMul, {part(".q"), part(".k")}, {{Attr::TransB, int64_t{1}}});
    ValueId mixed =
        b_.add(OpKind::MatMul, {b_.add(OpKind::Softmax, {scores}, {{Attr::Axis, int64_t{3}}}), part(".v")});
    mixed = b_.add(OpKind::Transpose, {mixed}, {{Attr::Perm, dag::Ints{0, 2, 1, 3}}});
    mixed = b_.add(OpKind::Reshape, {mixed}, {{Attr::Shape, Shape{batch_, kTokens, kWidth}}});
    x = b_.add(OpKind::Add, {x, linear(b_, name + ".proj", mixed, kWidth)});
    const ValueId hidden = linear(b_, name + ".fc", norm(name + ".ln2", x), 4 * kWidth);
    return b_.add(OpKind::Add, {x, linear(b_, name + ".out", b_.add(OpKind::Relu, {hidden}), kWidth)});
  }

  int64_t batch_;
  dag::GraphBuilder b_{dag::op_table()};
};

DeviceView device(const std::string& name, uint32_t site, double flops, double memory_gib) {
  return {.name = name,
          .region = "region" + std::to_string(site),
          .rates = {flops, flops, flops / 50, 5e-6},
          .memory = {static_cast<int64_t>(memory_gib * double{1 << 30})},
          .fingerprint = "gpu",
          .site = site};
}

}  // namespace

dag::Graph residual_step(int64_t blocks) {
  constexpr int64_t kBatch = 8, kWidth = 1024;
  dag::GraphBuilder b(dag::op_table());
  ValueId x = b.input("x", {DType::F32, {kBatch, kWidth}});
  for (int64_t i = 0; i < blocks; ++i) {
    const std::string name = "block" + std::to_string(i);
    ValueId y = b.add(OpKind::MatMul, {x, weight(b, name + ".up", {kWidth, 2 * kWidth})});
    y = b.add(OpKind::Relu, {b.add(OpKind::Add, {y, weight(b, name + ".bias", {2 * kWidth})})});
    y = b.add(OpKind::MatMul, {y, weight(b, name + ".down", {2 * kWidth, kWidth})});
    x = b.add(OpKind::Add, {x, y});
  }
  b.output("loss",
           b.add(OpKind::ReduceMean, {x}, {{Attr::Axes, dag::Ints{0, 1}}, {Attr::KeepDims, int64_t{0}}}),
           dag::OutputRole::Loss);
  return differentiated(b);
}

dag::Graph gpt2_step(int64_t batch) { return Gpt2(batch).step(); }

ClusterView world(uint32_t count) {
  Rng rng(7, 1);
  std::vector<DeviceView> devices;
  devices.reserve(count);
  for (uint32_t i = 0; i < count; ++i)
    devices.push_back(
        device("peer" + std::to_string(i), i / 12, 2e12 * static_cast<double>(1 + rng.below(5)), 8));
  ClusterView cluster(devices);
  std::vector<double> between(cluster.site_count());
  for (double& bandwidth : between) bandwidth = 2.5e6 * static_cast<double>(1 + rng.below(10));
  for (uint32_t a = 0; a < cluster.site_count(); ++a)
    for (uint32_t b = 0; b < cluster.site_count(); ++b)
      cluster.set_between(a, b,
                          a == b ? LinkView{125e6, std::chrono::microseconds(500)}
                                 : LinkView{std::min(between[a], between[b]), std::chrono::milliseconds(30)});
  return cluster;
}

ClusterView homes(const HomesOptions& options) {
  Rng rng(11, 2);
  std::vector<DeviceView> devices;
  const auto line = [&] { return options.megabits * 125e3 * static_cast<double>(1 + rng.below(10)); };
  for (uint32_t i = 0; i < options.sites * options.devices_each; ++i) {
    const double flops = options.equal ? 15e12 : 5e12 * static_cast<double>(1 + rng.below(5));
    DeviceView& home = devices.emplace_back(
        device("peer" + std::to_string(i), i / options.devices_each, flops, options.memory_gib));
    home.uplink = line();
    home.downlink = 2 * home.uplink;
  }
  ClusterView cluster(devices);
  for (uint32_t a = 0; a < options.sites; ++a)
    for (uint32_t b = a; b < options.sites; ++b) {
      const auto latency = std::chrono::milliseconds(5 + rng.below(40));
      const LinkView between{2 * line(), latency};
      cluster.set_between(a, b, a == b ? LinkView{125e6, std::chrono::microseconds(500)} : between);
      cluster.set_between(b, a, cluster.between(a, b));
    }
  return cluster;
}

}  // namespace weft::plan
