// How long planning takes, at two sizes of graph and of cluster, and again after the loss of a peer. Aims:
// 0.2 s for 1,125 ops on 64 devices, the first time and after a loss; 1 s for 5,605 ops on 1,000.
//   ./dev bench plan [largest number of devices, default 1000]
// The graph is a training step of a network of residual blocks, about so many ops, before lowering; the
// devices are of five speeds in regions of twelve, of 1 Gbit/s within and 20 to 200 Mbit/s between.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "dag/autodiff.h"
#include "dag/op_table.h"
#include "plan/plan.h"

namespace weft::plan {
namespace {

using dag::Attr;
using dag::OpKind;
using dag::ValueId;

dag::Graph training_step(int64_t blocks) {
  constexpr int64_t kBatch = 8, kWidth = 1024;
  dag::GraphBuilder b(dag::op_table());
  const auto weight = [&](const std::string& name, dag::Shape shape) {
    return b.initializer(name, {dag::DType::F32, std::move(shape)}, dag::InitializerRole::Parameter);
  };
  ValueId x = b.input("x", {dag::DType::F32, {kBatch, kWidth}});
  for (int64_t i = 0; i < blocks; ++i) {
    const std::string name = "block" + std::to_string(i);
    ValueId y = b.add(OpKind::MatMul, {x, weight(name + ".up", {kWidth, 2 * kWidth})});
    y = b.add(OpKind::Relu, {b.add(OpKind::Add, {y, weight(name + ".bias", {2 * kWidth})})});
    x = b.add(OpKind::Add, {x, b.add(OpKind::MatMul, {y, weight(name + ".down", {2 * kWidth, kWidth})})});
  }
  b.output("loss",
           b.add(OpKind::ReduceMean, {x}, {{Attr::Axes, dag::Ints{0, 1}}, {Attr::KeepDims, int64_t{0}}}),
           dag::OutputRole::Loss);
  auto graph = dag::differentiate(b.finish(), dag::op_table());
  WEFT_CHECK(graph.has_value());
  return std::move(*graph);
}

ClusterView world(uint32_t count) {
  Rng rng(7, 1);
  std::vector<DeviceView> devices;
  for (uint32_t i = 0; i < count; ++i) {
    const double flops = 2e12 * static_cast<double>(1 + rng.below(5));
    devices.push_back({.name = "peer" + std::to_string(i),
                       .region = "region" + std::to_string(i / 12),
                       .rates = {flops, flops, flops / 50, 5e-6},
                       .memory = {int64_t{8} << 30},
                       .fingerprint = "gpu",
                       .site = i / 12});
  }
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

Result<Plan> measure(const dag::Graph& graph, const ClusterView& cluster, const char* strategy,
                     const char* when = "") {
  const auto began = std::chrono::steady_clock::now();
  auto plan = make_plan({.graph = &graph,
                         .microbatches = 16,
                         .samples = 128,
                         .optimizer_slots = 2,
                         .cluster = cluster,
                         .strategy = strategy});
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  std::printf("%5zu ops, %4zu devices, %-9s %7.3f s", graph.ops().size(), cluster.devices().size(), strategy,
              took.count());
  if (plan)
    std::printf("   %4zu stages, %9.3f samples/s%s\n", plan->stages.size(),
                128 / seconds(plan->predicted_step), when);
  else
    std::printf("   %.60s\n", plan.error().message.c_str());
  return plan;
}

void measure(int64_t blocks, uint32_t devices) {
  const dag::Graph graph = training_step(blocks);
  const ClusterView cluster = world(devices);
  measure(graph, cluster, "op-fence");
  const auto plan = measure(graph, cluster, "auto");
  if (!plan) return;
  std::vector<uint32_t> left;
  for (uint32_t device = 0; device < devices; ++device)
    if (device != plan->stages.back().devices.front()) left.push_back(device);
  measure(graph, cluster.only(left), "auto", ", after the loss of a stage's device");
}

}  // namespace
}  // namespace weft::plan

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const auto most = static_cast<uint32_t>(argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 1000);
  for (const uint32_t devices : {16u, 64u, 250u, 1000u})
    for (const int64_t blocks : {70, 350})
      if (devices <= most) weft::plan::measure(blocks, devices);
}
