// Replicas that add each step's gradients, which a codec writes: what the planner makes of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "plan/replicas.h"
#include "tests/plan/graphs.h"

namespace weft::plan {
namespace {

using dag::Graph;
using std::chrono::milliseconds;

ReplicasPlan planned(const ReplicasRequest& request) {
  auto plan = make_replicas_plan(request);
  EXPECT_TRUE(plan.has_value()) << (plan ? "" : plan.error().message);
  return plan.value_or(ReplicasPlan{});
}

// Of lines over which gradients would take too long as they are some are fast enough for a codec, and the
// prediction is of the bytes that travel.
TEST(CodedGradients, AreAddedUpOverSlowerLinesByACodec) {
  const Graph graph = test::training_graph("gpt");
  const auto request_with = [&](double bytes_per_second, const char* codec) {
    std::vector<DeviceView> devices;
    for (size_t i = 0; i < 4; ++i) devices.push_back(test::device("peer" + std::to_string(i), 1));
    ClusterView cluster(devices);
    cluster.set_between(0, 0, {bytes_per_second, milliseconds(0), false});
    return ReplicasRequest{.pipeline = {.graph = &graph, .microbatches = 8, .cluster = cluster},
                           .count = 4,
                           .count_max = 4,
                           .codec = compress::parse(codec).value(),
                           .ranges = 8};
  };
  const auto bytes_of = [](const ReplicasPlan& plan) {
    Bytes bytes;
    for (const AgreedWeight& weight : plan.agreed) bytes += weight.bytes;
    return static_cast<double>(bytes.value);
  };
  const ReplicasRequest coded_request = request_with(1e6, "int4");
  const ReplicasPlan dense = planned(request_with(1e6, "dense")), coded = planned(coded_request);
  EXPECT_NEAR(seconds(coded.predicted_step), seconds(coded.round + coded.agreement), 1e-8);
  ASSERT_EQ(dense.agreed.size(), coded.agreed.size());
  for (size_t i = 0; i < coded.agreed.size(); ++i) {
    const Bytes whole = dense.agreed[i].bytes;
    const auto wire = compress::wire_bytes(coded_request.codec, static_cast<size_t>(whole.value) / 4);
    EXPECT_EQ(coded.agreed[i].bytes.value, std::min(whole.value, static_cast<int64_t>(wire)))
        << coded.agreed[i].name;
  }
  const double times = bytes_of(dense) / bytes_of(coded);
  EXPECT_GT(times, 6);
  EXPECT_NEAR(seconds(dense.agreement) / seconds(coded.agreement), times, 0.1 * times);
  EXPECT_NE(coded.explanation.front().find(" as int4, are added up in "), std::string::npos)
      << coded.explanation.front();
  EXPECT_EQ(dense.explanation.front().find(" as "), std::string::npos) << dense.explanation.front();
  // Where the planner may choose, there is a rate at which it takes replicas for the codec alone.
  const auto chosen = [&](double bytes_per_second, const char* codec) {
    ReplicasRequest request = request_with(bytes_per_second, codec);
    request.count = 1;
    return planned(request).replicas.size();
  };
  bool is_there = false;
  for (double rate = 1e3; rate < 1e10; rate *= 4) {
    const size_t as_int4 = chosen(rate, "int4"), as_they_are = chosen(rate, "dense");
    EXPECT_GE(as_int4, as_they_are) << rate;
    is_there = is_there || (as_int4 > 1 && as_they_are == 1);
  }
  EXPECT_TRUE(is_there);
}

}  // namespace
}  // namespace weft::plan
